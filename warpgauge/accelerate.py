"""Which engine does the work, CPU or GPU: chosen here and nowhere else, each choice with its reason.

A choice is made by what is there, and never fails because a driver is broken: what is broken is named, and the
CPU does the work. Only who asks for the GPU by name is told that there is none.
"""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from warpgauge.errors import SettingsError

# LightGBM's OpenCL histograms take at most 256 bins: "bin size 339 cannot run on GPU".
GPU_LARGEST_MAX_BIN = 255
# Below this the transfers and kernel launches of each tree outweigh what a GPU saves. A judgement from LightGBM's
# advice that a GPU pays on large, dense data; not measured on a GPU by this project.
GPU_LEAST_ROWS = 100_000
# Each feature's gain counts this share less than that of the one before it. Features of a graph repeat each other
# (node_count above 2246 and line_count above 2.5 part the same rows), so the gains of the best splits are often equal
# but for the last bits of the sums, which differ between devices: GPU and CPU then chose different features, and
# held-out RMSE differed by 0.3 % on 2,600 public trials. With it RMSE was equal to 9e-5 on three tables, and the
# CPU's own changed by 0 to 0.3 %; 1e-9 is too little.
_TIE_BREAK_RATIO = 1e-7
# A vendor's driver may take seconds at its first use; one that takes longer is taken for hanging.
QUERY_TIMEOUT_S = 20.0
_OPENCL_LIBRARY = "libOpenCL.so.1"
_QUERY = Path(__file__).with_name("opencl_devices.py")
_MOST_ANSWER_BYTES = 1_000_000


@dataclass(frozen=True)
class OpenclDevice:
    """One device as its driver describes it.

    Attributes:
        platform: The vendor's platform, for instance `Portable Computing Language` (PoCL).
        name: The device.
        is_gpu: Whether the driver calls it a GPU; PoCL on a CPU does not.
        is_available: Whether the driver says that it can be used.
    """

    platform: str
    name: str
    is_gpu: bool
    is_available: bool


@dataclass(frozen=True)
class OpenclReport:
    """What OpenCL offers here.

    Attributes:
        devices: Every device of every platform.
        problem: What kept the answer from being whole, in words; empty if nothing did.
    """

    devices: tuple[OpenclDevice, ...]
    problem: str = ""


@dataclass(frozen=True)
class DeviceChoice:
    """LightGBM's device and why: the reason belongs into the run's record.

    Attributes:
        device: `cpu` or `gpu`.
        reason: Begins with the device: `cpu: no OpenCL GPU found`.
    """

    device: str
    reason: str

    @property
    def parameters(self) -> dict[str, Any]:
        """LightGBM parameters of the device, under which two trainings on the same rows give the same trees."""
        if self.device == "gpu":
            # Single-precision sums on the device differ from run to run; double ones gave equal trees in two runs.
            return {"device_type": "gpu", "gpu_use_dp": True, "deterministic": True}
        # Without a layout LightGBM times both and takes the faster one, which differs from run to run.
        return {"device_type": "cpu", "force_row_wise": True, "deterministic": True}


def tie_breaking(feature_count: int) -> list[float]:
    """LightGBM's `feature_contri`, under which equal splits go to the earlier feature on every device.

    Args:
        feature_count: Features of the booster, in its order.

    Returns:
        One factor of the gain a feature, from 1 downwards.
    """
    return [1.0 - _TIE_BREAK_RATIO * place for place in range(feature_count)]


CPU = DeviceChoice("cpu", "cpu: nothing else was asked for")


def find_opencl_devices(
    libraries: Sequence[str] | None = None, *, timeout_s: float = QUERY_TIMEOUT_S
) -> OpenclReport:
    """Ask OpenCL which devices there are; never crashes, hangs or raises for what a driver does.

    Args:
        libraries: OpenCL libraries in order, the first that loads is asked; None is LightGBM's own loader (what
            it lists is what training can use), then the system's.
        timeout_s: Longest wait for the answer.
    """
    if libraries is None:
        libraries = [*_lightgbm_library(), _OPENCL_LIBRARY]
    try:
        # A file, not a pipe: a driver's left-over child would hold a pipe open for ever.
        with tempfile.TemporaryFile() as answer:
            process = subprocess.Popen(
                [sys.executable, "-I", str(_QUERY), *libraries],
                stdin=subprocess.DEVNULL,
                stdout=answer,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
            try:
                code = process.wait(timeout_s)
            except subprocess.TimeoutExpired:
                return OpenclReport((), f"OpenCL gave no answer within {timeout_s:g} s: a driver hangs")
            finally:
                _end(process)
            answer.seek(0)
            written = answer.read(_MOST_ANSWER_BYTES)
    except OSError as error:
        return OpenclReport((), f"OpenCL could not be asked: {error}")
    if code:
        cause = f"signal {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        return OpenclReport((), f"asking OpenCL ended with {cause}: a driver is broken")
    return _read_report(written)


def lightgbm_device(
    wanted: str,
    *,
    row_count: int,
    max_bin: int,
    find_devices: Callable[[], OpenclReport] = find_opencl_devices,
) -> DeviceChoice:
    """LightGBM's device for one training.

    Args:
        wanted: `auto` takes a GPU where one is and the table is worth it; `cpu`; `gpu` takes whatever OpenCL
            device there is, PoCL on a CPU too.
        row_count: Rows to train on.
        max_bin: Histogram bins asked for.
        find_devices: What OpenCL offers; asked only where the answer matters.

    Raises:
        SettingsError: If the GPU is asked for by name and cannot be used, or the name is another.
    """
    if wanted not in ("auto", "cpu", "gpu"):
        raise SettingsError(f"latency_device is {wanted!r}; it must be auto, cpu or gpu")
    if wanted == "cpu":
        return DeviceChoice("cpu", "cpu: asked for by latency_device")
    if max_bin > GPU_LARGEST_MAX_BIN:
        if wanted == "gpu":
            raise SettingsError(
                f"latency_max_bin is {max_bin} and latency_device is gpu, where LightGBM takes at most "
                f"{GPU_LARGEST_MAX_BIN}; lower latency_max_bin, or set latency_device to cpu"
            )
        return DeviceChoice("cpu", f"cpu: max_bin {max_bin} is above the {GPU_LARGEST_MAX_BIN} of a GPU")
    if wanted == "auto" and row_count < GPU_LEAST_ROWS:
        return DeviceChoice(
            "cpu", f"cpu: {row_count:,} rows are below the {GPU_LEAST_ROWS:,} that pay on a GPU"
        )
    report = find_devices()
    usable = [device for device in report.devices if device.is_available]
    gpus = [device for device in usable if device.is_gpu]
    if wanted == "auto":
        if gpus:
            return DeviceChoice("gpu", f"gpu: {_described(gpus[0])}")
        return DeviceChoice("cpu", f"cpu: no OpenCL GPU found{_seen(usable, report)}")
    if not usable:
        raise SettingsError(
            f"latency_device is gpu and no OpenCL device answers here{_seen(usable, report)}; install the GPU "
            f"vendor's OpenCL driver (without a GPU: Debian's pocl-opencl-icd), or set latency_device to auto or cpu"
        )
    return DeviceChoice("gpu", f"gpu: asked for by latency_device; {_described((gpus or usable)[0])}")


def _lightgbm_library() -> list[str]:
    """LightGBM's shared library, without importing it."""
    spec = importlib.util.find_spec("lightgbm")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    paths = [Path(folder) / "lib" / "lib_lightgbm.so" for folder in folders]
    return [str(path) for path in paths if path.is_file()]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Kill a process that still runs, and what it started; do not wait for one that cannot be ended."""
    if process.poll() is not None:
        return
    try:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait(1.0)
    except (ProcessLookupError, subprocess.TimeoutExpired):
        return


def _read_report(answer: bytes) -> OpenclReport:
    try:
        document = json.loads(answer)
        devices = tuple(OpenclDevice(**device) for device in document["devices"])
        problems = [str(problem) for problem in document["problems"]]
        is_asked = document["library"] is not None
    except (ValueError, TypeError, KeyError) as error:
        return OpenclReport((), f"OpenCL's answer cannot be read: {error}")
    if is_asked and devices:
        return OpenclReport(devices)
    return OpenclReport(devices, "; ".join(problems))


def _described(device: OpenclDevice) -> str:
    kind = "OpenCL GPU" if device.is_gpu else "OpenCL device that is no GPU:"
    return f"{kind} {device.name} ({device.platform})"


def _seen(usable: Sequence[OpenclDevice], report: OpenclReport) -> str:
    """What there was instead of a GPU, for a reason."""
    parts = [device.name for device in usable]
    parts += [f"{device.name} is not available" for device in report.devices if not device.is_available]
    parts += [report.problem] if report.problem else []
    return f" ({'; '.join(parts)})" if parts else ""
