"""warpgauge/latency/training.py on launches and kernels with a known law."""

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import SchemaError, SettingsError, TrainingError
from warpgauge.latency.evaluation import score_rows
from warpgauge.latency.fitting import Boosting
from warpgauge.latency.folds import GATE_FOLD, fold_numbers
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME, LaunchScheme
from warpgauge.latency.model import LatencyModel
from warpgauge.latency.training import train_latency

# As the fixture `kernel_training` is made.
KERNEL_BOOSTING = Boosting(trees=60, learning_rate=0.2, lambda_l2=1.0)


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


def test_law_of_a_described_table_is_found_on_shapes_that_were_held_out(kernel_training, kernels):
    training = kernel_training
    # Log-normal noise of 2 %; the kinds differ by 1.3, which neither roofline nor line knows.
    assert training.metrics["mape_ratio"] == pytest.approx(0.02 * np.sqrt(2 / np.pi), rel=0.1)
    assert training.metrics["coverage_ratio"] == pytest.approx(0.9, abs=0.04)
    for yardstick in ("plain", "curve", "line"):
        assert training.metrics[f"{yardstick}_mape_ratio"] > 5 * training.metrics["mape_ratio"]
    assert sorted(training.heldout["row_id"]) == sorted(kernels["row_id"])
    (unseen,) = training.notes
    assert unseen.startswith("left out of training, a card is answered with ")
    assert training.dropped_features == {}


def test_report_of_a_table_is_cut_by_the_slices_of_its_spec(kernel_training):
    assert set(kernel_training.slices["slice"]) == {"overall", "card", "kind", "size_band"}
    kinds = kernel_training.slices.filter((pl.col("slice") == "kind") & (pl.col("predictor") == "model"))
    assert kinds["value"].to_list() == ["nn", "tn"]
    assert kinds["mape_ratio"].max() < 0.02
    assert kernel_training.model.trained_on["card"] == ["Card A", "Card B"]
    assert kernel_training.model.trained_on["is_simulated"] is False
    # Tables are measured once, so there is no noise floor.
    assert "noise_floor_us" not in kernel_training.metrics


def test_gate_rows_of_a_table_are_never_trained_on(make_scheme, kernel_training, kernels):
    scheme = make_scheme()
    is_gate = pl.Series(fold_numbers(scheme, kernels) == GATE_FOLD)
    spoilt = kernels.with_columns(latency=pl.when(is_gate).then(1e6).otherwise(pl.col("latency")))
    again = train_latency(scheme, spoilt, KERNEL_BOOSTING, threads=1)
    assert again.model.to_files() == kernel_training.model.to_files()
    assert set(fold_numbers(scheme, kernel_training.gate_rows)) == {GATE_FOLD}
    assert kernel_training.gate_rows.height + kernel_training.training_row_count == kernels.height


def test_row_and_column_order_of_a_table_do_not_matter(make_scheme, kernel_training, kernels):
    other = kernels.sample(fraction=1.0, shuffle=True, seed=7).select(reversed(kernels.columns))
    again = train_latency(make_scheme(), other, KERNEL_BOOSTING, threads=1)
    assert again.model.to_files() == kernel_training.model.to_files()
    assert again.metrics == kernel_training.metrics


def test_unit_of_a_table_does_not_change_what_is_learned(make_scheme, kernel_training, kernels):
    milliseconds = kernels.with_columns(pl.col("latency") / 1e3)
    training = train_latency(make_scheme(unit="ms"), milliseconds, KERNEL_BOOSTING, threads=1)
    assert training.metrics["rmse_us"] == pytest.approx(kernel_training.metrics["rmse_us"], rel=1e-6)


def test_left_out_device_of_a_table_is_told_by_its_roofline(kernel_training):
    left_out = kernel_training.left_out
    assert left_out["column"].unique().to_list() == ["card"]
    assert sorted(left_out["value"]) == ["Card A", "Card B"]
    # The law is the roofline's, so a card that was never seen is answered nearly as well.
    assert left_out["mape_ratio"].max() < 0.05


def test_parameters_of_the_spec_reach_lightgbm(make_scheme, kernels):
    chosen = {
        "trees": 7,
        "leaves": 5,
        "learning_rate": 0.3,
        "max_bin": 31,
        "min_data_in_leaf": 11,
        "lambda_l2": 2.5,
        "feature_fraction": 0.75,
        "objective": "l1",
    }
    training = train_latency(make_scheme(parameters=chosen), kernels, threads=1)
    text = training.model.booster.text
    for said in (
        "[num_leaves: 5]",
        "[learning_rate: 0.3]",
        "[max_bin: 31]",
        "[min_data_in_leaf: 11]",
        "[lambda_l2: 2.5]",
        "[feature_fraction: 0.75]",
        "[objective: regression_l1]",
    ):
        assert said in text
    assert training.tree_count <= 7


def test_median_is_the_better_aim_where_some_rows_are_slower_by_chance(make_scheme, make_kernels):
    """A fifth of the rows takes 1.5 times as long: the mean lies ln(1.5) / 5 = 8 % above the law."""
    law = make_kernels(noise_ratio=0.0)
    slow = pl.Series(np.random.default_rng(0).random(law.height) < 0.2)
    rows = law.with_columns(latency=pl.when(slow).then(pl.col("latency") * 1.5).otherwise(pl.col("latency")))
    off = {}
    for objective in ("l1", "l2"):
        training = train_latency(
            make_scheme(), rows, KERNEL_BOOSTING.changed({"objective": objective}), threads=1
        )
        both = training.heldout.join(law.select("row_id", law_us="latency"), on="row_id")
        off[objective] = float((both["predicted_us"] / both["law_us"]).log().abs().mean())
    assert off["l2"] > 0.07
    assert off["l1"] < 0.5 * off["l2"]


def test_rows_that_a_table_cannot_use_are_counted(make_scheme, kernels):
    bad = kernels.with_row_index("row").with_columns(
        latency=pl.when(pl.col("row") == 0).then(None).otherwise(pl.col("latency")),
        card=pl.when(pl.col("row") == 1).then(pl.lit("Card X")).otherwise(pl.col("card")),
    )
    training = train_latency(make_scheme(), bad.drop("row"), Boosting(trees=3), threads=1)
    assert training.unusable_row_count == 2
    assert any("2 rows have no positive latency or no roofline_us" in note for note in training.notes)


def test_table_without_usable_rows_says_what_they_lack(make_scheme, kernels):
    with pytest.raises(TrainingError, match=r"0 of 576 rows .*576 rows have no roofline"):
        train_latency(make_scheme(), kernels.with_columns(card=pl.lit("Card X")))
    with pytest.raises(TrainingError, match=r"0 of 576 rows .*is the unit us\?"):
        train_latency(make_scheme(), kernels.with_columns(pl.col("latency") * 1e-9))


def slower_tn(row):
    return 1.5 if row["kind"] == "tn" and row["m"] >= 256 else 1.0


@pytest.fixture(scope="module")
def corrected(make_scheme, make_kernels, kernels):
    """The kernels corrected by 200 rows after one kind became slower."""
    new = make_kernels(factor=slower_tn, seed=2, prefix="new:").sample(200, seed=1)
    return train_latency(make_scheme(), new, KERNEL_BOOSTING, older=kernels, threads=1), new


def test_corrected_model_is_judged_on_the_new_rows_alone(corrected):
    training, new = corrected
    assert sorted(training.heldout["row_id"]) == sorted(new["row_id"])
    assert training.row_count == 200
    assert training.metrics["mape_ratio"] < 0.025
    assert 0.83 <= training.metrics["coverage_ratio"] <= 0.97
    assert set(training.gate_rows["row_id"]) <= set(new["row_id"])


def test_corrected_model_knows_both_laws_where_each_still_holds(corrected, make_scheme, make_kernels):
    training, _ = corrected
    law = make_kernels(factor=slower_tn, noise_ratio=0.0)
    predicted = training.model.predict(law)
    error = np.abs(np.log(predicted["predicted_latency_us"] / law["latency"]))
    assert error.mean() < 0.02
    assert predicted["never_seen"].list.len().sum() == 0


def test_corrected_model_says_what_it_was_made_of(corrected, kernels):
    training, _ = corrected
    told = training.model.trained_on
    assert told["corrected_row_count"] == training.training_row_count
    scheme = training.model.scheme
    older = int((fold_numbers(scheme, kernels) != GATE_FOLD).sum())
    assert told["row_count"] == older + training.training_row_count
    assert told["source_name"] == ["kernels.csv", "new:kernels.csv"]
    assert told["tree_count"] == training.tree_count == training.model.booster.tree_count


def test_corrected_model_never_saw_the_gates_fold_of_either(corrected, make_scheme, kernels):
    training, new = corrected
    scheme = make_scheme()

    def spoilt(rows):
        is_gate = pl.Series(fold_numbers(scheme, rows) == GATE_FOLD)
        return rows.with_columns(latency=pl.when(is_gate).then(1e6).otherwise(pl.col("latency")))

    again = train_latency(scheme, spoilt(new), KERNEL_BOOSTING, older=spoilt(kernels), threads=1)
    assert again.model.to_files() == training.model.to_files()


def test_corrected_model_comes_back_from_its_files(corrected, kernels):
    training, new = corrected
    again = LatencyModel.from_files(training.model.to_files())
    rows = pl.concat([kernels, new])
    assert again.predict(rows).equals(training.model.predict(rows))


def test_correction_takes_no_older_rows_without_label_or_columns(make_scheme, kernels, corrected):
    _, new = corrected
    with pytest.raises(TrainingError, match="0 of 0 rows"):
        train_latency(make_scheme(), new, older=kernels.head(0), threads=1)
    with pytest.raises(SchemaError, match="missing kind"):
        train_latency(make_scheme(), new, older=kernels.drop("kind"), threads=1)


def test_launches_are_corrected_as_tables_are(make_launches):
    old, factor = make_launches(), pl.when(pl.col("line_count") == 4).then(1.6).otherwise(1.0)
    new = make_launches(seed=3).with_columns(
        pl.concat_str(pl.lit("new:"), "launch_id").alias("launch_id"),
        first_launch_api_us=pl.col("first_launch_api_us") * factor,
    )
    training = train_latency(LAUNCH_SCHEME, new.sample(300, seed=1), Boosting(trees=40), older=old, threads=1)
    assert training.metrics["mape_ratio"] < 0.04
    # The older baseline alone is off by 1.6 for half of them.
    assert training.metrics["curve_mape_ratio"] > 0.15
