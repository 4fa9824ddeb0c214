"""Did the errors change at some moment of the window, and how surprising is that?

A CUSUM whose size and start are not known beforehand (the generalised likelihood ratio form): the sum of the
scores since each moment over its standard error. The whole window is the sum since its first row. Only sums that
reach the window's end are looked at, so a disturbance that has passed does not ring on.

Trials of one graph share an error, graphs of one shape another one, and a law known from few rows is off by the same
amount everywhere; all are in the standard error of each sum. Limits are those of a Gaussian process, in closed form:
nothing is simulated while the monitor runs.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from statistics import NormalDist
from typing import Literal

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Kind = Literal["level", "spread"]
KINDS: tuple[Kind, ...] = ("level", "spread")
# A level may move to either side; only growth of the errors counts.
SIDES: Mapping[Kind, int] = {"level": 2, "spread": 1}
NORMAL = NormalDist()
MANY_GRAPHS = 20
# Beyond this many standard errors a chance is below 1e-80, whatever the number of looks.
LARGEST_LIMIT = 20.0


@dataclass(frozen=True, eq=False)
class ScoreRows:
    """Scores of rows in the order of time, and how each may vary where nothing changed; arrays of shape (rows,).

    Attributes:
        score: The scores.
        mean: What each was on average on the reference.
        within: Variance between rows of one graph.
        between: Variance of what rows of one graph share beyond their shape.
        among: Variance of what graphs of one shape share.
        mean_error: Variance of `mean` itself, shared by all rows of one law.
        few_inflation: By how much sums of this law over few graphs exceed what a normal sum would, at least 1.
        many_inflation: The same over `MANY_GRAPHS` and more.
        graph: Number of each row's graph.
        shape: Number of its shape; of no two shapes is a graph.
        law: Number of each row's law.
    """

    score: Floats
    mean: Floats
    within: Floats
    between: Floats
    among: Floats
    mean_error: Floats
    few_inflation: Floats
    many_inflation: Floats
    graph: Integers
    shape: Integers
    law: Integers

    def only(self, rows: Integers) -> ScoreRows:
        """Some of the rows, by rising place."""
        return ScoreRows(*(getattr(self, name)[rows] for name in self.__dataclass_fields__))


@dataclass(frozen=True, eq=False)
class Scan:
    """Surprise of the sums that end with the last row, in standard errors that count the inflation in.

    Attributes:
        window: Of the whole window.
        since: The largest of those that start later; None where none may.
        since_row: Where that one starts.
        look_count: How many start later.
        log_information_ratio: ln(longest of them over shortest).
    """

    window: float
    since: float | None
    since_row: int | None
    look_count: int
    log_information_ratio: float


def scan_changes(rows: ScoreRows, may_start: Flags, kind: Kind, weights: Floats) -> Scan:
    """Look at the sum of the scores since each moment that `may_start`, and since the first row.

    Args:
        rows: At least one.
        may_start: Whether a sum may start at this row, shape (rows,).
        kind: `level` looks at both directions and takes scores as normal ones; `spread` looks at growth and takes
            scores as exponential ones, whose sums are skewed (Wilson and Hilferty's cube root makes them normal).
        weights: Of each row; see `graph_weights`.
    """
    weight = weights[::-1]
    mean = rows.mean[::-1]
    total = np.cumsum(weight * (rows.score[::-1] - mean))
    variance = (
        np.cumsum(weight**2 * rows.within[::-1])
        + _shared(rows.graph[::-1], weight * np.sqrt(rows.between[::-1]))
        + _shared(rows.shape[::-1], weight * np.sqrt(rows.among[::-1]))
        + _shared(rows.law[::-1], weight * np.sqrt(rows.mean_error[::-1]))
    )
    if kind == "level":
        surprise = np.abs(total) / np.sqrt(variance)
    else:
        expected = np.cumsum(weight * mean)
        surprise = cube_root_normal(total / expected, variance / expected**2)
    own = weight**2 * (rows.within + rows.between + rows.among)[::-1]
    information = np.cumsum(own)
    few = np.cumsum(own * rows.few_inflation[::-1])
    many = np.cumsum(own * rows.many_inflation[::-1])
    surprise *= information / np.where(_graph_counts(rows.graph[::-1]) < MANY_GRAPHS, few, many)
    # In the order of time again: entry i is of the sum since row i.
    surprise, information = surprise[::-1], information[::-1]
    starts = np.flatnonzero(may_start[1:]) + 1
    if not starts.size:
        return Scan(float(surprise[0]), None, None, 0, 0.0)
    best = int(starts[np.argmax(surprise[starts])])
    ratio = math.log(float(information[starts[0]] / information[starts[-1]]))
    return Scan(float(surprise[0]), float(surprise[best]), best, int(starts.size), ratio)


def graph_weights(rows: ScoreRows) -> Floats:
    """Weight of each row: the more trials its graph has, and graphs its shape, the less another one says."""
    trials = np.bincount(rows.graph)[rows.graph]
    alike = np.bincount(rows.shape)[rows.shape]
    return 1.0 / (rows.within + rows.between * trials + rows.among * alike)


def cube_root_normal(excess: Floats, variance: Floats) -> Floats:
    """Standard normal values of sums that are gamma-like: `excess` is sum / expected - 1, with its variance."""
    spread = np.sqrt(variance)
    return (np.cbrt(np.maximum(excess + 1.0, 0.0)) - 1.0 + variance / 9.0) * 3.0 / spread


def window_limit(chance: float, sides: int) -> float:
    """What one standard normal value exceeds with this chance; with two sides, in absolute value.

    >>> round(window_limit(0.05, 2), 2)
    1.96
    """
    return -NORMAL.inv_cdf(chance / sides)


def since_limit(chance: float, sides: int, look_count: int, log_information_ratio: float) -> float:
    """What the largest of many looks at sums since different moments exceeds with this chance, at most.

    The sum of independent scores over its standard error is an Ornstein-Uhlenbeck process in the log of its
    information. How often its absolute value exceeds h anywhere is about phi(h) ((h - 1/h) ln(ratio) + 4/h) (Miller
    and Siegmund 1982, Biometrics 38, 1011-1016, for one-sided ranges of the same process). Few looks cannot do
    worse than their chances added up. Graphs that come again and again make looks more alike, which only lowers it.
    """
    added = window_limit(chance / look_count, sides)
    low, high = 1.0, LARGEST_LIMIT
    for _ in range(60):
        middle = 0.5 * (low + high)
        density = math.exp(-0.5 * middle * middle) / math.sqrt(2 * math.pi)
        exceeds = 0.5 * sides * density * ((middle - 1 / middle) * log_information_ratio + 4 / middle)
        low, high = (middle, high) if exceeds > chance else (low, middle)
    return min(added, high)


def _graph_counts(graph: Integers) -> Integers:
    """Different graphs among the first row, the first two and so on."""
    is_first = np.zeros(graph.size, dtype=np.int64)
    is_first[np.unique(graph, return_index=True)[1]] = 1
    return np.cumsum(is_first)


def _shared(cluster: Integers, value: Floats) -> Floats:
    """For the first row, the first two and so on: sum over clusters of (sum of the cluster's values) squared."""
    order = np.argsort(cluster, kind="stable")
    ordered = value[order]
    before = np.cumsum(ordered) - ordered
    is_first = np.empty(len(order), dtype=bool)
    is_first[:1] = True
    is_first[1:] = np.diff(cluster[order]) != 0
    before -= np.repeat(before[is_first], np.diff(np.append(np.flatnonzero(is_first), len(order))))
    grown = np.empty(len(order))
    grown[order] = ordered * (ordered + 2 * before)
    return np.cumsum(grown)
