"""Tell whoever should know what the monitor decided: Prefect, MLflow, the review queue, a person.

The decisions are kept before anything is told, so one listener that is away costs the others nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tasks import alerts, deployment, reporting, review, tracking
from tasks.deployment import DOCQUALITY_EVENT, LATENCY_EVENT
from warpgauge.errors import ServiceUnavailableError, WarpgaugeError
from warpgauge.registry.names import DOC_QUALITY

LOGGER = logging.getLogger("warpgauge")
LARGEST_METRIC_NAME = 200


def announce(decided: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Tell Prefect, MLflow, the review queue and the webhook; say which retrainings must run here.

    A retraining whose event an automation waits for is started by the server; the others are returned. The
    decisions are kept already and will not be made again, so one listener that is away costs the others
    nothing: an order whose event cannot be sent runs here, and what else failed is said in the log. An order
    that was decided and not told, because this process died in between, counts as a failed attempt after
    `monitor_lease_minutes`; an alert is told by the next round.
    """
    here = [order for order in decided["orders"] if not _is_started_elsewhere(order)]
    _attempt("tell the alerts", alerts.tell)
    if DOC_QUALITY in decided["review"]:
        _attempt("queue documents for review", partial(review.queue_documents, decided["decisions"]))
    _attempt("keep the metrics", partial(_publish_metrics, decided["decisions"]))
    _attempt("keep the artifact", partial(_publish_artifact, decided["decisions"]))
    _attempt("tell of the round", partial(reporting.publish, decided))
    return here


def _is_started_elsewhere(order: Mapping[str, Any]) -> bool:
    """Whether the order's event went to an automation that waits for it."""
    event = DOCQUALITY_EVENT if order["model_name"] == DOC_QUALITY else LATENCY_EVENT
    try:
        if not deployment.has_automation(event):
            return False
        _emit(event, order)
    except ServiceUnavailableError as error:
        LOGGER.error("%s; the retraining runs here instead", error)
        return False
    return True


def _attempt(what: str, publish: Callable[[], object]) -> None:
    """One publication; where it cannot be made, the log says so and the others go on."""
    try:
        publish()
    except (WarpgaugeError, OSError) as error:
        LOGGER.error("could not %s: %s", what, error)


def _publish_metrics(decisions: list[dict[str, Any]]) -> None:
    """Every measured value as a metric of one long-lived MLflow run, so that the UI draws it over time."""
    values = {
        f"{row['signal']}/{_metric_name(row['subject'])}": row["value"]
        for row in decisions
        if row["value"] is not None
    }
    tracking.log_monitor_metrics(values)


def _metric_name(subject: str) -> str:
    """The subject as MLflow takes it in a name: other characters replaced, not too long."""
    return "".join(sign if sign.isalnum() or sign in "-_ " else "_" for sign in subject)[:LARGEST_METRIC_NAME]


def _publish_artifact(decisions: list[dict[str, Any]]) -> None:
    """The decisions as a table in the flow run's artifacts; outside a flow run there is nowhere to put them."""
    from prefect.artifacts import create_table_artifact
    from prefect.context import FlowRunContext, TaskRunContext

    if FlowRunContext.get() is None and TaskRunContext.get() is None:
        return
    columns = ("signal", "subject", "status", "value", "limit", "sample_count", "action", "reason")
    create_table_artifact(
        key="monitor-decisions",
        table=[{name: row[name] for name in columns} for row in decisions],
        description="What the monitor measured and decided",
    )


def _emit(event: str, order: Mapping[str, Any]) -> None:
    from prefect.events import emit_event

    model_name = str(order["model_name"])
    sent = emit_event(
        event,
        resource={
            "prefect.resource.id": f"warpgauge.model.{model_name}",
            "prefect.resource.name": model_name,
        },
        payload=dict(order),
    )
    if sent is None:
        raise ServiceUnavailableError(
            f"Prefect took no event {event}; the retraining was not started, run the monitor again"
        )
    LOGGER.info("event %s sent, its automation starts the retraining", event)
