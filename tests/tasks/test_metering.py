"""What a piece of work takes; energy only where every GPU counted it from beginning to end."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tasks.metering import Meter


class NVMLError(Exception):
    """As pynvml's."""


class NVMLError_DriverNotLoaded(NVMLError):
    """As pynvml's."""


class NVMLError_NotSupported(NVMLError):
    """As pynvml's."""


def nvml(millijoules: Callable[[int], Any], count: Callable[[], int] = lambda: 2, **more: Any) -> Any:
    """An NVML of GPUs that count their energy."""
    calls = {
        "NVMLError": NVMLError,
        "nvmlInit": lambda: None,
        "nvmlShutdown": lambda: None,
        "nvmlDeviceGetCount": count,
        "nvmlDeviceGetHandleByIndex": lambda index: index,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetTotalEnergyConsumption": millijoules,
    }
    return SimpleNamespace(**calls | more)


def raising(error: Exception) -> Callable[..., Any]:
    def call(*_: Any) -> Any:
        raise error

    return call


def test_energy_is_what_all_gpus_used_meanwhile_in_joules() -> None:
    counters = {0: 5_000, 1: 1_000}
    meter = Meter(nvml(counters.__getitem__))
    counters.update({0: 7_500, 1: 1_250})
    read = meter.read()
    assert read["gpu_energy_j"] == 2.75
    assert read["no_energy_because"] is None


def test_work_takes_cpu_time_of_this_process() -> None:
    meter = Meter(nvml(lambda _: 0))
    while meter.read()["cpu_s"] < 0.02:
        sum(range(10_000))
    assert meter.read()["wall_s"] >= 0.01


@pytest.mark.parametrize(
    ("library", "why"),
    [
        (nvml(lambda _: 0, nvmlInit=raising(NVMLError_DriverNotLoaded())), "not loaded"),
        (nvml(raising(NVMLError_NotSupported())), "GPU-0: not supported"),
        (nvml(lambda _: 0, count=lambda: 0), "no GPU"),
    ],
)
def test_energy_that_nobody_counts_is_null_with_the_reason(library: Any, why: str) -> None:
    read = Meter(library).read()
    assert read["gpu_energy_j"] is None
    assert why in read["no_energy_because"]


def test_counter_that_was_reset_and_a_gpu_that_fell_off_give_no_energy() -> None:
    counters, count = {0: 5_000, 1: 1_000}, [2]
    library = nvml(counters.__getitem__, count=lambda: count[0])
    meter = Meter(library)
    counters[0] = 10
    assert "reset" in meter.read()["no_energy_because"]
    count[0] = 1
    read = meter.read()
    assert (read["gpu_energy_j"], "changed" in read["no_energy_because"]) == (None, True)
