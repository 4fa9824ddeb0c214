"""How far a launch may lie from its prediction: split-conformal intervals scaled by the local noise.

The score of a held-out row is its log error over the typical log error at its size; the interval is the score
that the wanted share of held-out rows did not exceed, times that typical error. The typical error is taken
from the rows nearest in log latency, because it falls fast with size: bins of equal count gave the smallest
lengths of line one width, on the public trials two to seven times too wide for launches of 80 us. Scale and
quantile belong to one group (topology, GPU and profiling; the topology alone where that is thin): one
quantile over two topologies gave 99 % coverage on one and 84 % on the other, one a topology over five
simulated GPUs 76 % to 97 %. The interval is symmetric in log: a quantile a side was wider and held less,
because each rests on half of the tail. What was never seen widens the interval by how wrong predictions were
when the same kind of thing was left out of training, or by a stated factor where nothing could be left out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.errors import ModelFileError, TrainingError
from warpgauge.latency.baseline import group_rows
from warpgauge.latency.scheme import FloatArray
from warpgauge.latency.sealed_files import take, take_key, take_number, take_numbers

GroupKey = tuple[str | None, ...]
Levels = tuple[tuple[str, ...], ...]
# With fewer held-out rows a group's own 90 % quantile rests on less than five rows.
GROUP_ROWS = 50
# The scale at a place rests on at least WINDOW_ROWS, and on all rows within WINDOW_LOG of it. On the public
# P100 trials 100 to 400 rows cover alike (300 are three held-out blocks of ten sizes). In a smaller group a
# window holds a tenth of the rows, but no fewer than a 90 % quantile can rest on.
WINDOW_ROWS = 300
LEAST_WINDOW_ROWS = 50
WINDOW_SHARE = 10
WINDOW_LOG = 0.1
# Places lie this far apart: no further than a window reaches, and few enough to read in the document.
PLACE_STEP_LOG = 0.15
LARGEST_PLACE_COUNT = 64
# A measured clock cannot tell launches nearer than this apart; it keeps the score finite where all trials
# of a group are equal.
LEAST_SCALE = 0.002
# Any other input that was missing though training always had it.
OTHER_FACTOR = 1.25
# Beyond the measured sizes: fitted on lengths up to 1000 of the public P100 trials, the baseline is off by
# up to 0.02 (straight) and 0.13 (parallel lines) in log at length 2000, which is 0.69 away in log: a quarter
# of the distance holds both.
RANGE_WIDENING_RATIO = 0.25


@dataclass(frozen=True)
class NoiseScale:
    """Typical absolute log error by predicted latency, and the conformal quantile in that unit.

    Attributes:
        log_latency: Logs of predicted microseconds, rising.
        scale: Typical absolute log error there, positive; flat beyond both ends.
        quantile: Scores up to this are inside the interval.
        row_count: Held-out rows that it rests on.
    """

    log_latency: tuple[float, ...]
    scale: tuple[float, ...]
    quantile: float
    row_count: int

    def half_width(self, predicted_us: FloatArray) -> FloatArray:
        """Half width of the interval in log, positive, one a row."""
        return self.quantile * np.interp(np.log(predicted_us), self.log_latency, self.scale)


@dataclass(frozen=True)
class Intervals:
    """Everything that turns predictions into intervals.

    Attributes:
        coverage_ratio: Share of launches that an interval should hold.
        levels: Columns that scales are calibrated apart by, coarser last.
        pooled: For groups that are thin or were never seen.
        groups: Values of the columns of one of the levels -> its own scale.
        unseen_log_width: Key column -> what a value never seen adds to the half width in log.
        unseen_evidence: Key column -> `measured` (left out of training) or `stated`.
    """

    coverage_ratio: float
    levels: Levels
    pooled: NoiseScale
    groups: Mapping[GroupKey, NoiseScale]
    unseen_log_width: Mapping[str, float]
    unseen_evidence: Mapping[str, str]

    def half_width(self, predicted_us: FloatArray, groups: pl.DataFrame) -> FloatArray:
        """Half width in log of rows like those of training, one a row.

        Args:
            predicted_us: Positive, one a row.
            groups: The columns of all levels.
        """
        width = self.pooled.half_width(predicted_us)
        for level in reversed(self.levels):
            for key, rows in group_rows(groups.select(level)).items():
                scale = self.groups.get(key)
                if scale is not None:
                    width[rows] = scale.half_width(predicted_us[rows])
        return width

    def unseen_width(self, column: str) -> float:
        """What one value of that column that was never seen adds to the half width in log."""
        return self.unseen_log_width.get(column, math.log(OTHER_FACTOR))

    def to_document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "coverage_ratio": self.coverage_ratio,
            "levels": [list(level) for level in self.levels],
            "pooled": _scale_document(self.pooled),
            "groups": [
                {"key": list(key), "scale": _scale_document(scale)}
                for key, scale in sorted(self.groups.items(), key=lambda pair: repr(pair[0]))
            ],
            "unseen_log_width": dict(self.unseen_log_width),
            "unseen_evidence": dict(self.unseen_evidence),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Intervals:
        """Back from JSON values.

        Raises:
            ModelFileError: If a part is absent or of another kind.
        """
        widths = take(document, "unseen_log_width", dict)
        levels = take(document, "levels", list)
        if not all(isinstance(level, list) for level in levels):
            raise ModelFileError("the levels of the model's intervals are no lists; train a new version")
        evidence = take(document, "unseen_evidence", dict)
        return cls(
            take_number(document, "coverage_ratio"),
            tuple(tuple(level) for level in levels),
            _scale_from(take(document, "pooled", dict)),
            {
                take_key(entry): _scale_from(take(entry, "scale", dict))
                for entry in take(document, "groups", list)
            },
            {name: take_number(widths, name) for name in widths},
            {name: take(evidence, name, str) for name in evidence},
        )


def fit_intervals(
    residual_log: FloatArray,
    predicted_us: FloatArray,
    groups: pl.DataFrame,
    coverage_ratio: float,
    *,
    levels: Levels,
    stated_factors: Mapping[str, float],
    left_out_log_error: Mapping[str, Sequence[float]] | None = None,
) -> Intervals:
    """Calibrate on rows that the predicting models had not seen.

    Args:
        residual_log: log(actual / predicted), finite, one a row.
        predicted_us: Positive, one a row.
        groups: The columns of all levels.
        coverage_ratio: Wanted share inside the interval, above 0 and below 1.
        levels: Columns that scales are calibrated apart by, coarser last.
        stated_factors: Key column -> factor on the latency for a value never seen, where nothing was measured.
        left_out_log_error: Key column -> for each of its values the log error that `coverage_ratio` of its
            rows did not exceed when that value was left out of training; None or absent where that was not
            possible.

    Raises:
        TrainingError: If there is no row.
    """
    if not len(residual_log):
        raise TrainingError("no held-out row to calibrate an interval on; more graphs are needed")
    # A coarser group often holds the very rows of a finer one: the same rows are fitted once.
    fitted: dict[bytes, NoiseScale] = {}

    def fit(rows: npt.NDArray[np.int64]) -> NoiseScale:
        name = rows.tobytes()
        if name not in fitted:
            fitted[name] = _fit_scale(residual_log[rows], predicted_us[rows], coverage_ratio)
        return fitted[name]

    scales = {}
    for level in levels:
        for key, rows in group_rows(groups.select(level)).items():
            if len(rows) >= GROUP_ROWS:
                scales[key] = fit(rows)
    widths, evidence = {}, {}
    for column, factor in stated_factors.items():
        measured = (left_out_log_error or {}).get(column, ())
        # The worst of the values left out: with two or three of them no higher quantile exists.
        widths[column] = max(measured) if measured else math.log(factor)
        evidence[column] = "measured" if measured else "stated"
    pooled = fit(np.arange(len(residual_log), dtype=np.int64))
    return Intervals(coverage_ratio, levels, pooled, scales, widths, evidence)


def conformal_quantile(scores: FloatArray, coverage_ratio: float) -> float:
    """The score that a new row exceeds with a chance of at most 1 - coverage.

    With n scores it is the ceil((n + 1) x coverage)-th smallest; too few scores give the largest.

    >>> conformal_quantile(np.arange(1.0, 100.0), 0.9)
    90.0
    """
    place = min(math.ceil((len(scores) + 1) * coverage_ratio), len(scores))
    return float(np.sort(scores)[place - 1])


def _fit_scale(residual_log: FloatArray, predicted_us: FloatArray, coverage_ratio: float) -> NoiseScale:
    # By size, then error: the order in which rows came must not matter.
    order = np.lexsort((np.abs(residual_log), predicted_us))
    size = np.log(predicted_us[order])
    error = np.abs(residual_log[order])
    places = _places(size)
    # A scale fits the rows that it was taken from better than a new one: half of the rows is scored by the
    # scale of the other half, or intervals hold half a percent too little. Of equal sizes each half takes as
    # many large errors as small ones (0 1 1 0 0 1 1 0 ...).
    is_odd = (np.arange(len(size)) + 1) // 2 % 2 == 1
    scores = np.empty(len(size))
    for half in (is_odd, ~is_odd):
        rest = ~half if (~half).any() and half.any() else np.ones(len(size), dtype=bool)
        scale = _local_scales(size[rest], error[rest], places, coverage_ratio)
        scores[half] = error[half] / np.interp(size[half], places, scale)
    scales = _local_scales(size, error, places, coverage_ratio)
    quantile = max(conformal_quantile(scores, coverage_ratio), 1e-3)
    return NoiseScale(tuple(places.tolist()), tuple(scales.tolist()), quantile, len(error))


def _places(size: FloatArray) -> FloatArray:
    """Where the scale is taken: equal steps over the range of log latency; `size` is sorted."""
    reach = float(size[-1] - size[0])
    count = min(math.ceil(reach / PLACE_STEP_LOG) + 1, LARGEST_PLACE_COUNT)
    # Sizes nearer than rounding can tell apart are one place: places have to rise.
    return np.unique(np.linspace(size[0], size[-1], count)) if reach > 1e-6 else size[:1]


def _local_scales(
    size: FloatArray, error: FloatArray, places: FloatArray, coverage_ratio: float
) -> FloatArray:
    """The wanted quantile of the errors around each place, smoothed over its neighbours; `size` is sorted.

    The quantile itself, not a multiple of a mean: the tails differ from size to size.
    """
    wanted = min(int(np.clip(len(size) // WINDOW_SHARE, LEAST_WINDOW_ROWS, WINDOW_ROWS)), len(size))
    scales = np.empty(len(places))
    for number, place in enumerate(places):
        reach = max(WINDOW_LOG, _reach(size, float(place), wanted))
        low, high = np.searchsorted(size, [place - reach, place + reach])
        scales[number] = max(float(np.quantile(error[low:high], coverage_ratio)), LEAST_SCALE)
    padded = np.pad(np.log(scales), 1, mode="edge")
    return np.exp(0.25 * padded[:-2] + 0.5 * padded[1:-1] + 0.25 * padded[2:])


def _reach(size: FloatArray, place: float, wanted: int) -> float:
    """How far around a place the wanted number of rows lies, a little more; `size` is sorted.

    All rows at that distance are inside, so that it does not matter which of several equal sizes came first.
    """
    middle = int(np.searchsorted(size, place))
    first = np.arange(max(middle - wanted, 0), min(middle, len(size) - wanted) + 1)
    farthest = np.maximum(place - size[first], size[first + wanted - 1] - place)
    return float(farthest.min()) + 1e-9


def _scale_document(scale: NoiseScale) -> dict[str, Any]:
    return {
        "log_latency": list(scale.log_latency),
        "scale": list(scale.scale),
        "quantile": scale.quantile,
        "row_count": scale.row_count,
    }


def _scale_from(document: Mapping[str, Any]) -> NoiseScale:
    scale = NoiseScale(
        take_numbers(document, "log_latency"),
        take_numbers(document, "scale"),
        take_number(document, "quantile"),
        take(document, "row_count", int),
    )
    if (
        not scale.scale
        or len(scale.scale) != len(scale.log_latency)
        or not np.isfinite([*scale.scale, *scale.log_latency, scale.quantile]).all()
        or min(scale.scale) <= 0
        or scale.quantile <= 0
        or np.any(np.diff(scale.log_latency) <= 0)
    ):
        raise ModelFileError("an interval scale of the model is not positive and rising; train a new version")
    return scale
