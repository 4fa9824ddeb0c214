"""What to do about the measurements: a pure function of (measurements, states, policy, now, context).

Each (signal, subject) has an episode: it opens when the signal has been tripped for long enough, acts once, and
closes when the signal has been quiet for long enough. High utilization is load, and retraining does not lower
it: a rule that looks at the level alone started 432 retrainings in 48 hours that held two episodes. A latch
that never re-arms hides the second episode. What cannot be said neither opens, nor acts, nor closes: the
clocks of the episode stand still.

A retraining is an attempt with an id. Its outcome comes back through the context; a promoted, held or refused
challenger answers the episode, a failed attempt is tried again, after the cool-down and up to a limit, and then goes
to a person. A person's answer (labels of queued documents that came back, another champion) arms the signal again.

Time is told by stamps, and stamps may be wrong: a measurement of an earlier time than the last decided one changes
nothing, one from the future says nothing, and a gap between two readings counts as at most `gap_minutes` of them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

from warpgauge.drift.measurement import Measurement
from warpgauge.drift.policy import RULES, Policy, model_of
from warpgauge.drift.signal_state import OUTCOMES, Outcome, SignalState
from warpgauge.errors import SettingsError
from warpgauge.registry.names import LAUNCH_LATENCY

Action = Literal["none", "wait", "retrain", "review", "alert"]
# What a person is told, and how the event is named: `warpgauge.alert.<cause>`.
ALERT_CAUSES = (
    "retraining_failed",
    "not_cured",
    "review_due",
    "budget_spent",
    "data_quality",
    "monitor_blind",
)
# Why a signal cannot say although it should: something is broken, and waiting for more rows does not mend it.
BLIND_CAUSES = ("degenerate", "encoder changed", "low coverage", "stale", "unavailable")
DAY = timedelta(hours=24)
# Clocks of two monitors may differ by hours, and the slower one must not decide again what the other decided. A stamp
# further ahead than this is a wrong clock's, and must not bar everybody until then.
CLOCKS_DIFFER = DAY


@dataclass(frozen=True)
class Retraining:
    """One retraining of a model, running or over, as the outside world knows it.

    Attributes:
        model_name: Which model.
        attempt_id: The id that the decision gave; any unique name for one that a person started.
        started_at: With time zone.
        outcome: `running` only where its heartbeat is fresh; a dead run is `failed`.
    """

    model_name: str
    attempt_id: str
    started_at: datetime
    outcome: Outcome

    def __post_init__(self) -> None:
        if self.started_at.tzinfo is None:
            raise SettingsError(f"retraining {self.attempt_id}: started_at has no time zone")
        if self.outcome not in OUTCOMES:
            raise SettingsError(
                f"retraining {self.attempt_id}: outcome is {self.outcome!r}, one of {', '.join(OUTCOMES)}"
            )


@dataclass(frozen=True)
class Champion:
    """The promoted version of a model.

    Attributes:
        version: Its version number.
        trained_utilization_p95_percent: 95th percentile of GPU utilization in its training window; None if unknown.
    """

    version: str
    trained_utilization_p95_percent: float | None = None


@dataclass(frozen=True)
class Context:
    """What the decision needs to know of the world.

    Attributes:
        champions: The promoted versions by model name.
        retrainings: All that are known, running or over.
        answered_reviews: Model name -> time of the newest label that a person gave to a queued document.
    """

    champions: Mapping[str, Champion] = field(default_factory=dict)
    retrainings: tuple[Retraining, ...] = ()
    answered_reviews: Mapping[str, datetime] = field(default_factory=dict)


@dataclass(frozen=True)
class Decision:
    """What was decided on one measurement, and why.

    Attributes:
        measurement: What it rests on.
        action: `none`, `wait` (something is missing or in the way), `retrain`, `review`, `alert`.
        reason: A sentence, also for what is not done.
        state: The signal's new state.
        model_name, model_version: The model concerned, and its champion.
        episode_id: The open or just closed episode.
        attempt_id: Of the retraining to start, or of the one that covers this signal.
        also_review: Fill the human queue as well as retraining.
        alert_cause: What a person must hear of, one of `ALERT_CAUSES`; None where there is nothing new to tell.
    """

    measurement: Measurement
    action: Action
    reason: str
    state: SignalState
    model_name: str | None = None
    model_version: str | None = None
    episode_id: str | None = None
    attempt_id: str | None = None
    also_review: bool = False
    alert_cause: str | None = None

    @property
    def signal(self) -> str:
        """The signal measured."""
        return self.measurement.signal

    @property
    def subject(self) -> str:
        """What it was measured on."""
        return self.measurement.subject

    def row(self, monitor_run_id: str, decided_at: datetime) -> dict[str, Any]:
        """The row of `tables.DECISIONS`."""
        measurement = self.measurement
        key = json.dumps([monitor_run_id, self.signal, self.subject])
        return {
            "decision_id": hashlib.sha256(key.encode()).hexdigest(),
            "monitor_run_id": monitor_run_id,
            "decided_at": decided_at,
            "signal": self.signal,
            "subject": self.subject,
            "model_name": self.model_name,
            "model_version": self.model_version,
            "status": measurement.status,
            "value": measurement.value,
            "lower": measurement.lower,
            "upper": measurement.upper,
            "limit": measurement.limit,
            "sample_count": measurement.sample_count,
            "action": self.action,
            "reason": self.reason,
            "episode_id": self.episode_id,
            "alert_cause": self.alert_cause,
            "state": self.state.to_json(),
            "details": measurement.details_json(),
        }


States = Mapping[tuple[str, str], SignalState]


def decide(
    measurements: Sequence[Measurement],
    states: States,
    policy: Policy,
    now: datetime,
    context: Context,
) -> list[Decision]:
    """One decision a measurement, in the order given.

    Args:
        measurements: Of one run of the monitor.
        states: The last state of each (signal, subject); absent means quiet.
        policy: Times, budget and limits.
        now: With time zone; the time of every measurement that names none of its own. A state that was decided at
            a measurement's time or later is kept: a late or repeated run changes nothing.
        context: Champions and retrainings.

    Returns:
        At most one decision in all asks for a retraining of each model.

    Raises:
        SettingsError: If now has no time zone.
    """
    if now.tzinfo is None:
        raise SettingsError(f"now is {now.isoformat()} without a time zone; give it one, for example UTC")
    states = {key: _in_time(state, now) for key, state in states.items()}
    current = {
        key: _answered(key, _with_outcome(state, policy, now, context), context)
        for key, state in states.items()
    }
    round_ = _Round(policy, now, context, current, measurements)
    order = sorted(range(len(measurements)), key=lambda i: (RULES[measurements[i].signal].priority, i))
    decisions: dict[int, Decision] = {}
    for index in order:
        measurement = measurements[index]
        key = (measurement.signal, measurement.subject)
        kept = round_.original_or_new(states, key)
        at = measurement.measured_at or now
        if at > now + timedelta(minutes=policy.future_minutes):
            decisions[index] = round_.answer(
                measurement,
                kept,
                "wait",
                f"cannot say, measured in the future: stamped {at.isoformat()}, and it is {now.isoformat()}; "
                "set the clocks",
            )
            continue
        if kept.decided_at is not None and kept.decided_at >= at:
            decisions[index] = round_.answer(
                measurement,
                kept,
                "none",
                f"nothing new: already decided for {kept.decided_at.isoformat()}, this is of {at.isoformat()}",
            )
            continue
        decisions[index] = _decide_one(measurement, current.get(key, SignalState()), at, round_)
        current[key] = decisions[index].state
        round_.decided.add(key)
    return [decisions[index] for index in range(len(measurements))]


class _Round:
    """One call of `decide`: what all its decisions share, and which models were acted on so far."""

    def __init__(
        self,
        policy: Policy,
        now: datetime,
        context: Context,
        current: dict[tuple[str, str], SignalState],
        measurements: Sequence[Measurement],
    ) -> None:
        self.policy = policy
        self.now = now
        self.latest = now + CLOCKS_DIFFER
        self.context = context
        self.current = current
        self.tripped = {(m.signal, m.subject) for m in measurements if m.is_tripped}
        self.started: dict[str, tuple[str, str]] = {}  # model -> attempt id, signal that asked for it
        self.reviewed: set[str] = set()  # models whose queue was filled in this round
        self.decided: set[tuple[str, str]] = set()
        self.handed_over: set[str] = set()  # attempts for which a person was asked in this round

    def original_or_new(self, states: States, key: tuple[str, str]) -> SignalState:
        """The state before this call, or the new one where the same key was decided in this call already."""
        decided = self.current.get(key)
        if key in self.decided:
            return decided or SignalState()
        return states.get(key, SignalState())

    def answer(
        self,
        measurement: Measurement,
        state: SignalState,
        action: Action,
        reason: str,
        *,
        episode_id: str | None = None,
        also_review: bool = False,
        alert_cause: str | None = None,
    ) -> Decision:
        model_name = model_of(measurement.signal, measurement.subject)
        champion = self.context.champions.get(model_name) if model_name else None
        return Decision(
            measurement=measurement,
            action=action,
            reason=reason,
            state=state,
            model_name=model_name,
            model_version=champion.version if champion else None,
            episode_id=episode_id or state.episode_id,
            attempt_id=state.attempt_id if state.is_open else None,
            also_review=also_review,
            alert_cause=alert_cause,
        )

    def starts(self, model_name: str) -> dict[str, datetime]:
        """attempt id -> start of every known retraining of the model."""
        found: dict[str, datetime] = {}
        for (signal, subject), state in self.current.items():
            if model_of(signal, subject) == model_name:
                found.update(state.starts)
        for retraining in self.context.retrainings:
            # A start stamped ahead of now is a wrong clock's, and must not bar the model until then.
            if retraining.model_name == model_name and retraining.started_at <= self.latest:
                known = found.get(retraining.attempt_id)
                found[retraining.attempt_id] = (
                    retraining.started_at if known is None else max(known, retraining.started_at)
                )
        return found

    def asked(self, state: SignalState, model_name: str | None) -> SignalState:
        """The state of a signal about which a person is asked now."""
        champion = self.context.champions.get(model_name or "")
        return replace(
            state,
            is_reviewed=True,
            asked_at=self.now,
            asked_version=champion.version if champion else None,
        )

    def obstacle(self, model_name: str) -> tuple[str | None, bool]:
        """Why the model is not retrained now, None where nothing stands in the way; and whether it is only to wait."""
        policy, now = self.policy, self.now
        if self.context.champions.get(model_name) is None:
            return f"{model_name} has no champion yet; its first training is a run of its own", False
        running = [
            r.attempt_id
            for r in self.context.retrainings
            if r.model_name == model_name and r.outcome == "running"
        ]
        running += [
            state.attempt_id
            for (signal, subject), state in self.current.items()
            if model_of(signal, subject) == model_name and state.phase == "acting" and state.attempt_id
        ]
        if running:
            return f"a retraining of {model_name} is running ({running[0]}); one at a time", False
        starts = self.starts(model_name)
        if starts:
            last = max(starts.values())
            free_at = last + timedelta(minutes=policy.cooldown_minutes)
            if now < free_at:
                return (
                    f"cool-down: {model_name} was last retrained at {last.isoformat()}, "
                    f"the next may start at {free_at.isoformat()}"
                ), True
        recent = sum(start > now - DAY for start in starts.values())
        if recent >= policy.daily_budget:
            return (
                f"budget: {recent} retrainings of {model_name} in 24 hours, {policy.daily_budget} are allowed"
            ), True
        return None, False


def _decide_one(measurement: Measurement, state: SignalState, at: datetime, round_: _Round) -> Decision:
    policy, now = round_.policy, round_.now
    elapsed = 0.0 if state.decided_at is None else (at - state.decided_at).total_seconds() / 60
    elapsed = min(elapsed, policy.gap_minutes)
    previous = state.last_reading
    horizon = now - max(DAY, timedelta(minutes=policy.cooldown_minutes))
    state = replace(
        state,
        decided_at=at,
        starts={attempt: start for attempt, start in state.starts.items() if start > horizon},
    )
    if measurement.status == "cannot_say":
        return _decide_blind(measurement, state, round_)
    told = tuple(cause for cause in state.alerted if cause != "monitor_blind")
    state = replace(state, blind_since=None, alerted=told)
    if not measurement.is_tripped:
        gained = elapsed if previous == "quiet" else 0.0
        state = replace(
            state, last_reading="quiet", quiet_minutes=state.quiet_minutes + gained, tripped_minutes=0.0
        )
        return _decide_quiet(measurement, state, round_)
    gained = elapsed if previous == "tripped" else 0.0
    state = replace(
        state, last_reading="tripped", tripped_minutes=state.tripped_minutes + gained, quiet_minutes=0.0
    )
    return _decide_tripped(measurement, state, round_)


def _decide_blind(measurement: Measurement, state: SignalState, round_: _Round) -> Decision:
    """Nothing can be said; where something is broken for long enough, a person hears of it once."""
    held = f"; the episode {state.episode_id} stays as it is" if state.is_open else ""
    reason = f"cannot say, {measurement.reason}{held}"
    state = replace(state, last_reading="cannot_say")
    if measurement.cause not in BLIND_CAUSES:
        return round_.answer(measurement, replace(state, blind_since=None), "wait", reason)
    since = state.blind_since or state.decided_at or round_.now
    state = replace(state, blind_since=since)
    minutes = ((state.decided_at or round_.now) - since).total_seconds() / 60
    if minutes < round_.policy.blind_minutes or "monitor_blind" in state.alerted:
        return round_.answer(measurement, state, "wait", reason)
    return round_.answer(
        measurement,
        replace(state, alerted=(*state.alerted, "monitor_blind")),
        "alert",
        f"{reason}; for {minutes:g} minutes now: mend it, drift goes unseen",
        alert_cause="monitor_blind",
    )


def _decide_quiet(measurement: Measurement, state: SignalState, round_: _Round) -> Decision:
    rearm = round_.policy.rearm_minutes
    if not state.is_open:
        was_pending = "; it was tripped, but not for long enough" if state.phase == "pending" else ""
        return round_.answer(
            measurement,
            replace(state, phase="quiet", quiet_minutes=0.0),
            "none",
            f"within its limit: {measurement.reason}{was_pending}",
        )
    if state.quiet_minutes >= rearm:
        unanswered = (
            " before anything was started"
            if state.phase in ("firing", "cooling") and not state.attempt_id
            else ""
        )
        closed = SignalState(
            last_reading=state.last_reading, decided_at=state.decided_at, starts=state.starts
        )
        return round_.answer(
            measurement,
            closed,
            "none",
            f"the episode {state.episode_id} is over{unanswered}: within the limit for "
            f"{state.quiet_minutes:g} minutes; armed again",
            episode_id=state.episode_id,
        )
    return round_.answer(
        measurement,
        state,
        "none",
        f"within its limit for {state.quiet_minutes:g} of the {rearm:g} minutes that end the episode "
        f"{state.episode_id}: {measurement.reason}",
    )


def _decide_tripped(measurement: Measurement, state: SignalState, round_: _Round) -> Decision:
    policy, rule = round_.policy, RULES[measurement.signal]
    model_name = model_of(measurement.signal, measurement.subject)
    if not state.is_open:
        if state.tripped_minutes < policy.for_minutes:
            return round_.answer(
                measurement,
                replace(state, phase="pending"),
                "wait",
                f"above its limit for {state.tripped_minutes:g} of the {policy.for_minutes:g} minutes "
                f"that open an episode: {measurement.reason}",
            )
        state = replace(
            state,
            phase="firing",
            episode_id=_episode_id(measurement, round_.now),
            opened_at=round_.now,
        )
    if state.phase in ("firing", "cooling"):
        return _act(measurement, state, round_)
    if state.phase == "acting":
        return round_.answer(
            measurement,
            state,
            "none",
            f"not retrained again: the retraining {state.attempt_id} of this episode is running",
        )
    if state.phase == "human":
        return round_.answer(
            measurement, state, "none", f"the episode {state.episode_id} is open and waits for a person"
        )
    if (
        rule.is_relative
        and state.outcome == "promoted"
        and state.tripped_minutes >= max(policy.rearm_minutes, policy.for_minutes)
    ):
        return _ask_a_person(
            measurement,
            state,
            round_,
            f"{model_name} was retrained and promoted, and the signal has stayed above its limit against "
            f"the new reference for {state.tripped_minutes:g} minutes: retraining does not cure it",
            "not_cured",
        )
    done = {
        "retrain": f"not retrained again: the retraining {state.attempt_id} of this episode ended "
        f"'{state.outcome}'; acknowledged, open",
        "review": "review was asked for once; acknowledged, open",
        "alert": "alerted once; acknowledged, open",
    }[rule.first]
    return round_.answer(measurement, state, "none", f"{done}: {measurement.reason}")


def _act(  # noqa: PLR0911 - one return for each thing that can stand in the way
    measurement: Measurement, state: SignalState, round_: _Round
) -> Decision:
    """The episode is open and its action is due."""
    policy, rule = round_.policy, RULES[measurement.signal]
    model_name = model_of(measurement.signal, measurement.subject)
    if rule.first != "retrain" or model_name is None:
        action: Action = "alert" if rule.first == "alert" else "review"
        cause = "data_quality" if action == "alert" else "review_due"
        state = replace(state, phase="acknowledged", alerted=(*state.alerted, cause))
        return round_.answer(
            measurement,
            round_.asked(state, model_name) if action == "review" else state,
            action,
            f"above its limit: {measurement.reason}",
            alert_cause=cause,
        )
    if state.failure_count >= policy.failure_limit:
        return _ask_a_person(
            measurement,
            state,
            round_,
            f"{state.failure_count} retrainings of {model_name} failed in this episode, the last "
            f"{state.attempt_id}: {policy.failure_limit} is the limit",
            "retraining_failed",
        )
    if model_name in round_.started:
        attempt_id, signal = round_.started[model_name]
        state = replace(
            state,
            phase="acting",
            attempt_id=attempt_id,
            attempted_at=round_.now,
            outcome="running",
            is_reviewed=state.is_reviewed or model_name in round_.reviewed,
        )
        return round_.answer(
            measurement,
            state,
            "none",
            f"not retrained for this signal too: the retraining {attempt_id}, started for {signal}, covers it",
        )
    if shared := _answered_elsewhere(measurement, round_):
        state = replace(
            state,
            phase=shared.phase,
            attempt_id=shared.attempt_id,
            attempted_at=shared.attempted_at,
            outcome=shared.outcome,
        )
        return round_.answer(
            measurement,
            state,
            "none",
            f"not retrained: another GPU is in the same load, which the retraining {shared.attempt_id} "
            "answers; one retraining an episode",
        )
    review_due = rule.also_review and not state.is_reviewed and model_name not in round_.reviewed
    obstacle, is_cooling = round_.obstacle(model_name)
    if obstacle is not None:
        state = replace(state, phase="cooling" if is_cooling else "firing")
        if review_due:
            round_.reviewed.add(model_name)
            return round_.answer(
                measurement,
                round_.asked(replace(state, alerted=(*state.alerted, "review_due")), model_name),
                "review",
                f"a person should look: {measurement.reason}; not retrained because {obstacle}",
                alert_cause="review_due",
            )
        is_spent = obstacle.startswith("budget") and "budget_spent" not in state.alerted
        return round_.answer(
            measurement,
            replace(state, alerted=(*state.alerted, "budget_spent")) if is_spent else state,
            "wait",
            f"not retrained because {obstacle}",
            alert_cause="budget_spent" if is_spent else None,
        )
    attempt_id = f"{state.episode_id}/{state.failure_count + 1}"
    round_.started[model_name] = (attempt_id, measurement.signal)
    if review_due:
        round_.reviewed.add(model_name)
    retry = f", attempt {state.failure_count + 1} of {policy.failure_limit}" if state.failure_count else ""
    state = replace(
        state,
        phase="acting",
        attempt_id=attempt_id,
        attempted_at=round_.now,
        outcome="running",
        starts={**state.starts, attempt_id: round_.now},
    )
    if review_due:
        state = round_.asked(replace(state, alerted=(*state.alerted, "review_due")), model_name)
    return round_.answer(
        measurement,
        state,
        "retrain",
        f"retrain {model_name}{retry}: {measurement.reason}{_regime(measurement, round_)}",
        also_review=review_due,
        alert_cause="review_due" if review_due else None,
    )


def _ask_a_person(
    measurement: Measurement, state: SignalState, round_: _Round, explanation: str, cause: str
) -> Decision:
    model_name = model_of(measurement.signal, measurement.subject)
    state = round_.asked(replace(state, phase="human"), model_name)
    attempt_id = state.attempt_id or ""
    if attempt_id in round_.handed_over:
        return round_.answer(
            measurement, state, "none", f"a person was asked for another signal: {explanation}"
        )
    round_.handed_over.add(attempt_id)
    state = replace(state, alerted=(*state.alerted, cause))
    return round_.answer(
        measurement, state, "review", f"a person should look: {explanation}", alert_cause=cause
    )


def _answered_elsewhere(measurement: Measurement, round_: _Round) -> SignalState | None:
    """The answered utilization episode of another GPU that is tripped in this round too.

    Load is a property of the fleet: eight GPUs that pass the limit one after the other are one episode.
    """
    if measurement.signal != "utilization_p95":
        return None
    for key in sorted(round_.tripped):
        if key[0] == measurement.signal and key[1] != measurement.subject:
            state = round_.current.get(key)
            if state is not None and state.phase in ("acting", "acknowledged"):
                return state
    return None


def _regime(measurement: Measurement, round_: _Round) -> str:
    """Where the champion has already learned this load, the reason says so: it may have little to gain."""
    if measurement.signal != "utilization_p95" or measurement.limit is None:
        return ""
    champion = round_.context.champions.get(LAUNCH_LATENCY)
    trained = champion.trained_utilization_p95_percent if champion else None
    if champion is None or trained is None:
        return "; on data of the loaded regime"
    if trained > measurement.limit:
        return (
            f"; the champion, version {champion.version}, already learned a loaded regime (p95 {trained:.1f} %), "
            "so it may have little to gain"
        )
    return (
        f"; on data of the loaded regime, which the champion, version {champion.version} (p95 {trained:.1f} %), "
        "has not seen"
    )


def _in_time(state: SignalState, now: datetime) -> SignalState:
    """The state; one that a clock ahead of now has stamped does not bar what is decided now."""
    latest = now + CLOCKS_DIFFER
    if state.decided_at is None or state.decided_at <= latest:
        return state
    return replace(
        state, decided_at=None, starts={a: start for a, start in state.starts.items() if start <= latest}
    )


def _answered(key: tuple[str, str], state: SignalState, context: Context) -> SignalState:
    """The state, armed again where a person answered: by labels of queued documents, or by another champion.

    A person asked about failed or useless retrainings answers by training or promoting a version of his own; one
    asked about documents answers by labels, from which the next retraining learns.
    """
    model_name = model_of(*key)
    if model_name is None or state.asked_at is None or state.phase not in ("human", "acknowledged"):
        return state
    answered_at = context.answered_reviews.get(model_name)
    champion = context.champions.get(model_name)
    is_labelled = answered_at is not None and answered_at > state.asked_at
    is_replaced = state.phase == "human" and champion is not None and champion.version != state.asked_version
    if not (is_labelled or is_replaced):
        return state
    return SignalState(decided_at=state.decided_at, starts=state.starts)


def _with_outcome(state: SignalState, policy: Policy, now: datetime, context: Context) -> SignalState:
    """The state after what the context knows of its last attempt."""
    if not state.is_open or state.attempt_id is None or (state.decided_at and state.decided_at >= now):
        return state
    known = [r.outcome for r in context.retrainings if r.attempt_id == state.attempt_id]
    # A retried run may be listed twice; an end counts more than a beginning.
    outcome: Outcome | None = next((o for o in known if o != "running"), known[0] if known else None)
    unseen = outcome is None and state.phase == "acting" and state.attempted_at is not None
    if unseen and state.attempted_at and now - state.attempted_at >= timedelta(minutes=policy.lease_minutes):
        # Decided, and no run has been seen: a process that died between the two.
        outcome = "failed"
    if outcome is None or outcome in ("running", state.outcome):
        return state
    if outcome == "failed":
        if state.phase != "acting":
            return state
        return replace(state, phase="firing", outcome=outcome, failure_count=state.failure_count + 1)
    if state.phase == "human":
        return replace(state, outcome=outcome)
    return replace(
        state,
        phase="acknowledged",
        outcome=outcome,
        # After a promotion the reference is another one: what was above the old one does not count.
        tripped_minutes=0.0 if outcome == "promoted" else state.tripped_minutes,
        last_reading=None if outcome == "promoted" else state.last_reading,
    )


def _episode_id(measurement: Measurement, opened_at: datetime) -> str:
    """The same for the same signal, subject and opening, in every process."""
    text = json.dumps([measurement.signal, measurement.subject, opened_at.astimezone(UTC).isoformat()])
    return f"{measurement.signal}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"
