"""The physics baseline: what a launch costs by its number of nodes alone.

A launch costs a + b x nodes for each GPU, version, topology and profiling state; where enough sizes were measured
b may change with size (caches and driver queues fill), so the line becomes a polyline that never falls. It
is fitted in relative error, because the values span 3 us to 2 ms: plain least squares is off by many times
its noise at small sizes, or negative. The trees then learn the ratio to it, and beyond the sizes that were
measured the last slope goes on, which trees cannot do.

Where a group is thin or was never seen, a coarser group answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.errors import ModelFileError, SchemaError, TrainingError
from warpgauge.latency.features import node_count_expression
from warpgauge.latency.sealed_files import take, take_numbers

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
CurveKind = Literal["polyline", "line"]
Key = tuple[str | None, ...]

KEY_COLUMNS = ("gpu_name", "cuda_version", "driver_version", "topology", "is_profiled", "is_simulated")
# From the finest group to all rows. Topology and version outlive the GPU, because they change the launch
# more: repeat launches of straight lines cost 0.24 us a node on a P100 and 0.2 on an RTX 3060, but 200 times
# less on the same RTX 3060 under CUDA 12.6 (the published figures that the simulator meets).
LEVELS: tuple[tuple[str, ...], ...] = (
    KEY_COLUMNS,
    ("gpu_name", "cuda_version", "topology", "is_profiled", "is_simulated"),
    ("gpu_name", "topology", "is_profiled", "is_simulated"),
    ("topology", "cuda_version", "is_profiled", "is_simulated"),
    ("topology", "is_profiled", "is_simulated"),
    ("gpu_name", "is_profiled", "is_simulated"),
    ("gpu_name", "topology"),
    ("is_profiled", "is_simulated"),
    ("topology",),
    (),
)
# The first levels, which hold rows of the same GPU, topology and profiling state.
OWN_LEVEL_COUNT = 3

# A slope needs three sizes to be more than a line through two noisy points, and ten rows to outvote one
# disturbed trial. Between three and ten rows a group only shifts the coarser group's curve.
CURVE_SIZES = 3
CURVE_ROWS = 10
SHIFT_ROWS = 3
EQUAL_GROUP_ROWS = 100.0
# On the public P100 trials 16 to 40 knots reach the same held-out error; 8 by equal ratio miss the curvature
# (RMSE over floor 1.81 for parallel lines against 1.05).
KNOT_COUNTS = (2, 3, 5, 8, 12, 20)
# Median first launch of one empty kernel is 2.8 us on the public P100 trials, of four parallel ones 7.8 us.
EMPTY_GRAPH_US = 5.0
SIZES_A_SEGMENT = 4
LEAST_SIZES_A_SEGMENT = 2
_FITS = 8
_SETTLED_RATIO = 1e-3
# Huber's constant: 95 % efficiency under normal noise.
_HUBER = 1.345
_OUTLIER_SPREADS = 5.0
_LEAST_US = 1e-3


@dataclass(frozen=True)
class Curve:
    """Latency by node count: a polyline that never falls and is always positive.

    Attributes:
        nodes: Node counts of the knots, rising.
        latency_us: Latency at each knot, positive, not falling.
        smallest, largest: Range of node counts that the curve was fitted on.
    """

    nodes: tuple[float, ...]
    latency_us: tuple[float, ...]
    smallest: float
    largest: float

    def predict(self, node_count: FloatArray) -> FloatArray:
        """Latency in microseconds, positive, for node counts of at least 1."""
        nodes, values = np.asarray(self.nodes), np.asarray(self.latency_us)
        answer = np.interp(node_count, nodes, values)
        if len(nodes) == 1:
            return answer
        first = (values[1] - values[0]) / (nodes[1] - nodes[0])
        last = (values[-1] - values[-2]) / (nodes[-1] - nodes[-2])
        # a + b x nodes with a >= 0 cannot fall faster than in proportion, so it stays positive.
        low = np.maximum(values[0] - first * (nodes[0] - node_count), values[0] * node_count / nodes[0])
        high = values[-1] + last * (node_count - nodes[-1])
        return np.where(node_count < nodes[0], low, np.where(node_count > nodes[-1], high, answer))

    def scaled(self, factor: float, smallest: float, largest: float) -> Curve:
        """The same shape times a factor, for a group with its own range of sizes."""
        return Curve(self.nodes, tuple(value * factor for value in self.latency_us), smallest, largest)


@dataclass(frozen=True)
class BaselineAnswer:
    """What the baseline says of some rows.

    Attributes:
        latency_us: Positive, one a row.
        level: Place in LEVELS of the group that answered, one a row.
        smallest, largest: Range of node counts that this group was fitted on, one a row.
    """

    latency_us: FloatArray
    level: IntArray
    smallest: FloatArray
    largest: FloatArray


@dataclass(frozen=True)
class Baseline:
    """One curve for each group of each level.

    Attributes:
        known: For each key column its values in training, sorted; null is not among them. A column that was
            always null is empty, and its value is ignored.
        has_missing: For each key column whether training rows lacked it.
        curves: For each level, key -> curve.
    """

    known: Mapping[str, tuple[str, ...]]
    has_missing: Mapping[str, bool]
    curves: tuple[Mapping[Key, Curve], ...]

    @classmethod
    def fit(cls, launches: pl.DataFrame, latency_us: FloatArray, kind: CurveKind = "polyline") -> Baseline:
        """Fit on rows of the launches table.

        Args:
            launches: The key columns and those of the node count.
            latency_us: Measured latency, positive and finite, one a row.
            kind: `polyline` is the baseline in use; `line` is plain least squares a + b x nodes a group,
                the yardstick that every report shows beside the model.

        Raises:
            TrainingError: If there is no row.
            SchemaError: If a node count is missing.
        """
        if not launches.height:
            raise TrainingError("no row to fit a baseline on")
        nodes = node_counts(launches)
        keys = launches.select(pl.col(name).cast(pl.String) for name in KEY_COLUMNS)
        known = {name: tuple(keys[name].drop_nulls().unique().sort().to_list()) for name in KEY_COLUMNS}
        has_missing = {name: keys[name].null_count() > 0 for name in KEY_COLUMNS}
        # Large groups count alike, so that none stands for all; a thin one counts by its rows, so that it
        # does not bend the curve that it will borrow.
        group_size = keys.select(pl.len().over(KEY_COLUMNS)).to_series().to_numpy().astype(np.float64)
        weight = 1.0 / np.maximum(group_size, EQUAL_GROUP_ROWS)
        curves: list[dict[Key, Curve]] = [{} for _ in LEVELS]
        # Coarser groups often hold the very rows of a finer one: the same rows are fitted once.
        fitted: dict[bytes, Curve | None] = {}

        def fit(rows: IntArray) -> Curve | None:
            name = rows.tobytes()
            if name not in fitted:
                fitted[name] = _fit_curve(nodes[rows], latency_us[rows], weight[rows], kind)
            return fitted[name]

        everything = fit(np.arange(len(nodes))) or _thin(nodes, latency_us)
        for level in reversed(range(len(LEVELS))):
            columns = LEVELS[level]
            if not columns:
                curves[level][()] = everything
                continue
            for key, rows in group_rows(keys.select(columns)).items():
                curve = fit(rows)
                if curve is None and len(rows) >= SHIFT_ROWS:
                    parent = _parent(curves, level, dict(zip(columns, key, strict=True)), everything)
                    ratio = float(np.median(latency_us[rows] / parent.predict(nodes[rows])))
                    curve = parent.scaled(ratio, float(nodes[rows].min()), float(nodes[rows].max()))
                if curve is not None:
                    curves[level][key] = curve
        return cls(known, has_missing, tuple(curves))

    def predict(self, launches: pl.DataFrame) -> BaselineAnswer:
        """The latency that node count and group alone foretell.

        Raises:
            SchemaError: If a node count is missing.
        """
        nodes = node_counts(launches)
        latency, smallest, largest = np.empty(len(nodes)), np.empty(len(nodes)), np.empty(len(nodes))
        level = np.zeros(len(nodes), dtype=np.int64)
        for key, rows in group_rows(
            pl.DataFrame([self._query_values(launches, n) for n in KEY_COLUMNS])
        ).items():
            curve, found = self._curve(dict(zip(KEY_COLUMNS, key, strict=True)))
            latency[rows] = curve.predict(nodes[rows])
            level[rows], smallest[rows], largest[rows] = found, curve.smallest, curve.largest
        return BaselineAnswer(latency, level, smallest, largest)

    def unseen(self, launches: pl.DataFrame, name: str) -> tuple[pl.Series, npt.NDArray[np.bool_]]:
        """Values of a key column as they were read, and which of them training never showed.

        Missing counts as never seen where training had several values and none missing.
        """
        values = self._query_values(launches, name)
        may_lack = self.has_missing[name] or not self.known[name]
        is_new = (
            pl.when(pl.col(name).is_null())
            .then(not may_lack)
            .otherwise(~pl.col(name).is_in(self.known[name]))
        )
        return values, values.to_frame().select(is_new.alias(name)).to_series().to_numpy().astype(bool)

    def to_document(self) -> dict[str, Any]:
        """As JSON values."""
        return {
            "known": {name: list(values) for name, values in self.known.items()},
            "has_missing": dict(self.has_missing),
            "levels": [
                {
                    "columns": list(columns),
                    "curves": [
                        {
                            "key": list(key),
                            "nodes": list(curve.nodes),
                            "latency_us": list(curve.latency_us),
                            "smallest": curve.smallest,
                            "largest": curve.largest,
                        }
                        for key, curve in sorted(curves.items(), key=lambda pair: repr(pair[0]))
                    ],
                }
                for columns, curves in zip(LEVELS, self.curves, strict=True)
            ],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Baseline:
        """Back from JSON values.

        Raises:
            ModelFileError: If a part is absent, of another kind, or not a positive rising curve.
        """
        known = take(document, "known", dict)
        has_missing = take(document, "has_missing", dict)
        levels = take(document, "levels", list)
        if [level.get("columns") for level in levels] != [list(columns) for columns in LEVELS]:
            raise ModelFileError("the baseline has other levels than this version; train a new version")
        curves: list[dict[Key, Curve]] = []
        for level in levels:
            found: dict[Key, Curve] = {}
            for entry in take(level, "curves", list):
                curve = Curve(
                    take_numbers(entry, "nodes"),
                    take_numbers(entry, "latency_us"),
                    float(take(entry, "smallest", (int, float))),
                    float(take(entry, "largest", (int, float))),
                )
                if (
                    not curve.nodes
                    or len(curve.nodes) != len(curve.latency_us)
                    or min(curve.latency_us) <= 0
                    or np.any(np.diff(curve.nodes) <= 0)
                    or np.any(np.diff(curve.latency_us) < 0)
                ):
                    raise ModelFileError(
                        f"the baseline curve of {entry.get('key')} is not positive and rising"
                    )
                found[tuple(take(entry, "key", list))] = curve
            curves.append(found)
        if () not in curves[-1]:
            raise ModelFileError("the baseline has no curve for all rows; train a new version")
        return cls(
            {name: tuple(take(known, name, list)) for name in KEY_COLUMNS},
            {name: take(has_missing, name, bool) for name in KEY_COLUMNS},
            tuple(curves),
        )

    def _query_values(self, launches: pl.DataFrame, name: str) -> pl.Series:
        """A key column of rows to predict, as text, read as training would have read it.

        A column with a single value in training cannot tell rows apart: where the row does not say, that
        value is meant; where training never said, the row's value is ignored.
        """
        values = launches.get_column(name).cast(pl.String)
        known = self.known[name]
        if not known:
            return pl.Series(name, [None], dtype=pl.String).new_from_index(0, len(values))
        if name == "is_simulated" and len(known) == 1:
            # Whether the training rows were simulated is told with every answer; it says nothing of a query.
            return pl.Series(name, [known[0]]).new_from_index(0, len(values))
        if self.has_missing[name]:
            return values
        if len(known) == 1:
            return values.fill_null(known[0])
        return values.fill_null("false") if name == "is_simulated" else values

    def _curve(self, key: Mapping[str, str | None]) -> tuple[Curve, int]:
        for level, columns in enumerate(LEVELS):
            curve = self.curves[level].get(tuple(key[name] for name in columns))
            if curve is not None:
                return curve, level
        raise ModelFileError("the baseline has no curve for all rows; train a new version")


def node_counts(launches: pl.DataFrame) -> FloatArray:
    """Nodes of each graph, at least 1.

    Raises:
        SchemaError: If a row does not say, naming the first such row.
    """
    values = launches.select(node_count_expression().alias("node_count")).get_column("node_count")
    bad = (values.is_null() | ~(values >= 1).fill_null(False)).arg_true()
    if len(bad):
        raise SchemaError(
            f"launches: {len(bad)} of {len(values)} rows have no node count of at least 1 (first: row {bad[0]}); "
            f"give node_count, or line_length and line_count"
        )
    return values.to_numpy().astype(np.float64)


def group_rows(keys: pl.DataFrame) -> dict[Key, IntArray]:
    """Row numbers of each combination of values, the values as text (`true` and `false` for flags)."""
    names = keys.columns
    text = keys.select(pl.col(name).cast(pl.String) for name in names)
    grouped = text.with_row_index("row").group_by(names, maintain_order=True).agg("row")
    return {
        tuple(entry[name] for name in names): np.asarray(entry["row"], dtype=np.int64)
        for entry in grouped.iter_rows(named=True)
    }


def _parent(
    curves: Sequence[Mapping[Key, Curve]], level: int, key: Mapping[str, str | None], everything: Curve
) -> Curve:
    """The finest coarser curve whose columns are all among the key's."""
    for coarser in range(level + 1, len(LEVELS)):
        columns = LEVELS[coarser]
        if all(name in key for name in columns):
            curve = curves[coarser].get(tuple(key[name] for name in columns))
            if curve is not None:
                return curve
    return everything


def _thin(nodes: FloatArray, latency_us: FloatArray) -> Curve:
    """A line through the middle of a few sizes, with a typical cost for an empty graph."""
    middle, size = float(np.median(latency_us)), float(np.median(nodes))
    low, high = float(nodes.min()), float(nodes.max())
    if size <= 1 or high <= 1:
        return Curve((low,), (middle,), low, high)
    intercept = min(EMPTY_GRAPH_US, 0.5 * middle)
    slope = (middle - intercept) / size
    return Curve((1.0, high), (intercept + slope, intercept + slope * high), low, high)


def _fit_curve(
    nodes: FloatArray, latency_us: FloatArray, weight: FloatArray, kind: CurveKind
) -> Curve | None:
    """A curve for these rows, None if they have too few sizes or rows for a slope."""
    sizes = np.unique(nodes)
    if len(sizes) < CURVE_SIZES or len(nodes) < CURVE_ROWS:
        return None
    if kind == "line":
        return _least_squares_line(nodes, latency_us, weight)
    # One point a size: its weight is that of its rows, its value their geometric mean, in which one trial
    # that met an interrupt counts little.
    place = np.searchsorted(sizes, nodes)
    size_weight = np.bincount(place, weights=weight).astype(np.float64)
    value = np.exp(np.bincount(place, weights=weight * np.log(latency_us)) / size_weight)
    counts = sorted({min(count, max(len(sizes) // SIZES_A_SEGMENT, 2)) for count in KNOT_COUNTS})
    candidates = [_fit_polyline(sizes, value, size_weight, _knots(sizes, count)) for count in counts]
    return min(candidates, key=lambda candidate: candidate[1])[0]


def _fit_polyline(
    sizes: FloatArray, latency_us: FloatArray, weight: FloatArray, knots: FloatArray
) -> tuple[Curve, float]:
    """The polyline with these knots, least in relative error, and its Bayesian information criterion.

    The criterion asks a further knot to earn its place: mixed graphs of one size scatter by their node
    types, and a polyline with many knots would follow them.
    """
    basis = _ramps(sizes, knots)
    # Start from weights that no single disturbed size can bend: latency in proportion to size.
    fitted = np.maximum(latency_us.min(), np.median(latency_us) * sizes / np.median(sizes))
    row_weight = weight / fitted**2
    coefficients, relative = np.zeros(basis.shape[1]), np.zeros(len(sizes))
    spread = 0.0
    for _ in range(_FITS):
        coefficients = _nonnegative_least_squares(basis, latency_us, row_weight)
        previous, fitted = fitted, np.maximum(basis @ coefficients, _LEAST_US)
        relative = np.abs(latency_us - fitted) / fitted
        spread = max(1.4826 * float(np.median(relative)), 1e-6)
        row_weight = weight / fitted**2 * np.minimum(1.0, _HUBER * spread / np.maximum(relative, 1e-12))
        if np.max(np.abs(fitted - previous) / fitted) < _SETTLED_RATIO:
            break
    loss = np.average(np.minimum(relative, _OUTLIER_SPREADS * spread) ** 2, weights=weight)
    criterion = len(sizes) * np.log(max(float(loss), 1e-12)) + len(coefficients) * np.log(len(sizes))
    values = coefficients[0] + np.concatenate([[0.0], np.cumsum(coefficients[1:] * np.diff(knots))])
    values = np.maximum(values, 0.5 * float(latency_us.min()))
    return (
        Curve(tuple(map(float, knots)), tuple(map(float, values)), float(sizes[0]), float(sizes[-1])),
        float(criterion),
    )


def _knots(sizes: FloatArray, count: int) -> FloatArray:
    """Knots at equal steps of a mean of rank and logarithm, so that neither dense nor small sizes lack any."""
    rank = np.linspace(0.0, 1.0, len(sizes))
    log = np.log(sizes / sizes[0]) / np.log(sizes[-1] / sizes[0])
    kept = [float(sizes[0])]
    for knot in np.interp(np.linspace(0.0, 1.0, count)[1:-1], (rank + log) / 2, sizes):
        before = np.sum((sizes > kept[-1]) & (sizes <= knot))
        if before >= LEAST_SIZES_A_SEGMENT and np.sum(sizes > knot) >= LEAST_SIZES_A_SEGMENT:
            kept.append(float(knot))
    return np.asarray([*kept, float(sizes[-1])])


def _ramps(nodes: FloatArray, knots: FloatArray) -> FloatArray:
    """A constant and one ramp a segment: coefficients are the value at the first knot and the slopes."""
    lengths = np.diff(knots)
    ramps = [np.clip(nodes - start, 0.0, length) for start, length in zip(knots[:-1], lengths, strict=True)]
    return np.stack([np.ones_like(nodes), *ramps], axis=1)


def _nonnegative_least_squares(basis: FloatArray, values: FloatArray, weight: FloatArray) -> FloatArray:
    """Least squares with no coefficient below zero.

    QR first: the same problem in as many rows as there are columns, whatever the number of launches. The
    columns are scaled to length 1, because ramps of 1 node and of 1000 nodes are fitted together.
    """
    from scipy.optimize import nnls

    root = np.sqrt(weight)
    weighted = basis * root[:, None]
    length = np.maximum(np.sqrt((weighted**2).sum(axis=0)), 1e-300)
    orthogonal, triangle = np.linalg.qr(weighted / length)
    solution, _ = nnls(triangle, orthogonal.T @ (values * root))
    return np.asarray(solution, dtype=np.float64) / length


def _least_squares_line(nodes: FloatArray, latency_us: FloatArray, weight: FloatArray) -> Curve:
    """Plain least squares in microseconds, held above half of the least measured value."""
    slope, intercept = np.polyfit(nodes, latency_us, 1, w=np.sqrt(weight))
    if slope <= 0:
        slope, intercept = 0.0, float(np.average(latency_us, weights=weight))
    low, high = float(nodes.min()), float(nodes.max())
    floor = 0.5 * float(latency_us.min())
    values = (intercept + slope * low, intercept + slope * high)
    if values[0] >= floor:
        return Curve((low, high), values, low, high)
    if values[1] <= floor:
        return Curve((low,), (floor,), low, high)
    bend = (floor - intercept) / slope
    if not low < bend < high:
        return Curve((low,), (floor,), low, high)
    return Curve((low, bend, high), (floor, floor, values[1]), low, high)
