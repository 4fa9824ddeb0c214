"""Collect GPU samples into the gpu_samples table."""

from typing import Any

from prefect import flow, task

from tasks import collection

collect = task(name="collect telemetry", retries=1, retry_delay_seconds=2)(collection.collect_telemetry)


@flow(name="collect-telemetry", validate_parameters=False)
def collect_telemetry(sources: list[str]) -> dict[str, Any]:
    """Collect GPU samples from `nvml` or from CSV files of nvidia-smi or DCGM."""
    return collect(sources)
