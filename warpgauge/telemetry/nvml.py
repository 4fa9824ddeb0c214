"""Read all GPUs of this machine once, through NVML.

The library is an argument, so a test can pass a fake and a machine without a driver fails in one place. A
card that fell off the bus ends its own sampling and nobody else's; it is told by its UUID, because the
driver renumbers the rest.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

import polars as pl

from warpgauge.errors import SchemaError, SourceUnavailableError
from warpgauge.tables import GPU_SAMPLES
from warpgauge.telemetry.batch import READINGS, SampleBatch, fault_of

# Constants of nvml.h, by value, since a fake need not carry them.
_CLOCK_SM, _CLOCK_MEM = 1, 2
_TEMPERATURE_GPU = 0
_PCIE_TX, _PCIE_RX = 0, 1
_LOST = ("NVMLError_GpuIsLost", "NVMLError_ResetRequired", "NVMLError_GpuNotFound")
_REASONS = {
    "NVMLError_NotSupported": "not supported",
    "NVMLError_FunctionNotFound": "not supported by this driver",
    "NVMLError_NoPermission": "permission",
    "NVMLError_NoData": "no data",
    "NVMLError_Timeout": "timeout",
    "NVMLError_InvalidArgument": "not supported",
    "NVMLError_Unknown": "unknown error",
}
_INIT_CAUSES = {
    "NVMLError_LibraryNotFound": "no NVIDIA driver is installed here; install one, or collect from a CSV log",
    "NVMLError_DriverNotLoaded": "the NVIDIA driver is installed and not loaded; load it (modprobe nvidia) or reboot",
    "NVMLError_LibRmVersionMismatch": (
        "driver and library versions differ, as after an upgrade while the old driver runs: "
        "reload the driver's modules or reboot"
    ),
    "NVMLError_NoPermission": "no permission to use the driver; run as a user who may open /dev/nvidia*",
}
# Column -> NVML function, its further arguments, the part of its answer, and the factor to the table's unit.
_CALLS: dict[str, tuple[str, tuple[int, ...], str | None, float]] = {
    "utilization_percent": ("nvmlDeviceGetUtilizationRates", (), "gpu", 1),
    "memory_utilization_percent": ("nvmlDeviceGetUtilizationRates", (), "memory", 1),
    "memory_used_bytes": ("nvmlDeviceGetMemoryInfo", (), "used", 1),
    "memory_total_bytes": ("nvmlDeviceGetMemoryInfo", (), "total", 1),
    "sm_clock_mhz": ("nvmlDeviceGetClockInfo", (_CLOCK_SM,), None, 1),
    "memory_clock_mhz": ("nvmlDeviceGetClockInfo", (_CLOCK_MEM,), None, 1),
    "temperature_celsius": ("nvmlDeviceGetTemperature", (_TEMPERATURE_GPU,), None, 1),
    "power_w": ("nvmlDeviceGetPowerUsage", (), None, 1e-3),
    "pcie_rx_kb_per_s": ("nvmlDeviceGetPcieThroughput", (_PCIE_RX,), None, 1),
    "pcie_tx_kb_per_s": ("nvmlDeviceGetPcieThroughput", (_PCIE_TX,), None, 1),
    "pcie_link_generation": ("nvmlDeviceGetCurrPcieLinkGeneration", (), None, 1),
    "pcie_link_width": ("nvmlDeviceGetCurrPcieLinkWidth", (), None, 1),
}


class _LostGpuError(Exception):
    """A call said that the card no longer answers."""


def sample_gpus(
    library: Any,
    sampled_at: datetime,
    *,
    source_name: str = "nvml",
    expected: Collection[str] = (),
    known_lost: Collection[str] = (),
) -> SampleBatch:
    """One reading of every GPU that answers.

    A caller that samples again and again passes on what it learnt, so that each loss is told once:
    `expected` grows by the UUIDs of `frame` and shrinks by `lost`, which go to `known_lost`.

    Args:
        library: The module `pynvml`, or a stand-in with the same functions and errors.
        sampled_at: Time of the reading, with a zone.
        source_name: Name of the host, for the rows.
        expected: UUIDs of earlier readings; one that does not answer now is named in `lost`.
        known_lost: UUIDs already told as lost; they explain handles that fail.

    Returns:
        A row for each GPU; what it cannot read is null with a reason in `null_reasons`.

    Raises:
        SourceUnavailableError: If NVML does not start (no driver, versions differ) or there is no GPU.
        SchemaError: If `sampled_at` has no zone.
    """
    if sampled_at.tzinfo is None:
        raise SchemaError(f"sampled_at {sampled_at} has no time zone; pass a time in UTC")
    _start(library)
    problems: list[str] = []
    try:
        count = _device_count(library)
        rows, rejected, failures = _sample_all(library, count)
    finally:
        problems += _stop(library)
    seen = {row["gpu_uuid"] for row in rows}
    lost = tuple(sorted(set(expected) - seen))
    if not count and not lost and not known_lost:
        raise SourceUnavailableError("the NVIDIA driver runs and sees no GPU; check nvidia-smi -L")
    problems += _losses(failures, lost, known_lost)
    frame = pl.DataFrame(
        rows,
        schema={
            name: GPU_SAMPLES.schema[name] for name in ("gpu_uuid", "gpu_name", *READINGS, "null_reasons")
        },
    ).with_columns(
        pl.lit(sampled_at).alias("sampled_at").cast(GPU_SAMPLES.schema["sampled_at"]),
        pl.lit("nvml").alias("source_kind"),
        pl.lit(source_name).alias("source_name"),
    )
    counts = {"samples": len(rows), "gpus without a reading": len(failures), "lost gpus": len(lost)}
    return SampleBatch(GPU_SAMPLES.conform(frame), tuple(problems), counts, rejected, lost)


def read_energy_j(library: Any) -> dict[str, float | str]:
    """Energy that each GPU has used since its driver was loaded, in joules, by UUID; or in words why it is not told.

    NVML counts it from the Volta generation on (`nvmlDeviceGetTotalEnergyConsumption`, in millijoules).

    Args:
        library: The module `pynvml`, or a stand-in with the same functions and errors.

    Raises:
        SourceUnavailableError: If NVML does not start or cannot count the GPUs.
    """
    _start(library)
    found: dict[str, float | str] = {}
    try:
        for index in range(_device_count(library)):
            name = f"GPU at index {index}, UUID unknown"
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
                name = _text(library.nvmlDeviceGetUUID(handle))
                answer = _ask(library, "nvmlDeviceGetTotalEnergyConsumption", handle)
            except library.NVMLError as error:
                answer = _reason(error)
            except _LostGpuError as error:
                answer = str(error)
            is_number = isinstance(answer, int | float) and not isinstance(answer, bool)
            found[name] = answer / 1000 if is_number else str(answer)
    finally:
        _stop(library)
    return found


def _losses(
    failures: list[tuple[str | None, int, str]], lost: Collection[str], known_lost: Collection[str]
) -> list[str]:
    """A sentence for each GPU that gave no reading, unless its loss was told before."""
    reasons = {uuid: what for uuid, _, what in failures if uuid is not None}
    # A failing handle does not tell its UUID: a card that is missing explains it.
    unnamed = [(index, what) for uuid, index, what in failures if uuid is None]
    silent = unnamed[0][1] if unnamed else "no longer enumerated"
    told = [f"{uuid}: lost ({reasons.get(uuid, silent)}); no reading of it from here on" for uuid in lost]
    told += [
        f"{uuid}: no reading ({what})"
        for uuid, what in reasons.items()
        if uuid not in lost and uuid not in known_lost
    ]
    explained = len(set(lost) | set(known_lost))
    return told + [
        f"GPU at index {index}, UUID unknown: no reading ({what})" for index, what in unnamed[explained:]
    ]


def _start(library: Any) -> None:
    try:
        library.nvmlInit()
    except library.NVMLError as error:
        name = type(error).__name__
        cause = _INIT_CAUSES.get(name, "see nvidia-smi for the driver's own words")
        raise SourceUnavailableError(f"NVML does not start ({name}): {cause}") from error


def _stop(library: Any) -> list[str]:
    try:
        library.nvmlShutdown()
    except library.NVMLError as error:
        return [f"NVML did not shut down: {_reason(error)}"]
    return []


def _device_count(library: Any) -> int:
    try:
        return int(library.nvmlDeviceGetCount())
    except library.NVMLError as error:
        raise SourceUnavailableError(
            f"NVML cannot count the GPUs ({_reason(error)}); see nvidia-smi for the driver's own words"
        ) from error


def _sample_all(
    library: Any, count: int
) -> tuple[list[dict[str, Any]], dict[str, dict[str, int]], list[tuple[str | None, int, str]]]:
    """Rows, impossible readings by GPU, and (UUID if known, index, why) of each GPU without a reading."""
    rows: list[dict[str, Any]] = []
    rejected: dict[str, dict[str, int]] = {}
    failures: list[tuple[str | None, int, str]] = []
    for index in range(count):
        uuid: str | None = None
        try:
            handle = library.nvmlDeviceGetHandleByIndex(index)
            uuid = _text(library.nvmlDeviceGetUUID(handle))
            row, impossible = _sample_one(library, handle)
        except library.NVMLError as error:
            failures.append((uuid, index, _reason(error)))
        except _LostGpuError as error:
            failures.append((uuid, index, str(error)))
        else:
            rows.append({"gpu_uuid": uuid, **row})
            if impossible:
                rejected[str(uuid)] = dict(impossible)
    return rows, rejected, failures


def _sample_one(library: Any, handle: Any) -> tuple[dict[str, Any], Counter[str]]:
    reasons: dict[str, str] = {}
    impossible: Counter[str] = Counter()
    row: dict[str, Any] = {"gpu_name": None}
    name = _ask(library, "nvmlDeviceGetName", handle)
    if isinstance(name, bytes | str):
        row["gpu_name"] = _text(name)
    else:
        reasons["gpu_name"] = str(name)
    is_partitioned = _is_partitioned(library, handle)
    for column, (function, arguments, part, factor) in _CALLS.items():
        answer = _ask(library, function, handle, *arguments)
        if part and not isinstance(answer, str):
            answer = getattr(answer, part, f"{part} not given")
        row[column] = None
        if isinstance(answer, bool) or not isinstance(answer, int | float):
            reason = answer if isinstance(answer, str) else "no number"
            is_mig = is_partitioned and reason.startswith("not supported")
            reasons[column] = "not supported under MIG" if is_mig else reason
            continue
        value = answer * factor
        if fault := fault_of(column, float(answer), float(value)):
            reasons[column] = fault
            impossible[column] += 1
        else:
            is_whole = GPU_SAMPLES.column(column).dtype.is_integer()
            row[column] = int(value) if is_whole else float(value)
    row["null_reasons"] = json.dumps(reasons) if reasons else None
    return row, impossible


def _ask(library: Any, function: str, handle: Any, *arguments: int) -> Any:
    """The answer, or in words why there is none.

    Raises:
        _LostGpuError: If the card no longer answers.
    """
    call: Callable[..., Any] | None = getattr(library, function, None)
    if call is None:
        return "not offered by this NVML library"
    try:
        return call(handle, *arguments)
    except library.NVMLError as error:
        if type(error).__name__ in _LOST:
            raise _LostGpuError(_reason(error)) from error
        return _reason(error)


def _is_partitioned(library: Any, handle: Any) -> bool:
    """Whether the card is split into MIG instances, which have no utilization of the whole."""
    answer = _ask(library, "nvmlDeviceGetMigMode", handle)
    return isinstance(answer, list | tuple) and bool(answer) and answer[0] == 1


def _reason(error: Exception) -> str:
    name = type(error).__name__
    if name in _LOST:
        return {"NVMLError_ResetRequired": "GPU requires reset"}.get(name, "lost GPU")
    return _REASONS.get(name, name)


def _text(value: bytes | str) -> str:
    """NVML bindings before 11.5 answer bytes, later ones strings."""
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
