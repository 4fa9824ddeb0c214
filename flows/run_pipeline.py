"""The main job: collect, validate, train both models, register, judge, monitor once.

Both models are trained before either is registered, so a failed required step leaves no new version.
"""

from typing import Any

from prefect import flow, task

from flows import train_docquality as docquality
from flows import train_latency as latency
from flows.collect_sources import collect_sources
from flows.monitor_drift import monitor_drift
from tasks import attempts, flow_runs, leases, summary
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY

summarize = task(name="summarize run")(summary.summarize_run)


@flow(name="run", validate_parameters=False)
def run_pipeline(
    launches: list[str] | None = None,
    documents: list[str] | None = None,
    telemetry: list[str] | None = None,
    field_map: str | None = None,
    keep_whole: bool = False,
    allow_simulated: bool = False,
    gpu_name: str | None = None,
) -> dict[str, Any]:
    """Do everything once, in order, on the sources given or on the defaults.

    Args:
        launches: Paths, globs, http addresses or `simulator:SEED`; None chooses.
        documents: `cuda-headers:VERSION,...` or `jsonl:PATH`; the headers of three CUDA versions by default.
        telemetry: `nvml` or CSV paths; NVML by default.
        field_map: Names of a report file's fields, `body=text,source=repo`.
        keep_whole: Keep the intact records of damaged files.
        allow_simulated: A version trained on simulated launches may become champion.
        gpu_name: GPU that the launches ran on, where their file does not say.
    """
    flow_runs.sign()
    collected = collect_sources(launches, documents, telemetry, field_map, keep_whole, gpu_name)
    verdicts = {}
    with (
        leases.hold(attempts.training_job(LAUNCH_LATENCY)),
        leases.hold(attempts.training_job(DOC_QUALITY)),
    ):
        latency_plan = latency.plan(LAUNCH_LATENCY, False, allow_simulated)
        docquality_plan = docquality.plan(DOC_QUALITY, False)
        latency_bundle = None if latency_plan["skip"] else latency.train(latency_plan, "main job")
        docquality_bundle = None if docquality_plan["skip"] else docquality.train(docquality_plan, "main job")
        verdicts[LAUNCH_LATENCY] = latency_plan
        verdicts[DOC_QUALITY] = docquality_plan
        if latency_bundle:
            version = latency.register(latency_bundle)
            verdicts[LAUNCH_LATENCY] = latency.gate(latency_bundle, version, allow_simulated)
        if docquality_bundle:
            version = docquality.register(docquality_bundle)
            verdicts[DOC_QUALITY] = docquality.gate(docquality_bundle, version)
    return summarize(collected, verdicts, monitor_drift())
