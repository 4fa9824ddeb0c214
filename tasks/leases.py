"""Single flight: one training of one model at a time, on one machine or on many.

A lease is a row that its holder keeps fresh. A holder whose process is gone from this machine, or that
gave no sign of life for `monitor_lease_minutes`, is dead, and its lease is taken over.
"""

from __future__ import annotations

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

HEARTBEAT_SECONDS = 30.0
FREE = ""


@contextmanager
def hold(job: str) -> Iterator[None]:
    """Hold the job's lease while the block runs.

    Raises:
        ServiceUnavailableError: If a living holder has it.
    """
    store = Store()
    holder = f"{socket.gethostname()}/{os.getpid()}/{uuid.uuid4().hex[:8]}"
    _take(store, job, holder)
    ended = threading.Event()

    def beat() -> None:
        while not ended.wait(HEARTBEAT_SECONDS):
            _write(store, job, holder, only_if_held_by=holder)

    heart = threading.Thread(target=beat, name=f"lease {job}", daemon=True)
    heart.start()
    try:
        yield
    finally:
        ended.set()
        heart.join()
        _write(store, job, FREE, only_if_held_by=holder)


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
    holder = str(row["holder"])
    if holder == FREE:
        return False
    host, pid, _ = holder.split("/")
    if host == socket.gethostname() and not _process_exists(int(pid)):
        return False
    age: timedelta = datetime.now(UTC) - row["heartbeat_at"]
    return age < timedelta(minutes=load_settings().monitor_lease_minutes)


def _process_exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
