"""Dead flow runs get their end on a real Prefect server, and living ones are never touched."""

import contextlib
import sqlite3
import time
import uuid
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tasks import flow_runs
from tasks.flow_runs import HEARTBEAT, PROCESS_LABEL, close_dead_runs, waiting_orders
from tasks.processes import process_name

pytestmark = [pytest.mark.prefect, pytest.mark.usefixtures("prefect_server")]
LIMIT = timedelta(minutes=30)
HOUR = timedelta(hours=1)


@pytest.fixture
def client() -> Iterator[Any]:
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as opened:
        yield opened


@pytest.fixture
def deployed(client: Any) -> uuid.UUID:
    """A training deployment in our work pool with one slot."""
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    with contextlib.suppress(ObjectAlreadyExists):
        client.create_work_pool(WorkPoolCreate(name="warpgauge", type="process"))
    flow_id = client.create_flow_from_name("train-latency")
    return uuid.UUID(
        str(
            client.create_deployment(
                flow_id=flow_id,
                name=f"train-latency-{uuid.uuid4().hex[:6]}",
                work_pool_name="warpgauge",
                concurrency_limit=1,
                parameter_openapi_schema={"type": "object", "properties": {}},
                enforce_parameter_schema=False,
            )
        )
    )


@pytest.fixture
def begin(client: Any, beats: list[str]) -> Iterator[Callable[..., Any]]:
    """Make a run and bring it to a state, as of some time ago; all are over at the end."""
    from prefect.client.schemas.objects import State, StateType
    from prefect.states import Cancelled

    made = []

    def make(
        state: str,
        ago: timedelta = HOUR,
        *,
        flow: str = "train-latency",
        deployment: uuid.UUID | None = None,
        process: str | None = None,
        beats_ago: timedelta | None = None,
        **parameters: Any,
    ) -> Any:
        begun_at = datetime.now(UTC) - ago
        scheduled = State(
            type=StateType.SCHEDULED, timestamp=begun_at, state_details={"scheduled_time": begun_at}
        )
        if deployment is not None:
            run = client.create_flow_run_from_deployment(deployment, state=scheduled, parameters=parameters)
        else:
            flow_id = client.create_flow_from_name(flow)
            body = {"flow_id": str(flow_id), "parameters": parameters, "state": {"type": "SCHEDULED"}}
            run = client.read_flow_run(
                uuid.UUID(client.request("POST", "/flow_runs/", json=body).json()["id"])
            )
        made.append(run.id)
        for step in {"SCHEDULED": (), "PENDING": ("PENDING",)}.get(state, ("PENDING", state)):
            client.set_flow_run_state(run.id, State(type=StateType(step)))
        if process is not None:
            client.update_flow_run_labels(run.id, {PROCESS_LABEL: process})
        if beats_ago is not None:
            beat(run.id, beats_ago)
        put_back(run.id, ago)
        return client.read_flow_run(run.id)

    def beat(run_id: uuid.UUID, ago: timedelta) -> None:
        resource = {"prefect.resource.id": f"prefect.flow-run.{run_id}"}
        occurred = (datetime.now(UTC) - ago).isoformat()
        event = {"event": HEARTBEAT, "occurred": occurred, "resource": resource, "id": str(uuid.uuid4())}
        client.request("POST", "/events", json=[event]).raise_for_status()
        beats.append(str(event["id"]))

    yield make
    for run_id in made:
        client.set_flow_run_state(run_id, Cancelled(), force=True)


def put_back(run_id: uuid.UUID, ago: timedelta) -> None:
    """Make a run and its state older than they are, in the server's own database: its API keeps the time itself."""
    from prefect.settings import get_current_settings

    url = get_current_settings().server.database.connection_url.get_secret_value()
    then = (datetime.now(UTC) - ago).strftime("%Y-%m-%d %H:%M:%S.%f")
    with contextlib.closing(sqlite3.connect(url.partition("///")[2], timeout=30)) as database, database:
        columns = (
            "created",
            "start_time",
            "expected_start_time",
            "next_scheduled_start_time",
            "state_timestamp",
        )
        for column in columns:
            database.execute(
                f"UPDATE flow_run SET {column} = ? WHERE id = ? AND {column} IS NOT NULL", (then, str(run_id))
            )
        database.execute(
            "UPDATE flow_run_state SET timestamp = ? WHERE id = (SELECT state_id FROM flow_run WHERE id = ?)",
            (then, str(run_id)),
        )


def gone() -> str:
    """Name of a process of this machine that runs no more."""
    machine, process, started = process_name().split("/")
    return f"{machine}/{process}/{int(started) - 1}"


@pytest.fixture
def beats() -> list[str]:
    """Ids of the heartbeats that were sent."""
    return []


@pytest.fixture
def closed(client: Any, beats: list[str]) -> Callable[..., set[str]]:
    """Names of the runs that are closed, once the server has kept all heartbeats, which takes it some seconds."""

    def close(*alive: str) -> set[str]:
        since = (datetime.now(UTC) - 200 * HOUR).isoformat()
        wanted = {"id": {"id": beats}, "occurred": {"since": since, "until": datetime.now(UTC).isoformat()}}
        for _ in range(200):
            found = client.request("POST", "/events/filter", json={"filter": wanted, "limit": 50}).json()
            if not beats or len(found["events"]) == len(beats):
                return {one["name"] for one in close_dead_runs(LIMIT, alive)}
            time.sleep(0.1)
        pytest.fail("the server did not keep the heartbeats in 20 s")

    return close


def test_run_whose_process_was_killed_is_crashed_with_the_reason(client: Any, begin: Any) -> None:
    dead = begin("RUNNING", timedelta(seconds=5), process=gone())
    (said,) = close_dead_runs(LIMIT)
    assert (said["what"], said["name"]) == ("flow run", dead.name)
    state = client.read_flow_run(dead.id).state
    assert state.type.value == "CRASHED"
    assert state.message == f"closed by the monitor: its process ({gone()}) was killed: it runs no more"
    assert close_dead_runs(LIMIT) == []


def test_living_runs_are_never_touched(client: Any, begin: Any, deployed: uuid.UUID, closed: Any) -> None:
    begin("RUNNING", 100 * HOUR, process=process_name())  # lives here, however silent
    begin(
        "RUNNING", 3 * HOUR, process="other:1/2/3", beats_ago=timedelta(minutes=1)
    )  # a long training elsewhere
    begin("RUNNING", timedelta(minutes=5), process="other:1/2/3")  # began just now
    begin("RUNNING", 3 * HOUR, process="other:1/2/3")  # its heartbeats are switched off
    begin("PENDING", timedelta(minutes=5), deployment=deployed)
    held = begin("RUNNING", 100 * HOUR, process="other:1/2/3", beats_ago=10 * HOUR)
    assert closed(str(held.id)) == set()
    assert closed() == {held.name}


def test_run_that_fell_silent_is_crashed(client: Any, begin: Any, deployed: uuid.UUID, closed: Any) -> None:
    elsewhere = begin("RUNNING", 3 * HOUR, process="other:1/2/3", beats_ago=HOUR)
    never_beat = begin("RUNNING", 30 * HOUR, process="other:1/2/3")
    unsigned = begin("RUNNING", 3 * HOUR, deployment=deployed, beats_ago=HOUR)
    assert closed() == {elsewhere.name, never_beat.name, unsigned.name}
    messages = [client.read_flow_run(run.id).state.message for run in (elsewhere, never_beat)]
    assert "no sign of life for more than 30 minutes" in messages[0]
    assert "no sign of life for more than 1440 minutes" in messages[1]


def test_run_that_was_taken_and_never_begun_is_cancelled(
    client: Any, begin: Any, deployed: uuid.UUID, closed: Any
) -> None:
    stuck = begin("PENDING", HOUR, deployment=deployed)
    stopping = begin("CANCELLING", HOUR, process=gone())
    assert closed() == {stuck.name, stopping.name}
    states = [client.read_flow_run(run.id).state for run in (stuck, stopping)]
    assert [state.type.value for state in states] == ["CANCELLED", "CANCELLED"]
    assert "taken 60 minutes ago and never begun" in states[0].message
    # Its slot is free again.
    assert client.read_deployment(deployed).global_concurrency_limit.active_slots == 0


def test_order_that_nobody_took_is_cancelled_when_the_monitor_gave_it_up(
    client: Any, begin: Any, deployed: uuid.UUID, closed: Any
) -> None:
    given_up = begin("SCHEDULED", HOUR, deployment=deployed, attempt_id="episode/1")
    begin("SCHEDULED", timedelta(minutes=5), deployment=deployed, attempt_id="episode/2")
    begin("SCHEDULED", HOUR, deployment=deployed)  # of a schedule
    assert closed() == {given_up.name}
    assert "no worker took it for 60 minutes" in client.read_flow_run(given_up.id).state.message


def test_orders_that_wait_on_the_server_count_as_running(begin: Any, deployed: uuid.UUID) -> None:
    begin("SCHEDULED", timedelta(minutes=5), deployment=deployed, attempt_id="e/1", model_name="latency-gemm")
    begin("PENDING", timedelta(minutes=1), deployment=deployed, attempt_id="e/2", model_name="launch-latency")
    begin("SCHEDULED", HOUR, deployment=deployed, attempt_id="e/3")  # given up
    begin("SCHEDULED", timedelta(minutes=5), deployment=deployed)  # nobody's order
    begin(
        "RUNNING", timedelta(minutes=1), process=process_name(), attempt_id="e/4"
    )  # keeps its attempt itself
    waiting = {one["attempt_id"]: one for one in waiting_orders()}
    assert {name: one["model_name"] for name, one in waiting.items()} == {
        "e/1": "latency-gemm",
        "e/2": "launch-latency",
    }
    assert {one["outcome"] for one in waiting.values()} == {"running"}
    assert all(one["started_at"].tzinfo is not None for one in waiting.values())


def test_runs_of_others_are_not_looked_at(begin: Any, closed: Any) -> None:
    begin("RUNNING", 100 * HOUR)  # of our flow's name, started on this server by somebody else
    begin("RUNNING", 100 * HOUR, flow="another-teams-flow", process=gone())
    begin("COMPLETED", 100 * HOUR, process=gone())
    assert closed() == set()


def test_slot_of_the_run_that_took_the_place_of_a_dead_one_stays_taken(
    client: Any, begin: Any, deployed: uuid.UUID, closed: Any
) -> None:
    def taken() -> int:
        return int(client.read_deployment(deployed).global_concurrency_limit.active_slots)

    dead = begin("RUNNING", 2 * HOUR, deployment=deployed, beats_ago=HOUR)
    assert taken() == 1
    # As the server does 300 s after a dead run's last sign.
    limit = client.read_deployment(deployed).global_concurrency_limit
    client.release_concurrency_slots([limit.name], 1, 1.0)
    begin("RUNNING", timedelta(minutes=1), deployment=deployed)
    assert taken() == 1
    assert closed() == {dead.name}
    assert taken() == 1


def test_run_signs_itself_and_leaves_itself_alone(client: Any, closed: Any) -> None:
    from prefect import flow

    @flow(name="monitor")
    def monitor() -> tuple[str | None, set[str]]:
        flow_runs.sign()
        return flow_runs.current_id(), closed()

    mine, others = monitor()
    assert others == set()
    assert client.read_flow_run(uuid.UUID(mine)).labels[PROCESS_LABEL] == process_name()
    assert flow_runs.current_id() is None


def test_state_that_changed_since_it_was_read_is_left(
    client: Any, begin: Any, monkeypatch: pytest.MonkeyPatch, closed: Any
) -> None:
    from prefect.states import Completed

    run = begin("RUNNING", timedelta(seconds=5), process=gone())
    whole = flow_runs._death

    def ended(one: Any, *arguments: Any) -> Any:
        client.set_flow_run_state(run.id, Completed(), force=True)
        return whole(one, *arguments)

    monkeypatch.setattr(flow_runs, "_death", ended)
    assert closed() == set()
    assert client.read_flow_run(run.id).state.type.value == "COMPLETED"
