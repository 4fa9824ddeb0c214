"""Where every table, model and cache lies; the only place where paths are built.

Tables are Delta Lake. An append reads the table's version, keeps the rows whose key is not there yet and
commits only on top of that very version; when another writer came first the commit is refused and the
append starts again from the newer version. So collecting the same source twice, two collectors at once
or a `kill -9` at any point leave each row exactly once, and an append that brings nothing new makes no
new version. Appends leave small files, so the store merges them by itself where they become many; the
`data_version` tells a table whose rows changed from one whose files did.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import math
import os
import re
import shutil
import threading
import time
import uuid
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import unquote

import polars as pl

from warpgauge.errors import ServiceUnavailableError, SettingsError
from warpgauge.settings import PROJECT_ROOT, load_settings
from warpgauge.tables import TABLES, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable, PostCommitHookProperties
    from pyarrow.fs import FileInfo, PyFileSystem

LOGGER = logging.getLogger("warpgauge")
# Each lost race means that another writer's commit went in, so the loop ends; the bound only keeps a
# broken store from being tried for ever.
MAX_COMMIT_ATTEMPTS = 100
PARQUET_MAGIC = b"PAR1"
# Signs that the table format's addresses give a meaning of their own.
UNUSABLE_SIGNS = "%#?*[]"
# A read opens every file. 100 of them take some 40 ms, a merged one of the same rows 12 ms and half the bytes.
MOST_SMALL_FILES = 100
# Larger files are left alone: merged ones stay on disk beside their parts while a registered version reads those.
MERGED_BYTES = 8 * 2**20
# What a commit that only moves rows into other files says: the version that has the same rows.
DATA_VERSION = "warpgauge.dataVersion"
_LOG_NAME = re.compile(r"([0-9]{20})\..+")
# Unfinished work in a cache this old is nobody's any more: the slowest download or batch takes minutes.
STALE_AFTER_S = 24 * 3600


@dataclass(frozen=True)
class Appended:
    """What one append did: rows offered, rows added, and the table's version after it."""

    table: str
    offered: int
    added: int
    version: int


@dataclass(frozen=True)
class Forgotten:
    """What became of the files that only old versions of a table need.

    Attributes:
        file_count, size_bytes: Of the files removed, or that would be.
        waiting_bytes: Of data files that will go once they are old enough.
        unreadable: Versions that were to be kept and cannot be read any more.
    """

    file_count: int = 0
    size_bytes: int = 0
    waiting_bytes: int = 0
    unreadable: tuple[int, ...] = ()


# A table of `warpgauge.tables` by its name, or one that a spec file defines.
TableName = str | Table


def table_named(name: TableName) -> Table:
    """The definition of a table."""
    return TABLES[name] if isinstance(name, str) else name


def table_known_by(name: str) -> Table:
    """A table of which only the name matters: where it is defined, in a spec file, may be gone."""
    return TABLES.get(name) or Table(name, row="", key=(), columns=())


class _LookedAt(threading.local):
    """Tables that a thread has looked at, each with the mark of its newest commit's file."""

    def __init__(self) -> None:
        self.tables: dict[str, tuple[DeltaTable, tuple[int, int, int] | None]] = {}


_LOOKED_AT = _LookedAt()


def _commit_stamp(uri: str, version: int) -> tuple[int, int, int] | None:
    """What tells a commit's file from another one of its name; None where it is gone."""
    try:
        found = os.stat(f"{uri}/_delta_log/{version:020}.json")
    except OSError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


class Store:
    """The tables at one address.

    Args:
        address: A folder or an object-store address; default is the setting `data_dir`.
    """

    def __init__(self, address: str | None = None) -> None:
        self.address = (address or load_settings().resolved_data_dir()).rstrip("/")
        if "://" not in self.address and (found := sorted(set(self.address) & set(UNUSABLE_SIGNS))):
            raise SettingsError(
                f"WARPGAUGE_DATA_DIR is {self.address!r}: tables cannot lie in a folder with {' '.join(found)} in its path; "
                "choose another one"
            )

    def table_uri(self, name: TableName) -> str:
        """Address of one table."""
        return f"{self.address}/{table_named(name).name}"

    def version(self, name: TableName) -> int | None:
        """The table's version number, None where there is no table yet: the data version a run records."""
        table = self._look_at(name)
        return None if table is None else int(table.version())

    def data_version(self, name: TableName) -> int | None:
        """The version that last changed the table's rows: merging small files makes a version with the same rows."""
        table = self._look_at(name)
        return None if table is None else _data_version(table)

    def table_id(self, name: TableName) -> str | None:
        """What tells the table from one that was deleted and made anew, whose versions start again at 0."""
        table = self._look_at(name)
        return None if table is None else str(table.metadata().id)

    def other_kinds(self, name: TableName) -> list[str]:
        """Columns that lie there as another type than the definition has, in words."""
        opened = self._look_at(name)
        stored = {} if opened is None else pl.Schema(opened.schema().to_arrow())
        return [
            f"{column.name} is {found}, not {column.dtype}"
            for column in table_named(name).columns
            if (found := stored.get(column.name, column.dtype)) != column.dtype
        ]

    def read(self, name: TableName, version: int | None = None) -> pl.LazyFrame:
        """All rows of a table as a lazy query; no rows where there is no table yet.

        Args:
            name: A name in `warpgauge.tables.TABLES`, or a table's definition.
            version: The table as of that version; default is the newest.
        """
        spec = table_named(name)
        opened = self._look_at(name) if version is None else self._open(name, version)
        if opened is None:
            return spec.empty().lazy()
        frame = _scan(opened)
        stored = frame.collect_schema()
        return frame.select(_stored_as(column.name, column.dtype, stored) for column in spec.columns)

    def read_valid(
        self, name: TableName, version: int | None = None, where: pl.Expr | None = None
    ) -> pl.LazyFrame:
        """The rows of a table that are not in quarantine.

        Args:
            name: A name in `warpgauge.tables.TABLES`, or a table's definition.
            version: The table as of that version; default is the newest.
            where: Only these rows; a filter on the result would read the whole table first.
        """
        spec = table_named(name)
        refused = self._collected(
            "quarantine",
            self.read("quarantine").filter(pl.col("table_name") == spec.name).select("row_sha256", "row_key"),
        )
        frame = self.read(name, version)
        if where is not None:
            frame = frame.filter(where)
        if refused.is_empty():
            return frame
        hashes = [hashlib.sha256(key.encode()).hexdigest() for key in refused["row_key"].fill_null("")]
        if hashes == refused["row_sha256"].to_list():
            # A row's hash is that of its key's text, and texts are compared without hashing every row.
            return frame.filter(~pl.struct(spec.key).struct.json_encode().is_in(refused["row_key"].implode()))
        rows = self._collected(spec.name, frame)
        keep = ~spec.key_hashes(rows).is_in(refused["row_sha256"].implode())
        return rows.filter(keep).lazy()

    def append(self, name: TableName, frame: pl.DataFrame) -> Appended:
        """Add the rows whose key the table does not hold yet.

        Returns:
            How many were offered and added, and the version after it (unchanged when nothing was new).

        Raises:
            SchemaError: If the frame does not fit the table.
            ServiceUnavailableError: If the store cannot be read or written (disk full, no permission).
        """
        spec = table_named(name)
        rows = spec.conform(frame).unique(subset=spec.key, keep="first", maintain_order=True)
        for _ in range(MAX_COMMIT_ATTEMPTS):
            table = self._open(spec) or self._create(spec)
            version = int(table.version())
            known = _scan(table).filter(_may_hold(spec, rows)).select(spec.key)
            new = self._collected(
                spec.name, rows.lazy().join(known, on=list(spec.key), how="anti", nulls_equal=True)
            )
            if new.is_empty():
                return Appended(spec.name, frame.height, 0, version)
            if self._commit(table, spec, new, "append"):
                return Appended(spec.name, frame.height, new.height, version + 1)
        raise self._outrun(spec.name)

    def replace(self, name: str, frame: pl.DataFrame, expected_version: int | None) -> bool:
        """Write the whole of a small table, if nobody wrote since `expected_version`.

        Returns:
            False if another writer came first: read again and decide again.
        """
        return self._commit_after(name, frame, expected_version, "overwrite")

    def append_after(self, name: str, frame: pl.DataFrame, expected_version: int | None) -> bool:
        """Add rows that were decided on the table as of `expected_version`, if nobody wrote since.

        The keys are not compared with the table's: a decision has a key of its own.

        Returns:
            False if another writer came first: read again and decide again.
        """
        return self._commit_after(name, frame, expected_version, "append")

    def _commit_after(
        self,
        name: str,
        frame: pl.DataFrame,
        expected_version: int | None,
        mode: Literal["append", "overwrite"],
    ) -> bool:
        spec = TABLES[name]
        table = self._open(name) or self._create(spec)
        # A table that was just made has version 0 and no rows, like one that was not there.
        if table.version() != (expected_version or 0):
            return False
        return self._commit(table, spec, spec.conform(frame), mode)

    def _commit(
        self, table: DeltaTable, spec: Table, rows: pl.DataFrame, mode: Literal["append", "overwrite"]
    ) -> bool:
        """Write on top of the opened version; False if another writer came first."""
        from deltalake import CommitProperties, write_deltalake
        from deltalake.exceptions import CommitFailedError

        try:
            write_deltalake(
                table,
                rows.to_arrow(),
                mode=mode,
                schema_mode="merge",
                commit_properties=CommitProperties(max_commit_retries=0),
                post_commithook_properties=keep_old_log(),
            )
        except CommitFailedError:
            return False
        except (OSError, _delta_error()) as error:
            raise self._unavailable(spec.name, error) from error
        if len(table.file_uris()) > MOST_SMALL_FILES:
            try:
                self.merge_small_files(spec)
            except ServiceUnavailableError as error:
                # The rows are committed; the next append tries again.
                LOGGER.warning("small files are not merged: %s", error)
        return True

    def merge_small_files(self, name: TableName, most: int = MOST_SMALL_FILES) -> int:
        """Merge a table's small files into few where there are more than `most`.

        Nothing is lost: the rows are the same, older versions read the files that they did, and a writer who
        comes first is joined or makes this a later try's work.

        Returns:
            How many files were merged.
        """
        from deltalake import CommitProperties, WriterProperties
        from deltalake.exceptions import CommitFailedError

        table = self._open(name)
        if table is None:
            return 0
        sizes = pl.Series(table.get_add_actions().column("size_bytes"))
        if (sizes < MERGED_BYTES).sum() <= most:
            return 0
        try:
            merged = table.optimize.compact(
                target_size=MERGED_BYTES,
                writer_properties=WriterProperties(compression="ZSTD"),
                commit_properties=CommitProperties(
                    max_commit_retries=0, custom_metadata={DATA_VERSION: str(_data_version(table))}
                ),
                post_commithook_properties=keep_old_log(),
            )
        except CommitFailedError:
            return 0
        except (OSError, _delta_error()) as error:
            raise self._unavailable(table_named(name).name, error) from error
        return int(merged["numFilesRemoved"])

    def delete_rows(self, name: TableName, predicate: str) -> int:
        """Remove rows from the newest version; older versions have them still.

        Args:
            name: Which table.
            predicate: SQL on its columns that is true for the rows to remove.

        Returns:
            How many were removed.
        """
        from deltalake.exceptions import CommitFailedError

        for _ in range(MAX_COMMIT_ATTEMPTS):
            table = self._open(name)
            if table is None:
                return 0
            try:
                done = table.delete(predicate, post_commithook_properties=keep_old_log())
            except CommitFailedError:
                continue
            except (OSError, _delta_error()) as error:
                raise self._unavailable(table_named(name).name, error) from error
            return int(done["num_deleted_rows"])
        raise self._outrun(table_named(name).name)

    def forget_versions(
        self, name: TableName, needed: Collection[int], before: datetime, *, dry_run: bool = False
    ) -> Forgotten:
        """Remove what only versions older than a time need: their log, and data files that no kept version reads.

        The newest version, all that were the newest one at or after the time, and the needed ones read the same
        rows afterwards. What a killed writer left is removed too, once it is that old. A process that is killed in
        between leaves files that the next call removes.

        Args:
            name: Which table.
            needed: Versions to keep, however old.
            before: Until when a version is old, with time zone.
            dry_run: Remove nothing and write nothing, only count.
        """
        table = self._open(name)
        if table is None:
            return Forgotten()
        spec = table_named(name)
        try:
            files = _file_system(self.table_uri(name))
            log = _log_files(files)
            commits = [
                version for version, file in log if file.path.endswith(".json") and file.mtime < before
            ]
            kept = {version for version in needed if version <= table.version()}
            unreadable = {version for version in kept if not self._is_readable(name, version)}
            kept -= unreadable
            gone = []
            if commits:
                # Newest at that time: from it on the log stays as it is.
                base = max(commits)
                old = {version for version in kept if version < base}
                if not dry_run:
                    self._write_checkpoints(name, {*old, base, table.version()}, log)
                gone = [file for version, file in log if version < base and version not in old]
            since_s = max(0.0, (datetime.now(UTC) - before).total_seconds())
            unread, waiting = (
                # Only a list: the library would commit two versions without new rows to remove them.
                files.get_file_info(
                    table.vacuum(
                        retention_hours=hours,
                        enforce_retention_duration=False,
                        keep_versions=sorted(kept),
                        full=True,
                        dry_run=True,
                    )
                )
                for hours in (math.ceil(since_s / 3600), 0)
            )
            gone += unread
            for file in gone if not dry_run else []:
                with contextlib.suppress(FileNotFoundError):
                    files.delete_file(file.path)
        except (OSError, _delta_error()) as error:
            raise self._unavailable(spec.name, error) from error
        return Forgotten(len(gone), _bytes(gone), _bytes(waiting) - _bytes(unread), tuple(sorted(unreadable)))

    def size_bytes(self, name: TableName) -> int:
        """Bytes of a table's files, its log's and older versions' too; 0 where there is no table."""
        from pyarrow.fs import FileSelector

        if self._open(name) is None:
            return 0
        found = _file_system(self.table_uri(name)).get_file_info(FileSelector("", recursive=True))
        return _bytes(found)

    def _is_readable(self, name: TableName, version: int) -> bool:
        try:
            return self._open(name, version) is not None
        except ServiceUnavailableError as error:
            LOGGER.warning("%s", error)
            return False

    def _write_checkpoints(
        self, name: TableName, versions: set[int], log: list[tuple[int, FileInfo]]
    ) -> None:
        """Make versions readable without the log before them; the newest comes last, where the next reader begins."""
        have = {version for version, file in log if file.path.endswith(".checkpoint.parquet")}
        newest = max(versions)
        for version in [*sorted(versions - have - {newest}), newest]:
            opened = self._open(name, version)
            if opened is not None:
                opened.create_checkpoint()

    def _collected(self, name: str, frame: pl.LazyFrame) -> pl.DataFrame:
        try:
            return frame.collect()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise self._unavailable(name, error) from error

    def _look_at(self, name: TableName) -> DeltaTable | None:
        """The newest version, for a question that is answered at once: the next look changes the very same object.

        Opening a table reads up to a hundred commits, 10 to 30 ms; bringing an opened one up to date takes 1 ms, and
        a monitor that is served asks twenty times a round.
        """
        uri = self.table_uri(name)
        table, stamp = _LOOKED_AT.tables.pop(uri, (None, None))
        # A table that was made anew in the same place counts its versions from 0 again.
        if table is not None and stamp is not None and _commit_stamp(uri, int(table.version())) == stamp:
            try:
                table.update_incremental()
            except (OSError, _delta_error()):
                table = None
        else:
            table = None
        table = table or self._open(name)
        if table is not None and "://" not in uri:
            _LOOKED_AT.tables[uri] = (table, _commit_stamp(uri, int(table.version())))
        return table

    def _open(self, name: TableName, version: int | None = None):  # type: ignore[no-untyped-def]
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.table_uri(name), version=version)
        except TableNotFoundError as error:
            # Without its log an old version looks like a table that is not there, which would read as no rows.
            if version is not None and self._open(name) is not None:
                raise self._unavailable(table_named(name).name, error) from error
            return None
        except (OSError, _delta_error()) as error:
            raise self._unavailable(table_named(name).name, error) from error

    def _create(self, spec: Table):  # type: ignore[no-untyped-def]
        from deltalake import DeltaTable
        from deltalake.exceptions import DeltaError

        uri = self.table_uri(spec)
        try:
            if "://" not in uri:
                Path(uri).mkdir(parents=True, exist_ok=True)
            return DeltaTable.create(
                uri,
                schema=spec.empty().to_arrow().schema,
                mode="ignore",
                name=spec.name,
                description=spec.row,
            )
        except (OSError, DeltaError) as error:
            # Two writers may create the table at once; the loser finds it made.
            if (opened := self._open(spec)) is not None:
                return opened
            raise self._unavailable(spec.name, error) from error

    def _outrun(self, name: str) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"table {name}: {MAX_COMMIT_ATTEMPTS} commits in a row lost against other writers; "
            "stop the other collectors and run this one again"
        )

    def _unavailable(self, name: str, error: BaseException) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"table {name} at {self.address}/{name} cannot be read or written: {_one_line(error)}; "
            "free space or mend the permission and run again: what was committed is whole"
        )


def keep_old_log() -> PostCommitHookProperties:
    """A checkpoint now and then, and no more: the library would forget versions older than 30 days, and models were
    trained on some of them. `tasks/compaction.py` forgets those that nobody needs.
    """
    from deltalake import PostCommitHookProperties

    return PostCommitHookProperties(create_checkpoint=True, cleanup_expired_logs=False)


def _file_system(uri: str) -> PyFileSystem:
    """The files of a table, wherever it lies, by paths within it."""
    from deltalake.fs import DeltaStorageHandler
    from pyarrow.fs import PyFileSystem

    return PyFileSystem(DeltaStorageHandler(uri))


def _bytes(files: Collection[FileInfo]) -> int:
    return sum(file.size or 0 for file in files)


def _log_files(files: PyFileSystem) -> list[tuple[int, FileInfo]]:
    """Commits and checkpoints of a table's log in the order of their versions."""
    from pyarrow.fs import FileSelector

    found = [
        (int(named[1]), file)
        for file in files.get_file_info(FileSelector("_delta_log", recursive=False))
        if (named := _LOG_NAME.fullmatch(file.base_name))
    ]
    return sorted(found, key=lambda one: (one[0], one[1].path))


def _data_version(table: DeltaTable) -> int:
    version = int(table.version())
    newest: dict[str, Any] = next(iter(table.history(1)), {})
    # Another writer's rows may have come between the look at the table and the commit, which then says less.
    if newest.get("version") == version and newest.get("readVersion") == version - 1:
        return int(newest.get(DATA_VERSION, version))
    return version


def _stored_as(name: str, dtype: pl.DataType, stored: pl.Schema) -> pl.Expr:
    """A column in its type; one that a table was written before reads as null there."""
    if name not in stored:
        return pl.lit(None, dtype=dtype).alias(name)
    # Without a cast a filter reaches the files, and those outside of it are not read.
    return pl.col(name) if stored[name] == dtype else pl.col(name).cast(dtype)


def _may_hold(spec: Table, rows: pl.DataFrame) -> pl.Expr:
    """Which rows of the table may have a key of these: those of their times, so that older files are not read."""
    may = pl.lit(True)
    for name in spec.key:
        if rows.schema[name].is_temporal() and rows.height and not rows[name].null_count():
            may &= pl.col(name).is_between(rows[name].min(), rows[name].max())
    return may


def _scan(table: DeltaTable) -> pl.LazyFrame:
    """All rows of an opened table.

    Polars takes the percent-encoded addresses of local files for their names, and would not find a table
    under a folder with a blank, a `#` or a letter beyond ASCII in its path; so it is given the names.
    """
    if not table.table_uri.startswith("file://"):
        return pl.scan_delta(table)
    files = [unquote(address.removeprefix("file://")) for address in table.file_uris()]
    for file in files:
        _require_whole(Path(file))
    schema = pl.Schema(table.schema().to_arrow())
    if not files:
        return pl.LazyFrame(schema=schema)
    # A file written before a column was introduced lacks it. A name is a name here, never a pattern.
    return pl.scan_parquet(files, schema=schema, missing_columns="insert", glob=False)


def _require_whole(file: Path) -> None:
    """Stop before Polars does on a file of a table that is gone or cut: a Parquet file ends with its magic.

    Raises:
        ServiceUnavailableError: If it is, naming the file.
    """
    try:
        with file.open("rb") as opened:
            opened.seek(-len(PARQUET_MAGIC), os.SEEK_END)
            is_whole = opened.read() == PARQUET_MAGIC
    except OSError as error:
        raise ServiceUnavailableError(
            f"{file}: a part of the table cannot be read ({error.strerror}); restore it from a backup"
        ) from error
    if not is_whole:
        raise ServiceUnavailableError(
            f"{file}: a part of the table is cut or damaged; restore it from a backup"
        )


def _one_line(error: BaseException) -> str:
    """A library's message without its colours and line breaks."""
    return " ".join(re.sub(r"\x1b\[[0-9;]*m", "", str(error)).split())


def _delta_error() -> type[Exception]:
    from deltalake.exceptions import DeltaError

    return DeltaError


def mlruns_dir() -> Path:
    """Root of MLflow artifacts: beside the SQLite tracking store, or in the project for a server."""
    uri = load_settings().resolved_mlflow_uri()
    if uri.startswith("sqlite:///"):
        return Path(uri.removeprefix("sqlite:///")).parent
    return PROJECT_ROOT / "mlruns"


def local_root() -> Path:
    """Folder of what lies beside the tables on this machine, also where those lie in an object store."""
    address = load_settings().resolved_data_dir()
    return PROJECT_ROOT / "data" if "://" in address else Path(address)


def cache_dir(kind: str) -> Path:
    """Folder of things that can be made again (downloaded wheels, embeddings); made if absent.

    Raises:
        ServiceUnavailableError: If it cannot be made (disk full, no permission, a file in its place).
    """
    folder = local_root() / "cache" / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cache_unavailable(folder, error) from error
    return folder


def reports_dir() -> Path:
    """Folder of the monitor's pages and metrics; made if absent. `warpgauge compact` bounds it.

    Raises:
        ServiceUnavailableError: If it cannot be made (disk full, no permission, a file in its place).
    """
    folder = local_root() / "reports" / "monitor"
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServiceUnavailableError(
            f"the folder {folder} cannot be made: {_one_line(error)}; free space, mend the permission or move what "
            "lies in its place away, and run again"
        ) from error
    return folder


def cache_unavailable(place: Path, error: BaseException) -> ServiceUnavailableError:
    """What to tell when a cache cannot be written."""
    return ServiceUnavailableError(
        f"this machine failed: the cache {place} cannot be written: {_one_line(error)}; free space, mend the "
        "permission or move what lies in its place away, and run again"
    )


def remove_stale(folder: Path) -> None:
    """Remove what killed runs left unfinished in a cache folder: hidden files and folders, a day old or older."""
    for left in folder.glob(".*"):
        try:
            is_stale = left.lstat().st_mtime < time.time() - STALE_AFTER_S
        except FileNotFoundError:  # another run was first
            continue
        if is_stale and left.is_dir() and not left.is_symlink():
            shutil.rmtree(left, ignore_errors=True)
        elif is_stale:
            left.unlink(missing_ok=True)


def expectations_dir() -> Path:
    """Root of the Great Expectations project."""
    return PROJECT_ROOT / "expectations"


def replace_text(path: Path, text: str) -> None:
    """Write a file so that a reader finds the old one or the new one, whole.

    What UTF-8 has no bytes for, a lone surrogate of a collected text, becomes a question mark.

    Raises:
        ServiceUnavailableError: If it cannot be written; the old one stays.
    """
    partial_file = path.with_name(f".{path.name}.{uuid.uuid4().hex}.partial")
    try:
        partial_file.write_text(text, encoding="utf-8", errors="replace")
        os.replace(partial_file, path)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial_file.unlink(missing_ok=True)
        raise ServiceUnavailableError(
            f"{path} cannot be written: {error.strerror}; free space or mend the permission"
        ) from error
