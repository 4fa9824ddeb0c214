"""Does a value from outside fit its column's type, and what is it then?

Polars would turn text that is not a number into null (a wrong value would look like a missing one) and
lets inf and nan pass as numbers. Here each value that is there and does not fit keeps a reason.
"""

from __future__ import annotations

import json
import math
from datetime import UTC, date, datetime, time
from decimal import Decimal
from typing import Any

import polars as pl

from warpgauge.tables import TIME, Column

# Above 2**53 a float no longer holds every whole number, so a larger one has already lost digits.
LARGEST_EXACT_FLOAT = 2**53
# No number of any column has more bits; Python refuses to print the longest ones.
LARGEST_PRINTED_BITS = 1024
SHOWN_VALUE_CHARACTERS = 80


def type_series(  # noqa: PLR0911 - one return for each pair of types
    raw: pl.Series, column: Column
) -> tuple[pl.Series, pl.Series]:
    """The values in the column's type, and for each a reason if it does not fit (null if it does)."""
    if raw.dtype == column.dtype and not isinstance(column.dtype, pl.String | pl.Float64):
        return raw, _no_reasons(raw)
    if raw.dtype == pl.Null():
        return raw.cast(column.dtype), _no_reasons(raw)
    if raw.dtype.is_(pl.Object):
        return _type_objects(raw, column)
    if isinstance(raw.dtype, pl.Categorical | pl.Enum):
        raw = raw.cast(pl.String)
    target = column.dtype
    if isinstance(target, pl.String):
        return _type_text_column(raw)
    if isinstance(raw.dtype, pl.String):
        text = raw.str.strip_chars()
        raw = text.set(text.str.len_bytes() == 0, None)
    if isinstance(target, pl.Float64):
        return _type_floats(raw)
    if isinstance(target, pl.Int64):
        return _type_integers(raw)
    if isinstance(target, pl.Boolean):
        return _type_flags(raw)
    if isinstance(target, pl.Datetime):
        return _type_times(raw)
    if isinstance(target, pl.List):
        return _type_lists(raw)
    raise TypeError(f"column {column.name}: no rule to read values of type {target}")


def _no_reasons(raw: pl.Series) -> pl.Series:
    return pl.Series([None] * raw.len(), dtype=pl.String)


def _misfit(raw: pl.Series, dtype: pl.DataType, reason: str) -> tuple[pl.Series, pl.Series]:
    """No value of this series fits."""
    frame = pl.DataFrame({"raw": raw}).select(
        values=pl.lit(None, dtype=dtype),
        reasons=pl.when(pl.col("raw").is_not_null()).then(pl.lit(reason)),
    )
    return frame["values"], frame["reasons"]


def _settle(raw: pl.Series, values: pl.Expr, *reasons: tuple[pl.Expr, str]) -> tuple[pl.Series, pl.Series]:
    """The first reason whose condition holds for a value that is there; such a value becomes null."""
    chosen: Any = pl.when(pl.col("raw").is_null()).then(pl.lit(None, dtype=pl.String))
    for condition, reason in reasons:
        chosen = chosen.when(condition).then(pl.lit(reason))
    frame = pl.DataFrame({"raw": raw}).with_columns(values=values)
    frame = frame.with_columns(reasons=chosen.otherwise(None))
    frame = frame.with_columns(values=pl.when(pl.col("reasons").is_null()).then(pl.col("values")))
    return frame["values"], frame["reasons"]


def _type_text_column(raw: pl.Series) -> tuple[pl.Series, pl.Series]:
    if isinstance(raw.dtype, pl.String):
        blank = raw.str.strip_chars().str.len_bytes() == 0
        return raw.set(blank.fill_null(False), None), _no_reasons(raw)
    if raw.dtype.is_integer():
        return raw.cast(pl.String), _no_reasons(raw)
    # A float has lost how it was written (version 12.10 is 12.1 by now), so it cannot become text.
    return _misfit(raw, pl.String(), "not text")


def _type_floats(raw: pl.Series) -> tuple[pl.Series, pl.Series]:
    if not (raw.dtype.is_numeric() or isinstance(raw.dtype, pl.String)):
        return _misfit(raw, pl.Float64(), "not a number")
    return _settle(
        raw,
        pl.col("raw").cast(pl.Float64, strict=False),
        (pl.col("values").is_null(), "not a number"),
        (~pl.col("values").is_finite(), "not a finite number"),
    )


def _type_integers(raw: pl.Series) -> tuple[pl.Series, pl.Series]:
    if raw.dtype.is_integer():
        return _settle(
            raw,
            pl.col("raw").cast(pl.Int64, strict=False),
            (pl.col("values").is_null(), "beyond 64 bits"),
        )
    if not (raw.dtype.is_numeric() or isinstance(raw.dtype, pl.String)):
        return _misfit(raw, pl.Int64(), "not a number")
    number = pl.col("raw").cast(pl.Float64, strict=False)
    is_digits = (
        pl.col("raw").str.contains(r"^[+-]?[0-9]+$") if isinstance(raw.dtype, pl.String) else pl.lit(False)
    )
    # Digits are read as they stand, so that no time in nanoseconds loses its last ones in a float.
    exact = pl.col("raw").cast(pl.Int64, strict=False)
    values = pl.when(is_digits).then(exact).otherwise(number.cast(pl.Int64, strict=False))
    return _settle(
        raw,
        values,
        (number.is_null(), "not a number"),
        (~number.is_finite(), "not a finite number"),
        (is_digits & pl.col("values").is_null(), "beyond 64 bits"),
        (~is_digits & (number.floor() != number), "not a whole number"),
        (~is_digits & (number.abs() > LARGEST_EXACT_FLOAT), "too large for an exact whole number"),
    )


def _type_flags(raw: pl.Series) -> tuple[pl.Series, pl.Series]:
    if raw.dtype.is_numeric():
        number = pl.col("raw")
        values = pl.when(number == 1).then(True).when(number == 0).then(False)
    elif isinstance(raw.dtype, pl.String):
        word = pl.col("raw").str.to_lowercase()
        values = pl.when(word.is_in(["true", "1"])).then(True).when(word.is_in(["false", "0"])).then(False)
    else:
        return _misfit(raw, pl.Boolean(), "not true or false")
    return _settle(raw, values, (pl.col("values").is_null(), "not true or false"))


def _type_times(raw: pl.Series) -> tuple[pl.Series, pl.Series]:
    if isinstance(raw.dtype, pl.Datetime) and raw.dtype.time_zone is not None:
        return raw.dt.convert_time_zone("UTC").cast(TIME), _no_reasons(raw)
    if isinstance(raw.dtype, pl.Datetime | pl.Date):
        return _misfit(raw, TIME, "a time without its zone")
    if not isinstance(raw.dtype, pl.String):
        return _misfit(raw, TIME, "not a time in ISO 8601")
    values: list[datetime | None] = []
    reasons: list[str | None] = []
    for text in raw.to_list():
        value, reason = None, None
        if text is not None:
            try:
                value = datetime.fromisoformat(text)
                if value.tzinfo is None:
                    value, reason = None, "a time without its zone"
                else:
                    value = value.astimezone(UTC)
            except (ValueError, OverflowError):
                value, reason = None, "not a time in ISO 8601"
        values.append(value)
        reasons.append(reason)
    return pl.Series(values, dtype=TIME), pl.Series(reasons, dtype=pl.String)


def _type_lists(raw: pl.Series) -> tuple[pl.Series, pl.Series]:
    if isinstance(raw.dtype, pl.List) and isinstance(raw.dtype.inner, pl.Null | pl.Categorical | pl.Enum):
        return raw.cast(pl.List(pl.String)), _no_reasons(raw)
    if not isinstance(raw.dtype, pl.String):
        return _misfit(raw, pl.List(pl.String), "not a list of texts")
    values: list[list[str] | None] = []
    reasons: list[str | None] = []
    for text in raw.to_list():
        value, reason = None, None
        if text is not None:
            try:
                value = json.loads(text)
            except (ValueError, RecursionError):
                reason = "not a JSON list of texts"
            if not (isinstance(value, list) and all(isinstance(item, str) for item in value)):
                value, reason = None, "not a JSON list of texts"
        values.append(value)
        reasons.append(reason)
    return pl.Series(values, dtype=pl.List(pl.String)), pl.Series(reasons, dtype=pl.String)


def _type_objects(raw: pl.Series, column: Column) -> tuple[pl.Series, pl.Series]:
    """Mixed Python objects, by way of the text that each stands for."""
    texts: list[str | None] = []
    early: list[str | None] = []
    for value in raw.to_list():
        text, reason = _text_of(value, wants_text=isinstance(column.dtype, pl.String))
        texts.append(text)
        early.append(reason)
    values, late = type_series(pl.Series(texts, dtype=pl.String), column)
    reasons = pl.select(pl.coalesce(pl.Series(early, dtype=pl.String), late)).to_series()
    return values, reasons


def _text_of(value: Any, *, wants_text: bool) -> tuple[str | None, str | None]:
    """A Python object as text, or the reason why it has none."""
    text: str | None = None
    if value is None:
        return None, None
    if isinstance(value, str):
        text = value
    elif isinstance(value, bool) and not wants_text:
        text = str(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        text = str(value) if value.bit_length() <= LARGEST_PRINTED_BITS else None
    elif isinstance(value, float | Decimal) and not wants_text:
        text = repr(float(value)) if math.isfinite(value) else str(value)
    elif isinstance(value, datetime) and not wants_text:
        text = value.isoformat()
    elif isinstance(value, list | tuple) and not wants_text and all(isinstance(item, str) for item in value):
        text = json.dumps(list(value))
    if text is None:
        return None, f"{type(value).__name__} is not of the column's type"
    try:
        text.encode()
    except UnicodeEncodeError:
        return None, "not valid Unicode"
    return text, None


def type_text(dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.Datetime):
        return "a time with its zone"
    if isinstance(dtype, pl.List):
        return "a list of texts"
    names = {"Float64": "a number", "Int64": "a whole number", "Boolean": "true or false"}
    return names.get(str(dtype), "text")


def shown(value: Any) -> str:
    """A value as it may stand in a message: quoted if text, short, printable."""
    if isinstance(value, str):
        text = repr(value[: SHOWN_VALUE_CHARACTERS + 1])
    elif isinstance(value, datetime | date | time):
        text = value.isoformat()
    elif isinstance(value, int) and value.bit_length() > LARGEST_PRINTED_BITS:
        text = f"a whole number of {value.bit_length()} bits"
    else:
        text = str(value)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN_VALUE_CHARACTERS else text[: SHOWN_VALUE_CHARACTERS - 3] + "..."
