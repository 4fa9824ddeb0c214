"""Read GPU readings logged as CSV by nvidia-smi (`--query-gpu=... --format=csv`) or exported from DCGM.

A GPU is its UUID: an index moves to another card when one is lost. nvidia-smi writes local time without
saying which, so the zone is an argument, never a guess of this machine's.
"""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from warpgauge.errors import NoDataError, SettingsError, SourceFileError
from warpgauge.source_file import (
    DEFAULT_SIZE_LIMIT_BYTES,
    SourceFile,
    decode_text,
    describe_content,
    read_source_file,
)
from warpgauge.tables import GPU_SAMPLES, TIME
from warpgauge.telemetry.batch import (
    BLANK,
    BLANK_VALUES,
    OUT_OF_RANGE,
    SMALLEST_WIDE_BLANK,
    SampleBatch,
    range_of,
)

FORMS = (
    "a log of `nvidia-smi --query-gpu=timestamp,uuid,utilization.gpu,... --format=csv`, "
    "or DCGM readings with the columns timestamp, UUID, DCGM_FI_DEV_GPU_UTIL, ..."
)
# nvidia-smi property (with its aliases) -> column; memory is in MiB unless the header or value says else.
_NVIDIA_SMI = {
    "utilization.gpu": "utilization_percent",
    "utilization.memory": "memory_utilization_percent",
    "memory.used": "memory_used_bytes",
    "memory.total": "memory_total_bytes",
    "clocks.sm": "sm_clock_mhz",
    "clocks.current.sm": "sm_clock_mhz",
    "clocks.mem": "memory_clock_mhz",
    "clocks.current.memory": "memory_clock_mhz",
    "temperature.gpu": "temperature_celsius",
    "power.draw": "power_w",
    "power.draw.average": "power_w",
    "power.draw.instant": "power_w",
    "pcie.link.gen.current": "pcie_link_generation",
    "pcie.link.gen.gpucurrent": "pcie_link_generation",
    "pcie.link.width.current": "pcie_link_width",
}
_DCGM = {
    "dcgm_fi_dev_gpu_util": "utilization_percent",
    "dcgm_fi_dev_mem_copy_util": "memory_utilization_percent",
    "dcgm_fi_dev_fb_used": "memory_used_bytes",
    "dcgm_fi_dev_fb_total": "memory_total_bytes",
    "dcgm_fi_dev_sm_clock": "sm_clock_mhz",
    "dcgm_fi_dev_mem_clock": "memory_clock_mhz",
    "dcgm_fi_dev_gpu_temp": "temperature_celsius",
    "dcgm_fi_dev_power_usage": "power_w",
    "dcgm_fi_dev_pcie_rx_throughput": "pcie_rx_kb_per_s",
    "dcgm_fi_dev_pcie_tx_throughput": "pcie_tx_kb_per_s",
    "dcgm_fi_prof_pcie_rx_bytes": "pcie_rx_kb_per_s",
    "dcgm_fi_prof_pcie_tx_bytes": "pcie_tx_kb_per_s",
    "dcgm_fi_dev_pcie_link_gen": "pcie_link_generation",
    "dcgm_fi_dev_pcie_link_width": "pcie_link_width",
}
_IDENTITY = {
    "timestamp": "timestamp",
    "time": "timestamp",
    "uuid": "uuid",
    "gpu_uuid": "uuid",
    "dcgm_fi_dev_uuid": "uuid",
    "name": "name",
    "gpu_name": "name",
    "modelname": "name",
    "driver_version": "driver",
}
# DCGM counts profiled PCIe traffic in bytes a second, NVML in KB.
_BYTES_PER_S = ("dcgm_fi_prof_pcie_rx_bytes", "dcgm_fi_prof_pcie_tx_bytes")
_UNIT_FACTORS = {
    "": 1.0,
    "%": 1.0,
    "mhz": 1.0,
    "w": 1.0,
    "c": 1.0,
    "b": 1.0 / 2**20,
    "kib": 1.0 / 2**10,
    "mib": 1.0,
    "gib": 2.0**10,
}
# What nvidia-smi writes instead of a value.
_NO_VALUE = {
    "": "not given",
    "n/a": "not available",
    "[n/a]": "not available",
    "not supported": "not supported",
    "[not supported]": "not supported",
    "[unknown error]": "unknown error",
    "unknown error": "unknown error",
    "err!": "driver error",
    "[gpu is lost]": "lost GPU",
    "[insufficient permissions]": "permission",
    "[gpu requires reset]": "GPU requires reset",
}
_NAMED_PROBLEMS = 100
_HEADER_UNIT = re.compile(r"^(.*?)\s*\[([^\]]*)\]$")
_ZONED = r"^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}:\d{2}(\.\d+)?(Z|[+-]\d{2}:?\d{2})$"
_NUMBER = r"^[+-]?\d+(\.\d*)?([eE][+-]?\d+)?$"
_NUMBER_AND_UNIT = r"^([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?(?i:nan|inf(?:inity)?))\s*([A-Za-z%]*)$"


@dataclass(frozen=True)
class _Column:
    """Where a reading lies and what its numbers are multiplied by."""

    position: int
    factor: float


@dataclass(frozen=True)
class _Header:
    kind: str
    names: list[str]
    identity: dict[str, int]
    readings: dict[str, _Column]


def read_gpu_csv(
    path: Path | str,
    *,
    timezone: str = "UTC",
    source_name: str | None = None,
    keep_whole: bool = False,
    size_limit_bytes: int = DEFAULT_SIZE_LIMIT_BYTES,
) -> SampleBatch:
    """All readings of a GPU log, plain or gzip.

    Args:
        path: The file.
        timezone: Zone of times that name none, as nvidia-smi writes them: an IANA name.
        source_name: Name to record instead of the path's base name.
        keep_whole: Keep the good rows of a damaged file; each bad one is a problem of the batch.
        size_limit_bytes: Most decompressed bytes.

    Returns:
        One row a GPU and time; of several the first is kept. A reading that is no number is null with its
        reason in `null_reasons`; an impossible one also counts in `rejected`. A column that the file lacks is
        null without a reason.

    Raises:
        SourceFileError: If the file cannot be read, is of another form, has no UUID, or a row is wrong: file
            and row (line, from 1) are named.
        NoDataError: If there is a header and no reading.
        SettingsError: If the zone is unknown.
    """
    source = read_source_file(
        path, what="log", source_name=source_name, size_limit_bytes=size_limit_bytes, keep_whole=keep_whole
    )
    text = decode_text(source, what="log", keep_whole=keep_whole)
    header, rows, bad = _split(text, source, keep_whole)
    counts: Counter[str] = Counter()
    frame = _identify(header, rows, timezone, source)
    faulty = frame.filter(pl.col("fault").is_not_null())
    bad += [(number, fault) for number, fault in faulty.select("line_number", "fault").iter_rows()]
    bad.sort()
    if bad and not keep_whole:
        raise SourceFileError(
            f"{source.path}: row {bad[0][0]}: {bad[0][1]}; {len(bad)} of {len(rows) + len(bad) - faulty.height} "
            f"rows are wrong: fix them, or keep the others with --keep-whole"
        )
    frame = frame.filter(pl.col("fault").is_null())
    if frame.is_empty():
        if bad:
            raise SourceFileError(f"{source.path}: not one row is whole; the first, {bad[0][0]}: {bad[0][1]}")
        raise NoDataError(f"{source.path}: a header and no reading; let the logger run longer")
    problems = [source.problem] if source.problem else []
    problems += [f"{source.path}: row {number}: {fault}; left out" for number, fault in bad[:_NAMED_PROBLEMS]]
    if len(bad) > _NAMED_PROBLEMS:
        problems.append(f"{source.path}: {len(bad) - _NAMED_PROBLEMS} more rows left out")
    frame, rejected = _read_values(header, _first_of_each(frame, counts))
    counts["samples"], counts["rows refused"] = frame.height, len(bad)
    frame = frame.with_columns(
        pl.lit(header.kind).alias("source_kind"), pl.lit(source.name).alias("source_name")
    )
    return SampleBatch(GPU_SAMPLES.conform(frame), tuple(problems), dict(counts), rejected)


def _split(
    text: str, source: SourceFile, keep_whole: bool
) -> tuple[_Header, list[tuple[int, list[str]]], list[tuple[int, str]]]:
    """Header, rows of its width with their line numbers, and the lines of another width."""
    reader = csv.reader(io.StringIO(text.replace("\r\n", "\n"), newline="\n"), skipinitialspace=True)
    header: _Header | None = None
    rows: list[tuple[int, list[str]]] = []
    bad: list[tuple[int, str]] = []
    while True:
        try:
            cells = [cell.strip() for cell in next(reader)]
        except StopIteration:
            break
        except csv.Error as error:
            if header is None or not keep_whole:
                raise SourceFileError(f"{source.path}: row {reader.line_num}: no CSV: {error}") from error
            bad.append((reader.line_num, f"no CSV: {error}"))
            continue
        if not any(cells):
            continue
        if header is None:
            header = _read_header(cells, source)
        elif cells == header.names:
            continue  # the logger was started again and appended to its file
        elif len(cells) == len(header.names):
            rows.append((reader.line_num, cells))
        else:
            shown = ", ".join(cells)[:80]
            bad.append(
                (reader.line_num, f"{shown!r} has {len(cells)} columns, the header {len(header.names)}")
            )
    if header is None:
        raise SourceFileError(f"{source.path}: found {describe_content(source.data[:1000])}; needed: {FORMS}")
    return header, rows, bad


def _read_header(cells: list[str], source: SourceFile) -> _Header:
    identity: dict[str, int] = {}
    readings: dict[str, _Column] = {}
    kinds: set[str] = set()
    for position, cell in enumerate(cells):
        with_unit = _HEADER_UNIT.match(cell)
        name, unit = (with_unit[1], with_unit[2]) if with_unit else (cell, "")
        key = name.strip().lower()
        column = _NVIDIA_SMI.get(key) or _DCGM.get(key)
        if key in _IDENTITY:
            identity.setdefault(_IDENTITY[key], position)
        elif column and column not in readings:
            kinds.add("nvidia_smi" if key in _NVIDIA_SMI else "dcgm")
            factor = _UNIT_FACTORS.get(unit.strip().lower())
            if factor is None:
                raise SourceFileError(
                    f"{source.path}: column {cell!r}: unit {unit!r} is unknown; leave the units as nvidia-smi writes them"
                )
            readings[column] = _Column(position, factor / 1000 if key in _BYTES_PER_S else factor)
    found = ", ".join(cells)[:160]
    if not readings:
        found = describe_content(source.data[:1000]) if len(cells) < 2 else f"the columns {found}"
        raise SourceFileError(f"{source.path}: found {found}, no GPU reading among them; needed: {FORMS}")
    if "uuid" not in identity:
        raise SourceFileError(
            f"{source.path}: no UUID column among {found}: an index is no identity, it moves to another card "
            f"when one is lost; log with uuid (nvidia-smi: --query-gpu=timestamp,uuid,...)"
        )
    if "timestamp" not in identity:
        raise SourceFileError(f"{source.path}: no timestamp column among {found}; log with timestamp")
    return _Header("dcgm" if kinds == {"dcgm"} else "nvidia_smi", cells, identity, readings)


def _identify(
    header: _Header, rows: list[tuple[int, list[str]]], timezone: str, source: SourceFile
) -> pl.DataFrame:
    """Rows with `gpu_uuid`, `sampled_at`, `gpu_name`, the texts of all readings, and `fault`."""
    used = {**header.identity, **{name: column.position for name, column in header.readings.items()}}
    frame = pl.DataFrame(
        {
            "line_number": pl.Series([number for number, _ in rows], dtype=pl.Int64),
            **{
                name: pl.Series([cells[at] for _, cells in rows], dtype=pl.String)
                for name, at in used.items()
            },
        }
    )
    frame = frame.with_columns(sampled_at=_times(frame["timestamp"], timezone, source))
    name = pl.col("name") if "name" in frame.columns else pl.lit(None, dtype=pl.String)
    is_unnamed = name.str.to_lowercase().is_in(list(_NO_VALUE))
    return frame.with_columns(
        gpu_uuid=pl.col("uuid"),
        gpu_name=pl.when(~is_unnamed).then(name),
        fault=pl.when(pl.col("uuid").str.to_lowercase().is_in(list(_NO_VALUE)))
        .then(pl.lit("no UUID"))
        .when(pl.col("sampled_at").is_null())
        .then(
            pl.format(
                "timestamp '{}' cannot be read, or is no single time in the zone",
                pl.col("timestamp").str.slice(0, 40),
            )
        ),
    )


def _times(texts: pl.Series, timezone: str, source: SourceFile) -> pl.Series:
    """Times in UTC; null where a text is none, or stands for two moments or for none in the zone."""
    text = pl.col("text")
    local = pl.coalesce(
        text.str.to_datetime(form, time_unit="us", strict=False)
        for form in ("%Y/%m/%d %H:%M:%S%.f", "%Y-%m-%d %H:%M:%S%.f", "%Y-%m-%dT%H:%M:%S%.f")
    )
    zoned = (
        pl.when(text.str.contains(_ZONED))
        .then(text.str.replace(" ", "T").str.replace(r"Z$", "+00:00"))
        .str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%z", time_unit="us", strict=False)
    )
    number = pl.when(text.str.contains(_NUMBER)).then(text).cast(pl.Float64, strict=False)
    # Seconds, milliseconds, microseconds or nanoseconds since 1970, told apart by size: 1e8 to 1e11 s is
    # 1973 to 5138.
    seconds = pl.coalesce(
        pl.when(number.is_between(1e8 * scale, 1e11 * scale, closed="left")).then(number / scale)
        for scale in (1.0, 1e3, 1e6, 1e9)
    )
    epoch = (seconds * 1e6).round(0).cast(pl.Int64, strict=False).cast(TIME)
    try:
        return (
            texts.to_frame("text")
            .select(
                pl.coalesce(
                    zoned.cast(TIME),
                    local.dt.replace_time_zone(timezone, ambiguous="null", non_existent="null")
                    .dt.convert_time_zone("UTC")
                    .cast(TIME),
                    epoch,
                )
            )
            .to_series()
        )
    except pl.exceptions.ComputeError as error:
        raise SettingsError(
            f"time zone {timezone!r} for {source.path} is unknown ({error}); give an IANA name such as Europe/Berlin"
        ) from error


def _read_values(header: _Header, frame: pl.DataFrame) -> tuple[pl.DataFrame, dict[str, dict[str, int]]]:
    """Readings in the table's units, `null_reasons`, and the impossible ones by GPU and column."""
    values, reasons = [], []
    for name, column in header.readings.items():
        text = pl.col(name)
        parts = text.str.extract_groups(_NUMBER_AND_UNIT)
        raw = parts.struct["1"].str.to_lowercase().cast(pl.Float64, strict=False)
        unit = parts.struct["2"].str.to_lowercase()
        factor = unit.replace_strict(_UNIT_FACTORS, default=None, return_dtype=pl.Float64)
        # A unit beside the value says more than the one in the header.
        factor = pl.when(unit != "").then(factor).otherwise(column.factor)
        value = raw * factor * (2.0**20 if name.endswith("_bytes") else 1.0)
        if GPU_SAMPLES.column(name).dtype.is_integer():
            value = value.round(0)
        least, largest = range_of(name)
        is_blank = raw.is_in(list(BLANK_VALUES)) | (raw.is_finite() & (raw >= SMALLEST_WIDE_BLANK))
        is_possible = value.is_finite() & value.is_between(least, min(largest, 9.2e18))
        words = text.str.to_lowercase().replace_strict(_NO_VALUE, default="no number", return_dtype=pl.String)
        reason = (
            pl.when(raw.is_null() | factor.is_null())
            .then(words)
            .when(is_blank)
            .then(pl.lit(BLANK))
            .when(~is_possible)
            .then(pl.lit(OUT_OF_RANGE))
        )
        values.append(pl.when(reason.is_null()).then(value).alias(name))
        reasons.append(reason.alias(f"reason:{name}"))
    named = [
        pl.when(pl.col(f"reason:{name}").is_not_null()).then(
            pl.format('"{}": "{}"', pl.lit(name), pl.col(f"reason:{name}"))
        )
        for name in header.readings
    ]
    joined = pl.concat_str(named, separator=", ", ignore_nulls=True)
    judged = frame.select("gpu_uuid", "sampled_at", "gpu_name", *values, *reasons)
    judged = judged.with_columns(
        null_reasons=pl.when(joined != "").then(pl.concat_str(pl.lit("{"), joined, pl.lit("}")))
    )
    impossible = judged.group_by("gpu_uuid", maintain_order=True).agg(
        pl.col(f"reason:{name}").is_in([BLANK, OUT_OF_RANGE]).sum().alias(name) for name in header.readings
    )
    rejected = {
        row["gpu_uuid"]: {name: row[name] for name in header.readings if row[name]}
        for row in impossible.iter_rows(named=True)
    }
    kept = judged.select("gpu_uuid", "sampled_at", "gpu_name", *header.readings, "null_reasons")
    return kept, {gpu: of_one for gpu, of_one in rejected.items() if of_one}


def _first_of_each(frame: pl.DataFrame, counts: Counter[str]) -> pl.DataFrame:
    key = ["gpu_uuid", "sampled_at"]
    counts["duplicate rows"] = frame.height - frame.select(key).n_unique()
    distinct = frame.drop("line_number").unique()
    counts["conflicting rows"] = distinct.height - distinct.select(key).n_unique()
    return frame.unique(key, keep="first", maintain_order=True)
