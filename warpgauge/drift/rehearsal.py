"""What a rehearsal of drift changes in the data, and how it is drawn.

The change is one that the real monitor must find by itself: launches of one GPU's driver become slower, or people
begin to write about another product area.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import polars as pl

from warpgauge.documents.batch import DocumentBatch
from warpgauge.documents.simulator import simulate_reports
from warpgauge.figures import new_figure
from warpgauge.launches.simulator import SYSTEMS, simulate_launches

if TYPE_CHECKING:
    from matplotlib.figure import Figure

# One of the GPUs gets another CUDA version, under which its launches take a quarter longer.
SLOWDOWN_RATIO = 1.25
SLOWED_GPU = SYSTEMS[0].gpu_name
OTHER_CUDA_VERSION = "13.2"
LENGTHS = tuple(range(1, 200, 6))
TRIALS = 4
FIRST_REPORTS = 240
MORE_REPORTS = 120


def rehearsed_launches(seed: int, *, is_shifted: bool) -> pl.DataFrame:
    """Simulated launches of two GPUs, rows of `tables.LAUNCHES`.

    Args:
        seed: Another one gives other rows.
        is_shifted: One of the GPUs has another CUDA version, under which its launches take a quarter longer.
    """
    frame = simulate_launches(seed, lengths=LENGTHS, trials=TRIALS, systems=SYSTEMS[:2]).frame
    if not is_shifted:
        return frame
    is_slowed = pl.col("gpu_name") == SLOWED_GPU
    return frame.with_columns(
        pl.when(is_slowed)
        .then(pl.col("first_launch_api_us") * SLOWDOWN_RATIO)
        .otherwise("first_launch_api_us")
        .alias("first_launch_api_us"),
        pl.when(is_slowed).then(pl.lit(OTHER_CUDA_VERSION)).otherwise("cuda_version").alias("cuda_version"),
        # Another value is another row, so it has another id.
        pl.concat_str(pl.col("launch_id"), pl.lit("-slowed")).alias("launch_id"),
    )


def rehearsed_reports(seed: int, count: int, other_area_ratio: float = 0.0) -> DocumentBatch:
    """Labelled reports about one product area, a share of them about another.

    Args:
        seed: Another one gives other reports.
        count: Reports.
        other_area_ratio: Share of the other area, 0 to 1.
    """
    other = round(count * other_area_ratio)
    made = [
        simulate_reports(seed, number, area)
        for number, area in ((count - other, "runtime"), (other, "training"))
        if number
    ]
    return DocumentBatch(
        pl.concat([one.documents for one in made]),
        pl.concat([one.labels for one in made]),
        counts={"documents": count},
    )


@dataclass(frozen=True)
class Moment:
    """One line of a rehearsal's timeline.

    Attributes:
        at_s: Seconds since the rehearsal began.
        what: What happened, in a few words.
        said: What the product said of it.
        readings: Signal -> value over its limit, of a round of the monitor.
    """

    at_s: float
    what: str
    said: str
    readings: dict[str, float] = field(default_factory=dict)


def draw_timeline(title: str, moments: Sequence[Moment]) -> Figure:
    """The rounds' readings against their limit (1), step by step, with the seconds beside each step.

    Args:
        title: Above the picture.
        moments: In the order of time, at least one.
    """
    figure, axes = new_figure(title, "", "measurement over its limit", (10.0, 5.5))
    signals = sorted({signal for moment in moments for signal in moment.readings})
    for signal, marker in zip(signals, "osD^vP*X" * len(signals), strict=False):
        points = [
            (step, moment.readings[signal])
            for step, moment in enumerate(moments)
            if signal in moment.readings
        ]
        axes.plot(*zip(*points, strict=True), marker=marker, linewidth=1.5, label=signal.replace("_", " "))
    axes.axhline(1.0, color="black", linewidth=1.0, linestyle="--", label="limit")
    for step in range(len(moments)):
        axes.axvline(step, color="0.88", linewidth=0.8, zorder=0)
    axes.set_xticks(
        range(len(moments)),
        [f"{moment.what}\n{moment.at_s:.0f} s" for moment in moments],
        rotation=40,
        ha="right",
        rotation_mode="anchor",
        fontsize=8,
    )
    axes.set_xlim(-0.5, len(moments) - 0.5)
    axes.set_ylim(bottom=min(0.0, axes.get_ylim()[0]))
    axes.legend(fontsize=8)
    return figure
