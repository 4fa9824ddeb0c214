"""warpgauge/latency/evaluation.py and plots.py."""

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import SchemaError, TrainingError
from warpgauge.latency.evaluation import flat_metrics, metric_table, score_rows
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
