import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from warpgauge.drift.liveness import Run, is_dead, is_one_running, silent_for
from warpgauge.errors import SettingsError

NOW = datetime(2026, 1, 1, tzinfo=UTC)
LIMIT = timedelta(minutes=30)


def minutes_ago(minutes: float) -> datetime:
    return NOW - timedelta(minutes=minutes)


@pytest.fixture
def six_runs(cases: Path) -> dict[str, Run]:
    document = json.loads((cases / "12-zombie-running-blocks-retraining" / "runs.json").read_text())
    assert datetime.fromisoformat(document["now"]) == NOW

    def moment(record: dict[str, Any], name: str) -> datetime | None:
        return datetime.fromisoformat(record[name]) if record.get(name) else None

    return {
        record["name"]: Run(
            record["state_type"],
            created_at=moment(record, "created"),
            started_at=moment(record, "start_time"),
            last_sign_at=moment(record, "last_task_event"),
        )
        for record in document["runs"]
    }


def test_killed_and_never_begun_runs_are_dead_and_long_living_ones_are_not(six_runs: dict[str, Run]):
    assert {name for name, run in six_runs.items() if is_dead(run, NOW, LIMIT)} == {"r1", "r3"}
    assert is_one_running(six_runs.values(), NOW, LIMIT)
    without = {name: run for name, run in six_runs.items() if name not in ("r2", "r6")}
    assert not is_one_running(without.values(), NOW, LIMIT)
    for name in ("r2", "r6"):
        assert is_one_running([six_runs[name]], NOW, LIMIT)


def test_process_that_is_gone_or_lives_outweighs_every_clock():
    fresh = Run("RUNNING", started_at=minutes_ago(1), last_sign_at=NOW, is_process_gone=True)
    assert is_dead(fresh, NOW, LIMIT)
    silent = Run("RUNNING", started_at=minutes_ago(10_000), is_process_gone=False)
    assert not is_dead(silent, NOW, LIMIT)


@pytest.mark.parametrize("state", ["COMPLETED", "FAILED", "CANCELLED", "CRASHED", "SCHEDULED", "PAUSED"])
def test_run_that_is_over_or_was_not_taken_is_not_dead(state: str):
    old = Run(state, created_at=minutes_ago(10_000), started_at=minutes_ago(9_999), is_process_gone=True)
    assert not is_dead(old, NOW, LIMIT)
    assert not is_one_running([old], NOW, LIMIT)


@pytest.mark.parametrize("state", ["RUNNING", "CANCELLING", "PENDING"])
def test_silence_is_death_from_one_moment_on(state: str):
    run = Run(state, created_at=minutes_ago(500), last_sign_at=minutes_ago(30))
    assert not is_dead(run, NOW, LIMIT)
    assert is_dead(run, NOW + timedelta(microseconds=1), LIMIT)


def test_any_fresh_sign_is_a_sign_of_life():
    run = Run("RUNNING", created_at=minutes_ago(500))
    assert is_dead(run, NOW, LIMIT)
    assert not is_dead(replace(run, started_at=minutes_ago(5)), NOW, LIMIT)
    assert not is_dead(replace(run, last_sign_at=minutes_ago(5)), NOW, LIMIT)


def test_sign_of_a_wrong_clock_neither_holds_a_run_for_ever_nor_kills_it():
    run = Run("RUNNING", started_at=minutes_ago(500), last_sign_at=minutes_ago(-10_000))
    assert is_dead(run, NOW, LIMIT)
    assert silent_for(replace(run, last_sign_at=minutes_ago(-3)), NOW, LIMIT) == timedelta(0)
    only_ahead = Run("RUNNING", started_at=minutes_ago(-10_000))
    assert silent_for(only_ahead, NOW, LIMIT) is None
    assert not is_dead(only_ahead, NOW, LIMIT)


def test_run_of_which_no_time_is_known_is_not_dead():
    assert not is_dead(Run("RUNNING"), NOW, LIMIT)


def test_times_without_a_zone_and_limits_of_nothing_are_refused():
    run = Run("RUNNING", started_at=minutes_ago(1))
    with pytest.raises(SettingsError, match="zone"):
        is_dead(replace(run, last_sign_at=datetime(2026, 1, 1)), NOW, LIMIT)
    with pytest.raises(SettingsError, match="zone"):
        is_dead(Run("RUNNING", started_at=datetime(2026, 1, 1)), NOW.replace(tzinfo=None), LIMIT)
    with pytest.raises(SettingsError, match="positive"):
        is_dead(run, NOW, timedelta(0))
