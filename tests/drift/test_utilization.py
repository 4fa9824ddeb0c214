import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from warpgauge.drift.measurement import Measurement
from warpgauge.drift.utilization import measure_utilization
from warpgauge.errors import SchemaError, WindowError
from warpgauge.tables import GPU_SAMPLES

NOW = datetime(2026, 1, 1, 1, 0, tzinfo=UTC)


def samples(values, *, gpu="GPU-a", step_s=30.0, end=NOW, reason="blank sentinel") -> pl.DataFrame:
    """One row a value, the last one at `end`; a null carries the reason that a reader would give."""
    count = len(values)
    return GPU_SAMPLES.conform(
        pl.DataFrame(
            {
                "gpu_uuid": [gpu] * count,
                "sampled_at": [end - timedelta(seconds=step_s * (count - 1 - i)) for i in range(count)],
                "utilization_percent": pl.Series(values, dtype=pl.Float64),
                "null_reasons": [
                    json.dumps({"utilization_percent": reason}) if value is None and reason else None
                    for value in values
                ],
            }
        )
    )


def measure(frame: pl.DataFrame, **changes) -> list[Measurement]:
    arguments = {
        "now": NOW,
        "window_hours": 1.0,
        "limit_percent": 92.0,
        "minimum_samples": 50,
        "minimum_coverage_ratio": 0.8,
    }
    return measure_utilization(frame, **(arguments | changes))


def test_blank_markers_neither_trip_nor_hide_a_hot_gpu(cases: Path):
    folder = cases / "01-util-blank-sentinel"
    expected = json.loads((folder / "expected.json").read_text())["gpus"]
    series = json.loads((folder / "query_range.json").read_text())["data"]["result"]
    rows = [
        (s["metric"]["UUID"], datetime.fromtimestamp(t, UTC), float(text))
        for s in series
        for t, text in s["values"]
    ]
    frame = pl.DataFrame(rows, schema=["gpu_uuid", "sampled_at", "raw"], orient="row").with_columns(
        pl.when(pl.col("raw").is_between(0, 100)).then("raw").alias("utilization_percent"),
        pl.when(~pl.col("raw").is_between(0, 100))
        .then(pl.lit('{"utilization_percent": "outside 0 to 100"}'))
        .alias("null_reasons"),
    )
    now = max(time for _, time, _ in rows)
    found = {m.subject: m for m in measure(GPU_SAMPLES.conform(frame.drop("raw")), now=now)}
    assert found.keys() == expected.keys()
    for gpu, wanted in expected.items():
        details = found[gpu].details
        assert (details["valid_count"], details["rejected_count"]) == (wanted["valid"], wanted["rejected"])
        assert found[gpu].value == (None if wanted["p95"] is None else pytest.approx(wanted["p95"], abs=1e-9))
    assert not found["GPU-aaaa"].is_tripped
    assert found["GPU-aaaa"].details["rejected_ratio"] == pytest.approx(0.1)
    assert found["GPU-bbbb"].cause == "no samples"
    assert "no valid data" in found["GPU-bbbb"].reason
    assert found["GPU-cccc"].is_tripped


def test_the_percentile_is_numpys_and_its_interval_holds_it():
    values = list(np.random.default_rng(0).uniform(0, 100, 120))
    [m] = measure(samples(values))
    assert m.value == pytest.approx(np.percentile(values, 95))
    assert m.lower < m.value < m.upper <= 100


def test_the_interval_covers_the_true_percentile_about_as_often_as_it_says():
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(300):
        [m] = measure(samples(list(random.uniform(0, 100, 100))))
        hits += m.lower <= 95.0 <= m.upper
    assert hits / 300 >= 0.93


def test_impossible_values_left_in_the_frame_are_rejected_too():
    [m] = measure(samples([50.0] * 60 + [101.0, -1.0, float("nan"), float("inf"), 9.2e18, 100.0]))
    assert m.details["valid_count"] == 61
    assert m.details["null_reasons"] == {"outside 0 to 100": 5}
    assert m.value == 50.0


def test_too_few_readings_are_not_no_drift():
    [m] = measure(samples([99.0] * 49))
    assert (m.status, m.cause, m.value, m.sample_count) == ("cannot_say", "too few", None, 49)


def test_low_coverage_is_not_no_drift():
    [m] = measure(samples([99.0] * 70 + [None] * 30))
    assert m.cause == "low coverage"
    assert m.details["rejected_count"] == 30


def test_a_null_without_a_reason_is_missing_not_rejected():
    [m] = measure(samples([10.0] * 60 + [None] * 5, reason=None))
    assert (m.details["rejected_count"], m.details["missing_count"]) == (0, 5)


def test_a_hole_counts_where_the_step_is_known():
    frame = samples([10.0] * 75)
    assert measure(frame)[0].status == "measured"
    [m] = measure(frame, expected_step_s=30.0)
    assert m.cause == "low coverage"
    assert m.details["coverage_ratio"] == pytest.approx(75 / 120)


def test_readings_before_the_window_are_stale():
    [m] = measure(samples([99.0] * 100, end=NOW - timedelta(days=3)))
    assert m.cause == "stale"
    assert "2025-12-29" in m.reason


def test_readings_of_a_clock_that_is_ahead_are_left_out_and_counted():
    frame = pl.concat([samples([20.0] * 60), samples([99.0] * 30, end=NOW + timedelta(hours=1))])
    [m] = measure(frame)
    assert (m.value, m.details["future_count"]) == (20.0, 30)


def test_two_readings_of_one_time_count_once_and_the_valid_one_wins():
    frame = pl.concat([samples([None] * 60), samples([30.0] * 60)])
    [m] = measure(frame)
    assert (m.sample_count, m.details["duplicate_count"], m.value) == (60, 60, 30.0)


def test_each_gpu_is_measured_on_its_own_in_a_fixed_order():
    frame = pl.concat([samples([99.0] * 60, gpu="GPU-b"), samples([10.0] * 60, gpu="GPU-a")])
    assert [(m.subject, m.is_tripped) for m in measure(frame)] == [("GPU-a", False), ("GPU-b", True)]


def test_an_empty_table_has_no_gpu_to_speak_of():
    assert measure(GPU_SAMPLES.empty()) == []


def test_what_cannot_be_a_table_of_samples_is_refused_by_name():
    with pytest.raises(SchemaError, match="utilization_percent"):
        measure(samples([1.0]).drop("utilization_percent"))
    with pytest.raises(SchemaError, match="no gpu_uuid"):
        measure(samples([1.0]).with_columns(pl.lit(None, pl.String).alias("gpu_uuid")))
    with pytest.raises(SchemaError, match="needs numbers"):
        measure(samples([1.0]).with_columns(pl.lit("busy").alias("utilization_percent")))
    with pytest.raises(WindowError, match="time zone"):
        measure(samples([1.0]), now=datetime(2026, 1, 1))
    with pytest.raises(WindowError, match="positive length"):
        measure(samples([1.0]), window_hours=0.0)
