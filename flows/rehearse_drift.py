"""A rehearsal: train, let the data drift, and see the monitor find it, retrain, promote and become quiet again."""

from typing import Any

from prefect import flow, task

from flows.monitor_drift import monitor_drift
from flows.train_docquality import train_docquality
from flows.train_latency import train_latency
from tasks import drill

add_rows = task(name="add rehearsed rows")(drill.add_rows)
answer_review = task(name="answer review queue")(drill.answer_review)
summarize = task(name="summarize rehearsal")(drill.summarize)


@flow(name="drill")
def rehearse_drift(kind: str) -> dict[str, Any]:
    """Rehearse the whole loop on simulated data in the store that is set, which must be one of its own.

    Args:
        kind: latency or docquality.
    """
    timeline = drill.Timeline(kind)
    timeline.tell("first rows", add_rows(kind, drill.FIRST))
    timeline.trained(train_latency(allow_simulated=True) if kind == "latency" else train_docquality())
    timeline.tell("more of the same", add_rows(kind, drill.UNCHANGED))
    timeline.monitored(monitor_drift(allow_simulated=True))
    timeline.tell("rows of another law", add_rows(kind, drill.SHIFTED))
    timeline.monitored(monitor_drift(allow_simulated=True))
    if kind == "docquality":
        timeline.tell("people answer", answer_review())
        timeline.trained(train_docquality())
    timeline.tell("more of these", add_rows(kind, drill.AFTER))
    last_round = monitor_drift(allow_simulated=True)
    timeline.monitored(last_round)
    return summarize(timeline, last_round)
