import numpy as np
import polars as pl
import pytest

from warpgauge.docquality.features import (
    default_check_kinds,
    fit_feature_space,
    keyword_scores,
    signed_log,
    wording_features,
)
from warpgauge.errors import NoDataError, SchemaError


@pytest.fixture
def corpus(make):
    return make.corpus(report_count=30, page_count=20)


@pytest.fixture
def space(corpus):
    return fit_feature_space(corpus.documents, corpus.embeddings, corpus.checks)


def column(space, features, name):
    return features.matrix[:, space.names.index(name)]


def test_the_matrix_has_one_named_column_for_each_feature(corpus, space):
    features = space.transform(corpus.documents, corpus.embeddings, corpus.checks)
    assert features.matrix.shape == (70, len(space.names))
    assert len(set(space.names)) == len(space.names)
    assert np.isfinite(features.matrix).all()


def test_a_family_has_its_own_text_columns(corpus, space):
    features = space.transform(corpus.documents, corpus.embeddings, corpus.checks)
    is_page = (corpus.documents["family"] == "page").to_numpy()
    page_text = features.matrix[:, space.text_columns("page")]
    assert np.allclose(page_text[is_page], corpus.embeddings[is_page] * np.sqrt(8))
    assert not page_text[~is_page].any()


def test_check_columns_are_found_by_name_not_by_place(corpus, space):
    checks = corpus.checks.with_columns(zero=pl.lit(0)).select(
        "zero", "check_missing_parameter_count", "document_id"
    )
    expected = space.transform(corpus.documents, corpus.embeddings, corpus.checks).matrix
    found = space.transform(
        corpus.documents, corpus.embeddings, checks.sample(fraction=1, shuffle=True, seed=1)
    )
    assert np.array_equal(found.matrix, expected)


def test_no_answer_of_a_check_is_a_column_of_its_own_and_not_a_zero(corpus, space):
    features = space.transform(corpus.documents, corpus.embeddings, corpus.checks)
    is_report = (corpus.documents["family"] == "report").to_numpy()
    assert np.array_equal(
        column(space, features, "check_missing_parameter_count=null"), is_report.astype(float)
    )
    assert np.isnan(features.checks["check_missing_parameter_count"][is_report]).all()
    answered = column(space, features, "check_missing_parameter_count")[~is_report]
    assert answered.mean() == pytest.approx(0, abs=1e-9)
    assert answered.std() == pytest.approx(1, abs=1e-9)


def test_unseen_family_source_version_and_silent_check_are_named(make):
    corpus = make.corpus(report_count=0, page_count=20)
    space = fit_feature_space(corpus.documents, corpus.embeddings, corpus.checks)
    stranger = make.documents(["new"], "report", "elsewhere", "14.0")
    features = space.transform(stranger, corpus.embeddings[:1], corpus.checks.clear())
    assert features.never_seen == [
        [
            "family report",
            "source elsewhere",
            "version 14.0",
            "no answer of check check_missing_parameter_count",
        ]
    ]
    assert column(space, features, "source=<other>") == [1.0]
    assert column(space, features, "version=<other>") == [1.0]
    assert space.transform(corpus.documents, corpus.embeddings, corpus.checks).never_seen == [[]] * 40


def test_rare_sources_share_a_column_and_count_as_seen(make):
    documents = pl.concat(
        [
            make.documents([f"a{n}" for n in range(12)], "page", "big", None),
            make.documents(["b"], "page", "small", None),
        ]
    )
    vectors = np.eye(13, 8, dtype=np.float32) + 0.1
    checks = pl.DataFrame({"document_id": documents["document_id"]})
    space = fit_feature_space(documents, vectors, checks)
    features = space.transform(documents, vectors, checks)
    assert space.source_indicators == ("big",)
    assert column(space, features, "source=<other>").tolist() == [0.0] * 12 + [1.0]
    assert features.never_seen[12] == []


def test_one_absurd_count_is_cut(corpus, space):
    checks = corpus.checks.with_columns(pl.lit(10**15).alias("check_missing_parameter_count"))
    assert space.transform(corpus.documents, corpus.embeddings, checks).matrix.max() <= 8.0


def test_no_documents_give_an_empty_matrix(corpus, space):
    features = space.transform(corpus.documents.clear(), corpus.embeddings[:0], corpus.checks)
    assert features.matrix.shape == (0, len(space.names))
    with pytest.raises(NoDataError):
        fit_feature_space(corpus.documents.clear(), corpus.embeddings[:0], corpus.checks)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda c: (c.documents.drop("source"), c.embeddings, c.checks), "lack column source"),
        (lambda c: (c.documents, c.embeddings[:-1], c.checks), "69, 8.*70 documents"),
        (lambda c: (c.documents, c.embeddings[:, :4], c.checks), "4 dimensions"),
        (lambda c: (c.documents, np.where(c.embeddings > 0.5, np.nan, c.embeddings), c.checks), "not finite"),
        (lambda c: (pl.concat([c.documents[:69], c.documents[:1]]), c.embeddings, c.checks), "occurs twice"),
        (lambda c: (c.documents, c.embeddings, pl.concat([c.checks, c.checks[:1]])), "occurs twice"),
        (
            lambda c: (c.documents, c.embeddings, c.checks.drop("check_missing_parameter_count")),
            "lack column check",
        ),
        (
            lambda c: (
                c.documents,
                c.embeddings,
                c.checks.cast({"check_missing_parameter_count": pl.String}),
            ),
            "a check gives a number",
        ),
        (
            lambda c: (
                c.documents,
                c.embeddings,
                c.checks.with_columns(pl.lit(float("inf")).alias("check_missing_parameter_count")),
            ),
            "is inf",
        ),
        (
            lambda c: (
                c.documents,
                c.embeddings,
                c.checks.with_columns(pl.lit(float("nan")).alias("check_missing_parameter_count")),
            ),
            "is nan",
        ),
    ],
)
def test_inputs_that_do_not_fit_are_refused_with_the_place(corpus, space, change, message):
    with pytest.raises(SchemaError, match=message):
        space.transform(*change(corpus))


def test_words_about_documentation_are_counted_as_whole_words():
    documents = pl.DataFrame(
        {"title": ["Fix docs", None, "Docstring typo"], "body": ["Documentation of docking.", None, "x"]}
    )
    assert keyword_scores(documents) == pytest.approx([2, 0, 2])
    np.testing.assert_allclose(wording_features(documents)[0], [np.log(3), 2 / 5, np.log(6)])


def test_the_kind_of_a_check_is_in_its_name():
    assert default_check_kinds(("check_typo_repeated_word_count", "word_count")) == {
        "check_typo_repeated_word_count": "typo"
    }


def test_signed_log_keeps_sign_and_gaps():
    np.testing.assert_allclose(signed_log(np.array([-1.0, 0.0, np.nan])), [-np.log(2), 0.0, np.nan])
