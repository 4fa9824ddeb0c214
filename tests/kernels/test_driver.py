"""The loader against a stand-in for the driver: every call, every refusal, nothing left behind."""

import array
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from infra.kernels import launch
from infra.kernels.driver import GUARD_BYTES, Driver, DriverError
from tests.kernels.fake_control import FakeControl

PTX = "\n.version 6.0\n.target sm_50\n.address_size 64\n.visible .entry top_k(\n"


def test_the_gpu_says_what_it_is(fake_library, fake) -> None:
    with Driver(fake_library) as driver:
        assert (driver.name, driver.compute_capability, driver.version) == ("Fake GPU", (7, 5), "12.4")
    assert fake.leaks() == 0


def test_the_calls_come_in_the_order_that_the_driver_needs(fake_library, fake) -> None:
    before = len(fake.calls())
    with Driver(fake_library) as driver:
        kernel = launch.load_kernels(driver)["scale_features"]
        pointers = [driver.send(array.array("f", [2.0])) for _ in range(4)]
        kernel.launch((1, 1, 1), (32, 1, 1), *pointers, 1, 1)
        driver.synchronize()
        answer = array.array("f", [9.0])
        driver.receive(pointers[3], answer)
    assert answer[0] == 0.0
    calls = fake.calls()[before:]
    order = [
        "cuInit",
        "cuDevicePrimaryCtxRetain",
        "cuCtxSetCurrent",
        "cuModuleLoadDataEx",
        "cuModuleGetFunction",
        "cuMemAlloc_v2",
        "cuMemcpyHtoD_v2",
        "cuLaunchKernel",
        "cuCtxSynchronize",
        "cuMemcpyDtoH_v2",
        "cuMemFree_v2",
        "cuModuleUnload",
        "cuDevicePrimaryCtxRelease_v2",
    ]
    assert [calls.index(name) for name in order] == sorted(calls.index(name) for name in order)
    assert calls[-1] == "cuDevicePrimaryCtxRelease_v2"
    assert fake.leaks() == 0


def test_it_needs_nothing_but_the_standard_library() -> None:
    source = Path(launch.__file__).with_name("driver.py")
    code = f"import runpy, sys; runpy.run_path({str(source)!r}); assert 'numpy' not in sys.modules"
    subprocess.run([sys.executable, "-I", "-S", "-c", code], check=True)


def test_bytes_go_to_the_gpu_and_back(fake_library, fake) -> None:
    with Driver(fake_library) as driver:
        pointer = driver.send(bytes(range(200)))
        back = bytearray(200)
        driver.receive(pointer, back)
        driver.check_guard(pointer)
        assert back == bytes(range(200))
        nothing = driver.send(b"")
        driver.receive(nothing, bytearray())
        driver.check_guard(nothing)
        with pytest.raises(DriverError, match="201 bytes were asked of an allocation of 200"):
            driver.receive(pointer, bytearray(201))
        driver.free(pointer)
    assert fake.leaks() == 0
    assert GUARD_BYTES > 0


def test_a_block_is_timed_on_the_gpu(fake_library, fake) -> None:
    with Driver(fake_library) as driver, driver.timer() as elapsed:
        assert elapsed == []
    assert elapsed == [1.5]
    assert fake.leaks() == 0


def test_an_empty_grid_launches_nothing(fake_library, fake) -> None:
    with Driver(fake_library) as driver:
        kernel = launch.load_kernels(driver)["top_k"]
        before = fake.calls().count("cuLaunchKernel")
        kernel.launch((0, 1, 1), (128, 1, 1), 0, 0, 0, 0, 0, 0)
        assert fake.calls().count("cuLaunchKernel") == before
        with pytest.raises(DriverError, match="top_k takes 6 arguments, got 2"):
            kernel.launch((1, 1, 1), (128, 1, 1), 0, 0)


def test_a_missing_driver_or_gpu_is_said(fake_library, fake, tmp_path) -> None:
    with pytest.raises(DriverError, match=r"none\.so cannot be loaded .*the CUDA driver is needed"):
        Driver(tmp_path / "none.so")
    with pytest.raises(DriverError, match="has no cuInit: the driver is too old"):
        Driver("libc.so.6")
    with pytest.raises(DriverError, match="GPU 1 was asked for, the driver shows 1"):
        Driver(fake_library, device=1)
    fake.device_count(0)
    with pytest.raises(DriverError, match="cuInit failed: CUDA_ERROR_NO_DEVICE"):
        Driver(fake_library)
    assert fake.leaks() == 0


def test_ptx_that_is_refused_brings_the_compilers_log(fake_library, fake) -> None:
    with Driver(fake_library) as driver:
        with pytest.raises(
            DriverError, match=r"x\.ptx: the driver \(CUDA 12\.4\) refuses the PTX: .*line 1; fatal: no PTX"
        ):
            driver.load("not PTX", "x.ptx")
        with pytest.raises(DriverError, match=r"x\.ptx has no kernel scale_features"):
            driver.load(PTX, "x.ptx").kernel("scale_features", ())
    assert fake.leaks() == 0


@pytest.mark.parametrize(
    "name", ["cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuMemsetD8_v2", "cuLaunchKernel", "cuCtxSynchronize"]
)
def test_a_call_that_fails_is_named_and_nothing_is_left_behind(fake_library, fake, name) -> None:
    def run() -> None:
        with Driver(fake_library) as driver:
            kernel = launch.load_kernels(driver)["top_k"]
            fake.fail(name, 700)
            launch.top_k(kernel, np.ones((2, 2), dtype=np.float32), 1)

    with pytest.raises(DriverError, match=f"{name} failed"):
        run()
    fake.fail("", 0)
    assert fake.leaks() == 0


def test_a_kernels_crash_is_not_hidden_by_the_clean_up_that_fails_after_it(build_fake) -> None:
    library = build_fake()
    FakeControl(library).fail("cuMemFree_v2", 700)

    def crash() -> None:
        with Driver(library) as driver:
            driver.send(b"x")
            raise DriverError("the first")

    with pytest.raises(DriverError, match="the first"):
        crash()
    driver = Driver(library)
    driver.send(b"x")
    with pytest.raises(DriverError, match="cuMemFree_v2 failed"):
        driver.close()
    driver.close()
