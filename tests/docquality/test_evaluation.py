import numpy as np
import polars as pl
import pytest
from sklearn import metrics as reference

from warpgauge.docquality.evaluation import (
    HELDOUT_SCHEMA,
    auc,
    auc_interval,
    average_precision,
    calibration_error,
    evaluate,
    evaluate_slices,
    flat_metrics,
    precision_recall_curve,
)
from warpgauge.errors import NoDataError, SchemaError


@pytest.fixture
def scores():
    generator = np.random.default_rng(0)
    truth = generator.random(400) < 0.1
    return truth, np.clip(np.round(generator.normal(0.3 + 0.3 * truth, 0.15), 2), 0, 1)


def heldout(rows=60, family="report", similarity=0.5):
    generator = np.random.default_rng(1)
    truth = np.arange(rows) % 3 == 0
    return pl.DataFrame(
        {
            "document_id": [f"{family}{at}" for at in range(rows)],
            "source_id": [f"s{at}" for at in range(rows)],
            "family": family,
            "source": "here",
            "product_version": None,
            "label_source": "history",
            "is_defect": truth,
            "defect_probability": np.clip(generator.normal(0.3 + 0.3 * truth, 0.2), 0, 1),
            "versionless_probability": 0.5,
            "baseline_probability": 1 / 3,
            "keyword_score": truth.astype(float),
            "nearest_training_similarity": similarity,
        },
        schema=HELDOUT_SCHEMA,
    )


def test_known_answers():
    truth, score = np.array([True, False, True, False]), np.array([0.9, 0.8, 0.7, 0.1])
    found = evaluate(truth, score)
    assert found["auc"] == 0.75
    assert found["average_precision"] == pytest.approx((1 + 2 / 3) / 2)
    assert found["precision"] == pytest.approx(2 / 3)
    assert found["recall"] == 1.0
    assert found["f1"] == pytest.approx(0.8)
    assert found["brier"] == pytest.approx((0.01 + 0.64 + 0.09 + 0.01) / 4)
    assert found["row_count"] == 4
    assert found["defect_count"] == 2


def test_figures_equal_an_independent_implementation_also_with_ties(scores):
    truth, score = scores
    found = evaluate(truth, score)
    assert found["auc"] == pytest.approx(reference.roc_auc_score(truth, score), abs=1e-12)
    assert found["average_precision"] == pytest.approx(
        reference.average_precision_score(truth, score), abs=1e-12
    )
    assert found["log_loss"] == pytest.approx(reference.log_loss(truth, np.clip(score, 1e-15, 1 - 1e-15)))
    assert found["f1"] == pytest.approx(reference.f1_score(truth, score >= 0.5))


def test_the_interval_of_the_auc_holds_it_and_grows_with_dependent_rows(scores):
    truth, score = scores
    lower, upper = auc_interval(truth, score)
    assert lower < auc(truth, score) < upper
    twice = np.repeat(truth, 4), np.repeat(score, 4)
    groups = np.repeat(np.arange(400), 4).astype(str).tolist()
    apart, together = auc_interval(*twice), auc_interval(*twice, groups)
    assert together[1] - together[0] > 1.5 * (apart[1] - apart[0])


def test_one_class_has_no_auc_and_no_interval():
    found = evaluate(np.zeros(30, dtype=bool), np.linspace(0, 0.4, 30))
    for name in ("auc", "auc_lower", "auc_upper", "average_precision", "precision", "recall", "f1"):
        assert found[name] is None
    assert found["brier"] is not None


def test_no_rows_have_counts_and_nothing_else():
    found = evaluate(np.zeros(0, dtype=bool), np.zeros(0))
    assert {name for name, value in found.items() if value is not None} == {"row_count", "defect_count"}


def test_certainty_that_is_wrong_costs_a_finite_loss():
    assert evaluate(np.array([True]), np.array([0.0]))["log_loss"] == pytest.approx(-np.log(1e-15))


def test_calibration_error_is_the_gap_between_said_and_true():
    truth = np.arange(1000) % 10 == 0
    assert calibration_error(truth, np.full(1000, 0.1)) == pytest.approx(0, abs=1e-9)
    assert calibration_error(truth, np.full(1000, 0.4)) == pytest.approx(0.3, abs=1e-9)


def test_probabilities_outside_their_range_are_refused():
    for wrong in (1.5, float("nan")):
        with pytest.raises(SchemaError, match="0 to 1"):
            evaluate(np.array([True]), np.array([wrong]))
    with pytest.raises(SchemaError, match="1 labels and 2"):
        evaluate(np.array([True]), np.array([0.1, 0.2]))


def test_families_are_reported_apart_and_small_slices_left_out():
    rows = pl.concat([heldout(60), heldout(30, "page", similarity=0.99), heldout(6, "page", similarity=0.1)])
    slices = evaluate_slices(rows.with_columns(document_id=pl.int_range(pl.len()).cast(pl.String)))
    assert set(slices) == {
        "overall", "family=page", "family=report", "source=here", "labels=history", "unlike_training=report",
    }  # fmt: skip
    assert slices["family=page"]["row_count"] == 36
    assert slices["overall"]["keyword_auc"] == 1.0
    assert slices["overall"]["baseline_log_loss"] == pytest.approx(
        reference.log_loss(rows["is_defect"].to_numpy(), np.full(96, 1 / 3))
    )


def test_versions_of_one_document_are_compared_without_their_version():
    rows = heldout(4).with_columns(
        source_id=pl.Series(["a", "a", "b", "b"]),
        is_defect=pl.Series([True, False, False, True]),
        versionless_probability=pl.Series([0.7, 0.2, 0.4, 0.4]),
    )
    overall = evaluate_slices(rows)["overall"]
    assert overall["same_document_pair_count"] == 2
    assert overall["same_document_auc"] == 0.75  # one won, one tied
    assert evaluate_slices(heldout())["overall"]["same_document_auc"] is None


def test_no_held_out_rows_and_a_lost_column_are_refused():
    with pytest.raises(NoDataError):
        evaluate_slices(heldout(0))
    with pytest.raises(SchemaError, match="keyword_score"):
        evaluate_slices(heldout().drop("keyword_score"))


def test_flat_names_hold_only_finite_figures_and_safe_characters():
    flat = flat_metrics(
        {"overall": {"auc": 0.9, "f1": None}, "source=a/b:c": {"auc": float("inf"), "brier": 0.1}}
    )
    assert flat == {"auc": 0.9, "source_a_b_c/brier": 0.1}


def test_the_curve_ends_at_full_recall(scores):
    curve = precision_recall_curve(*scores)
    assert curve["recall"][-1] == 1.0
    assert curve["precision"][-1] == pytest.approx(scores[0].mean())
    assert curve["threshold"].is_sorted(descending=True)


def test_average_precision_without_a_defect_is_undefined():
    assert average_precision(np.zeros(3, dtype=bool), np.arange(3.0)) is None
