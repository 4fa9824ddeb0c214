"""Collect launches, documents, telemetry and the tables of registered specs, then validate what the tables hold."""

from typing import Any

from prefect import flow, task

from flows.collect_documents import collect as collect_documents
from flows.collect_launches import collect as collect_launches
from flows.collect_telemetry import collect as collect_telemetry
from tasks import collection, flow_runs, validation

choose_launch_sources = task(name="choose launch sources")(collection.choose_launch_sources)
collect_known_tables = task(name="collect known tables")(collection.collect_known_tables)
validate_tables = task(name="validate tables")(validation.validate_tables)


@flow(name="collect", validate_parameters=False)
def collect_sources(
    launches: list[str] | None = None,
    documents: list[str] | None = None,
    telemetry: list[str] | None = None,
    field_map: str | None = None,
    keep_whole: bool = False,
    gpu_name: str | None = None,
) -> dict[str, Any]:
    """Collect from the sources given, or from the defaults where none is; then validate.

    Args:
        launches: Paths, globs, http addresses or `simulator:SEED`; None chooses.
        documents: `cuda-headers:VERSION,...` or `jsonl:PATH`; the headers of three CUDA versions by default.
        telemetry: `nvml` or CSV paths; NVML by default.
        field_map: Names of a report file's fields, `body=text,source=repo`.
        keep_whole: Keep the intact records of damaged files.
        gpu_name: GPU that the launches ran on, where their file does not say.
    """
    flow_runs.sign()
    chosen = choose_launch_sources(launches)
    collected = {
        "launches": (
            collect_launches(chosen["sources"], keep_whole, gpu_name) if chosen["sources"] else None
        ),
        "documents": collect_documents(
            documents or [f"cuda-headers:{collection.DEFAULT_HEADER_VERSIONS}"], field_map, keep_whole
        ),
        "gpu_samples": collect_telemetry(telemetry or ["nvml"], keep_whole),
    }
    known_tables = collect_known_tables()
    return {
        "launch_source": chosen["why"],
        "collected": collected,
        "known_tables": known_tables,
        "validated": validate_tables(),
    }
