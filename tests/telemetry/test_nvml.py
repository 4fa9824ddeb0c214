import importlib.util
import json
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest

from warpgauge.errors import SchemaError, SourceUnavailableError
from warpgauge.tables import GPU_SAMPLES
from warpgauge.telemetry.nvml import sample_gpus

NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


class NVMLError(Exception):
    """Base of the stand-in's errors, as in pynvml."""


def nvml_error(name):
    return type(name, (NVMLError,), {})(name)


class FakeNvml:
    """A part of pynvml with one or more healthy cards; `answers` replaces single functions."""

    NVMLError = NVMLError

    def __init__(self, count=1, **answers):
        self.count = count
        self.answers = answers
        self.is_open = False

    def __getattr__(self, name):
        if not name.startswith("nvml"):
            raise AttributeError(name)

        def call(*arguments):
            answer = self.answers.get(name, self.healthy(name, *arguments))
            if callable(answer):
                answer = answer(*arguments)
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call

    def healthy(self, name, *arguments):
        return {
            "nvmlInit": lambda: setattr(self, "is_open", True),
            "nvmlShutdown": lambda: setattr(self, "is_open", False),
            "nvmlDeviceGetCount": self.count,
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetName": "Tesla T4",
            "nvmlDeviceGetMigMode": nvml_error("NVMLError_NotSupported"),
            "nvmlDeviceGetUtilizationRates": SimpleNamespace(gpu=45, memory=12),
            "nvmlDeviceGetMemoryInfo": SimpleNamespace(used=7, total=16 * 2**30),
            "nvmlDeviceGetClockInfo": lambda _, kind: {1: 1590, 2: 5000}[kind],
            "nvmlDeviceGetTemperature": 61,
            "nvmlDeviceGetPowerUsage": 70_120,
            "nvmlDeviceGetPcieThroughput": lambda _, counter: {0: 200, 1: 300}[counter],
            "nvmlDeviceGetCurrPcieLinkGeneration": 3,
            "nvmlDeviceGetCurrPcieLinkWidth": 16,
        }[name]


def only_row(fake):
    return sample_gpus(fake, NOW).frame.row(0, named=True)


def test_every_reading_comes_in_the_unit_of_the_table():
    fake = FakeNvml()
    batch = sample_gpus(fake, NOW, source_name="node-a")
    assert batch.frame.schema == GPU_SAMPLES.schema
    assert batch.frame.row(0, named=True) == {
        "gpu_uuid": "GPU-0",
        "sampled_at": NOW,
        "source_kind": "nvml",
        "source_name": "node-a",
        "collected_at": None,
        "gpu_name": "Tesla T4",
        "utilization_percent": 45.0,
        "memory_utilization_percent": 12.0,
        "memory_used_bytes": 7,
        "memory_total_bytes": 16 * 2**30,
        "sm_clock_mhz": 1590.0,
        "memory_clock_mhz": 5000.0,
        "temperature_celsius": 61.0,
        "power_w": 70.12,
        "pcie_rx_kb_per_s": 300.0,
        "pcie_tx_kb_per_s": 200.0,
        "pcie_link_generation": 3,
        "pcie_link_width": 16,
        "null_reasons": None,
    }
    assert batch.problems == ()
    assert not fake.is_open


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        ("NVMLError_NotSupported", "not supported"),
        ("NVMLError_NoPermission", "permission"),
        ("NVMLError_FunctionNotFound", "not supported by this driver"),
        ("NVMLError_Unknown", "unknown error"),
        ("NVMLError_OfTheFuture", "NVMLError_OfTheFuture"),
    ],
)
def test_a_reading_that_fails_is_null_with_its_reason_and_not_zero(error, reason):
    row = only_row(FakeNvml(nvmlDeviceGetPowerUsage=nvml_error(error)))
    assert row["power_w"] is None
    assert json.loads(row["null_reasons"]) == {"power_w": reason}
    assert row["utilization_percent"] == 45.0


def test_utilization_of_a_partitioned_card_names_mig():
    row = only_row(
        FakeNvml(
            nvmlDeviceGetUtilizationRates=nvml_error("NVMLError_NotSupported"),
            nvmlDeviceGetMigMode=lambda _: [1, 1],
        )
    )
    assert json.loads(row["null_reasons"])["utilization_percent"] == "not supported under MIG"


@pytest.mark.parametrize("value", [4294967295, 9223372036854775794, 101, -1, float("nan")])
def test_an_impossible_reading_is_null_and_counted(value):
    batch = sample_gpus(FakeNvml(nvmlDeviceGetUtilizationRates=SimpleNamespace(gpu=value, memory=0)), NOW)
    assert batch.frame["utilization_percent"].to_list() == [None]
    assert batch.frame["memory_utilization_percent"].to_list() == [0.0]
    assert batch.rejected == {"GPU-0": {"utilization_percent": 1}}


@pytest.mark.parametrize("value", [None, True, "45"])
def test_an_answer_that_is_no_number_is_no_reading(value):
    row = only_row(FakeNvml(nvmlDeviceGetTemperature=lambda *_: value))
    assert row["temperature_celsius"] is None
    assert "temperature_celsius" in json.loads(row["null_reasons"])


def test_names_may_be_bytes():
    fake = FakeNvml(nvmlDeviceGetUUID=lambda _: b"GPU-x", nvmlDeviceGetName=b"Tesla T4")
    row = only_row(fake)
    assert (row["gpu_uuid"], row["gpu_name"]) == ("GPU-x", "Tesla T4")


@pytest.mark.parametrize(
    ("error", "words"),
    [
        ("NVMLError_LibraryNotFound", "no NVIDIA driver is installed"),
        ("NVMLError_LibRmVersionMismatch", "versions differ.*reload the driver's modules or reboot"),
        ("NVMLError_DriverNotLoaded", "not loaded"),
        ("NVMLError_OfTheFuture", "see nvidia-smi"),
    ],
)
def test_a_library_that_does_not_start_is_named_with_what_to_do(error, words):
    with pytest.raises(SourceUnavailableError, match=words):
        sample_gpus(FakeNvml(nvmlInit=nvml_error(error)), NOW)


def test_a_driver_without_gpus_is_no_source():
    with pytest.raises(SourceUnavailableError, match="sees no GPU"):
        sample_gpus(FakeNvml(count=0), NOW)


def test_a_count_that_fails_is_named_and_the_library_closed():
    fake = FakeNvml(nvmlDeviceGetCount=nvml_error("NVMLError_Unknown"))
    with pytest.raises(SourceUnavailableError, match="cannot count the GPUs"):
        sample_gpus(fake, NOW)
    assert not fake.is_open


def test_a_card_lost_between_two_readings_yields_no_row_and_the_others_go_on():
    def utilization(handle):
        return nvml_error("NVMLError_GpuIsLost") if handle == 0 else SimpleNamespace(gpu=5, memory=1)

    batch = sample_gpus(FakeNvml(count=3, nvmlDeviceGetUtilizationRates=utilization), NOW)
    assert batch.frame["gpu_uuid"].to_list() == ["GPU-1", "GPU-2"]
    assert batch.problems == ("GPU-0: no reading (lost GPU)",)


def test_a_card_whose_handle_fails_at_the_first_sampling_is_named_by_index():
    fake = FakeNvml(
        count=2, nvmlDeviceGetHandleByIndex=lambda index: index or nvml_error("NVMLError_GpuIsLost")
    )
    batch = sample_gpus(fake, NOW)
    assert batch.frame["gpu_uuid"].to_list() == ["GPU-1"]
    assert batch.problems == ("GPU at index 0, UUID unknown: no reading (lost GPU)",)


def test_when_every_card_is_lost_the_rows_are_none_and_the_losses_named():
    fake = FakeNvml(nvmlDeviceGetHandleByIndex=nvml_error("NVMLError_GpuIsLost"))
    batch = sample_gpus(fake, NOW, expected={"GPU-0"})
    assert batch.frame.is_empty()
    assert batch.frame.schema == GPU_SAMPLES.schema
    assert batch.lost == ("GPU-0",)


def test_a_time_without_a_zone_is_refused():
    with pytest.raises(SchemaError, match="no time zone"):
        sample_gpus(FakeNvml(), datetime(2026, 1, 2))


@pytest.fixture
def scripted(cases):
    """Loads the case's fake afresh, in one of its scenarios."""

    def load(scenario, monkeypatch):
        monkeypatch.setenv("FAKE_NVML_SCENARIO", scenario)
        path = cases / "02-gpu-lost-mid-sampling" / "fake_nvml.py"
        spec = importlib.util.spec_from_file_location("fake_nvml_of_case_02", path)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        return module

    return load


def test_one_card_falls_off_the_bus_and_the_other_is_sampled_to_the_end(scripted, monkeypatch):
    library = scripted("lost", monkeypatch)
    readings, losses, problems = {}, [], []
    expected, known_lost = set(), set()
    for tick in range(10):
        batch = sample_gpus(library, NOW + timedelta(seconds=tick), expected=expected, known_lost=known_lost)
        for row in batch.frame.iter_rows(named=True):
            readings.setdefault(row["gpu_uuid"], []).append(row["utilization_percent"])
            assert row["pcie_rx_kb_per_s"] is None
            assert json.loads(row["null_reasons"])["pcie_rx_kb_per_s"] == "not supported"
        losses += [(tick, uuid) for uuid in batch.lost]
        problems += batch.problems
        expected = (expected | set(batch.frame["gpu_uuid"])) - set(batch.lost)
        known_lost |= set(batch.lost)
        library.tick()
    assert readings == {
        "GPU-0000": [50, 52, 55, 53, 60, 61, 59, 58, 57, 56],
        "GPU-0001": [90, 91, 92, 93],
    }
    assert losses == [(4, "GPU-0001")]
    assert problems == ["GPU-0001: lost (lost GPU); no reading of it from here on"]


def test_driver_and_library_of_two_versions_end_in_one_clear_message(scripted, monkeypatch):
    with pytest.raises(SourceUnavailableError, match=r"driver and library versions differ.*reboot"):
        sample_gpus(scripted("mismatch", monkeypatch), NOW)


def test_the_real_library_gives_rows_or_says_why_not():
    import pynvml

    try:
        batch = sample_gpus(pynvml, NOW)
    except SourceUnavailableError as error:
        assert "NVML" in str(error) or "driver" in str(error)  # noqa: PT017 - both ends are right
    else:
        assert batch.frame["gpu_uuid"].str.starts_with("GPU-").all()
