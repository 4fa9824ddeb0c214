"""Collection: from files, addresses and devices into the tables.

Each source is read whole before anything is written, so a file that is refused leaves nothing behind and
costs its neighbours nothing. What was refused, and why, is part of the report.
"""

from __future__ import annotations

import glob
import os
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from tasks.storage import Store, cache_dir
from warpgauge.errors import (
    NoDataError,
    ServiceUnavailableError,
    SettingsError,
    SourceFileError,
    SourceUnavailableError,
    WarpgaugeError,
)
from warpgauge.settings import load_settings

BYTES_PER_MB = 1_000_000
# Three versions a year or more apart, so that there is a history of amendments to learn from.
DEFAULT_HEADER_VERSIONS = "12.4.127,12.9.79,13.5.37"
DOCUMENT_SCHEMES = ("cuda-headers", "jsonl", "markdown")


@dataclass
class SourceReport:
    """What one source gave: rows offered and added, notes, or why it was refused."""

    source: str
    offered: int = 0
    added: int = 0
    notes: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    refused: str | None = None


def choose_launch_sources(given: list[str] | None) -> dict[str, Any]:
    """What to collect launches from: what was given, else what the table holds, else the simulator.

    Returns:
        `sources`, and `why` in words: that rows are simulated is said loudly.
    """
    if given:
        return {"sources": given, "why": f"launches from {', '.join(given)}"}
    measured = Store().read("launches").filter(~pl.col("is_simulated")).select(pl.len()).collect().item()
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
    limit = int(load_settings().fetch_size_limit_mb * BYTES_PER_MB)

    def collect(source: str, report: SourceReport) -> None:
        if source.startswith("simulator:"):
            batch = simulate_launches(_seed(source))
        else:
            with _local_file(source) as path:
                batch = read_launches(path, keep_whole=keep_whole, size_limit_bytes=limit, gpu_name=gpu_name)
        report.notes += batch.problems
        report.counts |= batch.counts
        frame = batch.frame.with_columns(pl.lit(datetime.now(UTC)).alias("collected_at"))
        if "://" in source:
            frame = frame.with_columns(
                pl.lit(Path(source.split("?", maxsplit=1)[0]).name).alias("source_name")
            )
        appended = store.append("launches", frame)
        report.offered, report.added = appended.offered, appended.added

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
    limit = int(settings.fetch_size_limit_mb * BYTES_PER_MB)
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
            batch = parse_headers(read_header_wheel(wheels, limit), rest, created_at=wheel_date(wheels))
        elif scheme == "jsonl":
            with _local_file(rest) as path:
                batch = read_reports(
                    path, mapping, size_limit_bytes=limit, keep_whole=keep_whole, rules=rules
                )
        else:
            with _local_file(rest) as path:
                batch = read_page(path, size_limit_bytes=limit, rules=rules)
        now = pl.lit(datetime.now(UTC))
        appended = store.append("documents", batch.documents.with_columns(now.alias("fetched_at")))
        labels_added.append(store.append("labels", _dated(batch.labels, store)).added)
        report.notes += batch.problems
        report.counts |= batch.counts
        report.offered, report.added = appended.offered, appended.added

    result = _collect_each(store, "documents", _expanded_documents(sources), collect)
    pages = store.read("documents").filter(pl.col("source") == "cuda-headers").collect()
    labels_added.append(store.append("labels", label_amendments(pages)).added)
    result["labels_added"] = sum(labels_added)
    result["labels_version"] = store.version("labels")
    return result


def _dated(labels: pl.DataFrame, store: Store) -> pl.DataFrame:
    """Labels whose file gives no time get that of their document's first collection: the same the next time."""
    first_fetched = store.read("documents").select("document_id", "fetched_at").collect()
    dated = labels.join(first_fetched, on="document_id", how="left", maintain_order="left")
    return dated.with_columns(pl.coalesce("labelled_at", "fetched_at").alias("labelled_at")).drop(
        "fetched_at"
    )


def collect_telemetry(sources: list[str]) -> dict[str, Any]:
    """Collect GPU samples from `nvml` or from nvidia-smi and DCGM CSV files.

    A machine without a GPU is an answer, not a failure: the report's `unavailable` says why.

    Raises:
        NoDataError: If files were named and none could be collected.
    """
    from warpgauge.telemetry.csv_logs import read_gpu_csv
    from warpgauge.telemetry.nvml import sample_gpus

    store = Store()
    limit = int(load_settings().fetch_size_limit_mb * BYTES_PER_MB)
    unavailable: list[str] = []

    def collect(source: str, report: SourceReport) -> None:
        now = datetime.now(UTC)
        if source == "nvml":
            import pynvml

            try:
                batch = sample_gpus(pynvml, now)
            except SourceUnavailableError as error:
                unavailable.append(str(error))
                return
        else:
            with _local_file(source) as path:
                batch = read_gpu_csv(path, size_limit_bytes=limit)
        report.notes += batch.problems
        report.counts |= batch.counts
        appended = store.append("gpu_samples", batch.frame.with_columns(pl.lit(now).alias("collected_at")))
        report.offered, report.added = appended.offered, appended.added

    result = _collect_each(store, "gpu_samples", _expanded(sources), collect)
    result["unavailable"] = "; ".join(unavailable) or None
    return result


def fetch_header_wheels(version: str) -> list[Path]:
    """The wheels that hold one CUDA version's headers, downloaded once by this Python's own pip.

    Raises:
        SourceUnavailableError: If pip finds no such version or no package index answers.
        SettingsError: If the version is not of the form 12.4.127.
    """
    parts = version.split(".")
    if len(parts) < 2 or not all(part.isdigit() for part in parts):
        raise SettingsError(f"cuda-headers:{version}: a version looks like 12.4.127")
    major = int(parts[0])
    # From CUDA 13 on the package's name carries no version, and the crt headers have a package of their own.
    packages = ["nvidia-cuda-runtime"] if major >= 13 else [f"nvidia-cuda-runtime-cu{major}"]
    folder = cache_dir("wheels") / version
    if not folder.is_dir():
        partial = Path(tempfile.mkdtemp(prefix=f"{version}.", dir=folder.parent))
        try:
            for package in packages:
                _pip_download(package, version, partial)
            os.replace(partial, folder)
        finally:
            shutil.rmtree(partial, ignore_errors=True)
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
    store: Store, table: str, sources: list[str], collect: Callable[[str, SourceReport], None]
) -> dict[str, Any]:
    """Run one collector over its sources; a source that fails is reported and the next one is tried."""
    reports = []
    service_error: ServiceUnavailableError | None = None
    for source in sources:
        report = SourceReport(source)
        try:
            collect(source, report)
        except ServiceUnavailableError as error:
            # The store is away for every source alike: that is not this file's fault.
            service_error = error
            break
        except (WarpgaugeError, OSError) as error:
            report.refused = str(error)
        reports.append(report)
    if service_error is not None:
        raise service_error
    refused = [report for report in reports if report.refused]
    if not reports or len(refused) == len(reports):
        reasons = "; ".join(str(report.refused) for report in refused) or "no source was named"
        raise NoDataError(f"nothing could be collected into {table}: {reasons}")
    return {
        "table": table,
        "offered": sum(report.offered for report in reports),
        "added": sum(report.added for report in reports),
        "version": store.version(table),
        "refused": [f"{report.source}: {report.refused}" for report in refused],
        "salvaged": [f"{report.source}: {note}" for report in reports for note in report.notes],
        "sources": [asdict(report) for report in reports],
    }


def _expanded(sources: list[str]) -> list[str]:
    """Globs replaced by their files; a glob without a match stays, so that its refusal names it."""
    expanded: list[str] = []
    for source in sources:
        found = sorted(glob.glob(source)) if glob.has_magic(source) and "://" not in source else []
        expanded += found or [source]
    return list(dict.fromkeys(expanded))


def _expanded_documents(sources: list[str]) -> list[str]:
    """One source for each header version and each file of a glob."""
    expanded: list[str] = []
    for source in sources:
        scheme, _, rest = source.partition(":")
        parts = [part.strip() for part in rest.split(",")] if scheme == "cuda-headers" else _expanded([rest])
        expanded += [f"{scheme}:{part}" for part in parts]
    return list(dict.fromkeys(expanded))


@contextmanager
def _local_file(source: str) -> Iterator[Path]:
    """A path as it is; an http address downloaded to a temporary file that is removed afterwards."""
    if not source.startswith(("http://", "https://")):
        if "://" in source:
            raise SourceFileError(f"{source}: only paths, globs, http:// and https:// addresses can be read")
        yield Path(source)
        return
    settings = load_settings()
    limit = int(settings.fetch_size_limit_mb * BYTES_PER_MB)
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / (Path(source.split("?", maxsplit=1)[0]).name or "download")
        request = urllib.request.Request(source, headers={"User-Agent": "warpgauge"})
        try:
            with (
                urllib.request.urlopen(request, timeout=settings.fetch_timeout_s) as answer,
                target.open("wb") as file,
            ):
                expected = answer.headers.get("Content-Length")
                while block := answer.read(1 << 20):
                    file.write(block)
                    if file.tell() > limit:
                        raise SourceFileError(
                            f"{source}: more than {limit} bytes; raise WARPGAUGE_FETCH_SIZE_LIMIT_MB if it is meant"
                        )
                if expected is not None and file.tell() < int(expected):
                    raise SourceFileError(
                        f"{source}: the answer ended after {file.tell()} of {expected} bytes; collect again"
                    )
        except (urllib.error.URLError, TimeoutError, ConnectionError, ValueError) as error:
            raise SourceUnavailableError(
                f"{source}: cannot be fetched: {error}; check the address"
            ) from error
        yield target


def _seed(source: str) -> int:
    text = source.removeprefix("simulator:") or "0"
    if not text.isdigit():
        raise SettingsError(f"{source}: a simulator's seed is a whole number, for example simulator:1")
    return int(text)
