"""Collect launch records into the launches table."""

from typing import Any

from prefect import flow, task

from tasks import collection, flow_runs

collect = task(
    name="collect launches", retries=1, retry_delay_seconds=2, retry_condition_fn=collection.is_worth_a_retry
)(collection.collect_launches)


@flow(name="collect-launches", validate_parameters=False)
def collect_launches(
    sources: list[str], keep_whole: bool = False, gpu_name: str | None = None
) -> dict[str, Any]:
    """Collect launch records from paths, globs, http addresses or `simulator:SEED`."""
    flow_runs.sign()
    return collect(sources, keep_whole, gpu_name)
