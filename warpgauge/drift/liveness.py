"""Which runs are dead: killed ones whose record still says that they run.

A killed process tells nobody. A guard such as "one retraining at a time" that believes its record is silenced for
days, and one that goes by age alone ends a long training that lives. So a run is dead where its process is known to
be gone, or where it has given no sign of life for longer than a living one would be silent.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from warpgauge.errors import SettingsError

# States of Prefect: what is over, what works or should, and what nobody has begun.
OVER = ("COMPLETED", "FAILED", "CANCELLED", "CRASHED")
WORKING = ("RUNNING", "CANCELLING")
BEGUN = ("PENDING", *WORKING)


@dataclass(frozen=True)
class Run:
    """What is known of one run; times have a zone.

    Attributes:
        state: Type of its state, as Prefect names it.
        created_at: When it was asked for, or due.
        started_at: When it began; None if it did not.
        last_sign_at: Its newest event, heartbeat or change of state; None where there is none.
        is_process_gone: Its process runs no more; None where that cannot be told.
    """

    state: str
    created_at: datetime | None = None
    started_at: datetime | None = None
    last_sign_at: datetime | None = None
    is_process_gone: bool | None = None


def is_dead(run: Run, now: datetime, limit: timedelta) -> bool:
    """Whether a run that is not over was killed, or was taken and never begun.

    Args:
        run: The run; one that is over, paused, or waits to be taken is not dead.
        now: With time zone.
        limit: A living run is never silent for this long, and one that was taken begins within it.

    Raises:
        SettingsError: If a time has no zone, or the limit is not positive.
    """
    if run.state not in BEGUN:
        return False
    if run.is_process_gone is not None:
        return run.is_process_gone
    silence = silent_for(run, now, limit)
    return silence is not None and silence > limit


def silent_for(run: Run, now: datetime, limit: timedelta) -> timedelta | None:
    """Time since the run's last sign of life; None where it gave none that can be believed.

    A sign from further ahead than the limit is a wrong clock's and says nothing.

    Raises:
        SettingsError: As `is_dead`.
    """
    signs = [sign for sign in (run.last_sign_at, run.started_at, run.created_at) if sign is not None]
    if limit <= timedelta(0):
        raise SettingsError(f"a run's silence is limited to {limit}; the limit must be positive")
    if any(moment.tzinfo is None for moment in (now, *signs)):
        raise SettingsError("a time of a run has no zone; give it one, for example UTC")
    believed = [sign for sign in signs if sign <= now + limit]
    return max(now - max(believed), timedelta(0)) if believed else None


def is_one_running(runs: Iterable[Run], now: datetime, limit: timedelta) -> bool:
    """Whether a living run has begun or was taken: what "one at a time" asks.

    Raises:
        SettingsError: As `is_dead`.
    """
    return any(run.state in BEGUN and not is_dead(run, now, limit) for run in runs)
