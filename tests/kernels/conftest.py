"""The kernels' own C source behind a stand-in for the CUDA driver, built once a session."""

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.kernels.fake_control import FakeControl

KERNELS = Path(__file__).resolve().parents[2] / "infra" / "kernels"
Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build_fake(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Builds a fake libcuda with these compiler options; each call is a library with a state of its own."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip(
            "no C compiler here: the kernels' CPU build needs one (Debian: apt-get install gcc libc6-dev)"
        )

    def build(*options: str) -> Path:
        library = tmp_path_factory.mktemp("cuda") / "libcuda.so.1"
        source = Path(__file__).with_name("fake_cuda.c")
        command = [
            compiler,
            "-O2",
            "-std=c11",
            "-Wall",
            "-Wextra",
            "-Werror",
            "-ffp-contract=off",
            "-shared",
            "-fPIC",
        ]
        subprocess.run([*command, *options, f"-I{KERNELS}", "-o", library, source], check=True)
        return library

    return build


@pytest.fixture(scope="session")
def fake_library(build_fake: Build) -> Path:
    return build_fake()


@pytest.fixture
def fake(fake_library: Path):
    control = FakeControl(fake_library)
    yield control
    control.fail("", 0)
    control.device_count(1)
