import dataclasses
import json

import numpy as np
import polars as pl
import pytest

from warpgauge.docquality.model import DESCRIPTION_FILE, SCORE_SCHEMA, TENSOR_FILE, DocQualityModel
from warpgauge.docquality.training import train_docquality
from warpgauge.errors import ModelFileError, SchemaError

ENCODER_ID = "e" * 64


@pytest.fixture(scope="module")
def corpus(make):
    return make.corpus()


@pytest.fixture(scope="module")
def model(corpus):
    return train_docquality(
        corpus.documents, corpus.labels, corpus.checks, corpus.embeddings, ENCODER_ID, rounds=0
    ).model


@pytest.fixture(scope="module")
def files(model):
    return model.to_files()


def score(model, corpus, **changes):
    fields = {"documents": corpus.documents, "embeddings": corpus.embeddings, "check_features": corpus.checks}
    return model.score(**(fields | {"encoder_id": ENCODER_ID} | changes))


def test_an_answer_has_a_probability_a_kind_and_the_evidence(model, corpus):
    answers = score(model, corpus)
    assert answers.schema == SCORE_SCHEMA
    assert answers["document_id"].to_list() == corpus.documents["document_id"].to_list()
    assert answers["defect_probability"].is_between(0, 1).all()
    found = answers.join(corpus.checks, on="document_id").filter(pl.col("check_missing_parameter_count") == 2)
    assert found["kinds"].to_list() == [["missing_parameter"]] * found.height
    assert found["evidence"][0].to_list() == ["check_missing_parameter_count=2"]
    assert set(found["nature"]) == {"concept"}


def test_reasons_name_what_moved_the_answer(model, corpus):
    answers = score(model, corpus).with_row_index()
    defects = answers.filter(pl.col("defect_probability") > 0.8)
    assert defects.height > 10
    pages = defects.filter(pl.col("document_id").str.starts_with("call"))
    reports = defects.filter(pl.col("document_id").str.starts_with("issue"))
    assert {row[0]["feature"] for row in pages["reasons"].to_list()} == {"check_missing_parameter_count"}
    assert {row[0]["feature"] for row in reports["reasons"].to_list()} == {"text"}
    assert all(row[0]["contribution"] > 0 for row in defects["reasons"].to_list())


def test_more_findings_make_a_defect_likelier(model, corpus):
    page = corpus.documents.filter(pl.col("family") == "page")[:1]
    row = corpus.documents["document_id"].to_list().index(page["document_id"][0])
    answers = [
        score(
            model,
            corpus,
            documents=page,
            embeddings=corpus.embeddings[row : row + 1],
            check_features=pl.DataFrame(
                {"document_id": page["document_id"], "check_missing_parameter_count": [count]}
            ),
        )["defect_probability"][0]
        for count in (0, 1, 3)
    ]
    assert answers == sorted(answers)
    assert answers[2] > 2 * answers[0]


def test_what_training_never_saw_is_named_and_answered_finitely(model, make, corpus):
    stranger = make.documents(["new"], "page", "elsewhere", "99.0")
    answer = score(model, corpus, documents=stranger, embeddings=corpus.embeddings[:1])
    assert answer["never_seen"].to_list() == [["source elsewhere", "version 99.0"]]
    assert 0 < answer["defect_probability"][0] < 1


def test_no_documents_give_an_empty_answer(model, corpus):
    answer = score(model, corpus, documents=corpus.documents.clear(), embeddings=corpus.embeddings[:0])
    assert answer.schema == SCORE_SCHEMA
    assert answer.is_empty()


def test_embeddings_of_another_encoder_are_refused(model, corpus):
    with pytest.raises(SchemaError, match="encoder ffffffffffff"):
        score(model, corpus, encoder_id="f" * 64)


def test_a_file_gives_the_same_answers_to_the_last_digit(model, corpus, files):
    again = DocQualityModel.from_files(files)
    assert score(again, corpus).equals(score(model, corpus))
    assert again.to_files() == files
    assert sum(len(content) for content in files.values()) < 1_200_000


def test_a_missing_file_is_named(files):
    with pytest.raises(ModelFileError, match=r"model\.json"):
        DocQualityModel.from_files({TENSOR_FILE: files[TENSOR_FILE]})


@pytest.mark.parametrize("name", [TENSOR_FILE, DESCRIPTION_FILE])
@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_cut_file_is_refused(files, name, share):
    cut = files[name][: int(len(files[name]) * share)]
    with pytest.raises(ModelFileError):
        DocQualityModel.from_files(files | {name: cut})


def test_one_changed_bit_in_the_arrays_is_refused(files):
    altered = bytearray(files[TENSOR_FILE])
    altered[-1] ^= 1
    with pytest.raises(ModelFileError, match="cut or altered"):
        DocQualityModel.from_files(files | {TENSOR_FILE: bytes(altered)})


def test_a_changed_number_in_the_description_is_refused(files):
    outer = json.loads(files[DESCRIPTION_FILE])
    outer["content"]["encoder_id"] = "f" * 64
    with pytest.raises(ModelFileError, match="altered"):
        DocQualityModel.from_files(files | {DESCRIPTION_FILE: json.dumps(outer).encode()})


@pytest.mark.parametrize("text", [b"", b"null", b"[]", b'{"content": 1}', b"\xff\xfe", b"[" * 100_000])
def test_a_description_that_is_something_else_is_refused(files, text):
    with pytest.raises(ModelFileError):
        DocQualityModel.from_files(files | {DESCRIPTION_FILE: text})


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused(model, value):
    weights = model.defect.head.weights.copy()
    weights[1, 0] = value
    head = dataclasses.replace(model.defect.head, weights=weights)
    broken = dataclasses.replace(model, defect=dataclasses.replace(model.defect, head=head))
    with pytest.raises(ModelFileError, match="not finite"):
        DocQualityModel.from_files(broken.to_files())


def test_weights_of_another_width_are_refused(model):
    head = dataclasses.replace(model.defect.head, weights=np.zeros((2, 3)))
    broken = dataclasses.replace(model, defect=dataclasses.replace(model.defect, head=head))
    with pytest.raises(ModelFileError, match=r"weights \(2, 3\)"):
        DocQualityModel.from_files(broken.to_files())
