"""warpgauge/latency/evaluation.py and plots.py."""

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import SchemaError, TrainingError
from warpgauge.latency.evaluation import flat_metrics, losses, metric_table, metric_value, score_rows
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME, size_bands
from warpgauge.latency.plots import draw_training

SLICES = (*LAUNCH_SCHEME.slice_columns, "size_band")


def scored(actual: list[float], predicted: list[float], **more: object) -> pl.DataFrame:
    count = len(actual)
    return pl.DataFrame(
        {
            "group_id": ["g"] * count,
            "gpu_name": ["A"] * count,
            "topology": ["straight_line"] * count,
            "is_profiled": [False] * count,
            "is_simulated": [False] * count,
            "size_band": ["1 to 10 nodes"] * count,
            "actual_us": actual,
            "predicted_us": predicted,
            "promised_us": [max(5.0, 0.05 * value) for value in actual],
            "lower_us": [value - 1.0 for value in predicted],
            "upper_us": [value + 1.0 for value in predicted],
            **more,
        }
    )


def overall(frame: pl.DataFrame) -> dict[str, float]:
    return flat_metrics(metric_table(frame))


def test_known_values_of_every_metric():
    found = overall(scored([100.0, 102.0, 110.0], [102.0, 102.0, 102.0]))
    assert found["rmse_us"] == pytest.approx(np.sqrt((4 + 0 + 64) / 3))
    assert found["mae_us"] == pytest.approx(10 / 3)
    assert found["mape_ratio"] == pytest.approx((0.02 + 0 + 8 / 110) / 3)
    assert found["noise_floor_us"] == pytest.approx(np.sqrt(68 / 3))
    assert found["rmse_over_floor"] == pytest.approx(1.0)
    assert found["coverage_ratio"] == pytest.approx(1 / 3)
    assert found["mean_interval_width_us"] == pytest.approx(2.0)
    # 8 us are more than max(5 us, 5 % of 110 us).
    assert found["share_within_promise_ratio"] == pytest.approx(2 / 3)


def test_promise_is_5_us_for_small_and_5_percent_for_large_launches():
    found = overall(scored([10.0, 10.0, 1000.0, 1000.0], [14.9, 15.1, 1049.0, 1051.0]))
    assert found["share_within_promise_ratio"] == 0.5


def test_floor_needs_three_trials_of_a_graph():
    found = overall(scored([10.0, 12.0], [10.0, 10.0]))
    assert "noise_floor_us" not in found
    assert "rmse_over_floor" not in found
    assert found["rmse_us"] == pytest.approx(np.sqrt(2))


def test_same_graph_on_two_gpus_is_two_graphs(launches):
    graph = launches.head(1).drop("gpu_name").join(pl.DataFrame({"gpu_name": ["A", "B"]}), how="cross")
    groups = LAUNCH_SCHEME.groups(graph).to_list()
    frame = scored([10.0] * 3 + [90.0] * 3, [10.0] * 3 + [90.0] * 3).with_columns(
        group_id=pl.Series([groups[0]] * 3 + [groups[1]] * 3)
    )
    assert overall(frame)["noise_floor_us"] == 0.0
    assert "rmse_over_floor" not in overall(frame)


def test_line_stands_beside_the_model_overall_and_in_each_slice():
    table = metric_table(scored([10.0] * 3, [11.0] * 3, baseline_us=[14.0] * 3), SLICES)
    lines = table.filter(pl.col("predictor") == "line")
    assert lines["mae_us"].to_list() == [4.0] * 6
    assert lines["coverage_ratio"].to_list() == [None] * 6
    assert flat_metrics(table)["line_mae_us"] == 4.0


def test_null_slice_is_named_unknown():
    frame = scored([10.0], [11.0]).with_columns(gpu_name=pl.lit(None, dtype=pl.String))
    assert metric_table(frame, ["gpu_name"])["value"].to_list() == ["all", "unknown"]


@pytest.mark.parametrize("column", ["actual_us", "predicted_us", "lower_us", "baseline_us"])
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), None])
def test_number_that_is_not_finite_is_refused_by_name_and_row(column, bad):
    frame = scored([10.0, 10.0], [11.0, 11.0], baseline_us=[1.0, 1.0])
    frame = frame.with_columns(pl.Series(column, [10.0, bad], dtype=pl.Float64))
    with pytest.raises(SchemaError, match=f"{column} of row 1"):
        metric_table(frame)


def test_no_row_gives_no_metric():
    with pytest.raises(TrainingError, match="no scored row"):
        metric_table(scored([], []))


def test_size_bands_are_closed_above():
    nodes = np.array([1.0, 10.0, 11.0, 10_000.0, 10_001.0])
    assert size_bands(nodes).to_list() == [
        "1 to 10 nodes",
        "1 to 10 nodes",
        "11 to 100 nodes",
        "1001 to 10000 nodes",
        "over 10000 nodes",
    ]


def test_rows_to_score_need_the_label(training, launches):
    assert score_rows(training.model, launches.head(7)).height == 7
    unlabelled = launches.with_columns(first_launch_api_us=pl.lit(None, dtype=pl.Float64))
    with pytest.raises(TrainingError, match="none of 600 rows has a positive first_launch_api_us"):
        score_rows(training.model, unlabelled)
    with pytest.raises(SchemaError, match="first_launch_api_us is missing"):
        LAUNCH_SCHEME.usable(launches.drop("first_launch_api_us"))


def test_figures_draw_to_an_image(training, tmp_path):
    figures = draw_training(training)
    assert set(figures) == {"residuals", "predicted_actual", "coverage", "importance"}
    for name, figure in figures.items():
        path = tmp_path / f"{name}.png"
        figure.savefig(path)
        assert path.read_bytes().startswith(b"\x89PNG")


def test_loss_of_a_table_is_relative_and_that_of_launches_squared():
    actual, predicted = np.array([10.0, 1000.0]), np.array([12.0, 900.0])
    assert losses("mape_ratio", actual, predicted).tolist() == pytest.approx([0.2, 0.1])
    assert losses("rmse_us", actual, predicted).tolist() == [4.0, 10_000.0]
    assert metric_value("mape_ratio", losses("mape_ratio", actual, predicted)) == pytest.approx(0.15)
    assert metric_value("rmse_us", losses("rmse_us", actual, predicted)) == pytest.approx(np.sqrt(5002))
    assert metric_value("rmse_us", np.array([])) is None
    assert metric_value("mape_ratio", np.array([])) is None


def test_metric_of_the_losses_is_that_of_the_report(kernel_training, training):
    for one, metric in ((kernel_training, "mape_ratio"), (training, "rmse_us")):
        assert one.model.scheme.gate_metric == metric
        actual, predicted = (one.heldout[name].to_numpy() for name in ("actual_us", "predicted_us"))
        assert metric_value(metric, losses(metric, actual, predicted)) == pytest.approx(one.metrics[metric])


def test_scored_rows_of_any_table_have_the_same_columns(kernel_training, kernels, training, launches):
    common = {"row_id", "group_id", "size", "size_band", "actual_us", "promised_us", "predicted_us"}
    common |= {"lower_us", "upper_us", "never_seen_count"}
    table, graphs = score_rows(kernel_training.model, kernels), score_rows(training.model, launches)
    assert set(table.columns) == common | {"card", "kind"}
    assert set(graphs.columns) == common | {"gpu_name", "topology", "is_profiled", "is_simulated"}
    assert table["row_id"].to_list() == kernels["row_id"].to_list()
    assert table["actual_us"].to_list() == kernels["latency"].to_list()
    # A table promises a share, launches at least 5 us.
    assert table["promised_us"].to_list() == pytest.approx((0.05 * table["actual_us"]).to_list())
    assert graphs["promised_us"].min() == 5.0
    assert table["group_id"].n_unique() == kernels.height
    assert graphs["group_id"].n_unique() == launches.height // 3


def test_scores_are_in_microseconds_whatever_the_unit(make_scheme, kernels):
    from warpgauge.latency.fitting import Boosting
    from warpgauge.latency.training import train_latency

    scheme = make_scheme(unit="ms", promise_us=7.0)
    model = train_latency(scheme, kernels, Boosting(trees=3), threads=1).model
    scored_kernels = score_rows(model, kernels.head(3))
    assert scored_kernels["actual_us"].to_list() == pytest.approx(
        (kernels.head(3)["latency"] * 1e3).to_list()
    )
    assert scored_kernels["promised_us"].to_list() == pytest.approx(
        (kernels.head(3)["latency"] * 50).to_list()
    )


def test_rows_of_a_table_that_cannot_be_scored_are_left_out_or_refused(kernel_training, kernels):
    some = kernels.head(4).with_columns(
        latency=pl.Series([1.0, None, -1.0, 2.0]), card=pl.Series(["Card A", "Card A", "Card A", "Card X"])
    )
    assert score_rows(kernel_training.model, some)["row_id"].to_list() == [kernels["row_id"][0]]
    with pytest.raises(TrainingError, match="none of 1 rows has a positive latency"):
        score_rows(kernel_training.model, some[1:2])
    with pytest.raises(SchemaError, match="missing kind"):
        score_rows(kernel_training.model, kernels.drop("kind"))
