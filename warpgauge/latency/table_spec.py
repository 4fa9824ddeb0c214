"""A spec file in TOML: which files hold a latency table, and how its rows are read.

name = "h200-gemm"                  # registered as latency-h200-gemm
files = ["gemm_*.parquet"]          # CSV, Parquet or JSON lines, gzip too; relative to this file
target = "latency"
unit = "ms"
numeric = ["m", "n", "k"]           # columns of numbers, each a feature
categorical = ["gemm_dtype"]        # columns of text, each a feature
shape = ["gemm_dtype", "m", "n", "k"]   # rows equal in these stay on one side of every split

[features]                          # SQL expressions over one row
tiles = "ceil(m / 128) * ceil(n / 128)"

[devices]                           # figures joined by name, from JSON files or written here
column = "device"
[devices.figures."NVIDIA H200"]
peak_tflops = 989.0

[baseline]                          # roofline; `by` names the groups that have a curve of their own
by = ["device", "gemm_dtype"]
flops = "2 * m * n * k"
bytes = "2 * (m * k + k * n + m * n)"
peak_flops_per_s = "peak_tflops * 1e12"
peak_bytes_per_s = "4.8e12"
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from glob import glob
from pathlib import Path
from typing import Any, cast

import polars as pl

from warpgauge.errors import SchemaError, SettingsError, SourceFileError
from warpgauge.latency.table_scheme import (
    PROMISE_RATIO,
    RESERVED,
    ROOFLINE_PARTS,
    Devices,
    Roofline,
    TableScheme,
    Unit,
    table_scheme,
)
from warpgauge.source_file import SourceFile, decode_text, read_source_file
from warpgauge.tables import TIME
from warpgauge.validation import type_columns

# A spec and a device file are written by hand: the largest ones here have 2 kB.
SIZE_LIMIT_BYTES = 1_000_000
LARGEST_NUMBER = 1e300
_KINDS: Mapping[Any, str] = {str: "a text", list: "a list", dict: "a table"}
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TOP_LEVEL = (
    "name", "files", "target", "unit", "numeric", "categorical", "text", "shape", "slices", "time",
    "rename", "features", "devices", "baseline", "promise", "training", "monotone",
)  # fmt: skip


@dataclass(frozen=True)
class TableSpec:
    """A spec file, read and checked.

    Attributes:
        path: The spec file.
        scheme: How rows are read.
        root: Folder that relative paths start from.
        patterns: Paths or globs of the files that hold the rows, as the spec has them.
        renamed: Column of the files -> its name here.
    """

    path: Path
    scheme: TableScheme
    root: Path
    patterns: tuple[str, ...]
    renamed: Mapping[str, str]

    def files(self) -> list[Path]:
        """The files that hold rows now, sorted; a pattern may match none yet.

        Raises:
            SourceFileError: If no pattern matches anything.
        """
        found = sorted({path for pattern in self.patterns for path in _matches(self.root, pattern)})
        if not found:
            raise SourceFileError(
                f"{self.path}: no file in {self.root} matches {', '.join(self.patterns)}; mend `files`"
            )
        return found

    def rows(self, found: pl.DataFrame, source: SourceFile) -> tuple[pl.DataFrame, list[str]]:
        """Rows of one file as the table stores them, but for when they were collected.

        Args:
            found: Its rows, with the spec's names; other columns are left out, absent ones become null.
            source: The file, for its name and hash.

        Returns:
            The rows, and in words what in them was no value of its column and was taken as missing.

        Raises:
            NoDataError: If it has no row.
            CheckNotEvaluableError: If the label's column is absent.
        """
        table = self.scheme.table
        own = [name for name in table.column_names if name in found.columns and name not in RESERVED]
        identity = pl.DataFrame(
            {
                "source_name": [source.name] * found.height,
                "source_sha256": [source.sha256] * found.height,
                "record_ordinal": range(found.height),
                # A placeholder, so that the typing rules find every required column.
                "row_id": [""] * found.height,
                "collected_at": pl.Series([datetime(2000, 1, 1, tzinfo=UTC)], dtype=TIME).new_from_index(
                    0, found.height
                ),
            }
        )
        values = [self._as_written(found.get_column(name)) for name in own]
        typed, problems = type_columns(identity.with_columns(values), table, origin=source.name)
        ids = [
            hashlib.sha256(f"{self.scheme.name}:{source.sha256}:{ordinal}".encode()).hexdigest()
            for ordinal in range(found.height)
        ]
        notes = []
        if problems:
            first = problems[0]
            notes.append(
                f"{len(problems)} values are none of their column and count as missing (first: row "
                f"{first.row + 1}, column {first.column}: {first.value} is {first.reason})"
            )
        return typed.with_columns(pl.Series("row_id", ids)).drop("collected_at"), notes

    def _as_written(self, column: pl.Series) -> pl.Series:
        """Flags as 0 and 1 or `true` and `false`, and times as text: a typed file says what a CSV would."""
        is_text = column.name in self.scheme.text or column.name == self.scheme.time
        if column.dtype == pl.Boolean:
            return column.cast(pl.String if is_text else pl.Float64)
        if column.name == self.scheme.time and (column.dtype.is_temporal() or column.dtype.is_float()):
            return column.dt.to_string("iso") if column.dtype.is_temporal() else column.cast(pl.String)
        return column

    def require_columns(self, present: Collection[str]) -> None:
        """Stop if a column of the spec is in none of its files: a misspelt one would count as always missing.

        Raises:
            SchemaError: Naming the columns and what they may be called.
        """
        wanted = [name for name in self.scheme.table.column_names if name not in RESERVED]
        absent = [name for name in wanted if name not in present]
        if absent:
            extra = sorted(set(present) - set(wanted))
            hints = [
                f"{name} ({' or '.join(near)}?)"
                if (near := difflib.get_close_matches(name, extra, n=2))
                else name
                for name in absent
            ]
            raise SchemaError(
                f"{self.path}: no file has the column {', '.join(hints)}; mend the spec, or name it under [rename]"
            )


def read_table_spec(path: Path | str, folder: Path | str | None = None) -> TableSpec:
    """Read a spec file and the device files that it names.

    Args:
        path: The spec.
        folder: Where the files that it names lie; None is the spec's own folder.

    Raises:
        SourceFileError: If a file is missing or damaged.
        SettingsError: If the spec says something unknown or that cannot be; the file and the name are told.
    """
    path = Path(path).resolve()
    root = path.parent if folder is None else Path(folder).resolve()
    text = _read_text(path, "table spec")
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise SettingsError(f"{path}: not whole TOML: {error}") from error
    try:
        return _spec(path, root, document)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _spec(path: Path, root: Path, document: Mapping[str, Any]) -> TableSpec:
    _require_known(document, TOP_LEVEL, "")
    baseline = _take(document, "baseline", dict, {})
    _require_known(baseline, ("by", *ROOFLINE_PARTS), "baseline.")
    promise = _take(document, "promise", dict, {})
    _require_known(promise, ("us", "ratio"), "promise.")
    given = [part for part in ROOFLINE_PARTS if part in baseline]
    if given and len(given) < len(ROOFLINE_PARTS):
        lacking = ", ".join(part for part in ROOFLINE_PARTS if part not in baseline)
        raise SettingsError(
            f"baseline lacks {lacking}; a roofline needs {', '.join(ROOFLINE_PARTS)}, or none of them"
        )
    categorical = _names(document, "categorical")
    derived = _take(document, "features", dict, {})
    for feature, expression in derived.items():
        if not (isinstance(expression, str) and _COLUMN.fullmatch(feature)):
            raise SettingsError(
                f"features.{feature} is {expression!r}; a name and an SQL expression as text are needed"
            )
    scheme = table_scheme(
        name=_take(document, "name", str),
        target=_take(document, "target", str),
        unit=cast(Unit, _take(document, "unit", str)),
        numeric=_names(document, "numeric"),
        text=tuple(dict.fromkeys((*categorical, *_names(document, "text")))),
        categorical=categorical,
        derived=derived,
        shape=_names(document, "shape"),
        by=_names(baseline, "by", "baseline."),
        slices=_names(document, "slices") or _names(baseline, "by", "baseline."),
        roofline=Roofline(**{part: _expression(baseline, part) for part in ROOFLINE_PARTS})
        if given
        else None,
        devices=_devices(path, root, document["devices"]) if "devices" in document else None,
        time=_take(document, "time", str) if "time" in document else None,
        promise_us=_number(promise.get("us", 0.0), "promise.us"),
        promise_ratio=_number(promise.get("ratio", PROMISE_RATIO), "promise.ratio"),
        parameters=_take(document, "training", dict, {}),
        monotone=_take(document, "monotone", dict, {}),
    )
    renamed = _take(document, "rename", dict, {})
    stored = [column for column in scheme.table.column_names if column not in RESERVED]
    for old, new in renamed.items():
        if not isinstance(new, str) or new not in stored:
            raise SettingsError(f"rename.{old} is {new!r}, which is no column of the spec")
    for column in (*scheme.numeric, *scheme.text, scheme.target, *([scheme.time] if scheme.time else [])):
        if not _COLUMN.fullmatch(column):
            raise SettingsError(
                f"column {column!r} has a sign other than letters, digits and _; name it anew under [rename]"
            )
    files = _names(document, "files")
    if not files:
        raise SettingsError("files is empty; name CSV, Parquet or JSON-lines files, relative to the spec")
    return TableSpec(path, scheme, root, files, renamed)


def _devices(path: Path, root: Path, document: Any) -> Devices:
    if not isinstance(document, dict):
        raise SettingsError("devices is no table")
    _require_known(document, ("column", "key", "files", "fields", "figures"), "devices.")
    figures = _file_figures(path, root, document)
    for device, values in _take(document, "figures", dict, {}, prefix="devices.").items():
        if not isinstance(values, dict):
            raise SettingsError(f"devices.figures.{device} is no table of numbers")
        figures[device] = figures.get(device, {}) | {
            figure: _number(value, f"devices.figures.{device}.{figure}") for figure, value in values.items()
        }
    if not figures:
        raise SettingsError("devices names neither files nor figures")
    names = {figure for values in figures.values() for figure in values}
    for figure in names:
        if not _COLUMN.fullmatch(figure):
            raise SettingsError(f"device figure {figure!r} has a sign other than letters, digits and _")
    return Devices(_take(document, "column", str, prefix="devices."), figures)


def _file_figures(path: Path, root: Path, document: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """Device -> figures, as the device files have them."""
    patterns = _names(document, "files", "devices.")
    fields = _take(document, "fields", dict, {}, prefix="devices.")
    if patterns and not fields:
        raise SettingsError(
            'devices.fields is empty; say which fields of the files are used: {bandwidth = "Mem_Bw"}'
        )
    for figure, field in fields.items():
        if not isinstance(field, str):
            raise SettingsError(f"devices.fields.{figure} is {field!r}; the name of a field is needed")
    sources: dict[str, list[tuple[Path, dict[str, float]]]] = {}
    for pattern in patterns:
        found = _matches(root, pattern)
        if not found:
            raise SourceFileError(f"{path}: no device file in {root} matches {pattern}; mend devices.files")
        for file in sorted(found):
            device, values = _device_file(file, _take(document, "key", str, prefix="devices."), fields)
            sources.setdefault(device, []).append((file, values))
    figures = {device: _agreed(device, given) for device, given in sources.items()}
    filled = {figure for values in figures.values() for figure in values}
    nowhere = [f"{figure} = {field!r}" for figure, field in fields.items() if figure not in filled]
    if patterns and nowhere:
        raise SettingsError(f"devices.fields: no device file has {', '.join(nowhere)}; mend the name")
    return figures


def _agreed(device: str, given: list[tuple[Path, dict[str, float]]]) -> dict[str, float]:
    """The figures of a device; of files that disagree the one named like the device itself is meant."""
    named = [values for file, values in given if file.stem == device.replace(" ", "_")]
    agreed = (named or [given[0][1]])[0]
    if any(values != agreed for _, values in given) and not named:
        raise SettingsError(
            f"the device files {', '.join(file.name for file, _ in given)} disagree about {device}; name one of them "
            f"under devices.files"
        )
    return agreed


def _device_file(path: Path, key: str, fields: Mapping[str, str]) -> tuple[str, dict[str, float]]:
    text = _read_text(path, "device file")
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceFileError(f"{path}: no whole JSON: {error}") from error
    if not isinstance(content, dict) or not isinstance(content.get(key), str):
        raise SourceFileError(f"{path}: no JSON object with {key}, the device's name")
    values = {
        figure: _number(content[field], f"{path}: {field}")
        for figure, field in fields.items()
        if field in content
    }
    return content[key], values


def _read_text(path: Path, what: str) -> str:
    try:
        size = path.stat().st_size if path.is_file() else 0
    except (OSError, ValueError):
        size = 0  # reading says what is wrong
    if size > SIZE_LIMIT_BYTES:
        raise SourceFileError(
            f"{path}: {size:,} bytes, a {what} has at most {SIZE_LIMIT_BYTES:,}; is it the right file?"
        )
    return decode_text(read_source_file(path, what=what, size_limit_bytes=SIZE_LIMIT_BYTES), what=what)


def _matches(root: Path, pattern: str) -> list[Path]:
    """Files of that name or glob; only the pattern may be one, not the folder."""
    try:
        if (root / pattern).exists():
            return [root / pattern]
        return [root / found for found in glob(pattern, root_dir=root, recursive=True)]
    except (OSError, ValueError) as error:
        raise SettingsError(f"{pattern!r:.80} is no path: {error}") from error


def _require_known(document: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    unknown = sorted(set(document) - set(known))
    if unknown:
        raise SettingsError(f"unknown {prefix}{', '.join(unknown)}; known: {', '.join(known)}")


def _take(
    document: Mapping[str, Any],
    name: str,
    kind: type | tuple[type, ...],
    default: Any = None,
    prefix: str = "",
) -> Any:
    value = document.get(name, default)
    if value is None:
        raise SettingsError(f"{prefix}{name} is missing")
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = kind if isinstance(kind, type) else kind[-1]
        raise SettingsError(f"{prefix}{name} is {value!r:.80}; {_KINDS[wanted]} is needed")
    return value


def _names(document: Mapping[str, Any], name: str, prefix: str = "") -> tuple[str, ...]:
    values = _take(document, name, list, [], prefix)
    if any(not isinstance(value, str) or not value for value in values):
        raise SettingsError(f"{prefix}{name} is {values!r:.80}; a list of names is needed")
    if len(set(values)) < len(values):
        raise SettingsError(f"{prefix}{name} names something twice: {', '.join(values)}")
    return tuple(values)


def _expression(document: Mapping[str, Any], name: str) -> str:
    value = _take(document, name, (int, float, str), prefix="baseline.")
    return value if isinstance(value, str) else repr(_number(value, f"baseline.{name}"))


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_NUMBER:
        raise SettingsError(f"{what} is {value!r:.80}; a finite number is needed")
    return float(value)
