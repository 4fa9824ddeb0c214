"""Read graph launches out of a PyTorch profiler (Kineto) trace: exactly one row a launch call.

All kernels, copies and sets of a graph carry the correlation id of its launch, so a plain join would turn one
launch into as many rows as the graph has nodes. Here the device activities of an id are gathered first and
summed up on the launch's row. `launch_to_device_us` runs from the start of the call to the first of them.

Times of the trace are microseconds whatever `displayTimeUnit` says (that only tells a viewer how to show
them). They are kept as whole nanoseconds: sixteen digits of microseconds and a fraction do not fit a double.

Every launch of a trace was profiled, and "first in the trace" is not "first launch": `is_first_launch` is
known only where the trace names the graph.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl

from warpgauge.errors import NoDataError, SourceFileError
from warpgauge.launches.batch import LaunchBatch, graph_id, launch_id
from warpgauge.source_file import (
    DEFAULT_SIZE_LIMIT_BYTES,
    SourceFile,
    decode_text,
    describe_content,
    read_source_file,
)
from warpgauge.tables import LAUNCHES

SOURCE_KIND = "kineto"
# Runtime, driver and HIP names; the entry points for per-thread default streams and for newer versions of
# one function differ only by these endings.
LAUNCH_CALLS = frozenset({"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"})
_CALL_ENDING = re.compile(r"(_ptsz|_ptds|_spt|_v\d+)+$")
_DEVICE_KINDS = {
    "kernel": "kernel",
    "concurrent_kernel": "kernel",
    "gpu_memcpy": "memcpy",
    "memcpy": "memcpy",
    "gpu_memset": "memset",
    "memset": "memset",
}
# An executable graph's own id comes first: a graph may be instantiated more than once.
_GRAPH_KEYS = ("graph exec id", "graphExecId", "graph id", "graph_id", "graphId")
_COPY_DIRECTION = re.compile(r"\b(HtoD|DtoH|DtoD)\b", re.IGNORECASE)
# `-?` and the word keep their length when replaced, so that byte offsets of later errors stay true.
_STRING_OR_BARE_WORD = re.compile(
    r'"[^"\\]*(?:\\.[^"\\]*)*"|-?\b(?:inf(?:inity)?|nan)\b', re.DOTALL | re.IGNORECASE
)
_EVENT_LIST = re.compile(r'"traceEvents"\s*:\s*\[')
_LARGEST_NS = 2**63 - 1
_REFUSALS = ("not an object", "no ts", "no dur", "negative duration")


@dataclass
class _Activity:
    """One kernel, copy or set on the device."""

    kind: str
    start_ns: int
    name: str
    args: dict[str, Any]


@dataclass
class _Launch:
    """One launch call on the host."""

    ordinal: int
    name: str
    start_ns: int
    duration_ns: int
    thread: str
    args: dict[str, Any]
    correlations: set[int] = field(default_factory=set)
    activities: list[_Activity] = field(default_factory=list)


@dataclass
class _Trace:
    header: dict[str, Any]
    events: list[Any]
    problem: str | None


def read_kineto(
    path: Path | str,
    *,
    source_name: str | None = None,
    keep_whole: bool = False,
    size_limit_bytes: int = DEFAULT_SIZE_LIMIT_BYTES,
) -> LaunchBatch:
    """Every graph launch of a PyTorch profiler trace, plain or gzip: one row a call, in file order.

    Args:
        path: A JSON object with `traceEvents`, or a bare list of events.
        source_name: Name to record instead of the path's base name.
        keep_whole: Read the whole events of a trace that was cut; the batch then says so in `problems`.
        size_limit_bytes: Most decompressed bytes.

    Returns:
        Rows whose counts, bytes and kernel attributes come from the device activities of the launch; a launch
        without any keeps its `launch_api_us`, has null features and is counted as `no device record`.
        `counts` also holds `orphan device activity` (no call has its id) and refused events by reason.

    Raises:
        SourceFileError: If the file cannot be read, is cut or is no trace: file and byte offset are named.
        NoDataError: If the trace is whole and holds no graph launch.
    """
    source = read_source_file(
        path,
        what="trace",
        source_name=source_name,
        size_limit_bytes=size_limit_bytes,
        keep_whole=keep_whole,
    )
    trace = _load(source, keep_whole)
    counts: Counter[str] = Counter()
    launches, activities, called = _sort_out(trace.events, counts)
    problems = [problem for problem in (source.problem, trace.problem) if problem]
    is_damaged = bool(problems)
    problems += [
        f"{source.path}: {counts[reason]} event{'s' if counts[reason] > 1 else ''} left out: {reason}"
        for reason in _REFUSALS
        if counts[reason]
    ]
    if not launches:
        raise (SourceFileError if is_damaged else NoDataError)(
            f"{source.path}: a trace of {len(trace.events)} events, none of them a whole graph launch call "
            f"({', '.join(sorted(LAUNCH_CALLS))}); record a part of the program that launches CUDA graphs"
            + "".join(f"; {problem}" for problem in problems)
        )
    counts["orphan device activity"] = sum(
        len(of_one) for correlation, of_one in activities.items() if correlation not in called
    )
    launches = _one_per_call(launches, counts)
    _join(launches, activities, counts)
    frame = _to_launches(launches, trace.header, source)
    counts["launches"] = frame.height
    return LaunchBatch(frame, tuple(problems), dict(counts))


def _load(source: SourceFile, keep_whole: bool) -> _Trace:
    text = decode_text(source, what="trace", keep_whole=keep_whole)
    try:
        try:
            document = _parse(text)
        except json.JSONDecodeError:
            # Kineto writes `inf` and `nan` where JSON has no word for them; strings are left alone.
            text = _STRING_OR_BARE_WORD.sub(_as_json_word, text)
            document = _parse(text)
    except RecursionError as error:
        raise SourceFileError(
            f"{source.path}: nested too deeply for a trace, whose events are flat; it was not written by a profiler"
        ) from error
    except json.JSONDecodeError as error:
        problem = _broken(error, text, source)
        if not keep_whole:
            raise SourceFileError(
                f"{problem}; record it again, or read its whole events with --keep-whole"
            ) from error
        header, events = _salvage(text, source)
        return _Trace(header, events, f"{problem}; {len(events)} whole events before it were read")
    except ValueError as error:  # a number of more than 4,300 digits
        raise SourceFileError(f"{source.path}: not a trace: {error}") from error
    if isinstance(document, list):
        return _Trace({}, document, None)
    if not isinstance(document, dict) or not isinstance(document.get("traceEvents"), list):
        found = (
            f"an object with {', '.join(list(document)[:8])}"[:200]
            if isinstance(document, dict)
            else "a value"
        )
        raise SourceFileError(
            f"{source.path}: JSON, but no trace: found {found or 'an empty object'}, "
            f"a list `traceEvents` (or a bare list of events) is needed"
        )
    return _Trace(document, document["traceEvents"], None)


def _parse(text: str) -> Any:
    return json.loads(text, parse_float=_number)


def _number(digits: str) -> float | Decimal:
    """A float, or the exact decimal where a float would lose the fraction of a microsecond."""
    value = float(digits)
    return Decimal(digits) if 2.0**40 < abs(value) < 2.0**63 else value


def _as_json_word(match: re.Match[str]) -> str:
    word = match[0]
    return word if word.startswith('"') else "NaN".rjust(len(word))


def _broken(error: json.JSONDecodeError, text: str, source: SourceFile) -> str:
    rest = text[error.pos :].strip()
    is_cut = (
        not rest
        or error.msg.startswith("Unterminated string")
        or any(word.startswith(rest) for word in ("true", "false", "null", "NaN", "-", "Infinity"))
    )
    offset = len(text[: error.pos].encode("utf-8", "surrogatepass"))
    if is_cut:
        return (
            f"{source.path}: trace incomplete: its JSON breaks off at byte {offset:,} of {len(source.data):,} "
            f"({error.msg}), so the traced program or the copy ended early"
        )
    near = text[error.pos : error.pos + 40]
    return f"{source.path}: not JSON at byte {offset:,} ({error.msg}): found {near!r}, a trace is needed"


def _salvage(text: str, source: SourceFile) -> tuple[dict[str, Any], list[Any]]:
    """Header and whole events of a trace whose JSON breaks off."""
    found = _EVENT_LIST.search(text)
    if found:
        position = found.end()
    elif text.lstrip()[:1] == "[":
        position = text.index("[") + 1
    else:
        raise SourceFileError(
            f"{source.path}: no trace: found {describe_content(source.data[:1000])} and no list `traceEvents`"
        )
    events = list(_whole_events(text, position))
    try:
        header = _parse(text[: found.end()] + "]}") if found else {}
    except (ValueError, RecursionError):
        header = {}  # the device's name is then unknown, which its rows say by null
    return header if isinstance(header, dict) else {}, events


def _whole_events(text: str, position: int) -> Iterator[Any]:
    decoder = json.JSONDecoder(parse_float=_number)
    blank_or_comma = re.compile(r"[\s,]*")
    while True:
        position = blank_or_comma.match(text, position).end()  # type: ignore[union-attr]
        try:
            event, position = decoder.raw_decode(text, position)
        except (ValueError, RecursionError):
            return
        yield event


def _sort_out(
    events: list[Any], counts: Counter[str]
) -> tuple[list[_Launch], dict[int, list[_Activity]], set[int]]:
    """Launch calls, device activities by correlation id, and the correlation ids of all calls."""
    launches: list[_Launch] = []
    activities: dict[int, list[_Activity]] = defaultdict(list)
    called: set[int] = set()
    ordinal = 0
    for event in events:
        if not isinstance(event, dict):
            counts["not an object"] += 1
            continue
        if event.get("ph") != "X":
            continue
        args = event.get("args")
        args = args if isinstance(args, dict) else {}
        if any(isinstance(value, float) and not math.isfinite(value) for value in args.values()):
            counts["events with non-finite values"] += 1
        category, name = _words(event.get("cat")).lower(), _words(event.get("name"))
        kind = _DEVICE_KINDS.get(category)
        is_call = "runtime" in category or "driver" in category
        correlation = _whole(args.get("correlation"))
        if is_call and correlation is not None:
            called.add(correlation)
        is_launch = is_call and _CALL_ENDING.sub("", name) in LAUNCH_CALLS
        ordinal += is_launch
        start_ns, duration_ns = _nanoseconds(event.get("ts")), _nanoseconds(event.get("dur"))
        if start_ns is None:
            counts["no ts"] += 1
        elif duration_ns is not None and duration_ns < 0:
            counts["negative duration"] += 1
        elif duration_ns is None and (is_launch or kind):
            counts["no dur"] += 1
        elif is_launch and duration_ns is not None:
            thread = json.dumps([_label(event.get("pid")), _label(event.get("tid"))])
            known = set() if correlation is None else {correlation}
            launches.append(_Launch(ordinal - 1, name, start_ns, duration_ns, thread, args, known))
        elif kind and correlation is not None:
            activities[correlation].append(_Activity(kind, start_ns, name, args))
        elif kind:
            counts["device activity without correlation"] += 1
    return launches, activities, called


def _one_per_call(launches: list[_Launch], counts: Counter[str]) -> list[_Launch]:
    """Calls without those made inside another: the runtime's launch calls the driver's, and that is one."""
    kept: list[_Launch] = []
    outer: dict[str, _Launch] = {}
    for launch in sorted(launches, key=lambda one: (one.start_ns, -one.duration_ns, one.ordinal)):
        around = outer.get(launch.thread)
        end_ns = launch.start_ns + launch.duration_ns
        if (
            around
            and around.name != launch.name
            and end_ns <= around.start_ns + around.duration_ns
            and launch.name.startswith("cu")
            and not launch.name.startswith("cuda")
        ):
            around.correlations |= launch.correlations
            counts["driver call inside a runtime call"] += 1
            continue
        outer[launch.thread] = launch
        kept.append(launch)
    return kept


def _join(launches: list[_Launch], activities: dict[int, list[_Activity]], counts: Counter[str]) -> None:
    uses = Counter(correlation for launch in launches for correlation in launch.correlations)
    for launch in launches:
        if not launch.correlations:
            counts["launch without correlation"] += 1
        # Two calls with one id cannot be told apart on the device, so neither gets a guess.
        if any(uses[correlation] > 1 for correlation in launch.correlations):
            counts["launch with a correlation id used twice"] += 1
        else:
            for correlation in sorted(launch.correlations):
                launch.activities += activities.get(correlation, [])
        launch.activities.sort(key=lambda activity: activity.start_ns)
        if not launch.activities:
            counts["no device record"] += 1
        elif launch.activities[0].start_ns < launch.start_ns:
            counts["device activity before its launch call"] += 1


def _to_launches(launches: list[_Launch], header: dict[str, Any], source: SourceFile) -> pl.DataFrame:
    devices, cuda_version = _devices(header), _version(header.get("cuda_runtime_version"))
    base_ns = _whole(header.get("baseTimeNanoseconds")) or 0
    seen_graphs: set[str] = set()
    signatures: dict[str, str] = {}
    rows: list[dict[str, Any]] = []
    for launch in launches:  # in order of time, so that "first" is the first
        graph = _graph_of(launch)
        is_first = None if graph is None else graph not in seen_graphs
        if graph is not None:
            seen_graphs.add(graph)
        device = _device_of(launch, devices)
        gpu = str(device.get("gpu_name") or f"file {source.sha256}")
        signature = _signature(launch.activities)
        if signature is None:
            # Nothing is known of its shape: only launches of the same named graph are known to be alike.
            alone = graph if graph is not None else f"launch {launch.ordinal}"
            signature = signatures.get(alone, f"unknown:{_digest([source.sha256, alone])}")
        elif graph is not None:
            signatures.setdefault(graph, signature)
        identity = signature if graph is None else f"{source.sha256} graph {graph}"
        first_ns = launch.activities[0].start_ns if launch.activities else None
        started_ns = base_ns + launch.start_ns
        rows.append(
            {
                "launch_id": launch_id(SOURCE_KIND, source.sha256, launch.ordinal),
                "record_ordinal": launch.ordinal,
                "graph_id": graph_id(gpu, cuda_version, identity),
                "graph_signature": signature,
                "cuda_version": cuda_version,
                "started_ns": started_ns if 0 <= started_ns <= _LARGEST_NS else None,
                "launch_api_us": launch.duration_ns / 1000,
                "launch_to_device_us": (
                    (first_ns - launch.start_ns) / 1000
                    if first_ns is not None and first_ns >= launch.start_ns
                    else None
                ),
                "is_first_launch": is_first,
                **device,
                **_features(launch.activities),
            }
        )
    frame = pl.DataFrame(rows, schema={name: LAUNCHES.schema[name] for name in _ROW_COLUMNS}).with_columns(
        pl.lit(SOURCE_KIND).alias("source_kind"),
        pl.lit(source.name).alias("source_name"),
        pl.lit(source.sha256).alias("source_sha256"),
        pl.lit("captured").alias("topology"),
        pl.lit("trace").alias("clock"),
        pl.lit(True).alias("is_profiled"),
        pl.lit(False).alias("is_simulated"),
        pl.int_range(pl.len()).over("graph_id").alias("trial"),
    )
    return LAUNCHES.conform(frame.sort("record_ordinal"))


_DEVICE_COLUMNS = ("gpu_name", "sm_count", "compute_capability", "gpu_memory_bytes", "gpus_in_process_count")
_FEATURE_COLUMNS = (
    "node_count",
    "kernel_count",
    "memcpy_count",
    "memset_count",
    "stream_count",
    "memcpy_bytes",
    "memcpy_htod_bytes",
    "memcpy_dtoh_bytes",
    "memcpy_dtod_bytes",
    "memset_bytes",
    "block_count_total",
    "block_count_maximum",
    "threads_per_block_mean",
    "threads_per_block_maximum",
    "registers_per_thread_maximum",
    "shared_memory_bytes_maximum",
    "distinct_kernel_count",
)
_ROW_COLUMNS = (
    "launch_id",
    "record_ordinal",
    "graph_id",
    "graph_signature",
    "cuda_version",
    "started_ns",
    "launch_api_us",
    "launch_to_device_us",
    "is_first_launch",
    *_DEVICE_COLUMNS,
    *_FEATURE_COLUMNS,
)


def _features(activities: list[_Activity]) -> dict[str, int | float | None]:
    """What ran for one launch; all null where no device record says so."""
    if not activities:
        return dict.fromkeys(_FEATURE_COLUMNS)
    kernels = [one for one in activities if one.kind == "kernel"]
    copies = [one for one in activities if one.kind == "memcpy"]
    sets = [one for one in activities if one.kind == "memset"]
    blocks = [_product(one.args.get("grid")) for one in kernels]
    threads = [_product(one.args.get("block")) for one in kernels]
    directions = [_direction(one.name) for one in copies]
    streams = {_whole(one.args.get("stream")) for one in activities}
    threads_total = _total(threads)
    return {
        "node_count": len(activities),
        "kernel_count": len(kernels),
        "memcpy_count": len(copies),
        "memset_count": len(sets),
        "stream_count": None if None in streams else len(streams),
        "memcpy_bytes": _total([_whole(one.args.get("bytes")) for one in copies]),
        **{
            f"memcpy_{way}_bytes": _total(
                [
                    _whole(one.args.get("bytes"))
                    for one, direction in zip(copies, directions, strict=True)
                    if direction == way
                ]
            )
            for way in ("htod", "dtoh", "dtod")
        },
        "memset_bytes": _total([_whole(one.args.get("bytes")) for one in sets]),
        "block_count_total": _total(blocks),
        "block_count_maximum": _largest(blocks),
        "threads_per_block_mean": threads_total / len(kernels)
        if kernels and threads_total is not None
        else None,
        "threads_per_block_maximum": _largest(threads),
        "registers_per_thread_maximum": _largest(
            [_whole(one.args.get("registers per thread")) for one in kernels]
        ),
        "shared_memory_bytes_maximum": _largest([_whole(one.args.get("shared memory")) for one in kernels]),
        "distinct_kernel_count": len({one.name for one in kernels}),
    }


def _signature(activities: list[_Activity]) -> str | None:
    """Shape of what ran: sorted, because work on two streams may start in either order."""
    if not activities:
        return None
    shape = sorted(
        [one.kind, one.name, *(str(_sizes(one.args.get(key))) for key in ("grid", "block"))]
        for one in activities
    )
    return f"captured:{_digest(shape)}"


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:32]


def _graph_of(launch: _Launch) -> str | None:
    """The graph's own id: from the call, else from its activities where all agree; 0 stands for none."""
    for args in (launch.args, *_agreed(launch.activities)):
        for key in _GRAPH_KEYS:
            if (value := _whole(args.get(key))) is not None and value > 0:
                return f"{key} {value}"
    return None


def _agreed(activities: list[_Activity]) -> list[dict[str, Any]]:
    if not activities:
        return []
    first = activities[0].args
    return [
        {
            key: value
            for key in _GRAPH_KEYS
            if (value := _whole(first.get(key))) is not None
            and all(_whole(one.args.get(key)) == value for one in activities)
        }
    ]


def _devices(header: dict[str, Any]) -> dict[int, dict[str, Any]]:
    properties = header.get("deviceProperties")
    known = [one for one in properties if isinstance(one, dict)] if isinstance(properties, list) else []
    devices = {}
    for one in known:
        major, minor = _whole(one.get("computeMajor")), _whole(one.get("computeMinor"))
        is_known = major is not None and minor is not None and minor < 10
        name = one.get("name")
        identity = _whole(one.get("id"))
        if identity is not None:
            devices[identity] = {
                "gpu_name": _words(name) or None,
                "sm_count": _whole(one.get("numSms")),
                "compute_capability": float(f"{major}.{minor}") if is_known else None,
                "gpu_memory_bytes": _whole(one.get("totalGlobalMem")),
                "gpus_in_process_count": len(known),
            }
    return devices


def _device_of(launch: _Launch, devices: dict[int, dict[str, Any]]) -> dict[str, Any]:
    """Properties of the one GPU that ran the launch's work; null where there is none or more than one."""
    used = {_whole(one.args.get("device")) for one in launch.activities}
    if not used and len(devices) == 1:
        used = set(devices)
    unknown = {**dict.fromkeys(_DEVICE_COLUMNS), "gpus_in_process_count": len(devices) or None}
    only = used.pop() if len(used) == 1 else None
    return devices.get(only, unknown) if only is not None else unknown


def _version(value: Any) -> str | None:
    """`12.4` of the 12040 that CUDA counts in."""
    number = _whole(value)
    return f"{number // 1000}.{number % 1000 // 10}" if number and number >= 1000 else None


def _direction(name: str) -> str | None:
    found = _COPY_DIRECTION.search(name)
    return found[1].lower() if found else None


def _words(value: Any) -> str:
    """A string that can be stored: JSON may carry half of a surrogate pair, UTF-8 may not."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else ""


def _label(value: Any) -> str | int | None:
    """A process or thread id, which traces write as a number or as words."""
    return value if isinstance(value, str | int) else None


def _whole(value: Any) -> int | None:
    """The value if it is a whole number from 0 to 2^63 - 1, else None."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    if not 0 <= value <= _LARGEST_NS or value != int(value):
        return None
    return int(value) if int(value) <= _LARGEST_NS else None


def _sizes(value: Any) -> list[int] | None:
    """The up to three sizes of a grid or block."""
    if not isinstance(value, list) or not 1 <= len(value) <= 3:
        return None
    known = [size for size in map(_whole, value) if size]
    return known if len(known) == len(value) else None


def _product(value: Any) -> int | None:
    """Blocks of a grid, or threads of a block."""
    sizes = _sizes(value)
    return math.prod(sizes) if sizes and math.prod(sizes) <= _LARGEST_NS else None


def _total(values: list[int | None]) -> int | None:
    """Sum, or None if one is unknown or it is beyond what the table holds."""
    known = [value for value in values if value is not None]
    return sum(known) if len(known) == len(values) and sum(known) <= _LARGEST_NS else None


def _largest(values: list[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None


def _nanoseconds(value: Any) -> int | None:
    """Microseconds of a trace as whole nanoseconds; None for what is no time."""
    if isinstance(value, bool) or not isinstance(value, int | float | Decimal):
        return None
    # A comparison with NaN is false, so NaN and the infinities end here too.
    if not -_LARGEST_NS <= value * 1000 <= _LARGEST_NS:
        return None
    return round(value * 1000)
