"""Where one signal on one subject stands: what the `state` column of `decisions` holds."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, get_args

import polars as pl

from warpgauge.errors import SchemaError

Phase = Literal["quiet", "pending", "firing", "cooling", "acting", "acknowledged", "human"]
Outcome = Literal["running", "promoted", "held", "refused", "failed"]
PHASES: tuple[str, ...] = get_args(Phase)
OUTCOMES: tuple[str, ...] = get_args(Outcome)
TIMES = ("opened_at", "decided_at", "attempted_at", "asked_at", "blind_since")


@dataclass(frozen=True)
class SignalState:
    """Where one signal on one subject stands; JSON-ready, kept in the `state` column of `decisions`.

    Attributes:
        phase: `quiet`; `pending` (tripped, not yet for long enough); `firing` (the episode is open, its action is
            due); `cooling` (it is due, and waits for the model's cool-down or budget); `acting` (an attempt was
            started); `acknowledged` (answered, the episode is open); `human` (a person was asked, and nothing is
            done before the answer).
        episode_id, opened_at: Of the open episode.
        tripped_minutes: Measured time above the limit, in the phase or since the last promotion.
        quiet_minutes: Measured time below the limit since the signal was last tripped: the re-arm clock.
        last_reading: What the last decision saw.
        decided_at: When it was; a decision for the same or an earlier time changes nothing.
        attempt_id, attempted_at, outcome: The last attempt of the episode.
        failure_count: Failed attempts of the episode.
        is_reviewed: The human queue was filled for the episode.
        asked_at, asked_version: When a person was asked, and the champion of that time: a later label or another
            champion is the answer.
        blind_since: Since when the signal, which should say something, cannot.
        alerted: Causes that a person was told of, once an episode.
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
    asked_at: datetime | None = None
    asked_version: str | None = None
    blind_since: datetime | None = None
    alerted: tuple[str, ...] = ()
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
            for name in TIMES:
                # A state of an older release lacks the later fields.
                if document.get(name) is not None:
                    document[name] = _zoned(document[name])
            document["alerted"] = tuple(document.get("alerted", ()))
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


def latest_states(
    decisions: pl.DataFrame, not_after: datetime | None = None
) -> dict[tuple[str, str], SignalState]:
    """The last state of each (signal, subject) in rows of `tables.DECISIONS`.

    Args:
        decisions: Columns signal, subject, decided_at and state.
        not_after: Rows decided later than this are left out: a monitor whose clock is ahead must not make all others
            deaf until then.

    Raises:
        SchemaError: If a column is absent or a state cannot be read.
    """
    needed = ("signal", "subject", "decided_at", "state")
    missing = [name for name in needed if name not in decisions.columns]
    if missing:
        raise SchemaError(f"decisions: column {', '.join(missing)} is absent")
    if not_after is not None:
        decisions = decisions.filter(pl.col("decided_at") <= not_after)
    latest = decisions.sort("decided_at", maintain_order=True).unique(["signal", "subject"], keep="last")
    return {
        (signal, subject): SignalState.from_json(state)
        for signal, subject, state in latest.select("signal", "subject", "state").iter_rows()
    }


def _zoned(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text} has no zone")
    return moment
