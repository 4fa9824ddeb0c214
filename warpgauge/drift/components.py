"""Did the documents change: variance along fixed axes, a shift of the mean, another distribution.

The axes are fitted once, on the embeddings a model was trained on, and travel with the model. Fitted again on
each window they would follow the drift and hide it ("axis 3" becomes another direction as soon as one grows
past it), and their signs differ from solver to solver; nothing here depends on a sign.

Limits are calibrated by splitting the reference at random: axes from one half, windows from the other. Axes
tested on the rows they were fitted to would call every new window a change. Scores farther from their median than
six robust standard deviations of the reference count as that far: without it the variance of heavy-tailed data is
whatever its largest rows are, and no limit from one reference holds for the windows of another.

A text that occurs several times (the same entry in three versions of a header) counts once, in the reference
and in a window: copies would make both look more certain than they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from warpgauge.drift.kernel_shift import KernelReference, fit_kernel_reference
from warpgauge.drift.measurement import Measurement
from warpgauge.drift.reference_files import checked_files, reference_files
from warpgauge.errors import ModelFileError, WindowError
from warpgauge.registry.names import DOC_QUALITY

VARIANCE_SIGNAL = "embedding_variance"
MEAN_SIGNAL = "embedding_mean"
SHIFT_SIGNAL = "embedding_shift"
SIGNALS = (VARIANCE_SIGNAL, MEAN_SIGNAL, SHIFT_SIGNAL)
# Fewer than this and the halves that calibrate the limits hold too few rows to estimate a variance.
MINIMUM_REFERENCE_ROWS = 40
MINIMUM_WINDOW_ROWS = 20
# Random halvings, and windows drawn from each half, behind every limit: 4,800 windows settle mean and variance
# of a statistic to a few percent.
SPLITS = 24
WINDOWS_PER_HALF = 100
FOLDS = 10
WINDOW_SIZES = (20, 50, 100, 200, 500, 1000, 2000)
# Rows that take part in the calibration; more change the limits by less than their own noise.
CALIBRATION_ROWS = 4000
# Scores beyond so many robust standard deviations count as that far; of a normal distribution 2 in a billion are.
CAP_DEVIATIONS = 6.0
# A reference that is unlucky is so for all its windows. On re-drawn references of real texts and of heavy tails the
# gamma distribution's own quantile at 1 in 1,000 was exceeded by 2 to 3 in 1,000; at an eighth by fewer than stated.
MEAN_SAFETY = 8.0
INTERVAL_RATIO = 0.95
TENSORS_FILE = "embedding_reference.safetensors"
FACTS_FILE = "embedding_reference.json"
FORMAT = "warpgauge.embedding_reference.2"
ARRAY_SHAPES = {
    "mean": ("dimension",),
    "axes": ("axis", "dimension"),
    "variances": ("axis",),
    "capped_variances": ("axis",),
    "held_out_variances": ("axis",),
    "centre": ("axis",),
    "caps": ("axis",),
    "kurtosis": ("axis",),
    "window_sizes": ("size",),
    "t2_mean": ("size",),
    "t2_variance": ("size",),
    "log_variance_scale": ("size", "axis"),
}

KERNEL_ROWS = "kernel_rows"
KERNEL_FACTS = ("squared_width", "within", "null_variance", "null_third_cumulant")
RULE_AXIS = 3

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Reference:
    """Axes and limits fitted once on the training embeddings, to be stored with the model.

    Attributes:
        encoder_id: Which encoder, precision and token limit made the embeddings.
        mean: Mean of the reference, shape (dimensions,).
        axes: Orthonormal rows, largest variance first, shape (axes, dimensions).
        variances: Variance of the reference along each axis (ddof 1), shape (axes,).
        capped_variances: The same of the capped scores: what the tests compare with.
        centre: Mean of the capped scores, near 0, shape (axes,).
        caps: Distance from the median beyond which a score counts as that far, shape (axes,).
        kurtosis: Of the capped scores along each axis, 3 for a normal distribution, shape (axes,).
        kernel: What the two-sample test keeps.
        held_out_variances: The same on rows that did not choose the axes: what unchanged new rows show. On 700
            texts of 384 dimensions it is 5 to 20 % less, and a test that ignored it would be off by as much.
        row_count: Different embeddings it was fitted on.
        false_alarm_ratio: Chance that one unchanged window trips each of the tests.
        seed: Of the random halvings.
        window_sizes: Sizes the statistics below were calibrated for, ascending.
        t2_mean, t2_variance: Of T2 on unchanged windows of each size.
        log_variance_scale: Standard deviation, over sqrt(1/n + 1/rows), of the log variance ratio on unchanged
            windows, shape (sizes, axes).
        versions: Solver and library versions.
    """

    encoder_id: str
    mean: Floats
    axes: Floats
    variances: Floats
    capped_variances: Floats
    held_out_variances: Floats
    centre: Floats
    caps: Floats
    kurtosis: Floats
    kernel: KernelReference
    row_count: int
    false_alarm_ratio: float
    seed: int
    window_sizes: Floats
    t2_mean: Floats
    t2_variance: Floats
    log_variance_scale: Floats
    versions: Mapping[str, str]

    @property
    def axis_count(self) -> int:
        """Number of axes kept."""
        return int(self.axes.shape[0])

    @property
    def dimension_count(self) -> int:
        """Length of one embedding."""
        return int(self.axes.shape[1])

    def mean_limit(self, window_rows: int, false_alarm_ratio: float | None = None) -> float:
        """T2 that an unchanged window of that size exceeds with at most the stated chance.

        Under no change the statistic is close to a weighted sum of squares, so a gamma distribution with the
        calibrated mean and variance gives quantiles rarer than the number of calibration draws could.
        """
        ratio = self.false_alarm_ratio if false_alarm_ratio is None else false_alarm_ratio
        mean = _at_size(self.window_sizes, self.t2_mean, window_rows)
        variance = _at_size(self.window_sizes, self.t2_variance, window_rows)
        return _gamma_quantile(1 - ratio / MEAN_SAFETY, mean, variance)

    def variance_change_limit(
        self, window_rows: int, axis: int, false_alarm_ratio: float | None = None
    ) -> float:
        """Relative growth along one axis (from 1) that an unchanged window exceeds with the stated chance.

        New rows vary a little less along an axis than the rows that chose it, so a limit about "no change at
        all" errs towards fewer false alarms.
        """
        ratio = self.false_alarm_ratio if false_alarm_ratio is None else false_alarm_ratio
        # The heavier the tails, the less one reference tells of the variance of another sample: on Student t of 4
        # degrees (kurtosis 6 to 7) a limit at the ratio itself fired 69 times in 20,000.
        safety = max(1.0, float(self.kurtosis[axis - 1]) - 2)
        return math.expm1(
            NormalDist().inv_cdf(1 - ratio / safety) * self.log_change_spread(window_rows, axis)
        )

    def log_change_spread(self, window_rows: int, axis: int) -> float:
        """Standard deviation of the log variance ratio of an unchanged window along one axis (from 1)."""
        scale = _at_size(self.window_sizes, self.log_variance_scale[:, axis - 1], window_rows)
        return scale * math.sqrt(1 / window_rows)

    def to_files(self) -> dict[str, bytes]:
        """File name -> content: safetensors for the arrays, JSON for the rest with the arrays' SHA-256."""
        from safetensors.numpy import save

        arrays = {name: np.ascontiguousarray(getattr(self, name)) for name in ARRAY_SHAPES}
        tensors = save(arrays | {KERNEL_ROWS: np.ascontiguousarray(self.kernel.rows)})
        facts = {
            "format": FORMAT,
            "encoder_id": self.encoder_id,
            "row_count": self.row_count,
            "axis_count": self.axis_count,
            "dimension_count": self.dimension_count,
            "false_alarm_ratio": self.false_alarm_ratio,
            "seed": self.seed,
            "versions": dict(self.versions),
            "kernel": {name: getattr(self.kernel, name) for name in KERNEL_FACTS},
        }
        return reference_files(TENSORS_FILE, tensors, FACTS_FILE, facts)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> Reference:
        """The reference that `to_files` wrote, checked first.

        Raises:
            ModelFileError: If a file is missing, truncated, altered or of another format.
        """
        tensors, facts = checked_files(files, TENSORS_FILE, FACTS_FILE, FORMAT)
        _check_facts(facts)
        arrays, kernel_rows = _read_arrays(tensors, facts)
        return cls(
            encoder_id=facts["encoder_id"],
            row_count=facts["row_count"],
            false_alarm_ratio=facts["false_alarm_ratio"],
            seed=facts["seed"],
            versions=facts["versions"],
            kernel=KernelReference(
                kernel_rows, **{name: float(facts["kernel"][name]) for name in KERNEL_FACTS}
            ),
            **arrays,
        )


def fit_reference(
    embeddings: npt.ArrayLike,
    *,
    encoder_id: str,
    axes: int = 20,
    seed: int = 0,
    false_alarm_ratio: float = 0.001,
) -> Reference:
    """Principal axes of the training embeddings, and the limits of both tests.

    Args:
        embeddings: Shape (documents, dimensions), finite.
        encoder_id: Identity of what made them; windows of another encoder are not compared.
        axes: Most axes to keep; fewer where the data have fewer directions or a quarter as many rows.
        seed: Same seed, same limits.
        false_alarm_ratio: Chance that one unchanged window trips each of the tests (0.001: one in 1,000 windows).

    Raises:
        WindowError: If there are too few different rows, or numbers that are not finite, or no variance.
    """
    if not encoder_id:
        raise WindowError(
            "the reference needs an encoder_id, or windows of another encoder could pass for drift"
        )
    if not 0 < false_alarm_ratio < 1:
        raise WindowError(f"false_alarm_ratio is {false_alarm_ratio}; it lies between 0 and 1")
    if axes < 1:
        raise WindowError(f"axes is {axes}; at least 1 is needed")
    rows = _distinct(_matrix(embeddings, "reference"))
    if len(rows) < MINIMUM_REFERENCE_ROWS:
        raise WindowError(
            f"the reference has {len(rows)} different embeddings, {MINIMUM_REFERENCE_ROWS} are needed; "
            "train on more documents"
        )
    mean, directions, variances = _principal_axes(rows, min(axes, len(rows) // 4))
    count = len(directions)
    scores = _scores(mean, directions, rows)
    caps = _caps(scores)
    capped = _capped(scores, caps)
    capped_variances = capped.var(axis=0, ddof=1)
    sizes, t2_mean, t2_variance, scale = _calibrate(rows, count, seed)
    # Halvings see half of the rows and their own luck; the kurtosis of all of them gives the same number for large
    # windows (the variance of a log variance is (kurtosis - 1) / n). The mean of both is steadier than either.
    moments = [((capped - capped.mean(axis=0)) ** power).mean(axis=0) for power in (2, 4)]
    kurtosis = moments[1] / moments[0] ** 2
    scale = (scale + np.sqrt(np.maximum(kurtosis - 1, 0.0))) / 2
    return Reference(
        encoder_id=encoder_id,
        mean=mean,
        axes=directions,
        variances=variances,
        capped_variances=capped_variances,
        held_out_variances=capped_variances * _held_out_ratios(rows, count, seed),
        centre=capped.mean(axis=0),
        caps=caps,
        kurtosis=kurtosis,
        kernel=fit_kernel_reference(rows, seed),
        row_count=len(rows),
        false_alarm_ratio=float(false_alarm_ratio),
        seed=int(seed),
        window_sizes=sizes,
        t2_mean=t2_mean,
        t2_variance=t2_variance,
        log_variance_scale=scale,
        versions={"solver": "numpy.linalg.eigh of the covariance in float64", "numpy": np.__version__},
    )


def component_variance_change(reference: npt.ArrayLike, current: npt.ArrayLike, component: int) -> float:
    """Relative change of the variance along one principal axis of the reference.

    The axes are fitted on the reference only: axes fitted again on each window
    would follow the drift and hide it.

    Args:
        reference: Embeddings the model was trained on, shape (documents, dimensions).
        current: Embeddings of the window under test, same dimensions.
        component: Which axis, counted from 1; axis 1 has the largest variance.

    Returns:
        0.0 for no change, 0.4 for 40 % more variance, -0.4 for 40 % less.

    Raises:
        WindowError: If the windows cannot be compared.
    """
    rows = _distinct(_matrix(reference, "reference"))
    mean, axes, variances = _principal_axes(rows, max(component, 1))
    _refuse_axis(component, len(axes))
    window = _comparable(current, axes.shape[1])
    return float(
        _scores(mean, axes, window).var(axis=0, ddof=1)[component - 1] / variances[component - 1] - 1
    )


def variance_changes(reference: Reference, window: npt.ArrayLike) -> Floats:
    """Relative change of variance along each fixed axis, about the window's own mean; shape (axes,).

    Raises:
        WindowError: If the window cannot be compared: other dimensions, not finite, under two different rows.
    """
    scores = _scores(reference.mean, reference.axes, _comparable(window, reference.dimension_count))
    return np.asarray(scores.var(axis=0, ddof=1) / reference.variances - 1)


def mean_shifts(reference: Reference, window: npt.ArrayLike) -> Floats:
    """How far the window's mean lies from the reference's along each axis, in units of the embedding.

    The sign is the axis's own and means nothing by itself; shape (axes,).

    Raises:
        WindowError: As `variance_changes`.
    """
    scores = _scores(reference.mean, reference.axes, _comparable(window, reference.dimension_count))
    return np.asarray(_capped(scores, reference.caps).mean(axis=0) - reference.centre)


def mean_statistic(reference: Reference, window: npt.ArrayLike) -> float:
    """Hotelling's T2 of the window's mean on the fixed axes: about the number of axes where nothing changed.

    Raises:
        WindowError: As `variance_changes`.
    """
    rows = _comparable(window, reference.dimension_count)
    return _t2(mean_shifts(reference, rows), reference.held_out_variances, len(rows), reference.row_count)


def distances(reference: Reference, window: npt.ArrayLike) -> Floats:
    """How far each row lies from the reference's mean, in standard deviations over all axes.

    Args:
        reference: Of the champion.
        window: Embeddings, shape (documents, dimensions).

    Returns:
        Shape (documents,), 0 at the mean; a row of the reference is about sqrt(axes) away.

    Raises:
        WindowError: If the dimensions differ or a number is not finite.
    """
    rows = _fitting(window, reference.dimension_count)
    scores = _scores(reference.mean, reference.axes, rows)
    return np.asarray(np.sqrt((scores**2 / reference.held_out_variances).sum(axis=1)), dtype=np.float64)


def document_changes(reference: Reference, window: npt.ArrayLike, signals: Sequence[str]) -> Floats:
    """How much each document of a window has to do with what tripped, from 0 to 1, shape (documents,).

    For the variance it is the distance along axis 3, for the mean the distance along the shift, for the distribution
    the witness of the test; each as the share of the window's documents that are behind, the largest of them counts.

    Args:
        reference: Of the champion.
        window: Embeddings, shape (documents, dimensions).
        signals: Those that tripped, of `SIGNALS`.

    Raises:
        WindowError: If the dimensions differ or a number is not finite.
    """
    rows = _fitting(window, reference.dimension_count)
    scores = _scores(reference.mean, reference.axes, rows)
    white = (scores - reference.centre) / np.sqrt(reference.held_out_variances)
    changes = np.zeros(len(rows))
    for signal in signals:
        if signal == VARIANCE_SIGNAL and reference.axis_count >= RULE_AXIS:
            along = scores[:, RULE_AXIS - 1]
            measure = np.abs(along - np.median(along))
        elif signal == MEAN_SIGNAL:
            measure = white @ white.mean(axis=0)
        else:
            measure = reference.kernel.witness(rows)
        behind = np.argsort(np.argsort(measure, kind="stable"), kind="stable")
        changes = np.maximum(changes, (behind + 1) / len(rows))
    return changes


def measure_embeddings(
    reference: Reference | None,
    window: npt.ArrayLike,
    encoder_id: str,
    *,
    variance_limit: float = 0.40,
    minimum: int = 50,
    subject: str = DOC_QUALITY,
    false_alarm_ratio: float | None = None,
) -> list[Measurement]:
    """All three signals of one window: variance along axis 3, mean, distribution.

    Args:
        reference: Of the champion, None where there is no champion.
        window: Embeddings under test, shape (documents, dimensions); may have no row.
        encoder_id: What made them.
        variance_limit: Growth of variance that the rule allows, 0.40 for 40 %.
        minimum: Fewest different documents.
        subject: What the measurements are of.
        false_alarm_ratio: Chance that one unchanged window trips one of the signals; the reference's own by default.

    Raises:
        WindowError: If a limit makes no sense.
    """
    shared: dict[str, Any] = {"minimum": minimum, "subject": subject, "false_alarm_ratio": false_alarm_ratio}
    if reference is not None and np.ndim(window) == 2 and np.isfinite(window).all():
        # Found once for all three.
        shared["distinct"] = _distinct(np.asarray(window, dtype=np.float64))
    return [
        measure_variance(reference, window, encoder_id, limit=variance_limit, **shared),
        measure_mean(reference, window, encoder_id, **shared),
        measure_shift(reference, window, encoder_id, **shared),
    ]


def measure_variance(
    reference: Reference | None,
    window: npt.ArrayLike,
    encoder_id: str,
    *,
    axis: int | None = None,
    limit: float = 0.40,
    minimum: int = 50,
    subject: str = DOC_QUALITY,
    false_alarm_ratio: float | None = None,
    distinct: Floats | None = None,
) -> Measurement:
    """Growth of variance along one axis of the reference, axis 3 unless another is named.

    Tripped where the growth is above both the rule's limit and what an unchanged window of that size exceeds with
    a chance of `false_alarm_ratio`; the measurement's limit is the larger of the two, details name both and the
    change along every axis. On small windows the founding document's 40 % alone trip by chance: 17 % of unchanged
    windows at 10 documents, 2.3 % at 50.

    Raises:
        WindowError: If the named axis does not exist or the limits make no sense.
    """
    if not (math.isfinite(limit) and limit > 0):
        raise WindowError(f"limit is {limit}; it is a positive ratio")
    checked = _window_or_reason(
        VARIANCE_SIGNAL, subject, reference, window, encoder_id, minimum, false_alarm_ratio, distinct
    )
    if isinstance(checked, Measurement):
        return checked
    reference, rows, ratio, details = checked
    if axis is None:
        axis = RULE_AXIS
        if reference.axis_count < axis:
            return Measurement.cannot_say(
                VARIANCE_SIGNAL,
                subject,
                "degenerate",
                f"the reference varies along {reference.axis_count} axes only; axis {axis} does not exist",
                sample_count=len(rows),
                details=details,
            )
    _refuse_axis(axis, reference.axis_count)
    scores = _scores(reference.mean, reference.axes, rows)
    changes = scores.var(axis=0, ddof=1) / reference.variances - 1
    capped = _capped(scores, reference.caps).var(axis=0, ddof=1)
    change = float(capped[axis - 1] / reference.capped_variances[axis - 1] - 1)
    calibrated = reference.variance_change_limit(len(rows), axis, ratio)
    half_width = NormalDist().inv_cdf((1 + INTERVAL_RATIO) / 2) * reference.log_change_spread(len(rows), axis)
    return Measurement.measured(
        VARIANCE_SIGNAL,
        subject,
        change,
        lower=(1 + change) * math.exp(-half_width) - 1,
        upper=(1 + change) * math.exp(half_width) - 1,
        limit=max(limit, calibrated),
        sample_count=len(rows),
        reason=f"variance along axis {axis} changed by {change:+.1%} on {len(rows)} different documents; "
        f"the rule allows {limit:+.0%}, one unchanged window in {1 / ratio:,.0f} exceeds {calibrated:+.1%}",
        details={
            **details,
            "axis": axis,
            "rule_limit_ratio": limit,
            "calibrated_limit_ratio": calibrated,
            "variance_changes": [round(float(value), 6) for value in changes],
        },
    )


def measure_mean(
    reference: Reference | None,
    window: npt.ArrayLike,
    encoder_id: str,
    *,
    minimum: int = 50,
    subject: str = DOC_QUALITY,
    false_alarm_ratio: float | None = None,
    distinct: Floats | None = None,
) -> Measurement:
    """Hotelling's T2 of the window's mean on the fixed axes: the cheap form of a shift test.

    Raises:
        WindowError: If false_alarm_ratio is not between 0 and 1.
    """
    checked = _window_or_reason(
        MEAN_SIGNAL, subject, reference, window, encoder_id, minimum, false_alarm_ratio, distinct
    )
    if isinstance(checked, Measurement):
        return checked
    reference, rows, ratio, details = checked
    capped = _capped(_scores(reference.mean, reference.axes, rows), reference.caps)
    shifts = capped.mean(axis=0) - reference.centre
    value = _t2(shifts, reference.held_out_variances, len(rows), reference.row_count)
    limit = reference.mean_limit(len(rows), ratio)
    # A sum of squares of p shifted normals with sum `value` has variance 2 (p + 2 x excess).
    excess = max(0.0, value - reference.axis_count)
    half_width = NormalDist().inv_cdf((1 + INTERVAL_RATIO) / 2) * math.sqrt(
        2 * (reference.axis_count + 2 * excess)
    )
    return Measurement.measured(
        MEAN_SIGNAL,
        subject,
        value,
        lower=max(0.0, value - half_width),
        upper=value + half_width,
        limit=limit,
        sample_count=len(rows),
        reason=f"T2 {value:.1f} on {reference.axis_count} axes and {len(rows)} different documents; "
        f"one unchanged window in {1 / ratio:,.0f} exceeds {limit:.1f}",
        details={
            **details,
            "axis_count": reference.axis_count,
            "mean_shifts": [round(float(shift), 6) for shift in shifts],
            "mean_shifts_in_deviations": [
                round(float(shift), 6) for shift in np.abs(shifts) / np.sqrt(reference.variances)
            ],
        },
    )


def measure_shift(
    reference: Reference | None,
    window: npt.ArrayLike,
    encoder_id: str,
    *,
    minimum: int = 50,
    subject: str = DOC_QUALITY,
    false_alarm_ratio: float | None = None,
    distinct: Floats | None = None,
) -> Measurement:
    """Squared maximum mean discrepancy of the window and the reference's rows, against its calibrated limit.

    Raises:
        WindowError: If false_alarm_ratio is not between 0 and 1.
    """
    checked = _window_or_reason(
        SHIFT_SIGNAL, subject, reference, window, encoder_id, minimum, false_alarm_ratio, distinct
    )
    if isinstance(checked, Measurement):
        return checked
    reference, rows, ratio, details = checked
    kernel = reference.kernel
    value, error = kernel.discrepancy(rows)
    limit = kernel.limit(len(rows), ratio)
    half_width = NormalDist().inv_cdf((1 + INTERVAL_RATIO) / 2) * error
    return Measurement.measured(
        SHIFT_SIGNAL,
        subject,
        value,
        lower=value - half_width,
        upper=value + half_width,
        limit=limit,
        sample_count=len(rows),
        reason=f"squared MMD {value:.5f} on {len(rows)} different documents; "
        f"one unchanged window in {1 / ratio:,.0f} exceeds {limit:.5f}",
        details={**details, "kernel_row_count": len(kernel.rows), "value_over_limit": value / limit},
    )


def _window_or_reason(  # noqa: PLR0911 - one return for each named cause
    signal: str,
    subject: str,
    reference: Reference | None,
    window: npt.ArrayLike,
    encoder_id: str,
    minimum: int,
    false_alarm_ratio: float | None,
    distinct: Floats | None,
) -> tuple[Reference, Floats, float, dict[str, Any]] | Measurement:
    """Reference, the window's different rows, the false-alarm ratio and facts; or why nothing can be said."""
    if false_alarm_ratio is not None and not 0 < false_alarm_ratio < 1:
        raise WindowError(f"false_alarm_ratio is {false_alarm_ratio}; it lies between 0 and 1")
    if reference is None:
        return Measurement.cannot_say(
            signal,
            subject,
            "no champion",
            "no model version holds a reference to compare with; train one first",
        )
    if encoder_id != reference.encoder_id:
        return Measurement.cannot_say(
            signal,
            subject,
            "encoder changed",
            f"the window was embedded by {encoder_id!r}, the reference by {reference.encoder_id!r}; "
            "embed the window again or retrain",
        )
    rows = np.asarray(window, dtype=np.float64)
    if rows.size == 0:
        return Measurement.cannot_say(signal, subject, "no samples", "no document in the window")
    if rows.ndim != 2 or rows.shape[1] != reference.dimension_count:
        return Measurement.cannot_say(
            signal,
            subject,
            "encoder changed",
            f"the window has shape {rows.shape}, the reference {reference.dimension_count} dimensions; "
            f"the same encoder id {encoder_id!r} gave both, so a file was mixed up",
            sample_count=len(rows) if rows.ndim else 0,
        )
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        return Measurement.cannot_say(
            signal,
            subject,
            "degenerate",
            f"{bad.size} of {len(rows)} embeddings are not finite, the first at row {bad[0]}; "
            "embed these documents again",
            sample_count=len(rows),
        )
    distinct = _distinct(rows) if distinct is None else distinct
    needed = max(minimum, MINIMUM_WINDOW_ROWS)
    ratio = reference.false_alarm_ratio if false_alarm_ratio is None else false_alarm_ratio
    details: dict[str, Any] = {
        "false_alarm_ratio": ratio,
        "row_count": len(rows),
        "distinct_count": len(distinct),
        "reference_row_count": reference.row_count,
        "encoder_id": encoder_id,
    }
    if len(distinct) == 1 and len(rows) >= needed:
        return Measurement.cannot_say(
            signal,
            subject,
            "degenerate",
            f"all {len(rows)} embeddings are the same",
            sample_count=len(distinct),
            details=details,
        )
    if len(distinct) < needed:
        return Measurement.cannot_say(
            signal,
            subject,
            "too few",
            f"{len(distinct)} different embeddings among {len(rows)} documents, {needed} are needed; "
            "widen the window",
            sample_count=len(distinct),
            details=details,
        )
    return reference, distinct, ratio, details


def _matrix(values: npt.ArrayLike, name: str) -> Floats:
    rows = np.asarray(values, dtype=np.float64)
    if rows.ndim != 2 or rows.shape[1] == 0:
        raise WindowError(f"the {name} has shape {rows.shape}, needs (documents, dimensions)")
    bad = np.flatnonzero(~np.isfinite(rows).all(axis=1))
    if bad.size:
        raise WindowError(
            f"the {name}: {bad.size} of {len(rows)} embeddings are not finite, the first at row {bad[0]}"
        )
    return rows


def _fitting(window: npt.ArrayLike, dimension_count: int) -> Floats:
    """The window's rows, of as many dimensions as the reference's."""
    rows = _matrix(window, "window")
    if rows.shape[1] != dimension_count:
        raise WindowError(
            f"the window has {rows.shape[1]} dimensions, the reference {dimension_count}; use the same encoder"
        )
    return rows


def _comparable(window: npt.ArrayLike, dimension_count: int) -> Floats:
    rows = _distinct(_fitting(window, dimension_count))
    if len(rows) < 2:
        raise WindowError(f"the window has {len(rows)} different embeddings, a variance needs 2")
    return rows


def _distinct(rows: Floats) -> Floats:
    """Each different row once, in an order that does not depend on the order given."""
    rows = np.ascontiguousarray(rows + 0.0)  # + 0.0 makes -0.0 and 0.0 one
    different = {row.tobytes(): number for number, row in enumerate(rows)}
    return rows[[different[content] for content in sorted(different)]]


def _refuse_axis(axis: int, axis_count: int) -> None:
    if not 1 <= axis <= axis_count:
        raise WindowError(f"axis {axis} does not exist; the reference has axes 1 to {axis_count}")


def _principal_axes(rows: Floats, count: int) -> tuple[Floats, Floats, Floats]:
    """Mean, axes (rows, largest variance first) and variances; only directions that have a variance."""
    if len(rows) < 2:
        raise WindowError(f"the reference has {len(rows)} different embeddings, a variance needs 2")
    mean = rows.mean(axis=0)
    centred = rows - mean
    variances, vectors = np.linalg.eigh(centred.T @ centred / (len(rows) - 1))
    variances, axes = variances[::-1], vectors.T[::-1]
    total = float(variances.sum())
    kept = int(np.count_nonzero(variances > 1e-10 * total)) if total > 0 else 0
    if kept == 0:
        raise WindowError("the reference has no variance: all embeddings are alike; check the encoder")
    kept = min(kept, count)
    axes = axes[:kept]
    # Solvers differ in sign; a fixed one makes two fits of the same data equal to read. No verdict uses it.
    largest = np.abs(axes).argmax(axis=1)
    axes = axes * np.where(axes[np.arange(kept), largest] < 0, -1.0, 1.0)[:, None]
    return mean, np.ascontiguousarray(axes), np.ascontiguousarray(variances[:kept])


def _scores(mean: Floats, axes: Floats, rows: Floats) -> Floats:
    return np.asarray((rows - mean) @ axes.T)


def _caps(scores: Floats) -> Floats:
    """Six robust standard deviations of each column: half of what the middle 68 % span is one."""
    low, high = np.quantile(scores, (NormalDist().cdf(-1), NormalDist().cdf(1)), axis=0)
    caps = CAP_DEVIATIONS * (high - low) / 2
    # Where more than two thirds of the rows are alike along an axis, nothing is capped.
    return np.where(caps > 0, caps, np.abs(scores - np.median(scores, axis=0)).max(axis=0))


def _capped(scores: Floats, caps: Floats) -> Floats:
    """Scores with those far from the window's own median drawn in; a shift of all of them stays whole."""
    median = np.median(scores, axis=-2, keepdims=True)
    return np.asarray(median + np.clip(scores - median, -caps, caps))


def _t2(shifts: Floats, variances: Floats, window_rows: int, reference_rows: int) -> float:
    return float(np.sum(shifts**2 / variances) / (1 / window_rows + 1 / reference_rows))


def _held_out_ratios(rows: Floats, axis_count: int, seed: int) -> Floats:
    """Variance of held-out rows over that of the fitted ones along each axis, at most 1; ten folds."""
    random = np.random.default_rng(seed)
    if len(rows) > CALIBRATION_ROWS:
        # Fewer rows would choose their axes worse than all of them did; the effect is small from here on.
        rows = rows[random.choice(len(rows), CALIBRATION_ROWS, replace=False)]
    fold = random.permutation(len(rows)) % FOLDS
    held, fitted = np.zeros(axis_count), np.zeros(axis_count)
    for number in range(FOLDS):
        mean, axes, _ = _principal_axes(rows[fold != number], axis_count)
        if len(axes) < axis_count:
            raise WindowError(
                f"nine tenths of the reference have {len(axes)} directions with variance, {axis_count} were asked; "
                "ask fewer axes or train on more documents"
            )
        inside = fold == number
        scores = _scores(mean, axes, rows[~inside])
        caps = _caps(scores)
        held += (_capped(_scores(mean, axes, rows[inside]), caps) ** 2).sum(axis=0)
        fitted += _capped(scores, caps).var(axis=0, ddof=1) * inside.sum()
    return np.clip(held / fitted, 0.05, 1.0)


def _calibrate(rows: Floats, axis_count: int, seed: int) -> tuple[Floats, Floats, Floats, Floats]:
    """Both statistics on unchanged windows of several sizes: axes from one random half, windows from the other.

    Both are scaled by the sizes of the half and of the window, so that they hold for the whole reference.
    """
    random = np.random.default_rng(seed)
    if len(rows) > CALIBRATION_ROWS:
        rows = rows[random.choice(len(rows), CALIBRATION_ROWS, replace=False)]
    half = len(rows) // 2
    # A window of the whole other half would be the same one each time.
    sizes = [size for size in WINDOW_SIZES if size <= max(half // 2, WINDOW_SIZES[0])]
    squares: dict[int, list[Floats]] = {size: [] for size in sizes}
    log_ratios: dict[int, list[Floats]] = {size: [] for size in sizes}
    held_out: list[Floats] = []
    for _ in range(SPLITS):
        order = random.permutation(len(rows))
        # Both ways round: what one half has too little of, the other has too much of.
        for fitted, tested in ((order[:half], order[half:]), (order[half:], order[:half])):
            mean, axes, _ = _principal_axes(rows[fitted], axis_count)
            if len(axes) < axis_count:
                raise WindowError(
                    f"half of the reference has {len(axes)} directions with variance, {axis_count} were asked; "
                    "ask fewer axes or train on more documents"
                )
            own = _scores(mean, axes, rows[fitted])
            caps = _caps(own)
            own = _capped(own, caps)
            variances, centre = own.var(axis=0, ddof=1), own.mean(axis=0)
            scores = _scores(mean, axes, rows[tested])
            held_out.append(_capped(scores, caps).var(axis=0, ddof=1) / variances)
            for size in sizes:
                drawn = min(size, len(scores))
                picks = np.argpartition(random.random((WINDOWS_PER_HALF, len(scores))), drawn - 1, axis=1)
                windows = _capped(scores[picks[:, :drawn]], caps)
                scale = 1 / drawn + 1 / len(fitted)
                squares[size].append((windows.mean(axis=1) - centre) ** 2 / variances / scale)
                # A window without variance along an axis has no log; the floor keeps it as "far less".
                ratios = np.maximum(windows.var(axis=1, ddof=1) / variances, 1e-12)
                log_ratios[size].append(np.log(ratios) / math.sqrt(scale))
    # One correction for all halvings: with each half's own one, the noise of the variances would be missing.
    correction = np.clip(np.mean(held_out, axis=0), 0.05, 1.0)
    t2 = [(np.concatenate(squares[size]) / correction).sum(axis=1) for size in sizes]
    return (
        np.asarray(sizes, dtype=np.float64),
        # Never below the chi-square of as many axes: halvings of one reference share its luck.
        np.asarray([max(float(values.mean()), float(axis_count)) for values in t2]),
        np.asarray([max(float(values.var()), 2.0 * axis_count) for values in t2]),
        np.asarray([np.concatenate(log_ratios[size]).std(axis=0) for size in sizes]),
    )


def _at_size(sizes: Floats, values: Floats, window_rows: int) -> float:
    """The calibrated value for a window size, linear in the logarithm of the size, flat beyond the ends."""
    return float(np.interp(math.log(window_rows), np.log(sizes), values))


def _gamma_quantile(probability: float, mean: float, variance: float) -> float:
    """Quantile of the gamma distribution of that mean and variance, by Wilson and Hilferty (1931)."""
    shape = mean**2 / variance
    z = NormalDist().inv_cdf(probability)
    return mean * max(0.0, 1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))) ** 3


def _check_facts(facts: Mapping[str, Any]) -> None:
    types: dict[str, tuple[type, ...]] = {
        "encoder_id": (str,),
        "row_count": (int,),
        "axis_count": (int,),
        "dimension_count": (int,),
        "false_alarm_ratio": (float, int),
        "seed": (int,),
        "versions": (dict,),
    }
    for name, kinds in types.items():
        if not isinstance(facts.get(name), kinds) or isinstance(facts.get(name), bool):
            raise ModelFileError(f"{FACTS_FILE}: {name} is {facts.get(name)!r}, needs {kinds[0].__name__}")
    if not 0 < facts["false_alarm_ratio"] < 1 or facts["row_count"] < 2:
        raise ModelFileError(
            f"{FACTS_FILE}: false_alarm_ratio {facts['false_alarm_ratio']} or row_count {facts['row_count']} "
            "is outside its range"
        )
    kernel = facts.get("kernel")
    numbers = [kernel.get(name) for name in KERNEL_FACTS] if isinstance(kernel, dict) else [None]
    if not all(isinstance(number, float) and math.isfinite(number) and number >= 0 for number in numbers):
        raise ModelFileError(
            f"{FACTS_FILE}: kernel is {kernel!r}, needs the numbers {', '.join(KERNEL_FACTS)}"
        )


def _read_arrays(
    content: bytes, facts: Mapping[str, Any]
) -> tuple[dict[str, Floats], npt.NDArray[np.float32]]:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelFileError(f"{TENSORS_FILE}: not readable as safetensors: {error}") from error
    missing = [name for name in (*ARRAY_SHAPES, KERNEL_ROWS) if name not in arrays]
    if missing:
        raise ModelFileError(f"{TENSORS_FILE}: array {', '.join(missing)} is missing")
    extents = {
        "axis": facts["axis_count"],
        "dimension": facts["dimension_count"],
        "size": arrays["window_sizes"].size,
    }
    for name, dimensions in ARRAY_SHAPES.items():
        array, wanted = arrays[name], tuple(extents[dimension] for dimension in dimensions)
        if array.dtype != np.float64 or array.shape != wanted or not np.isfinite(array).all():
            raise ModelFileError(
                f"{TENSORS_FILE}: {name} is {array.dtype} of shape {array.shape}, needs finite float64 of {wanted}"
            )
    for name in (
        "variances",
        "capped_variances",
        "held_out_variances",
        "caps",
        "window_sizes",
        "t2_mean",
        "t2_variance",
    ):
        if arrays[name].size == 0 or (arrays[name] <= 0).any():
            raise ModelFileError(f"{TENSORS_FILE}: {name} must be positive")
    kept = arrays[KERNEL_ROWS]
    if (
        kept.dtype != np.float32
        or kept.ndim != 2
        or len(kept) < 2
        or kept.shape[1] != facts["dimension_count"]
        or not np.isfinite(kept).all()
    ):
        raise ModelFileError(
            f"{TENSORS_FILE}: {KERNEL_ROWS} is {kept.dtype} of shape {kept.shape}, needs finite float32 of at least 2 "
            f"rows and {facts['dimension_count']} columns"
        )
    return {name: arrays[name] for name in ARRAY_SHAPES}, kept
