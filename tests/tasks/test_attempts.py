"""What became of the retrainings that the monitor asked for."""

import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from tasks import attempts, leases, tracking
from tasks.tracking import connect
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
    assert "nobody holds" in run.data.tags["why"]


def test_attempt_that_ends_while_the_list_is_made_keeps_its_end(
    registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with attempts.attempt(LAUNCH_LATENCY, "episode/1") as attempt:

        def ended_and_free(job: str) -> bool:
            attempt.end("promoted", "better")
            return False

        monkeypatch.setattr(leases, "is_held", ended_and_free)
        assert [row["outcome"] for row in attempts.list_attempts()] == ["promoted"]


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
