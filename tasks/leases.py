"""Single flight: one training of one model at a time, on one machine or on many.

A lease is a row that its holder keeps fresh. A holder whose process is gone from this machine, or that
gave no sign of life for `monitor_lease_minutes`, is dead, and its lease is taken over.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any

import polars as pl

from tasks.storage import Store
from warpgauge.errors import ServiceUnavailableError
from warpgauge.settings import load_settings

LOGGER = logging.getLogger("warpgauge")
HEARTBEAT_SECONDS = 30.0
FREE = ""
# Leases of this very process: a restarted container has the host name and the process id of the one that
# died, so a lease under this process's id that is not here is a dead one's.
_HELD_HERE: set[str] = set()


@contextmanager
def hold(job: str) -> Iterator[None]:
    """Hold the job's lease while the block runs.

    Raises:
        ServiceUnavailableError: If a living holder has it.
    """
    store = Store()
    holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
    _HELD_HERE.add(holder)
    try:
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
        _HELD_HERE.discard(holder)


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
    rows = Store().read("leases").filter(pl.col("job") == job).collect()
    return not rows.is_empty() and _is_alive(rows.row(0, named=True))


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
        acquired = now if mine.is_empty() or holder != only_if_held_by else mine["acquired_at"][0]
        row = pl.DataFrame(
            {"job": [job], "holder": [holder], "acquired_at": [acquired], "heartbeat_at": [now]},
            schema=rows.schema,
        )
        if store.replace("leases", pl.concat([rows.filter(pl.col("job") != job), row]), version):
            return True


def _is_alive(row: dict[str, Any]) -> bool:
    holder = row["holder"] or FREE
    if holder == FREE or _is_gone(holder):
        return False
    # A sign of life from far ahead is a wrong clock's, and must not hold the job until then.
    age: timedelta = abs(datetime.now(UTC) - row["heartbeat_at"])
    return age < timedelta(minutes=load_settings().monitor_lease_minutes)


def _is_gone(holder: str) -> bool:
    """Whether the holder was a process of this machine that no longer runs; False where that cannot be told."""
    host, _, process = holder.rpartition("/")[0].rpartition("/")
    if host != socket.gethostname() or not process.isdigit():
        return False
    if int(process) == os.getpid():
        return holder not in _HELD_HERE
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        return False
    return False
