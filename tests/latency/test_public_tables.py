"""The latency model on public kernel tables, as the example specs describe them."""

from pathlib import Path

import polars as pl
import pytest

from warpgauge.latency.table_spec import read_table_spec
from warpgauge.latency.training import train_latency
from warpgauge.source_file import read_source_file

EXAMPLES = Path(__file__).parents[2] / "docs" / "tables"
# Of the four groups elementwise is all that has no group of its own.
OWN_GROUP = ("ln", "softmax", "linear")


@pytest.mark.slow
def test_neusight_kernels_are_within_6_percent_together_and_9_percent_each(bench_data):
    spec = read_table_spec(EXAMPLES / "neusight.toml", bench_data / "latency_tables")
    rows, notes = [], []
    for path in spec.files():
        typed, found = spec.rows(pl.read_csv(path, infer_schema=False), read_source_file(path))
        rows.append(typed)
        notes += found
    assert notes == []
    training = train_latency(spec.scheme, pl.concat(rows), threads=1)
    assert training.unusable_row_count == 0
    assert training.metrics["mape_ratio"] <= 0.06
    assert training.metrics["mape_ratio"] < 0.25 * training.metrics["plain_mape_ratio"]
    assert training.metrics["mape_ratio"] < training.metrics["line_mape_ratio"]
    assert 0.88 <= training.metrics["coverage_ratio"] <= 0.92
    group = pl.when(pl.col("OPName").is_in(OWN_GROUP)).then("OPName").otherwise(pl.lit("elementwise"))
    each = (
        training.heldout.with_columns(group=group)
        .group_by("group")
        .agg(
            ((pl.col("actual_us") - pl.col("predicted_us")).abs() / pl.col("actual_us")).mean().alias("mape")
        )
    )
    assert sorted(each["group"]) == ["elementwise", "linear", "ln", "softmax"]
    assert each["mape"].max() <= 0.09
    devices = training.left_out.filter(pl.col("column") == "Device")
    assert sorted(devices["value"]) == sorted(training.model.trained_on["Device"])
    assert sum(len(content) for content in training.model.to_files().values()) < 1_200_000
