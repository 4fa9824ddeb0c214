"""Close what killed runs left, measure, decide, act: retrain or ask a person when a signal trips."""

from typing import Any

from prefect import flow, task

from flows.train_docquality import train_docquality
from flows.train_latency import train_latency
from tasks import announcement, attempts, flow_runs, monitoring, reporting
from warpgauge.registry.names import DOC_QUALITY

close_dead_runs = task(name="close dead runs")(attempts.close_dead_runs)
measure = task(name="measure drift")(monitoring.measure)
decide = task(name="decide")(monitoring.decide)
announce = task(name="announce decisions")(announcement.announce)


@flow(name="monitor")
def monitor_drift(allow_simulated: bool = False) -> dict[str, Any]:
    """Measure every signal, decide, write the decisions, and start the retrainings they ask for.

    Runs whose process was killed are given their end first: nothing waits for a dead one.
    Where a Prefect server holds the automation, the drift event starts the deployment; elsewhere the
    retraining runs here.

    Args:
        allow_simulated: A retraining here may promote a version of simulated launches, as a rehearsal's does.
    """
    flow_runs.sign()
    closed = close_dead_runs()
    decided = decide(measure())
    to_run_here = announce(decided)
    retrained = []
    for order in to_run_here:
        why = {"reason": order["reason"], "attempt_id": order["attempt_id"]}
        if order["model_name"] == DOC_QUALITY:
            state = train_docquality(**why, return_state=True)
        else:
            which = {name: order[name] for name in ("model_name", "table", "folder")}
            state = train_latency(allow_simulated, **why, **which, return_state=True)
        retrained.append(monitoring.record_outcome(order, state))
    reporting.publish_outcomes(decided, retrained)
    return {**monitoring.summarize(decided, retrained), "closed": closed}
