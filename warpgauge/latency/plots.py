"""Pictures of a training for the reviewer: where the model errs, and whether its intervals hold.

Figures are built without pyplot, so no global state and no display are involved.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from warpgauge.figures import new_figure
from warpgauge.latency.evaluation import ROW_ID

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from warpgauge.latency.scheme import RowScheme
    from warpgauge.latency.training import LatencyTraining

# More points than this only darken the picture.
LARGEST_POINT_COUNT = 8_000
SHOWN_FEATURES = 20


def draw_training(training: LatencyTraining) -> dict[str, Figure]:
    """The figures of a training by name: residuals, predicted_actual, coverage, importance."""
    heldout = training.heldout
    points = heldout
    if heldout.height > LARGEST_POINT_COUNT:
        points = heldout.sort(ROW_ID).head(LARGEST_POINT_COUNT)
    return {
        "residuals": _residuals(points, training.model.scheme),
        "predicted_actual": _predicted_actual(points, training.model.scheme),
        "coverage": _coverage(heldout, training.model.intervals.coverage_ratio),
        "importance": _importance(training.importance),
    }


def _by_kind(points: pl.DataFrame, scheme: RowScheme) -> list[tuple[str, pl.DataFrame]]:
    """The points by the column that intervals are told apart by first: the topology of launches."""
    columns = scheme.interval_levels[-1][:1] if scheme.interval_levels else ()
    if not columns:
        return [("all", points)]
    parts = points.partition_by(columns, as_dict=True)
    return sorted(((str(key[0]), part) for key, part in parts.items()), key=lambda pair: pair[0])


def _residuals(points: pl.DataFrame, scheme: RowScheme) -> Figure:
    figure, axes = new_figure(
        "Held-out residuals by size", scheme.size_name, "actual / predicted latency (ratio)"
    )
    for name, part in _by_kind(points, scheme):
        ratio = part["actual_us"].to_numpy() / part["predicted_us"].to_numpy()
        axes.scatter(part["size"].to_numpy(), ratio, s=4, alpha=0.3, label=name)
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend()
    return figure


def _predicted_actual(points: pl.DataFrame, scheme: RowScheme) -> Figure:
    figure, axes = new_figure("Held-out predictions", "predicted latency (us)", "actual latency (us)")
    for name, part in _by_kind(points, scheme):
        axes.scatter(
            part["predicted_us"].to_numpy(), part["actual_us"].to_numpy(), s=4, alpha=0.3, label=name
        )
    ends = [float(points["actual_us"].min()), float(points["actual_us"].max())]  # type: ignore[arg-type]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend()
    return figure


def _coverage(heldout: pl.DataFrame, wanted_ratio: float) -> Figure:
    figure, axes = new_figure("Share of held-out rows inside their interval", "", "coverage (ratio)")
    inside = (pl.col("actual_us") >= pl.col("lower_us")) & (pl.col("actual_us") <= pl.col("upper_us"))
    table = heldout.group_by("size_band").agg(
        inside.mean().alias("coverage"), pl.len().alias("count"), pl.col("size").min().alias("first")
    )
    table = table.sort("first")
    places = np.arange(table.height)
    axes.bar(places, table["coverage"].to_numpy())
    labels = [f"{band}\n{count} rows" for band, count in zip(table["size_band"], table["count"], strict=True)]
    axes.set_xticks(places, labels)
    axes.axhline(wanted_ratio, color="black", linewidth=0.8)
    axes.set_ylim(0.0, 1.0)
    return figure


def _importance(importance: dict[str, float]) -> Figure:
    figure, axes = new_figure("What the trees use beside the baseline", "gain (sum over splits)", "")
    shown = [(name, gain) for name, gain in importance.items() if gain > 0][:SHOWN_FEATURES][::-1]
    axes.barh([name for name, _ in shown], [gain for _, gain in shown])
    return figure
