import gzip
import json
from functools import partial

import pytest

from warpgauge.errors import SourceFileError
from warpgauge.launches.source import detect_launch_format, read_launches

# Without the time of day in it: the bytes are part of a test's name, and workers compare names.
compressed = partial(gzip.compress, mtime=0)

HEADER = "length, width, pattern, capture, instantiation, first_launch_api, \r\n"


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize(
    ("content", "form"),
    [
        (HEADER.encode(), "perfscaling"),
        (b"\xef\xbb\xbf\r\n" + HEADER.encode(), "perfscaling"),
        (b' \n{"traceEvents": []}', "kineto"),
        (b"[]", "kineto"),
    ],
)
def test_the_form_is_told_by_content_not_by_name(tmp_path, content, form, packed):
    path = tmp_path / "misleading.png"
    path.write_bytes(compressed(content) if packed else content)
    assert detect_launch_format(path) == form


@pytest.mark.parametrize(
    ("content", "found"),
    [
        (b"\x89PNG\r\n\x1a\n" + bytes(100), "a PNG image"),
        (b"<!doctype html><title>404</title>", "an HTML page"),
        (HEADER.encode("utf-16"), "UTF-16 text"),
        (b"", "an empty file"),
        (compressed(b""), "an empty file"),
        (b"sepal_length,species\n1,2\n", "a table with the columns 'sepal_length,species'"),
        (b"m,n,k,latency\n", "a table with the columns 'm,n,k,latency'"),
        (b"\x7fELF" + bytes(20), "a program or library"),
        (bytes(1000), "binary data"),
        (b"just words\n", "text that starts with 'just words'"),
        (compressed(compressed(b"{}")), "gzip inside gzip"),
    ],
)
def test_anything_else_is_refused_with_what_was_found_and_what_is_read(tmp_path, content, found):
    path = tmp_path / "input.csv"
    path.write_bytes(content)
    with pytest.raises(SourceFileError) as caught:
        read_launches(path)
    for words in (str(path), found, "cudaGraphsPerfScaling", "PyTorch profiler trace"):
        assert words in str(caught.value)


def test_a_directory_and_a_missing_file_are_refused(tmp_path):
    for path in (tmp_path, tmp_path / "missing"):
        with pytest.raises(SourceFileError, match=str(path)):
            read_launches(path)


def test_each_form_goes_to_its_reader(tmp_path):
    event = {"ph": "X", "cat": "cuda_runtime", "name": "cudaGraphLaunch", "ts": 1, "dur": 2, "args": {}}
    (tmp_path / "a").write_text(json.dumps([event]))
    frame = read_launches(tmp_path / "a", source_name="trace of a download").frame
    assert frame.select("source_kind", "source_name").row(0) == ("kineto", "trace of a download")
    (tmp_path / "b").write_text(HEADER)
    with pytest.raises(SourceFileError, match="missing: first_launch_total_us"):
        read_launches(tmp_path / "b")


def test_public_files_of_both_forms_are_told_apart(bench_data):
    lines = bench_data / "perfscaling" / "NVIDIA-Tesla-P100-PCIE-16GB-cuda-12.9_straight-line.csv.gz"
    trace = bench_data / "kineto" / "hta_v100_graph12.json.gz"
    assert (detect_launch_format(lines), detect_launch_format(trace)) == ("perfscaling", "kineto")
    assert read_launches(lines).counts["launches"] == 20_000
