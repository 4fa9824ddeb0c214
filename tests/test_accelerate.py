"""The device is chosen by what is there, with a reason; a broken driver costs the GPU and nothing else."""

import shutil
import subprocess
from pathlib import Path

import pytest

from warpgauge.accelerate import (
    OpenclDevice,
    OpenclReport,
    find_opencl_devices,
    lightgbm_device,
    tie_breaking,
)
from warpgauge.errors import SettingsError

CPU = OpenclDevice("Portable Computing Language", "pthread-cpu", is_gpu=False, is_available=True)
GPU = OpenclDevice("NVIDIA CUDA", "Tesla P100", is_gpu=True, is_available=True)
SLEEPING = OpenclDevice("NVIDIA CUDA", "Tesla T4", is_gpu=True, is_available=False)
MODES = ("works", "crashes", "hangs", "prints", "refuses", "empty", "odd")


def finds(*devices: OpenclDevice, problem: str = ""):
    return lambda: OpenclReport(devices, problem)


def must_not_ask() -> OpenclReport:
    raise AssertionError("OpenCL was asked although the answer cannot matter")


def test_auto_takes_a_gpu_and_names_it() -> None:
    choice = lightgbm_device("auto", row_count=100_000, max_bin=255, find_devices=finds(CPU, GPU))
    assert choice.device == "gpu"
    assert choice.reason == "gpu: OpenCL GPU Tesla P100 (NVIDIA CUDA)"


def test_auto_without_a_gpu_stays_on_the_cpu_and_says_why() -> None:
    ask = {"row_count": 100_000, "max_bin": 255}
    assert lightgbm_device("auto", **ask, find_devices=finds()).reason == "cpu: no OpenCL GPU found"
    choice = lightgbm_device("auto", **ask, find_devices=finds(CPU))
    assert (choice.device, choice.reason) == ("cpu", "cpu: no OpenCL GPU found (pthread-cpu)")
    asleep = lightgbm_device("auto", **ask, find_devices=finds(SLEEPING))
    assert (asleep.device, asleep.reason) == ("cpu", "cpu: no OpenCL GPU found (Tesla T4 is not available)")
    broken = lightgbm_device("auto", **ask, find_devices=finds(problem="a driver hangs"))
    assert (broken.device, broken.reason) == ("cpu", "cpu: no OpenCL GPU found (a driver hangs)")


def test_auto_leaves_a_small_table_and_many_bins_to_the_cpu_without_asking() -> None:
    small = lightgbm_device("auto", row_count=99_999, max_bin=255, find_devices=must_not_ask)
    assert (small.device, small.reason) == (
        "cpu",
        "cpu: 99,999 rows are below the 100,000 that pay on a GPU",
    )
    fine = lightgbm_device("auto", row_count=10**6, max_bin=256, find_devices=must_not_ask)
    assert (fine.device, fine.reason) == ("cpu", "cpu: max_bin 256 is above the 255 of a GPU")


def test_cpu_is_cpu_without_asking() -> None:
    choice = lightgbm_device("cpu", row_count=10**6, max_bin=1023, find_devices=must_not_ask)
    assert (choice.device, choice.reason) == ("cpu", "cpu: asked for by latency_device")


def test_gpu_by_name_takes_what_there_is_however_small_the_table() -> None:
    both = lightgbm_device("gpu", row_count=10, max_bin=255, find_devices=finds(CPU, GPU))
    assert (both.device, "Tesla P100" in both.reason) == ("gpu", True)
    only = lightgbm_device("gpu", row_count=10, max_bin=255, find_devices=finds(CPU))
    assert only.device == "gpu"
    assert "no GPU: pthread-cpu" in only.reason


def test_gpu_by_name_that_cannot_be_is_refused() -> None:
    with pytest.raises(SettingsError, match=r"no OpenCL device answers here \(a driver hangs\); install"):
        lightgbm_device("gpu", row_count=10**6, max_bin=255, find_devices=finds(problem="a driver hangs"))
    with pytest.raises(SettingsError, match="Tesla T4 is not available"):
        lightgbm_device("gpu", row_count=10**6, max_bin=255, find_devices=finds(SLEEPING))
    with pytest.raises(SettingsError, match="latency_max_bin is 1023"):
        lightgbm_device("gpu", row_count=10**6, max_bin=1023, find_devices=must_not_ask)
    with pytest.raises(SettingsError, match="'cuda'"):
        lightgbm_device("cuda", row_count=10**6, max_bin=255, find_devices=must_not_ask)


def test_each_device_has_the_parameters_that_make_it_repeatable() -> None:
    cpu = lightgbm_device("cpu", row_count=1, max_bin=255).parameters
    assert cpu == {"device_type": "cpu", "force_row_wise": True, "deterministic": True}
    gpu = lightgbm_device("gpu", row_count=1, max_bin=255, find_devices=finds(GPU)).parameters
    assert gpu == {"device_type": "gpu", "gpu_use_dp": True, "deterministic": True}


def test_the_earlier_of_two_equal_features_weighs_more_by_next_to_nothing() -> None:
    factors = tie_breaking(142)
    assert factors[:2] == [1.0, 1.0 - 1e-7]
    assert factors == sorted(set(factors), reverse=True)
    assert len(factors) == 142
    assert factors[-1] > 0.9999
    assert tie_breaking(0) == []


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A fake OpenCL library for each way one may behave."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("no C compiler here: the fake OpenCL library cannot be built")
    folder = tmp_path_factory.mktemp("opencl")
    source = Path(__file__).parent / "data" / "fake_opencl.c"
    for number, mode in enumerate(MODES):
        command = [compiler, "-shared", "-fPIC", f"-DMODE={number}", "-o", folder / f"{mode}.so", source]
        subprocess.run(command, check=True)
    return {mode: folder / f"{mode}.so" for mode in MODES}


def ask(library: Path, timeout_s: float = 20.0) -> OpenclReport:
    return find_opencl_devices([str(library)], timeout_s=timeout_s)


def test_every_device_of_every_platform_is_found(libraries) -> None:
    report = ask(libraries["works"])
    assert report == OpenclReport(
        (
            OpenclDevice("Fake OpenCL", "Some CPU", is_gpu=False, is_available=True),
            OpenclDevice("Fake OpenCL", "Sleeping GPU", is_gpu=True, is_available=False),
            OpenclDevice("Fake OpenCL", "Fast GPU \ufffd", is_gpu=True, is_available=True),
        )
    )
    choice = lightgbm_device("auto", row_count=10**6, max_bin=255, find_devices=lambda: report)
    assert choice.reason == "gpu: OpenCL GPU Fast GPU \ufffd (Fake OpenCL)"


def test_a_driver_that_prints_does_not_spoil_the_answer(libraries) -> None:
    assert ask(libraries["prints"]) == ask(libraries["works"])


def test_a_driver_that_crashes_ends_its_own_process_only(libraries) -> None:
    report = ask(libraries["crashes"])
    assert report == OpenclReport((), "asking OpenCL ended with signal SIGSEGV: a driver is broken")


def test_a_driver_that_hangs_is_ended(libraries) -> None:
    report = ask(libraries["hangs"], timeout_s=1.0)
    assert report == OpenclReport((), "OpenCL gave no answer within 1 s: a driver hangs")


def test_a_driver_that_refuses_or_has_nothing_is_no_error(libraries) -> None:
    assert ask(libraries["refuses"]) == OpenclReport((), "clGetPlatformIDs answers -6")
    assert ask(libraries["empty"]) == OpenclReport(())


def test_a_name_of_impossible_length_is_left_out(libraries) -> None:
    assert {device.platform for device in ask(libraries["odd"]).devices} == {"unnamed"}


def test_the_next_library_is_asked_where_the_first_is_absent_or_something_else(libraries, tmp_path) -> None:
    text = tmp_path / "text.so"
    text.write_text("no library")
    found = find_opencl_devices([str(tmp_path / "none.so"), str(text), "libc.so.6", str(libraries["works"])])
    assert len(found.devices) == 3
    nothing = find_opencl_devices([str(tmp_path / "none.so")])
    assert nothing.devices == ()
    assert "cannot open shared object file" in nothing.problem


def test_auto_on_this_machine_follows_what_this_machine_has() -> None:
    has_gpu = any(device.is_gpu and device.is_available for device in find_opencl_devices().devices)
    assert lightgbm_device("auto", row_count=10**6, max_bin=255).device == ("gpu" if has_gpu else "cpu")
