"""Collection: from files, addresses and devices into the tables.

Each source is read whole before anything is written, so a file that is refused leaves nothing behind and
costs its neighbours nothing. What was refused, and why, is part of the report.
"""

from __future__ import annotations

import glob
import http.client
import logging
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote, urlsplit

import polars as pl

from tasks.presentation import printable
from tasks.prometheus import SCHEME, collect_range
from tasks.storage import Appended, Store, TableName, cache_dir, remove_stale, table_named
from warpgauge.errors import (
    NoDataError,
    SchemaError,
    ServiceUnavailableError,
    SettingsError,
    SourceFileError,
    SourceUnavailableError,
    WarpgaugeError,
)
from warpgauge.settings import load_settings
from warpgauge.tables import TIME, Table

if TYPE_CHECKING:
    from warpgauge.documents.batch import DocumentBatch
    from warpgauge.latency.table_spec import TableSpec
    from warpgauge.launches.batch import LaunchBatch
    from warpgauge.telemetry.batch import SampleBatch

    Batch = TypeVar("Batch", LaunchBatch, DocumentBatch, SampleBatch)

LOGGER = logging.getLogger("warpgauge")
# Three versions a year or more apart, so that there is a history of amendments to learn from.
DEFAULT_HEADER_VERSIONS = "12.4.127,12.9.79,13.5.37"
DOCUMENT_SCHEMES = ("cuda-headers", "jsonl", "markdown")
WEB_SCHEMES = ("http://", "https://")
_VERSION = re.compile(r"[0-9]{1,9}(?:\.[0-9]{1,9}){1,5}")
_SEED = re.compile(r"[0-9]{1,18}")
_BLOCK_BYTES = 1 << 20
# Below this mean rate, once the timeout has passed, an answer counts as one that never ends: 4 KB a second
# is a modem's, and a server that sends a byte now and then keeps each single wait short for ever.
SLOWEST_BYTES_PER_S = 4_000
LONGEST_NAME_BYTES = 200


@dataclass
class SourceReport:
    """What one source gave: rows offered and added, notes, or why it was refused."""

    source: str
    offered: int = 0
    added: int = 0
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    refused: str | None = None

    def take(self, batch: Any, appended: Appended) -> None:
        """Keep what a batch said and what became of its rows."""
        self.notes += batch.problems
        self.counts |= batch.counts
        self.offered, self.added = appended.offered, appended.added


def is_worth_a_retry(_task: Any, _run: Any, state: Any) -> bool:
    """Whether trying again can help: a service or a source was away, as against bad input, which stays bad."""
    return isinstance(state.result(raise_on_failure=False), ServiceUnavailableError | SourceUnavailableError)


def choose_launch_sources(given: list[str] | None) -> dict[str, Any]:
    """What to collect launches from: what was given, else what the table holds, else the simulator.

    Returns:
        `sources`, and `why` in words: that rows are simulated is said loudly.
    """
    if given:
        return {"sources": given, "why": f"launches from {', '.join(given)}"}
    measured = (
        Store().read_valid("launches").filter(~pl.col("is_simulated")).select(pl.len()).collect().item()
    )
    if measured:
        return {
            "sources": [],
            "why": f"no launch source named: the table's {measured} measured launches are used",
        }
    return {
        "sources": ["simulator:0"],
        "why": "NO MEASURED LAUNCHES: none were named and the table holds none, so SIMULATED launches are used; "
        "name real ones with --launches",
    }


def collect_launches(
    sources: list[str], keep_whole: bool = False, gpu_name: str | None = None
) -> dict[str, Any]:
    """Collect launch records from paths, globs, http addresses or `simulator:SEED`.

    Args:
        sources: Where to look; a glob stands for its files.
        keep_whole: Keep the intact records of a damaged file instead of refusing it.
        gpu_name: GPU that the launches ran on, where the file does not say.

    Returns:
        `table`, `offered`, `added`, `version` and one record for each source.

    Raises:
        NoDataError: If no source could be collected.
    """
    from warpgauge.launches.simulator import simulate_launches
    from warpgauge.launches.source import read_launches

    store = Store()
    limit = load_settings().fetch_size_limit_bytes

    def collect(source: str, report: SourceReport) -> None:
        if source.startswith("simulator:"):
            batch = simulate_launches(_seed(source))
        else:
            read = partial(read_launches, keep_whole=keep_whole, size_limit_bytes=limit, gpu_name=gpu_name)
            batch = _read(source, read)
        report.take(batch, store.append("launches", batch.frame.with_columns(_now("collected_at"))))

    return _collect_each(store, "launches", _expanded(sources), collect)


def collect_documents(
    sources: list[str], field_map: str | None = None, keep_whole: bool = False
) -> dict[str, Any]:
    """Collect documents, and the labels that come with them or follow from their history.

    Args:
        sources: `cuda-headers:VERSION,...`, `jsonl:PATH` or `markdown:PATH`.
        field_map: Names of a report file's fields, `body=text,source=repo`.
        keep_whole: Keep the intact records of a damaged file instead of refusing it.

    Raises:
        SettingsError: If a source's scheme is unknown.
        NoDataError: If no source could be collected.
    """
    from warpgauge.documents.cuda_headers import parse_headers, read_header_wheel, wheel_date
    from warpgauge.documents.history import label_amendments
    from warpgauge.documents.markdown import read_page
    from warpgauge.documents.redaction import rules_from_settings
    from warpgauge.documents.reports import parse_map, read_reports

    store = Store()
    settings = load_settings()
    limit = settings.fetch_size_limit_bytes
    rules = rules_from_settings(settings)
    labels_added: list[int] = []
    mapping = parse_map(field_map or "")
    for source in sources:
        scheme = source.partition(":")[0]
        if scheme not in DOCUMENT_SCHEMES:
            raise SettingsError(
                f"unknown document source {source!r}; known forms: "
                + ", ".join(f"{name}:..." for name in DOCUMENT_SCHEMES)
            )

    def collect(source: str, report: SourceReport) -> None:
        scheme, _, rest = source.partition(":")
        if scheme == "cuda-headers":
            wheels = fetch_header_wheels(rest)
            try:
                batch = parse_headers(read_header_wheel(wheels, limit), rest, created_at=wheel_date(wheels))
            except SourceFileError:
                # A damaged wheel that stayed in the cache would refuse this version for ever.
                shutil.rmtree(wheels[0].parent)
                raise
        elif scheme == "jsonl":
            read = partial(
                read_reports, mapping=mapping, size_limit_bytes=limit, keep_whole=keep_whole, rules=rules
            )
            batch = _read(rest, read)
        else:
            batch = _read(rest, partial(read_page, size_limit_bytes=limit, rules=rules))
        appended = store.append("documents", batch.documents.with_columns(_now("fetched_at")))
        labels_added.append(store.append("labels", _dated(batch.labels, store)).added)
        report.take(batch, appended)

    result = _collect_each(store, "documents", _expanded_documents(sources), collect)
    # A report may call its source what it likes; only header entries have a history of versions.
    is_header_entry = (pl.col("source") == "cuda-headers") & (pl.col("family") == "page")
    pages = store.read("documents").filter(is_header_entry).collect()
    labels_added.append(store.append("labels", label_amendments(pages)).added)
    result["labels_added"] = sum(labels_added)
    result["labels_version"] = store.version("labels")
    return result


def _dated(labels: pl.DataFrame, store: Store) -> pl.DataFrame:
    """Labels with a time each; one whose file gives none gets the same time whenever it is collected.

    That is the time at which the table already has the very label, else when its document was first
    collected. An annotator who changed a label without giving a time has changed it now.
    """
    who, what = ["document_id", "annotator"], ["is_defect", "kinds", "nature"]
    latest = store.read("labels").sort("labelled_at").unique(who, keep="last", maintain_order=True)
    fetched = store.read("documents").select("document_id", "fetched_at")
    is_changed = ~pl.all_horizontal(pl.col(name).eq_missing(pl.col(f"{name}_before")) for name in what)
    known_at = (
        pl.when(pl.col("labelled_at_before").is_null())
        .then("fetched_at")
        .when(is_changed)
        .then(_now("changed_at"))
        .otherwise("labelled_at_before")
    )
    return (
        labels.lazy()
        .join(latest, on=who, how="left", suffix="_before", maintain_order="left")
        .join(fetched, on="document_id", how="left", maintain_order="left")
        .with_columns(pl.coalesce("labelled_at", known_at).alias("labelled_at"))
        .select(labels.columns)
        .collect()
    )


def collect_telemetry(sources: list[str], keep_whole: bool = False) -> dict[str, Any]:
    """Collect GPU samples from `nvml`, a Prometheus server, or nvidia-smi and DCGM CSV files.

    A machine without a GPU is an answer, not a failure: the report's `unavailable` says why.

    Args:
        sources: `nvml`, `prometheus:http://host:9090`, paths, globs or http addresses.
        keep_whole: Keep the intact readings of a damaged file instead of refusing it.

    Raises:
        NoDataError: If files were named and none could be collected.
    """
    from warpgauge.telemetry.csv_logs import read_gpu_csv
    from warpgauge.telemetry.nvml import sample_gpus

    store = Store()
    settings = load_settings()
    limit = settings.fetch_size_limit_bytes
    unavailable: list[str] = []

    def collect(source: str, report: SourceReport) -> None:
        if source == "nvml":
            import pynvml

            host = socket.gethostname()
            expected, known_lost = _gpus_seen(store, host)
            try:
                batch = sample_gpus(
                    pynvml,
                    datetime.now(UTC),
                    source_name=host,
                    expected=expected,
                    known_lost=known_lost,
                )
            except SourceUnavailableError as error:
                unavailable.append(str(error))
                return
        elif source.startswith(SCHEME):
            batch = collect_range(store, source, datetime.now(UTC))
        else:
            read = partial(
                read_gpu_csv,
                timezone=settings.telemetry_timezone,
                keep_whole=keep_whole,
                size_limit_bytes=limit,
            )
            batch = _read(source, read)
        report.take(batch, store.append("gpu_samples", batch.frame.with_columns(_now("collected_at"))))

    result = _collect_each(store, "gpu_samples", _expanded(sources), collect)
    result["unavailable"] = "; ".join(unavailable) or None
    return result


def collect_table(table: str, folder: str | None = None) -> dict[str, Any]:
    """Collect the rows of a latency table that a spec file describes; rows that are there already add nothing.

    Args:
        table: The spec.
        folder: Where the files that it names lie; empty for the spec's own folder.

    Raises:
        SourceFileError, SettingsError: If the spec is wrong or no file matches it.
        SchemaError: If a column of the spec is in no file, or is not what the rows that are there already have.
        NoDataError: If no file could be collected.
    """
    from tasks.validation import read_rows
    from warpgauge.latency.table_spec import read_table_spec
    from warpgauge.source_file import read_source_file

    spec = read_table_spec(table, folder or None)
    stored = spec.scheme.table
    store = Store()
    limit = load_settings().fetch_size_limit_bytes

    def read(path: Path) -> pl.DataFrame:
        found = read_rows(path, limit)
        twice = [old for old, new in spec.renamed.items() if old in found.columns and new in found.columns]
        if twice:
            raise SchemaError(
                f"{path}: has {twice[0]} and {spec.renamed[twice[0]]}, which [rename] makes one; mend the spec"
            )
        return found.rename(dict(spec.renamed), strict=False)

    added_columns = _require_same_kinds(spec, store)
    present: set[str] = set()
    for path in spec.files():
        try:
            found = read(path)
        except WarpgaugeError:
            continue  # collecting it names what is wrong
        present |= set(found.columns)
        _require_collected(spec, store, path, [name for name in added_columns if name in found.columns])
    if present:
        spec.require_columns(present)

    def collect(source: str, report: SourceReport) -> None:
        path = Path(source)
        found = read(path)
        rows, notes = spec.rows(found, source=read_source_file(path, size_limit_bytes=limit))
        report.notes += notes
        appended = store.append(stored, rows.with_columns(_now("collected_at")))
        report.offered, report.added = appended.offered, appended.added

    return _collect_each(store, stored, [str(path) for path in spec.files()], collect)


def _require_same_kinds(spec: TableSpec, store: Store) -> list[str]:
    """Stop where the table holds a column of the spec as another kind; the spec's columns of which it holds none.

    Raises:
        SchemaError: Naming the column.
    """
    table = spec.scheme.table
    if others := store.other_kinds(table):
        raise SchemaError(
            f"{spec.path}: in table {table.name} {', '.join(others)} as the spec says; {_make_anew(table, store)}"
        )
    counts = store.read(table).select(pl.len().alias(""), pl.exclude("").count()).collect().row(0, named=True)
    return [name for name, count in counts.items() if name and not count and counts[""]]


def _require_collected(spec: TableSpec, store: Store, path: Path, names: list[str]) -> None:
    """Stop where a file was collected before the spec had these columns: its rows would lack them for ever.

    Raises:
        SchemaError: Naming the file and the columns.
    """
    from warpgauge.source_file import read_source_file

    if not names:
        return
    table = spec.scheme.table
    sha256 = read_source_file(path, size_limit_bytes=load_settings().fetch_size_limit_bytes).sha256
    count = store.read(table).filter(pl.col("source_sha256") == sha256).select(pl.len()).collect().item()
    if count:
        raise SchemaError(
            f"{path}: {count} rows of it are in table {table.name} without {', '.join(names)}, which the spec names "
            f"by now; {_make_anew(table, store)}"
        )


def _make_anew(table: Table, store: Store) -> str:
    return f"give the spec another name, or move {store.table_uri(table)} away and collect again"


def collect_known_tables() -> list[dict[str, Any]]:
    """Collect and validate the table of every latency model that a spec file describes.

    One whose spec is gone or whose rows are refused costs the others nothing: `refused` of its report says why.

    Returns:
        A report for each model, as `collect_table` gives it, with what validation refused.
    """
    from tasks.registration import model_spec, table_models
    from tasks.validation import validate_tables

    found = []
    for name, spec in table_models().items():
        report: dict[str, Any] = {"table": name, "added": 0, "refused": [], "salvaged": []}
        try:
            table = model_spec(name, **spec).scheme.table
            report = collect_table(**spec)
            report["refused"] += validate_tables([table])["refused"]
        except ServiceUnavailableError:
            raise
        except WarpgaugeError as error:
            report["refused"].append(f"{name}: {error}")
        found.append(report)
    return found


def _gpus_seen(store: Store, host: str) -> tuple[set[str], set[str]]:
    """GPUs that NVML read on this host the last time, and those it read before and no longer did then.

    The second ones were told as lost when they were missed first, so each loss is told once.
    """
    is_from_here = (pl.col("source_kind") == "nvml") & (pl.col("source_name") == host)
    seen = (
        store.read("gpu_samples")
        .filter(is_from_here)
        .group_by("gpu_uuid")
        .agg(pl.col("sampled_at").max())
        .with_columns((pl.col("sampled_at") == pl.col("sampled_at").max()).alias("is_present"))
        .collect()
    )
    present = set(seen.filter("is_present")["gpu_uuid"])
    return present, set(seen["gpu_uuid"]) - present


def fetch_header_wheels(version: str) -> list[Path]:
    """The wheels that hold one CUDA version's headers, downloaded once by this Python's own pip.

    Raises:
        SourceUnavailableError: If pip finds no such version or no package index answers.
        SettingsError: If the version is not of the form 12.4.127.
    """
    if not _VERSION.fullmatch(version):
        raise SettingsError(f"cuda-headers:{version}: a version looks like 12.4.127")
    major = int(version.partition(".")[0])
    # From CUDA 13 on the package's name carries no version.
    package = "nvidia-cuda-runtime" if major >= 13 else f"nvidia-cuda-runtime-cu{major}"
    folder = cache_dir("wheels") / version
    remove_stale(folder.parent)
    if not any(folder.glob("*.whl")):
        unfinished = Path(tempfile.mkdtemp(prefix=f".{version}-", dir=folder.parent))
        try:
            _pip_download(package, version, unfinished)
            os.replace(unfinished, folder)
        except OSError:
            # Another collector may have fetched this version meanwhile: its wheel is as good.
            if not any(folder.glob("*.whl")):
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return sorted(folder.glob("*.whl"))


def _pip_download(package: str, version: str, folder: Path) -> None:
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--quiet"]
    # The headers are the same text on every platform; this one has every version.
    command += ["--platform", "manylinux2014_x86_64", "--platform", "manylinux_2_27_x86_64"]
    command += ["--dest", str(folder), f"{package}=={version}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        errors = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            done.stderr.strip()
        ]
        raise SourceUnavailableError(
            f"cuda-headers:{version}: pip could not fetch {package}=={version}: {errors[-1][:500]}; "
            "name a version that the package index has, or check the network"
        )


def _collect_each(
    store: Store, table: TableName, sources: list[str], collect: Callable[[str, SourceReport], None]
) -> dict[str, Any]:
    """Run one collector over its sources; a source that fails is reported and the next one is tried.

    Raises:
        NoDataError: If none could be collected.
        ServiceUnavailableError: If this machine or the store fails: that is no source's fault, and the
            next one would fare no better. What was committed before stays.
    """
    name = table_named(table).name
    reports = []
    for source in sources:
        report = SourceReport(source)
        try:
            collect(source, report)
        except ServiceUnavailableError as error:
            raise ServiceUnavailableError(_named(source, str(error))) from error
        except WarpgaugeError as error:
            report.refused = str(error)
        except OSError as error:
            raise ServiceUnavailableError(
                f"{source}: this machine failed: {error}; free space or mend the permission and run again: "
                "what was committed is whole"
            ) from error
        reports.append(report)
        said = (
            f"refused: {report.refused}" if report.refused else f"{report.offered} rows, {report.added} new"
        )
        LOGGER.info("collect %s: %s: %s", name, printable(source), printable(said))
    refused = [_named(report.source, report.refused) for report in reports if report.refused]
    if len(refused) == len(reports):
        reasons = "; ".join(refused) or "no source was named"
        raise NoDataError(f"nothing could be collected into {name}: {reasons}")
    return {
        "table": name,
        "offered": sum(report.offered for report in reports),
        "added": sum(report.added for report in reports),
        "version": store.version(table),
        "refused": refused,
        "salvaged": [_named(report.source, note) for report in reports for note in report.notes],
        "sources": [asdict(report) for report in reports],
    }


def _named(source: str, text: str) -> str:
    """The text, with the source before it unless it names the source already."""
    place = source.split(":", maxsplit=1)[-1]
    return text if place in text else f"{source}: {text}"


def _now(column: str) -> pl.Expr:
    return pl.lit(datetime.now(UTC), dtype=TIME).alias(column)


def _expanded(sources: list[str]) -> list[str]:
    """Globs replaced by their files; a glob without a match stays, so that its refusal names it."""
    expanded: list[str] = []
    for source in sources:
        is_glob = glob.has_magic(source) and "://" not in source and not os.path.lexists(source)
        found = sorted(glob.glob(source, recursive=True)) if is_glob else []
        expanded += [path for path in found if not os.path.isdir(path)] or [source]
    return list(dict.fromkeys(expanded))


def _expanded_documents(sources: list[str]) -> list[str]:
    """One source for each header version and each file of a glob."""
    expanded: list[str] = []
    for source in sources:
        scheme, _, rest = source.partition(":")
        parts = [part.strip() for part in rest.split(",")] if scheme == "cuda-headers" else _expanded([rest])
        expanded += [f"{scheme}:{part}" for part in parts]
    return list(dict.fromkeys(expanded))


def _read(source: str, read: Callable[[Path], Batch]) -> Batch:
    """What a reader makes of a source; its sentences name the source, never a download's temporary path."""
    with _local_file(source) as path:
        try:
            batch = read(path)
        except WarpgaugeError as error:
            raise type(error)(str(error).replace(str(path), source)) from error
    problems = tuple(text.replace(str(path), source) for text in batch.problems)
    return replace(batch, problems=problems)


@contextmanager
def _local_file(source: str) -> Iterator[Path]:
    """A path as it is; an http address downloaded to a temporary file that is removed afterwards."""
    if source.lower().startswith(WEB_SCHEMES):
        with tempfile.TemporaryDirectory(prefix="warpgauge-") as folder:
            # Readers learn the GPU and the form from a file's name, so a download keeps its own.
            name = PurePosixPath(unquote(urlsplit(source).path)).name
            is_name = name not in ("", "..") and len(name.encode()) <= LONGEST_NAME_BYTES
            target = Path(folder) / (name if is_name else "download")
            _download(source, target)
            yield target
        return
    if "://" in source:
        raise SourceFileError(f"{source}: only paths, globs, http:// and https:// addresses can be read")
    try:
        source.encode()
    except UnicodeEncodeError as error:
        raise SourceFileError(
            f"{source!a}: the name is not UTF-8, so no table can hold it; rename the file"
        ) from error
    yield Path(source)


def _download(address: str, target: Path) -> None:
    """Fetch an address whole, or raise and say why; the file is written block by block.

    Raises:
        SourceUnavailableError: If it cannot be reached, or is too slow to end.
        SourceFileError: If the answer is larger than the limit or was cut.
    """
    with target.open("wb") as file:
        for block in _answer(address):
            file.write(block)


def _answer(address: str) -> Iterator[bytes]:
    settings = load_settings()
    limit = settings.fetch_size_limit_bytes
    request = urllib.request.Request(address, headers={"User-Agent": "warpgauge"})
    begun = time.monotonic()
    total = 0
    try:
        with urllib.request.urlopen(request, timeout=settings.fetch_timeout_s) as answer:
            expected: int | None = answer.length
            while expected is None or total < expected:
                if max(total, expected or 0) > limit:
                    raise SourceFileError(
                        f"{address}: more than {limit:,} bytes; raise WARPGAUGE_FETCH_SIZE_LIMIT_MB if it is meant"
                    )
                # read1 hands over what has come; read would wait for a whole block of a slow answer.
                block = answer.read1(_BLOCK_BYTES)
                if not block:
                    break
                total += len(block)
                waited_s = time.monotonic() - begun
                if waited_s > settings.fetch_timeout_s and total < waited_s * SLOWEST_BYTES_PER_S:
                    raise SourceUnavailableError(
                        f"{address}: {total:,} bytes came in {waited_s:.0f} s, too slow to end; fetch it by other "
                        "means and name the file, or raise WARPGAUGE_FETCH_TIMEOUT_S"
                    )
                yield block
            if expected is not None and total < expected:
                raise SourceFileError(
                    f"{address}: the answer ended after {total:,} of {expected:,} bytes; collect again"
                )
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SourceUnavailableError(
            f"{address}: cannot be fetched: {error or type(error).__name__}; check the address"
        ) from error


def _seed(source: str) -> int:
    text = source.removeprefix("simulator:") or "0"
    if not _SEED.fullmatch(text):
        raise SettingsError(f"{source}: a simulator's seed is a whole number, for example simulator:1")
    return int(text)
