"""What a piece of work takes: time on the clock, CPU time, energy of the GPUs where NVML counts it."""

from __future__ import annotations

import resource
import time
from typing import Any

from warpgauge.errors import SourceUnavailableError


class Meter:
    """Time and energy from its making to each reading.

    CPU time is of this process and of its children that have ended. The energy is that of all GPUs of this
    machine meanwhile, whoever used them: NVML does not divide it among processes.

    Args:
        library: The module `pynvml` or a stand-in; None takes `pynvml`.
    """

    def __init__(self, library: Any = None) -> None:
        if library is None:
            import pynvml

            library = pynvml
        self._library = library
        self._wall_s, self._cpu_s = time.monotonic(), _cpu_s()
        self._energy_j, self._no_energy = self._energy()

    def read(self) -> dict[str, Any]:
        """`wall_s`, `cpu_s`, `gpu_energy_j`, and `no_energy_because` where the energy is null."""
        energy_j, why = None, self._no_energy
        if self._energy_j is not None:
            now_j, why = self._energy()
            energy_j, why = _used(self._energy_j, now_j) if now_j is not None else (None, why)
        return {
            "wall_s": time.monotonic() - self._wall_s,
            "cpu_s": _cpu_s() - self._cpu_s,
            "gpu_energy_j": energy_j,
            "no_energy_because": why,
        }

    def _energy(self) -> tuple[dict[str, float] | None, str | None]:
        from warpgauge.telemetry.nvml import read_energy_j

        try:
            told = read_energy_j(self._library)
        except SourceUnavailableError as error:
            return None, str(error)
        counted = {uuid: value for uuid, value in told.items() if not isinstance(value, str)}
        if not counted:
            return None, "; ".join(f"{uuid}: {why}" for uuid, why in told.items()) or "NVML sees no GPU"
        return counted, None


def _used(before: dict[str, float], after: dict[str, float]) -> tuple[float | None, str | None]:
    """Joules used between two readings of the same GPUs; a counter that fell was reset with its driver."""
    if before.keys() != after.keys():
        return None, "the GPUs that count their energy changed meanwhile"
    if any(after[uuid] < before[uuid] for uuid in before):
        return None, "a GPU's energy counter was reset meanwhile"
    return sum(after[uuid] - before[uuid] for uuid in before), None


def _cpu_s() -> float:
    """CPU seconds, user and system, of this process and of its ended children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)
