"""What the monitor saw and did over time, out of the `decisions` table: for pages, pictures and counters.

A month of rounds every five minutes is 8,640 rows a signal. A picture has some hundred columns of pixels, so each
column keeps the extremes of its rounds: one round above its limit in a month stays visible. What could not be said is
kept apart from what was not asked.

States that older versions wrote are read as far as they tell something; what they lack is unknown, not an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple

import polars as pl

HISTORY = timedelta(days=30)
DAY = timedelta(days=1)
# Pixels of a picture's plot, one column of rounds each.
SLOT_COUNT = 368
# Actions that do something.
TAKEN = ("retrain", "review", "alert")
LARGEST = 1e300
CLOSED = ("quiet", "pending")
UNKNOWN_PHASE = "unknown"
Key = tuple[str, str]  # signal, subject


class Slot(NamedTuple):
    """The rounds of one signal that fall into one column of a picture.

    Attributes:
        place: Which column, from 0.
        low, high: Extremes of the value; None where no round could say.
        lower, upper: The widest interval.
        last, limit: As of the newest round that could say.
        round_count, blind_count: Rounds, and those that could not say.
        is_open: An episode was open in one of them.
        at: Time of the newest round.
    """

    place: int
    low: float | None
    high: float | None
    lower: float | None
    upper: float | None
    last: float | None
    limit: float | None
    round_count: int
    blind_count: int
    is_open: bool
    at: datetime


class Marker(NamedTuple):
    """Something that happened at a moment: `ordered`, `promoted`, `held`, `refused`, `failed`, `asked`, `alerted`."""

    at: datetime
    kind: str
    said: str


class Ending(NamedTuple):
    """How a retraining ended: outcome, when (None where only a later round noticed nothing of it), and why."""

    outcome: str
    at: datetime | None
    why: str


@dataclass(frozen=True)
class Episode:
    """One episode of a signal on a subject.

    Attributes:
        opened_at, last_seen_at: First and last round of it.
        closed_at: None while it is open.
        phase: As of the last round.
        attempts: Ids of its retrainings, in their order.
        outcome: Of the last one; None without one, `running` while it runs.
        failure_count: Retrainings of it that failed.
        reason: Of the last round.
    """

    episode_id: str
    signal: str
    subject: str
    model_name: str | None
    opened_at: datetime
    last_seen_at: datetime
    closed_at: datetime | None
    phase: str
    attempts: tuple[str, ...]
    outcome: str | None
    failure_count: int
    reason: str


@dataclass(frozen=True)
class Timeline:
    """What is drawn and told of the past.

    Attributes:
        start, end: Of the history at hand; `end` is the round.
        month, day: Slots of each signal, over the whole history and over its last day.
        markers: Of each signal, oldest first.
        episodes: Newest first.
        is_changed: In this round a phase changed, something was done, or it is the first one of its day.
    """

    start: datetime
    end: datetime
    month: Mapping[Key, Sequence[Slot]] = field(default_factory=dict)
    day: Mapping[Key, Sequence[Slot]] = field(default_factory=dict)
    markers: Mapping[Key, Sequence[Marker]] = field(default_factory=dict)
    episodes: Sequence[Episode] = ()
    is_changed: bool = True

    @property
    def day_start(self) -> datetime:
        """Where the pictures of the last day begin."""
        return max(self.start, self.end - DAY)


def of_state(name: str, pattern: str = r'"((?:[^"\\]|\\.)*)"') -> pl.Expr:
    """A field of the JSON in the `state` column as text; null where the state has none."""
    return pl.col("state").str.extract(rf'"{name}":\s*{pattern}')


def recent(decisions: pl.LazyFrame, end: datetime) -> pl.LazyFrame:
    """The history that a `Timeline` is made of: the rows of the last 30 days, long texts only where they tell something.

    Args:
        decisions: Rows of `tables.DECISIONS`.
        end: Time of the round; later rows are those of another clock, and left out.
    """
    is_notable = (
        pl.col("episode_id").is_not_null()
        | pl.col("action").is_in(TAKEN)
        | pl.col("alert_cause").is_not_null()
    )

    def finite(name: str) -> pl.Expr:
        # Differences of the largest numbers there are would not be finite.
        return pl.when(pl.col(name).is_finite()).then(pl.col(name).clip(-LARGEST, LARGEST))

    return (
        decisions.filter(pl.col("decided_at").is_between(end - HISTORY, end))
        .with_columns(
            of_state("phase").fill_null(UNKNOWN_PHASE).alias("phase"),
            pl.when(is_notable).then("state").alias("state"),
            pl.when(is_notable).then("reason").alias("reason"),
            *(finite(name).alias(name) for name in ("value", "lower", "upper", "limit")),
        )
        .select(
            "decided_at",
            "signal",
            "subject",
            "model_name",
            "status",
            "value",
            "lower",
            "upper",
            "limit",
            "action",
            "alert_cause",
            "reason",
            "episode_id",
            "phase",
            of_state("opened_at").alias("opened_at"),
            of_state("attempt_id").alias("attempt_id"),
            of_state("outcome").alias("outcome"),
            of_state("failure_count", r"(\d{1,9})").cast(pl.Int64, strict=False).alias("failure_count"),
        )
        .sort("decided_at", maintain_order=True)
    )


def build_timeline(
    history: pl.DataFrame, end: datetime, attempts: Sequence[Mapping[str, Any]] = ()
) -> Timeline:
    """The timeline as of a round.

    Args:
        history: Of `recent`.
        end: Time of the round, with time zone.
        attempts: Retrainings as they are kept elsewhere: `attempt_id`, `started_at`, `outcome`, `why`, `wall_s`. Their
            word counts more than the states': an episode may be over before its retraining is.
    """
    if history.is_empty():
        return Timeline(end - timedelta(hours=1), end)
    first = history["decided_at"].min()
    assert isinstance(first, datetime)
    # A picture needs a width in time, also where there was one round only.
    start = min(first, end - timedelta(hours=1))
    kept = _endings_kept(attempts)
    return Timeline(
        start=start,
        end=end,
        month=_slots(history, start, end),
        day=_slots(history, max(start, end - DAY), end),
        markers=_markers(history, kept),
        episodes=_episodes(history, kept),
        is_changed=_is_changed(history, end),
    )


def _slots(history: pl.DataFrame, start: datetime, end: datetime) -> dict[Key, list[Slot]]:
    width_us = max(1, int((end - start) / timedelta(microseconds=1)) // SLOT_COUNT + 1)
    since_us = (pl.col("decided_at") - start).dt.total_microseconds()
    is_blind = pl.col("status") == "cannot_say"
    grouped = (
        history.filter(pl.col("decided_at") >= start)
        .group_by("signal", "subject", (since_us // width_us).alias("place"))
        .agg(
            pl.col("value").min().alias("low"),
            pl.col("value").max().alias("high"),
            pl.col("lower").min(),
            pl.col("upper").max(),
            pl.col("value").drop_nulls().last().alias("last"),
            pl.col("limit").drop_nulls().last(),
            pl.len().alias("round_count"),
            is_blind.sum().alias("blind_count"),
            pl.col("episode_id").is_not_null().any().alias("is_open"),
            pl.col("decided_at").max().alias("at"),
        )
        .sort("signal", "subject", "place")
    )
    slots: dict[Key, list[Slot]] = {}
    for signal, subject, *rest in grouped.iter_rows():
        slots.setdefault((signal, subject), []).append(Slot(*rest))
    return slots


def _endings_kept(attempts: Sequence[Mapping[str, Any]]) -> dict[str, Ending]:
    endings = {}
    for one in attempts:
        wall_s = one.get("wall_s")
        at = one["started_at"] + timedelta(seconds=wall_s) if wall_s is not None else None
        endings[str(one["attempt_id"])] = Ending(str(one["outcome"]), at, str(one.get("why") or ""))
    return endings


def _markers(history: pl.DataFrame, kept: Mapping[str, Ending]) -> dict[Key, list[Marker]]:
    markers: dict[Key, list[Marker]] = {}
    kinds = {"retrain": "ordered", "review": "asked"}
    taken = history.filter(_is_taken()).select("signal", "subject", "decided_at", "action", "reason")
    for signal, subject, at, action, reason in taken.iter_rows():
        kind = kinds.get(action, "alerted")
        markers.setdefault((signal, subject), []).append(Marker(at, kind, reason or ""))
    for (signal, subject, attempt_id), ending in _endings(history, kept).items():
        if ending.at is not None and ending.outcome != "running":
            said = f"retraining {attempt_id}: {ending.outcome}{': ' if ending.why else ''}{ending.why}"
            markers.setdefault((signal, subject), []).append(Marker(ending.at, ending.outcome, said))
    return {key: sorted(found) for key, found in markers.items()}


def _endings(history: pl.DataFrame, kept: Mapping[str, Ending]) -> dict[tuple[str, str, str], Ending]:
    """How each retraining ended that a signal ordered or was covered by."""
    has_ended = pl.col("outcome") != "running"
    found = (
        history.filter(pl.col("attempt_id").is_not_null())
        .group_by("signal", "subject", "attempt_id", maintain_order=True)
        .agg(
            pl.col("decided_at").first().alias("first_at"),
            pl.col("outcome").filter(has_ended).first(),
            pl.col("decided_at").filter(has_ended).first().alias("ended_at"),
        )
    )
    endings: dict[tuple[str, str, str], Ending] = {}
    newest: dict[Key, str] = {}
    for signal, subject, attempt_id, first_at, outcome, ended_at in found.iter_rows():
        before = newest.get((signal, subject))
        if before is not None and endings[signal, subject, before].outcome == "running":
            # An episode tries again only after a failure, and in that very round.
            is_retry = before.rpartition("/")[0] == attempt_id.rpartition("/")[0]
            outcome_before = "failed" if is_retry else "unknown"
            endings[signal, subject, before] = Ending(outcome_before, first_at if is_retry else None, "")
        newest[signal, subject] = attempt_id
        endings[signal, subject, attempt_id] = Ending(outcome or "running", ended_at, "")
    return {key: kept.get(key[2], ending) for key, ending in endings.items()}


def _episodes(history: pl.DataFrame, kept: Mapping[str, Ending]) -> list[Episode]:
    ends = history.group_by("signal", "subject").agg(pl.col("decided_at").max())
    newest = {(signal, subject): at for signal, subject, at in ends.iter_rows()}
    found = (
        history.filter(pl.col("episode_id").is_not_null())
        .group_by("signal", "subject", "episode_id", maintain_order=True)
        .agg(
            pl.col("model_name").last(),
            pl.col("opened_at").drop_nulls().first(),
            pl.col("decided_at").first().alias("first_seen_at"),
            pl.col("decided_at").last().alias("last_seen_at"),
            pl.col("phase").last(),
            pl.col("attempt_id").drop_nulls().unique(maintain_order=True).alias("attempts"),
            pl.col("outcome").drop_nulls().last(),
            pl.col("failure_count").max(),
            pl.col("reason").last(),
        )
    )
    episodes = []
    for row in found.iter_rows(named=True):
        attempts = tuple(row["attempts"])
        outcome = row["outcome"]
        if attempts and attempts[-1] in kept:
            outcome = kept[attempts[-1]].outcome
        is_over = row["phase"] in CLOSED or row["last_seen_at"] < newest[row["signal"], row["subject"]]
        episodes.append(
            Episode(
                episode_id=row["episode_id"],
                signal=row["signal"],
                subject=row["subject"],
                model_name=row["model_name"],
                opened_at=_moment(row["opened_at"]) or row["first_seen_at"],
                last_seen_at=row["last_seen_at"],
                closed_at=row["last_seen_at"] if is_over else None,
                phase=row["phase"],
                attempts=attempts,
                outcome=outcome,
                failure_count=row["failure_count"] or 0,
                reason=row["reason"] or "",
            )
        )
    episodes.sort(key=lambda one: (one.signal, one.subject))
    return sorted(episodes, key=lambda one: one.opened_at, reverse=True)


def _is_taken() -> pl.Expr:
    """Whether something was done beyond deciding; an alert may come with any action."""
    return pl.col("action").is_in(TAKEN) | pl.col("alert_cause").is_not_null()


def _moment(text: str | None) -> datetime | None:
    """A time that a state names; None where it names none that can be read."""
    try:
        moment = datetime.fromisoformat(text or "")
    except ValueError:
        return None
    return moment if moment.tzinfo else None


def _is_changed(history: pl.DataFrame, end: datetime) -> bool:
    """Whether the round is worth more than a glance: a phase changed, something was done, or a day began."""
    newest = history.filter(pl.col("decided_at") == end)
    before = history.filter(pl.col("decided_at") < end)
    if before.is_empty() or newest.select(_is_taken().any()).item():
        return True
    last = before["decided_at"].max()
    assert isinstance(last, datetime)
    if last.astimezone(UTC).date() != end.astimezone(UTC).date():
        return True
    keys = ["signal", "subject"]
    phases = before.group_by(keys).agg(pl.col("phase").last().alias("phase_before"))
    joined = newest.join(phases, on=keys, how="left")
    return bool(joined.select((pl.col("phase") != pl.col("phase_before")).fill_null(True).any()).item())
