"""The README's table of the launch-latency model, on 40,000 public trials of real launches.

    python benchmarks/latency_figures.py        # WARPGAUGE_BENCH_DATA, or ../shared/data beside the checkout

Every row is predicted once, by a model that saw no size of its block of ten consecutive ones.
"""

import os
import sys
import time
from pathlib import Path

import polars as pl

from warpgauge.latency.training import train_latency
from warpgauge.launches.source import read_launches

ROOT = Path(__file__).resolve().parents[1]
COLUMNS = ("rmse_us", "noise_floor_us", "rmse_over_floor", "share_within_promise_ratio", "coverage_ratio")


def main() -> int:
    """Print the table in Markdown."""
    data = Path(os.environ.get("WARPGAUGE_BENCH_DATA", ROOT.parent / "shared" / "data")) / "perfscaling"
    files = sorted(data.glob("*.csv.gz"))
    if not files:
        print(f"no file in {data}; docs/benchmarks.md says where the data come from", file=sys.stderr)
        return 2
    launches = pl.concat([read_launches(path).frame for path in files])
    start = time.perf_counter()
    trained = train_latency(launches, threads=1)
    seconds = time.perf_counter() - start
    print(
        "| launches | predictor | RMSE, us | noise floor, us | RMSE over floor | within max(5 us, 5 %) | 90 % interval holds |"
    )
    print("|---|---|---|---|---|---|---|")
    shown = trained.slices.filter(pl.col("slice").is_in(["overall", "topology"]))
    for row in shown.iter_rows(named=True):
        figures = [row[name] for name in COLUMNS]
        texts = [f"{figures[0]:.2f}", f"{figures[1]:.2f}", f"{figures[2]:.3f}", f"{figures[3]:.1%}"]
        texts.append("-" if figures[4] is None else f"{figures[4]:.1%}")
        print(f"| {row['value']} ({row['row_count']}) | {row['predictor']} | " + " | ".join(texts) + " |")
    size = sum(len(content) for content in trained.model.to_files().values())
    print(
        f"\ntrained with cross-validation in {seconds:.1f} s on one thread; model files {size / 1000:.0f} kB"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
