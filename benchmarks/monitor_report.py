"""What the monitor's page costs: built from a month of rounds every five minutes on 16 signals.

    python benchmarks/monitor_report.py [--days 30] [--repeats 7] [--folder DIR]

The rounds are those of the real decision, on signals with two load episodes in 48 hours, a slice of residuals that drifts
now and then, a shift of the documents, gaps that cannot be said, and retrainings that are promoted, held, refused and
fail. The page, its pictures and metrics of the last round are written to the folder, to be looked at. Times are CPU time
of this process on one thread, the median of the repeats; at most 1 s and 1 MB a page are promised.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from itertools import cycle
from pathlib import Path
from typing import Any

os.environ.setdefault("POLARS_MAX_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import numpy as np
import polars as pl

from warpgauge.drift.decision import Champion, Context, Policy, Retraining, decide
from warpgauge.drift.exposition import Counts, to_text
from warpgauge.drift.measurement import Measurement
from warpgauge.drift.report import draw_pictures, render_markdown, render_page
from warpgauge.drift.timeline import build_timeline, recent
from warpgauge.drift.verdict import Round
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY
from warpgauge.tables import DECISIONS

STEP = timedelta(minutes=5)
BEGIN = datetime(2026, 11, 1, tzinfo=UTC)
GPU_COUNT = 10
OUTCOMES = ("promoted", "refused", "failed", "failed", "promoted", "held")
RETRAINING = timedelta(minutes=12)


def measured(round_number: int, random: np.random.Generator) -> list[Measurement]:
    """What a round measures on 16 signals."""
    hour = (round_number * 5 / 60) % 48
    # Two episodes of load in 48 hours.
    loaded = 80 if hour < 6 else 95 if hour < 30 else 85 if hour < 36 else 94
    found = []
    for gpu in range(GPU_COUNT):
        name = f"GPU-{gpu:08x}-5f3a-4c1e-9d2b-{gpu:012x}"
        usual = loaded if gpu == 0 else 60 + 10 * np.sin(round_number / 46 + gpu)
        p95 = float(min(100, usual + random.normal(0, 2)))
        if gpu == 3 and round_number % 2000 < 300:
            found.append(
                Measurement.cannot_say("utilization_p95", name, "stale", "no reading in 24 hours", limit=92.0)
            )
            continue
        found.append(
            Measurement.measured(
                "utilization_p95",
                name,
                p95,
                lower=p95 - 2,
                upper=min(100.0, p95 + 1.5),
                limit=92,
                sample_count=86_400,
                reason=f"p95 {p95:.1f} % of 86400 valid, 0 rejected, 0 missing readings against 92 %",
            )
        )
    errors = 2 + float(random.gamma(2, 0.25)) + (6 if round_number % 2600 > 2300 else 0)
    slices = [
        {
            "slice": "all rows" if number == 0 else f"gpu_name=NVIDIA GPU {number}",
            "sample_count": 5000 // (number + 1),
            "status": "measured",
            "value": errors if number == 1 else 1.5 + number / 9,
            "limit": 4.9,
            "change_ratio": 0.02,
            "inside_ratio": 0.88,
            "trained_inside_ratio": 0.9,
            "is_never_seen": number == 8,
        }
        for number in range(9)
    ]
    found.append(
        Measurement.measured(
            "residuals",
            LAUNCH_LATENCY,
            errors,
            lower=max(0.0, errors - 1.96),
            upper=errors + 1.96,
            limit=4.9,
            sample_count=5000,
            reason=f"gpu_name=NVIDIA GPU 1: errors have grown, {errors:.1f} standard errors against a limit of 4.9",
            details={"slices": slices},
        )
    )
    is_early = round_number % 288 < 60
    for signal, limit in (("embedding_variance", 0.4), ("embedding_shift", 0.0151)):
        value = limit * float(random.gamma(4, 0.05)) + (limit if 3000 < round_number < 3400 else 0)
        found.append(
            Measurement.cannot_say(
                signal, DOC_QUALITY, "too few", "21 of 50 documents", sample_count=21, limit=limit
            )
            if is_early
            else Measurement.measured(
                signal,
                DOC_QUALITY,
                value,
                lower=0.7 * value,
                upper=1.4 * value,
                limit=limit,
                sample_count=180,
                reason=signal,
            )
        )
    for table in ("launches", "documents", "gpu_samples"):
        share = 0.08 if table == "documents" and round_number % 4000 > 3900 else 0.01
        found.append(
            Measurement.measured(
                "data_quality",
                table,
                share,
                limit=0.05,
                sample_count=120_000,
                reason=f"{share:.0%} are in quarantine",
            )
        )
    return found


def simulate(round_count: int) -> tuple[pl.DataFrame, list[dict[str, Any]]]:
    """Rows of `decisions`, and the retrainings that they ordered."""
    random = np.random.default_rng(0)
    states: dict[tuple[str, str], Any] = {}
    versions = {LAUNCH_LATENCY: 3, DOC_QUALITY: 5}
    attempts: list[dict[str, Any]] = []
    outcomes = cycle(OUTCOMES)
    rows = []
    for number in range(round_count):
        now = BEGIN + number * STEP
        for one in attempts:
            if one["outcome"] == "running" and now - one["started_at"] >= RETRAINING:
                one.update(outcome=next(outcomes), wall_s=RETRAINING.total_seconds())
                versions[one["model_name"]] += one["outcome"] == "promoted"
        context = Context(
            {name: Champion(str(version)) for name, version in versions.items()},
            tuple(
                Retraining(one["model_name"], one["attempt_id"], one["started_at"], one["outcome"])
                for one in attempts
            ),
        )
        for made in decide(measured(number, random), states, Policy(), now, context):
            states[made.signal, made.subject] = made.state
            rows.append(made.row(f"{number:032x}", now))
            if made.action == "retrain":
                order = {"model_name": made.model_name, "attempt_id": made.attempt_id, "started_at": now}
                attempts.append({**order, "outcome": "running", "wall_s": None, "why": None})
    return DECISIONS.conform(pl.DataFrame(rows, schema=DECISIONS.schema)), attempts


def cpu_s(work: Callable[[], Any], repeats: int) -> float:
    """Median CPU time of some calls."""
    times = []
    for _ in range(repeats):
        before = time.process_time()
        work()
        times.append(time.process_time() - before)
    return statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--days", type=float, default=30.0)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--folder", type=Path, help="default is a new one")
    options = parser.parse_args()
    folder = options.folder or Path(tempfile.mkdtemp(prefix="monitor-report-"))
    folder.mkdir(parents=True, exist_ok=True)
    decided, attempts = simulate(max(1, int(options.days * 288)))
    file = folder / "decisions.parquet"
    decided.write_parquet(file)
    end = decided["decided_at"].max()
    assert isinstance(end, datetime)
    history = recent(pl.scan_parquet(file), end).collect()
    timeline = build_timeline(history, end, attempts)
    rows = decided.filter(pl.col("decided_at") == end).to_dicts()
    told = Round("simulated", end, rows, timeline, undelivered=[])
    texts = {
        "page.html": render_page(told),
        "report.md": render_markdown(told, "page.html"),
        "metrics.prom": to_text(told, Counts()),
        **draw_pictures(told),
    }
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    steps: dict[str, Callable[[], Any]] = {
        "read the history": lambda: recent(pl.scan_parquet(file), end).collect(),
        "timeline": lambda: build_timeline(history, end, attempts),
        "page": lambda: render_page(told),
        "pictures": lambda: draw_pictures(told),
        "metrics": lambda: to_text(told, Counts()),
    }
    print(f"{decided.height} decisions, {len(attempts)} retrainings, {len(timeline.episodes)} episodes")
    times = {name: cpu_s(work, options.repeats) for name, work in steps.items()}
    for name, seconds in times.items():
        print(f"{name:18} {1000 * seconds:7.0f} ms CPU")
    every_round = sum(times[name] for name in ("read the history", "timeline", "page", "metrics"))
    print(f"{'every round':18} {1000 * every_round:7.0f} ms CPU")
    for name, text in texts.items():
        print(f"{name:18} {len(text.encode()) / 1000:7.0f} kB")
    print(f"written to {folder}")


if __name__ == "__main__":
    main()
