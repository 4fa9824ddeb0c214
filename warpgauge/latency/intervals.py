"""How far a launch may lie from its prediction: split-conformal intervals scaled by the local noise.

The score of a held-out row is its log error over the typical log error at its size; the interval is the score that
the wanted share of held-out rows did not exceed, times that typical error. Scale and quantile belong to one
group (topology, GPU and profiling; the topology alone where that is thin): one quantile over two topologies
gave 99 % coverage on one and 84 % on the other, one a topology over five simulated GPUs 76 % to 97 %. What was never seen widens the interval by how wrong predictions were when the same kind of thing
was left out of training, or by a stated factor where nothing could be left out.
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
from warpgauge.latency.sealed_files import take, take_numbers

FloatArray = npt.NDArray[np.float64]

GroupKey = tuple[str | None, ...]
# What a group is told apart by, coarser last; a group is one combination of the first few.
GROUP_COLUMNS = ("topology", "gpu_name", "is_profiled")
GROUP_LEVELS = (GROUP_COLUMNS, GROUP_COLUMNS[:1])
# With fewer held-out rows a group's own 90 % quantile rests on less than five rows.
GROUP_ROWS = 50
ROWS_A_BIN = 100
LARGEST_BIN_COUNT = 12
# A measured clock cannot tell launches nearer than this apart; it keeps the score finite where all trials
# of a group are equal.
LEAST_SCALE = 0.002
# Where no value could be left out, a factor on the latency for a value never seen:
# GPUs: V100 and A100 need 17 to 19 us for a first launch of 20 nodes (the published figures that the
# simulator meets), the P100 of the public trials 8, so 3.
# Topology: 4 parallel lines cost 2.6 to 3.1 times a straight line of the same length on that P100, so 3.
# Profiled: 2.75 us per node against 0.35 us, so 10. Versions: constant-time lines in CUDA 12.6 show that
# no factor is safe; 3 covers all but those.
STATED_FACTOR: Mapping[str, float] = {
    "gpu_name": 3.0,
    "topology": 3.0,
    "is_profiled": 10.0,
    "cuda_version": 3.0,
    "driver_version": 3.0,
}
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
        pooled: For groups that are thin or were never seen.
        groups: Values of the columns of one of GROUP_LEVELS -> its own scale.
        unseen_log_width: Key column -> what a value never seen adds to the half width in log.
        unseen_evidence: Key column -> `measured` (left out of training) or `stated`.
    """

    coverage_ratio: float
    pooled: NoiseScale
    groups: Mapping[GroupKey, NoiseScale]
    unseen_log_width: Mapping[str, float]
    unseen_evidence: Mapping[str, str]

    def half_width(self, predicted_us: FloatArray, groups: pl.DataFrame) -> FloatArray:
        """Half width in log of rows like those of training, one a row.

        Args:
            predicted_us: Positive, one a row.
            groups: GROUP_COLUMNS of the rows.
        """
        width = self.pooled.half_width(predicted_us)
        for level in reversed(GROUP_LEVELS):
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
        evidence = take(document, "unseen_evidence", dict)
        return cls(
            float(take(document, "coverage_ratio", (int, float))),
            _scale_from(take(document, "pooled", dict)),
            {
                tuple(take(entry, "key", list)): _scale_from(take(entry, "scale", dict))
                for entry in take(document, "groups", list)
            },
            {name: float(take(widths, name, (int, float))) for name in widths},
            {name: take(evidence, name, str) for name in evidence},
        )


def fit_intervals(
    residual_log: FloatArray,
    predicted_us: FloatArray,
    groups: pl.DataFrame,
    coverage_ratio: float,
    left_out_log_error: Mapping[str, Sequence[float]] | None = None,
) -> Intervals:
    """Calibrate on rows that the predicting models had not seen.

    Args:
        residual_log: log(actual / predicted), finite, one a row.
        predicted_us: Positive, one a row.
        groups: GROUP_COLUMNS of the rows.
        coverage_ratio: Wanted share inside the interval, above 0 and below 1.
        left_out_log_error: Key column -> for each of its values the log error that `coverage_ratio` of its
            rows did not exceed when that value was left out of training; None or absent where that was not
            possible.

    Raises:
        TrainingError: If there is no row.
    """
    if not len(residual_log):
        raise TrainingError("no held-out row to calibrate an interval on; more graphs are needed")
    scales = {}
    for level in GROUP_LEVELS:
        for key, rows in group_rows(groups.select(level)).items():
            if len(rows) >= GROUP_ROWS:
                scales[key] = _fit_scale(residual_log[rows], predicted_us[rows], coverage_ratio)
    widths, evidence = {}, {}
    for column, factor in STATED_FACTOR.items():
        measured = (left_out_log_error or {}).get(column, ())
        # The worst of the values left out: with two or three of them no higher quantile exists.
        widths[column] = max(measured) if measured else math.log(factor)
        evidence[column] = "measured" if measured else "stated"
    pooled = _fit_scale(residual_log, predicted_us, coverage_ratio)
    return Intervals(coverage_ratio, pooled, scales, widths, evidence)


def conformal_quantile(scores: FloatArray, coverage_ratio: float) -> float:
    """The score that a new row exceeds with a chance of at most 1 - coverage.

    With n scores it is the ceil((n + 1) x coverage)-th smallest; too few scores give the largest.

    >>> conformal_quantile(np.arange(1.0, 100.0), 0.9)
    90.0
    """
    place = min(math.ceil((len(scores) + 1) * coverage_ratio), len(scores))
    return float(np.sort(scores)[place - 1])


def _fit_scale(residual_log: FloatArray, predicted_us: FloatArray, coverage_ratio: float) -> NoiseScale:
    size = np.log(predicted_us)
    error = np.abs(residual_log)
    count = int(np.clip(len(error) // ROWS_A_BIN, 1, LARGEST_BIN_COUNT))
    places: list[float] = []
    scales: list[float] = []
    for rows in np.array_split(np.argsort(size, kind="stable"), count):
        place = float(np.median(size[rows]))
        if places and place <= places[-1]:
            continue
        places.append(place)
        # The wanted quantile itself, not a mean: the tails differ from size to size.
        scales.append(max(float(np.quantile(error[rows], coverage_ratio)), LEAST_SCALE))
    scale = np.interp(size, places, scales)
    quantile = max(conformal_quantile(error / scale, coverage_ratio), 1e-3)
    return NoiseScale(tuple(places), tuple(scales), quantile, len(error))


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
        float(take(document, "quantile", (int, float))),
        take(document, "row_count", int),
    )
    if (
        not scale.scale
        or len(scale.scale) != len(scale.log_latency)
        or min(scale.scale) <= 0
        or scale.quantile <= 0
        or np.any(np.diff(scale.log_latency) <= 0)
    ):
        raise ModelFileError("an interval scale of the model is not positive and rising; train a new version")
    return scale
