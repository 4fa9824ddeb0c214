"""How a champion's held-out errors are spread, so that a later error can be said to be usual or not.

An error is first divided by the model's own noise scale, then ranked among the held-out ones of its kind, and the
rank becomes a score: normal for its place between fast and slow (`level`), exponential for its size (`spread`).
Ranks keep one stalled launch of many milliseconds from deciding alone, and make sums of scores behave alike whatever
the tails were. The exponential score weighs the largest errors most: on the public GEMM tables it found the
version change in 46 % of windows of 200 rows where squares capped at the 95th percentile found 18 %.

Trials of one graph are alike, and so are graphs of one shape (ten consecutive lengths of a line, say): by how much is
estimated from the held-out ones, on the safe side. Without shapes 8 % of windows of 20 consecutive lengths of the
P100's lines tripped though nothing had changed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, TypeGuard

import numpy as np

from warpgauge.drift.cusum import (
    KINDS,
    MANY_GRAPHS,
    SIDES,
    Floats,
    Integers,
    Kind,
    cube_root_normal,
    window_limit,
)
from warpgauge.errors import ModelFileError

# The held-out errors are kept as so many quantiles, 4 KB; the largest score is then that of 1 in 2,000.
LARGEST_QUANTILE_COUNT = 1_000
# Chance that graphs are more alike than is assumed. At 5 % windows on laws of 50 graphs with t-distributed effects
# exceeded a limit of 1 in 10,000 2.6 times in 10,000, at 0.1 % 0.4 times; laws of many graphs are the same.
LIKENESS_CHANCE = 0.001
# The bootstrap's windows: so many graphs each, drawn so often; their tail of 1 in 1,000 is held against the normal one.
# Errors of graphs with t-distributed effects (3 degrees of freedom) exceeded it by 33 % on 5 graphs, 18 % on 20, 14 %
# on 40, and by 1 to 6 points more at 1 in 10,000.
DRAWN_GRAPHS = (5, 8, MANY_GRAPHS)
DRAWS = 10_000
DRAWN_CHANCE = 0.001
LEAST_DRAWN_ROWS = 20
# Held-out rows that are worth more than this many are taken as the truth but for an error of their mean.
LARGEST_DRAWN_COUNT = 1_000
LAWS_DRAWN = 40
# Errors larger than all but this many of the held-out ones (by what these are worth) count alike: how often they
# come is not known. Without it windows on 100 held-out graphs with t-distributed effects tripped six times too often.
TAIL_COUNT = 5.0
# Variances taken from few errors are off: about what Student's factor adds 1 time in 10,000.
SMALL_SAMPLE = 10.0
# Scores vary by 1 where hardly two errors are equal; below this nearly all are.
LEAST_VARIANCE = 0.25


@dataclass(frozen=True)
class ScoreLaw:
    """How one score varies where nothing changed.

    Attributes:
        mean: Its average on the held-out rows.
        within: Variance between trials of one graph, positive.
        between: Variance of what trials of one graph share beyond its shape.
        among: Variance of what graphs of one shape share.
        mean_error: Variance of `mean`, which rests on so many graphs only.
        effective_count: Independent errors that the held-out rows are worth.
        few_inflation: By how much sums over windows of few whole graphs exceed what a normal sum would, at
            least 1.
        many_inflation: The same of windows of 20 graphs and more.
    """

    mean: float
    within: float
    between: float
    among: float
    mean_error: float
    effective_count: float
    few_inflation: float = 1.0
    many_inflation: float = 1.0

    @property
    def total(self) -> float:
        """Variance of one row's score."""
        return self.within + self.between + self.among

    def to_document(self) -> dict[str, float]:
        """As JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}

    @classmethod
    def from_document(cls, document: Any) -> ScoreLaw:
        """Back from JSON values; raises `ModelFileError` where one is absent or impossible."""
        values = {}
        for name in cls.__dataclass_fields__:
            value = document.get(name) if isinstance(document, dict) else None
            if not _is_finite(value):
                raise ModelFileError(f"{name} of a residual law is {value!r}, a finite number is needed")
            values[name] = float(value)
        law = cls(**values)
        if (
            law.within <= 0
            or min(law.between, law.among, law.mean_error) < 0
            or law.effective_count <= 0
            or min(law.few_inflation, law.many_inflation) < 1
        ):
            raise ModelFileError(f"a residual law has impossible figures: {law}")
        return law


@dataclass(frozen=True, eq=False)
class NoiseLaw:
    """The held-out errors of one kind of rows.

    Attributes:
        quantiles: Errors over their noise scale, rising, shape (at most 1,000,).
        level: Of the normal score.
        spread: Of the exponential score.
        row_count: Held-out rows.
        graph_count: Their graphs.
        median_log: Median of ln(measured / predicted).
        inside_ratio: Share of errors within their noise scale.
    """

    quantiles: Floats
    level: ScoreLaw
    spread: ScoreLaw
    row_count: int
    graph_count: int
    median_log: float
    inside_ratio: float

    @cached_property
    def sizes(self) -> Floats:
        """Absolute errors over their noise scale, rising."""
        return np.sort(np.abs(self.quantiles))

    def score(self, kind: Kind, scaled_errors: Floats) -> Floats:
        """Score of each error: about standard normal (`level`) or exponential (`spread`) where nothing changed."""
        sample = self.quantiles if kind == "level" else self.sizes
        rank = _rank(sample, scaled_errors if kind == "level" else np.abs(scaled_errors))
        return _scores(kind, rank, self.figures(kind).effective_count, sample.size)

    def figures(self, kind: Kind) -> ScoreLaw:
        """Of the score of that kind."""
        return self.level if kind == "level" else self.spread

    def to_document(self) -> dict[str, Any]:
        """All but the quantiles, as JSON values."""
        return {
            "level": self.level.to_document(),
            "spread": self.spread.to_document(),
            "row_count": self.row_count,
            "graph_count": self.graph_count,
            "median_log": self.median_log,
            "inside_ratio": self.inside_ratio,
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], quantiles: Floats) -> NoiseLaw:
        """Back from JSON values; raises `ModelFileError` where one is absent or impossible."""
        rows, graphs = document.get("row_count"), document.get("graph_count")
        median_log, inside_ratio = document.get("median_log"), document.get("inside_ratio")
        if not (isinstance(rows, int) and isinstance(graphs, int) and rows >= graphs > 0):
            raise ModelFileError(f"a residual law is of {rows!r} rows and {graphs!r} graphs; needs counts")
        if not (_is_finite(median_log) and _is_finite(inside_ratio)):
            raise ModelFileError(
                f"a residual law has median_log {median_log!r}, inside_ratio {inside_ratio!r}"
            )
        level, spread = (ScoreLaw.from_document(document.get(kind)) for kind in KINDS)
        return cls(quantiles, level, spread, rows, graphs, float(median_log), float(inside_ratio))


def _is_finite(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


@dataclass(frozen=True, eq=False)
class Units:
    """Which rows are of one graph and which graphs of one shape, all numbered from 0 without gaps."""

    graph: Integers
    shape_of_graph: Integers
    graph_sizes: Integers
    shape_sizes: Integers

    @classmethod
    def of(cls, graphs: Integers, shapes: Integers) -> Units:
        """From any numbers, one of each a row; a graph is of the shape of its first row."""
        _, first, graph = np.unique(graphs, return_index=True, return_inverse=True)
        shape_of_graph = np.unique(shapes[first], return_inverse=True)[1].astype(np.int64)
        sizes = np.bincount(graph)
        shape_sizes = np.bincount(shape_of_graph, weights=sizes).astype(np.int64)
        return cls(graph.astype(np.int64), shape_of_graph, sizes, shape_sizes)

    def drawn(self, random: np.random.Generator) -> tuple[Integers, Units]:
        """Rows of as many shapes, drawn with replacement, by rising place, and their units."""
        shape_count = self.shape_sizes.size
        times = np.bincount(random.integers(shape_count, size=shape_count), minlength=shape_count)
        shape = self.shape_of_graph[self.graph]
        rows = np.repeat(np.arange(shape.size), times[shape])
        ends = np.cumsum(times[shape])
        # Which of the copies of its shape a row is of.
        copy = np.arange(rows.size) - np.repeat(ends - times[shape], times[shape])
        most = int(times.max())
        is_there = np.arange(most) < times[self.shape_of_graph][:, None]
        number = np.cumsum(is_there).reshape(is_there.shape) - 1
        shape_number = np.cumsum(np.arange(most) < times[:, None]).reshape(-1, most) - 1
        shape_of_graph = shape_number[self.shape_of_graph][is_there]
        sizes = np.repeat(self.graph_sizes, times[self.shape_of_graph])
        drawn_sizes = np.repeat(self.shape_sizes, times)
        return rows, Units(number[self.graph[rows], copy], shape_of_graph, sizes, drawn_sizes)


def fit_noise_law(
    scaled_errors: Floats,
    log_residuals: Floats,
    graphs: Integers,
    shapes: Integers,
    random: np.random.Generator,
) -> NoiseLaw | None:
    """The law of some held-out rows.

    Args:
        scaled_errors: ln(measured / predicted) over the model's noise scale, finite, shape (rows,).
        log_residuals: The same before it was divided.
        graphs: Number of each row's graph.
        shapes: Number of its shape.
        random: For the bootstrap.

    Returns:
        The law; None where nearly all errors are equal, so that ranks say nothing.
    """
    quantiles = _quantiles(np.sort(scaled_errors))
    laws = {}
    for kind in KINDS:
        sample = quantiles if kind == "level" else np.sort(np.abs(quantiles))
        values = scaled_errors if kind == "level" else np.abs(scaled_errors)
        order = np.argsort(values, kind="stable")
        rising, units = values[order], Units.of(graphs[order], shapes[order])
        law, scores = _fit_scores(kind, sample, rising, units)
        if law.total < LEAST_VARIANCE * min(1.0, law.effective_count / LEAST_DRAWN_ROWS):
            return None
        few, many = _inflation_ratios(kind, law, rising, scores, units, random)
        laws[kind] = replace(law, few_inflation=few, many_inflation=many)
    return NoiseLaw(
        quantiles,
        laws["level"],
        laws["spread"],
        int(scaled_errors.size),
        int(np.unique(graphs).size),
        float(np.median(log_residuals)),
        float((np.abs(scaled_errors) <= 1).mean()),
    )


def _quantiles(rising: Floats) -> Floats:
    if rising.size > LARGEST_QUANTILE_COUNT:
        places = (np.arange(LARGEST_QUANTILE_COUNT) + 0.5) / LARGEST_QUANTILE_COUNT * rising.size
        rising = rising[places.astype(np.int64)]
    # As they are stored.
    return rising.astype(np.float32).astype(np.float64)


def _fit_scores(kind: Kind, sample: Floats, rising: Floats, units: Units) -> tuple[ScoreLaw, Floats]:
    """The law of one score and the scores, first as if all rows were independent, then with what they are worth."""
    rank = _rank_of_rising(sample, rising)
    rough = _score_law(_scores(kind, rank, rising.size, sample.size), units)
    scores = _scores(kind, rank, rough.effective_count, sample.size)
    return replace(_score_law(scores, units), effective_count=rough.effective_count), scores


def _rank(sample: Floats, values: Floats) -> Floats:
    """Share of the rising sample below each value, half of what equals it counted."""
    below, not_above = np.searchsorted(sample, values, "left"), np.searchsorted(sample, values, "right")
    return np.asarray((below + not_above) / (2.0 * sample.size))


def _rank_of_rising(sample: Floats, rising: Floats) -> Floats:
    """The same of rising values, twenty times as fast."""
    above = np.bincount(np.searchsorted(rising, sample, "right"), minlength=rising.size + 1)
    not_below = np.bincount(np.searchsorted(rising, sample, "left"), minlength=rising.size + 1)
    return np.asarray(np.cumsum(above + not_below)[:-1] / (2.0 * sample.size))


def _scores(kind: Kind, rank: Floats, effective_count: float, sample_size: int) -> Floats:
    """Ranks, 0 to 1, as scores; they shrink to what the sample is worth."""
    from scipy.special import ndtri

    count = min(effective_count, sample_size)
    rank = (rank * count + 0.5) / (count + 1.0)
    if kind == "level":
        return np.asarray(ndtri(rank), dtype=np.float64)
    return -np.log1p(-np.minimum(rank, 1 - TAIL_COUNT / (count + 2 * TAIL_COUNT)))


def _score_law(scores: Floats, units: Units) -> ScoreLaw:
    """Variances within graphs, between them and among shapes (analysis of variance), likeness at its upper bound."""
    sizes = units.graph_sizes.astype(np.float64)
    sums = np.bincount(units.graph, weights=scores)
    mean = float(scores.mean())
    count = scores.size
    variance = max(float(np.square(scores - mean).sum()) / count, 1e-12) * sizes.size / max(sizes.size - 1, 1)
    # A little is left within: no row is wholly its graph's.
    likeness = min(_likeness(scores, units.graph), 1 - 1e-6)
    within, shared = (1 - likeness) * variance, likeness * variance
    # Means of graphs hold a part of the variance within; what of them shapes share cannot be that.
    of_means = shared + within * float((1 / sizes).mean())
    among = min(_likeness(sums / sizes, units.shape_of_graph) * of_means, shared)
    between = shared - among
    by_graph, by_shape = float((sizes**2).sum()), float((units.shape_sizes.astype(np.float64) ** 2).sum())
    mean_error = (among * by_shape + between * by_graph + within * count) / count**2
    return ScoreLaw(mean, within, between, among, mean_error, variance / mean_error)


def _likeness(values: Floats, cluster: Integers) -> float:
    """Share of the variance that values of one cluster have in common, 0 to 1, at its upper bound."""
    from scipy.special import fdtri

    sizes = np.bincount(cluster).astype(np.float64)
    sums = np.bincount(cluster, weights=values)
    repeats = values.size - sizes.size
    if repeats == 0 or sizes.size < 2:
        return 1.0  # nobody saw one twice: a second one may say nothing new
    apart = float((sums**2 / sizes).sum() - values.size * values.mean() ** 2)
    inside = float((values**2).sum() - (sums**2 / sizes).sum())
    if inside <= 1e-9 * apart:
        return 1.0
    typical = (values.size - (sizes**2).sum() / values.size) / (sizes.size - 1)
    ratio = (apart / (sizes.size - 1)) / (inside / repeats)
    ratio /= float(fdtri(sizes.size - 1, repeats, LIKENESS_CHANCE))
    return float(np.clip((ratio - 1) / (ratio + typical - 1), 0.0, 1.0))


def _inflation_ratios(
    kind: Kind,
    law: ScoreLaw,
    rising: Floats,
    scores: Floats,
    units: Units,
    random: np.random.Generator,
) -> tuple[float, float]:
    """Bootstrap: what windows of few and of many graphs exceed 1 time in 1,000, over what is assumed.

    Windows are of whole held-out graphs, and of single rows. Where the held-out rows are worth little, what they say
    is drawn too: each law is fitted on shapes drawn with replacement, and windows are held against that one.
    """
    is_drawn = law.effective_count < LARGEST_DRAWN_COUNT
    found: dict[tuple[bool, int], list[Floats]] = {}
    replicates = LAWS_DRAWN if is_drawn else 1
    for _ in range(replicates):
        own, own_scores = law, scores
        if is_drawn:
            rows, drawn_units = units.drawn(random)
            sample = _quantiles(rising[rows])
            own, _ = _fit_scores(kind, sample, rising[rows], drawn_units)
            rank = _rank_of_rising(sample, rising)
            own_scores = _scores(kind, rank, own.effective_count, sample.size)
        for by_graph in (False, True) if units.graph_sizes.size < rising.size else (False,):
            size, total = np.ones(rising.size), own_scores
            if by_graph:
                size = units.graph_sizes.astype(np.float64)
                total = np.bincount(units.graph, weights=own_scores).astype(np.float64)
            for drawn in DRAWN_GRAPHS:
                if drawn * size.mean() >= LEAST_DRAWN_ROWS:
                    draws = random.integers(size.size, size=(DRAWS // replicates, drawn))
                    off = 0.0 if is_drawn else math.sqrt(own.mean_error)
                    surprise = _surprise(kind, own, size, total, draws, off, random)
                    found.setdefault((by_graph, drawn), []).append(surprise)
    usual = window_limit(DRAWN_CHANCE, SIDES[kind])
    few = many = 1.0
    for (_, drawn), parts in found.items():
        ratio = float(np.quantile(np.concatenate(parts), 1 - DRAWN_CHANCE)) / usual
        few = max(few, ratio)
        many = max(many, ratio) if drawn == MANY_GRAPHS else many
    small = 1.0 + SMALL_SAMPLE / law.effective_count
    return few * small, many * small


def _surprise(
    kind: Kind,
    law: ScoreLaw,
    size: Floats,
    total: Floats,
    draws: Integers,
    off: float,
    random: np.random.Generator,
) -> Floats:
    """Of windows that hold the drawn graphs, of that many rows and sums of scores; the mean is `off` by so much."""
    shared = law.between + law.among
    weight = 1.0 / (law.within + shared * size)
    rows = (weight * size)[draws].sum(axis=1)
    excess = (weight * total)[draws].sum(axis=1) - rows * (law.mean + random.normal(0.0, off, len(draws)))
    variance = (weight**2 * (shared * size**2 + law.within * size))[draws].sum(axis=1)
    variance += rows**2 * law.mean_error
    if kind == "level":
        return np.asarray(np.abs(excess) / np.sqrt(variance))
    expected = rows * law.mean
    return cube_root_normal(excess / expected, variance / expected**2)
