"""The README's tables of the launch-latency model, on 40,000 public trials of real launches.

    python benchmarks/latency_figures.py        # WARPGAUGE_BENCH_DATA, or ../shared/data beside the checkout

Every row is predicted once, by a model that saw no size of its block of consecutive ones: blocks of 10, which is the
rule of every training, and of 50 and 200, which ask how far it carries over sizes that nobody measured.
"""

import itertools
import sys
import time

import numpy as np
import polars as pl
from bench_data import bench_folder

from warpgauge.latency.launch_scheme import LENGTHS_A_BLOCK, LaunchScheme
from warpgauge.latency.training import train_latency
from warpgauge.launches.source import read_launches

COLUMNS = ("rmse_us", "noise_floor_us", "rmse_over_floor", "share_within_promise_ratio", "coverage_ratio")
BLOCKS = (LENGTHS_A_BLOCK, 50, 200)
BANDS = 6
# Below the sixths: where the interval does not hold everywhere.
SMALL_EDGES = (0, 10, 50, 100, 200, 333)


def main() -> int:
    """Print the tables in Markdown."""
    data = bench_folder("perfscaling")
    if data is None:
        return 2
    launches = pl.concat([read_launches(path).frame for path in sorted(data.glob("*.csv.gz"))])
    print(
        "| blocks | launches | predictor | RMSE, us | floor, us | RMSE over floor | within promise | 90 % interval holds |"
    )
    print("|---|---|---|---|---|---|---|---|")
    heldout, said = None, []
    for block in BLOCKS:
        start = time.perf_counter()
        trained = train_latency(LaunchScheme(lengths_a_block=block), launches, threads=1)
        seconds = time.perf_counter() - start
        shown = trained.slices.filter(pl.col("slice").is_in(["overall", "topology"]))
        for row in shown.iter_rows(named=True):
            figures = [row[name] for name in COLUMNS]
            texts = [f"{figures[0]:.2f}", f"{figures[1]:.2f}", f"{figures[2]:.3f}", f"{figures[3]:.1%}"]
            texts.append("-" if figures[4] is None else f"{figures[4]:.1%}")
            print(f"| {block} | {row['value']} | {row['predictor']} | " + " | ".join(texts) + " |")
        if heldout is None:
            heldout = trained.heldout
            size = sum(len(content) for content in trained.model.to_files().values())
            said = [
                f"trained with cross-validation in {seconds:.1f} s on one thread; model files {size / 1000:.0f} kB"
            ]
            said += [note for note in trained.notes if note.startswith("hidden state")]
    _print_bands(heldout, launches)
    print("\n" + "\n\n".join(said))
    return 0


def _print_bands(heldout: pl.DataFrame, launches: pl.DataFrame) -> None:
    """Coverage and width in six equal bands of line length, then in narrower ones of the first; blocks of 10."""
    rows = heldout.join(
        launches.select(pl.col("launch_id").alias("row_id"), "line_length"), on="row_id", how="left"
    ).with_columns(
        ((pl.col("actual_us") >= pl.col("lower_us")) & (pl.col("actual_us") <= pl.col("upper_us"))).alias(
            "inside"
        ),
        (pl.col("upper_us") - pl.col("lower_us")).alias("width"),
    )
    sixths = np.linspace(0, rows["line_length"].max(), BANDS + 1)
    bands = [*itertools.pairwise(sixths), *itertools.pairwise(SMALL_EDGES)]
    print(
        "\n| line length | straight: interval holds | mean width, us | 4 parallel: interval holds | mean width, us | both |"
    )
    print("|---|---|---|---|---|---|")
    for low, high in bands:
        part = rows.filter((pl.col("line_length") > low) & (pl.col("line_length") <= high))
        cells = []
        for topology in ("straight_line", "parallel_lines"):
            one = part.filter(pl.col("topology") == topology)
            cells += [f"{one['inside'].mean():.1%}", f"{one['width'].mean():.1f}"]
        print(f"| {int(low) + 1} to {int(high)} | " + " | ".join(cells) + f" | {part['inside'].mean():.1%} |")


if __name__ == "__main__":
    sys.exit(main())
