"""Pictures that explain the model to a reviewer: what it uses, how latency grows, what rare flags do.

Figures are built without pyplot, so no global state and no display are involved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from warpgauge.figures import new_figure
from warpgauge.latency.explanations import CANNOT_SAY

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# More curves than this cannot be told apart; the groups with the most rows are shown.
SHOWN_GROUPS = 6


def draw_explanations(dependence: pl.DataFrame, effects: pl.DataFrame) -> dict[str, Figure]:
    """The figures by name: `partial_dependence` and `conditional_effects`, each only if there is anything to show.

    Args:
        dependence: See `explanations.partial_dependence`.
        effects: See `explanations.conditional_effects`.
    """
    figures = {}
    if dependence.height:
        figures["partial_dependence"] = _dependence(dependence)
    if effects.height:
        figures["conditional_effects"] = _effects(effects)
    return figures


def _dependence(dependence: pl.DataFrame) -> Figure:
    figure, axes = new_figure(
        "Predicted latency by size, middle 80 % of launches", "nodes in the graph", "predicted latency (us)"
    )
    groups = dependence.group_by("group").agg(pl.col("row_count").sum())
    groups = groups.sort("row_count", "group", descending=[True, False])
    for name in groups["group"].head(SHOWN_GROUPS).sort():
        curve = dependence.filter(pl.col("group") == name).sort("node_count")
        nodes = curve["node_count"].to_numpy()
        (line,) = axes.plot(nodes, curve["median_us"].to_numpy(), marker=".", label=name)
        axes.fill_between(
            nodes,
            curve["lower_us"].to_numpy(),
            curve["upper_us"].to_numpy(),
            alpha=0.2,
            color=line.get_color(),
            linewidth=0,
        )
    if groups.height > SHOWN_GROUPS:
        axes.set_title(f"{axes.get_title()} ({SHOWN_GROUPS} largest of {groups.height} groups)")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.legend()
    return figure


def _effects(effects: pl.DataFrame) -> Figure:
    figure, axes = new_figure(
        "What each flag does where it is on", "effect on latency (percent, 95 % interval)", ""
    )
    labels = []
    for place, entry in enumerate(effects.reverse().iter_rows(named=True)):
        labels.append(f"{entry['flag']}\non in {100 * entry['on_ratio']:.3g} %, {_importance(entry)}")
        if entry["finding"] == CANNOT_SAY:
            axes.text(0.0, place, CANNOT_SAY, va="center", ha="center")
            continue
        middle, low, high = (entry[f"{name}_percent"] for name in ("effect", "lower", "upper"))
        axes.plot([low, high], [place, place], color="C0")
        axes.plot([middle], [place], marker="o", color="C0")
    axes.axvline(0.0, color="black", linewidth=0.8)
    axes.set_yticks(np.arange(len(labels)), labels)
    axes.set_ylim(-0.5, len(labels) - 0.5)
    return figure


def _importance(entry: Mapping[str, Any]) -> str:
    if entry["gain_ratio"] is None:
        return "no feature of the model"
    return f"{100 * entry['gain_ratio']:.2g} % of the gain"
