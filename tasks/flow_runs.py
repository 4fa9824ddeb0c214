"""Flow runs on the Prefect server: ours, and which of them a killed process left behind.

A process that SIGKILL ends leaves its run Running for ever. The run then counts for whoever asks whether one is
running, in the UI and in the slots of its deployment.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Collection, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from tasks import deployment
from tasks.processes import is_running, process_name
from warpgauge.drift.liveness import BEGUN, Run, is_dead
from warpgauge.registry.names import DOC_QUALITY
from warpgauge.settings import load_settings

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.filters import FlowRunFilterState
    from prefect.client.schemas.objects import FlowRun, State

LOGGER = logging.getLogger("warpgauge")
# On a server that others use too, a run is ours by its work pool or by this label, which names its process.
PROCESS_LABEL = "warpgauge.process"
FLOW_NAMES = (
    "collect",
    "collect-documents",
    "collect-launches",
    "collect-table",
    "collect-telemetry",
    "compact",
    "monitor",
    "review",
    "run",
    "train-docquality",
    "train-latency",
)
# A run whose process sends no heartbeats (they can be switched off) is silent while it lives.
SILENT_WITHOUT_HEARTBEATS = timedelta(days=1)
HEARTBEAT = "prefect.flow-run.heartbeat"
# How events begin that only a living process of the run brings about, besides its changes of state.
SIGNS_OF_LIFE = (HEARTBEAT, "prefect.task-run.")
PAGE_RUNS = 200
MOST_PAGES = 50


def current_id() -> str | None:
    """Id of the flow run that this code runs in, None outside of one."""
    if "prefect" not in sys.modules:
        return None
    from prefect.context import FlowRunContext, TaskRunContext

    flow = FlowRunContext.get()
    if flow is not None and flow.flow_run is not None:
        return str(flow.flow_run.id)
    task = TaskRunContext.get()
    return None if task is None or task.task_run.flow_run_id is None else str(task.task_run.flow_run_id)


def sign() -> None:
    """Name this process in the record of its flow run, so that its death can be told; outside of one, nothing."""
    mine = current_id()
    if mine is None:
        return
    from uuid import UUID

    from prefect.client.orchestration import get_client

    try:
        with get_client(sync_client=True) as client:
            client.update_flow_run_labels(UUID(mine), {PROCESS_LABEL: process_name()})
    except (OSError, deployment.http_error()) as error:
        # Without it the run still tells that it lives by its events.
        LOGGER.warning("the flow run was not signed: %s", deployment.unreachable(error))


def close_dead_runs(limit: timedelta, alive: Collection[str] = ()) -> list[dict[str, str]]:
    """Give the flow runs of killed processes an end: Crashed what ran, Cancelled what was never begun.

    Args:
        limit: A living run is never silent for this long.
        alive: Ids of flow runs that are known to live.

    Returns:
        `what` was closed, its `name`, and `why`; nothing where no server is in use.

    Raises:
        ServiceUnavailableError: If the server does not answer.
    """
    mine = current_id()
    if mine is None and deployment.server_url() is None:
        return []
    from prefect.client.orchestration import get_client

    closed = []
    try:
        with get_client(sync_client=True) as client:
            now = datetime.now(UTC)
            for run in list(_open_runs(client, now - limit)):
                if str(run.id) in (mine, *alive):
                    continue
                why = _death(client, run, now, limit)
                if why is not None and _close(client, run, why):
                    LOGGER.warning("flow run %s is closed: %s", run.name, why)
                    closed.append({"what": "flow run", "name": run.name, "why": why})
    except (OSError, deployment.http_error()) as error:
        raise deployment.unreachable(error) from error
    return closed


def waiting_orders() -> list[dict[str, Any]]:
    """Retrainings that the monitor ordered and that wait on the server, for a slot or for a worker that comes.

    Records as those of `tasks.attempts.list_attempts`. Without them an order that waits behind the training of
    another model would count as one that never started. Nothing where no server is in use, or none answers.
    """
    if deployment.server_url() is None:
        return []
    from prefect.client.orchestration import get_client

    now = datetime.now(UTC)
    limit = timedelta(minutes=load_settings().monitor_lease_minutes)
    try:
        with get_client(sync_client=True) as client:
            runs = list(_open_runs(client, now))
    except (OSError, deployment.http_error()) as error:
        LOGGER.warning("orders that wait on the server are not known: %s", deployment.unreachable(error))
        return []
    return [
        {
            "model_name": str(run.parameters.get("model_name") or DOC_QUALITY),
            "attempt_id": str(run.parameters["attempt_id"]),
            "started_at": run.expected_start_time or run.created or now,
            "outcome": "running",
            "why": None,
            "wall_s": None,
        }
        for run in runs
        if run.parameters.get("attempt_id")
        and run.state is not None
        and run.state.type.value in ("SCHEDULED", "PENDING")
        and now - run.state.timestamp <= limit
    ]


def _open_runs(client: SyncPrefectClient, due_before: datetime) -> Iterator[FlowRun]:
    """Our runs that were taken and are not over, and those that are long due and that nobody took."""
    from prefect.client.schemas.filters import (
        FlowFilter,
        FlowFilterName,
        FlowRunFilter,
        FlowRunFilterExpectedStartTime,
    )
    from prefect.client.schemas.sorting import FlowRunSort

    begun = FlowRunFilter(state=_in_states(*BEGUN))
    overdue = FlowRunFilter(
        state=_in_states("SCHEDULED"),
        expected_start_time=FlowRunFilterExpectedStartTime.model_validate({"before_": due_before}),
    )
    for wanted in (begun, overdue):
        for page in range(MOST_PAGES):
            found = client.read_flow_runs(
                flow_filter=FlowFilter(name=FlowFilterName(any_=list(FLOW_NAMES))),
                flow_run_filter=wanted,
                sort=FlowRunSort.ID_DESC,
                limit=PAGE_RUNS,
                offset=page * PAGE_RUNS,
            )
            yield from (
                run
                for run in found
                if run.work_pool_name == deployment.WORK_POOL or PROCESS_LABEL in run.labels
            )
            if len(found) < PAGE_RUNS:
                break


def _in_states(*types: str) -> FlowRunFilterState:
    from prefect.client.schemas.filters import FlowRunFilterState, FlowRunFilterStateType
    from prefect.client.schemas.objects import StateType

    return FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType(one) for one in types]))


def _death(client: SyncPrefectClient, run: FlowRun, now: datetime, limit: timedelta) -> str | None:
    """Why a run is dead, None where it lives, or where nobody can tell."""
    assert run.state is not None
    state = run.state.type.value
    silence = now - run.state.timestamp
    if state == "SCHEDULED":
        # One that waits for a slot is put off by a living worker every half minute. Those of a schedule are left
        # to it; an order of the monitor that was given up must not start as well as the one that followed it.
        is_given_up = run.parameters.get("attempt_id") and silence > limit
        return f"no worker took it for {_minutes(silence)}; the attempt was given up" if is_given_up else None
    process = run.labels.get(PROCESS_LABEL)
    is_alive = is_running(process) if isinstance(process, str) else None
    gone = None if is_alive is None else not is_alive
    if not is_dead(Run(state, run.created, run.start_time, run.state.timestamp, gone), now, limit):
        return None
    if gone:
        return f"its process ({process}) was killed: it runs no more"
    can_be_silent = state != "PENDING" and not _has_event(client, run, None, HEARTBEAT)
    quiet = max(limit, SILENT_WITHOUT_HEARTBEATS) if can_be_silent else limit
    if silence <= quiet or _has_event(client, run, now - quiet):
        return None
    if state == "PENDING":
        return f"taken {_minutes(silence)} ago and never begun: its worker died or could not start it"
    return f"no sign of life for more than {_minutes(quiet)}: its process was killed, or its machine is away"


def _has_event(client: SyncPrefectClient, run: FlowRun, since: datetime | None, *kinds: str) -> bool:
    """Whether an event of a kind, all signs of life by default, tells of the run or of a task of it."""
    from prefect.events.filters import (
        EventAnyResourceFilter,
        EventFilter,
        EventNameFilter,
        EventOccurredFilter,
    )

    now = datetime.now(UTC)
    begin = since or run.start_time or run.created or now
    wanted = EventFilter(
        any_resource=EventAnyResourceFilter(id=[f"prefect.flow-run.{run.id}"]),
        occurred=EventOccurredFilter.model_validate({"since": begin, "until": now}),
        event=EventNameFilter(prefix=list(kinds or SIGNS_OF_LIFE)),
    )
    return bool(client.read_events(filter=wanted, limit=1).events)


def _close(client: SyncPrefectClient, run: FlowRun, why: str) -> bool:
    """Give a dead run its end, unless its state has changed since it was read."""
    from prefect.exceptions import ObjectNotFound
    from prefect.states import Cancelled, Crashed

    assert run.state is not None
    try:
        now = client.read_flow_run(run.id)
    except ObjectNotFound:  # somebody deleted it
        return False
    if now.state is None or now.state.id != run.state.id:
        return False
    is_crash = run.state.type.value == "RUNNING"
    end: State[Any] = (Crashed if is_crash else Cancelled)(message=f"closed by the monitor: {why}")
    client.set_flow_run_state(run.id, end, force=True)
    if run.deployment_id is not None:
        _restore_slots(client, run.deployment_id)
    return True


def _restore_slots(client: SyncPrefectClient, deployment_id: UUID) -> None:
    """Take back the slots of living runs that the end of a dead one gave away.

    The server frees a dead run's slot some 300 s after its last sign, and frees one again when the run gets its end:
    by then that of the run which took its place.
    """
    from prefect.client.schemas.filters import DeploymentFilter, DeploymentFilterId, FlowRunFilter

    limit = client.read_deployment(deployment_id).global_concurrency_limit
    if limit is None:
        return
    living = client.read_flow_runs(
        deployment_filter=DeploymentFilter(id=DeploymentFilterId(any_=[deployment_id])),
        flow_run_filter=FlowRunFilter(state=_in_states(*BEGUN)),
        limit=PAGE_RUNS,
    )
    lost = min(len(living), limit.limit) - int(limit.active_slots)
    if lost > 0:
        client.increment_concurrency_slots([limit.name], lost, "concurrency")


def _minutes(time: timedelta) -> str:
    return f"{time.total_seconds() / 60:.0f} minutes"
