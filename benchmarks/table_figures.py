"""The README's table of latency tables: NeuSight's kernels on four GPUs, and matrix products on one H200.

    python benchmarks/table_figures.py          # WARPGAUGE_BENCH_DATA, or ../shared/data beside the checkout

Trained by the specs in docs/tables/. Every row is predicted once, by a model that had not seen its shape.
"""

import sys
import time

import polars as pl
from bench_data import ROOT, bench_folder

from tasks.validation import read_rows
from warpgauge.latency.evaluation import PREDICTORS
from warpgauge.latency.fitting import Boosting
from warpgauge.latency.table_spec import TableSpec, read_table_spec
from warpgauge.latency.training import LatencyTraining, train_latency
from warpgauge.source_file import read_source_file

LIMIT_BYTES = 1 << 30
# NeuSight names each elementwise operation; the figure is of all of them.
OTHER_KINDS = ("ln", "softmax", "linear")


def main() -> int:
    """Print the tables in Markdown."""
    data = bench_folder("latency_tables")
    if data is None:
        return 2
    neusight = read_table_spec(ROOT / "docs" / "tables" / "neusight.toml", data)
    print("| table | rows | predictor | mean error | within 5 % | 90 % interval holds |")
    print("|---|---|---|---|---|---|")
    kind = pl.when(pl.col("OPName").is_in(OTHER_KINDS)).then("OPName").otherwise(pl.lit("elementwise"))
    _print(neusight, neusight.files(), kind)
    gemm = read_table_spec(ROOT / "docs" / "tables" / "h200_gemm.toml", data)
    for version in ("0.5.9", "0.5.10"):
        _print(
            gemm,
            [path for path in gemm.files() if f"_{version}_" in path.name],
            pl.col("gemm_dtype"),
            f" {version}",
        )
    return 0


def _print(spec: TableSpec, files: list, kind: pl.Expr, suffix: str = "") -> None:
    start = time.perf_counter()
    rows = pl.concat([spec.rows(read_rows(path, LIMIT_BYTES), read_source_file(path))[0] for path in files])
    trained = train_latency(spec.scheme, rows, Boosting().changed(spec.scheme.parameters), threads=1)
    name = f"{spec.scheme.name}{suffix}"
    heldout = trained.heldout.with_columns(kind.alias("kind"))
    parts = [
        ("all", heldout),
        *((str(key[0]), part) for key, part in sorted(heldout.partition_by("kind", as_dict=True).items())),
    ]
    for value, part in parts:
        for predictor in PREDICTORS if value == "all" else ("model",):
            print(
                f"| {name}: {value} | {part.height} | {predictor} | "
                + " | ".join(_figures(part, predictor))
                + " |"
            )
    print(_size(trained, name, time.perf_counter() - start), file=sys.stderr)


def _figures(part: pl.DataFrame, predictor: str) -> list[str]:
    column = PREDICTORS[predictor]
    error = (pl.col(column) - pl.col("actual_us")).abs() / pl.col("actual_us")
    inside = (pl.col("actual_us") >= pl.col("lower_us")) & (pl.col("actual_us") <= pl.col("upper_us"))
    mean, within, held = part.select(
        error.mean().alias("mean"), (error <= 0.05).mean().alias("within"), inside.mean().alias("held")
    ).row(0)
    return [f"{mean:.2%}", f"{within:.1%}", f"{held:.1%}" if predictor == "model" else "-"]


def _size(trained: LatencyTraining, name: str, seconds: float) -> str:
    size = sum(len(content) for content in trained.model.to_files().values())
    return (
        f"{name}: {trained.tree_count} trees, model files {size / 1e6:.2f} MB, {seconds:.0f} s on one thread"
    )


if __name__ == "__main__":
    sys.exit(main())
