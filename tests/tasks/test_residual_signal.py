"""The residual signal from the tables to a measurement: slices, clocks and references of other versions."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import monitoring, tracking
from tasks.storage import Store
from warpgauge.drift.measurement import Measurement
from warpgauge.tables import LAUNCHES


def residuals() -> Measurement:
    (found,) = (one for one in monitoring.measure() if one.signal == "residuals")
    return found


def slices(measurement: Measurement) -> dict[str, dict[str, Any]]:
    return {one["slice"]: one for one in measurement.details["slices"]}


@pytest.fixture
def recent(make: Any) -> pl.DataFrame:
    """480 launches of the law that the champion learned, measured after its training."""
    made: pl.DataFrame = make.launches(seed=1, collected_at=datetime.now(UTC) - timedelta(minutes=5))
    return made


def test_slowed_gpu_is_named_and_the_other_is_not(world: Path, recent: pl.DataFrame) -> None:
    slow, other = recent["gpu_name"].unique().sort().to_list()
    label = pl.col("first_launch_api_us")
    factor = pl.when(pl.col("gpu_name") == slow).then(1.3).otherwise(1.0)
    Store().append("launches", recent.with_columns(label * factor))
    found = residuals()
    assert found.is_tripped
    assert found.reason.startswith(f"gpu_name={slow}: latency over predicted is ")
    entries = slices(found)
    assert entries[f"gpu_name={slow}"]["change_ratio"] == pytest.approx(0.3, abs=0.06)
    assert entries[f"gpu_name={other}"]["value"] < entries[f"gpu_name={other}"]["limit"]
    assert {name.split("=")[0] for name in entries} == {"all rows", "gpu_name", "topology"}


def test_gpu_that_training_never_saw_is_named(world: Path, recent: pl.DataFrame) -> None:
    Store().append("launches", recent.with_columns(pl.lit("NVIDIA Never Seen").alias("gpu_name")))
    found = residuals()
    entry = slices(found)["gpu_name=NVIDIA Never Seen"]
    assert (entry["is_never_seen"], entry["status"], entry["sample_count"]) == (True, "measured", 480)
    assert "never seen in training" in found.reason


def test_launches_of_a_clock_that_runs_ahead_are_left_out_and_counted(
    world: Path, recent: pl.DataFrame
) -> None:
    ahead = (datetime.now(UTC) + timedelta(hours=2)).timestamp()
    is_ahead = pl.int_range(pl.len()) % 4 == 0
    schema = LAUNCHES.schema
    Store().append(
        "launches",
        recent.with_columns(
            pl.when(is_ahead).then(pl.lit("unix")).otherwise(pl.col("clock")).alias("clock"),
            pl.when(is_ahead)
            .then(pl.lit(int(ahead * 1e9)))
            .otherwise(pl.col("started_ns"))
            .cast(schema["started_ns"])
            .alias("started_ns"),
        ),
    )
    found = residuals()
    assert (found.sample_count, found.details["future_row_count"]) == (360, 120)
    assert "120 stamped in the future are left out" in found.reason


def test_same_rows_are_measured_alike_round_after_round(world: Path, recent: pl.DataFrame) -> None:
    Store().append("launches", recent.sample(fraction=1.0, shuffle=True, seed=3))
    first, second = residuals(), residuals()
    assert (first.value, first.limit, first.details) == (second.value, second.limit, second.details)


def test_reference_of_an_older_version_is_refused_with_what_to_do(world: Path, recent: pl.DataFrame) -> None:
    tracking.connect()
    for path in (world / "mlruns" / "artifacts").rglob("residual_reference.json"):
        path.write_text(
            json.dumps({**json.loads(path.read_text()), "format": "warpgauge.residual_reference.1"})
        )
    Store().append("launches", recent)
    found = residuals()
    assert found.cause == "degenerate"
    assert "residual_reference.1" in found.reason
    assert "train a new version" in found.reason
