"""Do the repeated trials of a graph alternate between two levels that no input tells apart?

On the public P100 trials of 4 parallel lines they do: above 500 nodes a line even trials are 30 us (2.4 %)
slower than odd ones, two thirds of the noise variance of a graph. A model without the state answers a value
between the levels and an interval that holds both. Nothing can be predicted from this (a new launch does not
say which trial it is), but a reader should know that the noise has a cause.

The evidence is Wald and Wolfowitz's runs test: how often the trials of a graph cross their median, against
all orders of the same trials. It needs no law of noise, is exact for each graph, and is summed over graphs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import polars as pl

from warpgauge.errors import TrainingError
from warpgauge.latency.baseline import group_rows
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME, NOISE_COLUMNS
from warpgauge.latency.scheme import FloatArray

# Trials are compared within these.
STATE_GROUP = NOISE_COLUMNS
# Three trials on either side, so that a level has a median.
LEAST_TRIALS = 6
LEAST_GRAPHS = 20
# The state may begin at some size: each group is judged in so many parts of equal count.
SIZE_PARTS = 4
# Crossings above chance, in standard deviations: a chance of 3e-7 a part if the sum is normal. The largest of
# 4,000 parts of 20 graphs with independent trials was 3.5.
LEAST_DEVIATIONS = 5.0
# Share of the noise variance in the middle graph below which the state is no news: straight lines of the P100
# alternate too (0.5 %, up to 5.0 deviations), which explains at most 2 % of their noise.
LEAST_EXPLAINED_RATIO = 0.15


@dataclass(frozen=True)
class Alternation:
    """Trials that alternate between two levels.

    Attributes:
        group: Value of each column of STATE_GROUP as text, None where unknown.
        graph_count: Graphs with enough trials in this range of sizes.
        smallest_nodes, largest_nodes: The range of node counts.
        deviations: Crossings of the median above chance, in standard deviations.
        gap_us: Distance of the two levels in the middle graph.
        gap_ratio: The same over the latency.
        even_slower_ratio: Share of graphs whose even trials are the slower ones: near 0 or 1 the state goes
            on from graph to graph, near one half it begins anew with each.
        explained_ratio: Share of the noise variance that the state explains in the middle graph.
    """

    group: tuple[str | None, ...]
    graph_count: int
    smallest_nodes: float
    largest_nodes: float
    deviations: float
    gap_us: float
    gap_ratio: float
    even_slower_ratio: float
    explained_ratio: float


def alternating_trials(launches: pl.DataFrame, latency_us: FloatArray) -> tuple[Alternation, ...]:
    """Groups and sizes whose trials alternate beyond chance and by more than a small share of the noise.

    Args:
        launches: STATE_GROUP, graph_id, trial, node_count, line_length and line_count of the launches table;
            `source_sha256`, where present, keeps measurements of one graph in two files apart. Rows without
            a trial number are left out.
        latency_us: Measured latency, finite, one a row.

    Returns:
        One for each group that alternates; empty on independent trials, and where graphs were not repeated.

    Raises:
        TrainingError: If a latency is not finite.
    """
    if not np.isfinite(latency_us).all():
        raise TrainingError("a latency is not finite, so trials cannot be compared; drop these rows")
    graphs = _graphs(launches, latency_us)
    found = []
    for group, rows in group_rows(graphs.select(STATE_GROUP)).items():
        part = graphs[rows].sort("nodes", "key")
        flagged = [piece for piece in _pieces(part) if _alternates(piece)]
        if not flagged:
            continue
        low, high = flagged[0]["nodes"][0], flagged[-1]["nodes"][-1]
        reach = part.filter(pl.col("nodes").is_between(low, high))
        gap = reach.get_column("gap_us").to_numpy()
        found.append(
            Alternation(
                group=group,
                graph_count=reach.height,
                smallest_nodes=float(low),
                largest_nodes=float(high),
                deviations=_deviations(reach),
                gap_us=float(np.median(np.abs(gap))),
                gap_ratio=float(np.median(np.abs(gap) / reach.get_column("median_us").to_numpy())),
                even_slower_ratio=float(np.mean(gap > 0)),
                explained_ratio=float(np.median(reach.get_column("explained").to_numpy())),
            )
        )
    return tuple(sorted(found, key=lambda entry: repr(entry.group)))


def hidden_state_notes(launches: pl.DataFrame, latency_us: FloatArray) -> tuple[str, ...]:
    """One sentence for each group of `alternating_trials`; same arguments."""
    return tuple(_sentence(entry) for entry in alternating_trials(launches, latency_us))


def _sentence(entry: Alternation) -> str:
    which = max(entry.even_slower_ratio, 1 - entry.even_slower_ratio)
    side = "even" if entry.even_slower_ratio >= 0.5 else "odd"
    names = ", ".join(
        f"{name}={value}" if value in ("true", "false") else value
        for name, value in zip(STATE_GROUP, entry.group, strict=True)
        if value is not None and value != "false"
    )
    return (
        f"hidden state: trials of one graph alternate between two levels {entry.gap_us:.1f} us "
        f"({entry.gap_ratio:.1%}) apart in {names or 'all launches'}, {entry.smallest_nodes:.0f} to "
        f"{entry.largest_nodes:.0f} nodes ({side} trials slower in {which:.0%} of "
        f"{entry.graph_count} graphs); "
        f"the state explains {entry.explained_ratio:.0%} of the noise variance and no input tells it, so a "
        f"prediction lies between the levels and its interval is as wide as both"
    )


def _graphs(launches: pl.DataFrame, latency_us: FloatArray) -> pl.DataFrame:
    """One row a graph with enough trials: size, crossings of its median, its two levels."""
    source = ["source_sha256"] if "source_sha256" in launches.columns else []
    key = [*source, "graph_id", *STATE_GROUP]
    frame = launches.select(
        pl.col("trial").cast(pl.Int64),
        *(pl.col(name).cast(pl.String) for name in key),
        pl.Series("nodes", LAUNCH_SCHEME.sizes(launches) if launches.height else np.empty(0)),
        pl.Series("us", latency_us),
    )
    frame = frame.filter(pl.col("trial").is_not_null() & (pl.len().over(key) >= LEAST_TRIALS))
    # Two trials with one number are not in an order.
    frame = frame.filter(pl.struct(*key, "trial").is_unique())
    frame = frame.sort(*key, "trial").with_columns(
        (pl.col("us") - pl.col("us").median().over(key)).sign().alias("side")
    )
    is_even = pl.col("trial") % 2 == 0
    even, odd = pl.col("us").filter(is_even), pl.col("us").filter(~is_even)
    side = pl.col("side").filter(pl.col("side") != 0)
    within = even.var() * (even.len() - 1) + odd.var() * (odd.len() - 1)
    return (
        frame.group_by(key, maintain_order=True)
        .agg(
            pl.col("nodes").first(),
            pl.col("us").median().alias("median_us"),
            (even.median() - odd.median()).alias("gap_us"),
            # Each sum of squares over its degrees of freedom, so that chance explains nothing.
            (1 - within / (pl.len() - 2) / pl.col("us").var()).alias("explained"),
            (side > 0).sum().cast(pl.Float64).alias("above"),
            (side < 0).sum().cast(pl.Float64).alias("below"),
            (side.diff().drop_nulls() != 0).sum().cast(pl.Float64).alias("crossings"),
            pl.min_horizontal(even.len(), odd.len()).alias("fewer"),
        )
        .filter((pl.col("fewer") >= 2) & pl.col("explained").is_finite())
        .with_columns(pl.concat_str([*source, "graph_id"], separator=":", ignore_nulls=True).alias("key"))
    )


def _pieces(graphs: pl.DataFrame) -> Sequence[pl.DataFrame]:
    count = int(np.clip(graphs.height // LEAST_GRAPHS, 0, SIZE_PARTS))
    if not count:
        return ()
    return [graphs[rows] for rows in np.array_split(np.arange(graphs.height), count)]


def _alternates(graphs: pl.DataFrame) -> bool:
    explained = float(np.median(graphs.get_column("explained").to_numpy()))
    return _deviations(graphs) >= LEAST_DEVIATIONS and explained >= LEAST_EXPLAINED_RATIO


def _deviations(graphs: pl.DataFrame) -> float:
    """Crossings above those of a random order, in standard deviations of their sum; 0 if nothing can vary."""
    above, below = graphs.get_column("above").to_numpy(), graphs.get_column("below").to_numpy()
    total = above + below
    pairs = 2 * above * below
    expected = pairs / np.maximum(total, 1)
    variance = pairs * (pairs - total) / np.maximum(total**2 * (total - 1), 1)
    spread = float(np.sqrt(variance.sum()))
    excess = float((graphs.get_column("crossings").to_numpy() - expected).sum())
    return excess / spread if spread > 0 else 0.0
