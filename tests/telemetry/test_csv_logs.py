import gzip
import json
import random
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from warpgauge.errors import NoDataError, SettingsError, SourceFileError, WarpgaugeError
from warpgauge.tables import GPU_SAMPLES
from warpgauge.telemetry.csv_logs import read_gpu_csv

DATA = Path(__file__).resolve().parents[1] / "data" / "telemetry"
HEADER = "timestamp, uuid, utilization.gpu [%], memory.used [MiB]\n"
ROW = "2026/01/02 03:04:05.678, GPU-a, 45 %, 10 MiB\n"


@pytest.fixture
def read(tmp_path):
    def read_text(text, **options):
        path = tmp_path / "log.csv"
        path.write_bytes(text.encode())
        return read_gpu_csv(path, **options)

    return read_text


def test_an_nvidia_smi_log_is_read_in_the_units_of_the_table():
    batch = read_gpu_csv(DATA / "nvidia_smi.csv")
    assert batch.frame.schema == GPU_SAMPLES.schema
    assert batch.frame.row(0, named=True) == {
        "gpu_uuid": "GPU-11111111-aaaa",
        "sampled_at": datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC),
        "source_kind": "nvidia_smi",
        "source_name": "nvidia_smi.csv",
        "collected_at": None,
        "gpu_name": "Tesla T4",
        "utilization_percent": 45.0,
        "memory_utilization_percent": 12.0,
        "memory_used_bytes": 1024 * 2**20,
        "memory_total_bytes": 15360 * 2**20,
        "sm_clock_mhz": 1590.0,
        "memory_clock_mhz": 5000.0,
        "temperature_celsius": 61.0,
        "power_w": 70.12,
        "pcie_rx_kb_per_s": None,
        "pcie_tx_kb_per_s": None,
        "pcie_link_generation": 3,
        "pcie_link_width": 16,
        "null_reasons": None,
    }
    assert batch.problems == ()
    assert batch.rejected == {}


def test_words_instead_of_a_value_are_nulls_with_a_reason_and_no_rejection():
    row = read_gpu_csv(DATA / "nvidia_smi.csv").frame.row(1, named=True)
    assert (row["utilization_percent"], row["power_w"], row["memory_used_bytes"]) == (None, None, 7 * 2**20)
    assert json.loads(row["null_reasons"]) == {
        "utilization_percent": "not available",
        "memory_utilization_percent": "not supported",
        "power_w": "driver error",
    }


def test_dcgm_readings_are_read_with_three_forms_of_time():
    batch = read_gpu_csv(DATA / "dcgm.csv")
    assert batch.frame["source_kind"].unique().to_list() == ["dcgm"]
    assert batch.frame["sampled_at"].to_list() == [
        datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC),
        datetime(2026, 1, 2, 3, 4, 35, 500_000, tzinfo=UTC),
        datetime(2026, 1, 2, 3, 5, 5, tzinfo=UTC),
    ]
    assert batch.frame["pcie_rx_kb_per_s"].to_list() == [2500.0, None, 0.0]
    assert batch.frame["memory_used_bytes"].to_list() == [1024 * 2**20, 1025 * 2**20, 1024 * 2**20]
    assert batch.rejected == {
        "GPU-11111111-aaaa": {"pcie_rx_kb_per_s": 1},
        "GPU-22222222-bbbb": {"utilization_percent": 1},
    }


def test_blank_markers_are_counted_per_gpu_and_never_move_a_percentile(cases, tmp_path):
    case = cases / "01-util-blank-sentinel"
    lines = ["timestamp,UUID,DCGM_FI_DEV_GPU_UTIL"]
    for series in json.loads((case / "query_range.json").read_text())["data"]["result"]:
        lines += [f"{time},{series['metric']['UUID']},{value}" for time, value in series["values"]]
    (tmp_path / "points.csv").write_text("\n".join(lines) + "\n")
    batch = read_gpu_csv(tmp_path / "points.csv")
    expected = json.loads((case / "expected.json").read_text())["gpus"]
    assert set(expected) == set(batch.frame["gpu_uuid"])
    for (gpu,), rows in batch.frame.group_by("gpu_uuid"):
        valid = rows["utilization_percent"].drop_nulls().to_numpy()
        assert len(valid) == expected[gpu]["valid"]
        assert batch.rejected.get(gpu, {}).get("utilization_percent", 0) == expected[gpu]["rejected"]
        assert rows["null_reasons"].count() == expected[gpu]["rejected"]
        p95 = float(np.percentile(valid, 95)) if len(valid) else None
        assert p95 == expected[gpu]["p95"]


@pytest.mark.parametrize(
    "value", ["9223372036854775794", "4294967295", "2147483632", "101", "-1", "100.5", "nan", "inf", "1e300"]
)
def test_an_impossible_number_is_null_with_a_reason(read, value):
    batch = read(HEADER + ROW.replace("45 %", value))
    assert batch.frame["utilization_percent"].to_list() == [None]
    assert batch.rejected == {"GPU-a": {"utilization_percent": 1}}
    reason = json.loads(batch.frame["null_reasons"][0])["utilization_percent"]
    assert reason in ("blank marker instead of a value", "impossible value")


@pytest.mark.parametrize("value", ["0", "100", "100 %", "0.0", "45"])
def test_both_ends_of_the_range_are_values(read, value):
    batch = read(HEADER + ROW.replace("45 %", value))
    assert batch.frame["utilization_percent"].to_list() == [float(value.split()[0])]
    assert batch.rejected == {}


@pytest.mark.parametrize(
    ("value", "found"), [("10 MiB", 10 * 2**20), ("10", 10 * 2**20), ("2 GiB", 2**31), ("5 KiB", 5120)]
)
def test_memory_is_bytes_whether_the_unit_is_beside_the_value_or_in_the_header(read, value, found):
    assert read(HEADER + ROW.replace("10 MiB", value)).frame["memory_used_bytes"].to_list() == [found]


def test_a_value_in_a_unit_of_another_kind_is_no_number(read):
    batch = read(HEADER + ROW.replace("10 MiB", "10 parsecs"))
    assert json.loads(batch.frame["null_reasons"][0]) == {"memory_used_bytes": "no number"}


def test_local_times_are_taken_in_the_zone_that_is_given(read):
    assert read(HEADER + ROW).frame["sampled_at"][0] == datetime(2026, 1, 2, 3, 4, 5, 678_000, tzinfo=UTC)
    berlin = read(HEADER + ROW, timezone="Europe/Berlin").frame["sampled_at"][0]
    assert berlin == datetime(2026, 1, 2, 2, 4, 5, 678_000, tzinfo=UTC)


def test_a_local_time_that_stands_for_two_moments_or_none_is_refused(read):
    for time in ("2026/10/25 02:30:00", "2026/03/29 02:30:00"):
        with pytest.raises(SourceFileError, match=r"row 2: timestamp .* no single time in the zone"):
            read(HEADER + ROW.replace("2026/01/02 03:04:05.678", time), timezone="Europe/Berlin")


def test_an_unknown_zone_is_a_wrong_setting(read):
    with pytest.raises(SettingsError, match="Mars/Olympus"):
        read(HEADER + ROW, timezone="Mars/Olympus")


def test_an_index_is_no_identity(read):
    with pytest.raises(SourceFileError, match=r"no UUID column among timestamp, index, .*log with uuid"):
        read(HEADER.replace("uuid", "index") + ROW)


def test_of_two_rows_of_one_gpu_and_time_the_first_wins_and_conflicts_are_counted(read):
    batch = read(HEADER + ROW + ROW + ROW.replace("45", "46") + ROW.replace("GPU-a", "GPU-b"))
    assert batch.frame.select("gpu_uuid", "utilization_percent").rows() == [("GPU-a", 45.0), ("GPU-b", 45.0)]
    assert (batch.counts["duplicate rows"], batch.counts["conflicting rows"]) == (2, 1)


def test_a_header_written_again_by_a_restarted_logger_is_no_row(read):
    assert read(HEADER + ROW + "\n" + HEADER + ROW.replace(":05.", ":06.")).counts["samples"] == 2


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ("2026/01/02 03:04:0", "row 3: '2026/01/02 03:04:0' has 1 columns, the header 4"),
        ("Unable to determine the device handle for GPU 0000:65:00.0: Unknown Error\n", "row 3: 'Unable to"),
        (ROW.replace("GPU-a", "[N/A]"), "row 3: no UUID"),
        (ROW.replace("2026/01/02 03:04:05.678", "yesterday"), "row 3: timestamp 'yesterday'"),
        (ROW.replace("2026/01/02", "2026/13/45"), "row 3: timestamp '2026/13/45"),
    ],
)
def test_a_wrong_row_refuses_the_file_unless_the_others_are_asked_for(read, bad, words):
    with pytest.raises(SourceFileError) as caught:
        read(HEADER + ROW + bad)
    assert words in str(caught.value)
    kept = read(HEADER + ROW + bad, keep_whole=True)
    assert kept.counts["samples"] == 1
    assert kept.counts["rows refused"] == 1
    assert words in kept.problems[0]


def test_a_header_alone_holds_no_data(read):
    with pytest.raises(NoDataError, match="a header and no reading"):
        read(HEADER)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "empty, 0 bytes"),
        ("\n\n", "nothing but white space"),
        ("sepal,species\n1,2\n", "the columns sepal, species, no GPU reading among them"),
        ("<html></html>", "an HTML page"),
        ("uuid, utilization.gpu [%]\nGPU-a, 5\n", "no timestamp column"),
        ("timestamp, uuid, memory.used [furlong]\n", "unit 'furlong' is unknown"),
    ],
)
def test_another_file_is_refused_with_what_was_found(read, text, words):
    with pytest.raises(SourceFileError) as caught:
        read(text)
    assert words in str(caught.value)


def test_a_gzip_log_is_read_like_a_plain_one(tmp_path):
    (tmp_path / "log").write_bytes(gzip.compress((DATA / "nvidia_smi.csv").read_bytes()))
    packed = read_gpu_csv(tmp_path / "log").frame
    assert packed.drop("source_name").equals(read_gpu_csv(DATA / "nvidia_smi.csv").frame.drop("source_name"))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    seed=st.integers(0, 2**32),
    count=st.integers(1, 5),
    name=st.sampled_from(["nvidia_smi.csv", "dcgm.csv"]),
    keep_whole=st.booleans(),
)
def test_a_mutated_log_ends_in_rows_or_in_a_named_error(tmp_path, seed, count, name, keep_whole):
    chance = random.Random(seed)
    data = (DATA / name).read_bytes()
    pieces = [
        b"",
        b"-1",
        b"1e999",
        b"nan",
        b'"',
        b",",
        b"\n",
        b"\r",
        b"\x00",
        b"\xc3",
        b"[",
        b"9" * 400,
        b" %",
    ]
    for _ in range(count):
        start = chance.randrange(len(data))
        stop = start + chance.randrange(8)
        data = data[:start] + chance.choice(pieces) + data[stop:]
    path = tmp_path / "log.csv"
    path.write_bytes(data)
    try:
        batch, refusal = read_gpu_csv(path, keep_whole=keep_whole), ""
    except WarpgaugeError as error:
        batch, refusal = None, str(error)
    if batch is None:
        assert str(path) in refusal
    else:
        assert batch.frame.height > 0
        assert batch.frame.schema == GPU_SAMPLES.schema
        assert batch.frame["utilization_percent"].drop_nulls().is_between(0, 100).all()
