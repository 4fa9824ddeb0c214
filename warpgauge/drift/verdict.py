"""What one round of the monitor comes to: in a sentence, and signal by signal.

"Cannot say" is neither quiet nor an alarm, so it is always said beside the rest; a round in which nothing could be
said is blind, not quiet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from warpgauge.drift.measurement import CAUSES
from warpgauge.drift.timeline import CLOSED, TAKEN, UNKNOWN_PHASE, Timeline

Level = Literal["person", "act", "open", "blind", "quiet"]
# Signal -> what is measured, and the unit of its value.
MEASURED = {
    "utilization_p95": ("GPU utilization, 95th percentile", "%"),
    "residuals": ("Prediction residuals", "standard errors"),
    "embedding_variance": ("Documents' variance along axis 3, change", ""),
    "embedding_mean": ("Documents' mean embedding", ""),
    "embedding_shift": ("Documents' distribution of embeddings", ""),
    "label_shift": ("Kinds of defects by product version", ""),
    "data_quality": ("Share of rows nobody may use", ""),
}
PHASE_WORDS = {
    "quiet": "quiet",
    "pending": "above its limit, not for long enough",
    "firing": "episode open, action due",
    "acting": "retraining at work",
    "acknowledged": "answered, episode open",
    "cooling": "episode open, cooling down",
    "human": "waits for a person",
    UNKNOWN_PHASE: "state unknown",
}
WAITS_FOR = {
    "firing": "its action, which is due",
    "acting": "its retraining to end",
    "acknowledged": "the signal to stay within its limit",
    "cooling": "the cool-down to end",
    "human": "a person",
}
# Worst first.
_ORDER = ("human", "firing", "acting", "acknowledged", "cooling", "pending", UNKNOWN_PHASE, "quiet")


@dataclass(frozen=True)
class Round:
    """One run of the monitor, with all that is told of it.

    Attributes:
        run_id: Of the monitor's run.
        decided_at: With time zone.
        rows: Its decisions, records of `tables.DECISIONS`.
        timeline: What came before, and this round.
        retrained: Retrainings that ran within it: `model_name`, `outcome`, `is_failed`.
        undelivered: Alerts that nobody took yet, records of `tables.ALERTS`; None where that is not known.
    """

    run_id: str
    decided_at: datetime
    rows: Sequence[Mapping[str, Any]]
    timeline: Timeline
    retrained: Sequence[Mapping[str, Any]] = ()
    undelivered: Sequence[Mapping[str, Any]] | None = None


def phase_of(row: Mapping[str, Any]) -> str:
    """The phase that a row's state names; `unknown` where it names none."""
    try:
        phase = json.loads(row["state"])["phase"]
    except (ValueError, TypeError, KeyError):
        return UNKNOWN_PHASE
    return phase if isinstance(phase, str) and phase else UNKNOWN_PHASE


def cause_of(row: Mapping[str, Any]) -> str | None:
    """Why a row cannot say, as a word that `Measurement` knows; None where there is a number."""
    if row["status"] == "measured":
        return None
    said = str(row["reason"]).removeprefix("cannot say, ")
    return next((cause for cause in CAUSES if said.startswith(cause)), "unknown")


def is_open(phase: str) -> bool:
    """Whether an episode is open in a phase; of a phase that is not known, that is not known."""
    return phase not in (*CLOSED, UNKNOWN_PHASE)


def title_of(signal: str) -> str:
    """What a signal measures; its name, where it is one of a newer version."""
    return MEASURED.get(signal, (signal, ""))[0]


def unit_of(signal: str) -> str:
    """Unit of a signal's value; empty where it has none."""
    return MEASURED.get(signal, (signal, ""))[1]


def nearness(row: Mapping[str, Any]) -> float:
    """Value over limit; 0 where there is none of both."""
    value, limit = row["value"], row["limit"]
    return float(value / limit) if value is not None and limit else 0.0


def worst_first(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Rows in the order in which a person should look at them: open episodes, what cannot say, quiet ones."""

    def place(row: Mapping[str, Any]) -> tuple[int, bool, float, str, str]:
        phase = phase_of(row)
        rank = _ORDER.index(phase) if phase in _ORDER else _ORDER.index(UNKNOWN_PHASE)
        return rank, row["status"] == "measured", -nearness(row), row["signal"], row["subject"]

    return sorted(rows, key=place)


def slices_of(row: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The slices among a row's details; none where the details cannot be read."""
    try:
        slices = json.loads(row.get("details") or "{}")["slices"]
    except (ValueError, TypeError, KeyError):
        return []
    return [one for one in slices if isinstance(one, dict)] if isinstance(slices, list) else []


def judge(round_: Round) -> tuple[str, Level]:
    """The round in a sentence, and how much it wants of whoever reads it."""
    rows = round_.rows
    if not rows:
        return "Nothing was measured", "blind"
    phases = [(row, phase_of(row)) for row in rows]
    ordered = sorted({str(row["model_name"]) for row in rows if row["action"] == "retrain"})
    asked = [row for row in rows if row["action"] == "review"]
    alerted = [row for row in rows if row["action"] == "alert" or (row["alert_cause"] and row not in asked)]
    still_open = [(row, phase) for row, phase in phases if is_open(phase) and row["action"] not in TAKEN]
    waiting = [row for row, phase in still_open if phase == "human"]
    others = [row for row, phase in still_open if phase != "human"]
    pending = [row for row, phase in phases if phase == "pending"]
    blind = sum(row["status"] != "measured" for row in rows)
    clauses = [
        f"retraining of {one['model_name']} ended here: {str(one['outcome']).partition(':')[0]}"
        for one in round_.retrained
    ]
    clauses += [f"{_count(len(ordered), 'retraining')} ordered: {', '.join(ordered)}"] if ordered else []
    clauses += [f"a person is asked: {_named(asked)}"] if asked else []
    clauses += [f"{_count(len(alerted), 'alert')}: {_named(alerted)}"] if alerted else []
    if waiting:
        clauses.append(f"{_count(len(waiting), 'open episode')} for a person to end: {_named(waiting)}")
    clauses += [f"{_count(len(others), 'episode')} open: {_named(others)}"] if others else []
    clauses += [f"{_count(len(pending), 'signal')} above the limit, not for long enough"] if pending else []
    if blind == len(rows):
        clauses.append(f"blind: none of {_count(blind, 'signal')} can say")
    elif blind:
        clauses += [] if clauses else ["all quiet"]
        clauses.append(f"{blind} of {_count(len(rows), 'signal')} cannot say")
    elif not clauses:
        clauses.append(f"all quiet: {_count(len(rows), 'signal')} measured, each within its limit")
    sentence = "; ".join(clauses)
    is_failed = any(one.get("is_failed") for one in round_.retrained)
    levels: list[tuple[Any, Level]] = [
        (asked or alerted or waiting or is_failed, "person"),
        (ordered or round_.retrained, "act"),
        (others or pending, "open"),
        (blind, "blind"),
    ]
    level: Level = next((name for holds, name in levels if holds), "quiet")
    return sentence[0].upper() + sentence[1:], level


def _count(count: int, what: str) -> str:
    return f"{count} {what}{'' if count == 1 else 's'}"


def _named(rows: Sequence[Mapping[str, Any]]) -> str:
    """The first of them by name, and how many more."""
    names = [f"{row['signal']} of {row['subject']}" for row in rows]
    return ", ".join(names[:2]) + (f" and {len(names) - 2} more" if len(names) > 2 else "")
