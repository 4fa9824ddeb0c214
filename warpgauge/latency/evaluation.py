"""How good predictions are, against the noise floor and beside the linear baseline, overall and per slice.

One first launch is noisy: even a perfect model of the medians misses by the noise floor, the root mean
square of (trial - median of the trials of the same graph on the same GPU). RMSE over floor says how much of the error is
the model's. The promise is max(5 us, 5 %), because 5 us of a 2 ms launch is below the floor.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.errors import SchemaError, TrainingError
from warpgauge.latency.baseline import node_counts

if TYPE_CHECKING:
    from warpgauge.latency.model import LatencyModel

FloatArray = npt.NDArray[np.float64]

PROMISE_US = 5.0
PROMISE_RATIO = 0.05
# The median of two trials is their mean, which halves the spread that it should show.
FLOOR_TRIALS = 3
SIZE_BANDS = (10, 100, 1_000, 10_000)
SLICE_COLUMNS = ("gpu_name", "topology", "is_profiled", "is_simulated", "size_band")
# Columns of one scored row; see `scored_rows`.
IDENTITY_COLUMNS = ("launch_id", "graph_id", "gpu_name", "topology", "is_profiled", "is_simulated")
PREDICTORS = {"model": "predicted_us", "curve": "curve_us", "line": "baseline_us"}
METRIC_NAMES = (
    "rmse_us",
    "mae_us",
    "mape_ratio",
    "p95_abs_us",
    "p99_abs_us",
    "share_within_promise_ratio",
    "coverage_ratio",
    "mean_interval_width_us",
    "noise_floor_us",
    "rmse_over_floor",
)


def scored_rows(
    launches: pl.DataFrame, actual_us: FloatArray, predicted: pl.DataFrame, **more: FloatArray
) -> pl.DataFrame:
    """One row a launch with all that the metrics need.

    Args:
        launches: Rows of the launches table.
        actual_us: Measured latency.
        predicted: What `LatencyModel.predict` gave for these rows.
        more: Further columns, for example `baseline_us`.

    Returns:
        IDENTITY_COLUMNS, node_count, size_band, actual_us, predicted_us, lower_us, upper_us, never_seen_count
        and `more`.
    """
    nodes = node_counts(launches)
    return launches.select(IDENTITY_COLUMNS).with_columns(
        pl.Series("node_count", nodes),
        size_bands(nodes),
        pl.Series("actual_us", actual_us),
        predicted.get_column("predicted_latency_us").alias("predicted_us"),
        predicted.get_column("lower_us"),
        predicted.get_column("upper_us"),
        predicted.get_column("never_seen").list.len().cast(pl.Int64).alias("never_seen_count"),
        *(pl.Series(name, values) for name, values in more.items()),
    )


def score_rows(model: LatencyModel, launches: pl.DataFrame) -> pl.DataFrame:
    """Predict rows of the launches table and put the measured latency beside it; see `scored_rows`.

    Rows without a positive finite label are left out. Champion and challenger are compared on what this gives for the
    same rows.

    Raises:
        TrainingError: If no row has the label.
        SchemaError: If columns do not fit.
    """
    rows = usable_rows(launches, model.target)
    if not rows.height:
        raise TrainingError(
            f"none of {launches.height} rows has a positive {model.target}, so nothing can be scored; "
            f"give rows with that label"
        )
    actual = rows.get_column(model.target).cast(pl.Float64).to_numpy().astype(np.float64)
    return scored_rows(rows, actual, model.predict(rows))


def usable_rows(launches: pl.DataFrame, target: str) -> pl.DataFrame:
    """Rows with a positive finite label and a node count.

    Raises:
        SchemaError: If the label column is absent.
    """
    if target not in launches.columns:
        raise SchemaError(f"launches: column {target} is missing; it is the label to predict")
    label = pl.col(target).cast(pl.Float64)
    has_nodes = (pl.col("node_count") >= 1) | (
        pl.col("node_count").is_null() & (pl.col("line_length") * pl.col("line_count") >= 1)
    )
    return launches.filter(label.is_finite() & (label > 0) & has_nodes)


def size_bands(node_count: FloatArray) -> pl.Series:
    """Band of each node count, for example `11 to 100 nodes`."""
    labels = [f"1 to {SIZE_BANDS[0]} nodes"]
    labels += [f"{low + 1} to {high} nodes" for low, high in itertools.pairwise(SIZE_BANDS)]
    labels += [f"over {SIZE_BANDS[-1]} nodes"]
    place = np.searchsorted(np.asarray(SIZE_BANDS), node_count, side="left")
    return pl.Series("size_band", [labels[int(index)] for index in place], dtype=pl.String)


def with_floor_error(scored: pl.DataFrame) -> pl.DataFrame:
    """The rows with `floor_error_us`: trial - median of its graph on its GPU; null with under 3 trials."""
    trials = ("graph_id", "gpu_name", "is_profiled", "is_simulated")
    return scored.with_columns(
        pl.when(pl.len().over(trials) >= FLOOR_TRIALS)
        .then(pl.col("actual_us") - pl.col("actual_us").median().over(trials))
        .alias("floor_error_us")
    )


def metric_table(scored: pl.DataFrame, slices: Sequence[str] = SLICE_COLUMNS) -> pl.DataFrame:
    """Metrics of every predictor, overall and for each value of each slice column.

    Args:
        scored: See `scored_rows`; predictors whose column is absent are left out.
        slices: Columns to slice by.

    Returns:
        One row a slice and predictor (`model`; `curve` is the physics baseline in use; `line` is a + b x
        nodes): slice, value (null is `unknown`; `all` overall), predictor, row_count and METRIC_NAMES.
        Coverage and width are null for baselines, floor figures where no graph has 3 trials.

    Raises:
        TrainingError: If there is no row.
        SchemaError: If a number is not finite, naming its column and row.
    """
    if not scored.height:
        raise TrainingError("no scored row, so no metric can be computed")
    present = {name: column for name, column in PREDICTORS.items() if column in scored.columns}
    _check_finite(scored, ["actual_us", "lower_us", "upper_us", *present.values()])
    rows = with_floor_error(scored)
    table = []
    parts = [("overall", "all", rows)]
    for column in slices:
        for (value,), part in rows.group_by([column], maintain_order=False):
            text = (
                "unknown" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
            )
            parts.append((column, text, part))
    for name, value, part in sorted(parts, key=lambda entry: (entry[0] != "overall", entry[0], entry[1])):
        for predictor, column in present.items():
            table.append(
                {
                    "slice": name,
                    "value": value,
                    "predictor": predictor,
                    "row_count": part.height,
                    **_metrics(part, column, has_interval=predictor == "model"),
                }
            )
    schema = {"slice": pl.String, "value": pl.String, "predictor": pl.String, "row_count": pl.Int64}
    return pl.DataFrame(table, schema={**schema, **dict.fromkeys(METRIC_NAMES, pl.Float64)})


def flat_metrics(table: pl.DataFrame) -> dict[str, float]:
    """The overall rows as flat names: `rmse_us` of the model, `line_rmse_us` and `curve_rmse_us` beside it.

    Figures that do not exist are absent, never 0.
    """
    found: dict[str, float] = {}
    for entry in table.filter(pl.col("slice") == "overall").iter_rows(named=True):
        prefix = "" if entry["predictor"] == "model" else f"{entry['predictor']}_"
        for name in METRIC_NAMES:
            if entry[name] is not None:
                found[prefix + name] = float(entry[name])
    return found


def _metrics(part: pl.DataFrame, column: str, *, has_interval: bool) -> dict[str, float | None]:
    actual = part.get_column("actual_us").to_numpy()
    error = np.abs(actual - part.get_column(column).to_numpy())
    floor_error = part.get_column("floor_error_us").to_numpy()
    repeated = np.isfinite(floor_error)
    floor = float(np.sqrt(np.mean(floor_error[repeated] ** 2))) if repeated.any() else None
    values: dict[str, float | None] = {
        "rmse_us": float(np.sqrt(np.mean(error**2))),
        "mae_us": float(np.mean(error)),
        "mape_ratio": float(np.mean(error / actual)),
        "p95_abs_us": float(np.quantile(error, 0.95)),
        "p99_abs_us": float(np.quantile(error, 0.99)),
        "share_within_promise_ratio": float(np.mean(error <= np.maximum(PROMISE_US, PROMISE_RATIO * actual))),
        "coverage_ratio": None,
        "mean_interval_width_us": None,
        "noise_floor_us": floor,
        # Over the same rows as the floor: graphs with few trials have errors and no floor.
        "rmse_over_floor": float(np.sqrt(np.mean(error[repeated] ** 2))) / floor if floor else None,
    }
    if has_interval:
        lower, upper = part.get_column("lower_us").to_numpy(), part.get_column("upper_us").to_numpy()
        values["coverage_ratio"] = float(np.mean((actual >= lower) & (actual <= upper)))
        values["mean_interval_width_us"] = float(np.mean(upper - lower))
    return values


def _check_finite(scored: pl.DataFrame, columns: Sequence[str]) -> None:
    for name in columns:
        bad = (~scored.get_column(name).is_finite()).fill_null(True).arg_true()
        if len(bad):
            raise SchemaError(
                f"scored rows: {name} of row {bad[0]} is {scored.get_column(name)[int(bad[0])]} "
                f"({len(bad)} of {scored.height} rows); a metric over it would mean nothing"
            )
    if not (scored.get_column("actual_us") > 0).all():
        raise SchemaError("scored rows: an actual_us is not positive; a latency is")
