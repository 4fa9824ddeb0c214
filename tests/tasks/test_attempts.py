"""What became of the retrainings that the monitor asked for."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from tasks import attempts, flow_runs, leases, tracking
from tasks.processes import process_name
from tasks.tracking import connect
from warpgauge.errors import ServiceUnavailableError
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY
from warpgauge.settings import PROJECT_ROOT


def test_attempt_keeps_how_it_ended(registry: Path) -> None:
    for outcome in ("promoted", "held", "refused"):
        with attempts.attempt(LAUNCH_LATENCY, f"episode/{outcome}") as attempt:
            attempt.end(outcome, "because")
    with pytest.raises(ValueError, match="broken"), attempts.attempt(DOC_QUALITY, "episode/failed"):
        raise ValueError("broken data")
    found = attempts.list_attempts()
    assert {row["attempt_id"].split("/")[1]: row["outcome"] for row in found} == {
        outcome: outcome for outcome in ("promoted", "held", "refused", "failed")
    }
    assert found[0]["model_name"] == DOC_QUALITY
    now = datetime.now(UTC)
    assert all(now - timedelta(minutes=5) < row["started_at"] <= now for row in found)
    assert attempts.list_attempts() == found


def test_attempt_that_ended_keeps_its_end_whatever_fails_after_it(registry: Path) -> None:
    with (
        pytest.raises(ValueError, match="table"),
        attempts.attempt(LAUNCH_LATENCY, "episode/1") as attempt,
    ):
        _end_and_fail(attempt)
    assert [row["outcome"] for row in attempts.list_attempts()] == ["promoted"]


def _end_and_fail(attempt: attempts.Attempt) -> None:
    attempt.end("promoted", "better")
    raise ValueError("the table of figures cannot be made")


def test_runs_that_a_person_tagged_wrongly_stop_nothing(registry: Path) -> None:
    client = connect()
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    client.create_run(experiment, tags={"attempt_id": "mine"})
    client.create_run(
        experiment, tags={"attempt_id": "e/1", "model_name": LAUNCH_LATENCY, "outcome": "superb"}
    )
    client.create_run(experiment, tags={"attempt_id": "e/2", "model_name": LAUNCH_LATENCY})
    assert [row["outcome"] for row in attempts.list_attempts()] == ["failed", "failed"]


def test_failure_before_an_attempt_began_is_kept_and_never_in_the_place_of_an_outcome(registry: Path) -> None:
    with attempts.attempt(LAUNCH_LATENCY, "episode/1") as attempt:
        attempt.end("held", "close")
    for number in (1, 2, 2):
        attempts.keep_failure(LAUNCH_LATENCY, f"episode/{number}", "its spec is gone")
    assert {row["attempt_id"]: (row["outcome"], row["why"]) for row in attempts.list_attempts()} == {
        "episode/1": ("held", "close"),
        "episode/2": ("failed", "its spec is gone"),
    }
    assert len(attempts.list_attempts()) == 2


def test_attempt_without_an_id_is_not_kept(registry: Path) -> None:
    with attempts.attempt(LAUNCH_LATENCY, None) as attempt:
        attempt.end("promoted", "")
    with pytest.raises(ValueError, match="x"), attempts.attempt(LAUNCH_LATENCY, None):
        raise ValueError("x")
    assert attempts.list_attempts() == []


def test_attempt_shows_its_own_error_even_where_the_store_is_gone_by_then(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (
        pytest.raises(ValueError, match="the first error"),
        attempts.attempt(LAUNCH_LATENCY, "episode/1"),
    ):
        _lose_store_and_fail(registry / "mlruns")


def _lose_store_and_fail(folder: Path) -> None:
    (folder / "mlflow.db").rename(folder / "lost.db")
    (folder / "mlflow.db").write_text("no database")
    raise ValueError("the first error")


KILLED_RETRAINING = """
import sys, time
from tasks import attempts, leases
from warpgauge.registry.names import LAUNCH_LATENCY
job = attempts.training_job(LAUNCH_LATENCY)
with leases.hold(job), attempts.attempt(LAUNCH_LATENCY, "episode/1"):
    print("started", flush=True)
    time.sleep(120)
"""


def test_killed_retraining_is_running_while_it_lives_and_failed_after(registry: Path) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED_RETRAINING],
        cwd=PROJECT_ROOT,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ},
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "started\n"
        assert [row["outcome"] for row in attempts.list_attempts()] == ["running"]
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(30)
    assert [row["outcome"] for row in attempts.list_attempts()] == ["failed"]
    run = connect().search_runs([connect().get_experiment_by_name(tracking.EXPERIMENT).experiment_id])[0]
    assert run.info.status == "FAILED"
    assert "no longer holds the lease" in run.data.tags["why"]


def test_attempt_that_ends_while_the_list_is_made_keeps_its_end(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = leases.list_leases
    with (
        leases.hold(attempts.training_job(LAUNCH_LATENCY)),
        attempts.attempt(LAUNCH_LATENCY, "episode/1") as attempt,
    ):

        def ended_and_free() -> list[leases.Lease]:
            attempt.end("promoted", "better")
            return []

        monkeypatch.setattr(leases, "list_leases", ended_and_free)
        assert [row["outcome"] for row in attempts.list_attempts()] == ["promoted"]
        monkeypatch.setattr(leases, "list_leases", whole)


def test_attempt_of_a_dead_holder_is_over_although_another_training_holds_the_lease_by_now(
    registry: Path,
) -> None:
    client = connect()
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    tags = {
        "model_name": LAUNCH_LATENCY,
        "attempt_id": "e/1",
        "outcome": "running",
        "holder": "other/1/2/dead",
    }
    run = client.create_run(experiment, tags=tags)
    with leases.hold(attempts.training_job(LAUNCH_LATENCY)):
        listed = {row["attempt_id"]: row["outcome"] for row in attempts.list_attempts()}
        assert listed.pop("e/1") == "failed"
        # The one that runs was ordered by nobody, and is listed all the same: one retraining at a time.
        assert listed == {leases.held_here(attempts.training_job(LAUNCH_LATENCY)): "running"}
    assert client.get_run(run.info.run_id).info.status == "FAILED"
    assert [row["attempt_id"] for row in attempts.list_attempts()] == ["e/1"]


def test_attempt_says_which_process_works_on_it(registry: Path) -> None:
    job = attempts.training_job(LAUNCH_LATENCY)
    with leases.hold(job), attempts.attempt(LAUNCH_LATENCY, "episode/1"):
        holder = leases.held_here(job)
    run = connect().search_runs([connect().get_experiment_by_name(tracking.EXPERIMENT).experiment_id])[0]
    assert run.data.tags["holder"] == holder
    assert run.data.tags["process"] == process_name()
    assert str(os.getpid()) in holder
    assert "flow_run_id" not in run.data.tags


# What killed processes left in MLflow


@pytest.fixture
def open_run(registry: Path) -> Callable[..., str]:
    """Make a run that is open, as a killed registration leaves it; its id."""

    def make(name: str, **tags: str) -> str:
        client = connect()
        experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
        return str(client.create_run(experiment, run_name=name, tags=tags).info.run_id)

    return make


def status(run_id: str) -> str:
    return str(connect().get_run(run_id).info.status)


def test_open_trainings_whose_lease_nobody_holds_are_closed_with_a_reason(open_run: Any) -> None:
    early = open_run("launch-latency 2026-11-30 10:00")  # killed before its tags were set
    tagged = open_run("any name", model_name="latency-gemm")
    trial = open_run("doc-quality trial 3", model_name=DOC_QUALITY, role="trial")
    others = [open_run("monitor", role="monitor"), open_run("somebody's experiment")]
    closed = attempts.close_dead_runs()
    assert sorted(one["name"] for one in closed) == [
        "any name",
        "doc-quality trial 3",
        "launch-latency 2026-11-30 10:00",
    ]
    for run in (early, tagged, trial):
        assert status(run) == "KILLED"
        assert "killed" in connect().get_run(run).data.tags["why"]
    assert [status(run) for run in others] == ["RUNNING", "RUNNING"]
    assert attempts.close_dead_runs() == []


def test_open_training_under_a_living_lease_is_never_touched(open_run: Any) -> None:
    with leases.hold(attempts.training_job(LAUNCH_LATENCY)):
        mine = open_run("launch-latency 2026-11-30 10:00")
        assert attempts.close_dead_runs() == []
        assert status(mine) == "RUNNING"
    alone = open_run("launch-latency 2026-11-30 11:00", process=process_name())
    attempts.close_dead_runs()
    assert (status(mine), status(alone)) == ("KILLED", "RUNNING")


def test_next_training_closes_what_a_killed_one_left(open_run: Any) -> None:
    left = open_run("launch-latency 2026-11-30 10:00", holder="other/1/2/dead")
    with leases.hold(attempts.training_job(LAUNCH_LATENCY)), attempts.attempt(LAUNCH_LATENCY, None):
        assert status(left) == "KILLED"


def test_service_that_is_away_leaves_its_part_for_the_next_time(
    open_run: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    left = open_run("launch-latency 2026-11-30 10:00")

    def away(*_: object) -> list[dict[str, str]]:
        raise ServiceUnavailableError("Prefect is away")

    monkeypatch.setattr(flow_runs, "close_dead_runs", away)
    assert [one["what"] for one in attempts.close_dead_runs()] == ["MLflow run"]
    assert status(left) == "KILLED"
    assert "Prefect is away" in caplog.text


def test_newest_attempts_come_first_where_there_are_more_than_a_page(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(attempts, "PAGE_ROWS", 3)
    client = connect()
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    for number in range(7):
        tags = {"model_name": LAUNCH_LATENCY, "attempt_id": f"episode/{number}", "outcome": "held"}
        client.create_run(experiment, start_time=1_700_000_000_000 + number, tags=tags)
    assert [row["attempt_id"] for row in attempts.list_attempts()] == [
        "episode/6",
        "episode/5",
        "episode/4",
    ]
