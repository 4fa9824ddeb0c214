"""What the store may forget, so that it stays small for ever: old rows, old versions, old runs, old copies.

Nothing goes that a registered model version needs (`tasks/needs.py`): the table versions that it was trained on stay,
however old, and so do the runs and artifacts behind it (`tasks/old_runs.py`).

Every step can be done again: a process that is killed in between leaves what the next run removes. What somebody may
be reading now is left alone for `retention_grace_hours`, and for as long as a training that began before runs.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import polars as pl

from tasks import leases
from tasks.answers import answered_documents
from tasks.monitoring import STATE_DAYS
from tasks.needs import Needs, find_needs
from tasks.storage import Store, local_root, table_known_by
from warpgauge.errors import ServiceUnavailableError, SettingsError
from warpgauge.settings import Settings, load_settings
from warpgauge.tables import TABLES, Table

LOGGER = logging.getLogger("warpgauge")
JOB = "compact"
BYTES_PER_MB = 1_000_000
# Every night the day's files become few. A table that a model version was trained on is merged only where its files
# are so many that the store merges them by itself: the parts stay on disk beside the merged file.
MOST_FILES_OVER_NIGHT = 8
# Of these caches the entries go that were not written for the longest time; others bound themselves, or are no copies.
BOUNDED_CACHES = ("embeddings", "wheels", "compiled", "searches", "drills")
MOST_EMBEDDING_FILES = 32
EMBEDDINGS_PER_FILE = 20_000


@dataclass
class Item:
    """What became of one part of the store."""

    what: str
    before_bytes: int
    after_bytes: int
    removed: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)


@contextlib.contextmanager
def alone(dry_run: bool = False) -> Iterator[None]:
    """One compaction at a time; a dry run changes nothing, so it needs no lease.

    Raises:
        ServiceUnavailableError: If another one is at work, or the disk is too full for a lease.
    """
    with contextlib.nullcontext() if dry_run else leases.hold(JOB):
        yield


def check_retention(settings: Settings) -> None:
    """Stop before anything is forgotten that the monitor reads.

    Raises:
        SettingsError: Naming the setting.
    """
    window_days = settings.monitor_window_hours / 24
    if settings.retention_samples_days <= window_days:
        raise SettingsError(
            f"WARPGAUGE_RETENTION_SAMPLES_DAYS is {settings.retention_samples_days:g}, and the monitor looks back "
            f"{window_days:g} days (monitor_window_hours); keep the samples for longer than that"
        )
    minutes = max(
        settings.monitor_cooldown_minutes, settings.monitor_rearm_minutes, settings.monitor_for_minutes
    )
    state_days = max(STATE_DAYS, minutes / (24 * 60))
    if settings.retention_history_days <= state_days:
        raise SettingsError(
            f"WARPGAUGE_RETENTION_HISTORY_DAYS is {settings.retention_history_days:g}, and the monitor's state is read "
            f"from the decisions of {state_days:g} days; keep them for longer than that"
        )


def shrink_copies(dry_run: bool = False, now: datetime | None = None) -> dict[str, Any]:
    """Bound what can be made again or was made to be looked at: caches, and the monitor's reports.

    It comes first and needs no lease: on a full disk it frees what the others need to write.

    Returns:
        `items` and `refused`, as `summarize` takes them.
    """
    settings = load_settings()
    check_retention(settings)
    now = now or datetime.now(UTC)
    items: list[Item] = []
    refused: list[str] = []
    root = local_root()
    young = now - timedelta(hours=settings.retention_grace_hours)
    parts: dict[str, Callable[[], list[Item]]] = {
        "cache": partial(_shrink_caches, root / "cache", settings, young, dry_run),
        "reports": partial(_shrink_reports, root / "reports" / "monitor", settings, now, dry_run),
    }
    for what, shrink in parts.items():
        try:
            items += shrink()
        except (OSError, pl.exceptions.PolarsError) as error:
            refused.append(f"{what} in {root}: {error}; mend the permission or free space, and run again")
    return {"items": [asdict(item) for item in items], "refused": refused}


def list_needs(now: datetime | None = None) -> Needs:
    """What the registered versions and the trainings at work need."""
    return find_needs(now or datetime.now(UTC), load_settings().retention_grace_hours)


def compact_tables(needs: Needs, dry_run: bool = False, now: datetime | None = None) -> dict[str, Any]:
    """Drop old rows, merge small files, and forget the versions of each table that no registered model version needs.

    Args:
        needs: Of `list_needs`.
        dry_run: Change nothing, only count.
        now: Default is the clock's.

    Returns:
        `items` and `refused`, as `summarize` takes them.

    Raises:
        SettingsError: If a retention is shorter than what the monitor reads.
    """
    settings = load_settings()
    check_retention(settings)
    store = Store()
    now = now or datetime.now(UTC)
    refused: list[str] = []
    items = []
    for name in dict.fromkeys([*TABLES, *needs.tables]):
        table = table_known_by(name)
        try:
            if store.version(table) is not None:
                item, troubles = _compact_table(store, table, needs, now, settings, dry_run)
                items.append(item)
                refused += troubles
        except ServiceUnavailableError as error:
            refused.append(str(error))
    return {"items": [asdict(item) for item in items], "refused": refused}


def summarize(dry_run: bool, *parts: Mapping[str, Any]) -> dict[str, Any]:
    """One answer of all parts: what each held before and holds after, what was removed, what was kept and why."""
    items = [item for part in parts for item in part["items"]]
    return {
        "dry_run": dry_run,
        "items": [
            {
                "what": item["what"],
                "before_mb": item["before_bytes"] / BYTES_PER_MB,
                "after_mb": item["after_bytes"] / BYTES_PER_MB,
                "removed": item["removed"],
                "kept": item["kept"],
            }
            for item in items
        ],
        "before_mb": sum(item["before_bytes"] for item in items) / BYTES_PER_MB,
        "after_mb": sum(item["after_bytes"] for item in items) / BYTES_PER_MB,
        "refused": [line for part in parts for line in part["refused"]],
    }


def _compact_table(
    store: Store,
    table: Table,
    needs: Needs,
    now: datetime,
    settings: Settings,
    dry_run: bool,
) -> tuple[Item, list[str]]:
    """What became of the table, and what could not be done."""
    LOGGER.info("compact %s", table.name)
    whose = needs.tables.get(table.name, {})
    troubles = []
    size = store.size_bytes(table)
    item = Item(f"table {table.name}", size, size)
    try:
        if table.name in DROPPED:
            count, said = DROPPED[table.name](store, needs, now, settings, dry_run)
            if count:
                item.removed.append(f"{count} {said}")
        if not dry_run and not whose and (merged := store.merge_small_files(table, MOST_FILES_OVER_NIGHT)):
            item.removed.append(f"{merged} small files merged")
    except ServiceUnavailableError as error:
        # On a full disk nothing can be written; what follows frees space.
        troubles.append(str(error))
    forgotten = store.forget_versions(table, list(whose), needs.since, dry_run=dry_run)
    if forgotten.file_count:
        item.removed.append(
            f"{forgotten.file_count} files of old versions ({forgotten.size_bytes / BYTES_PER_MB:.2f} MB)"
        )
    if forgotten.waiting_bytes:
        item.kept.append(
            f"{forgotten.waiting_bytes / BYTES_PER_MB:.2f} MB that were replaced less than "
            f"{settings.retention_grace_hours:g} hours ago, or since a training began that runs"
        )
    readable = sorted(set(whose) - set(forgotten.unreadable))
    if readable:
        shown = ", ".join(map(str, readable[:8])) + (" ..." if len(readable) > 8 else "")
        item.kept.append(f"versions that models were trained on: {shown}")
    item.after_bytes = size - forgotten.size_bytes if dry_run else store.size_bytes(table)
    troubles += [
        f"{table.name} version {version}, which {' and '.join(whose[version])} was trained on, cannot be read any "
        "more; restore it from a backup, or train again"
        for version in forgotten.unreadable
    ]
    return item, troubles


Drop = Callable[[Store, Needs, datetime, Settings, bool], tuple[int, str]]


def _drop_samples(
    store: Store, _needs: Needs, now: datetime, settings: Settings, dry_run: bool
) -> tuple[int, str]:
    cutoff = now - timedelta(days=settings.retention_samples_days)
    said = f"rows older than {settings.retention_samples_days:g} days"
    return _drop_older(store, "gpu_samples", "sampled_at", cutoff, dry_run), said


def _drop_predictions(
    store: Store, _needs: Needs, now: datetime, settings: Settings, dry_run: bool
) -> tuple[int, str]:
    cutoff = now - timedelta(days=settings.retention_history_days)
    said = f"rows older than {settings.retention_history_days:g} days"
    return _drop_older(store, "predictions", "predicted_at", cutoff, dry_run), said


def _drop_alerts(
    store: Store, _needs: Needs, now: datetime, settings: Settings, dry_run: bool
) -> tuple[int, str]:
    """Alerts that were told long ago; one that still waits for the webhook stays."""
    cutoff = now - timedelta(days=settings.retention_history_days)
    is_old = (pl.col("decided_at") < cutoff) & (pl.col("outcome") != "waiting")
    said = f"alerts told more than {settings.retention_history_days:g} days ago"
    return _keep_only(store, "alerts", lambda rows: rows.filter(~is_old).collect(), dry_run), said


def _drop_older(store: Store, name: str, column: str, cutoff: datetime, dry_run: bool) -> int:
    count = store.read(name).filter(pl.col(column) < cutoff).select(pl.len()).collect().item()
    if count and not dry_run:
        return store.delete_rows(name, f"{column} < '{cutoff.isoformat()}'")
    return int(count)


def _drop_decisions(
    store: Store, _needs: Needs, now: datetime, settings: Settings, dry_run: bool
) -> tuple[int, str]:
    """Old decisions, but neither the last one on each signal nor those of an episode that it says is open."""
    cutoff = now - timedelta(days=settings.retention_history_days)
    rows = store.read("decisions").select("decision_id", "decided_at", "signal", "subject", "episode_id")
    last = rows.sort("decided_at").unique(["signal", "subject"], keep="last", maintain_order=True).collect()
    kept_ids, episodes = last["decision_id"].to_list(), last["episode_id"].drop_nulls().unique().to_list()
    is_old = (
        (pl.col("decided_at") < cutoff)
        & ~pl.col("decision_id").is_in(kept_ids)
        & ~pl.col("episode_id").is_in(episodes).fill_null(value=False)
    )
    count = int(rows.filter(is_old).select(pl.len()).collect().item())
    said = f"decisions older than {settings.retention_history_days:g} days"
    if count and not dry_run:
        predicate = f"decided_at < '{cutoff.isoformat()}' AND decision_id NOT IN ({_quoted(kept_ids)})"
        if episodes:
            predicate += f" AND (episode_id IS NULL OR episode_id NOT IN ({_quoted(episodes)}))"
        count = store.delete_rows("decisions", predicate)
    return count, said


def _quoted(values: list[str]) -> str:
    return ", ".join("'" + value.replace("'", "''") + "'" for value in values)


def _drop_answered(
    store: Store, _needs: Needs, now: datetime, settings: Settings, dry_run: bool
) -> tuple[int, str]:
    """Entries of the human queue that a person answered long ago: the label stays, the question goes."""
    cutoff = now - timedelta(days=settings.retention_history_days)
    answers = answered_documents(store).lazy()
    is_answered = (pl.col("labelled_at") >= pl.col("queued_at")) & (pl.col("labelled_at") < cutoff)
    said = f"entries that were answered more than {settings.retention_history_days:g} days ago"

    def remaining(queue: pl.LazyFrame) -> pl.DataFrame:
        joined = queue.join(answers, on="document_id", how="left", maintain_order="left")
        return joined.filter(~is_answered.fill_null(value=False)).drop("labelled_at").collect()

    return _keep_only(store, "review_queue", remaining, dry_run), said


def _drop_quarantined(
    store: Store, needs: Needs, now: datetime, settings: Settings, dry_run: bool
) -> tuple[int, str]:
    """Names of GPU samples that were too old to keep; those of rows that are still there keep them out."""
    # To the second and as text, which times are in a row's key: the order of ISO times in one zone is theirs.
    cutoff = (now - timedelta(days=settings.retention_samples_days)).isoformat(timespec="seconds")[:19]
    sampled_at = pl.col("row_key").str.json_path_match("$.sampled_at").str.slice(0, 19)
    is_old = (pl.col("table_name") == "gpu_samples") & (sampled_at < cutoff).fill_null(value=False)
    said = "rows that name GPU samples which are gone"
    if needs.tables.get("gpu_samples"):
        return 0, said
    return _keep_only(store, "quarantine", lambda rows: rows.filter(~is_old).collect(), dry_run), said


def _keep_only(
    store: Store, name: str, remaining: Callable[[pl.LazyFrame], pl.DataFrame], dry_run: bool
) -> int:
    """Write a small table again without some of its rows; how many went."""
    while True:
        version = store.version(name)
        rows = store.read(name, version)
        count = int(rows.select(pl.len()).collect().item())
        kept = remaining(rows)
        # Another writer that came first is seen, and looked at again.
        if dry_run or kept.height == count or store.replace(name, kept, version):
            return count - kept.height


DROPPED: Mapping[str, Drop] = {
    "gpu_samples": _drop_samples,
    "decisions": _drop_decisions,
    "predictions": _drop_predictions,
    "alerts": _drop_alerts,
    "review_queue": _drop_answered,
    "quarantine": _drop_quarantined,
}


def _shrink_caches(root: Path, settings: Settings, young: datetime, dry_run: bool) -> list[Item]:
    """Remove the oldest entries of the bounded caches until they fit together, but none that may be in use."""
    size = folder_bytes(root)
    item = Item("caches", size, size)
    if not root.is_dir():
        return []
    for folder in sorted((root / "embeddings").glob("*")):
        if merged := _merge_embeddings(folder, dry_run):
            item.removed.append(f"{merged} small files of {folder.name} merged")
    entries = [
        (entry.lstat().st_mtime, entry)
        for kind in BOUNDED_CACHES
        for entry in (root / kind).glob("*/*" if kind == "embeddings" else "*")
    ]
    limit = settings.retention_cache_mb * BYTES_PER_MB
    total = sum(folder_bytes(entry) for _, entry in entries)
    gone = freed = 0
    for written_at, entry in sorted(entries):
        if total - freed <= limit or written_at >= young.timestamp():
            break
        gone, freed = gone + 1, freed + folder_bytes(entry)
        if not dry_run:
            _remove(entry)
    if gone:
        item.removed.append(f"{gone} oldest entries ({freed / BYTES_PER_MB:.1f} MB)")
    if total - freed > limit:
        item.kept.append(f"{(total - freed) / BYTES_PER_MB:.0f} MB that are in use or too young to go")
    item.after_bytes = size - freed if dry_run else folder_bytes(root)
    return [item]


def _merge_embeddings(folder: Path, dry_run: bool) -> int:
    """Put the vectors of many small files into few; how many files went.

    The new files are whole before an old one goes, so a vector that is looked up meanwhile is there once or twice.
    """
    small = [
        file
        for file in sorted(folder.glob("*.parquet"), key=lambda file: file.lstat().st_mtime)
        if pl.scan_parquet(file).select(pl.len()).collect().item() < EMBEDDINGS_PER_FILE
    ]
    if len(small) <= MOST_EMBEDDING_FILES or dry_run:
        return 0
    rows = pl.concat([pl.read_parquet(file) for file in small]).unique(
        ["text_sha256", "encoder_id"], keep="first", maintain_order=True
    )
    for part in rows.iter_slices(EMBEDDINGS_PER_FILE):
        partial = folder / f".{uuid.uuid4().hex}.partial"
        part.write_parquet(partial)
        os.replace(partial, folder / f"{uuid.uuid4().hex}.parquet")
    for file in small:
        file.unlink(missing_ok=True)
    return len(small)


def _shrink_reports(folder: Path, settings: Settings, now: datetime, dry_run: bool) -> list[Item]:
    """Keep the newest pages of the monitor and those of the last days."""
    size = folder_bytes(folder)
    item = Item("reports of the monitor", size, size)
    if not folder.is_dir():
        return []
    since = (now - timedelta(days=settings.retention_reports_days)).timestamp()
    # A page's name begins with its time; the newest one's copy and the metrics lie beside them.
    pages = sorted(((page.lstat().st_mtime, page) for page in folder.glob("[0-9]*.html")), reverse=True)
    old = [page for written_at, page in pages[settings.retention_reports_count :] if written_at < since]
    freed = sum(folder_bytes(page) for page in old)
    for page in old if not dry_run else []:
        _remove(page)
    if old:
        item.removed.append(f"{len(old)} pages ({freed / BYTES_PER_MB:.1f} MB)")
    item.after_bytes = size - freed if dry_run else folder_bytes(folder)
    return [item]


def folder_bytes(entry: Path) -> int:
    """Bytes of a file, or of all files under a folder; what another process removes meanwhile counts nothing."""
    total = 0
    for file in [entry, *entry.rglob("*")]:
        with contextlib.suppress(FileNotFoundError):
            total += 0 if file.is_dir() else file.lstat().st_size
    return total


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry, ignore_errors=True)
    else:
        entry.unlink(missing_ok=True)
