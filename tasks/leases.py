"""Single flight: one training of one model at a time, on one machine or on many.

A lease is a row that its holder keeps fresh. A holder whose process is gone from this machine, or that
gave no sign of life for `monitor_lease_minutes`, is dead, and its lease is taken over.
"""

from __future__ import annotations

import logging
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from tasks import flow_runs
from tasks.processes import is_running, process_name
from tasks.storage import Store
from warpgauge.errors import ServiceUnavailableError
from warpgauge.settings import load_settings

LOGGER = logging.getLogger("warpgauge")
HEARTBEAT_SECONDS = 30.0
FREE = ""
# Leases of this very process, job by holder: one of its name that is not here was let go, though the store was away.
_HELD_HERE: dict[str, str] = {}


@dataclass(frozen=True)
class Lease:
    """A job that somebody holds, or held when he died.

    Attributes:
        job: Name of the job.
        holder: Process and random part, see `tasks/processes.py`.
        acquired_at, heartbeat_at: When it was taken, and the last sign of life.
        flow_run_id: Prefect's flow run that the holder worked in, None outside of one.
        is_alive: The holder lives, as far as can be told.
    """

    job: str
    holder: str
    acquired_at: datetime
    heartbeat_at: datetime
    flow_run_id: str | None
    is_alive: bool


@contextmanager
def hold(job: str) -> Iterator[None]:
    """Hold the job's lease while the block runs.

    Raises:
        ServiceUnavailableError: If a living holder has it.
    """
    store = Store()
    holder = f"{process_name()}/{uuid.uuid4().hex[:8]}"
    _HELD_HERE[holder] = job
    try:
        flow_runs.sign()
        _take(store, job, holder)
        ended = threading.Event()
        heart = threading.Thread(
            target=_beat, args=(store, job, holder, ended), name=f"lease {job}", daemon=True
        )
        heart.start()
        try:
            yield
        finally:
            ended.set()
            heart.join()
            _write_or_warn(store, job, FREE, holder)
    finally:
        del _HELD_HERE[holder]


def _beat(store: Store, job: str, holder: str, ended: threading.Event) -> None:
    """Give a sign of life until the work has ended, several within the time that counts as dead."""
    pause_seconds = min(HEARTBEAT_SECONDS, load_settings().monitor_lease_minutes * 60 / 4)
    while not ended.wait(pause_seconds):
        _write_or_warn(store, job, holder, holder)


def _write_or_warn(store: Store, job: str, new_holder: str, holder: str) -> None:
    """Write a lease that is ours. A store that is away for a moment must neither stop the heart nor hide how
    the work itself ended: the next beat tries again, and a lease that was not released dies with its process.
    """
    try:
        if not _write(store, job, new_holder, only_if_held_by=holder):
            LOGGER.warning("lease %s was taken over: %s gave no sign of life in time", job, holder)
    except ServiceUnavailableError as error:
        LOGGER.warning("lease %s could not be written: %s", job, error)


def is_held(job: str) -> bool:
    """Whether a living holder has the job's lease."""
    return any(lease.job == job and lease.is_alive for lease in list_leases())


def held_here(job: str) -> str | None:
    """This process's name as the holder of the job's lease, None where it does not hold it."""
    return next((holder for holder, held in _HELD_HERE.items() if held == job), None)


def list_leases() -> list[Lease]:
    """Every lease that was not let go: the living, and those whose holder died."""
    rows = Store().read("leases").filter(pl.col("holder") != FREE).sort("job").collect()
    return [
        Lease(
            row["job"],
            row["holder"],
            row["acquired_at"],
            row["heartbeat_at"],
            row["flow_run_id"],
            _is_alive(row),
        )
        for row in rows.iter_rows(named=True)
    ]


def free(lease: Lease) -> bool:
    """Let go of a dead holder's lease; False where somebody else took it meanwhile."""
    return _write(Store(), lease.job, FREE, only_if_held_by=lease.holder)


def _take(store: Store, job: str, holder: str) -> None:
    current = store.read("leases").filter(pl.col("job") == job).collect()
    if not current.is_empty() and _is_alive(current.row(0, named=True)):
        row = current.row(0, named=True)
        raise ServiceUnavailableError(
            f"{job!r} is already running (holder {row['holder']}, last sign of life {row['heartbeat_at']:%Y-%m-%d %H:%M:%S} UTC); "
            "wait for it to end"
        )
    previous = FREE if current.is_empty() else current["holder"][0]
    if not _write(store, job, holder, only_if_held_by=previous):
        raise ServiceUnavailableError(
            f"{job!r} was started by another process at the same moment; wait for it to end"
        )


def _write(store: Store, job: str, holder: str, only_if_held_by: str) -> bool:
    """Write the holder of a job unless somebody else holds it by now."""
    while True:
        version = store.version("leases")
        rows = store.read("leases").collect()
        mine = rows.filter(pl.col("job") == job)
        if (FREE if mine.is_empty() else mine["holder"][0]) != only_if_held_by:
            return False
        now = datetime.now(UTC)
        is_beat = holder == only_if_held_by and not mine.is_empty()
        acquired = mine["acquired_at"][0] if is_beat else now
        flow_run_id = mine["flow_run_id"][0] if is_beat else flow_runs.current_id()
        row = pl.DataFrame(
            {
                "job": [job],
                "holder": [holder],
                "acquired_at": [acquired],
                "heartbeat_at": [now],
                "flow_run_id": [None if holder == FREE else flow_run_id],
            },
            schema=rows.schema,
        )
        if store.replace("leases", pl.concat([rows.filter(pl.col("job") != job), row]), version):
            return True


def _is_alive(row: dict[str, Any]) -> bool:
    holder = row["holder"] or FREE
    process = holder.rpartition("/")[0]
    is_left = process == process_name() and holder not in _HELD_HERE
    if holder == FREE or is_left or is_running(process) is False:
        return False
    # A sign of life from far ahead is a wrong clock's, and must not hold the job until then.
    age: timedelta = abs(datetime.now(UTC) - row["heartbeat_at"])
    return age < timedelta(minutes=load_settings().monitor_lease_minutes)
