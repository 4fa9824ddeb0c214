"""The physics baseline: what a launch costs by its number of nodes alone, or a kernel by its roofline.

A launch costs a + b x nodes for each GPU, version, topology and profiling state; where enough sizes were measured
b may change with size (caches and driver queues fill), so the line becomes a polyline that never falls. The
same holds of a kernel's time over its roofline. It is fitted in relative error, because the values span 3 us to 2 ms: plain least squares is off by many times
its noise at small sizes, or negative. The trees then learn the ratio to it, and beyond the sizes that were
measured the last slope goes on, which trees cannot do.

Where a group is thin or was never seen, a coarser group answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.errors import ModelFileError, TrainingError
from warpgauge.latency.scheme import FloatArray, RowScheme
from warpgauge.latency.sealed_files import take, take_key, take_names, take_number, take_numbers

IntArray = npt.NDArray[np.int64]
CurveKind = Literal["polyline", "line"]
Key = tuple[str | None, ...]

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
LARGEST_SIZE_COUNT = 2_000
_FITS = 8
_SETTLED_RATIO = 1e-3
# Huber's constant: 95 % efficiency under normal noise.
_HUBER = 1.345
_OUTLIER_SPREADS = 5.0
_LEAST_US = 1e-3


@dataclass(frozen=True)
class Curve:
    """Latency by size (nodes, or roofline microseconds): a polyline that never falls and is always positive.

    Attributes:
        sizes: Sizes of the knots, rising.
        latency_us: Latency at each knot, positive, not falling.
        smallest, largest: Range of sizes that the curve was fitted on.
    """

    sizes: tuple[float, ...]
    latency_us: tuple[float, ...]
    smallest: float
    largest: float

    def predict(self, sizes: FloatArray) -> FloatArray:
        """Latency in microseconds, positive, for positive sizes."""
        knots, values = np.asarray(self.sizes), np.asarray(self.latency_us)
        answer = np.interp(sizes, knots, values)
        if len(knots) == 1:
            return answer
        first = (values[1] - values[0]) / (knots[1] - knots[0])
        last = (values[-1] - values[-2]) / (knots[-1] - knots[-2])
        # a + b x size with a >= 0 cannot fall faster than in proportion, so it stays positive.
        low = np.maximum(values[0] - first * (knots[0] - sizes), values[0] * sizes / knots[0])
        high = values[-1] + last * (sizes - knots[-1])
        return np.where(sizes < knots[0], low, np.where(sizes > knots[-1], high, answer))

    def scaled(self, factor: float, smallest: float, largest: float) -> Curve:
        """The same shape times a factor, for a group with its own range of sizes."""
        return Curve(self.sizes, tuple(value * factor for value in self.latency_us), smallest, largest)


@dataclass(frozen=True)
class BaselineAnswer:
    """What the baseline says of some rows.

    Attributes:
        latency_us: Positive, one a row.
        level: Place in the scheme's levels of the group that answered, one a row.
        sizes: Of the rows.
        smallest, largest: Range of sizes that this group was fitted on, one a row.
    """

    latency_us: FloatArray
    level: IntArray
    sizes: FloatArray
    smallest: FloatArray
    largest: FloatArray


@dataclass(frozen=True)
class Baseline:
    """One curve for each group of each level.

    Attributes:
        scheme: How rows are read.
        known: For each key column its values in training, sorted; null is not among them. A column that was
            always null is empty, and its value is ignored.
        has_missing: For each key column whether training rows lacked it.
        curves: For each level, key -> curve.
    """

    scheme: RowScheme
    known: Mapping[str, tuple[str, ...]]
    has_missing: Mapping[str, bool]
    curves: tuple[Mapping[Key, Curve], ...]

    @classmethod
    def fit(
        cls, scheme: RowScheme, rows: pl.DataFrame, latency_us: FloatArray, kind: CurveKind = "polyline"
    ) -> Baseline:
        """Fit on rows of a latency table.

        Args:
            scheme: How rows are read.
            rows: The key columns and those of the size.
            latency_us: Measured latency, positive and finite, one a row.
            kind: `polyline` is the baseline in use; `line` is plain least squares a + b x size a group,
                the yardstick that every report shows beside the model.

        Raises:
            TrainingError: If there is no row.
            SchemaError: If a size is missing.
        """
        if not rows.height:
            raise TrainingError("no row to fit a baseline on")
        sizes, levels = scheme.sizes(rows), scheme.levels
        keys = _text_columns(rows, scheme.key_columns)
        known = {name: tuple(keys[name].drop_nulls().unique().sort().to_list()) for name in keys.columns}
        has_missing = {name: keys[name].null_count() > 0 for name in keys.columns}
        # Large groups count alike, so that none stands for all; a thin one counts by its rows, so that it
        # does not bend the curve that it will borrow.
        group_size = np.full(rows.height, float(rows.height))
        for places in group_rows(keys).values():
            group_size[places] = len(places)
        weight = 1.0 / np.maximum(group_size, EQUAL_GROUP_ROWS)
        curves: list[dict[Key, Curve]] = [{} for _ in levels]
        # Coarser groups often hold the very rows of a finer one: the same rows are fitted once.
        fitted: dict[bytes, Curve | None] = {}

        def fit(places: IntArray) -> Curve | None:
            name = places.tobytes()
            if name not in fitted:
                fitted[name] = _fit_curve(sizes[places], latency_us[places], weight[places], kind)
            return fitted[name]

        everything = fit(np.arange(len(sizes))) or _thin(sizes, latency_us)
        for level in reversed(range(len(levels))):
            columns = levels[level]
            if not columns:
                curves[level][()] = everything
                continue
            for key, places in group_rows(keys.select(columns)).items():
                curve = fit(places)
                if curve is None and len(places) >= SHIFT_ROWS:
                    parent = _parent(levels, curves, level, dict(zip(columns, key, strict=True)), everything)
                    ratio = float(np.median(latency_us[places] / parent.predict(sizes[places])))
                    curve = parent.scaled(ratio, float(sizes[places].min()), float(sizes[places].max()))
                if curve is not None:
                    curves[level][key] = curve
        return cls(scheme, known, has_missing, tuple(curves))

    def predict(self, rows: pl.DataFrame) -> BaselineAnswer:
        """The latency that size and group alone foretell.

        Raises:
            SchemaError: If a size is missing.
        """
        sizes = self.scheme.sizes(rows)
        latency, smallest, largest = np.empty(len(sizes)), np.empty(len(sizes)), np.empty(len(sizes))
        level = np.zeros(len(sizes), dtype=np.int64)
        names = self.scheme.key_columns
        # A baseline without groups has one curve, and no column to tell rows apart by.
        keys = pl.DataFrame([self._query_values(rows, name) for name in names])
        grouped = group_rows(keys) if names else {(): np.arange(len(sizes))}
        for key, places in grouped.items():
            curve, found = self._curve(dict(zip(names, key, strict=True)))
            latency[places] = curve.predict(sizes[places])
            level[places], smallest[places], largest[places] = found, curve.smallest, curve.largest
        return BaselineAnswer(latency, level, sizes, smallest, largest)

    def rescaled(self, log_ratio: FloatArray) -> Baseline:
        """The same curves times how much slower newer rows are than was predicted, if all moved together.

        A change of everything by one factor is none that trees find: splitting gains nothing by it. A shift that is
        smaller than the rows' spread around it is left to the trees, and so are shifts of single groups: the trees
        were better at both (7.3 against 7.5 and 7.8 % error with 500 new matrix products).

        Args:
            log_ratio: log(measured / predicted) of newer rows, finite.
        """
        middle = float(np.median(log_ratio))
        if abs(middle) <= float(np.median(np.abs(log_ratio - middle))):
            return self
        factor = float(np.exp(middle))
        curves = tuple(
            {key: curve.scaled(factor, curve.smallest, curve.largest) for key, curve in found.items()}
            for found in self.curves
        )
        return replace(self, curves=curves)

    def unseen(self, rows: pl.DataFrame, name: str) -> tuple[pl.Series, npt.NDArray[np.bool_]]:
        """Values of a key column as they were read, and which of them training never showed.

        Missing counts as never seen where training had several values and none missing.
        """
        values = self._query_values(rows, name)
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
                            "sizes": list(curve.sizes),
                            "latency_us": list(curve.latency_us),
                            "smallest": curve.smallest,
                            "largest": curve.largest,
                        }
                        for key, curve in sorted(curves.items(), key=lambda pair: repr(pair[0]))
                    ],
                }
                for columns, curves in zip(self.scheme.levels, self.curves, strict=True)
            ],
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any], scheme: RowScheme) -> Baseline:
        """Back from JSON values; the scheme is stored beside them.

        Raises:
            ModelFileError: If a part is absent, of another kind, or not a positive rising curve.
        """
        known = take(document, "known", dict)
        has_missing = take(document, "has_missing", dict)
        levels = take(document, "levels", list)
        if [take(level, "columns", list) for level in levels] != [list(columns) for columns in scheme.levels]:
            raise ModelFileError("the baseline has other levels than this version; train a new version")
        curves: list[dict[Key, Curve]] = []
        for level in levels:
            found: dict[Key, Curve] = {}
            for entry in take(level, "curves", list):
                curve = Curve(
                    take_numbers(entry, "sizes"),
                    take_numbers(entry, "latency_us"),
                    take_number(entry, "smallest"),
                    take_number(entry, "largest"),
                )
                if (
                    not curve.sizes
                    or len(curve.sizes) != len(curve.latency_us)
                    or min(*curve.latency_us, *curve.sizes, curve.smallest) <= 0
                    or curve.smallest > curve.largest
                    or np.any(np.diff(curve.sizes) <= 0)
                    or np.any(np.diff(curve.latency_us) < 0)
                ):
                    raise ModelFileError(
                        f"the baseline curve of {entry.get('key')} is not positive and rising"
                    )
                found[take_key(entry, len(level["columns"]))] = curve
            curves.append(found)
        if () not in curves[-1]:
            raise ModelFileError("the baseline has no curve for all rows; train a new version")
        return cls(
            scheme,
            {name: take_names(known, name) for name in scheme.key_columns},
            {name: take(has_missing, name, bool) for name in scheme.key_columns},
            tuple(curves),
        )

    def _query_values(self, rows: pl.DataFrame, name: str) -> pl.Series:
        """A key column of rows to predict, as text, read as training would have read it.

        A column with a single value in training cannot tell rows apart: where the row does not say, that
        value is meant; where training never said, the row's value is ignored.
        """
        values = rows.get_column(name).cast(pl.String)
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
        for level, columns in enumerate(self.scheme.levels):
            curve = self.curves[level].get(tuple(key[name] for name in columns))
            if curve is not None:
                return curve, level
        raise ModelFileError("the baseline has no curve for all rows; train a new version")


def group_rows(keys: pl.DataFrame) -> dict[Key, IntArray]:
    """Row numbers of each combination of values, the values as text (`true` and `false` for flags)."""
    names = keys.columns
    if not names:
        return {}
    text = _text_columns(keys, tuple(names))
    grouped = text.with_row_index("row").group_by(names, maintain_order=True).agg("row")
    return {
        tuple(entry[name] for name in names): np.asarray(entry["row"], dtype=np.int64)
        for entry in grouped.iter_rows(named=True)
    }


def _text_columns(rows: pl.DataFrame, names: tuple[str, ...]) -> pl.DataFrame:
    return rows.select(pl.col(name).cast(pl.String) for name in names)


def _parent(
    levels: Sequence[tuple[str, ...]],
    curves: Sequence[Mapping[Key, Curve]],
    level: int,
    key: Mapping[str, str | None],
    everything: Curve,
) -> Curve:
    """The finest coarser curve whose columns are all among the key's."""
    for coarser in range(level + 1, len(levels)):
        columns = levels[coarser]
        if all(name in key for name in columns):
            curve = curves[coarser].get(tuple(key[name] for name in columns))
            if curve is not None:
                return curve
    return everything


def _thin(sizes: FloatArray, latency_us: FloatArray) -> Curve:
    """A line through the middle of a few sizes, with a typical cost for an empty graph."""
    middle, size = float(np.median(latency_us)), float(np.median(sizes))
    low, high = float(sizes.min()), float(sizes.max())
    if size <= 1 or high <= 1:
        return Curve((low,), (middle,), low, high)
    intercept = min(EMPTY_GRAPH_US, 0.5 * middle)
    slope = (middle - intercept) / size
    return Curve((1.0, high), (intercept + slope, intercept + slope * high), low, high)


def _fit_curve(
    row_sizes: FloatArray, latency_us: FloatArray, weight: FloatArray, kind: CurveKind
) -> Curve | None:
    """A curve for these rows, None if they have too few sizes or rows for a slope."""
    sizes, place = np.unique(row_sizes, return_inverse=True)
    if len(sizes) < CURVE_SIZES or len(row_sizes) < CURVE_ROWS:
        return None
    if kind == "line":
        return _least_squares_line(row_sizes, latency_us, weight)
    # One point a size: its weight is that of its rows, its value their geometric mean, in which one trial
    # that met an interrupt counts little.
    if len(sizes) > LARGEST_SIZE_COUNT:
        # Neighbours share a point: a curve of 20 knots cannot tell them apart, and its fit would take seconds.
        merged = np.arange(len(sizes)) * LARGEST_SIZE_COUNT // len(sizes)
        sizes = np.exp(np.bincount(merged, weights=np.log(sizes)) / np.bincount(merged))
        place = merged[place]
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
    """Knots at measured sizes, at equal steps of a mean of rank and logarithm, so that neither dense nor small
    sizes lack any.

    A knot between measured sizes would lie in a gap, where both its segments only extrapolate: with the sizes
    21 to 50 of four parallel lines held out it put 45 us where 33 were measured.
    """
    rank = np.linspace(0.0, 1.0, len(sizes))
    log = np.log(sizes / sizes[0]) / np.log(sizes[-1] / sizes[0])
    kept = [float(sizes[0])]
    places = np.interp(np.linspace(0.0, 1.0, count)[1:-1], (rank + log) / 2, np.arange(len(sizes)))
    for knot in sizes[np.rint(places).astype(np.int64)]:
        before = np.sum((sizes > kept[-1]) & (sizes <= knot))
        if before >= LEAST_SIZES_A_SEGMENT and np.sum(sizes > knot) >= LEAST_SIZES_A_SEGMENT:
            kept.append(float(knot))
    return np.asarray([*kept, float(sizes[-1])])


def _ramps(sizes: FloatArray, knots: FloatArray) -> FloatArray:
    """A constant and one ramp a segment: coefficients are the value at the first knot and the slopes."""
    lengths = np.diff(knots)
    ramps = [np.clip(sizes - start, 0.0, length) for start, length in zip(knots[:-1], lengths, strict=True)]
    return np.stack([np.ones_like(sizes), *ramps], axis=1)


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


def _least_squares_line(sizes: FloatArray, latency_us: FloatArray, weight: FloatArray) -> Curve:
    """Plain least squares in microseconds, held above half of the least measured value."""
    slope, intercept = np.polyfit(sizes, latency_us, 1, w=np.sqrt(weight))
    if slope <= 0:
        slope, intercept = 0.0, float(np.average(latency_us, weights=weight))
    low, high = float(sizes.min()), float(sizes.max())
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
