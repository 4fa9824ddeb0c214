"""Damaged files end in rows or in an error that a person can act on: never in another exception."""

import gzip
import json
import random

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warpgauge.errors import WarpgaugeError
from warpgauge.launches.graph import describe_graph
from warpgauge.launches.source import read_launches
from warpgauge.tables import LAUNCHES

TRACE = json.dumps(
    {
        "deviceProperties": [{"id": 0, "name": "A100", "numSms": 108, "computeMajor": 8, "computeMinor": 0}],
        "traceEvents": [
            {
                "ph": "X",
                "cat": "cuda_runtime",
                "name": "cudaGraphLaunch",
                "pid": 1,
                "tid": 2,
                "ts": 1683564901978357.5,
                "dur": 46,
                "args": {"correlation": 7, "graph id": 3},
            },
            {
                "ph": "X",
                "cat": "kernel",
                "name": "k",
                "ts": 1683564901978390,
                "dur": 3,
                "args": {"correlation": 7, "device": 0, "stream": 7, "grid": [1, 2, 3], "block": [32, 1, 1]},
            },
            {
                "ph": "X",
                "cat": "gpu_memcpy",
                "name": "Memcpy HtoD",
                "ts": 1683564901978395,
                "dur": 3,
                "args": {"correlation": 7, "device": 0, "stream": 7, "bytes": 4096},
            },
        ],
    }
)
TABLE = (
    "length, width, pattern, capture, instantiation, first_launch_api, first_launch_total, repeat_launch_api, "
    "repeat_launch_total, first_launch_device, blockingKernelTimeoutDetected, repeat_launch_device, "
    "blockingKernelTimeoutDetected, upload_api_time, upload_device_time, blockingKernelTimeoutDetected, \r\n"
    "1, 1, 0, 3.308, 7.901, 3.449, 7.019, 2.331, 5.964, 3.104, 0.000, 2.976, 0.000, 3.318, 4.640, 1.000, \r\n"
    "2, 4, 1, 2.510, 4.869, 3.548, 7.261, 2.316, 5.852, 3.008, 0.000, 2.944, 0.000, 2.477, 4.608, 0.000, \r\n\r\n"
)
GRAPH = json.dumps({"nodes": [{"id": 0, "type": "kernel", "grid": [1, 2, 3]}, {"id": 1}], "edges": [[0, 1]]})
DOT = 'digraph dot {\nsubgraph cluster_1 {\n"a"[shape="octagon" label="0\n_Z1fv\n"];\n"b"[label="1\nMEMCPY\n(HtoD,4)\n"];\n"a" -> "b";\n}\n}\n'
# What programs and people put in the place of a value.
SPLICES = [
    "",
    "null",
    "-1",
    "1e999",
    "nan",
    "inf",
    "[]",
    "{}",
    '"\\ud800"',
    "9" * 400,
    "true",
    "\x00",
    '"',
    ",",
    "\n",
    "é",
    "[[[[",
]


def mutate(data: bytes, seed: int, count: int) -> bytes:
    """Cut, doubled, flipped and replaced pieces."""
    chance = random.Random(seed)
    for _ in range(count):
        start = chance.randrange(len(data) + 1)
        stop = min(len(data), start + chance.randrange(1, 12))
        how = chance.randrange(5)
        if how == 0:
            data = data[:start] + data[stop:]
        elif how == 1:
            data = data[:start] + chance.choice(SPLICES).encode() + data[stop:]
        elif how == 2:
            data = data[:start] + data[start:stop] * 3 + data[stop:]
        elif how == 3:
            data = data[:start] + bytes(chance.randrange(256) for _ in range(stop - start)) + data[stop:]
        else:
            data = data[:start]
    return data


def outcome(read):
    """What was read, or the message of the error that a person can act on."""
    try:
        return read(), ""
    except WarpgaugeError as error:
        return None, str(error)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 5),
    text=st.sampled_from([TRACE, TABLE]),
    packed=st.sampled_from(["no", "before", "after"]),
    keep_whole=st.booleans(),
)
def test_a_mutated_launch_file_ends_in_rows_or_in_a_named_error(
    tmp_path, seed, count, text, packed, keep_whole
):
    path = tmp_path / "input"
    data = text.encode()
    if packed == "after":  # the compressed bytes themselves are damaged
        data = mutate(gzip.compress(data, mtime=0), seed, count)
    else:
        data = mutate(data, seed, count)
        data = gzip.compress(data, mtime=0) if packed == "before" else data
    path.write_bytes(data)
    batch, refusal = outcome(lambda: read_launches(path, keep_whole=keep_whole))
    if batch is None:
        assert str(path) in refusal
    else:
        assert batch.frame.height > 0
        assert batch.frame.schema == LAUNCHES.schema


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 2**32), count=st.integers(1, 5), text=st.sampled_from([GRAPH, DOT]))
def test_a_mutated_graph_ends_in_one_row_or_in_a_named_error(seed, count, text):
    damaged = mutate(text.encode(), seed, count).decode("utf-8", "replace")
    frame, refusal = outcome(lambda: describe_graph(damaged, source_name="graph"))
    if frame is None:
        assert refusal.startswith("graph: ")
    else:
        assert frame.height == 1
        assert frame["node_count"][0] >= 1


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    document=st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(["args", "ts", "bytes"]), inner, max_size=3)
        ),
        max_leaves=8,
    ),
    field=st.sampled_from(
        [
            "ph",
            "cat",
            "name",
            "pid",
            "ts",
            "dur",
            "args",
            "correlation",
            "grid",
            "bytes",
            "stream",
            "device",
            "graph id",
            "deviceProperties",
            "numSms",
            "baseTimeNanoseconds",
        ]
    ),
    where=st.integers(0, 2),
)
def test_any_value_in_any_field_of_a_trace_ends_in_rows_or_in_a_named_error(tmp_path, document, field, where):
    trace = json.loads(TRACE)
    event = trace["traceEvents"][where]
    if field in ("deviceProperties", "baseTimeNanoseconds"):
        trace[field] = document
    elif field == "numSms":
        trace["deviceProperties"][0][field] = document
    elif field in event:
        event[field] = document
    else:
        event["args"][field] = document
    path = tmp_path / "trace.json"
    path.write_text(json.dumps(trace))
    batch, refusal = outcome(lambda: read_launches(path))
    if batch is None:
        assert str(path) in refusal
    else:
        assert batch.frame.height == 1
