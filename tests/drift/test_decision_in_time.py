"""Stamps that are late, early or ahead, gaps, what a person is told, and how a person's answer arms a signal again."""

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from warpgauge.drift.decision import (
    ALERT_CAUSES,
    Champion,
    Context,
    Decision,
    Retraining,
    decide,
)
from warpgauge.drift.measurement import Measurement
from warpgauge.drift.policy import Policy
from warpgauge.drift.signal_state import SignalState, latest_states
from warpgauge.errors import WindowError
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY
from warpgauge.tables import DECISIONS

START = datetime(2026, 1, 1, tzinfo=UTC)
CHAMPIONS = {LAUNCH_LATENCY: Champion("1"), DOC_QUALITY: Champion("1")}


def at(minutes: float) -> datetime:
    return START + timedelta(minutes=minutes)


def load(value: float | None, measured_at: datetime | None = None, cause: str = "too few") -> Measurement:
    if value is None:
        made = Measurement.cannot_say("utilization_p95", "GPU-1", cause, "nothing")  # type: ignore[arg-type]
    else:
        made = Measurement.measured(
            "utilization_p95", "GPU-1", value, limit=92.0, sample_count=60, reason="r"
        )
    return replace(made, measured_at=measured_at)


def shift(value: float) -> Measurement:
    return Measurement.measured("embedding_shift", DOC_QUALITY, value, limit=1.0, sample_count=60, reason="r")


class Story:
    """One signal's decisions, one after the other, over text as between two runs."""

    def __init__(self, policy: Policy | None = None) -> None:
        self.policy = policy or Policy()
        self.context = Context(CHAMPIONS)
        self.states: dict[tuple[str, str], SignalState] = {}

    def tell(self, minutes: float, measurement: Measurement) -> Decision:
        (decision,) = decide([measurement], self.states, self.policy, at(minutes), self.context)
        key = (decision.signal, decision.subject)
        self.states[key] = SignalState.from_json(decision.state.to_json())
        return decision

    def ended(self, outcome: str, attempt_id: str | None, started: float = 0.0) -> None:
        assert attempt_id is not None
        self.context = replace(
            self.context,
            retrainings=(
                *self.context.retrainings,
                Retraining(
                    LAUNCH_LATENCY if attempt_id.startswith("util") else DOC_QUALITY,
                    attempt_id,
                    at(started),
                    outcome,
                ),  # type: ignore[arg-type]
            ),
        )


def test_measurement_that_is_delivered_again_later_changes_nothing() -> None:
    story = Story()
    first = story.tell(0, load(97.0, at(0)))
    assert first.action == "retrain"
    again = story.tell(7, load(97.0, at(0)))
    assert (again.action, again.state) == ("none", first.state)
    assert "nothing new" in again.reason


def test_late_and_out_of_order_measurements_change_nothing() -> None:
    story = Story(Policy(rearm_minutes=20))
    story.tell(0, load(97.0, at(0)))
    before = story.tell(10, load(80.0, at(10))).state
    for stamp in (9, 0, -500):
        late = story.tell(11, load(99.0, at(stamp)))
        assert (late.action, late.state) == ("none", before)


def test_measurement_from_the_future_says_nothing_and_does_not_deafen_the_signal() -> None:
    story = Story()
    early = story.tell(0, load(97.0, at(60 * 24 * 365)))
    assert early.action == "wait"
    assert "measured in the future" in early.reason
    assert early.state == SignalState()
    assert story.tell(1, load(97.0, at(1))).action == "retrain"


def test_clock_a_few_minutes_ahead_is_borne() -> None:
    assert Story().tell(0, load(97.0, at(4))).action == "retrain"


def test_state_of_a_monitor_whose_clock_is_a_year_ahead_bars_nobody() -> None:
    ahead = Story()
    far = ahead.tell(60 * 24 * 365, load(80.0))
    story = Story()
    story.states = dict(ahead.states)
    assert story.tell(0, load(97.0)).action == "retrain"
    rows = DECISIONS.conform(__import__("polars").DataFrame([far.row("run", at(60 * 24 * 365))]))
    assert latest_states(rows, not_after=at(60 * 24)) == {}
    assert len(latest_states(rows)) == 1


def test_monitor_whose_clock_is_an_hour_behind_does_not_decide_again() -> None:
    story = Story()
    story.tell(60, load(97.0))
    behind = story.tell(0, load(97.0))
    assert behind.action == "none"
    assert "already decided" in behind.reason


def test_start_stamped_a_year_ahead_does_not_bar_the_model_until_then() -> None:
    story = Story()
    story.ended("promoted", "utilization_p95-x/1", started=60 * 24 * 365)
    assert story.tell(0, load(97.0)).action == "retrain"


def test_day_without_a_measurement_is_not_a_day_of_quiet() -> None:
    story = Story(Policy(rearm_minutes=200, gap_minutes=90))
    first = story.tell(0, load(97.0))
    story.ended("refused", first.attempt_id)
    story.tell(5, load(80.0))
    later = story.tell(5 + 24 * 60, load(80.0))
    assert later.state.quiet_minutes == 90
    assert later.state.is_open


def test_episode_that_waits_for_its_cool_down_is_cooling_and_then_acts() -> None:
    story = Story(Policy(cooldown_minutes=60))
    first = story.tell(0, load(97.0))
    story.ended("failed", first.attempt_id)
    waiting = story.tell(10, load(97.0))
    assert (waiting.action, waiting.state.phase) == ("wait", "cooling")
    assert "cool-down" in waiting.reason
    again = story.tell(60, load(97.0))
    assert (again.action, again.state.phase) == ("retrain", "acting")
    assert again.attempt_id != first.attempt_id


def test_spent_budget_is_told_once_an_episode() -> None:
    story = Story(Policy(daily_budget=0))
    causes = [story.tell(minute, load(97.0)).alert_cause for minute in range(0, 30, 5)]
    assert causes == ["budget_spent", None, None, None, None, None]


def test_three_failures_are_told_once() -> None:
    story = Story(Policy(cooldown_minutes=0))
    told = []
    for minute in range(0, 60, 5):
        decision = story.tell(minute, load(97.0))
        told.append(decision.alert_cause)
        if decision.action == "retrain":
            story.ended("failed", decision.attempt_id, minute)
    assert [cause for cause in told if cause] == ["retraining_failed"]
    assert story.states["utilization_p95", "GPU-1"].phase == "human"


def test_champion_of_a_persons_own_arms_the_signal_again() -> None:
    story = Story(Policy(cooldown_minutes=0, failure_limit=1))
    first = story.tell(0, load(97.0))
    story.ended("failed", first.attempt_id)
    assert story.tell(5, load(97.0)).state.phase == "human"
    assert story.tell(10, load(97.0)).action == "none"
    story.context = replace(story.context, champions={**CHAMPIONS, LAUNCH_LATENCY: Champion("7")})
    again = story.tell(15, load(97.0))
    assert again.action == "retrain"
    assert again.episode_id != first.episode_id


def test_labels_that_came_back_arm_the_signal_again_and_older_ones_do_not() -> None:
    story = Story(Policy(cooldown_minutes=0))
    first = story.tell(0, shift(3.0))
    assert (first.action, first.also_review, first.alert_cause) == ("retrain", True, "review_due")
    story.ended("refused", first.attempt_id)
    assert story.tell(5, shift(3.0)).action == "none"
    story.context = replace(story.context, answered_reviews={DOC_QUALITY: at(-1)})
    assert story.tell(10, shift(3.0)).action == "none"
    story.context = replace(story.context, answered_reviews={DOC_QUALITY: at(12)})
    assert story.tell(15, shift(3.0)).action == "retrain"


def test_broken_signal_is_told_once_after_its_time_and_again_when_it_broke_anew() -> None:
    story = Story(Policy(blind_minutes=60))
    told = [story.tell(minute, load(None, cause="degenerate")).alert_cause for minute in range(0, 150, 30)]
    assert told == [None, None, "monitor_blind", None, None]
    assert story.tell(150, load(80.0)).alert_cause is None
    told = [story.tell(minute, load(None, cause="degenerate")).alert_cause for minute in range(180, 300, 30)]
    assert told == [None, None, "monitor_blind", None]


@pytest.mark.parametrize("cause", ["too few", "no samples", "no champion"])
def test_signal_that_waits_for_rows_is_not_broken(cause: str) -> None:
    story = Story(Policy(blind_minutes=0))
    assert {story.tell(m, load(None, cause=cause)).alert_cause for m in range(0, 600, 60)} == {None}


def test_state_of_the_first_release_is_read() -> None:
    old = {
        "phase": "acknowledged",
        "episode_id": "e",
        "opened_at": at(0).isoformat(),
        "tripped_minutes": 0.0,
        "quiet_minutes": 0.0,
        "last_reading": "tripped",
        "decided_at": at(0).isoformat(),
        "attempt_id": "e/1",
        "attempted_at": at(0).isoformat(),
        "outcome": "refused",
        "failure_count": 0,
        "is_reviewed": False,
        "starts": {"e/1": at(0).isoformat()},
    }
    state = SignalState.from_json(json.dumps(old))
    assert (state.phase, state.asked_at, state.alerted) == ("acknowledged", None, ())
    assert SignalState.from_json(state.to_json()) == state


def test_every_alert_is_one_of_the_named_causes_and_in_the_row() -> None:
    decision = Story(Policy(daily_budget=0)).tell(0, load(97.0))
    assert decision.alert_cause in ALERT_CAUSES
    assert decision.row("run", at(0))["alert_cause"] == "budget_spent"


def test_measurement_without_a_zone_is_refused() -> None:
    with pytest.raises(WindowError, match="no time zone"):
        load(97.0, datetime(2026, 1, 1))
