"""How any latency table is read by the latency model, as a spec file describes it.

The spec names columns, features and a roofline; nothing of it is code: features are SQL expressions over one row,
which Polars evaluates. Device figures are joined by name and travel with the model, so that a prediction needs
no file beside it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any, Literal, cast

import numpy as np
import polars as pl

from warpgauge.errors import ModelFileError, SchemaError, SettingsError
from warpgauge.latency.features import column_mismatch
from warpgauge.latency.scheme import FloatArray, GateMetric, RowScheme
from warpgauge.latency.sealed_files import take, take_names, take_number
from warpgauge.tables import TIME, Column, Table

KIND = "table"
Unit = Literal["ns", "us", "ms", "s"]
US_PER_UNIT: Mapping[str, float] = {"ns": 1e-3, "us": 1.0, "ms": 1e3, "s": 1e6}
NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
# Quoted texts and names, which stay, and numbers that Polars' SQL does not read: with an exponent, or beyond 64 bits.
_SQL_TOKEN = re.compile(
    r"""'(?:[^']|'')*'|"(?:[^"]|"")*"|(?<![\w.])(?:(?:\d+(?:\.\d*)?|\.\d+)[eE][+-]?\d{1,3}|\d{19,300})(?![\w.])"""
)
# A chain of operators is as deep as it is long: at 2,000 characters Polars ended the process in a thread.
LARGEST_EXPRESSION_LENGTH = 1_000
# Nodes of a parsed expression whose value depends on other rows. What this list lacks, three rows together still show.
_MANY_ROWS = frozenset(
    {"Agg", "Over", "Explode", "Selector", "SubPlan", "Len", "IntRange", "Shift", "Rank", "Quantile"}
    | {"Correlation", "NullCount"}
)
_OF_MANY_ROWS = "gives one row another value beside other rows: sums and windows are no features; use functions of one row"
IDENTITY = (
    Column(
        "row_id", pl.String(), "SHA-256 of the file's content and the ordinal of the record", required=True
    ),
    Column("source_name", pl.String(), "base name of the file", required=True),
    Column("source_sha256", pl.String(), "SHA-256 of the decompressed file", required=True),
    Column("record_ordinal", pl.Int64(), "place of the record in the file, from 0", required=True, minimum=0),
    Column("collected_at", TIME, "when the collector wrote the row", required=True),
)
RESERVED = tuple(column.name for column in IDENTITY)
# Where no device or kind could be left out of training: of the NeuSight tables, 90 % of the rows of a GPU or an
# operation that was left out lay within a factor of 2.2 of their prediction in the worst case (the T4).
STATED_FACTOR = 3.0
# A kernel of 10 us is no promise of 5 us, so a table's promise is a share unless its spec says otherwise.
PROMISE_RATIO = 0.05
LEAST_LEAF_ROWS = 20
# No clock tells less than a nanosecond, and no table holds months: beyond, the unit of the spec is wrong.
LEAST_LATENCY_US, LARGEST_LATENCY_US = 1e-3, 1e13
ROOFLINE_PARTS = ("flops", "bytes", "peak_flops_per_s", "peak_bytes_per_s")
PARAMETERS: Mapping[str, tuple[type, float, float]] = {
    "trees": (int, 1, 10_000),
    "leaves": (int, 2, 4_096),
    "learning_rate": (float, 1e-4, 1.0),
    "max_bin": (int, 2, 65_535),
    "min_data_in_leaf": (int, 1, 1_000_000),
    "lambda_l2": (float, 0.0, 1e6),
    "feature_fraction": (float, 0.01, 1.0),
}
OBJECTIVES = ("l2", "l1")


@dataclass(frozen=True)
class Roofline:
    """What a row's work costs at the device's peaks, as SQL expressions.

    Attributes:
        flops: Floating-point operations.
        bytes: Bytes moved.
        peak_flops_per_s, peak_bytes_per_s: Of the device.
    """

    flops: str
    bytes: str
    peak_flops_per_s: str
    peak_bytes_per_s: str


@dataclass(frozen=True)
class Devices:
    """Published figures of devices, joined to rows by name.

    Attributes:
        column: Column of the table that names the device.
        figures: Device -> figure -> number; each device has the same figures.
    """

    column: str
    figures: Mapping[str, Mapping[str, float]]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the figures."""
        return tuple(sorted({name for figures in self.figures.values() for name in figures}))


@dataclass(frozen=True, kw_only=True)
class TableScheme(RowScheme):
    """Rows of a latency table that a spec describes.

    Attributes:
        name: Of the table: letters, digits and `-`.
        unit: Of the label.
        numeric: Columns of numbers; each is a feature.
        text: Columns of text, categories among them.
        derived: Feature -> SQL expression over columns, device figures and earlier features.
        shape: Columns whose values together name a shape: rows of one shape stay on one side of a split.
        roofline: Baseline; None where the spec gives none, then a group's median is the baseline.
        devices: Device figures; None where the spec names none.
        time: Column that says when a row was measured, None where the table has none.
    """

    name: str
    unit: Unit
    numeric: tuple[str, ...]
    text: tuple[str, ...]
    derived: Mapping[str, str]
    shape: tuple[str, ...]
    roofline: Roofline | None
    devices: Devices | None
    time: str | None
    row_noun: str = "rows"
    id_column: str = "row_id"
    own_level_count: int = 1
    size_name: str = "roofline_us"
    gate_metric: GateMetric = "mape_ratio"
    has_trials: bool = False
    _expressions: Mapping[str, pl.Expr] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_expressions", self._checked_expressions())

    @property
    def table(self) -> Table:
        """The stored table: identity, columns, label."""
        columns = [
            *IDENTITY,
            *(Column(name, pl.Float64(), "number of the spec") for name in self.numeric),
            *(Column(name, pl.String(), "text of the spec") for name in self.text),
        ]
        if self.time is not None:
            columns.append(Column(self.time, pl.String(), "when the row was measured, as the file says"))
        columns.append(
            Column(self.target, pl.Float64(), "measured latency", unit=self.unit, required=True, minimum=0)
        )
        return Table(
            name=f"latency_{self.name.replace('-', '_')}",
            row="one measurement",
            key=("row_id",),
            columns=tuple(columns),
        )

    @property
    def has_size(self) -> bool:
        """See `RowScheme`; the roofline is the size."""
        return self.roofline is not None

    @property
    def input_kinds(self) -> dict[str, Literal["string", "double"]]:
        """See `RowScheme`."""
        return {**dict.fromkeys(self.numeric, "double"), **dict.fromkeys(self.text, "string")}

    def check(self, rows: pl.DataFrame, *, is_training: bool) -> None:
        """See `RowScheme`."""
        needed = [*self.numeric, *self.text]
        if is_training:
            needed += [self.id_column, self.target]
        known = self.table.schema
        unknown = [name for name in rows.columns if name not in known]
        missing = [name for name in needed if name not in rows.columns]
        if missing or unknown:
            raise SchemaError(column_mismatch(f"table {self.name}", missing, unknown))
        for name in needed:
            found, wanted = rows.schema[name], known[name]
            is_number = found.is_numeric() and wanted.is_numeric()
            is_text = wanted == pl.String and isinstance(found, pl.Categorical | pl.Enum)
            if not (is_number or is_text or found in (pl.Null, wanted)):
                raise SchemaError(f"table {self.name}: column {name} is {found}, needed is {wanted}")

    def conform(self, rows: pl.DataFrame) -> pl.DataFrame:
        """See `RowScheme`."""
        return self.table.conform(rows)

    def assume_ordinary(self, rows: pl.DataFrame, *, is_simulated: bool) -> pl.DataFrame:  # noqa: ARG002 - launches need it
        """The rows as they are: a table leaves nothing open."""
        return rows

    def usable(self, rows: pl.DataFrame) -> pl.DataFrame:
        """See `RowScheme`; a row without a roofline has no size, one of under 1 ns or over 115 days no label."""
        if self.target not in rows.columns:
            raise SchemaError(
                f"table {self.name}: column {self.target} is missing; it is the label to predict"
            )
        self.check(rows.drop(self.target), is_training=False)
        if not (rows.schema[self.target].is_numeric() or rows.schema[self.target] == pl.Null):
            raise SchemaError(
                f"table {self.name}: column {self.target} is {rows.schema[self.target]}, needed is Float64"
            )
        label = pl.col(self.target).cast(pl.Float64)
        microseconds = label * US_PER_UNIT[self.unit]
        with_label = rows.filter(microseconds.is_between(LEAST_LATENCY_US, LARGEST_LATENCY_US))
        size = self._roofline_us(with_label)
        return with_label.filter((size.is_finite() & (size > 0)).fill_null(False))

    def label_hint(self, rows: pl.DataFrame) -> str:
        """See `RowScheme`."""
        size = self._roofline_us(rows)
        lacking = int((~(size.is_finite() & (size > 0)).fill_null(False)).sum())
        said = f"collect more, or mend the spec (is the unit {self.unit}?)"
        return f"{said}; {lacking} rows have no roofline" if lacking else said

    def latency_us(self, rows: pl.DataFrame) -> FloatArray:
        """See `RowScheme`."""
        values = rows.get_column(self.target).cast(pl.Float64).to_numpy().astype(np.float64)
        return values * US_PER_UNIT[self.unit]

    def sizes(self, rows: pl.DataFrame) -> FloatArray:
        """Roofline of each row in microseconds, 1 where the spec has none; see `RowScheme`."""
        values = self._roofline_us(rows)
        bad = (~(values.is_finite() & (values > 0)).fill_null(False)).arg_true()
        if len(bad):
            what = ", ".join(
                f"{name}={value}"
                for name, value in rows.select(self._root_columns()).row(bad[0], named=True).items()
            )
            raise SchemaError(
                f"table {self.name}: {len(bad)} of {len(values)} rows have no roofline (first: row {bad[0]}, {what}); "
                f"give its columns, and the figures of its device in the spec"
            )
        return values.to_numpy().astype(np.float64)

    def features(self, rows: pl.DataFrame) -> pl.DataFrame:
        """See `RowScheme`."""
        names = [*self.numeric, *(self.devices.names if self.devices else ()), *self.derived]
        frame = self._with_derived(rows)
        values = [pl.col(name).cast(pl.Float64) for name in names]
        finite = [
            pl.when(value.is_finite()).then(value).alias(name)
            for name, value in zip(names, values, strict=True)
        ]
        return frame.select(*finite, *(pl.col(name).cast(pl.String) for name in self.categorical_names))

    def unknown_features(self, names: tuple[str, ...]) -> list[str]:
        """See `RowScheme`."""
        known = {
            *self.numeric,
            *(self.devices.names if self.devices else ()),
            *self.derived,
            *self.categorical_names,
        }
        return [name for name in names if name not in known]

    def is_copied(self, feature: str) -> bool:
        """See `RowScheme`."""
        return feature in self.numeric or feature in self.text

    def shapes(self, rows: pl.DataFrame) -> pl.Series:
        """See `RowScheme`."""
        return self._joined(rows, self.shape)

    def groups(self, rows: pl.DataFrame) -> pl.Series:
        """See `RowScheme`; equal in every column of the spec."""
        return self._joined(rows, (*self.numeric, *self.text))

    def size_bands(self, rows: pl.DataFrame) -> pl.Series:
        """Decade of each row's roofline: `roofline 1 to 10 us`."""
        if self.roofline is None:
            return pl.Series("size_band", ["all"] * rows.height, dtype=pl.String)
        decades = np.floor(np.log10(self.sizes(rows)) + 1e-12).astype(int)
        names = {
            decade: f"roofline {10.0**decade:g} to {10.0 ** (decade + 1):g} us"
            for decade in sorted(set(decades.tolist()))
        }
        return pl.Series("size_band", [names[decade] for decade in decades.tolist()], dtype=pl.String)

    def least_leaf_rows(self, row_count: int) -> int:  # noqa: ARG002 - launches need it
        """See `RowScheme`; rows are measured once, and 20 a leaf was best on both public tables."""
        return LEAST_LEAF_ROWS

    def times(self, rows: pl.DataFrame) -> pl.Series:
        """See `RowScheme`; the spec's `time` is a number or an ISO 8601 date or time."""
        if self.time is None or self.time not in rows.columns:
            return pl.Series("time", [None], dtype=pl.Float64).new_from_index(0, rows.height)
        texts = rows.get_column(self.time).cast(pl.String)
        known = {text: _moment(text) for text in texts.drop_nulls().unique().to_list()}
        return pl.Series("time", [known.get(text) for text in texts.to_list()], dtype=pl.Float64)

    def is_simulated(self, rows: pl.DataFrame) -> pl.Series:
        """No row: a table holds measurements."""
        return pl.Series("is_simulated", [False]).new_from_index(0, rows.height)

    def summary(self, rows: pl.DataFrame) -> dict[str, Any]:
        """See `RowScheme`."""
        sizes = self.sizes(rows)
        return {
            "row_count": rows.height,
            "shape_count": self.shapes(rows).n_unique(),
            "source_name": rows.get_column("source_name").drop_nulls().unique().sort().to_list()
            if "source_name" in rows.columns
            else [],
            **{
                name: rows.get_column(name).cast(pl.String).drop_nulls().unique().sort().to_list()
                for name in self.key_columns
            },
            "smallest_roofline_us": float(sizes.min()),
            "largest_roofline_us": float(sizes.max()),
        }

    def to_document(self) -> dict[str, Any]:
        """See `RowScheme`."""
        return {
            "kind": KIND,
            "name": self.name,
            "target": self.target,
            "unit": self.unit,
            "numeric": list(self.numeric),
            "text": list(self.text),
            "categorical": list(self.categorical_names),
            "derived": [[name, text] for name, text in self.derived.items()],
            "shape": list(self.shape),
            "by": list(self.key_columns),
            "slices": list(self.slice_columns),
            "roofline": None
            if self.roofline is None
            else {part: getattr(self.roofline, part) for part in ROOFLINE_PARTS},
            "devices": None
            if self.devices is None
            else {
                "column": self.devices.column,
                "figures": {name: dict(figures) for name, figures in sorted(self.devices.figures.items())},
            },
            "time": self.time,
            "promise_us": self.promise_us,
            "promise_ratio": self.promise_ratio,
            "parameters": dict(self.parameters),
            "monotone": dict(self.monotone),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> TableScheme:
        """Back from `to_document`.

        Raises:
            ModelFileError: If a part is absent, of another kind or no expression.
        """
        roofline = document.get("roofline")
        devices = document.get("devices")
        time = document.get("time")
        if not (time is None or isinstance(time, str)):
            raise ModelFileError("the model's time column is no name; train a new version")
        try:
            return table_scheme(
                name=take(document, "name", str),
                target=take(document, "target", str),
                unit=cast(Unit, take(document, "unit", str)),
                numeric=take_names(document, "numeric"),
                text=take_names(document, "text"),
                categorical=take_names(document, "categorical"),
                derived={name: text for name, text in take(document, "derived", list)},  # noqa: C416 - checks pairs
                shape=take_names(document, "shape"),
                by=take_names(document, "by"),
                slices=take_names(document, "slices"),
                roofline=None
                if roofline is None
                else Roofline(**{part: take(roofline, part, str) for part in ROOFLINE_PARTS}),
                devices=None
                if devices is None
                else Devices(take(devices, "column", str), take(devices, "figures", dict)),
                time=time,
                promise_us=take_number(document, "promise_us"),
                promise_ratio=take_number(document, "promise_ratio"),
                parameters=take(document, "parameters", dict),
                monotone=take(document, "monotone", dict),
            )
        except (SettingsError, TypeError, ValueError, AttributeError, ArithmeticError) as error:
            raise ModelFileError(
                f"the model's table scheme is damaged: {error}; train a new version"
            ) from error

    def _joined(self, rows: pl.DataFrame, names: Sequence[str]) -> pl.Series:
        # A whole number is the same shape whatever type holds it.
        numbers = [pl.col(name).cast(pl.Float64) if name in self.numeric else pl.col(name) for name in names]
        parts = [value.cast(pl.String).fill_null("") for value in numbers]
        return rows.select(pl.concat_str(parts, separator="|").alias("shape")).get_column("shape")

    def _with_derived(self, rows: pl.DataFrame) -> pl.DataFrame:
        """The rows with device figures and derived features beside their columns."""
        # SQL divides and overflows otherwise with whole numbers.
        frame = rows.select(
            *(pl.col(name).cast(pl.Float64) for name in self.numeric),
            *(pl.col(name).cast(pl.String) for name in self.text),
        )
        if self.devices is not None:
            figures = pl.DataFrame(
                [{self.devices.column: device, **values} for device, values in self.devices.figures.items()],
                schema={self.devices.column: pl.String, **dict.fromkeys(self.devices.names, pl.Float64)},
            )
            frame = frame.join(figures, on=self.devices.column, how="left", maintain_order="left")
        for name in self.derived:
            frame = frame.with_columns(self._value(frame, name).alias(name))
        return frame

    def _value(self, frame: pl.DataFrame, name: str) -> pl.Series:
        try:
            values = frame.select(self._expressions[name].cast(pl.Float64).alias(name)).get_column(name)
            return values if len(values) == frame.height else values.new_from_index(0, frame.height)
        except pl.exceptions.PolarsError as error:
            raise SchemaError(
                f"table {self.name}: {name} cannot be computed: {error}; mend the spec"
            ) from error

    def _roofline_us(self, rows: pl.DataFrame) -> pl.Series:
        if self.roofline is None:
            return pl.Series("roofline_us", [1.0]).new_from_index(0, rows.height)
        # Apart from the columns, one of which may be called `bytes`.
        frame = self._with_derived(rows)
        frame = pl.DataFrame([self._value(frame, f"baseline.{part}").alias(part) for part in ROOFLINE_PARTS])
        compute, memory = (
            pl.when(pl.col(peak) > 0).then(pl.col(work) / pl.col(peak))
            for work, peak in zip(ROOFLINE_PARTS[:2], ROOFLINE_PARTS[2:], strict=True)
        )
        seconds = pl.when(compute.is_not_null() & memory.is_not_null()).then(
            pl.max_horizontal(compute, memory)
        )
        return frame.select((seconds * 1e6).alias("roofline_us")).get_column("roofline_us")

    def _root_columns(self) -> list[str]:
        """Columns that decide a row's roofline."""
        return [*self.numeric, *({self.devices.column} if self.devices else ())]

    def _checked_expressions(self) -> dict[str, pl.Expr]:
        """Every expression parsed, and each of its columns known.

        Raises:
            SettingsError: Naming the expression, and the name that it does not know.
        """
        known = [*self.numeric, *self.text, *(self.devices.names if self.devices else ())]
        texts = dict(self.derived)
        if self.roofline is not None:
            texts |= {f"baseline.{part}": getattr(self.roofline, part) for part in ROOFLINE_PARTS}
        parsed: dict[str, pl.Expr] = {}
        for name, text in texts.items():
            parsed[name] = parse_expression(name, text, known)
            if name in self.derived:
                known.append(name)
        self._require_row_by_row(parsed)
        return parsed

    def _require_row_by_row(self, parsed: Mapping[str, pl.Expr]) -> None:
        """Stop on an expression whose value depends on other rows: a prediction of one row would be another.

        Told by its values: three rows together must give what each gives alone.

        Raises:
            SettingsError: Naming the expression.
        """
        numbers = [*self.numeric, *(self.devices.names if self.devices else ())]
        frame = pl.DataFrame(
            {
                **{
                    name: [3.0 + place, 40.0 + 7 * place, 900.0 + 13 * place]
                    for place, name in enumerate(numbers)
                },
                **{name: ["a", "b", "c"] for name in self.text},
            }
        )
        for name, expression in parsed.items():
            value = expression.cast(pl.Float64)
            try:
                together = frame.select(value.alias(name)).get_column(name)
                alone = pl.concat([frame[row : row + 1].select(value.alias(name)) for row in range(3)])
            except pl.exceptions.PolarsError as error:
                raise SettingsError(f"{name} cannot be computed as a number: {error}") from error
            # A batch is computed in vectors, which may round the last bit otherwise.
            beside = np.resize(together.to_numpy(), 3) if len(together) in (1, 3) else np.full(3, np.nan)
            if alone.height != 3 or not np.allclose(
                alone.get_column(name).to_numpy(), beside, rtol=1e-9, equal_nan=True
            ):
                raise SettingsError(f"{name} {_OF_MANY_ROWS}")
            frame = frame.with_columns(value.alias(name))


def parse_expression(name: str, text: str, known: Sequence[str]) -> pl.Expr:
    """One SQL expression over known columns; `1e9` may be written, which Polars' SQL does not read.

    Raises:
        SettingsError: If it cannot be read, or uses a name that is not known.
    """
    said = f"{name} = {text!r:.120}"
    if len(text) > LARGEST_EXPRESSION_LENGTH:
        raise SettingsError(
            f"{said} has {len(text)} signs, at most {LARGEST_EXPRESSION_LENGTH} are read; "
            f"write parts of it as features of their own"
        )
    try:
        expression = pl.sql_expr(_SQL_TOKEN.sub(_plain_decimal, text))
        nodes = set(_node_names(json.loads(expression.meta.serialize(format="json"))))
    except (pl.exceptions.PolarsError, RecursionError) as error:
        raise SettingsError(f"{said} is no SQL expression: {str(error)[:300]}") from error
    if nodes & _MANY_ROWS:
        raise SettingsError(f"{said} {_OF_MANY_ROWS}")
    unknown = sorted(set(expression.meta.root_names()) - set(known))
    if unknown:
        raise SettingsError(
            f"{said} uses {', '.join(unknown)}, which is no column, device figure or earlier feature; "
            f"known: {', '.join(known)}"
        )
    return expression


def _plain_decimal(token: re.Match[str]) -> str:
    """A number without an exponent; a quoted text as it stands."""
    text = token.group()
    if text[0] in "'\"":
        return text
    plain = format(Decimal(text), "f")
    return plain if "." in plain else f"{plain}.0"


def _node_names(node: Any) -> Iterator[str]:
    """Names of the nodes of a parsed expression, without those of columns and texts."""
    if isinstance(node, str):
        yield node
    elif isinstance(node, list):
        for part in node:
            yield from _node_names(part)
    elif isinstance(node, dict):
        for name, part in node.items():
            yield name
            if name not in ("Column", "String"):
                yield from _node_names(part)


def _moment(text: str) -> float | None:
    """A number as it stands, an ISO 8601 date or time in seconds since 1970; None for anything else."""
    try:
        number = float(text)
    except ValueError:
        try:
            moment = datetime.fromisoformat(text.strip())
        except ValueError:
            return None
        return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
    return number if math.isfinite(number) else None


def table_scheme(
    *,
    name: str,
    target: str,
    unit: Unit,
    numeric: tuple[str, ...],
    text: tuple[str, ...],
    categorical: tuple[str, ...],
    derived: Mapping[str, str],
    shape: tuple[str, ...],
    by: tuple[str, ...],
    slices: tuple[str, ...],
    roofline: Roofline | None,
    devices: Devices | None,
    time: str | None,
    promise_us: float,
    promise_ratio: float,
    parameters: Mapping[str, float | str],
    monotone: Mapping[str, int],
) -> TableScheme:
    """A scheme after every check of its names against each other.

    Raises:
        SettingsError: Naming what is wrong.
    """
    if not NAME.fullmatch(name):
        raise SettingsError(
            f"name is {name!r:.80}; a-z, 0-9 and -, from a letter on, at most 40 signs are needed"
        )
    if unit not in US_PER_UNIT:
        raise SettingsError(f"unit is {unit!r}; known units: {', '.join(US_PER_UNIT)}")
    columns = [*numeric, *text, target, *([time] if time else [])]
    figures = list(devices.names) if devices else []
    everything = [*columns, *figures, *derived, *RESERVED]
    twice = sorted({one for one in everything if everything.count(one) > 1})
    if twice:
        raise SettingsError(
            f"{', '.join(twice)} is named twice among columns, figures and features, or is reserved"
        )
    for what, names, allowed in (
        ("categorical", categorical, text),
        ("shape", shape, (*numeric, *text)),
        ("baseline.by", by, text),
        ("slices", slices, text),
        ("devices.column", (devices.column,) if devices else (), text),
    ):
        strange = [one for one in names if one not in allowed]
        if strange:
            kind = "text column" if allowed == text else "column"
            raise SettingsError(
                f"{what}: {', '.join(strange)} is no {kind} of the spec; known: {', '.join(allowed)}"
            )
    if not shape:
        raise SettingsError(
            "shape is empty: name the columns that make two rows measurements of the same thing"
        )
    if not (numeric or categorical or derived):
        raise SettingsError("no feature: name columns under numeric or categorical")
    if not (
        math.isfinite(promise_us) and math.isfinite(promise_ratio) and promise_us >= 0 and promise_ratio > 0
    ):
        raise SettingsError(f"promise is {promise_us} us and {promise_ratio}; a positive share is needed")
    _check_figures(devices)
    if monotone and parameters.get("objective") == "l1":
        raise SettingsError(
            "monotone goes with the objective l2 alone: LightGBM holds no constraint under l1"
        )
    for feature, sign in monotone.items():
        is_sign = isinstance(sign, int) and not isinstance(sign, bool) and sign in (-1, 1)
        if feature not in (*numeric, *figures, *derived) or not is_sign:
            raise SettingsError(
                f"monotone.{feature} is {sign!r}; a number feature of the spec with 1 (the latency over its "
                f"baseline may only rise with it) or -1 is needed"
            )
    if devices is not None and devices.column not in by:
        # A device that no row showed has a curve of no group of its own, and is named.
        by = (*by, devices.column)
    levels = tuple(by[:count] for count in range(len(by), -1, -1))
    return TableScheme(
        name=name,
        target=target,
        unit=unit,
        numeric=numeric,
        text=text,
        categorical_names=categorical,
        derived=dict(derived),
        shape=shape,
        roofline=roofline,
        devices=devices,
        time=time,
        parameters={parameter: _parameter(parameter, value) for parameter, value in parameters.items()},
        monotone=dict(monotone),
        levels=levels,
        interval_levels=tuple(level for level in levels if level),
        noise_columns=by,
        slice_columns=slices,
        stated_factors=dict.fromkeys(by, STATED_FACTOR),
        promise_us=promise_us,
        promise_ratio=promise_ratio,
    )


def _check_figures(devices: Devices | None) -> None:
    for device, figures in ({} if devices is None else devices.figures).items():
        for figure, value in figures.items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not (is_number and math.isfinite(value)):
                raise SettingsError(f"device {device}: {figure} is {value!r}; a finite number is needed")


def _parameter(name: str, value: Any) -> float | str:
    """What a spec chose about the trees, in the type that LightGBM takes."""
    if name == "objective":
        if value not in OBJECTIVES:
            raise SettingsError(f"training.objective is {value!r}; known: {', '.join(OBJECTIVES)}")
        return str(value)
    if name not in PARAMETERS:
        raise SettingsError(f"training.{name} is unknown; known: objective, {', '.join(PARAMETERS)}")
    kind, least, most = PARAMETERS[name]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not least <= value <= most or kind(value) != value:
        raise SettingsError(f"training.{name} is {value!r}; {least:g} to {most:g} is needed")
    return kind(value)
