"""Pictures for a reviewer: is it calibrated, what does recall cost, what did self-training do?

Figures are returned, never shown or saved; they need no display and leave matplotlib's global state alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from warpgauge.docquality.evaluation import calibration_bins, precision_recall_curve
from warpgauge.figures import new_figure

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from warpgauge.docquality.selftraining import Round

_SIZE_INCHES = (6.4, 4.8)


def plot_calibration(heldout: pl.DataFrame) -> Figure:
    """Answered against true share of defects, ten bins a family of held-out rows."""
    figure, axes = new_figure(
        "Calibration on held-out documents", "answered probability", "share of defects", _SIZE_INCHES
    )
    axes.plot([0, 1], [0, 1], color="grey", linestyle="--", label="perfect")
    for family, rows in _families(heldout):
        bins = calibration_bins(rows["is_defect"].to_numpy(), rows["defect_probability"].to_numpy())
        axes.plot(bins["mean_probability"].to_numpy(), bins["defect_share"].to_numpy(), "o-", label=family)
    axes.legend()
    return figure


def plot_precision_recall(heldout: pl.DataFrame) -> Figure:
    """Precision against recall of each family, with its share of defects as the line of no skill."""
    figure, axes = new_figure(
        "Precision and recall on held-out documents", "recall", "precision", _SIZE_INCHES
    )
    for family, rows in _families(heldout):
        truth = rows["is_defect"].to_numpy()
        curve = precision_recall_curve(truth, rows["defect_probability"].to_numpy())
        (line,) = axes.step(
            curve["recall"].to_numpy(), curve["precision"].to_numpy(), where="post", label=family
        )
        axes.axhline(float(truth.mean()), color=line.get_color(), linestyle=":")
    axes.set_ylim(0, 1.05)
    axes.legend()
    return figure


def plot_score_histogram(heldout: pl.DataFrame) -> Figure:
    """How the answered probabilities spread over defective and sound documents; counts on a log scale."""
    figure, axes = new_figure(
        "Answers on held-out documents", "answered probability", "documents", _SIZE_INCHES
    )
    bins = np.linspace(0, 1, 21).tolist()
    for is_defect, label in ((False, "no defect"), (True, "defect")):
        scores = heldout.filter(pl.col("is_defect") == is_defect)["defect_probability"].to_numpy()
        axes.hist(scores, bins=bins, alpha=0.6, label=f"{label} ({len(scores)})")
    axes.set_yscale("symlog")
    axes.legend()
    return figure


def plot_rounds(rounds: Sequence[Round], class_names: Sequence[str], conclusion: str) -> Figure:
    """Self-training as a table: a line a round, and what came of it."""
    figure, axes = new_figure("Self-training", "", "", _SIZE_INCHES)
    axes.axis("off")
    header = ["round", "coverage", *(f"pseudo {name}" for name in class_names), "audited precision"]
    header += [*(f"recall {name}" for name in class_names), "log loss", "kept"]
    lines = [
        [
            str(record.number),
            f"{record.coverage_ratio:.3f}",
            *(str(count) for count in record.selected_counts),
            _number(record.audited_precision),
            *(_number(value) for value in record.recall_by_class or [None] * len(class_names)),
            _number(record.log_loss),
            "yes" if record.is_accepted else "no",
        ]
        for record in rounds
    ]
    if lines:
        table = axes.table(cellText=lines, colLabels=header, loc="center")
        table.auto_set_font_size(False)
        table.set_fontsize(8)
        table.auto_set_column_width(list(range(len(header))))
    axes.text(0.5, 0.1, conclusion, ha="center", va="top", wrap=True, fontsize=8, transform=axes.transAxes)
    figure.set_size_inches(11, 3)
    return figure


def _families(heldout: pl.DataFrame) -> list[tuple[str, pl.DataFrame]]:
    return [
        (f"{family} ({rows.height})", rows)
        for family in sorted(heldout["family"].unique())
        if (rows := heldout.filter(pl.col("family") == family)).height
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4f}"
