"""Retrainings that the monitor asked for, each a run of its own in MLflow that says how it ended; and the end of
those, asked for or not, whose process was killed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tasks import flow_runs, leases
from tasks.processes import is_running, process_name
from tasks.tracking import PAGE_ROWS, connect, experiment_id, shorten, store_errors, without_passwords
from warpgauge.errors import WarpgaugeError
from warpgauge.registry.names import MODEL_NAMES, is_table_model
from warpgauge.settings import load_settings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run

LOGGER = logging.getLogger("warpgauge")
JOB_PREFIX = "train "
# How the monitor names what the gate says.
OUTCOMES = {"promote": "promoted", "hold": "held", "refuse": "refused"}
KNOWN_OUTCOMES = ("running", "failed", *OUTCOMES.values())


def training_job(model_name: str) -> str:
    """Name of the lease under which a model is trained."""
    return JOB_PREFIX + model_name


def model_trained(job: str) -> str | None:
    """The model that is trained under a lease; None where the lease is for something else."""
    return job.removeprefix(JOB_PREFIX) if job.startswith(JOB_PREFIX) else None


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

    A process that is killed leaves the outcome `running`; whoever trains next, or lists the attempts, ends it.
    """
    close_dead_runs()
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
    tags = {
        "model_name": model_name,
        "attempt_id": attempt_id,
        "outcome": "running",
        "process": process_name(),
        "holder": leases.held_here(training_job(model_name)),
        "flow_run_id": flow_runs.current_id(),
    }
    name = f"retraining of {model_name}"
    known = {key: value for key, value in tags.items() if value is not None}
    return str(client.create_run(experiment_id(client), run_name=name, tags=known).info.run_id)


def keep_failure(model_name: str, attempt_id: str, why: str) -> None:
    """Keep that an ordered retraining failed before its attempt began: its spec is gone, or its lease was not free.

    Nothing would tell the monitor otherwise, which would wait for it until `monitor_lease_minutes` are over.
    """
    if all(one["attempt_id"] != attempt_id for one in list_attempts()):
        Attempt(model_name, attempt_id).end("failed", why)


def _end_attempt(client: MlflowClient, run_id: str, outcome: str, why: str) -> None:
    client.set_tag(run_id, "why", shorten(without_passwords(why)))
    client.set_tag(run_id, "outcome", outcome)
    client.set_terminated(run_id, "FAILED" if outcome == "failed" else "FINISHED")


@store_errors()
def list_attempts() -> list[dict[str, Any]]:
    """The newest retrainings that the monitor asked for, and every one that runs, whoever asked for it.

    `model_name`, `attempt_id`, `started_at`, `outcome`, `why` it ended so and `wall_s`, null while it runs.

    One whose process was killed is ended as `failed` before. The id of one that nobody ordered is its holder's name.
    """
    close_dead_trainings()
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
        outcome = run.data.tags.get("outcome")
        ended_ms = run.info.end_time
        found.append(
            {
                "model_name": run.data.tags["model_name"],
                "attempt_id": run.data.tags["attempt_id"],
                "started_at": datetime.fromtimestamp(run.info.start_time / 1000, UTC),
                "outcome": outcome if outcome in KNOWN_OUTCOMES else "failed",
                "why": run.data.tags.get("why"),
                "wall_s": None if ended_ms is None else (ended_ms - run.info.start_time) / 1000,
            }
        )
    is_listed = {one["model_name"] for one in found if one["outcome"] == "running"}
    found += [
        {
            "model_name": model_name,
            "attempt_id": lease.holder,
            "started_at": lease.acquired_at,
            "outcome": "running",
            "why": None,
            "wall_s": None,
        }
        for lease in leases.list_leases()
        if lease.is_alive and (model_name := model_trained(lease.job)) and model_name not in is_listed
    ]
    return found


def close_dead_runs() -> list[dict[str, str]]:
    """Give what killed processes left running an end that says why: flow runs, MLflow runs, leases.

    A process is dead where it is gone from this machine, or gave no sign of life for `monitor_lease_minutes`. A
    service that is away leaves its part for the next time; the log says so.

    Returns:
        `what` was closed, its `name`, and `why`.
    """
    limit = timedelta(minutes=load_settings().monitor_lease_minutes)
    closed: list[dict[str, str]] = []

    def close_flow_runs() -> list[dict[str, str]]:
        held = leases.list_leases()
        alive = {lease.flow_run_id for lease in held if lease.is_alive and lease.flow_run_id}
        return flow_runs.close_dead_runs(limit, alive)

    # The leases come last: they tell whose runs are dead.
    for close in (close_flow_runs, close_dead_trainings, _free_dead_leases):
        try:
            closed += close()
        except WarpgaugeError as error:
            LOGGER.warning("what killed processes left is not all closed: %s", error)
    return closed


@store_errors()
def close_dead_trainings() -> list[dict[str, str]]:
    """End the MLflow runs, attempts and trainings, that are open while their process no longer holds the lease."""
    client = connect()
    running = client.search_runs(
        [experiment_id(client)], "attributes.status = 'RUNNING'", max_results=PAGE_ROWS
    )
    # A run ends before its lease does. So one that was open before the leases were looked at, and still is after,
    # has a holder among them or none.
    open_runs = [(run, model) for run in running if (model := _model_of(run)) is not None]
    if not open_runs:
        return []
    holders = {lease.job: lease.holder for lease in leases.list_leases() if lease.is_alive}
    closed = []
    for run, model in open_runs:
        if _has_living_holder(run, holders.get(training_job(model))):
            continue
        now = client.get_run(run.info.run_id)
        if now.info.status != "RUNNING" or now.data.tags.get("outcome", "running") != "running":
            continue
        process = run.data.tags.get("process")
        why = f"killed: {process or 'its process'} no longer holds the lease of {model}"
        if "attempt_id" in run.data.tags:
            _end_attempt(client, run.info.run_id, "failed", why)
        else:
            client.set_tag(run.info.run_id, "why", why)
            client.set_terminated(run.info.run_id, "KILLED")
        LOGGER.warning("MLflow run %s is closed: %s", run.info.run_name, why)
        closed.append({"what": "MLflow run", "name": str(run.info.run_name), "why": why})
    return closed


def _has_living_holder(run: Run, holder: str | None) -> bool:
    """Whether the process of a run lives and still works on it; `holder` is who now holds the lease of its model."""
    named = run.data.tags.get("holder")
    if named is not None:
        return bool(named == holder)
    return holder is not None or is_running(run.data.tags.get("process", "")) is True


def _model_of(run: Run) -> str | None:
    """The model that a run of ours trains; a registration that was killed early has it in its name alone."""
    name = run.data.tags.get("model_name") or str(run.info.run_name).partition(" ")[0]
    return name if name in MODEL_NAMES or is_table_model(name) else None


def _free_dead_leases() -> list[dict[str, str]]:
    closed = []
    for lease in leases.list_leases():
        if lease.is_alive or not leases.free(lease):
            continue
        why = f"its holder {lease.holder} died, last sign of life {lease.heartbeat_at:%Y-%m-%d %H:%M:%S} UTC"
        LOGGER.warning("lease %s is free: %s", lease.job, why)
        closed.append({"what": "lease", "name": lease.job, "why": why})
    return closed
