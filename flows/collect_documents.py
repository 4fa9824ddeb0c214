"""Collect documents and their labels into the documents table."""

from typing import Any

from prefect import flow, task

from tasks import collection, flow_runs

collect = task(
    name="collect documents", retries=1, retry_delay_seconds=2, retry_condition_fn=collection.is_worth_a_retry
)(collection.collect_documents)


@flow(name="collect-documents", validate_parameters=False)
def collect_documents(
    sources: list[str], field_map: str | None = None, keep_whole: bool = False
) -> dict[str, Any]:
    """Collect documents from `cuda-headers:VERSION,...`, `jsonl:PATH` or `markdown:PATH`."""
    flow_runs.sign()
    return collect(sources, field_map, keep_whole)
