"""Does the champion still predict recent launches as well as it predicted its own held-out ones, everywhere?

A residual is ln(measured latency) - ln(predicted latency): in microseconds a few large graphs would decide. Each is
divided by the noise scale that the model's own interval uses at that row, so that noisy sizes do not drown quiet
ones, and scored by its rank among the champion's held-out errors of the same cell (GPU, topology and so on; see
`noise_law.py`). Sums of scores are then looked at (see `cusum.py`), over all rows and over each slice, since
each moment of the window and over the whole of it: has the level moved, to slower or to faster, have the errors grown?
One slowed GPU among ten is a slice of its own and not averaged away.

`monitor_false_alarm_ratio` is of the whole signal: half of it belongs to all rows together, half is shared by the
slices, and what each has by its tests: level and spread, of the whole window and since a moment (Bonferroni).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import UTC, datetime
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.drift.cusum import (
    KINDS,
    SIDES,
    Floats,
    Integers,
    Kind,
    ScoreRows,
    graph_weights,
    scan_changes,
    since_limit,
    window_limit,
)
from warpgauge.drift.measurement import Cause, Measurement
from warpgauge.drift.noise_law import NoiseLaw, fit_noise_law
from warpgauge.drift.reference_files import checked_files, reference_files
from warpgauge.errors import ModelFileError, WindowError
from warpgauge.registry.names import LAUNCH_LATENCY

SIGNAL = "residuals"
MINIMUM_ROWS = 20
# Fewer different graphs than this and the window says how these few graphs went, not how the model does.
MINIMUM_GRAPHS = 5
# A graph of very many held-out trials says no more than this many of them do.
TRIALS_A_GRAPH = 50
# Cells with a law of their own, the largest first: 4 KB each.
LARGEST_CELL_COUNT = 100
# The details name at most so many slices, those nearest their limit first.
LARGEST_SLICE_COUNT = 100
YEAR_2000_S, YEAR_2100_S = 946_684_800.0, 4_102_444_800.0
INTERVAL_NORMAL = 1.96  # 95 % of a standard normal value
TENSORS_FILE = "residual_reference.safetensors"
FACTS_FILE = "residual_reference.json"
FORMAT = "warpgauge.residual_reference.2"
ALL_ROWS = "all rows"
UNKNOWN = "unknown"

# What of a law each row carries.
# So much of a window beyond every held-out error on one side, and the two do not overlap.
APART_RATIO = 0.9
LAW_FIGURES = ("mean", "within", "between", "among", "mean_error", "few_inflation", "many_inflation")

Cell = tuple[str | None, ...]


@dataclass(frozen=True, eq=False)
class ResidualReference:
    """How a champion's held-out errors are spread.

    Attributes:
        slice_columns: Columns whose values name a cell and, each for itself, a slice.
        pooled: Law of all held-out rows, for cells that none of them was of.
        cells: Values of the slice columns -> law; None where the cell had too few rows for one.
        is_scaled: Whether errors were divided by the model's noise scale.
        rmse: Root mean square of the held-out log residuals.
    """

    slice_columns: tuple[str, ...]
    pooled: NoiseLaw
    cells: Mapping[Cell, NoiseLaw | None]
    is_scaled: bool
    rmse: float

    @property
    def row_count(self) -> int:
        """Held-out rows behind it."""
        return self.pooled.row_count

    @property
    def graph_count(self) -> int:
        """Their graphs (rows, where no graph was named)."""
        return self.pooled.graph_count

    def to_files(self) -> dict[str, bytes]:
        """File name -> content: safetensors for the arrays, JSON with their SHA-256."""
        from safetensors.numpy import save

        laws = [self.pooled, *(law for law in self.cells.values() if law is not None)]
        ends = np.cumsum([law.quantiles.size for law in laws])
        tensors = save(
            {
                "quantiles": np.concatenate([law.quantiles for law in laws]).astype(np.float32),
                "ends": ends.astype(np.int64),
            }
        )
        facts = {
            "format": FORMAT,
            "slice_columns": list(self.slice_columns),
            "is_scaled": self.is_scaled,
            "rmse": self.rmse,
            "pooled": self.pooled.to_document(),
            "cells": [
                {"key": list(key), "law": None if law is None else law.to_document()}
                for key, law in self.cells.items()
            ],
        }
        return reference_files(TENSORS_FILE, tensors, FACTS_FILE, facts)

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> ResidualReference:
        """The reference that `to_files` wrote, checked first.

        Raises:
            ModelFileError: If a file is missing, truncated, altered or of another format.
        """
        tensors, facts = checked_files(files, TENSORS_FILE, FACTS_FILE, FORMAT)
        try:
            return _from_parts(tensors, facts)
        except ModelFileError as error:
            raise ModelFileError(f"{FACTS_FILE}: {error}; train a new version") from error


@dataclass(frozen=True, eq=False)
class ResidualRows:
    """Rows whose measured latency is known, beside what the champion predicted.

    Attributes:
        log_residual: ln(measured / predicted), shape (rows,).
        noise_scale: Half width of the model's interval in log, positive, shape (rows,); None where the model has none.
        graph_id: The graph of each row; None where each row is a graph of its own.
        shape_id: The shape of each row: what the model held out together, of which it may be wrong alike; None where
            each graph is a shape of its own.
        slices: Columns that cut the rows, one row each; None where there are none. A null is a value of its own.
        time_s: When each was measured, in seconds since 1970; None where all count as measured at once.
        row_id: What names a row: of rows with the same one, one counts; None where all differ.
    """

    log_residual: npt.ArrayLike
    _: KW_ONLY
    noise_scale: npt.ArrayLike | None = None
    graph_id: Sequence[str] | None = None
    shape_id: Sequence[str] | None = None
    slices: pl.DataFrame | None = None
    time_s: npt.ArrayLike | None = None
    row_id: Sequence[str] | None = None


def fit_residual_reference(heldout: ResidualRows, *, seed: int = 0) -> ResidualReference:
    """The reference to store with a champion.

    Args:
        heldout: Its held-out rows, with the noise scale that it will use; times and ids do not matter.
        seed: Of the bootstrap, and of which trials stand for a graph that has very many.

    Raises:
        WindowError: If there are fewer than 20 rows or 5 graphs, a residual or scale is no finite number, or nearly
            all residuals are equal.
    """
    rows = _Rows.of(heldout)
    if fault := rows.fault():
        raise WindowError(f"held-out rows: {fault}")
    if len(rows.residual) < MINIMUM_ROWS or rows.graph_count < MINIMUM_GRAPHS:
        raise WindowError(
            f"{len(rows.residual)} held-out residuals of {rows.graph_count} graphs; a reference needs {MINIMUM_ROWS} "
            f"of {MINIMUM_GRAPHS}; hold out more"
        )
    random = np.random.default_rng(seed)
    rmse = float(np.sqrt(np.mean(rows.residual**2)))
    rows = rows.only(_some_trials(rows.graph, random))
    pooled = fit_noise_law(rows.error, rows.residual, rows.graph, rows.shape, random)
    if pooled is None:
        raise WindowError(
            "nearly all held-out residuals are equal, so the model saw its answers or the clock cannot tell "
            "launches apart; check the split"
        )
    cells: dict[Cell, NoiseLaw | None] = {}
    places = [np.flatnonzero(rows.cell == number) for number in range(len(rows.cells))]
    for number in sorted(range(len(places)), key=lambda one: (-len(places[one]), repr(rows.cells[one]))):
        own = rows.only(places[number])
        is_enough = (
            len(cells) < LARGEST_CELL_COUNT
            and len(own.residual) >= MINIMUM_ROWS
            and own.graph_count >= MINIMUM_GRAPHS
        )
        cells[rows.cells[number]] = (
            fit_noise_law(own.error, own.residual, own.graph, own.shape, random) if is_enough else None
        )
    return ResidualReference(rows.slice_columns, pooled, cells, rows.is_scaled, rmse)


def unix_seconds(times: pl.Series, otherwise: pl.Series) -> Floats:
    """When each row was measured, in seconds since 1970.

    Args:
        times: What the rows say, in seconds, milli-, micro- or nanoseconds since 1970, told apart by size: a number that
            is a moment from 2000 to 2100 in none of them (a build number, say) is no time.
        otherwise: Datetime that stands for a time that is not known: when the row was collected.
    """
    moment = otherwise.dt.epoch("us").cast(pl.Float64).to_numpy() / 1e6
    known = times.cast(pl.Float64).fill_null(np.nan).to_numpy()
    for in_a_second in (1.0, 1e3, 1e6, 1e9):
        seconds = known / in_a_second
        moment = np.where((seconds >= YEAR_2000_S) & (seconds < YEAR_2100_S), seconds, moment)
    return moment


def measure_residuals(
    reference: ResidualReference | None,
    recent: ResidualRows,
    *,
    now_s: float | None = None,
    minimum: int = 100,
    false_alarm_ratio: float = 0.001,
    subject: str = LAUNCH_LATENCY,
) -> Measurement:
    """How surprising recent residuals are, in standard errors, where they are most so against their limit.

    Value and limit are those of the test that is nearest its limit, or furthest above it; `details["slices"]` has
    one entry a slice, all rows first: slice, sample_count, graph_count, status, value, limit, test, since_s,
    change_ratio (median latency over predicted, against training), inside_ratio (share inside the model's interval)
    and trained_inside_ratio, is_never_seen, reason.

    Args:
        reference: Of the champion, None where there is no champion.
        recent: Rows that it was not trained on; may be empty. Their order does not matter, only their times.
        now_s: Rows measured later than this are left out and counted; None trusts every clock.
        minimum: Fewest rows.
        false_alarm_ratio: Chance that one unchanged window trips, all tests and slices together.
        subject: What the measurement is of.

    Raises:
        WindowError: If parts of `recent` differ in length or the ratio is not between 0 and 1.
    """
    if not 0 < false_alarm_ratio < 1:
        raise WindowError(f"false_alarm_ratio is {false_alarm_ratio}; it lies between 0 and 1")
    if reference is None:
        return Measurement.cannot_say(
            SIGNAL,
            subject,
            "no champion",
            "no promoted model version to measure the residuals of; train and promote one first",
        )
    rows = _Rows.of(recent)
    if len(rows.residual):
        _check_alike(rows, reference)
    rows, future_count, duplicate_count = rows.settled(now_s)
    counts = {
        "graph_count": rows.graph_count,
        "future_row_count": future_count,
        "duplicate_row_count": duplicate_count,
    }
    noted = f"; {future_count} stamped in the future are left out" if future_count else ""
    if refusal := _refusal(rows, max(minimum, MINIMUM_ROWS)):
        cause, said = refusal
        count = len(rows.residual)
        return Measurement.cannot_say(
            SIGNAL, subject, cause, f"{said}{noted}", sample_count=count, details=counts
        )
    scored = _Scored.of(rows, reference)
    parts = _parts(scored, reference)
    _judge(parts, scored, false_alarm_ratio)
    judged = [part for part in parts if part.test is not None]
    details = {
        **counts,
        "slices": [part.document(scored) for part in _listed(parts)],
        "slice_count": len(parts) - 1,
        "unjudged_row_count": int((scored.law < 0).sum()),
        "rmse": float(np.sqrt(np.mean(rows.residual**2))),
        "reference_rmse": reference.rmse,
        "mean_log_residual": float(rows.residual.mean()),
        "reference_row_count": reference.row_count,
        "reference_graph_count": reference.graph_count,
        "false_alarm_ratio": false_alarm_ratio,
    }
    if not judged:
        return Measurement.cannot_say(
            SIGNAL,
            subject,
            "too few",
            f"{parts[0].said}{noted}",
            sample_count=len(rows.residual),
            details=details,
        )
    worst = max(judged, key=lambda part: part.ratio)
    value, limit = worst.value, worst.limit
    tripped = sum(part.ratio > 1 for part in judged[1:] if part is not worst)
    others = f"; {tripped} other slices are above their limits too" if tripped and worst.ratio > 1 else ""
    return Measurement.measured(
        SIGNAL,
        subject,
        value,
        lower=max(0.0, value - INTERVAL_NORMAL),
        upper=value + INTERVAL_NORMAL,
        limit=limit,
        sample_count=len(rows.residual),
        reason=f"{worst.sentence(scored)}; by chance one window of {1 / false_alarm_ratio:,.0f} trips, "
        f"all {len(judged)} groups of rows together{others}{noted}",
        details=details,
    )


@dataclass(frozen=True, eq=False)
class _Rows:
    """Rows with everything as arrays."""

    residual: Floats
    error: Floats  # over the noise scale
    graph: Integers
    shape: Integers
    cell: Integers
    cells: list[Cell]
    slice_columns: tuple[str, ...]
    time_s: Floats
    row_id: npt.NDArray[np.str_] | None
    is_scaled: bool

    @classmethod
    def of(cls, rows: ResidualRows) -> _Rows:
        residual = _vector(rows.log_residual, "log_residual")
        count = residual.size
        scale = None if rows.noise_scale is None else _vector(rows.noise_scale, "noise_scale")
        time_s = np.zeros(count) if rows.time_s is None else _vector(rows.time_s, "time_s")
        slices = rows.slices if rows.slices is not None else pl.DataFrame()
        for name, part in (
            ("noise_scale", scale),
            ("time_s", time_s),
            ("graph_id", rows.graph_id),
            ("shape_id", rows.shape_id),
            ("row_id", rows.row_id),
            ("slices", slices if slices.width else None),
        ):
            if part is not None and len(part) != count:
                raise WindowError(f"{len(part)} {name} for {count} log residuals; one each is needed")
        error = residual
        if scale is not None:
            # What no scale fits is found by `fault`.
            error = np.divide(residual, scale, out=np.full(count, np.nan), where=scale > 0)
        cells: list[Cell] = [()] if count else []
        cell = np.zeros(count, dtype=np.int64)
        if slices.width and count:
            keys = list(zip(*(column.cast(pl.String).to_list() for column in slices), strict=True))
            cells = sorted(set(keys), key=lambda key: [(value is None, value or "") for value in key])
            places = {key: number for number, key in enumerate(cells)}
            cell = np.array([places[key] for key in keys], dtype=np.int64)
        graph = np.arange(count, dtype=np.int64)
        if rows.graph_id is not None:
            graph = _numbers(np.asarray(rows.graph_id, dtype=str))
        shape = graph if rows.shape_id is None else _numbers(np.asarray(rows.shape_id, dtype=str))
        row_id = None if rows.row_id is None else np.asarray(rows.row_id, dtype=str)
        return cls(
            residual,
            error,
            graph,
            shape,
            cell,
            cells,
            tuple(slices.columns),
            time_s,
            row_id,
            scale is not None,
        )

    @property
    def graph_count(self) -> int:
        return int(np.unique(self.graph).size)

    def only(self, places: Integers) -> _Rows:
        return _Rows(
            self.residual[places],
            self.error[places],
            self.graph[places],
            self.shape[places],
            self.cell[places],
            self.cells,
            self.slice_columns,
            self.time_s[places],
            None if self.row_id is None else self.row_id[places],
            self.is_scaled,
        )

    def fault(self) -> str | None:
        """What makes a number no number, and where."""
        for values, what, said in (
            (self.residual, "log residuals", "a latency or a prediction there is null, 0 or negative"),
            (self.error, "noise scales", "the model's interval there is null, 0 or negative"),
            (self.time_s, "times", "a row's time is when it was measured, or else collected"),
        ):
            is_fit = np.isfinite(values)
            if values is self.time_s:
                is_fit &= (values >= 0) & (values < YEAR_2100_S)
            bad = np.flatnonzero(~is_fit)
            if bad.size:
                which = f"row {bad[0]}" if self.row_id is None else f"row {self.row_id[bad[0]]}"
                return f"{bad.size} of {values.size} {what} are no fit numbers, the first at {which}; {said}"
        return None

    def settled(self, now_s: float | None) -> tuple[_Rows, int, int]:
        """In the order of time, each row once and none of the future; how many were of it, how many repeated."""
        keys = (self.error, self.time_s) if self.row_id is None else (self.error, self.row_id, self.time_s)
        order = np.lexsort(keys)
        is_future = np.zeros(order.size, dtype=bool)
        if now_s is not None:
            is_future = self.time_s[order] > now_s
        future_count = int(is_future.sum())
        order = order[~is_future]
        duplicate_count = 0
        if self.row_id is not None:
            _, first = np.unique(self.row_id[order], return_index=True)
            duplicate_count = int(order.size - first.size)
            order = order[np.sort(first)]
        return self.only(order), future_count, duplicate_count


@dataclass(frozen=True, eq=False)
class _Scored:
    """Rows in the order of time with the scores that their laws give them.

    `law` is the number of the row's law, -1 where its cell had too few held-out rows for one; `laws[0]` is the pooled
    one, of cells never seen.
    """

    rows: _Rows
    laws: list[NoiseLaw]
    law: Integers
    scores: Mapping[Kind, ScoreRows]

    @classmethod
    def of(cls, rows: _Rows, reference: ResidualReference) -> _Scored:
        laws = [reference.pooled]
        of_cell = np.zeros(len(rows.cells), dtype=np.int64)
        for number, key in enumerate(rows.cells):
            if key in reference.cells:
                law = reference.cells[key]
                of_cell[number] = -1 if law is None else len(laws)
                laws += [] if law is None else [law]
        number_of_row = of_cell[rows.cell]
        scores = {}
        for kind in KINDS:
            score = np.zeros(number_of_row.size)
            figures = np.ones((len(LAW_FIGURES), number_of_row.size))
            for number, law in enumerate(laws):
                places = np.flatnonzero(number_of_row == number)
                if places.size:
                    score[places] = law.score(kind, rows.error[places])
                    for place, name in enumerate(LAW_FIGURES):
                        figures[place, places] = getattr(law.figures(kind), name)
            named = dict(zip(LAW_FIGURES, figures, strict=True))
            scores[kind] = ScoreRows(
                score=score, **named, graph=rows.graph, shape=rows.shape, law=number_of_row
            )
        return cls(rows, laws, number_of_row, scores)


@dataclass(eq=False)
class _Part:
    """All rows or a slice of them, and what its tests said."""

    name: str
    places: Integers
    is_never_seen: bool = False
    lawless_count: int = 0  # further rows, of cells that have no law
    said: str = ""
    value: float = 0.0
    limit: float = math.inf
    test: Kind | None = None
    since: int = 0  # place among the part's rows
    graph_count: int = 0

    @property
    def ratio(self) -> float:
        return self.value / self.limit

    def changed(self, scored: _Scored) -> dict[str, float]:
        """What the rows since the change look like."""
        places = self.places[self.since :]
        trained_log = np.array([law.median_log for law in scored.laws])[scored.law[places]]
        trained_inside = np.array([law.inside_ratio for law in scored.laws])[scored.law[places]]
        return {
            "change_ratio": float(np.expm1(np.median(scored.rows.residual[places] - trained_log))),
            "inside_ratio": float((np.abs(scored.rows.error[places]) <= 1).mean()),
            "trained_inside_ratio": float(trained_inside.mean()),
        }

    def sentence(self, scored: _Scored) -> str:
        """What was found, for a reader."""
        found = self.changed(scored)
        since = ""
        if self.since:
            moment = datetime.fromtimestamp(float(scored.rows.time_s[self.places[self.since]]), UTC)
            since = f" since {moment:%Y-%m-%d %H:%M:%S}"
        unseen = " (never seen in training, so held against all of it)" if self.is_never_seen else ""
        if self.test == "level":
            change = found["change_ratio"]
            said = f"latency over predicted is {abs(change):.1%} {'higher' if change > 0 else 'lower'} than in training"
        elif scored.rows.is_scaled:
            said = (
                f"errors have grown, the interval holds {found['inside_ratio']:.1%}, "
                f"{found['trained_inside_ratio']:.1%} in training"
            )
        else:
            said = "errors are larger than in training"
        return (
            f"{self.name}{unseen}: {said}{since}, {self.value:.1f} standard errors against a limit of {self.limit:.1f}, "
            f"{len(self.places) - self.since} of {len(scored.rows.residual)} launches"
        )

    def document(self, scored: _Scored) -> dict[str, Any]:
        """As JSON values."""
        is_measured = self.test is not None
        found: dict[str, float | None] = {
            "change_ratio": None,
            "inside_ratio": None,
            "trained_inside_ratio": None,
        }
        if is_measured:
            found = dict(self.changed(scored))
        return {
            "slice": self.name,
            "sample_count": len(self.places),
            "graph_count": self.graph_count,
            "status": "measured" if is_measured else "cannot_say",
            "value": self.value if is_measured else None,
            "limit": self.limit if is_measured else None,
            "test": self.test,
            "since_s": float(scored.rows.time_s[self.places[self.since]])
            if is_measured and self.since
            else None,
            **found,
            "is_never_seen": self.is_never_seen,
            "reason": self.sentence(scored) if is_measured else self.said,
        }


def _check_alike(rows: _Rows, reference: ResidualReference) -> None:
    if rows.slice_columns != reference.slice_columns:
        raise WindowError(
            f"the rows are cut by {', '.join(rows.slice_columns) or 'nothing'}, the reference by "
            f"{', '.join(reference.slice_columns) or 'nothing'}; cut both alike"
        )
    if rows.is_scaled != reference.is_scaled:
        raise WindowError(
            "only one of the rows and the reference has the model's noise scale; give it to both"
        )


def _refusal(rows: _Rows, needed: int) -> tuple[Cause, str] | None:
    """Why nothing can be said of the rows as a whole."""
    count = len(rows.residual)
    if not count:
        return "no samples", "no labelled launch in the window"
    if fault := rows.fault():
        return "degenerate", fault
    if count < needed or rows.graph_count < MINIMUM_GRAPHS:
        return "too few", (
            f"{count} launches of {rows.graph_count} graphs, {needed} of {MINIMUM_GRAPHS} are needed; widen the window"
        )
    return None


def _parts(scored: _Scored, reference: ResidualReference) -> list[_Part]:
    """All rows, then the slices; rows of cells never seen make slices of their own."""
    rows = scored.rows
    judged = np.flatnonzero(scored.law > 0)
    parts = [_Part(ALL_ROWS, judged, lawless_count=int((scored.law < 0).sum()))]
    known = [set(values) for values in zip(*reference.cells, strict=True)]
    values = np.array(rows.cells, dtype=object).reshape(len(rows.cells), len(rows.slice_columns))[rows.cell]
    slices: dict[bytes, _Part] = {}
    for column, name in enumerate(rows.slice_columns):
        for value in sorted(set(values[:, column].tolist()), key=lambda one: (one is None, one)):
            label = f"{name}={UNKNOWN if value is None else value}"
            is_new = value not in known[column]
            has_value = values[:, column] == value
            own = np.flatnonzero(has_value & (scored.law == 0 if is_new else scored.law > 0))
            lawless = 0 if is_new else int((has_value & (scored.law < 0)).sum())
            if own.size or lawless:
                _add(slices, _Part(label, own, is_new, lawless), judged)
    for number, key in enumerate(rows.cells):
        is_combination = all(value in known[column] for column, value in enumerate(key))
        places = np.flatnonzero((rows.cell == number) & (scored.law == 0))
        if is_combination and places.size:
            pairs = zip(rows.slice_columns, key, strict=True)
            label = " with ".join(f"{name}={UNKNOWN if value is None else value}" for name, value in pairs)
            _add(slices, _Part(label, places, True), judged)
    return [*parts, *slices.values()]


def _add(slices: dict[bytes, _Part], part: _Part, judged: Integers) -> None:
    """Columns that cut the same rows out are one slice; one that holds all rows is no slice."""
    # Slices without a row that can be judged hold unlike ones.
    name = part.places.tobytes() or part.name.encode()
    if name in slices:
        slices[name].name += f", {part.name}"
    elif part.is_never_seen or not np.array_equal(part.places, judged):
        slices[name] = part


def _judge(parts: list[_Part], scored: _Scored, false_alarm_ratio: float) -> None:
    """Test each part that has rows enough, each at its share of the false alarms."""
    tested = []
    for part in parts:
        part.graph_count = int(np.unique(scored.rows.graph[part.places]).size)
        if len(part.places) >= MINIMUM_ROWS and part.graph_count >= MINIMUM_GRAPHS:
            tested.append(part)
            continue
        part.said = (
            f"{len(part.places)} launches of {part.graph_count} graphs, {MINIMUM_ROWS} of {MINIMUM_GRAPHS} "
            f"are needed"
        )
        if part.lawless_count:
            part.said += f"; {part.lawless_count} more are of a kind that training held out too few of"
    if not tested:
        return
    has_whole = tested[0] is parts[0]
    slice_count = len(tested) - has_whole
    for part in tested:
        share = (1.0 if len(tested) == 1 else 0.5) if has_whole else 0.0
        if part is not parts[0]:
            share = (1 - share) / slice_count
        _test(part, scored, false_alarm_ratio * share)


def _test(part: _Part, scored: _Scored, chance: float) -> None:
    """The part's test that is nearest its limit, at a chance of all of them together."""
    # Rows of one moment came in no known order, so a change begins with all of them.
    may_start = np.append(True, np.diff(scored.rows.time_s[part.places]) > 0)
    graphs = _numbers(scored.rows.graph[part.places])
    last = np.zeros(part.graph_count, dtype=np.int64)
    last[graphs] = np.arange(graphs.size)  # the last row of each graph
    fifth = int(np.sort(last)[-MINIMUM_GRAPHS])
    may_start[min(fifth, graphs.size - MINIMUM_ROWS) + 1 :] = False
    scans = {}
    for kind in KINDS:
        rows = scored.scores[kind].only(part.places)
        scans[kind] = scan_changes(rows, may_start, kind, graph_weights(rows))
    share = chance / (1 + sum(1 + (scan.since is not None) for scan in scans.values()))
    found: list[tuple[float, float, Kind, int]] = []
    for kind, scan in scans.items():
        sides = SIDES[kind]
        found.append((scan.window, window_limit(share, sides), kind, 0))
        if scan.since is not None and scan.since_row is not None:
            limit = since_limit(share, sides, scan.look_count, scan.log_information_ratio)
            found.append((scan.since, limit, kind, scan.since_row))
    found.append((_apart(part, scored), NormalDist().inv_cdf(1 - share / 2), "level", 0))
    part.value, part.limit, part.test, part.since = max(found, key=lambda one: one[0] / one[1])
    part.value = max(part.value, 0.0)


def _apart(part: _Part, scored: _Scored) -> float:
    """How surprising it is that nearly all rows lie beyond every held-out error on one side, as a normal deviate.

    Ranks are bounded: where few shapes share their errors, the sums of rank scores cannot say that latency is half as
    much again, however far beyond all that training saw. Where nothing changed, independent errors of the window and
    of training come in any order alike, so the chance that the k outermost are all of the window is
    C(w, k) / C(w + m, k).
    """
    laws = scored.law[part.places]
    error = scored.rows.error[part.places]
    least, most = (np.array([law.quantiles[end] for law in scored.laws])[laws] for end in (0, -1))
    beyond = max(float((error > most).mean()), float((error < least).mean()))
    if beyond < APART_RATIO:
        return 0.0
    window = int(np.unique(scored.rows.shape[part.places]).size)
    trained = min(scored.laws[number].level.effective_count for number in np.unique(laws))
    outer = math.floor(APART_RATIO * window)

    def log_choices(count: float) -> float:
        return math.lgamma(count + 1) - math.lgamma(outer + 1) - math.lgamma(count - outer + 1)

    chance = 2 * math.exp(max(log_choices(window) - log_choices(window + trained), -600.0))
    return -NormalDist().inv_cdf(min(chance / 2, 0.5))


def _listed(parts: list[_Part]) -> list[_Part]:
    """All rows first, then slices in their order; of very many those nearest their limits, and never-seen ones."""
    whole, *slices = parts
    if len(slices) > LARGEST_SLICE_COUNT:
        slices = sorted(slices, key=lambda part: (-part.ratio, not part.is_never_seen))[:LARGEST_SLICE_COUNT]
    return [whole, *slices]


def _some_trials(graph: Integers, random: np.random.Generator) -> Integers:
    """Places of at most `TRIALS_A_GRAPH` rows of each graph, in their order."""
    shuffled = random.permutation(graph.size)
    order = shuffled[np.argsort(graph[shuffled], kind="stable")]
    starts = np.flatnonzero(np.append(True, np.diff(graph[order]) != 0))
    counts = np.diff(np.append(starts, order.size))
    place = np.arange(order.size) - np.repeat(starts, counts)
    return np.sort(order[place < TRIALS_A_GRAPH])


def _vector(values: npt.ArrayLike, name: str) -> Floats:
    vector = np.asarray(values, dtype=np.float64)
    if vector.ndim != 1:
        raise WindowError(f"{name} has shape {vector.shape}, one number a launch is needed")
    return vector


def _numbers(values: npt.NDArray[Any]) -> Integers:
    return np.unique(values, return_inverse=True)[1].astype(np.int64)


def _from_parts(tensors: bytes, facts: Mapping[str, Any]) -> ResidualReference:
    from safetensors import SafetensorError
    from safetensors.numpy import load

    try:
        arrays = load(tensors)
        quantiles, ends = arrays["quantiles"], arrays["ends"]
    except (SafetensorError, ValueError, KeyError) as error:
        raise ModelFileError(f"not readable as quantiles and ends: {error}") from error
    columns, cells = facts.get("slice_columns"), facts.get("cells")
    rmse, is_scaled = facts.get("rmse"), facts.get("is_scaled")
    if not (isinstance(columns, list) and all(isinstance(name, str) for name in columns)):
        raise ModelFileError(f"slice_columns is {columns!r:.80}, a list of names is needed")
    if not (isinstance(rmse, float) and math.isfinite(rmse) and isinstance(is_scaled, bool)):
        raise ModelFileError(f"rmse is {rmse!r} and is_scaled {is_scaled!r}; a number and a truth are needed")
    keyed: list[tuple[Cell, Any]] = []
    for entry in cells if isinstance(cells, list) else []:
        key = entry.get("key") if isinstance(entry, dict) else None
        if (
            not isinstance(key, list)
            or len(key) != len(columns)
            or not all(value is None or isinstance(value, str) for value in key)
        ):
            raise ModelFileError(f"a cell has the key {key!r:.80}; a value of each slice column is needed")
        keyed.append((tuple(key), entry.get("law")))
    documents = [facts.get("pooled"), *(law for _, law in keyed if law is not None)]
    starts = np.append(0, ends[:-1])
    if (
        not keyed
        or quantiles.dtype != np.float32
        or ends.dtype != np.int64
        or ends.ndim != 1
        or ends.size != len(documents)
        or quantiles.ndim != 1
        or not np.isfinite(quantiles).all()
        or (ends - starts < MINIMUM_ROWS).any()
        or ends[-1] != quantiles.size
    ):
        raise ModelFileError(
            f"{len(documents)} laws of at least {MINIMUM_ROWS} finite float32 quantiles each are needed; found "
            f"{quantiles.dtype} {quantiles.shape} and {ends.dtype} {ends.shape}"
        )
    laws = []
    for document, start, end in zip(documents, starts, ends, strict=True):
        own = quantiles[start:end].astype(np.float64)
        if not isinstance(document, dict) or (np.diff(own) < 0).any():
            raise ModelFileError("a law is no object, or its quantiles do not rise")
        laws.append(NoiseLaw.from_document(document, own))
    pooled, *rest = laws
    found: dict[Cell, NoiseLaw | None] = {}
    for key, document in keyed:
        found[key] = None if document is None else rest.pop(0)
    return ResidualReference(tuple(columns), pooled, found, is_scaled, rmse)
