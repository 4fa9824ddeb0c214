"""Read the CSV of NVIDIA's sample cudaGraphsPerfScaling: one row a trial, all times in microseconds.

The sample captures `width` lines of `length` empty kernels, instantiates, launches twice, and times each
step. Its file is no ordinary CSV: names carry leading blanks, `blockingKernelTimeoutDetected` occurs three
times and belongs to the column before it, each line ends with a comma, lines end with CR LF, and a blank
line (and in some builds `Test passed`) follows the last.

A measurement that is wrong is worse than one that is missing, so one bad value refuses the file unless
`keep_whole` asks for the rows beside it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import polars as pl

from warpgauge.errors import NoDataError, SourceFileError
from warpgauge.launches.batch import LaunchBatch, graph_id, launch_ids, lines_signature
from warpgauge.source_file import (
    DEFAULT_SIZE_LIMIT_BYTES,
    SourceFile,
    decode_text,
    describe_content,
    read_source_file,
)
from warpgauge.tables import LAUNCHES

SOURCE_KIND = "perfscaling"
SHAPE_COLUMNS = ("length", "width", "pattern")
TIMEOUT_COLUMN = "blockingKernelTimeoutDetected"
# Name in the sample's header -> column of the launches table. Some releases print `updoad_device_time`.
LABEL_COLUMNS = {
    "capture": "capture_us",
    "instantiation": "instantiate_us",
    "first_launch_api": "first_launch_api_us",
    "first_launch_total": "first_launch_total_us",
    "repeat_launch_api": "repeat_launch_api_us",
    "repeat_launch_total": "repeat_launch_total_us",
    "first_launch_device": "first_launch_device_us",
    "repeat_launch_device": "repeat_launch_device_us",
    "upload_api_time": "upload_api_us",
    "upload_device_time": "upload_device_us",
}
_MISSPELT = {"updoad_device_time": "upload_device_time"}
# The time before each of the three equal names says which launch timed out.
_TIMEOUT_AFTER = {
    "first_launch_device": "first_launch_timed_out",
    "repeat_launch_device": "repeat_launch_timed_out",
    "upload_device_time": "upload_timed_out",
}
_LAST_LINE = "Test passed"
_NAMED_PROBLEMS = 100  # a longer list is summed up: nobody reads the 101st
_FILE_NAME = re.compile(r"^(?P<gpu>[A-Za-z0-9-]+?)-cuda-(?P<cuda>\d+\.\d+)(?!\d)", re.ASCII)


@dataclass(frozen=True)
class _Header:
    """Where each column lies: `fields` in file order, None for the blank after the trailing comma."""

    fields: tuple[str | None, ...]
    line: str
    line_number: int


def has_perfscaling_header(line: str) -> bool:
    """Whether a line is the header of the sample's CSV: its three shape columns and at least one time."""
    names = {_MISSPELT.get(name.strip(), name.strip()) for name in line.split(",")}
    return names.issuperset(SHAPE_COLUMNS) and not names.isdisjoint(LABEL_COLUMNS)


def gpu_of_file_name(name: str) -> tuple[str | None, str | None]:
    """GPU name as NVML gives it, and CUDA version, of a file named `<GPU>-cuda-<version>...`; else nulls.

    >>> gpu_of_file_name("NVIDIA-Tesla-P100-PCIE-16GB-cuda-12.9_straight-line.csv")
    ('Tesla P100-PCIE-16GB', '12.9')
    >>> gpu_of_file_name("straight-line.csv")
    (None, None)
    """
    found = _FILE_NAME.match(name)
    if not found:
        return None, None
    words = found["gpu"].split("-")
    if words[:2] == ["NVIDIA", "Tesla"]:
        words = words[1:]  # NVML says "Tesla P100-PCIE-16GB" and "NVIDIA A100-SXM4-80GB"
    if words[0] == "Tesla" or (words[0] == "NVIDIA" and words[1:2] and re.match(r"[AV]\d", words[1])):
        gpu = " ".join([words[0], "-".join(words[1:])])
    else:
        gpu = " ".join(words)
    return gpu.strip(), found["cuda"]


def read_perfscaling(
    path: Path | str,
    *,
    gpu_name: str | None = None,
    cuda_version: str | None = None,
    source_name: str | None = None,
    keep_whole: bool = False,
    size_limit_bytes: int = DEFAULT_SIZE_LIMIT_BYTES,
) -> LaunchBatch:
    """Every trial of a cudaGraphsPerfScaling CSV, plain or gzip.

    Args:
        path: The file.
        gpu_name, cuda_version: Where they were measured; by default read from the file's name, else null.
        source_name: Name to record instead of the path's base name.
        keep_whole: Keep the good rows of a damaged file; each bad one is a problem of the batch.
        size_limit_bytes: Most decompressed bytes.

    Raises:
        SourceFileError: If the file cannot be read, is of another kind, or a row is wrong: the message names
            file, row (line of the file, from 1) and column.
        NoDataError: If there is a header and no trial.
    """
    source = read_source_file(
        path,
        what="table",
        source_name=source_name,
        size_limit_bytes=size_limit_bytes,
        keep_whole=keep_whole,
    )
    named_gpu, named_cuda = gpu_of_file_name(source.name)
    header, rows = _split(source, keep_whole)
    trials, bad = _parse(header, rows)
    if not keep_whole and bad.height:
        first = bad.row(0, named=True)
        raise SourceFileError(
            f"{source.path}: row {first['line_number']}, {first['reason']}; {bad.height} of {rows.height} rows "
            f"are wrong: measure again, or keep the {trials.height} good ones with --keep-whole"
        )
    if trials.is_empty():
        if bad.height:
            raise SourceFileError(
                f"{source.path}: not one of {rows.height} rows is whole; "
                f"the first: row {bad['line_number'][0]}, {bad['reason'][0]}"
            )
        raise NoDataError(f"{source.path}: a header and no trial; the sample prints trials with outputFmt 3")
    problems = [source.problem] if source.problem else []
    problems += [
        f"{source.path}: row {number}, {reason}; left out"
        for number, reason in bad.select("line_number", "reason").head(_NAMED_PROBLEMS).iter_rows()
    ]
    if bad.height > _NAMED_PROBLEMS:
        problems.append(f"{source.path}: {bad.height - _NAMED_PROBLEMS} more rows left out")
    frame = _to_launches(trials, source, gpu_name or named_gpu, cuda_version or named_cuda)
    counts = {"launches": frame.height, "rows refused": bad.height}
    return LaunchBatch(frame, tuple(problems), counts)


def _split(source: SourceFile, keep_whole: bool) -> tuple[_Header, pl.DataFrame]:
    """Header and non-blank lines below it: columns `line_number`, `ordinal`, `line`."""
    text = decode_text(source, what="table", keep_whole=keep_whole)
    lines = (
        pl.DataFrame({"line": text.split("\n")}, schema={"line": pl.String})
        .with_row_index("line_number", offset=1)
        .with_columns(pl.col("line").str.strip_chars())
        .filter(pl.col("line") != "")
    )
    if lines.height and lines["line"][-1] == _LAST_LINE:
        lines = lines.head(-1)
    if lines.is_empty():
        raise SourceFileError(f"{source.path}: found {describe_content(source.data[:1000])}, no table in it")
    header = _read_header(lines["line"][0], int(lines["line_number"][0]), source.path)
    return header, lines.slice(1).with_row_index("ordinal").with_columns(pl.col("ordinal").cast(pl.Int64))


def _read_header(line: str, line_number: int, path: Path) -> _Header:
    if not has_perfscaling_header(line):
        raise SourceFileError(
            f"{path}: row {line_number} is {line[:120]!r}; the header of cudaGraphsPerfScaling "
            f"(length, width, pattern, capture, ...) is needed: run the sample with outputFmt 3"
        )
    fields: list[str | None] = []
    previous = ""
    for position, raw in enumerate(line.split(",")):
        name = _MISSPELT.get(raw.strip(), raw.strip())
        if not name and position == line.count(","):
            fields.append(None)
        elif name.startswith(TIMEOUT_COLUMN):  # programs that saved the file again number the equal names
            fields.append(_TIMEOUT_AFTER.get(previous, f"{TIMEOUT_COLUMN} after {previous!r}"))
        else:
            fields.append(LABEL_COLUMNS.get(name, name))
        previous = name
    known = [*SHAPE_COLUMNS, *LABEL_COLUMNS.values(), *_TIMEOUT_AFTER.values()]
    named = [field for field in fields if field is not None]
    wrong = {
        "missing": [name for name in known if name not in named],
        "unknown": [name for name in named if name not in known],
        "twice": sorted({name for name in named if named.count(name) > 1}),
    }
    if any(wrong.values()):
        details = "; ".join(f"{how}: {', '.join(names)[:200]}" for how, names in wrong.items() if names)
        raise SourceFileError(f"{path}: row {line_number}, the header does not fit the sample's: {details}")
    return _Header(tuple(fields), line, line_number)


def _parse(header: _Header, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Good rows as numbers, and bad ones as `line_number`, `reason` (the first reason of each)."""
    width = len(header.fields)
    parts = rows.select("ordinal", "line_number", part=pl.col("line").str.split(","))
    parts = parts.with_columns(
        text.alias(f"text:{field}") for field, text in _texts(header.fields)
    ).with_columns(pl.col("part").list.len().alias("found"))
    names = [field for field in header.fields if field is not None]
    values = parts.with_columns(
        pl.col(f"text:{name}").cast(pl.Float64, strict=False).alias(name) for name in names
    )
    reasons = [
        pl.when(pl.col("found") != width).then(
            pl.format("it has {} columns, the header {}", "found", pl.lit(width))
        )
    ]
    if header.fields[-1] is None:
        after = pl.col("part").list.last().str.strip_chars() != ""
        reasons.append(pl.when(after).then(pl.lit("something follows its last comma")))
    for name in names:
        found = pl.col(f"text:{name}").str.slice(0, 40)
        reasons += [
            pl.when(fault).then(
                pl.format("column {}: found '{}', needs {}", pl.lit(name), found, pl.lit(needed))
            )
            for fault, needed in _faults(name)
        ]
    nodes = pl.col("length") * pl.col("width") + pl.col("pattern")
    beyond = pl.format(
        "column length: {} lines of {} nodes are beyond 10,000,000", "text:width", "text:length"
    )
    reasons.append(pl.when(nodes > 10_000_000).then(beyond))
    judged = values.with_columns(pl.coalesce(reasons).alias("reason"))
    good = judged.filter(pl.col("reason").is_null()).select("ordinal", *names)
    bad = judged.filter(pl.col("reason").is_not_null()).select("line_number", "reason")
    return good, bad


def _texts(fields: tuple[str | None, ...]) -> list[tuple[str, pl.Expr]]:
    return [
        (field, pl.col("part").list.get(position, null_on_oob=True).str.strip_chars())
        for position, field in enumerate(fields)
        if field is not None
    ]


def _faults(name: str) -> list[tuple[pl.Expr, str]]:
    """What can be wrong with a column's value, and what it needs instead."""
    value = pl.col(name)
    faults = [
        (value.is_null(), "a number"),
        (~value.is_finite(), "a finite number"),
        (value < 0, "0 or more"),
    ]
    if name in ("length", "width"):
        largest = 10_000_000 if name == "length" else 100_000
        faults.append(
            (
                (value < 1) | (value > largest) | (value != value.floor()),
                f"a whole number from 1 to {largest:,}",
            )
        )
    elif name == "pattern":
        faults.append((~value.is_in([0.0, 1.0]), "0 or 1, the patterns whose structure is known"))
    elif name in _TIMEOUT_AFTER.values():
        # outputFmt 4 and 5 print means over trials, which are no trials.
        faults.append((~value.is_in([0.0, 1.0]), "0 or 1 (a fraction is a mean of trials: use outputFmt 3)"))
    return faults


def _to_launches(
    trials: pl.DataFrame, source: SourceFile, gpu_name: str | None, cuda_version: str | None
) -> pl.DataFrame:
    # The lines are captured from streams forked and joined by events, which become dependencies and no
    # nodes: `width` roots and leaves, unless pattern 1 puts one more kernel before the fork.
    length, width, pattern = (pl.col(name).cast(pl.Int64) for name in SHAPE_COLUMNS)
    shapes = trials.select(length, width, pattern).unique(maintain_order=True)
    signatures = [lines_signature(*shape) for shape in shapes.iter_rows()]
    # Without a GPU's name two files may be of two GPUs, so the file stands for it.
    gpu = gpu_name or f"file {source.sha256}"
    shapes = shapes.with_columns(
        pl.Series("graph_signature", signatures, dtype=pl.String),
        pl.Series("graph_id", [graph_id(gpu, cuda_version, one) for one in signatures], dtype=pl.String),
    )
    nodes = length * width + pattern
    is_line = pl.col("width") == 1
    frame = (
        trials.with_columns(length, width, pattern)
        .join(shapes, on=SHAPE_COLUMNS, how="left", maintain_order="left")
        .with_columns(
            pl.Series(
                "launch_id", launch_ids(SOURCE_KIND, source.sha256, trials["ordinal"]), dtype=pl.String
            ),
            pl.col("ordinal").alias("record_ordinal"),
            pl.lit(SOURCE_KIND).alias("source_kind"),
            pl.lit(source.name).alias("source_name"),
            pl.lit(source.sha256).alias("source_sha256"),
            pl.lit(gpu_name, dtype=pl.String).alias("gpu_name"),
            pl.lit(cuda_version, dtype=pl.String).alias("cuda_version"),
            pl.when(is_line)
            .then(pl.lit("straight_line"))
            .otherwise(pl.lit("parallel_lines"))
            .alias("topology"),
            pl.int_range(pl.len()).over(SHAPE_COLUMNS).alias("trial"),
            pl.when(is_line).then(length + pattern).otherwise(length).alias("line_length"),
            width.alias("line_count"),
            pl.lit(True).alias("is_first_launch"),
            pl.lit(False).alias("is_profiled"),
            pl.lit(False).alias("is_simulated"),
            *(pl.col(name).cast(pl.Boolean) for name in _TIMEOUT_AFTER.values()),
            nodes.alias("node_count"),
            nodes.alias("kernel_count"),
            *(pl.lit(0).alias(f"{kind}_count") for kind in ("memcpy", "memset", "other_node")),
            (width * (length - 1) + pattern * width).alias("edge_count"),
            pl.when(pattern == 1).then(1).otherwise(width).alias("root_count"),
            width.alias("leaf_count"),
            (length + pattern).alias("depth"),
            width.alias("graph_width"),
            is_line.alias("is_straight_line"),
            *(pl.lit(0).alias(f"{kind}_bytes") for kind in _COPY_KINDS),
            # The sample launches `empty<<<1, 1>>>` throughout.
            nodes.alias("block_count_total"),
            *(pl.lit(1).alias(name) for name in _ONE_IN_THE_SAMPLE),
            pl.lit(0).alias("shared_memory_bytes_maximum"),
        )
    )
    return LAUNCHES.conform(frame.drop("ordinal", *SHAPE_COLUMNS))


_COPY_KINDS = ("memcpy", "memcpy_htod", "memcpy_dtoh", "memcpy_dtod", "memset")
_ONE_IN_THE_SAMPLE = (
    "block_count_maximum",
    "threads_per_block_mean",
    "threads_per_block_maximum",
    "distinct_kernel_count",
)
