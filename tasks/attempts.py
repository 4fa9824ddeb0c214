"""Retrainings that the monitor asked for: each a run of its own in MLflow that says how it ended."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tasks import leases
from tasks.tracking import PAGE_ROWS, connect, experiment_id, shorten, store_errors, without_passwords
from warpgauge.errors import WarpgaugeError

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

LOGGER = logging.getLogger("warpgauge")
# How the monitor names what the gate says.
OUTCOMES = {"promote": "promoted", "hold": "held", "refuse": "refused"}


def training_job(model_name: str) -> str:
    """Name of the lease under which a model is trained."""
    return f"train {model_name}"


class Attempt:
    """One retraining that the monitor asked for, as a run of its own that says how it ended."""

    def __init__(self, model_name: str, attempt_id: str | None) -> None:
        self.attempt_id = attempt_id
        self._run_id = None if attempt_id is None else _begin_attempt(model_name, attempt_id)
        self.is_ended = False

    @store_errors("; the retraining's outcome was not kept")
    def end(self, outcome: str, why: str) -> None:
        """Keep the outcome: promoted, held, refused or failed. The first one counts."""
        if self._run_id is not None and not self.is_ended:
            _end_attempt(connect(), self._run_id, outcome, why)
            self.is_ended = True


@contextmanager
def attempt(model_name: str, attempt_id: str | None) -> Iterator[Attempt]:
    """Keep what becomes of a retraining; a block that raises has failed. Without an id nothing is kept.

    A process that is killed leaves the outcome `running`, and `list_attempts` tells from the lease that
    nobody works on it any more.
    """
    made = Attempt(model_name, attempt_id)
    try:
        yield made
    except BaseException as error:
        try:
            made.end("failed", f"{type(error).__name__}: {error}")
        except WarpgaugeError as second:
            # The first error is the one to see; without its end the attempt counts as killed, so as failed.
            LOGGER.warning("%s", second)
        raise


@store_errors()
def _begin_attempt(model_name: str, attempt_id: str) -> str:
    client = connect()
    tags = {"model_name": model_name, "attempt_id": attempt_id, "outcome": "running"}
    name = f"retraining of {model_name}"
    return str(client.create_run(experiment_id(client), run_name=name, tags=tags).info.run_id)


def _end_attempt(client: MlflowClient, run_id: str, outcome: str, why: str) -> None:
    client.set_tag(run_id, "why", shorten(without_passwords(why)))
    client.set_tag(run_id, "outcome", outcome)
    client.set_terminated(run_id, "FAILED" if outcome == "failed" else "FINISHED")


@store_errors()
def list_attempts() -> list[dict[str, Any]]:
    """The newest retrainings that the monitor asked for.

    `model_name`, `attempt_id`, `started_at`, `outcome`, `why` it ended so and `wall_s`, null while it runs.

    One that says `running` while nobody holds the model's lease was killed: it is ended as `failed`.
    """
    client = connect()
    runs = client.search_runs(
        [experiment_id(client)],
        "tags.attempt_id != ''",
        max_results=PAGE_ROWS,
        order_by=["attributes.start_time DESC"],
    )
    found = []
    for run in runs:
        if "model_name" not in run.data.tags:
            continue
        outcome = _attempt_outcome(client, run)
        # A dead one was ended just now, so it is read again.
        is_stale = run.info.end_time is None and outcome != "running"
        now = client.get_run(run.info.run_id) if is_stale else run
        ended_ms = now.info.end_time
        found.append(
            {
                "model_name": run.data.tags["model_name"],
                "attempt_id": run.data.tags["attempt_id"],
                "started_at": datetime.fromtimestamp(run.info.start_time / 1000, UTC),
                "outcome": outcome,
                "why": now.data.tags.get("why"),
                "wall_s": None if ended_ms is None else (ended_ms - now.info.start_time) / 1000,
            }
        )
    return found


def _attempt_outcome(client: MlflowClient, run: Run) -> str:
    outcome = run.data.tags.get("outcome")
    if outcome in OUTCOMES.values():
        return str(outcome)
    if outcome != "running":
        return "failed"
    if leases.is_held(training_job(run.data.tags["model_name"])):
        return "running"
    # An attempt ends before its lease does, so one that still runs after the lease was seen free is dead.
    outcome = client.get_run(run.info.run_id).data.tags["outcome"]
    if outcome == "running":
        outcome = "failed"
        _end_attempt(client, run.info.run_id, outcome, "killed: nobody holds the model's lease any more")
    return str(outcome)
