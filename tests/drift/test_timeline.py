"""The past out of rows of decisions: extremes kept, gaps kept apart, retrainings and episodes told."""

import json
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from tests.fakes import ROUNDS_BEGIN, decision_row
from warpgauge.drift.decision import Champion, Context, Policy, Retraining, decide
from warpgauge.drift.measurement import Measurement
from warpgauge.drift.timeline import SLOT_COUNT, Timeline, build_timeline, recent
from warpgauge.tables import DECISIONS

KEY = ("utilization_p95", "GPU-1")
Rows = Sequence[dict[str, Any]]


def history(rows: Rows, minutes: float | None = None) -> pl.DataFrame:
    frame = DECISIONS.conform(pl.DataFrame(list(rows), schema=DECISIONS.schema))
    end = frame["decided_at"].max() if minutes is None else ROUNDS_BEGIN + timedelta(minutes=minutes)
    return recent(frame.lazy(), end).collect()


def timeline(rows: Rows, attempts: Rows = (), minutes: float | None = None) -> Timeline:
    frame = history(rows, minutes)
    end = frame["decided_at"].max() if minutes is None else ROUNDS_BEGIN + timedelta(minutes=minutes)
    return build_timeline(frame, end, attempts)


def at(minutes: float):
    return ROUNDS_BEGIN + timedelta(minutes=minutes)


def test_one_round_is_one_slot_at_the_right_edge() -> None:
    found = timeline([decision_row(0, 97.0)])
    (slot,) = found.day[KEY]
    assert (slot.low, slot.high, slot.last, slot.limit) == (97, 97, 97, 92)
    assert (slot.round_count, slot.blind_count, slot.is_open) == (1, 0, False)
    assert slot.place == SLOT_COUNT - 1
    assert found.end - found.start == timedelta(hours=1)


def test_no_rows_are_an_empty_hour() -> None:
    found = build_timeline(history([], 0), at(0))
    assert (dict(found.day), list(found.episodes), found.is_changed) == ({}, [], True)
    assert found.end - found.start == timedelta(hours=1)


def test_a_month_of_rounds_keeps_the_one_extreme_and_the_one_that_could_not_say() -> None:
    rows = [decision_row(5 * number, 50 + number % 7) for number in range(8640)]
    rows[4000] = decision_row(5 * 4000, 99.5)
    rows[6000] = decision_row(5 * 6000, None)
    found = timeline(rows)
    slots = found.month[KEY]
    assert len(slots) == SLOT_COUNT
    assert sum(slot.round_count for slot in slots) == 8640
    assert [slot.high for slot in slots if slot.high and slot.high > 60] == [99.5]
    assert min(slot.low for slot in slots if slot.low is not None) == 50
    assert sum(slot.blind_count for slot in slots) == 1
    assert [slot.place for slot in slots] == sorted({slot.place for slot in slots})
    assert sum(slot.round_count for slot in found.day[KEY]) == 289


def test_rows_older_than_the_history_or_of_a_later_round_are_left_out() -> None:
    rows = [decision_row(-60 * 24 * 31, 1.0), decision_row(0, 2.0), decision_row(60, 3.0)]
    found = timeline(rows, minutes=30)
    assert [slot.last for slot in found.month[KEY]] == [2.0]


def test_a_slot_without_a_number_is_none_and_not_zero() -> None:
    (slot,) = timeline([decision_row(0, None)]).day[KEY]
    assert (slot.low, slot.high, slot.last, slot.blind_count) == (None, None, None, 1)


def test_numbers_that_are_not_finite_are_none() -> None:
    found = timeline([decision_row(0, float("nan")), decision_row(5, float("inf"), subject="GPU-2")])
    assert [found.day[name, gpu][0].low for name, gpu in (KEY, ("utilization_p95", "GPU-2"))] == [None, None]


@pytest.mark.parametrize("state", ["", "no JSON", "[]", '{"since": "long ago"}', '{"phase": 3}', "null"])
def test_states_of_other_versions_tell_what_they_can(state: str) -> None:
    rows = [
        decision_row(0, 97.0, episode_id="e1", state=None) | {"state": state},
        decision_row(5, 97.0, phase="firing", episode_id="e1"),
    ]
    (episode,) = timeline(rows).episodes
    assert (episode.opened_at, episode.phase, episode.closed_at) == (at(0), "firing", None)
    assert (episode.attempts, episode.outcome, episode.failure_count) == ((), None, 0)


def test_state_without_spaces_or_with_other_fields_is_read() -> None:
    state = json.dumps(
        {"failure_count": 2, "phase": "firing", "attempt_id": "e1/2", "new": [1]}, separators=(",", ":")
    )
    (episode,) = timeline([decision_row(0, 97.0, episode_id="e1") | {"state": state}]).episodes
    assert (episode.phase, episode.attempts, episode.failure_count) == ("firing", ("e1/2",), 2)


class World:
    """Rounds of the real decision, every five minutes, with a scripted world."""

    def __init__(self) -> None:
        self.states: dict[tuple[str, str], Any] = {}
        self.rows: list[dict[str, Any]] = []
        self.attempts: list[dict[str, Any]] = []

    def round(self, minutes: float, value: float | None) -> None:
        measurement = (
            Measurement.cannot_say(*KEY, "too few", "3 of 50", limit=92.0)
            if value is None
            else Measurement.measured(*KEY, value, limit=92, sample_count=60, reason=f"p95 {value:g} %")
        )
        known = tuple(
            Retraining(one["model_name"], one["attempt_id"], one["started_at"], one["outcome"])
            for one in self.attempts
        )
        context = Context({"launch-latency": Champion("3")}, known)
        (made,) = decide([measurement], self.states, Policy(cooldown_minutes=0), at(minutes), context)
        self.states[KEY] = made.state
        self.rows.append(made.row(f"run-{minutes:g}", at(minutes)))
        if made.action == "retrain":
            self.attempts.append(
                {
                    "model_name": made.model_name,
                    "attempt_id": made.attempt_id,
                    "started_at": at(minutes),
                    "outcome": "running",
                    "wall_s": None,
                    "why": None,
                }
            )

    def end(self, outcome: str, wall_s: float = 240.0, why: str = "") -> None:
        self.attempts[-1].update(outcome=outcome, wall_s=wall_s, why=why)


def kinds(found: Timeline) -> list[tuple[str, float]]:
    return [(one.kind, (one.at - ROUNDS_BEGIN) / timedelta(minutes=1)) for one in found.markers.get(KEY, ())]


def test_an_episode_from_its_opening_to_its_end_is_told() -> None:
    world = World()
    for minutes in range(0, 60, 5):
        world.round(minutes, 97.0 if 10 <= minutes < 20 else 50.0)
        if minutes == 10:
            world.end("promoted")
    found = timeline(world.rows, world.attempts)
    (episode,) = found.episodes
    assert (episode.opened_at, episode.closed_at) == (at(10), at(50))
    assert (episode.outcome, len(episode.attempts), episode.failure_count) == ("promoted", 1, 0)
    assert kinds(found) == [("ordered", 10), ("promoted", 14)]
    assert [slot.is_open for slot in found.day[KEY]] == [False] * 2 + [True] * 9 + [False]


def test_how_retrainings_ended_is_told_by_the_states_where_the_store_of_runs_is_away() -> None:
    world = World()
    for minutes, outcome in ((0, "failed"), (5, "failed"), (10, "refused"), (15, None)):
        world.round(minutes, 97.0)
        if outcome:
            world.end(outcome)
    found = timeline(world.rows)
    assert sorted(kinds(found)) == [
        ("failed", 5),
        ("failed", 10),
        ("ordered", 0),
        ("ordered", 5),
        ("ordered", 10),
        ("refused", 15),
    ]
    (episode,) = found.episodes
    assert (episode.outcome, episode.failure_count, episode.closed_at) == ("refused", 2, None)


def test_a_retraining_that_outlives_its_episode_is_told_by_the_store_of_runs() -> None:
    world = World()
    for minutes in range(0, 65, 5):
        world.round(minutes, 97.0 if minutes == 0 else 50.0)
    world.end("held", wall_s=50 * 60, why="a slice got worse")
    found = timeline(world.rows, world.attempts)
    (episode,) = found.episodes
    assert (episode.closed_at is not None, episode.outcome) == (True, "held")
    assert kinds(found) == [("ordered", 0), ("held", 50)]
    assert found.markers[KEY][1].said.endswith("held: a slice got worse")


def test_an_open_episode_is_kept_through_what_cannot_be_said() -> None:
    world = World()
    for minutes, value in ((0, 97.0), (5, None), (10, None)):
        world.round(minutes, value)
    (episode,) = timeline(world.rows, world.attempts).episodes
    assert (episode.closed_at, episode.last_seen_at) == (None, at(10))
    assert "cannot say" in episode.reason


def test_an_episode_that_was_forgotten_is_over() -> None:
    rows = [decision_row(0, 97.0, phase="firing", episode_id="e1"), decision_row(60, 50.0)]
    (episode,) = timeline(rows).episodes
    assert episode.closed_at == at(0)


def test_an_episode_that_began_before_the_history_keeps_its_opening() -> None:
    opened = at(-60 * 24 * 40).isoformat()
    rows = [decision_row(0, 97.0, phase="human", episode_id="e1", state={"opened_at": opened})]
    (episode,) = timeline(rows).episodes
    assert (episode.opened_at, episode.phase) == (at(-60 * 24 * 40), "human")


@pytest.mark.parametrize(
    ("now", "is_changed"),
    [
        (decision_row(10, 60.0), False),
        (decision_row(10, 97.0, phase="pending"), True),
        (decision_row(10, 97.0, action="review"), True),
        (decision_row(10, None, alert_cause="monitor_blind"), True),
        (decision_row(10, None), False),
        (decision_row(10, 50.0, subject="GPU-2"), True),
        (decision_row(60 * 24, 50.0), True),
    ],
)
def test_a_round_is_news_where_a_phase_changed_something_was_done_or_a_day_began(
    now: dict[str, Any], is_changed: bool
) -> None:
    assert timeline([decision_row(0, 50.0), decision_row(5, 50.0), now]).is_changed is is_changed


def test_the_first_round_is_news() -> None:
    assert timeline([decision_row(0, 50.0)]).is_changed


def test_an_alert_beside_another_action_is_marked() -> None:
    rows = [decision_row(0, None, alert_cause="monitor_blind"), decision_row(5, 97.0, action="review")]
    assert kinds(timeline(rows)) == [("alerted", 0), ("asked", 5)]
