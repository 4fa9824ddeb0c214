"""Collect GPU samples into the gpu_samples table."""

from typing import Any

from prefect import flow, task

from tasks import collection, flow_runs

collect = task(
    name="collect telemetry", retries=1, retry_delay_seconds=2, retry_condition_fn=collection.is_worth_a_retry
)(collection.collect_telemetry)


@flow(name="collect-telemetry", validate_parameters=False)
def collect_telemetry(sources: list[str], keep_whole: bool = False) -> dict[str, Any]:
    """Collect GPU samples from `nvml` or from CSV files of nvidia-smi or DCGM."""
    flow_runs.sign()
    return collect(sources, keep_whole)
