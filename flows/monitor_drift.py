"""Measure, decide, act: retrain or ask a person when a signal trips."""

from typing import Any

from prefect import flow, task

from flows.train_docquality import train_docquality
from flows.train_latency import train_latency
from tasks import monitoring
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY

measure = task(name="measure drift")(monitoring.measure)
decide = task(name="decide")(monitoring.decide)
announce = task(name="announce decisions")(monitoring.announce)

RETRAIN: dict[str, Any] = {
    LAUNCH_LATENCY: train_latency,
    DOC_QUALITY: train_docquality,
}


@flow(name="monitor")
def monitor_drift() -> dict[str, Any]:
    """Measure every signal, decide, write the decisions, and start the retrainings they ask for.

    Where a Prefect server holds the automation, the drift event starts the deployment; elsewhere the
    retraining runs here.
    """
    decided = decide(measure())
    to_run_here = announce(decided)
    retrained = []
    for order in to_run_here:
        retrain = RETRAIN[order["model_name"]]
        state = retrain(reason=order["reason"], attempt_id=order["attempt_id"], return_state=True)
        retrained.append(monitoring.record_outcome(order, state))
    return monitoring.summarize(decided, retrained)
