import json
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpgauge.drift.decision import Champion, Context, Decision, Retraining, decide
from warpgauge.drift.measurement import Measurement
from warpgauge.drift.policy import RULES, Policy
from warpgauge.drift.signal_state import SignalState, latest_states
from warpgauge.errors import SchemaError, SettingsError
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY
from warpgauge.tables import DECISIONS, SIGNALS

START = datetime(2026, 1, 1, tzinfo=UTC)
CHAMPIONS = {LAUNCH_LATENCY: Champion("3"), DOC_QUALITY: Champion("5")}


def reading(
    value: float | None, signal: str = "utilization_p95", subject: str = "GPU-a", limit: float = 92.0
):
    if value is None:
        return Measurement.cannot_say(signal, subject, "too few", "3 of 50", limit=limit)
    return Measurement.measured(signal, subject, value, limit=limit, sample_count=60, reason=f"{value:g}")


def residuals(value: float | None = 2.0) -> Measurement:
    return reading(value, "residuals", LAUNCH_LATENCY, 1.0)


def variance(value: float | None = 0.6) -> Measurement:
    return reading(value, "embedding_variance", DOC_QUALITY, 0.4)


def shift(value: float | None = 99.0) -> Measurement:
    return reading(value, "embedding_shift", DOC_QUALITY, 45.0)


class Monitor:
    """Runs the decision over time, as the flow does: it keeps the states, starts and ends retrainings."""

    def __init__(
        self, policy: Policy | None = None, outcome: str = "promoted", minutes: float = 40.0
    ) -> None:
        self.policy = policy or Policy()
        self.outcome = outcome
        self.minutes = minutes
        self.champions = dict(CHAMPIONS)
        self.states: dict[tuple[str, str], SignalState] = {}
        self.started: list[tuple[float, Decision]] = []
        self.log: list[tuple[float, Decision]] = []

    def context(self, minute: float) -> Context:
        return Context(
            self.champions,
            tuple(
                Retraining(
                    decision.model_name or "",
                    decision.attempt_id or "",
                    START + timedelta(minutes=at),
                    "running" if minute < at + self.minutes else self.outcome,  # type: ignore[arg-type]
                )
                for at, decision in self.started
            ),
        )

    def run(self, minute: float, *measurements: Measurement) -> list[Decision]:
        now = START + timedelta(minutes=minute)
        decisions = decide(measurements, self.states, self.policy, now, self.context(minute))
        for decision in decisions:
            # What is kept between runs is text.
            self.states[decision.signal, decision.subject] = SignalState.from_json(decision.state.to_json())
            self.log.append((minute, decision))
            if decision.action == "retrain":
                self.started.append((minute, decision))
        return decisions

    def minutes_of(self, action: str) -> list[float]:
        return [minute for minute, decision in self.log if decision.action == action]


def test_two_loads_in_48_hours_are_two_retrainings(cases: Path):
    story = json.loads((cases / "20-retrain-storm-and-stale-reference" / "util_p95.json").read_text())
    assert sum(p95 > 92 for _, p95 in story["rows"]) == 432  # what a rule on the level alone would start
    monitor = Monitor(minutes=story["retrain_minutes"])
    for minute, p95 in story["rows"]:
        monitor.run(minute, reading(p95))
    assert monitor.minutes_of("retrain") == [360, 2160]
    assert len({decision.episode_id for _, decision in monitor.started}) == 2
    assert all(decision.reason for _, decision in monitor.log)
    during = [d.reason for minute, d in monitor.log if 365 <= minute < 1800]
    assert all("not retrained again" in reason for reason in during)


def test_drift_fires_once_when_the_reference_is_renewed(cases: Path):
    story = json.loads((cases / "20-retrain-storm-and-stale-reference" / "drift.json").read_text())
    monitor = Monitor()
    reference_ratio = 1.0
    for minute, ratio in story["rows"]:
        if monitor.started and minute >= monitor.started[-1][0] + monitor.minutes:
            reference_ratio = 1.6  # the promoted model's reference is the new window
        monitor.run(minute, variance(ratio / reference_ratio - 1))
    assert monitor.minutes_of("retrain") == [600]
    assert monitor.log[-1][1].state.phase == "quiet"
    assert monitor.started[0][1].also_review
    assert not monitor.minutes_of("review")


def test_drift_whose_challenger_was_refused_is_acknowledged_not_repeated(cases: Path):
    story = json.loads((cases / "20-retrain-storm-and-stale-reference" / "drift.json").read_text())
    monitor = Monitor(outcome="refused")
    for minute, ratio in story["rows"]:
        monitor.run(minute, variance(ratio - 1))
    assert monitor.minutes_of("retrain") == [600]
    last = monitor.log[-1][1]
    assert (last.action, last.state.phase) == ("none", "acknowledged")
    assert "acknowledged, open" in last.reason
    assert "refused" in last.reason


def test_a_failed_retraining_is_tried_three_times_and_then_a_person_is_asked_once():
    monitor = Monitor(outcome="failed", minutes=10)
    for minute in range(0, 1440, 5):
        monitor.run(minute, residuals())
    assert monitor.minutes_of("retrain") == [0, 60, 120]  # the cool-down lies between
    assert monitor.minutes_of("review") == [130]
    assert "3 retrainings of launch-latency failed" in next(
        d.reason for _, d in monitor.log if d.action == "review"
    )
    assert monitor.log[-1][1].state.phase == "human"


def test_a_retraining_that_was_decided_and_never_seen_counts_as_failed():
    states: dict[tuple[str, str], SignalState] = {}
    actions = []
    for minute in (0, 29, 30, 60):
        [decision] = decide(
            [residuals()], states, Policy(), START + timedelta(minutes=minute), Context(CHAMPIONS)
        )
        states[decision.signal, decision.subject] = decision.state
        actions.append((minute, decision.action, decision.state.failure_count))
    assert actions == [(0, "retrain", 0), (29, "none", 0), (30, "wait", 1), (60, "retrain", 1)]


def test_one_retraining_answers_all_signals_of_its_model_in_one_run():
    monitor = Monitor()
    decisions = monitor.run(0, reading(98.0), reading(97.0, subject="GPU-b"), residuals())
    assert [d.action for d in decisions] == ["none", "none", "retrain"]
    assert len({d.attempt_id for d in decisions}) == 1
    assert "started for residuals, covers it" in decisions[0].reason
    for minute in range(5, 1000, 5):
        monitor.run(minute, reading(98.0), reading(97.0, subject="GPU-b"), residuals(0.5))
    assert len(monitor.started) == 1


def test_the_two_models_are_retrained_independently():
    decisions = Monitor().run(0, residuals(), variance(), shift())
    assert [d.action for d in decisions] == ["retrain", "none", "retrain"]
    assert [d.also_review for d in decisions] == [False, False, True]
    assert [d.model_name for d in decisions] == [LAUNCH_LATENCY, DOC_QUALITY, DOC_QUALITY]


def test_gpus_that_pass_the_limit_one_after_the_other_are_one_load():
    monitor = Monitor()
    for minute in range(0, 1200, 5):
        busy = 1 + minute // 120
        fleet = [reading(95.0 if i < busy else 50.0, subject=f"GPU-{i}") for i in range(8)]
        monitor.run(minute, *fleet)
    assert monitor.minutes_of("retrain") == [0]
    assert any("another GPU is in the same load" in d.reason for _, d in monitor.log)


def test_a_signal_waits_for_its_time_before_it_fires():
    monitor = Monitor(Policy(for_minutes=15))
    actions = [monitor.run(minute, reading(95.0))[0].action for minute in (0, 5, 10, 15)]
    assert actions == ["wait", "wait", "wait", "retrain"]
    flapping = Monitor(Policy(for_minutes=15))
    for minute in range(0, 300, 5):
        flapping.run(minute, reading(95.0 if minute % 15 else 80.0))
    assert not flapping.started


def test_a_short_dip_does_not_re_arm_and_a_long_one_does():
    monitor = Monitor()
    values = {0: 95, 60: 80, 75: 80, 85: 95, 100: 80, 115: 80, 130: 80, 140: 95}
    for minute, value in values.items():
        monitor.run(minute, reading(float(value)))
    assert monitor.minutes_of("retrain") == [0, 140]
    closed = next(d for minute, d in monitor.log if minute == 130)
    assert "armed again" in closed.reason
    assert closed.episode_id == monitor.started[0][1].episode_id


def test_what_cannot_be_said_neither_fires_nor_re_arms():
    monitor = Monitor()
    [first] = monitor.run(0, reading(None))
    assert (first.action, first.state.phase) == ("wait", "quiet")
    assert "too few" in first.reason
    monitor.run(5, reading(95.0))
    monitor.run(60, reading(80.0))
    for minute in range(65, 300, 5):
        [decision] = monitor.run(minute, reading(None))
        assert decision.state.phase == "acknowledged"
        assert "stays as it is" in decision.reason
    monitor.run(300, reading(80.0))
    monitor.run(305, reading(95.0))
    assert monitor.minutes_of("retrain") == [5]
    assert monitor.states["utilization_p95", "GPU-a"].is_open


def test_what_cannot_be_said_stops_the_clock_of_a_pending_signal():
    monitor = Monitor(Policy(for_minutes=20))
    for minute, value in ((0, 95.0), (10, 95.0), (15, None), (100, None), (105, 95.0)):
        monitor.run(minute, reading(value))
    assert not monitor.started
    assert monitor.run(115, reading(95.0))[0].action == "retrain"


def test_the_cool_down_is_named_with_its_end():
    monitor = Monitor(minutes=5)
    monitor.run(0, residuals())
    monitor.run(10, residuals(0.5))
    monitor.run(40, residuals(0.5))
    [decision] = monitor.run(45, residuals())
    assert decision.action == "wait"
    assert "cool-down" in decision.reason
    assert "01:00:00" in decision.reason
    assert monitor.run(60, residuals())[0].action == "retrain"


def test_the_daily_budget_is_kept_and_named():
    monitor = Monitor(Policy(rearm_minutes=0, cooldown_minutes=0, daily_budget=2), minutes=1)
    for minute in range(0, 24 * 60, 10):
        monitor.run(minute, residuals(2.0 if minute % 20 else 0.5))
    assert monitor.minutes_of("retrain") == [10, 30]
    assert "budget: 2 retrainings" in monitor.log[-1][1].reason
    assert monitor.run(24 * 60 + 10, residuals())[0].action == "retrain"
    assert Monitor(Policy(daily_budget=0)).run(0, residuals())[0].action == "wait"


def test_one_retraining_at_a_time_whoever_started_it():
    monitor = Monitor(Policy(cooldown_minutes=0))
    running = Retraining(LAUNCH_LATENCY, "by-hand", START - timedelta(hours=5), "running")
    [decision] = decide([residuals()], {}, monitor.policy, START, Context(CHAMPIONS, (running,)))
    assert decision.action == "wait"
    assert "by-hand" in decision.reason
    dead = Retraining(LAUNCH_LATENCY, "by-hand", START - timedelta(hours=5), "failed")
    [decision] = decide([residuals()], {}, monitor.policy, START, Context(CHAMPIONS, (dead,)))
    assert decision.action == "retrain"


def test_without_a_champion_nothing_is_retrained_and_the_reason_says_so():
    monitor = Monitor()
    monitor.champions.clear()
    [decision] = monitor.run(0, reading(98.0))
    assert (decision.action, decision.model_version) == ("wait", None)
    assert "no champion" in decision.reason


def test_documents_go_to_a_person_at_once_even_where_retraining_must_wait():
    monitor = Monitor(Policy(daily_budget=0))
    decisions = monitor.run(0, variance(), shift())
    assert sorted(d.action for d in decisions) == ["review", "wait"]
    assert [d.action for d in monitor.run(5, shift())] == ["wait"]


def test_a_promotion_that_does_not_cure_goes_to_a_person_once():
    monitor = Monitor(minutes=20)
    for minute in range(0, 600, 10):
        monitor.run(minute, residuals())
    assert monitor.minutes_of("retrain") == [0]
    assert monitor.minutes_of("review") == [50]  # promoted at 20, above the new limit for 30 minutes
    loaded = Monitor(minutes=20)
    for minute in range(0, 600, 10):
        loaded.run(minute, reading(98.0))
    assert not loaded.minutes_of("review")  # load is not cured by a model, and nobody expects it


def test_a_held_challenger_is_acknowledged_until_a_person_promotes_it():
    monitor = Monitor(outcome="held", minutes=10)
    for minute in range(0, 200, 10):
        monitor.run(minute, residuals())
    assert monitor.minutes_of("retrain") == [0]
    assert "held" in monitor.log[-1][1].reason
    monitor.outcome = "promoted"
    assert monitor.run(200, residuals(0.5))[0].state.outcome == "promoted"


def test_the_reason_says_where_the_champion_knows_the_load():
    monitor = Monitor()
    monitor.champions[LAUNCH_LATENCY] = Champion("4", trained_utilization_p95_percent=95.0)
    [knows] = monitor.run(0, reading(96.0))
    assert knows.action == "retrain"
    assert "version 4, already learned a loaded regime" in knows.reason
    monitor = Monitor()
    monitor.champions[LAUNCH_LATENCY] = Champion("4", trained_utilization_p95_percent=40.0)
    assert "has not seen" in monitor.run(0, reading(96.0))[0].reason


def test_bad_data_alert_and_label_shift_review_once_an_episode():
    monitor = Monitor()
    bad = reading(0.3, "data_quality", "launches", 0.05)
    kinds = reading(9.0, "label_shift", "13.0", 4.0)
    first = monitor.run(0, bad, kinds)
    assert [d.action for d in first] == ["alert", "review"]
    assert first[0].model_name is None
    assert [d.action for d in monitor.run(5, bad, kinds)] == ["none", "none"]


def test_a_second_monitor_of_the_same_or_an_earlier_time_changes_nothing():
    monitor = Monitor()
    monitor.run(0, residuals(), reading(98.0))
    before = dict(monitor.states)
    for minute in (0, -30):
        decisions = monitor.run(minute, residuals(), reading(98.0))
        assert [d.action for d in decisions] == ["none", "none"]
        assert all("already decided" in d.reason for d in decisions)
    assert monitor.states == before


def test_a_measurement_given_twice_in_one_run_counts_once():
    decisions = Monitor().run(0, residuals(), residuals())
    assert [d.action for d in decisions] == ["retrain", "none"]


def test_decisions_are_rows_of_their_table_and_give_the_states_back():
    monitor = Monitor()
    rows = []
    for minute in (0, 5):
        rows += [
            d.row(f"run-{minute}", START + timedelta(minutes=minute))
            for d in monitor.run(minute, residuals(), variance(None), reading(50.0))
        ]
    frame = DECISIONS.conform(pl.DataFrame(rows, schema=DECISIONS.schema))
    assert frame.height == frame["decision_id"].n_unique() == 6
    for column in DECISIONS.columns:
        if column.required:
            assert frame[column.name].null_count() == 0, column.name
        if column.allowed:
            assert set(frame[column.name].drop_nulls()) <= set(column.allowed)
    assert latest_states(frame.sample(fraction=1.0, shuffle=True, seed=1)) == monitor.states
    assert latest_states(DECISIONS.empty()) == {}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        SignalState().to_json().replace("quiet", "dreaming"),
        SignalState().to_json().replace('"phase": "quiet"', '"phase": "acting"'),
        SignalState().to_json().replace('"quiet_minutes": 0.0', '"quiet_minutes": NaN'),
        SignalState().to_json().replace('"decided_at": null', '"decided_at": "2026-01-01T00:00:00"'),
    ],
)
def test_a_state_that_is_none_is_refused(text: str):
    with pytest.raises(SchemaError, match="not a signal's state"):
        SignalState.from_json(text)


def test_times_without_a_zone_and_impossible_policies_are_refused():
    with pytest.raises(SettingsError, match="time zone"):
        decide([], {}, Policy(), datetime(2026, 1, 1), Context())
    with pytest.raises(SettingsError, match="time zone"):
        Retraining(LAUNCH_LATENCY, "a", datetime(2026, 1, 1), "running")
    with pytest.raises(SettingsError, match="outcome"):
        Retraining(LAUNCH_LATENCY, "a", START, "fine")  # type: ignore[arg-type]
    for wrong in ({"rearm_minutes": -1}, {"cooldown_minutes": float("nan")}, {"failure_limit": 0}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            Policy(**wrong)  # type: ignore[arg-type]


def test_every_signal_of_the_table_has_a_rule():
    assert set(RULES) == set(SIGNALS)


step = st.tuples(
    st.integers(1, 90),
    st.lists(
        st.tuples(
            st.sampled_from(["utilization_p95", "residuals", "embedding_variance", "embedding_shift"]),
            st.sampled_from(["a", "b"]),
            st.sampled_from([None, 0.5, 2.0, 2.0]),
        ),
        max_size=4,
    ),
    st.sampled_from(["promoted", "refused", "failed", "held"]),
)
policies = st.builds(
    Policy,
    for_minutes=st.sampled_from([0.0, 20.0]),
    rearm_minutes=st.sampled_from([0.0, 30.0]),
    cooldown_minutes=st.sampled_from([0.0, 60.0, 200.0]),
    daily_budget=st.integers(0, 5),
    failure_limit=st.integers(1, 3),
)


@settings(max_examples=150, deadline=None)
@given(
    policy=policies,
    steps=st.lists(step, min_size=5, max_size=40),
    minutes=st.sampled_from([0.0, 5.0, 50.0, 1e9]),
)
def test_retrainings_keep_cool_down_budget_and_each_other(policy: Policy, steps: Any, minutes: float):
    monitor = Monitor(policy, minutes=minutes)
    minute = 0.0
    for gap, readings, outcome in steps:
        minute += gap
        monitor.outcome = outcome
        measurements = [reading(value, signal, subject, 1.0) for signal, subject, value in readings]
        decisions = monitor.run(minute, *measurements)
        assert len(decisions) == len(measurements)
        assert all(d.reason and d.state.decided_at == START + timedelta(minutes=minute) for d in decisions)
        kept = dict(monitor.states)
        again = decide(measurements, kept, policy, START + timedelta(minutes=minute), monitor.context(minute))
        assert all(d.action == "none" for d in again)
        assert {(d.signal, d.subject): d.state for d in again}.items() <= kept.items()
    for model in (LAUNCH_LATENCY, DOC_QUALITY):
        starts = [at for at, decision in monitor.started if decision.model_name == model]
        gaps = [later - earlier for earlier, later in pairwise(starts)]
        assert all(gap >= max(policy.cooldown_minutes, minutes) for gap in gaps)
        assert len(starts) == len(set(starts))
        for start in starts:
            assert sum(start - 24 * 60 < other <= start for other in starts) <= policy.daily_budget
        if minutes >= 1e9:
            assert len(starts) <= 1
    ids = [decision.attempt_id for _, decision in monitor.started]
    assert len(ids) == len(set(ids))
