"""How good predictions are, against the noise floor and beside the linear baseline, overall and per slice.

One first launch is noisy: even a perfect model of the medians misses by the noise floor, the root mean
square of (trial - median of the trials of the same graph on the same GPU). RMSE over floor says how much of the error is
the model's. The promise is max(5 us, 5 %), because 5 us of a 2 ms launch is below the floor.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from warpgauge.errors import SchemaError, TrainingError
from warpgauge.latency.scheme import FloatArray, GateMetric, RowScheme

if TYPE_CHECKING:
    from warpgauge.latency.model import LatencyModel

# The median of two trials is their mean, which halves the spread that it should show.
FLOOR_TRIALS = 3
# What a scored row is told by, whatever its table calls it.
ROW_ID, GROUP_ID = "row_id", "group_id"
# `model`; `plain` is LightGBM on the raw label with the same features; `curve` is the physics baseline in use;
# `line` is a + b x size by least squares.
PREDICTORS = {"model": "predicted_us", "plain": "plain_us", "curve": "curve_us", "line": "baseline_us"}
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


def losses(metric: GateMetric, actual_us: FloatArray, predicted_us: FloatArray) -> FloatArray:
    """Loss of each row whose mean decides between models: squared microseconds, or the relative error.

    Latencies over many decades need the second: a squared error would judge the longest kernels alone.
    """
    error = np.abs(actual_us - predicted_us)
    return error / actual_us if metric == "mape_ratio" else error**2


def metric_value(metric: GateMetric, row_losses: FloatArray) -> float | None:
    """The metric of such losses, None where there is no row."""
    if not len(row_losses):
        return None
    mean = float(row_losses.mean())
    return mean if metric == "mape_ratio" else mean**0.5


def scored_rows(
    scheme: RowScheme,
    rows: pl.DataFrame,
    actual_us: FloatArray,
    predicted: pl.DataFrame,
    **more: FloatArray,
) -> pl.DataFrame:
    """One row a measurement with all that the metrics need.

    Args:
        scheme: How the rows are read.
        rows: Rows of its table.
        actual_us: Measured latency.
        predicted: What `LatencyModel.predict` gave for these rows.
        more: Further columns, for example `baseline_us`.

    Returns:
        row_id, group_id (equal for the same graph or shape under the same circumstances), the scheme's slice
        columns, size, size_band, promised_us, actual_us, predicted_us, lower_us, upper_us, never_seen_count and
        `more`.
    """
    return rows.select(scheme.slice_columns).with_columns(
        rows.get_column(scheme.id_column).alias(ROW_ID),
        scheme.groups(rows).alias(GROUP_ID),
        pl.Series("size", scheme.sizes(rows)),
        scheme.size_bands(rows).alias("size_band"),
        pl.Series("actual_us", actual_us),
        pl.Series("promised_us", np.maximum(scheme.promise_us, scheme.promise_ratio * actual_us)),
        predicted.get_column("predicted_latency_us").alias("predicted_us"),
        predicted.get_column("lower_us"),
        predicted.get_column("upper_us"),
        predicted.get_column("never_seen").list.len().cast(pl.Int64).alias("never_seen_count"),
        *(pl.Series(name, values) for name, values in more.items()),
    )


def score_rows(model: LatencyModel, rows: pl.DataFrame) -> pl.DataFrame:
    """Predict rows of the model's table and put the measured latency beside it; see `scored_rows`.

    Rows without a positive finite label are left out. Champion and challenger are compared on what this gives for the
    same rows.

    Raises:
        TrainingError: If no row has the label.
        SchemaError: If columns do not fit.
    """
    usable = model.scheme.usable(rows)
    if not usable.height:
        raise TrainingError(
            f"none of {rows.height} rows has a positive {model.target}, so nothing can be scored; "
            f"give rows with that label"
        )
    return scored_rows(model.scheme, usable, model.scheme.latency_us(usable), model.predict(usable))


def with_floor_error(scored: pl.DataFrame) -> pl.DataFrame:
    """The rows with `floor_error_us`: trial - median of its group; null with under 3 trials."""
    return scored.with_columns(
        pl.when(pl.len().over(GROUP_ID) >= FLOOR_TRIALS)
        .then(pl.col("actual_us") - pl.col("actual_us").median().over(GROUP_ID))
        .alias("floor_error_us")
    )


def metric_table(scored: pl.DataFrame, slices: Sequence[str] = ()) -> pl.DataFrame:
    """Metrics of every predictor, overall and for each value of each slice column.

    Args:
        scored: See `scored_rows`; predictors whose column is absent are left out.
        slices: Columns to slice by; a scheme's `slice_columns` and `size_band`.

    Returns:
        One row a slice and predictor (see PREDICTORS): slice, value (null is `unknown`; `all` overall), predictor, row_count and METRIC_NAMES.
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
    promised = part.get_column("promised_us").to_numpy()
    values: dict[str, float | None] = {
        "rmse_us": float(np.sqrt(np.mean(error**2))),
        "mae_us": float(np.mean(error)),
        "mape_ratio": float(np.mean(error / actual)),
        "p95_abs_us": float(np.quantile(error, 0.95)),
        "p99_abs_us": float(np.quantile(error, 0.99)),
        "share_within_promise_ratio": float(np.mean(error <= promised)),
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
