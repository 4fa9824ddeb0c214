import gzip
import json
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from warpgauge.docquality.encoder import Encoder, document_texts
from warpgauge.docquality.evaluation import HELDOUT_SCHEMA, flat_metrics
from warpgauge.docquality.training import split_of, train_docquality
from warpgauge.errors import NoDataError, SchemaError, TrainingError

ENCODER_ID = "e" * 64


def train(corpus, **changes):
    fields = {
        "documents": corpus.documents,
        "labels": corpus.labels,
        "check_features": corpus.checks,
        "embeddings": corpus.embeddings,
        "encoder_id": ENCODER_ID,
    }
    return train_docquality(**(fields | changes))


@pytest.fixture(scope="module")
def corpus(make):
    return make.corpus()


@pytest.fixture(scope="module")
def trained(corpus):
    return train(corpus)


def test_both_families_are_learned_and_reported_apart(trained):
    # Known from the generator: the best possible AUC is about 0.99 for the reports' axis, 0.85 for the pages' count.
    assert trained.metrics["family=report"]["auc"] > 0.9
    assert trained.metrics["family=page"]["auc"] > 0.75
    assert trained.metrics["overall"]["log_loss"] < trained.metrics["overall"]["baseline_log_loss"]
    assert trained.heldout.schema == HELDOUT_SCHEMA
    assert np.isfinite(list(flat_metrics(trained.metrics).values())).all()


def test_text_that_says_nothing_is_turned_down_where_it_says_nothing(trained):
    assert trained.model.space.text_scales["page"] < 0.2
    assert trained.model.space.text_scales["report"] > 0.2


def test_the_gates_rows_are_whole_documents_and_never_trained_on(corpus, trained):
    gate = set(trained.heldout["source_id"])
    assert gate == {name for name in corpus.documents["source_id"] if split_of(name) == 0}
    flipped = corpus.labels.with_columns(
        pl.when(pl.col("document_id").is_in(trained.heldout["document_id"].to_list()))
        .then(~pl.col("is_defect"))
        .otherwise(pl.col("is_defect"))
        .alias("is_defect")
    )
    other = train(corpus, labels=flipped)
    assert other.heldout["defect_probability"].equals(trained.heldout["defect_probability"])
    assert other.metrics["overall"]["auc"] == pytest.approx(1 - trained.metrics["overall"]["auc"])


def test_splits_are_the_same_for_ever():
    assert [split_of(name) for name in ("cudaGraphLaunch", "cudaMalloc", "cuInit", "#1", "")] == [
        3,
        2,
        4,
        2,
        2,
    ]


def test_labels_from_history_are_a_proxy_and_said_so(trained):
    assert trained.label_provenance == "proxy"
    assert trained.model.label_provenance == "proxy"
    assert any("proxy" in note for note in trained.notes)


def test_enough_labels_of_people_are_the_judge(corpus, make):
    reports = corpus.documents.filter(pl.col("family") == "report")["document_id"].to_list()
    verdicts = dict(corpus.labels.select("document_id", "is_defect").iter_rows())
    people = make.labels(reports, [verdicts[name] for name in reports], annotator="ann", label_source="human")
    trained = train(corpus, labels=pl.concat([corpus.labels, people]))
    assert trained.label_provenance == "human"
    assert set(trained.heldout["label_source"]) == {"human"}
    assert set(trained.heldout["family"]) == {"report"}
    assert trained.counts["human_labelled_count"] == 300


def test_labels_of_checks_change_nothing_and_those_of_unknown_documents_and_ties_are_counted(
    corpus, trained, make
):
    names = corpus.documents["document_id"].to_list()
    checks = make.labels(names, [True] * len(names), annotator="check", label_source="check")
    unknown = make.labels(["gone"], [True])
    votes = [
        make.labels(["split"], [verdict], annotator=str(verdict), label_source="human")
        for verdict in (True, False)
    ]
    other = train(corpus, labels=pl.concat([corpus.labels, checks, unknown, *votes]))
    assert other.heldout.equals(trained.heldout)
    assert other.model.to_files() == trained.model.to_files()
    assert other.counts["check_label_count"] == 700
    assert other.counts["label_without_document_count"] == 1
    assert other.counts["tied_count"] == 1
    assert any("split" in note for note in other.notes)


def test_without_a_pool_no_round_is_run_and_the_run_says_so(trained):
    assert trained.counts["pool_count"] == 0
    assert trained.self_training.rounds == ()
    assert trained.notes[0].startswith("no unlabelled documents")


def test_unlabelled_documents_outside_the_gate_are_the_pool(corpus):
    trained = train(corpus, labels=corpus.labels[:400])
    unlabelled = corpus.documents["source_id"].to_list()[400:]
    assert trained.counts["pool_count"] == sum(split_of(name) != 0 for name in unlabelled)
    assert len(trained.self_training.rounds) >= 1


def test_an_age_that_tells_is_not_taken_for_seeing_the_fault(make):
    # Every older version is faulty, and nothing in the text or the checks says why.
    corpus = make.corpus(report_count=0, page_count=200)
    labels = corpus.labels.with_columns(pl.col("document_id").str.ends_with("12.4").alias("is_defect"))
    checks = corpus.checks.with_columns(pl.lit(0).alias("check_missing_parameter_count"))
    trained = train(corpus, labels=labels, check_features=checks, rounds=0)
    page = trained.metrics["family=page"]
    assert page["auc"] > 0.95
    assert page["same_document_auc"] == pytest.approx(0.5, abs=0.2)
    assert any("50% is chance" in note for note in trained.notes)


def test_six_percent_of_defects_are_enough(make):
    corpus = make.corpus(report_count=500, page_count=0, defect_ratio=0.06)
    trained = train(corpus)
    assert trained.counts["defect_count"] < 40
    assert trained.metrics["family=report"]["auc"] > 0.85


def test_kinds_and_natures_with_labels_enough_get_heads(corpus, make):
    verdicts = corpus.labels["is_defect"].to_numpy()
    half = np.arange(len(verdicts)) % 2 == 0
    labels = corpus.labels.with_columns(
        pl.Series("kinds", [["typo"] if d else None for d in verdicts], dtype=pl.List(pl.String)),
        pl.Series(
            "nature",
            [("version" if h else "concept") if d else None for d, h in zip(verdicts, half, strict=True)],
        ),
    )
    model = train(corpus, labels=labels, rounds=0).model
    assert list(model.kinds) == ["typo"]
    assert model.version_nature is not None
    answers = model.score(corpus.documents, corpus.embeddings, corpus.checks, encoder_id=ENCODER_ID)
    likely = answers.filter(pl.col("defect_probability") > 0.9)
    assert likely["kinds"].list.contains("typo").mean() > 0.9
    assert set(likely["nature"]) <= {"concept", "version"}
    none = answers.filter((pl.col("defect_probability") < 0.5) & (pl.col("evidence").list.len() == 0))
    assert none["nature"].null_count() == none.height


def test_a_family_of_one_class_is_warned_about(corpus):
    pages = corpus.documents.filter(pl.col("family") == "page")["document_id"].to_list()
    labels = corpus.labels.with_columns(pl.col("is_defect") & ~pl.col("document_id").is_in(pages))
    trained = train(corpus, labels=labels, rounds=0)
    assert trained.metrics["family=page"]["auc"] is None
    assert any("family page are of one class" in note for note in trained.notes)


def test_forty_labels_with_three_defects_train(make):
    corpus = make.corpus(report_count=100, page_count=0)
    defect = corpus.labels.filter(pl.col("is_defect"))
    trainable = defect.filter(
        pl.col("document_id").str.replace("@None", "").map_elements(split_of, pl.Int64) != 0
    )
    labels = pl.concat([trainable[:3], corpus.labels.filter(~pl.col("is_defect"))[:37]])
    trained = train(corpus, labels=labels)
    assert trained.metrics["overall"]["auc"] is None
    assert any("one class" in note for note in trained.notes)


def test_data_that_cannot_teach_are_refused_with_the_reason(corpus, make):
    with pytest.raises(TrainingError, match="30 labelled documents, training needs 40"):
        train(corpus, labels=corpus.labels[:30])
    with pytest.raises(TrainingError, match="none is labelled 'defect'"):
        train(corpus, labels=corpus.labels.with_columns(pl.lit(value=False).alias("is_defect")))
    with pytest.raises(TrainingError, match="0 labelled documents"):
        train(corpus, labels=corpus.labels.clear())
    with pytest.raises(NoDataError):
        train(corpus, documents=corpus.documents.clear(), embeddings=corpus.embeddings[:0])
    with pytest.raises(SchemaError, match="700 documents"):
        train(corpus, embeddings=corpus.embeddings[1:])


def test_all_defects_in_the_gates_rows_are_refused(corpus):
    is_gate = pl.col("document_id").str.split("@").list.first().map_elements(split_of, pl.Int64) == 0
    labels = corpus.labels.with_columns((pl.col("is_defect") & is_gate).alias("is_defect"))
    with pytest.raises(TrainingError, match="outside the gate's rows"):
        train(corpus, labels=labels)


def test_real_pull_request_texts_tell_documentation_work_from_code(bench_data):
    """79 documentation-only pull requests and 200 code fixes of one repository."""
    path = bench_data / "documents" / "pull_requests_cudf.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [json.loads(line) for line in file]
    chosen = [row for row in rows if row["label"] == "doc_only"]
    chosen += [row for row in rows if row["label"] == "code_fix"][:200]
    ids = [row["commit"] for row in chosen]
    documents = pl.DataFrame(
        {
            "document_id": ids,
            "source": [row["repo"] for row in chosen],
            "source_id": ids,
            "family": "report",
            "title": [row["title"] for row in chosen],
            "body": [row["text"] for row in chosen],
            "product_version": pl.Series([None] * len(ids), dtype=pl.String),
        }
    )
    labels = pl.DataFrame(
        {
            "document_id": ids,
            "annotator": "files touched",
            "labelled_at": datetime(2026, 1, 1, tzinfo=UTC),
            "label_source": "history",
            "is_defect": [row["label"] == "doc_only" for row in chosen],
            "kinds": pl.Series([None] * len(ids), dtype=pl.List(pl.String)),
            "nature": pl.Series([None] * len(ids), dtype=pl.String),
        }
    )
    short = Encoder.load(tokens=64)  # half the time of 128
    vectors = short.encode(document_texts(documents))
    trained = train_docquality(
        documents, labels, pl.DataFrame({"document_id": ids}), vectors, short.encoder_id
    )
    assert trained.counts["defect_count"] == 79
    assert trained.metrics["overall"]["auc"] > 0.85  # seen: 0.968 on 45 held-out texts
    assert trained.metrics["overall"]["auc"] > trained.metrics["overall"]["keyword_auc"]
    assert trained.metrics["overall"]["log_loss"] < trained.metrics["overall"]["baseline_log_loss"]
