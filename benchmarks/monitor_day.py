"""What a day of monitoring costs: 288 rounds on 10 GPUs that are read once a second, in one served process.

    python benchmarks/monitor_day.py [--rounds 12] [--days 30] [--commits-a-day 24] [--folder DIR]

One store holds a day of samples (864,000, in 288 appends), both champions (small ones, the real encoder), and launches
and documents that came since they were trained. Another is a copy of it that is `--days` old: samples of a week; and
of each day its decisions, metrics, retrainings, launches and documents; a `compact` now and then, as every night.

Rounds run on the two in turn as `warpgauge monitor` runs them, all in one process, and before each come 3,000 samples,
and now and then launches and documents, as they would in five minutes. What counts is the CPU time, user and system,
of this process and its children without Prefect's server. `--commits-a-day` is how often decisions were written on
each day of the past (a real day has 288; the rows are those of 288 rounds whatever it is). Last come fresh processes,
beside a server that runs elsewhere.

At most 864 CPU seconds a day are promised (1 % of one core, 3.0 s a round), the same after any history.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import io
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
from simulated_days import (
    GPU_COUNT,
    ROOT,
    ROUND_MINUTES,
    ROUND_SECONDS,
    ROUNDS_A_DAY,
    decisions,
    enter_store,
    gpu_samples,
    labels,
    launches,
    reports,
    train_champions,
)

CORE_SECONDS_A_DAY = 86_400
PROMISED_RATIO = 0.01
IDLE_S = 20
ATTEMPTS_A_DAY = 2
DOCUMENTS_A_DAY = 20
SAMPLE_DAYS = 7


def main() -> int:
    """Print the figures; 1 if a promise is not kept."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--days", type=int, default=30)
    parser.add_argument("--commits-a-day", type=int, default=24)
    parser.add_argument(
        "--folder", type=Path, help="where the stores are made; default is a temporary folder"
    )
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        root = options.folder or Path(stack.enter_context(tempfile.TemporaryDirectory()))
        found = measure(root, options.rounds, options.days, options.commits_a_day)
    medians = {name: statistics.median(rounds) for name, rounds in found.items()}
    ratio = medians["old"] / medians["young"]
    idle_s = found["idle"][0]
    day_s = max(medians["young"], medians["old"]) * ROUNDS_A_DAY
    print(f"old / young: {ratio:.2f}")
    print(
        f"a day: {day_s:.0f} CPU s in rounds and {idle_s:.0f} between them = "
        f"{(day_s + idle_s) / CORE_SECONDS_A_DAY:.2%} of a core"
    )
    kept = day_s + idle_s <= PROMISED_RATIO * CORE_SECONDS_A_DAY
    print(f"at most {PROMISED_RATIO:.0%} of a core was promised: {'kept' if kept else 'NOT KEPT'}")
    return 0 if kept else 1


def measure(root: Path, rounds: int, days: int, commits_a_day: int) -> dict[str, list[float]]:
    """CPU seconds of each round on the young and on the old store, and of a day's pauses between rounds."""
    now = datetime.now(UTC)
    end = now - timedelta(minutes=ROUND_MINUTES * rounds)
    young, old = root / "young", root / "old"
    enter_store(young)
    training_s = fill(now - timedelta(days=2), end)
    shutil.copytree(young, old)
    enter_store(old)
    with counted() as history:
        add_history(now, days, commits_a_day)
    print(f"{days} days made in {history[0]:.0f} CPU s", flush=True)
    found: dict[str, list[float]] = {"young": [], "old": []}
    with counted() as first:
        run_round()
    print(f"first round of the process: {first[0]:.1f} CPU s", flush=True)
    for place in range(rounds):
        stores = [("young", young), ("old", old)]
        for name, store in stores if place % 2 else reversed(stores):
            enter_store(store)
            found[name].append(measure_round(place, end + timedelta(minutes=ROUND_MINUTES * place), rounds))
    for name in ("young", "old"):
        show(f"{name} store", found[name])
    with counted() as idle:
        time.sleep(IDLE_S)
    found["idle"] = [idle[0] / IDLE_S * CORE_SECONDS_A_DAY]
    measure_processes(root, statistics.median(found["old"]), training_s)
    return found


def fill(trained_at: datetime, end: datetime) -> float:
    """A day of samples, champions, and what came since; CPU seconds of the two trainings."""
    from tasks.storage import Store

    store = Store()
    store.append("launches", launches(trained_at))
    documents = reports(160, trained_at)
    store.append("documents", documents)
    store.append("labels", labels(documents, trained_at))
    with counted() as training:
        said = train_champions()
    print(f"both models trained in {training[0]:.0f} CPU s; the gate says {', '.join(said)}")
    recent = end - timedelta(hours=3)
    store.append("launches", launches(recent, seed=1))
    store.append("documents", reports(120, recent, seed=1))
    with counted() as appends:
        for place in range(ROUNDS_A_DAY, 0, -1):
            start = end - timedelta(minutes=ROUND_MINUTES * place)
            store.append("gpu_samples", gpu_samples(start, ROUND_SECONDS, seed=place))
    rows = ROUNDS_A_DAY * ROUND_SECONDS * GPU_COUNT
    print(f"{rows:,} samples in {ROUNDS_A_DAY} appends: {appends[0]:.0f} CPU s, their making included")
    return training[0]


def add_history(now: datetime, days: int, commits_a_day: int) -> None:
    """What the days before leave: samples of a week, decisions, metrics, retrainings, launches, documents."""
    import polars as pl

    from tasks import attempts, compaction, embedding, old_runs
    from tasks.storage import Store

    store = Store()
    per_commit = ROUNDS_A_DAY // commits_a_day
    encoder = embedding.load_encoder()
    for day in range(days, 1, -1):
        start = now - timedelta(days=day)
        if day <= SAMPLE_DAYS:
            for hour in range(24):
                moment = start + timedelta(hours=hour)
                store.append("gpu_samples", gpu_samples(moment, 3600, seed=1000 * day + hour))
        values: dict[str, float] = {}
        for commit in range(commits_a_day):
            made = pl.concat(
                decisions(start + timedelta(minutes=ROUND_MINUTES * (commit * per_commit + place)))
                for place in range(per_commit)
            )
            while not store.append_after("decisions", made, store.version("decisions")):
                pass
            values = {f"{row['signal']}/{row['subject']}": row["value"] for row in made.iter_rows(named=True)}
        add_metrics(start, values)
        store.append("launches", launches(start, seed=10 + day))
        documents = reports(DOCUMENTS_A_DAY, start, seed=10 + day)
        store.append("documents", documents)
        embedding.embed(documents, encoder)
        for number in range(ATTEMPTS_A_DAY):
            with attempts.attempt("launch-latency", f"attempt-{day}-{number}") as attempt:
                attempt.end("refused", "not better than the champion")
        if day % 5 == 0:
            needs = compaction.list_needs()
            compaction.compact_tables(needs)
            old_runs.compact_runs(needs)
            compaction.shrink_copies()


def add_metrics(start: datetime, values: dict[str, float]) -> None:
    """A day of the monitor's metrics in MLflow, a value a round."""
    from mlflow.entities import Metric

    from tasks import tracking

    tracking.log_monitor_metrics(values)
    client = tracking.connect()
    (run,) = client.search_runs([tracking.experiment_id(client)], "tags.role = 'monitor'")
    first = int(start.timestamp())
    metrics = [
        Metric(name, value, 1000 * (first + ROUND_SECONDS * place), first + ROUND_SECONDS * place)
        for place in range(ROUNDS_A_DAY)
        for name, value in values.items()
    ]
    for at in range(0, len(metrics), tracking.PAGE_ROWS):
        client.log_batch(run.info.run_id, metrics=metrics[at : at + tracking.PAGE_ROWS])


def measure_round(place: int, moment: datetime, rounds: int) -> float:
    """CPU seconds of one round, after the samples of five minutes; launches and documents come in two of the rounds."""
    from tasks.storage import Store

    store = Store()
    store.append("gpu_samples", gpu_samples(moment, ROUND_SECONDS, seed=10_000 + place))
    if place % (rounds // 2 or 1) == 0:
        store.append("launches", launches(moment, seed=100_000 + place, trials=1))
        store.append("documents", reports(5, moment, seed=100_000 + place))
    with counted() as used:
        run_round()
    return used[0]


def run_round() -> dict[str, Any]:
    """One round as `warpgauge monitor` runs it."""
    from flows.monitor_drift import monitor_drift
    from tasks.presentation import render

    monitored: dict[str, Any] = monitor_drift()
    print(render("monitor", monitored), file=io.StringIO())
    return monitored


def measure_processes(root: Path, round_s: float, training_s: float) -> None:
    """Fresh processes beside the server of this one, and how a day of them compares with the monitor's."""
    from prefect.server.api.server import SubprocessASGIServer

    environment = os.environ | {"PREFECT_API_URL": SubprocessASGIServer().api_url}
    log = root / "samples.csv"
    start = datetime.now(UTC) - timedelta(minutes=3)
    log.write_text(
        "timestamp, uuid, utilization.gpu [%]\n"
        + "".join(
            f"{start + timedelta(seconds=second):%Y/%m/%d %H:%M:%S}.000, GPU-{gpu:08x}-5f3a-4c1e-9d2b-{gpu:012x}, 50 %\n"
            for second in range(120)
            for gpu in range(GPU_COUNT)
        )
    )
    used = {}
    for name, words in {
        "monitor --once": ["monitor", "--once"],
        "collect telemetry": ["collect", "telemetry", str(log)],
        "validate": ["validate", "launches"],
    }.items():
        before = os.times()
        done = subprocess.run(
            [sys.executable, "-m", "flows", *words, "--json"],
            cwd=ROOT,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        after = os.times()
        used[name] = (
            after.children_user + after.children_system - before.children_user - before.children_system
        )
        print(f"fresh process, {name}: {used[name]:.1f} CPU s, exit {done.returncode}")
        if done.returncode not in (0, 3):
            print(done.stderr[-2000:], file=sys.stderr)
    pipeline_s = 720 * used["collect telemetry"] + 24 * 3 * used["validate"] + training_s
    watched_s = GPU_COUNT * CORE_SECONDS_A_DAY
    day_s = round_s * ROUNDS_A_DAY
    print(
        f"a day of monitoring / the work watched, {GPU_COUNT} GPUs for a day ({watched_s:,} GPU seconds): {day_s / watched_s:.5f}"
    )
    print(
        f"a day of monitoring / the pipeline beside it (720 collections, 24 validations of three tables, both trainings: "
        f"{pipeline_s:,.0f} CPU s): {day_s / pipeline_s:.3f} served, "
        f"{ROUNDS_A_DAY * used['monitor --once'] / pipeline_s:.3f} as fresh processes"
    )


def show(name: str, found: list[float]) -> None:
    """One line on a set of rounds."""
    median = statistics.median(found)
    day_s = median * ROUNDS_A_DAY
    print(
        f"{name}: median {median:.2f} CPU s a round ({min(found):.2f} to {max(found):.2f}, {len(found)} rounds), "
        f"{day_s:.0f} CPU s a day = {day_s / CORE_SECONDS_A_DAY:.2%} of a core",
        flush=True,
    )


@contextmanager
def counted() -> Iterator[list[float]]:
    """CPU seconds of the block, of this process and its children without Prefect's server."""
    used: list[float] = []
    before = _cpu_s()
    yield used
    used.append(_cpu_s() - before)


def _cpu_s() -> float:
    own = os.times()
    ticks = os.sysconf("SC_CLK_TCK")
    total = time.process_time() + own.children_user + own.children_system
    for child in _children(os.getpid()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            if "prefect.server" in Path(f"/proc/{child}/cmdline").read_text():
                continue
            fields = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()
            total += (int(fields[11]) + int(fields[12])) / ticks
    return total


def _children(process: int) -> Iterator[int]:
    for listed in glob.glob(f"/proc/{process}/task/*/children"):
        try:
            found = Path(listed).read_text().split()
        except (FileNotFoundError, ProcessLookupError):  # the thread has ended
            continue
        for child in map(int, found):
            yield child
            yield from _children(child)


if __name__ == "__main__":
    sys.exit(main())
