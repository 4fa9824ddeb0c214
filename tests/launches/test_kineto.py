import gzip
import json

import polars as pl
import pytest

from warpgauge.errors import NoDataError, SourceFileError
from warpgauge.launches.kineto import read_kineto
from warpgauge.tables import LAUNCHES


def call(ts, dur=5, correlation=1, name="cudaGraphLaunch", cat="cuda_runtime", tid=7, **args):
    args = {"correlation": correlation, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def device(ts, correlation=1, cat="kernel", name="k", **args):
    args = {"correlation": correlation, **args}
    return {"ph": "X", "cat": cat, "name": name, "pid": 0, "tid": 7, "ts": ts, "dur": 2, "args": args}


@pytest.fixture
def read(tmp_path):
    def read_events(events, header=None, **options):
        path = tmp_path / "trace.json"
        document = events if header is None else {**header, "traceEvents": events}
        path.write_text(document if isinstance(document, str) else json.dumps(document))
        return read_kineto(path, **options)

    return read_events


def test_shared_correlation_gives_one_row_a_launch(cases):
    batch = read_kineto(cases / "05-graph-kernels-share-correlation" / "trace.json")
    frame = batch.frame
    # In file order: correlations 9, 10, 11, 12, 14.
    assert frame["launch_to_device_us"].to_list() == [12.5, 7.0, None, 15.25, 11.0]
    assert frame["is_first_launch"].to_list() == [True, False, True, True, None]
    assert frame["launch_api_us"].to_list() == [8.0, 5.0, 6.0, 7.0, 6.0]
    assert frame["kernel_count"].to_list() == [3, 3, None, 1, 1]
    assert frame["memset_count"].to_list() == [1, 0, None, 0, 0]
    assert batch.counts["no device record"] == 1
    assert batch.counts["orphan device activity"] == 1
    assert frame["launch_to_device_us"].count() == 4
    assert frame["graph_id"][0] == frame["graph_id"][1]
    assert frame["trial"].to_list()[:2] == [0, 1]


@pytest.mark.parametrize("name", ["good.json", "inf.json"])
def test_bare_inf_and_nan_are_read_and_counted(cases, name):
    batch = read_kineto(cases / "04-kineto-broken-json" / name)
    assert batch.frame["launch_to_device_us"].to_list() == [12.5, 9.25, 10.0]
    assert batch.counts.get("events with non-finite values", 0) == (name == "inf.json")
    assert batch.problems == ()


@pytest.mark.parametrize(
    ("name", "words"), [("cut.json", "byte 1,199 of 1,199"), ("cut.json.gz", "byte 264 of")]
)
def test_a_cut_trace_is_refused_with_file_and_byte(cases, name, words):
    path = cases / "04-kineto-broken-json" / name
    with pytest.raises(SourceFileError, match="trace incomplete") as caught:
        read_kineto(path)
    assert str(path) in str(caught.value)
    assert words in str(caught.value)


def test_keep_whole_reads_the_whole_events_of_a_cut_trace(cases):
    batch = read_kineto(cases / "04-kineto-broken-json" / "cut.json", keep_whole=True)
    assert batch.frame["launch_to_device_us"].to_list() == [12.5, 9.25, None]
    assert batch.counts["no device record"] == 1
    assert len(batch.problems) == 1
    assert "trace incomplete" in batch.problems[0]


def test_keep_whole_reads_the_whole_events_of_a_cut_gzip(cases):
    batch = read_kineto(cases / "04-kineto-broken-json" / "cut.json.gz", keep_whole=True)
    assert batch.frame["launch_to_device_us"].to_list()[0] == 12.5
    assert "gzip stream stops" in batch.problems[0]


def test_odd_events_are_left_out_by_reason(cases):
    batch = read_kineto(cases / "04-kineto-broken-json" / "odd_events.json")
    assert batch.frame["launch_to_device_us"].to_list() == [12.5]
    assert (batch.counts["negative duration"], batch.counts["no ts"], batch.counts["not an object"]) == (
        1,
        1,
        2,
    )
    assert [problem.rpartition(": ")[2] for problem in batch.problems] == [
        "not an object",
        "no ts",
        "negative duration",
    ]


@pytest.mark.parametrize("keep_whole", [False, True])
def test_an_empty_trace_file_is_refused_by_name(cases, keep_whole):
    with pytest.raises(SourceFileError, match=r"empty\.json: empty, 0 bytes"):
        read_kineto(cases / "04-kineto-broken-json" / "empty.json", keep_whole=keep_whole)


def test_the_two_public_traces_give_82_launches(bench_data):
    a100 = read_kineto(bench_data / "kineto" / "hta_a100_graph70.json.gz").frame
    v100 = read_kineto(bench_data / "kineto" / "hta_v100_graph12.json.gz").frame
    both = pl.concat([a100, v100])
    assert (a100.height, v100.height) == (70, 12)
    assert (a100["graph_id"].n_unique(), v100["graph_id"].n_unique()) == (14, 2)
    assert a100["node_count"].min() == 1
    assert a100["node_count"].max() == 20
    assert sorted(v100["node_count"].unique().to_list()) == [339, 502]
    assert a100["launch_api_us"].median() == 27.5
    assert v100["launch_api_us"].median() == 1240
    counts = both.select(pl.col("kernel_count") + pl.col("memcpy_count") + pl.col("memset_count")).to_series()
    assert counts.to_list() == both["node_count"].to_list()
    # 2 kernels and 18 sets took four times as long as 8 kernels and 12 sets.
    slow, fast = (
        a100.filter((pl.col("kernel_count") == kernels) & (pl.col("memset_count") == sets))
        for kernels, sets in ((2, 18), (8, 12))
    )
    assert slow["launch_api_us"].median() > 3 * fast["launch_api_us"].median()
    assert both["is_profiled"].all()
    assert not both["is_simulated"].any()
    assert both["is_first_launch"].null_count() == 82
    assert both["launch_id"].n_unique() == 82
    assert a100["gpu_name"].unique().to_list() == ["NVIDIA A100-SXM4-80GB"]
    assert a100.select("sm_count", "compute_capability", "gpu_memory_bytes", "gpus_in_process_count").row(
        0
    ) == (
        108,
        8.0,
        84990623744,
        8,
    )
    assert v100["gpu_name"].unique().to_list() == ["Tesla V100-SXM2-16GB"]


def test_features_are_sums_over_the_activities_of_a_launch(read):
    frame = read(
        [
            call(10),
            device(
                15,
                grid=[2, 3, 1],
                block=[32, 2, 1],
                stream=7,
                **{"registers per thread": 40, "shared memory": 1},
            ),
            device(
                16,
                name="m",
                grid=[10, 1, 1],
                block=[128, 1, 1],
                stream=8,
                **{"registers per thread": 20, "shared memory": 512},
            ),
            device(17, cat="gpu_memcpy", name="Memcpy HtoD (Pinned -> Device)", bytes=100, stream=7),
            device(18, cat="gpu_memcpy", name="Memcpy DtoD (Device -> Device)", bytes=30, stream=7),
            device(19, cat="gpu_memset", name="Memset (Device)", bytes=7, stream=7),
        ]
    ).frame
    found = frame.row(0, named=True)
    assert frame.schema == LAUNCHES.schema
    expected = {
        "node_count": 5,
        "kernel_count": 2,
        "memcpy_count": 2,
        "memset_count": 1,
        "stream_count": 2,
        "memcpy_bytes": 130,
        "memcpy_htod_bytes": 100,
        "memcpy_dtoh_bytes": 0,
        "memcpy_dtod_bytes": 30,
        "memset_bytes": 7,
        "block_count_total": 16.0,
        "block_count_maximum": 10.0,
        "threads_per_block_mean": 96.0,
        "threads_per_block_maximum": 128.0,
        "registers_per_thread_maximum": 40.0,
        "shared_memory_bytes_maximum": 512.0,
        "distinct_kernel_count": 2,
        "launch_to_device_us": 5.0,
        "topology": "captured",
        "clock": "trace",
        "started_ns": 10_000,
        "other_node_count": None,
        "edge_count": None,
    }
    assert {name: found[name] for name in expected} == expected


def test_an_attribute_that_one_activity_lacks_is_null_not_a_partial_sum(read):
    found = read([call(10), device(15, grid=[1, 1, 1]), device(16)]).frame.row(0, named=True)
    assert found["block_count_total"] is None
    assert found["stream_count"] is None
    assert found["kernel_count"] == 2


def test_runtime_driver_and_versioned_names_are_launches_and_others_are_not(read):
    names = [
        "cudaGraphLaunch",
        "cudaGraphLaunch_ptsz",
        "cudaGraphLaunch_v10000",
        "cuGraphLaunch_ptsz",
        "hipGraphLaunch",
    ]
    events = [
        call(10 * i, correlation=i, name=name, cat="cuda_driver" if name[2] == "G" else "cuda_runtime")
        for i, name in enumerate(names)
    ]
    events += [
        call(90, correlation=20, name="cudaLaunchKernel"),
        call(91, correlation=21, name="cudaGraphLaunchHost"),
        call(92, correlation=22, cat="user_annotation"),
        call(93, correlation=23, cat="cpu_op"),
    ]
    assert read(events).frame.height == 5


def test_a_driver_call_inside_the_runtime_call_is_the_same_launch(read):
    batch = read(
        [
            call(10, dur=9, correlation=1),
            call(11, dur=5, correlation=2, name="cuGraphLaunch", cat="cuda_driver"),
            device(30, correlation=2),
            call(12, dur=5, correlation=3, name="cuGraphLaunch", cat="cuda_driver", tid=8),
        ]
    )
    assert batch.frame["launch_to_device_us"].to_list() == [20.0, None]
    assert batch.counts["driver call inside a runtime call"] == 1


def test_a_correlation_id_used_twice_is_counted_and_never_guessed(read):
    batch = read([call(10), call(100), device(120)])
    assert batch.frame["launch_to_device_us"].to_list() == [None, None]
    assert batch.counts["launch with a correlation id used twice"] == 2


def test_a_launch_without_correlation_keeps_its_call_time(read):
    batch = read([call(10, dur=4, correlation=None)])
    assert batch.frame["launch_api_us"].to_list() == [4.0]
    assert batch.counts["launch without correlation"] == 1


def test_device_work_before_its_call_is_no_latency(read):
    batch = read([call(10), device(9)])
    assert batch.frame["launch_to_device_us"].to_list() == [None]
    assert batch.frame["kernel_count"].to_list() == [1]
    assert batch.counts["device activity before its launch call"] == 1


def test_sixteen_digit_times_keep_their_nanoseconds(read):
    text = json.dumps([call(0), device(1)])
    text = text.replace('"ts": 0,', '"ts": 1683564901978357.123,').replace(
        '"ts": 1,', '"ts": 1683564901978357.625,'
    )
    frame = read(text, None).frame
    assert frame["started_ns"].to_list() == [1683564901978357123]
    assert frame["launch_to_device_us"].to_list() == [0.502]


def test_times_are_microseconds_whatever_the_display_unit_and_a_base_is_added(read):
    header = {"displayTimeUnit": "ns", "baseTimeNanoseconds": 1_700_000_000_000_000_000}
    frame = read([call(2.5), device(4)], header).frame
    assert frame["started_ns"].to_list() == [1_700_000_000_000_002_500]
    assert frame["launch_to_device_us"].to_list() == [1.5]


def test_the_gpu_is_the_device_that_ran_the_work(read):
    properties = [
        {
            "id": 0,
            "name": "GPU zero",
            "numSms": 10,
            "computeMajor": 8,
            "computeMinor": 6,
            "totalGlobalMem": 5,
        },
        {"id": 1, "name": "GPU one", "numSms": 20, "computeMajor": 9, "computeMinor": 0, "totalGlobalMem": 6},
    ]
    events = [
        call(10, correlation=1),
        device(11, correlation=1, device=1),
        call(20, correlation=2),
        device(21, correlation=2, device=0),
        device(22, correlation=2, device=1),
        call(30, correlation=3),
    ]
    frame = read(events, {"deviceProperties": properties, "cuda_runtime_version": 12040}).frame
    assert frame["gpu_name"].to_list() == ["GPU one", None, None]
    assert frame["compute_capability"].to_list() == [9.0, None, None]
    assert frame["gpus_in_process_count"].to_list() == [2, 2, 2]
    assert frame["cuda_version"].to_list() == ["12.4"] * 3


def test_launches_of_one_shape_are_trials_in_order_of_time(read):
    events = [
        call(30, correlation=3),
        device(31, correlation=3),
        call(10, correlation=1),
        device(11, correlation=1),
        call(20, correlation=2),
        device(21, correlation=2, name="other"),
    ]
    frame = read(events).frame
    assert frame["record_ordinal"].to_list() == [0, 1, 2]
    assert frame["trial"].to_list() == [1, 0, 0]
    assert frame["graph_id"][0] == frame["graph_id"][1] != frame["graph_id"][2]


def test_plain_gzip_and_another_name_give_the_same_ids(tmp_path):
    text = json.dumps([call(10), device(11)]).encode()
    (tmp_path / "a.json").write_bytes(text)
    (tmp_path / "b").write_bytes(gzip.compress(text))
    one, other = read_kineto(tmp_path / "a.json").frame, read_kineto(tmp_path / "b").frame
    assert one["launch_id"].to_list() == other["launch_id"].to_list()


def test_a_whole_trace_without_a_graph_launch_is_no_data(read):
    with pytest.raises(NoDataError, match="none of them a whole graph launch"):
        read([call(1, name="cudaLaunchKernel")])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{"a": 1}', "found an object with a"),
        ('{"traceEvents": 5}', "a list `traceEvents`"),
        ("{}", "no trace"),
        ("[" * 100_000, "nested too deeply"),
        ('{"traceEvents": [' + "9" * 5000 + "]}", "not a trace"),
        ('{"a": 1}\n{"a": 2}\n', "not JSON at byte 9"),
        ("[1, 2} rest of it", "not JSON at byte 5"),
        ('[{"ph": "X", "na', "trace incomplete"),
        ('[{"ph": tru', "trace incomplete"),
        ("[", "trace incomplete"),
    ],
)
def test_what_is_no_trace_is_refused_in_words(read, text, words):
    with pytest.raises(SourceFileError) as caught:
        read(text)
    assert words in str(caught.value)
    with pytest.raises((SourceFileError, NoDataError)):
        read(text, keep_whole=True)


def test_a_byte_offset_counts_bytes_and_not_characters(read):
    with pytest.raises(SourceFileError, match="byte 10 "):
        read('["éé", 1} and more of it', None)


def test_a_grid_beyond_any_gpu_is_unknown_and_not_an_overflow(read):
    frame = read([call(10), device(15, grid=[2**62, 2**62, 2**62], block=[10**30, 1, 1])]).frame
    assert frame.select("block_count_total", "threads_per_block_maximum").row(0) == (None, None)


def test_half_a_surrogate_pair_in_a_name_does_not_stop_the_others(read):
    events = json.dumps([call(10), device(15, name="@@")]).replace("@@", "\\ud800")
    header = '{"deviceProperties": [{"id": 0, "name": "\\ud800"}], "traceEvents": '
    assert read(header + events + "}", None).frame["kernel_count"].to_list() == [1]
