import gzip

import polars as pl
import pytest

from warpgauge.errors import NoDataError, SourceFileError
from warpgauge.launches.batch import launch_id
from warpgauge.launches.perfscaling import gpu_of_file_name, read_perfscaling
from warpgauge.tables import LAUNCHES

HEADER = (
    "length, width, pattern, capture, instantiation, first_launch_api, first_launch_total, repeat_launch_api, "
    "repeat_launch_total, first_launch_device, blockingKernelTimeoutDetected, repeat_launch_device, "
    "blockingKernelTimeoutDetected, upload_api_time, upload_device_time, blockingKernelTimeoutDetected, \r\n"
)
TIMES = "1.5, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5, 0.000, 8.5, 1.000, 9.5, 10.5, 0.000, \r\n"
NAME = "NVIDIA-Tesla-P100-PCIE-16GB-cuda-12.9_straight-line.csv"


def row(length: int = 5, width: int = 1, pattern: int = 0, times: str = TIMES) -> str:
    return f"{length}, {width}, {pattern}, {times}"


@pytest.fixture
def write(tmp_path):
    def write_text(text: str, name: str = NAME):
        path = tmp_path / name
        path.write_bytes(text.encode())
        return path

    return write_text


def test_each_time_goes_to_its_column_and_each_timeout_to_the_time_before_it(write):
    batch = read_perfscaling(write(HEADER + row() + "\r\n"))
    found = batch.frame.row(0, named=True)
    assert {name: found[name] for name in LAUNCHES.column_names if name.endswith("_us")} == {
        "capture_us": 1.5,
        "instantiate_us": 2.5,
        "first_launch_api_us": 3.5,
        "first_launch_total_us": 4.5,
        "repeat_launch_api_us": 5.5,
        "repeat_launch_total_us": 6.5,
        "first_launch_device_us": 7.5,
        "repeat_launch_device_us": 8.5,
        "upload_api_us": 9.5,
        "upload_device_us": 10.5,
        "launch_api_us": None,
        "launch_to_device_us": None,
    }
    assert found["first_launch_timed_out"] is False
    assert found["repeat_launch_timed_out"] is True
    assert found["upload_timed_out"] is False
    assert (found["is_first_launch"], found["is_profiled"], found["is_simulated"]) == (True, False, False)
    assert (found["gpu_name"], found["cuda_version"]) == ("Tesla P100-PCIE-16GB", "12.9")
    assert found["collected_at"] is None
    assert batch.frame.schema == LAUNCHES.schema
    assert batch.problems == ()


def test_a_straight_line_has_one_root_and_one_node_at_each_depth(write):
    found = read_perfscaling(write(HEADER + row(length=7))).frame.row(0, named=True)
    shape = ("topology", "node_count", "kernel_count", "line_length", "line_count", "edge_count")
    assert [found[name] for name in shape] == ["straight_line", 7, 7, 7, 1, 6]
    shape = ("root_count", "leaf_count", "depth", "graph_width", "is_straight_line", "memcpy_count")
    assert [found[name] for name in shape] == [1, 1, 7, 1, True, 0]


def test_parallel_lines_share_no_node_and_pattern_1_adds_one_root(write):
    frame = read_perfscaling(write(HEADER + row(3, 4) + row(3, 4, 1) + row(3, 1, 1))).frame
    shape = ("topology", "node_count", "line_length", "line_count", "edge_count", "root_count", "depth")
    assert frame.select(shape).rows() == [
        ("parallel_lines", 12, 3, 4, 8, 4, 3),
        ("parallel_lines", 13, 3, 4, 12, 1, 4),
        ("straight_line", 4, 4, 1, 3, 1, 4),
    ]
    assert frame["graph_id"].n_unique() == 3


def test_trials_are_counted_within_each_shape(write):
    text = HEADER + row(1) + row(2) + row(1) + row(1, 4) + row(1)
    frame = read_perfscaling(write(text)).frame
    assert frame["trial"].to_list() == [0, 0, 1, 0, 2]
    assert frame["record_ordinal"].to_list() == [0, 1, 2, 3, 4]
    assert frame["graph_id"].n_unique() == 3


def test_gzip_under_another_name_gives_the_same_ids(write, tmp_path):
    text = HEADER + row() + row()
    plain = read_perfscaling(write(text)).frame
    (tmp_path / "other").write_bytes(gzip.compress(text.encode()))
    packed = read_perfscaling(tmp_path / "other", gpu_name="Tesla P100-PCIE-16GB", cuda_version="12.9").frame
    assert packed.drop("source_name").equals(plain.drop("source_name"))
    assert plain["launch_id"][1] == launch_id("perfscaling", plain["source_sha256"][0], 1)


def test_two_files_of_unnamed_gpus_do_not_share_a_graph(write):
    one = read_perfscaling(write(HEADER + row(), "a.csv")).frame
    other = read_perfscaling(write(HEADER + row() + row(), "b.csv")).frame
    assert one["gpu_name"][0] is None
    assert one["graph_id"][0] != other["graph_id"][0]
    assert one["graph_signature"][0] == other["graph_signature"][0]


@pytest.mark.parametrize(
    ("name", "gpu", "cuda"),
    [
        (NAME, "Tesla P100-PCIE-16GB", "12.9"),
        ("NVIDIA-A100-SXM4-80GB-cuda-12.4.csv.gz", "NVIDIA A100-SXM4-80GB", "12.4"),
        ("NVIDIA-GeForce-RTX-3060-cuda-12.6_4-parallel-lines.csv", "NVIDIA GeForce RTX 3060", "12.6"),
        ("NVIDIA-H100-80GB-HBM3-cuda-12.8.csv", "NVIDIA H100 80GB HBM3", "12.8"),
        ("AMD-Instinct-MI210-rocm-7.13.csv", None, None),
        ("-cuda-12.9.csv", None, None),
        ("results.csv", None, None),
    ],
)
def test_gpu_and_cuda_version_come_from_the_file_name(name, gpu, cuda):
    assert gpu_of_file_name(name) == (gpu, cuda)


def test_given_gpu_and_version_override_the_file_name(write):
    frame = read_perfscaling(write(HEADER + row()), gpu_name="Tesla T4", cuda_version="11.0").frame
    assert frame.select("gpu_name", "cuda_version").row(0) == ("Tesla T4", "11.0")


def test_the_misspelt_column_of_newer_samples_and_its_last_line_are_known(write):
    text = HEADER.replace("upload_device_time", "updoad_device_time") + row() + "\r\nTest passed\r\n"
    assert read_perfscaling(write(text)).frame["upload_device_us"].to_list() == [10.5]


def test_a_file_saved_again_without_blanks_and_last_commas_is_read(write):
    lines = (
        (HEADER + row())
        .replace(" ", "")
        .replace(",\r\n", "\n")
        .replace("blockingKernel", "blockingKernel", 1)
    )
    lines = lines.replace("Detected,upload", "Detected.1,upload").replace("_time,blocking", "_time,blocking")
    assert read_perfscaling(write(lines)).frame["upload_device_us"].to_list() == [10.5]


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        (
            row(times=TIMES.replace("3.5", "abc")),
            "row 3, column first_launch_api_us: found 'abc', needs a number",
        ),
        (row(times=TIMES.replace("3.5", "")), "column first_launch_api_us: found '', needs a number"),
        (
            row(times=TIMES.replace("3.5", "-3.5")),
            "column first_launch_api_us: found '-3.5', needs 0 or more",
        ),
        (row(times=TIMES.replace("3.5", "nan")), "column first_launch_api_us: found 'nan', needs a finite"),
        (row(times=TIMES.replace("3.5", "inf")), "column first_launch_api_us: found 'inf', needs a finite"),
        (row(times=TIMES.replace("0.000", "0.300")), "first_launch_timed_out: found '0.300', needs 0 or 1"),
        (row(times=TIMES.replace("1.5, ", "")), "row 3, it has 16 columns, the header 17"),
        (row(times=TIMES.replace("\r\n", "7\r\n")), "something follows its last comma"),
        (row(length=0), "column length: found '0', needs a whole number from 1"),
        (row(width=0), "column width: found '0', needs a whole number from 1"),
        (row(pattern=2), "column pattern: found '2', needs 0 or 1"),
        (row(length=9_000_000, width=90_000), "90000 lines of 9000000 nodes are beyond 10,000,000"),
        ("5, 1, 0, 1.5, 2.", "row 3, it has 5 columns, the header 17"),
        (HEADER, "row 3, column length: found 'length', needs a number"),
        ("Segmentation fault\n", "row 3, it has 1 columns, the header 17"),
    ],
)
def test_a_wrong_row_refuses_the_file_and_is_named(write, bad, words):
    path = write(HEADER + row() + bad)
    with pytest.raises(SourceFileError) as caught:
        read_perfscaling(path)
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "--keep-whole" in str(caught.value)


def test_keep_whole_keeps_the_good_rows_with_their_ordinals_and_names_the_bad(write):
    bad = row(times=TIMES.replace("3.5", "abc"))
    batch = read_perfscaling(write(HEADER + row() + bad + row() + "5, 1"), keep_whole=True)
    assert batch.frame["record_ordinal"].to_list() == [0, 2]
    assert batch.counts == {"launches": 2, "rows refused": 2}
    assert [problem.partition(": ")[2] for problem in batch.problems] == [
        "row 3, column first_launch_api_us: found 'abc', needs a number; left out",
        "row 5, it has 2 columns, the header 17; left out",
    ]


def test_keep_whole_of_a_file_without_one_good_row_is_a_refusal(write):
    with pytest.raises(SourceFileError, match="not one of 1 rows is whole"):
        read_perfscaling(write(HEADER + "5, 1"), keep_whole=True)


@pytest.mark.parametrize(
    ("header", "words"),
    [
        (HEADER.replace(" capture,", ""), "missing: capture_us"),
        (HEADER.replace(" capture,", " warp_speed,"), "unknown: warp_speed"),
        (HEADER.replace(" capture,", " capture, capture,"), "twice: capture_us"),
        (
            HEADER.replace("first_launch_device, blockingKernelTimeoutDetected", "first_launch_device"),
            "missing: first_launch_timed_out",
        ),
        ("a, b, c\n", "the header of cudaGraphsPerfScaling"),
        (row(), "the header of cudaGraphsPerfScaling"),
    ],
)
def test_a_header_that_does_not_fit_is_refused(write, header, words):
    with pytest.raises(SourceFileError, match="row 1") as caught:
        read_perfscaling(write(header + row()))
    assert words in str(caught.value)


def test_a_header_alone_holds_no_data(write):
    with pytest.raises(NoDataError, match="a header and no trial"):
        read_perfscaling(write(HEADER + "\r\n"))


def test_the_forty_thousand_public_trials_are_read_whole(bench_data):
    for name, topology, nodes in (
        ("straight-line", "straight_line", 2000),
        ("4-parallel-lines", "parallel_lines", 8000),
    ):
        path = bench_data / "perfscaling" / f"NVIDIA-Tesla-P100-PCIE-16GB-cuda-12.9_{name}.csv.gz"
        batch = read_perfscaling(path)
        assert (batch.frame.height, batch.problems) == (20_000, ())
        assert batch.frame["topology"].unique().to_list() == [topology]
        assert batch.frame["graph_id"].n_unique() == 2000
        assert batch.frame["trial"].max() == 9
        assert batch.frame["node_count"].max() == nodes
        assert batch.frame["gpu_name"].unique().to_list() == ["Tesla P100-PCIE-16GB"]
        assert batch.frame["launch_id"].n_unique() == 20_000
        assert (
            batch.frame.filter(pl.col("first_launch_timed_out")).height
            == {1: 2, 4: 25}[batch.frame["line_count"][0]]
        )
