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
from glob import glob, has_magic
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

_NAME = re.compile(r"[a-z][a-z0-9-]{0,39}")
_COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
TOP_LEVEL = (
    "name", "files", "target", "unit", "numeric", "categorical", "text", "shape", "slices", "time",
    "rename", "features", "devices", "baseline", "promise", "training",
)  # fmt: skip


@dataclass(frozen=True)
class TableSpec:
    """A spec file, read and checked.

    Attributes:
        path: The spec file.
        scheme: How rows are read.
        patterns: Paths or globs of the files that hold them, absolute.
        renamed: Column of the files -> its name here.
    """

    path: Path
    scheme: TableScheme
    patterns: tuple[str, ...]
    renamed: Mapping[str, str]

    def files(self) -> list[Path]:
        """The files that hold rows now, sorted; a pattern may match none yet.

        Raises:
            SourceFileError: If no pattern matches anything.
        """
        found = sorted({Path(name) for pattern in self.patterns for name in _matches(pattern)})
        if not found:
            raise SourceFileError(
                f"{self.path}: no file matches {', '.join(self.patterns)}; mend `files`, paths are relative to the spec"
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
        typed, problems = type_columns(
            pl.concat([identity, found.select(own)], how="horizontal"), table, origin=source.name
        )
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
    text = decode_text(read_source_file(path, what="table spec"), what="table spec")
    try:
        document = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SettingsError(f"{path}: not whole TOML: {error}") from error
    try:
        return _spec(path, root, document)
    except SettingsError as error:
        raise SettingsError(f"{path}: {error}") from error


def _spec(path: Path, root: Path, document: Mapping[str, Any]) -> TableSpec:
    _require_known(document, TOP_LEVEL, "")
    name = _take(document, "name", str)
    if not _NAME.fullmatch(name):
        raise SettingsError(
            f"name is {name!r}; a-z, 0-9 and -, from a letter on, at most 40 signs are needed"
        )
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
        name=name,
        target=_take(document, "target", str),
        unit=cast(Unit, _take(document, "unit", str)),
        numeric=_names(document, "numeric"),
        text=tuple(dict.fromkeys((*categorical, *_names(document, "text")))),
        categorical=categorical,
        derived=derived,
        shape=_names(document, "shape"),
        by=_names(baseline, "by"),
        slices=_names(document, "slices") or _names(baseline, "by"),
        roofline=Roofline(**{part: _expression(baseline, part) for part in ROOFLINE_PARTS})
        if given
        else None,
        devices=_devices(path, root, document["devices"]) if "devices" in document else None,
        time=_take(document, "time", str) if "time" in document else None,
        promise_us=float(_take(promise, "us", (int, float), 0.0)),
        promise_ratio=float(_take(promise, "ratio", (int, float), PROMISE_RATIO)),
        parameters=_take(document, "training", dict, {}),
    )
    renamed = _take(document, "rename", dict, {})
    stored = scheme.table.column_names
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
    return TableSpec(path, scheme, tuple(str(root / file) for file in files), renamed)


def _devices(path: Path, root: Path, document: Any) -> Devices:
    if not isinstance(document, dict):
        raise SettingsError("devices is no table")
    _require_known(document, ("column", "key", "files", "fields", "figures"), "devices.")
    figures: dict[str, dict[str, float]] = {}
    patterns = _names(document, "files")
    fields = _take(document, "fields", dict, {})
    if patterns and not fields:
        raise SettingsError(
            'devices.fields is empty; say which fields of the files are used: {bandwidth = "Mem_Bw"}'
        )
    for pattern in patterns:
        found = _matches(str(root / pattern))
        if not found:
            raise SourceFileError(f"{path}: no device file matches {pattern}; paths are relative to the spec")
        for file in sorted(found):
            device, values = _device_file(Path(file), _take(document, "key", str), fields)
            is_other = figures.get(device, values) != values
            # Two files of one device that disagree: the one named like the device itself is meant.
            if is_other and Path(file).stem != device.replace(" ", "_"):
                continue
            figures[device] = values
    for device, values in _take(document, "figures", dict, {}).items():
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
    return Devices(_take(document, "column", str), figures)


def _device_file(path: Path, key: str, fields: Mapping[str, Any]) -> tuple[str, dict[str, float]]:
    text = decode_text(read_source_file(path, what="device file"), what="device file")
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


def _matches(pattern: str) -> list[str]:
    if has_magic(pattern):
        return glob(pattern, recursive=True)
    return [pattern] if Path(pattern).exists() else []


def _require_known(document: Mapping[str, Any], known: tuple[str, ...], prefix: str) -> None:
    unknown = sorted(set(document) - set(known))
    if unknown:
        raise SettingsError(f"unknown {prefix}{', '.join(unknown)}; known: {', '.join(known)}")


def _take(document: Mapping[str, Any], name: str, kind: type | tuple[type, ...], default: Any = None) -> Any:
    value = document.get(name, default)
    if value is None:
        raise SettingsError(f"{name} is missing")
    if not isinstance(value, kind) or isinstance(value, bool):
        wanted = kind if isinstance(kind, type) else kind[-1]
        raise SettingsError(f"{name} is {value!r}; needed is a {wanted.__name__}")
    return value


def _names(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    values = _take(document, name, list, [])
    if any(not isinstance(value, str) or not value for value in values):
        raise SettingsError(f"{name} is {values!r}; a list of names is needed")
    if len(set(values)) < len(values):
        raise SettingsError(f"{name} names something twice: {', '.join(values)}")
    return tuple(values)


def _expression(document: Mapping[str, Any], name: str) -> str:
    value = _take(document, name, (int, float, str))
    return str(value)


def _number(value: Any, what: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise SettingsError(f"{what} is {value!r}; a number is needed")
    return float(value)
