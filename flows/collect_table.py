"""Collect the rows of a latency table that a spec describes."""

from typing import Any

from prefect import flow, task

from tasks import collection, flow_runs

collect = task(name="collect table", retries=1, retry_condition_fn=collection.is_worth_a_retry)(
    collection.collect_table
)


@flow(name="collect-table")
def collect_table(spec: str, folder: str | None = None) -> dict[str, Any]:
    """Collect from the files that the spec names; rows that are there already add nothing.

    Args:
        spec: The spec file.
        folder: Where its files lie; None is the spec's own folder.
    """
    flow_runs.sign()
    return collect(spec, folder)
