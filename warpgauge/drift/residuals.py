"""Does the champion still predict recent launches as well as it predicted its own held-out ones?

A residual is ln(measured latency) - ln(predicted latency). The statistic is their root mean square, each
residual capped at the 95th percentile of the champion's own held-out absolute residuals: stalled launches of
many milliseconds would otherwise decide alone, and a bootstrap cannot foresee a tail it has not seen. A model
that became wrong moves most residuals and trips all the sooner: on 10 graphs x 10 trials of a Tesla P100 a
slowdown of 5 % was found in 10 of 10 windows, and in none with the cap at 99.5 %.

Trials of one graph are alike. Where rows name their graph, whole graphs are drawn, in the window's own sizes:
500 trials of 5 graphs say about as much as 5 rows, not as 500.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpgauge.drift.measurement import Measurement
from warpgauge.drift.reference_files import checked_files, reference_files
from warpgauge.errors import ModelFileError, WindowError
from warpgauge.registry.names import LAUNCH_LATENCY

SIGNAL = "residuals"
CAP_PERCENTILE = 95.0
INTERVAL_RATIO = 0.95
MINIMUM_ROWS = 20
# Fewer different graphs than this and the window says how these few graphs went, not how the model does.
MINIMUM_GRAPHS = 5
# Held-out residuals kept with the model: 80 KB as float32.
MAXIMUM_REFERENCE_ROWS = 20_000
# Beyond this many rows a window's limit is that of this many: a little higher, so errs to fewer alarms.
MAXIMUM_DRAWN_ROWS = 2_000
DRAWS_PER_TAIL = 10  # draws expected above the limit
MAXIMUM_DRAWS = 20_000
CHUNK_NUMBERS = 4_000_000
TENSORS_FILE = "residual_reference.safetensors"
FACTS_FILE = "residual_reference.json"
FORMAT = "warpgauge.residual_reference.1"

Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True, eq=False)
class ResidualReference:
    """A champion's held-out log residuals.

    Attributes:
        residuals: ln(measured / predicted), finite, ordered by graph, shape (rows,).
        group_starts: First row of each graph, ascending from 0, shape (graphs,).
        cap: Larger absolute residuals count as this.
        total_row_count: Held-out rows of which these are a sample (of whole graphs).
    """

    residuals: npt.NDArray[np.float32]
    group_starts: Integers
    cap: float
    total_row_count: int

    @property
    def row_count(self) -> int:
        """Residuals kept."""
        return int(self.residuals.size)

    @property
    def group_count(self) -> int:
        """Graphs kept (rows, where no graph was named)."""
        return int(self.group_starts.size)

    @property
    def rmse(self) -> float:
        """Root mean square of the capped residuals: 0.05 is about 5 %."""
        return _rmse(self.capped)

    @property
    def capped(self) -> Floats:
        """The residuals, each at most the cap away from 0."""
        return np.clip(self.residuals.astype(np.float64), -self.cap, self.cap)

    def to_files(self) -> dict[str, bytes]:
        """File name -> content: safetensors for the arrays, JSON with their SHA-256."""
        from safetensors.numpy import save

        tensors = save({"residuals": self.residuals, "group_starts": self.group_starts})
        facts = {
            "format": FORMAT,
            "cap": self.cap,
            "total_row_count": self.total_row_count,
        }
        return reference_files(TENSORS_FILE, tensors, FACTS_FILE, facts)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> ResidualReference:
        """The reference that `to_files` wrote, checked first.

        Raises:
            ModelFileError: If a file is missing, truncated, altered or of another format.
        """
        tensors, facts = checked_files(files, TENSORS_FILE, FACTS_FILE, FORMAT)
        return _from_arrays(tensors, facts)


def fit_residual_reference(
    log_residuals: npt.ArrayLike, *, graph_ids: Sequence[str] | None = None, seed: int = 0
) -> ResidualReference:
    """The reference to store with a champion.

    Args:
        log_residuals: ln(measured / predicted) of its held-out rows, shape (rows,), finite.
        graph_ids: The graph of each row; None where each row is a graph of its own.
        seed: Which graphs are kept where there are more than 20,000 rows.

    Raises:
        WindowError: If there are fewer than 20 rows or 5 graphs, or a residual is not finite.
    """
    residuals = _vector(log_residuals)
    bad = np.flatnonzero(~np.isfinite(residuals))
    if bad.size:
        raise WindowError(
            f"{bad.size} of {residuals.size} held-out log residuals are not finite, the first at row {bad[0]}; "
            "a latency or a prediction there is null, 0 or negative"
        )
    groups = _group_numbers(graph_ids, residuals.size)
    group_count = int(groups.max()) + 1 if groups.size else 0
    if residuals.size < MINIMUM_ROWS or group_count < MINIMUM_GRAPHS:
        raise WindowError(
            f"{residuals.size} held-out residuals of {group_count} graphs; a reference needs {MINIMUM_ROWS} "
            f"of {MINIMUM_GRAPHS}; hold out more"
        )
    cap = float(np.percentile(np.abs(residuals), CAP_PERCENTILE))
    if cap == 0:
        raise WindowError(
            "nearly all held-out residuals are exactly 0, so the model saw its answers; check the split"
        )
    chosen = np.arange(residuals.size)
    if residuals.size > MAXIMUM_REFERENCE_ROWS:
        order = np.random.default_rng(seed).permutation(group_count)
        sizes = np.bincount(groups, minlength=group_count)[order]
        keep = order[np.cumsum(sizes) <= MAXIMUM_REFERENCE_ROWS]
        # One graph larger than all that may be kept leaves none: then rows are drawn, each on its own.
        if keep.size >= MINIMUM_GRAPHS:
            chosen = np.flatnonzero(np.isin(groups, keep))
        else:
            chosen = np.sort(
                np.random.default_rng(seed).choice(residuals.size, MAXIMUM_REFERENCE_ROWS, replace=False)
            )
    chosen = chosen[np.argsort(groups[chosen], kind="stable")]
    _, starts = np.unique(groups[chosen], return_index=True)
    return ResidualReference(
        residuals=residuals[chosen].astype(np.float32),
        group_starts=np.sort(starts).astype(np.int64),
        cap=cap,
        total_row_count=int(residuals.size),
    )


def measure_residuals(
    reference: ResidualReference | None,
    recent_log_residuals: npt.ArrayLike,
    *,
    graph_ids: Sequence[str] | None = None,
    minimum: int = 100,
    false_alarm_ratio: float = 0.001,
    seed: int = 0,
    subject: str = LAUNCH_LATENCY,
) -> Measurement:
    """Root mean square of recent log residuals, against what the champion's own held-out ones would show.

    The limit is the quantile of window RMSE over reference RMSE, both drawn from the reference (whole graphs,
    with replacement), times the reference's RMSE.

    Args:
        reference: Of the champion, None where there is no champion.
        recent_log_residuals: ln(measured / predicted) of recent launches, shape (rows,); may be empty.
        graph_ids: The graph of each row; None where each row is a graph of its own.
        minimum: Fewest rows.
        false_alarm_ratio: Chance that one unchanged window trips.
        seed: Same seed, same limit.
        subject: What the measurement is of.

    Raises:
        WindowError: If the ids and the rows differ in number or the ratio is not between 0 and 1.
    """
    if not 0 < false_alarm_ratio < 1:
        raise WindowError(f"false_alarm_ratio is {false_alarm_ratio}; it lies between 0 and 1")
    recent = _vector(recent_log_residuals)
    groups = _group_numbers(graph_ids, recent.size)
    if reference is None:
        return Measurement.cannot_say(
            SIGNAL,
            subject,
            "no champion",
            "no promoted model version to measure the residuals of; train and promote one first",
            sample_count=recent.size,
        )
    if not recent.size:
        return Measurement.cannot_say(SIGNAL, subject, "no samples", "no labelled launch in the window")
    bad = np.flatnonzero(~np.isfinite(recent))
    if bad.size:
        return Measurement.cannot_say(
            SIGNAL,
            subject,
            "degenerate",
            f"{bad.size} of {recent.size} log residuals are not finite, the first at row {bad[0]}; "
            "a latency or a prediction there is null, 0 or negative",
            sample_count=recent.size,
        )
    group_sizes = np.bincount(groups)
    needed = max(minimum, MINIMUM_ROWS)
    if recent.size < needed or group_sizes.size < MINIMUM_GRAPHS:
        return Measurement.cannot_say(
            SIGNAL,
            subject,
            "too few",
            f"{recent.size} launches of {group_sizes.size} graphs, {needed} of {MINIMUM_GRAPHS} are needed; "
            "widen the window",
            sample_count=recent.size,
            details={"graph_count": int(group_sizes.size)},
        )
    random = np.random.default_rng(seed)
    capped = np.clip(recent, -reference.cap, reference.cap)
    value = _rmse(capped)
    lower, upper = _interval(capped, groups, random)
    limit = reference.rmse * _unchanged_ratio(reference, group_sizes, false_alarm_ratio, random)
    beyond = float((np.abs(recent) > reference.cap).mean())
    return Measurement.measured(
        SIGNAL,
        subject,
        value,
        lower=min(lower, value),
        upper=max(upper, value),
        limit=limit,
        sample_count=recent.size,
        reason=f"log RMSE {value:.4f} on {recent.size} launches of {group_sizes.size} graphs, "
        f"{reference.rmse:.4f} when the model was trained; one unchanged window in "
        f"{1 / false_alarm_ratio:,.0f} exceeds {limit:.4f}",
        details={
            "graph_count": int(group_sizes.size),
            "reference_rmse": reference.rmse,
            "ratio_to_reference": value / reference.rmse,
            "raw_rmse": _rmse(recent),
            "mean_log_residual": float(recent.mean()),
            "share_beyond_cap_ratio": beyond,
            "cap": reference.cap,
            "reference_row_count": reference.row_count,
            "reference_graph_count": reference.group_count,
            "false_alarm_ratio": false_alarm_ratio,
        },
    )


def _unchanged_ratio(
    reference: ResidualReference, group_sizes: Integers, false_alarm_ratio: float, random: np.random.Generator
) -> float:
    """Quantile of RMSE(window) / RMSE(reference) where both are drawn from the reference's graphs."""
    draws = min(max(2_000, math.ceil(DRAWS_PER_TAIL / false_alarm_ratio)), MAXIMUM_DRAWS)
    if group_sizes.sum() > MAXIMUM_DRAWN_ROWS:
        order = random.permutation(group_sizes)
        kept = int(np.searchsorted(np.cumsum(order), MAXIMUM_DRAWN_ROWS)) + 1
        group_sizes = order[: max(kept, min(MINIMUM_GRAPHS, order.size))]
        # A graph of very many trials says no more than 100 of them do.
        group_sizes = np.minimum(group_sizes, max(100, MAXIMUM_DRAWN_ROWS // group_sizes.size))
    squares = reference.capped**2
    starts = reference.group_starts
    sizes = np.diff(np.append(starts, squares.size))
    sums = np.add.reduceat(squares, starts)
    drawn_rows = int(group_sizes.sum())
    offsets = np.append(0, np.cumsum(group_sizes)[:-1])
    window_ms = np.empty(draws)
    chunk = max(1, CHUNK_NUMBERS // drawn_rows)
    for first in range(0, draws, chunk):
        count = min(chunk, draws - first)
        picked = random.integers(starts.size, size=(count, group_sizes.size))
        rows = np.repeat(picked, group_sizes, axis=1)
        inside = (random.random((count, drawn_rows)) * sizes[rows]).astype(np.int64)
        window_ms[first : first + count] = (
            np.add.reduceat(squares[starts[rows] + inside], offsets, axis=1).sum(axis=1) / drawn_rows
        )
    reference_ms = np.empty(draws)
    chunk = max(1, CHUNK_NUMBERS // starts.size)
    for first in range(0, draws, chunk):
        count = min(chunk, draws - first)
        picked = random.integers(starts.size, size=(count, starts.size))
        reference_ms[first : first + count] = sums[picked].sum(axis=1) / sizes[picked].sum(axis=1)
    # A draw of graphs that the model hit exactly has no ratio; the smallest positive mean stands for it.
    reference_ms = np.maximum(reference_ms, np.min(reference_ms[reference_ms > 0], initial=np.inf))
    return float(np.sqrt(np.quantile(window_ms / reference_ms, 1 - false_alarm_ratio)))


def _interval(capped: Floats, groups: Integers, random: np.random.Generator) -> tuple[float, float]:
    """Bootstrap interval of the window's own RMSE over its graphs."""
    sums = np.bincount(groups, weights=capped**2)
    sizes = np.bincount(groups)
    draws = 1_000
    means = np.empty(draws)
    chunk = max(1, CHUNK_NUMBERS // sums.size)
    for first in range(0, draws, chunk):
        picked = random.integers(sums.size, size=(min(chunk, draws - first), sums.size))
        means[first : first + chunk] = sums[picked].sum(axis=1) / sizes[picked].sum(axis=1)
    tail = (1 - INTERVAL_RATIO) / 2
    lower, upper = np.sqrt(np.quantile(means, (tail, 1 - tail)))
    return float(lower), float(upper)


def _vector(values: npt.ArrayLike) -> Floats:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1:
        raise WindowError(f"log residuals have shape {vector.shape}, one number a launch is needed")
    return vector


def _group_numbers(graph_ids: Sequence[str] | None, row_count: int) -> Integers:
    if graph_ids is None:
        return np.arange(row_count, dtype=np.int64)
    if len(graph_ids) != row_count:
        raise WindowError(f"{len(graph_ids)} graph ids for {row_count} log residuals; one each is needed")
    return np.unique(np.asarray(graph_ids, dtype=str), return_inverse=True)[1].astype(np.int64)


def _rmse(values: npt.NDArray[Any]) -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64))))


def _from_arrays(content: bytes, facts: Mapping[str, Any]) -> ResidualReference:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(content)
        residuals, starts = arrays["residuals"], arrays["group_starts"]
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelFileError(
            f"{TENSORS_FILE}: not readable as residuals and group_starts: {error}"
        ) from error
    cap, total = facts.get("cap"), facts.get("total_row_count")
    if not (isinstance(cap, float) and math.isfinite(cap) and cap > 0 and isinstance(total, int)):
        raise ModelFileError(
            f"{FACTS_FILE}: cap is {cap!r}, total_row_count {total!r}; needs a positive number each"
        )
    if (
        residuals.dtype != np.float32
        or residuals.ndim != 1
        or residuals.size < MINIMUM_ROWS
        or not np.isfinite(residuals).all()
        or starts.dtype != np.int64
        or starts.ndim != 1
        or starts.size == 0
        or starts[0] != 0
        or (np.diff(starts) <= 0).any()
        or starts[-1] >= residuals.size
    ):
        raise ModelFileError(
            f"{TENSORS_FILE}: needs at least {MINIMUM_ROWS} finite float32 residuals and ascending int64 starts; "
            f"found {residuals.dtype} {residuals.shape} and {starts.dtype} {starts.shape}"
        )
    return ResidualReference(residuals, starts, cap, total)
