"""What to do about the measurements: a pure function of (measurements, states, policy, now, context).

Each (signal, subject) has an episode: it opens when the signal has been tripped for long enough, acts once, and
closes when the signal has been quiet for long enough. High utilization is load, and retraining does not lower
it: a rule that looks at the level alone started 432 retrainings in 48 hours that held two episodes. A latch
that never re-arms hides the second episode. What cannot be said neither opens, nor acts, nor closes: the
clocks of the episode stand still.

A retraining is an attempt with an id. Its outcome comes back through the context; a promoted, held or refused
challenger answers the episode, a failed attempt is tried again up to a limit and then goes to a person.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import Any, Literal

import polars as pl

from warpgauge.drift.measurement import Measurement
from warpgauge.errors import SchemaError, SettingsError
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY

Action = Literal["none", "wait", "retrain", "review", "alert"]
Phase = Literal["quiet", "pending", "firing", "acting", "acknowledged", "human"]
Outcome = Literal["running", "promoted", "held", "refused", "failed"]
PHASES: tuple[str, ...] = ("quiet", "pending", "firing", "acting", "acknowledged", "human")
OUTCOMES: tuple[str, ...] = ("running", "promoted", "held", "refused", "failed")
DAY = timedelta(hours=24)


@dataclass(frozen=True)
class Rule:
    """What a tripped signal asks for.

    Attributes:
        model_name: The model it concerns; None for signals of data, and for residuals, whose subject is the model.
        first: What is done once an episode.
        also_review: Documents go to the human queue beside the retraining.
        is_relative: Measured against the champion's own reference, which a promotion renews.
        priority: Smaller comes first where several signals ask for the same model at once.
    """

    model_name: str | None
    first: Literal["retrain", "review", "alert"]
    also_review: bool = False
    is_relative: bool = False
    priority: int = 9


RULES: Mapping[str, Rule] = {
    "residuals": Rule(None, "retrain", is_relative=True, priority=1),
    "utilization_p95": Rule(LAUNCH_LATENCY, "retrain", priority=2),
    "embedding_shift": Rule(DOC_QUALITY, "retrain", also_review=True, is_relative=True, priority=1),
    "embedding_variance": Rule(DOC_QUALITY, "retrain", also_review=True, is_relative=True, priority=2),
    "label_shift": Rule(DOC_QUALITY, "review"),
    "data_quality": Rule(None, "alert"),
}


def model_of(signal: str, subject: str) -> str | None:
    """The model that a signal concerns; None for signals of data."""
    return subject if signal == "residuals" else RULES[signal].model_name


@dataclass(frozen=True)
class Policy:
    """How patient the monitor is; there is no reminder: an open episode is not acted on twice.

    Attributes:
        for_minutes: How long a signal stays tripped before its episode opens.
        rearm_minutes: How long it stays quiet before its episode closes.
        cooldown_minutes: Least time between two retrainings of one model.
        daily_budget: Most retrainings of one model in any 24 hours.
        failure_limit: Failed attempts of one episode before a person is asked.
        lease_minutes: An attempt that nobody has seen for this long after its decision never started.

    Raises:
        SettingsError: If a duration is negative or not finite, or a count out of range.
    """

    for_minutes: float = 0.0
    rearm_minutes: float = 30.0
    cooldown_minutes: float = 60.0
    daily_budget: int = 4
    failure_limit: int = 3
    lease_minutes: float = 30.0

    def __post_init__(self) -> None:
        for name in ("for_minutes", "rearm_minutes", "cooldown_minutes", "lease_minutes"):
            minutes = getattr(self, name)
            if not (math.isfinite(minutes) and minutes >= 0):
                raise SettingsError(f"monitor policy: {name} is {minutes}; needs 0 or more")
        if self.daily_budget < 0 or self.failure_limit < 1:
            raise SettingsError(
                f"monitor policy: daily_budget is {self.daily_budget} (at least 0), "
                f"failure_limit {self.failure_limit} (at least 1)"
            )


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
    """What the decision needs to know of the world: the champions by model name, and all known retrainings."""

    champions: Mapping[str, Champion] = field(default_factory=dict)
    retrainings: tuple[Retraining, ...] = ()


@dataclass(frozen=True)
class SignalState:
    """Where one signal on one subject stands; JSON-ready, kept in the `state` column of `decisions`.

    Attributes:
        phase: `quiet`; `pending` (tripped, not yet for long enough); `firing` (the episode is open, its action is
            due or blocked); `acting` (an attempt was started); `acknowledged` (answered, the episode is open);
            `human` (a person was asked).
        episode_id, opened_at: Of the open episode.
        tripped_minutes: Measured time above the limit, in the phase or since the last promotion.
        quiet_minutes: Measured time below the limit since the signal was last tripped: the re-arm clock.
        last_reading: What the last decision saw.
        decided_at: When it was; a decision for the same or an earlier time changes nothing.
        attempt_id, attempted_at, outcome: The last attempt of the episode.
        failure_count: Failed attempts of the episode.
        is_reviewed: The human queue was filled for the episode.
        starts: attempt id -> time of the attempts that this signal started, as far back as cool-down and budget look.
    """

    phase: Phase = "quiet"
    episode_id: str | None = None
    opened_at: datetime | None = None
    tripped_minutes: float = 0.0
    quiet_minutes: float = 0.0
    last_reading: Literal["tripped", "quiet", "cannot_say"] | None = None
    decided_at: datetime | None = None
    attempt_id: str | None = None
    attempted_at: datetime | None = None
    outcome: Outcome | None = None
    failure_count: int = 0
    is_reviewed: bool = False
    starts: Mapping[str, datetime] = field(default_factory=dict)

    @property
    def is_open(self) -> bool:
        """Whether an episode is open."""
        return self.phase not in ("quiet", "pending")

    def to_json(self) -> str:
        """One line of JSON, keys sorted."""
        document = {
            name: value.isoformat() if isinstance(value, datetime) else value
            for name, value in vars(self).items()
        }
        document["starts"] = {name: start.isoformat() for name, start in sorted(self.starts.items())}
        return json.dumps(document, sort_keys=True, allow_nan=False)

    @classmethod
    def from_json(cls, text: str) -> SignalState:
        """The state that `to_json` wrote.

        Raises:
            SchemaError: If the text is not such a state.
        """
        try:
            document = json.loads(text)
            for name in ("opened_at", "decided_at", "attempted_at"):
                document[name] = None if document[name] is None else _zoned(document[name])
            document["starts"] = {name: _zoned(start) for name, start in document["starts"].items()}
            state = cls(**document)
            wrong = (
                state.phase not in PHASES
                or state.outcome not in (None, *OUTCOMES)
                or state.last_reading not in (None, "tripped", "quiet", "cannot_say")
                or not all(math.isfinite(m) and m >= 0 for m in (state.tripped_minutes, state.quiet_minutes))
                or state.is_open != (state.episode_id is not None)
            )
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise SchemaError(f"decisions.state: not a signal's state ({error}): {text[:200]}") from error
        if wrong:
            raise SchemaError(f"decisions.state: not a signal's state: {text[:200]}")
        return state


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
            "state": self.state.to_json(),
        }


States = Mapping[tuple[str, str], SignalState]


def latest_states(decisions: pl.DataFrame) -> dict[tuple[str, str], SignalState]:
    """The last state of each (signal, subject) in rows of `tables.DECISIONS`.

    Raises:
        SchemaError: If a column is absent or a state cannot be read.
    """
    needed = ("signal", "subject", "decided_at", "state")
    missing = [name for name in needed if name not in decisions.columns]
    if missing:
        raise SchemaError(f"decisions: column {', '.join(missing)} is absent")
    latest = decisions.sort("decided_at", maintain_order=True).unique(["signal", "subject"], keep="last")
    return {
        (signal, subject): SignalState.from_json(state)
        for signal, subject, state in latest.select("signal", "subject", "state").iter_rows()
    }


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
        now: Time of the measurements, with time zone. A state that was decided at this time or later is kept:
            a late or repeated run changes nothing.
        context: Champions and retrainings.

    Returns:
        At most one decision in all asks for a retraining of each model.

    Raises:
        SettingsError: If now has no time zone.
    """
    if now.tzinfo is None:
        raise SettingsError(f"now is {now.isoformat()} without a time zone; give it one, for example UTC")
    current = {key: _with_outcome(state, policy, now, context) for key, state in states.items()}
    round_ = _Round(policy, now, context, current, measurements)
    order = sorted(range(len(measurements)), key=lambda i: (RULES[measurements[i].signal].priority, i))
    decisions: dict[int, Decision] = {}
    for index in order:
        measurement = measurements[index]
        key = (measurement.signal, measurement.subject)
        kept = round_.original_or_new(states, key)
        if kept.decided_at is not None and kept.decided_at >= now:
            decisions[index] = round_.answer(
                measurement,
                kept,
                "none",
                f"nothing new: already decided for {kept.decided_at.isoformat()}, this run is of {now.isoformat()}",
            )
            continue
        decisions[index] = _decide_one(measurement, current.get(key, SignalState()), round_)
        current[key] = decisions[index].state
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
        self.context = context
        self.current = current
        self.tripped = {(m.signal, m.subject) for m in measurements if m.is_tripped}
        self.started: dict[str, tuple[str, str]] = {}  # model -> attempt id, signal that asked for it
        self.reviewed: set[str] = set()  # models whose queue was filled in this round
        self.handed_over: set[str] = set()  # attempts for which a person was asked in this round

    def original_or_new(self, states: States, key: tuple[str, str]) -> SignalState:
        """The state before this call, or the new one where the same key was decided in this call already."""
        decided = self.current.get(key)
        if decided is not None and decided.decided_at == self.now:
            return decided
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
        )

    def starts(self, model_name: str) -> dict[str, datetime]:
        """attempt id -> start of every known retraining of the model."""
        found: dict[str, datetime] = {}
        for (signal, subject), state in self.current.items():
            if model_of(signal, subject) == model_name:
                found.update(state.starts)
        for retraining in self.context.retrainings:
            if retraining.model_name == model_name:
                known = found.get(retraining.attempt_id)
                found[retraining.attempt_id] = (
                    retraining.started_at if known is None else max(known, retraining.started_at)
                )
        return found

    def obstacle(self, model_name: str) -> str | None:
        """Why the model is not retrained now; None where nothing stands in the way."""
        policy, now = self.policy, self.now
        if self.context.champions.get(model_name) is None:
            return f"{model_name} has no champion yet; its first training is a run of its own"
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
            return f"a retraining of {model_name} is running ({running[0]}); one at a time"
        starts = self.starts(model_name)
        if starts:
            last = max(starts.values())
            free_at = last + timedelta(minutes=policy.cooldown_minutes)
            if now < free_at:
                return (
                    f"cool-down: {model_name} was last retrained at {last.isoformat()}, "
                    f"the next may start at {free_at.isoformat()}"
                )
        recent = sum(start > now - DAY for start in starts.values())
        if recent >= policy.daily_budget:
            return (
                f"budget: {recent} retrainings of {model_name} in 24 hours, {policy.daily_budget} are allowed"
            )
        return None


def _decide_one(measurement: Measurement, state: SignalState, round_: _Round) -> Decision:
    policy, now = round_.policy, round_.now
    elapsed = 0.0 if state.decided_at is None else (now - state.decided_at).total_seconds() / 60
    previous = state.last_reading
    horizon = now - max(DAY, timedelta(minutes=policy.cooldown_minutes))
    state = replace(
        state,
        decided_at=now,
        starts={attempt: start for attempt, start in state.starts.items() if start > horizon},
    )
    if measurement.status == "cannot_say":
        held = f"; the episode {state.episode_id} stays as it is" if state.is_open else ""
        return round_.answer(
            measurement,
            replace(state, last_reading="cannot_say"),
            "wait",
            f"cannot say, {measurement.reason}{held}",
        )
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
            " before anything was started" if state.phase == "firing" and not state.attempt_id else ""
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
    if state.phase == "firing":
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
        return round_.answer(
            measurement,
            replace(state, phase="acknowledged", is_reviewed=action == "review"),
            action,
            f"above its limit: {measurement.reason}",
        )
    if state.failure_count >= policy.failure_limit:
        return _ask_a_person(
            measurement,
            state,
            round_,
            f"{state.failure_count} retrainings of {model_name} failed in this episode, the last "
            f"{state.attempt_id}: {policy.failure_limit} is the limit",
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
    obstacle = round_.obstacle(model_name)
    if obstacle is not None:
        if review_due:
            round_.reviewed.add(model_name)
            return round_.answer(
                measurement,
                replace(state, is_reviewed=True),
                "review",
                f"a person should look: {measurement.reason}; not retrained because {obstacle}",
            )
        return round_.answer(measurement, state, "wait", f"not retrained because {obstacle}")
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
        is_reviewed=state.is_reviewed or rule.also_review,
        starts={**state.starts, attempt_id: round_.now},
    )
    return round_.answer(
        measurement,
        state,
        "retrain",
        f"retrain {model_name}{retry}: {measurement.reason}{_regime(measurement, round_)}",
        also_review=review_due,
    )


def _ask_a_person(measurement: Measurement, state: SignalState, round_: _Round, explanation: str) -> Decision:
    state = replace(state, phase="human", is_reviewed=True)
    attempt_id = state.attempt_id or ""
    if attempt_id in round_.handed_over:
        return round_.answer(
            measurement, state, "none", f"a person was asked for another signal: {explanation}"
        )
    round_.handed_over.add(attempt_id)
    return round_.answer(measurement, state, "review", f"a person should look: {explanation}")


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


def _zoned(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text} has no zone")
    return moment
