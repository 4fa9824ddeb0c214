"""Alerts that a person must hear of, and the outbox that keeps them until the webhook took them.

An alert is one decision with a cause. It becomes a line of the log, a Prefect event and a row of `alerts`. The rows
are made of the `decisions` that have none yet, so a process that dies after it decided loses no alert. The webhook
gets the waiting ones oldest first; one that it does not take waits for the next round, and those behind it too. The
decision's id is the idempotency key, by which a receiver tells an alert that it got before we died.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from tasks import deployment
from tasks.deployment import ALERT_EVENT_PREFIX, ALERT_FIELDS
from tasks.storage import Store
from tasks.tracking import shorten
from warpgauge.settings import load_settings

LOGGER = logging.getLogger("warpgauge")
# Decisions older than this are not looked through for an alert that nobody told.
DECISIONS_DAYS = 7
WEBHOOK_TIMEOUT_S = 10.0
# A slow receiver must not hold up the monitor; the rest waits for the next round.
ROUND_LIMIT_S = 60.0
# A receiver that refuses means it, but its login may be renewed just now.
REFUSAL_LIMIT = 3
# More than this are a storm, of which the newest tell enough.
WAITING_LIMIT = 1000
LONGEST_WAIT = timedelta(hours=6)
ASKED_TOO_OFTEN, ASKED_TOO_SLOWLY, SERVERS_FAULT = 429, 408, 500


@dataclass(frozen=True)
class Answer:
    """How the webhook answered.

    Attributes:
        trouble: Why it has not taken the alert, without its address; None where it has.
        is_refused: It will not take this alert; False where it may later.
        wait: For how long it asked to be left alone.
    """

    trouble: str | None = None
    is_refused: bool = False
    wait: timedelta = timedelta(0)


def tell() -> list[dict[str, Any]]:
    """Tell every alert that was decided and not told yet, then send what waits for the webhook.

    Returns:
        The alerts that were told now, records of `ALERT_FIELDS`.

    Raises:
        ServiceUnavailableError: If the tables cannot be read or written; the next round tells them then.
    """
    store = Store()
    new = _untold(store)
    told = [_document(alert) for alert in new.to_dicts()]
    for alert in told:
        LOGGER.warning("alert %(cause)s: %(signal)s of %(subject)s: %(reason)s", alert)
        _emit(alert)
    if told:
        # The row is last: an alert may be told twice, and never not at all.
        outcome = "logged" if load_settings().alert_webhook_url is None else "waiting"
        store.append("alerts", new.with_columns(outcome=pl.lit(outcome), refusal_count=pl.lit(0)))
    _deliver(store)
    return told


def alert_counts() -> list[dict[str, Any]]:
    """How many alerts there were: records of `cause`, `outcome` (waiting, delivered, logged, dropped) and `count`."""
    counts = Store().read("alerts").group_by("cause", "outcome").len("count").sort("cause", "outcome")
    return counts.collect().to_dicts()


def _untold(store: Store) -> pl.DataFrame:
    """The decided alerts that have no row yet, oldest first."""
    since = datetime.now(UTC) - timedelta(days=DECISIONS_DAYS)
    decided = (
        store.read("decisions")
        .filter(pl.col("decided_at") >= since, pl.col("alert_cause").is_not_null())
        .rename({"decision_id": "alert_id", "alert_cause": "cause"})
        .select(ALERT_FIELDS)
        .sort("decided_at", "alert_id")
        .collect()
    )
    if decided.is_empty():
        return decided
    return decided.join(
        store.read("alerts").select("alert_id").collect(), on="alert_id", how="anti", maintain_order="left"
    )


def _document(alert: Mapping[str, Any]) -> dict[str, Any]:
    """The alert as JSON takes it, with nothing of this machine in it."""
    document = {name: alert[name] for name in ALERT_FIELDS}
    return {**document, "reason": shorten(alert["reason"]), "decided_at": alert["decided_at"].isoformat()}


def _emit(alert: Mapping[str, Any]) -> None:
    """The alert as a Prefect event where a server is in use, under the same id however often it is told."""
    if deployment.server_url() is None:
        return
    from uuid import NAMESPACE_URL, uuid5

    from prefect.events import emit_event

    emit_event(
        ALERT_EVENT_PREFIX + alert["cause"],
        resource={
            "prefect.resource.id": f"warpgauge.signal.{alert['signal']}.{alert['subject']}",
            "prefect.resource.name": f"{alert['signal']} of {alert['subject']}",
        },
        payload=dict(alert),
        id=uuid5(NAMESPACE_URL, f"warpgauge:{alert['alert_id']}"),
    )


def _deliver(store: Store) -> None:
    """Send what waits, oldest first, until one is not taken; keep what became of each before the next is sent."""
    settings = load_settings()
    now = datetime.now(UTC)
    waiting = (
        store.read("alerts")
        .filter(pl.col("outcome") == "waiting")
        .sort("decided_at", "alert_id")
        .collect()
        .to_dicts()
    )
    oldest = now - timedelta(hours=settings.alert_retry_hours)
    kept = [row for row in waiting if row["decided_at"] >= oldest][-WAITING_LIMIT:]
    _drop(store, waiting[: len(waiting) - len(kept)], settings.alert_retry_hours)
    if settings.alert_webhook_url is None:
        return
    url = settings.alert_webhook_url.get_secret_value()
    end = time.monotonic() + ROUND_LIMIT_S
    for row in kept:
        is_asked_to_wait = row["not_before"] is not None and now < row["not_before"]
        if is_asked_to_wait or time.monotonic() > end:
            break
        answer = _post(url, _document(row))
        after = _after(row, answer)
        if after != row:
            _keep(store, [after])
        if after["outcome"] == "waiting":
            LOGGER.error(
                "the alert webhook did not take an alert: %s; %d wait for the next round",
                answer.trouble,
                len(kept) - kept.index(row),
            )
            break
        if after["outcome"] == "dropped":
            LOGGER.error("alert %(cause)s of %(subject)s was dropped: %(trouble)s", after)


def _after(row: dict[str, Any], answer: Answer) -> dict[str, Any]:
    """The row of an alert after the webhook's answer."""
    now = datetime.now(UTC)
    if answer.trouble is None:
        return {**row, "outcome": "delivered", "delivered_at": now, "not_before": None, "trouble": None}
    refusals = row["refusal_count"] + answer.is_refused
    return {
        **row,
        "outcome": "dropped" if refusals >= REFUSAL_LIMIT else "waiting",
        "refusal_count": refusals,
        "not_before": now + answer.wait if answer.wait else None,
        "trouble": answer.trouble,
    }


def _drop(store: Store, rows: list[dict[str, Any]], retry_hours: float) -> None:
    """Give up the alerts that waited too long, or behind too many newer ones."""
    if not rows:
        return
    why = f"waited longer than {retry_hours:g} hours, or behind {WAITING_LIMIT} newer ones"
    LOGGER.error("%d alerts were dropped: %s; the webhook does not take them", len(rows), why)
    _keep(
        store,
        [
            {**row, "outcome": "dropped", "trouble": f"{why}; {row['trouble'] or 'never tried'}"}
            for row in rows
        ],
    )


def _keep(store: Store, rows: list[dict[str, Any]]) -> None:
    """Write rows of alerts in the place of those that they were, beside whoever else writes."""
    while True:
        version = store.version("alerts")
        known = store.read("alerts").collect()
        changed = pl.DataFrame(rows, schema=known.schema)
        others = known.join(changed, on="alert_id", how="anti", maintain_order="left")
        if store.replace("alerts", pl.concat([others, changed]).sort("decided_at", "alert_id"), version):
            return


def _post(url: str, alert: Mapping[str, Any]) -> Answer:
    """Send one alert to the webhook."""
    import http.client
    import ssl
    import urllib.error
    import urllib.request

    class NoRedirect(urllib.request.HTTPRedirectHandler):
        """A redirected POST becomes a GET without its alert, which the other end would answer kindly."""

        def redirect_request(self, *_: Any) -> None:
            return None

    if not url.startswith(("http://", "https://")):
        return Answer("the setting alert_webhook_url is no http address")
    body = json.dumps({"source": "warpgauge", **alert}).encode()
    headers = {
        "Content-Type": "application/json",
        "User-Agent": "warpgauge",
        "Idempotency-Key": alert["alert_id"],
    }
    try:
        request = urllib.request.Request(url, data=body, headers=headers, method="POST")
        urllib.request.build_opener(NoRedirect).open(request, timeout=WEBHOOK_TIMEOUT_S).close()
    except urllib.error.HTTPError as error:
        with error:
            is_its_fault = error.code >= SERVERS_FAULT or error.code in (ASKED_TOO_OFTEN, ASKED_TOO_SLOWLY)
            return Answer(
                f"it answered {error.code}",
                not is_its_fault,
                _wait(error.headers.get("Retry-After"), is_its_fault),
            )
    except (OSError, ValueError, http.client.HTTPException) as error:
        # Their text may hold the address, which is a secret.
        inner = error.reason if isinstance(error, urllib.error.URLError) else error
        if isinstance(inner, ssl.SSLError):
            return Answer(f"TLS: {inner.reason}")
        return Answer(getattr(inner, "strerror", None) or type(inner).__name__)
    return Answer()


def _wait(retry_after: str | None, is_its_fault: bool) -> timedelta:
    """How long an answer asks to wait, by its header `Retry-After`: seconds, or a date."""
    from email.utils import parsedate_to_datetime

    if retry_after is None or not is_its_fault:
        return timedelta(0)
    try:
        if retry_after.strip().isdecimal():
            wait = timedelta(seconds=int(retry_after))
        else:
            wait = parsedate_to_datetime(retry_after).astimezone(UTC) - datetime.now(UTC)
    except (ValueError, OverflowError):
        return timedelta(0)
    return min(max(wait, timedelta(0)), LONGEST_WAIT)
