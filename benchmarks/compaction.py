"""How large the store is after 30 days of work, and whether every registered version still has what it needs.

    python benchmarks/compaction.py [--days 30] [--once] [--folder DIR]

Each day holds 864,000 samples of 10 GPUs, 480 launches, 20 documents and their labels, the decisions, metrics and pages
of 288 rounds, both models trained and registered, two retrainings that were refused, a registration that failed, and a
lease's signs of life; then comes the nightly `compact`, or with `--once` a single one at the end. Commits are hourly,
24 a table and day, where a real day of decisions and samples has 288: the store merges small files by itself, so the
rows decide, and the log of a real day is some 2 MB larger until the night. Versions are one trained bundle with each
day's data versions, for a training takes longer than a simulated day.

Afterwards each registered version must load, and each table version that it was trained on must read as it did.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from monitor_day import add_metrics
from simulated_days import (
    ROUND_MINUTES,
    ROUNDS_A_DAY,
    decisions,
    enter_store,
    folder_bytes,
    gpu_samples,
    labels,
    launches,
    reports,
)

# With the day that replaced files wait, which is not waited for here: they are some 35 MB.
PROMISED_MB = 300
PAGE_BYTES = 40_000
HEARTBEATS_A_DAY = 40
TRAINED = {"launch-latency": ("launches",), "doc-quality": ("documents", "labels")}


def main() -> int:
    """Print sizes and what was checked; 1 if something is lost or the store is larger than promised."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--once", action="store_true", help="one compaction at the end, none at night")
    parser.add_argument("--folder", type=Path)
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        return measure(root / "store", options.days, options.once)


def measure(root: Path, days: int, is_once: bool) -> int:
    """Simulate the days and check what is left."""
    from tasks import registration

    enter_store(root)
    # What was replaced yesterday would wait for a day; here a day takes seconds. It is counted before each night.
    os.environ["WARPGAUGE_RETENTION_GRACE_HOURS"] = "0"
    now = datetime.now(UTC).replace(microsecond=0)
    bundles = first_day(now - timedelta(days=days), root)
    needed: dict[tuple[str, int], str] = {}
    largest = 0
    for day in range(days):
        start = now - timedelta(days=days - day)
        live_a_day(start, day)
        needed |= train(bundles, start, root)
        before = folder_bytes(root)
        largest = max(largest, before)
        seconds = time.process_time()
        if not is_once or day == days - 1:
            answer = compact(start + timedelta(days=1))
            seconds = time.process_time() - seconds
            if day % 5 == 4 or day == days - 1:
                print(
                    f"day {day + 1}: {before / 1e6:.1f} MB before the night, {folder_bytes(root) / 1e6:.1f} MB after it, "
                    f"{seconds:.1f} CPU s",
                    flush=True,
                )
    size = folder_bytes(root)
    show(answer)
    lost = [key for key, known in needed.items() if digest(*key) != known]
    versions = [
        (model["model_name"], version["version"])
        for model in registration.list_versions()["models"]
        for version in model["versions"]
    ]
    for name, version in versions:
        registration.model_files(name, version)
        registration.version_facts(name, version)
    print(
        f"{len(versions)} registered versions load; {len(needed)} table versions that they need were read: {len(lost)} lost"
    )
    print(
        f"the store holds {size / 1e6:.1f} MB, at most {largest / 1e6:.1f} MB before a night; {PROMISED_MB} MB are promised"
    )
    return 1 if lost or size > PROMISED_MB * 1e6 else 0


def first_day(start: datetime, root: Path) -> dict[str, Path]:
    """What the first trainings learn from, and a bundle of each model."""
    from tasks import training
    from tasks.storage import Store

    store = Store()
    store.append("launches", launches(start))
    documents = reports(160, start)
    store.append("documents", documents)
    store.append("labels", labels(documents, start))
    bundles = {}
    for name, make in (
        ("launch-latency", training.train_latency),
        ("doc-quality", training.train_docquality),
    ):
        bundle = make(training.plan_training(name), "simulated day")
        bundles[name] = Path(shutil.move(bundle, root.parent / name))
    return bundles


def live_a_day(start: datetime, day: int) -> None:
    """A day of work but for the trainings."""
    import polars as pl

    from tasks import attempts, tracking
    from tasks.storage import Store

    store = Store()
    todays_launches = launches(start, seed=day + 1)
    documents = reports(20, start, seed=day + 1)
    values: dict[str, float] = {}
    for hour in range(24):
        moment = start + timedelta(hours=hour)
        store.append("gpu_samples", gpu_samples(moment, 3600, seed=24 * day + hour))
        store.append("launches", todays_launches[20 * hour :].head(20))
        part = documents[hour : hour + 1]
        store.append("documents", part)
        store.append("labels", labels(part, moment))
        rounds = [moment + timedelta(minutes=minute) for minute in range(0, 60, ROUND_MINUTES)]
        made = pl.concat(decisions(one) for one in rounds)
        store.append_after("decisions", made, store.version("decisions"))
        values = {f"{row['signal']}/{row['subject']}": row["value"] for row in made.iter_rows(named=True)}
    add_metrics(start, values)
    lease = {"job": ["train launch-latency"], "holder": [""], "acquired_at": [start], "heartbeat_at": [start]}
    for _ in range(HEARTBEATS_A_DAY):
        store.replace("leases", pl.DataFrame(lease), store.version("leases"))
    for number in range(2):
        with attempts.attempt("launch-latency", f"{day}/{number}") as attempt:
            attempt.end("refused", "not better than the champion")
    client = tracking.connect()
    failed = client.create_run(
        tracking.experiment_id(client), start_time=int(start.timestamp() * 1000)
    ).info.run_id
    client.log_text(failed, "x" * 500_000, "training.json")
    client.set_terminated(failed, "FAILED", int(start.timestamp() * 1000))
    pages = Path(store.address) / "reports" / "monitor"
    pages.mkdir(parents=True, exist_ok=True)
    for place in range(ROUNDS_A_DAY):
        page = pages / f"{day:03}-{place:03}.html"
        page.write_bytes(os.urandom(PAGE_BYTES))
        written = (start + timedelta(minutes=ROUND_MINUTES * place)).timestamp()
        os.utime(page, (written, written))


def train(bundles: dict[str, Path], start: datetime, root: Path) -> dict[tuple[str, int], str]:
    """Register each model's bundle as if it were trained on today's rows; the table versions and what they hold."""
    from tasks import registration
    from tasks.storage import Store

    store = Store()
    needed = {}
    for name, tables in TRAINED.items():
        copy = root.parent / "bundle"
        shutil.copytree(bundles[name], copy)
        facts: dict[str, Any] = json.loads((copy / "bundle.json").read_text())
        facts["data_versions"] = {}
        for table in tables:
            version = store.data_version(table)
            assert version is not None
            facts["data_versions"] |= {table: version, f"{table}.table": store.table_id(table)}
            needed[table, version] = digest(table, version)
        facts["reason"] = f"the night after {start:%Y-%m-%d}"
        (copy / "bundle.json").write_text(json.dumps(facts))
        registration.register(str(copy))
        shutil.rmtree(copy)
    return needed


def compact(now: datetime) -> dict[str, Any]:
    """The nightly compaction, at that time."""
    from tasks import compaction, old_runs

    copies = compaction.shrink_copies(now=now)
    with compaction.alone():
        needs = compaction.list_needs(now)
        # Every commit was made a moment ago, whatever day its rows are of.
        needs.since = datetime.now(UTC) + timedelta(hours=1)
        tables = compaction.compact_tables(needs, now=now)
        runs = old_runs.compact_runs(needs, now=now)
    answer = compaction.summarize(False, copies, tables, runs)
    assert not answer["refused"], answer["refused"]
    return answer


def digest(table: str, version: int) -> str:
    """One hash of all rows of a table version, in any order."""
    from tasks.storage import Store

    rows = Store().read(table, version).collect()
    lines = sorted(json.dumps(row, default=str, sort_keys=True) for row in rows.iter_rows(named=True))
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def show(answer: dict[str, Any]) -> None:
    """The last compaction's own table."""
    from tasks.presentation import render

    print(render("compact", answer))


if __name__ == "__main__":
    sys.exit(main())
