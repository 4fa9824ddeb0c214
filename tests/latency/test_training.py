"""warpgauge/latency/training.py on launches with a known law."""

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import SchemaError, SettingsError, TrainingError
from warpgauge.latency.evaluation import score_rows
from warpgauge.latency.fitting import Boosting
from warpgauge.latency.folds import GATE_FOLD, fold_numbers
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME, LaunchScheme
from warpgauge.latency.training import train_latency


def test_every_labelled_row_is_predicted_once_by_a_model_that_had_not_seen_it(training, launches):
    assert sorted(training.heldout["row_id"]) == sorted(launches["launch_id"])
    assert training.row_count == 600
    assert len(training.residuals_log) == 600


def test_noise_is_all_that_is_left(training):
    # Log-normal noise of 3 %.
    assert training.metrics["mape_ratio"] == pytest.approx(0.03 * np.sqrt(2 / np.pi), rel=0.2)
    assert training.metrics["coverage_ratio"] == pytest.approx(0.9, abs=0.04)
    assert np.median(training.residuals_log) == pytest.approx(0.0, abs=0.01)


def test_linear_baseline_stands_in_the_same_table(training):
    overall = training.slices.filter(pl.col("slice") == "overall")
    assert set(overall["predictor"]) == {"model", "plain", "curve", "line"}
    assert training.metrics["line_rmse_us"] > 0
    assert {"gpu_name", "topology", "is_profiled", "is_simulated", "size_band"} < set(
        training.slices["slice"]
    )


def test_fold_keeps_ten_consecutive_lengths_and_all_gpus_together(launches):
    folds = launches.with_columns(
        fold=pl.Series(fold_numbers(LAUNCH_SCHEME, launches)), block=(pl.col("line_length") - 1) // 10
    )
    each = folds.group_by("topology", "block").agg(pl.col("fold").n_unique())
    assert each["fold"].to_list() == [1] * each.height
    assert folds["fold"].n_unique() == 5


def test_fold_of_a_graph_never_changes():
    rows = pl.DataFrame(
        {
            "topology": ["straight_line", "parallel_lines", "captured", "captured"],
            "line_count": [1, 4, None, None],
            "line_length": [17, 1234, None, None],
            "graph_signature": ["lines:1:17", "lines:4:1234", "captured:a", "captured:b"],
        }
    )
    # First 8 hexadecimal digits of the SHA-256 of straight_line:1:1, parallel_lines:4:123,
    # signature:captured:a and signature:captured:b, modulo 5.
    assert fold_numbers(LAUNCH_SCHEME, rows).tolist() == [1, 3, 3, 0]


def test_gate_rows_are_never_trained_on(training, launches):
    gate = training.gate_rows
    assert gate.height + training.training_row_count == launches.height
    assert set(fold_numbers(LAUNCH_SCHEME, gate)) == {GATE_FOLD}
    assert training.model.trained_on["row_count"] == training.training_row_count
    scored = score_rows(training.model, gate)
    held = training.heldout.filter(pl.col("fold") == GATE_FOLD)
    assert scored.sort("row_id")["predicted_us"].to_list() == held.sort("row_id")["predicted_us"].to_list()
    assert training.metrics["gate_coverage_ratio"] == pytest.approx(0.9, abs=0.08)


def test_labels_of_the_gate_do_not_change_the_model(training, launches):
    is_gate = pl.Series(fold_numbers(LAUNCH_SCHEME, launches) == GATE_FOLD)
    spoilt = launches.with_columns(
        first_launch_api_us=pl.when(is_gate).then(1e6).otherwise(pl.col("first_launch_api_us"))
    )
    assert (
        train_latency(LAUNCH_SCHEME, spoilt, Boosting(trees=80), threads=1).model.to_files()
        == training.model.to_files()
    )


def test_row_order_and_repetition_do_not_change_the_model(training, launches):
    shuffled = launches.sample(fraction=1.0, shuffle=True, seed=7).select(reversed(launches.columns))
    assert (
        train_latency(LAUNCH_SCHEME, shuffled, Boosting(trees=80), threads=1).model.to_files()
        == training.model.to_files()
    )


def test_dropped_features_are_named_with_the_reason(training):
    assert training.dropped_features["stream_count"] == "no source filled it"
    assert training.dropped_features["cuda_version"] == "always 12.4"
    assert not set(training.dropped_features) & set(training.model.feature_names)


def test_left_out_gpu_is_always_reported(training):
    gpus = training.left_out.filter(pl.col("column") == "gpu_name")
    assert gpus["value"].to_list() == ["Tesla A", "Tesla B"]
    # Their costs differ twofold.
    assert gpus["log_error"].to_list() == pytest.approx([np.log(2)] * 2, abs=0.15)
    assert training.model.intervals.unseen_evidence["gpu_name"] == "measured"


def test_single_gpu_is_noted_and_its_widening_stated(make_launches):
    training = train_latency(LAUNCH_SCHEME, make_launches(gpus=("Tesla A",)), Boosting(trees=10), threads=1)
    assert "gpu_name" not in training.left_out["column"].to_list()
    assert any("one gpu_name alone" in note for note in training.notes)


def test_rows_without_a_usable_label_are_counted(make_launches):
    rows = make_launches()
    bad = rows.with_row_index("row").select(
        pl.when(pl.col("row") == 0)
        .then(None)
        .when(pl.col("row") == 1)
        .then(float("nan"))
        .when(pl.col("row") == 2)
        .then(float("inf"))
        .when(pl.col("row") == 3)
        .then(0.0)
        .otherwise(pl.col("first_launch_api_us"))
    )
    training = train_latency(
        LAUNCH_SCHEME, rows.with_columns(first_launch_api_us=bad.to_series()), Boosting(trees=10), threads=1
    )
    assert training.unusable_row_count == 4
    assert training.row_count == 596
    assert any("4 launches" in note for note in training.notes)


def test_no_label_says_which_other_label_is_there(launches):
    moved = launches.with_columns(
        launch_api_us=pl.col("first_launch_api_us"), first_launch_api_us=pl.lit(None, dtype=pl.Float64)
    )
    with pytest.raises(TrainingError, match=r"0 of 600 launches .* launch_api_us 600"):
        train_latency(LAUNCH_SCHEME, moved)


def test_too_few_rows_are_refused(launches):
    with pytest.raises(TrainingError, match="10 of 10 launches"):
        train_latency(LAUNCH_SCHEME, launches.head(10))


def test_one_graph_is_refused(launches):
    one = launches.with_columns(
        graph_signature=pl.lit("same"), line_length=pl.lit(None, dtype=pl.Int64), line_count=pl.lit(1)
    )
    with pytest.raises(TrainingError, match="1 shapes in 1 of 5 folds"):
        train_latency(LAUNCH_SCHEME, one)


def test_unknown_target_is_refused(launches):
    with pytest.raises(SettingsError, match="latency_ms"):
        LaunchScheme(target="latency_ms")


def test_missing_column_is_named(launches):
    with pytest.raises(SchemaError, match="graph_signature"):
        train_latency(LAUNCH_SCHEME, launches.drop("graph_signature"))


def test_noise_floor_is_that_of_the_trials(training, launches):
    medians = pl.col("first_launch_api_us").median().over("graph_id")
    expected = launches.select(((pl.col("first_launch_api_us") - medians) ** 2).mean().sqrt()).item()
    assert training.metrics["noise_floor_us"] == pytest.approx(expected)


def test_max_bin_reaches_the_booster(launches):
    training = train_latency(LAUNCH_SCHEME, launches, Boosting(max_bin=15, trees=5), threads=1)
    assert "[max_bin: 15]" in training.model.booster.text
    assert training.tree_count <= 5


def test_wider_coverage_gives_wider_intervals(training, launches):
    wide = train_latency(LAUNCH_SCHEME, launches, Boosting(trees=80), threads=1, coverage_ratio=0.98)
    assert wide.metrics["mean_interval_width_us"] > training.metrics["mean_interval_width_us"]
    assert wide.metrics["coverage_ratio"] > training.metrics["coverage_ratio"]
