"""Where every table, model and cache lies; the only place where paths are built.

Tables are Delta Lake. An append reads the table's version, keeps the rows whose key is not there yet and
commits only on top of that very version; when another writer came first the commit is refused and the
append starts again from the newer version. So collecting the same source twice, two collectors at once
or a `kill -9` at any point leave each row exactly once, and an append that brings nothing new makes no
new version.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import unquote

import polars as pl

from warpgauge.errors import ServiceUnavailableError, SettingsError
from warpgauge.settings import PROJECT_ROOT, load_settings
from warpgauge.tables import TABLES, Table

if TYPE_CHECKING:
    from deltalake import DeltaTable

# Each lost race means that another writer's commit went in, so the loop ends; the bound only keeps a
# broken store from being tried for ever.
MAX_COMMIT_ATTEMPTS = 100
PARQUET_MAGIC = b"PAR1"
# Signs that the table format's addresses give a meaning of their own.
UNUSABLE_SIGNS = "%#?*[]"
# Unfinished work in a cache this old is nobody's any more: the slowest download or batch takes minutes.
STALE_AFTER_S = 24 * 3600


@dataclass(frozen=True)
class Appended:
    """What one append did: rows offered, rows added, and the table's version after it."""

    table: str
    offered: int
    added: int
    version: int


# A table of `warpgauge.tables` by its name, or one that a spec file defines.
TableName = str | Table


def table_named(name: TableName) -> Table:
    """The definition of a table."""
    return TABLES[name] if isinstance(name, str) else name


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
        table = self._open(name)
        return None if table is None else table.version()

    def table_id(self, name: TableName) -> str | None:
        """What tells the table from one that was deleted and made anew, whose versions start again at 0."""
        table = self._open(name)
        return None if table is None else str(table.metadata().id)

    def other_kinds(self, name: TableName) -> list[str]:
        """Columns that lie there as another type than the definition has, in words."""
        opened = self._open(name)
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
        opened = self._open(name, version)
        if opened is None:
            return spec.empty().lazy()
        frame = _scan(opened)
        stored = frame.collect_schema()
        # A table written before a column was introduced reads as null there.
        return frame.select(
            pl.col(column.name).cast(column.dtype)
            if column.name in stored
            else pl.lit(None, dtype=column.dtype).alias(column.name)
            for column in spec.columns
        )

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
            self.read("quarantine").filter(pl.col("table_name") == spec.name).select("row_sha256"),
        )
        frame = self.read(name, version)
        if where is not None:
            frame = frame.filter(where)
        if refused.is_empty():
            return frame
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
        from deltalake import CommitProperties, write_deltalake
        from deltalake.exceptions import CommitFailedError

        spec = table_named(name)
        rows = spec.conform(frame).unique(subset=spec.key, keep="first", maintain_order=True)
        for _ in range(MAX_COMMIT_ATTEMPTS):
            table = self._open(spec) or self._create(spec)
            version = int(table.version())
            known = _scan(table).select(spec.key)
            new = self._collected(
                spec.name, rows.lazy().join(known, on=list(spec.key), how="anti", nulls_equal=True)
            )
            if new.is_empty():
                return Appended(spec.name, frame.height, 0, version)
            try:
                write_deltalake(
                    table,
                    new.to_arrow(),
                    mode="append",
                    schema_mode="merge",
                    commit_properties=CommitProperties(max_commit_retries=0),
                )
            except CommitFailedError:
                continue
            except (OSError, _delta_error()) as error:
                raise self._unavailable(spec.name, error) from error
            return Appended(spec.name, frame.height, new.height, version + 1)
        raise ServiceUnavailableError(
            f"table {spec.name}: {MAX_COMMIT_ATTEMPTS} commits in a row lost against other writers; "
            "stop the other collectors and run this one again"
        )

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
        from deltalake import CommitProperties, write_deltalake
        from deltalake.exceptions import CommitFailedError

        spec = TABLES[name]
        table = self._open(name) or self._create(spec)
        # A table that was just made has version 0 and no rows, like one that was not there.
        if table.version() != (expected_version or 0):
            return False
        try:
            write_deltalake(
                table,
                spec.conform(frame).to_arrow(),
                mode=mode,
                schema_mode="merge" if mode == "append" else None,
                commit_properties=CommitProperties(max_commit_retries=0),
            )
        except CommitFailedError:
            return False
        except (OSError, _delta_error()) as error:
            raise self._unavailable(name, error) from error
        return True

    def _collected(self, name: str, frame: pl.LazyFrame) -> pl.DataFrame:
        try:
            return frame.collect()
        except (OSError, pl.exceptions.PolarsError) as error:
            raise self._unavailable(name, error) from error

    def _open(self, name: TableName, version: int | None = None):  # type: ignore[no-untyped-def]
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError

        try:
            return DeltaTable(self.table_uri(name), version=version)
        except TableNotFoundError:
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

    def _unavailable(self, name: str, error: BaseException) -> ServiceUnavailableError:
        return ServiceUnavailableError(
            f"table {name} at {self.address}/{name} cannot be read or written: {_one_line(error)}; "
            "free space or mend the permission and run again: what was committed is whole"
        )


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


def cache_dir(kind: str) -> Path:
    """Folder of things that can be made again (downloaded wheels, embeddings); made if absent.

    Raises:
        ServiceUnavailableError: If it cannot be made (disk full, no permission, a file in its place).
    """
    address = load_settings().resolved_data_dir()
    root = PROJECT_ROOT / "data" if "://" in address else Path(address)
    folder = root / "cache" / kind
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cache_unavailable(folder, error) from error
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
