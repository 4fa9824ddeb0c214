"""What is asked of Prometheus and what its answers say, without a server."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from warpgauge.drift.utilization import interval_quantiles, measure_quantiles
from warpgauge.errors import SourceFileError
from warpgauge.tables import GPU_SAMPLES
from warpgauge.telemetry.prometheus import (
    METRICS,
    POINTS_A_QUERY,
    Series,
    range_paths,
    read_series,
    sample_batch,
    window_queries,
    window_readings,
)

DCGM = next(metric for metric in METRICS if metric.name == "DCGM_FI_DEV_GPU_UTIL")
TRITON = next(metric for metric in METRICS if metric.name == "nv_gpu_utilization")
NOW = datetime(2026, 1, 2, tzinfo=UTC)


def matrix(*series: tuple[dict, list]) -> str:
    result = [{"metric": labels, "values": values} for labels, values in series]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def batch(*answers):
    return sample_batch(list(answers), "http://prometheus:9090")


def test_ratio_and_percentage_are_told_by_the_metrics_name() -> None:
    made = batch(
        (DCGM, [Series({"UUID": "GPU-a"}, ((100.0, 0.9),))]),
        (TRITON, [Series({"gpu_uuid": "GPU-b"}, ((100.0, 0.9),))]),
    )
    assert dict(made.frame.select("gpu_uuid", "utilization_percent").iter_rows()) == {
        "GPU-a": 0.9,
        "GPU-b": pytest.approx(90.0),
    }
    assert made.frame.schema == GPU_SAMPLES.schema


def test_percentage_under_a_ratios_name_is_impossible_and_not_guessed_at() -> None:
    made = batch((TRITON, [Series({"gpu_uuid": "GPU-b"}, ((100.0, 55.0),))]))
    assert made.frame["utilization_percent"].to_list() == [None]
    assert "impossible" in made.frame["null_reasons"][0]
    assert made.rejected == {"GPU-b": {"utilization_percent": 1}}


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1.0, 2_147_483_632.0, 4_294_967_295.0, 101.0])
def test_markers_and_impossible_values_are_null_with_a_reason(value: float) -> None:
    row = batch((DCGM, [Series({"UUID": "GPU-a"}, ((100.0, value),))])).frame.row(0, named=True)
    assert row["utilization_percent"] is None
    assert json.loads(row["null_reasons"])["utilization_percent"]


def test_replicas_of_one_gpu_are_one_reading_and_the_good_one_counts() -> None:
    made = batch(
        (
            DCGM,
            [
                Series({"UUID": "GPU-a", "replica": "1"}, ((100.0, float("nan")), (115.0, 40.0))),
                Series({"UUID": "GPU-a", "replica": "2"}, ((100.0, 30.0), (115.0, 41.0))),
            ],
        )
    )
    assert made.frame["utilization_percent"].to_list() == [30.0, 40.0]
    assert made.frame["null_reasons"].to_list() == [None, None]
    assert made.counts == {"samples": 2, "duplicates": 1}


def test_series_without_a_gpu_is_named() -> None:
    made = batch((DCGM, [Series({"gpu": "0", "Hostname": "h"}, ((1.0, 5.0),))]))
    assert made.frame.is_empty()
    assert "name no GPU" in made.problems[0]


def test_memory_is_bytes_and_power_watts() -> None:
    memory, power = (
        next(m for m in METRICS if m.column == column) for column in ("memory_used_bytes", "power_w")
    )
    row = batch(
        (memory, [Series({"UUID": "GPU-a"}, ((1.0, 2.0),))]),
        (power, [Series({"UUID": "GPU-a"}, ((1.0, 71.5),))]),
    ).frame.row(0, named=True)
    assert (row["memory_used_bytes"], row["power_w"]) == (2 * 2**20, 71.5)
    assert row["sampled_at"] == datetime.fromtimestamp(1, UTC)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("<html>login</html>", "no JSON"),
        ('{"status": "success", "data": {"resultType": "matrix", "result": [{"met', "no JSON"),
        (
            '{"status": "error", "errorType": "bad_data", "error": "parse error"}',
            "refused the query: bad_data",
        ),
        ("[]", "no status"),
        ('{"status": "success", "data": {"resultType": "scalar", "result": [1, "2"]}}', "scalar"),
        ('{"status": "success", "data": null}', "None"),
        ('{"status": "success", "data": {"resultType": "matrix", "result": [{"metric": {}}]}}', "damaged"),
        (matrix(({"UUID": "a"}, [[1, "x"]])), "damaged"),
    ],
)
def test_answer_that_is_none_is_refused_with_what_it_is(text: str, said: str) -> None:
    with pytest.raises(SourceFileError, match=said):
        read_series(text, "Prometheus http://p")


def test_long_range_is_asked_in_pages_that_meet_and_do_not_overlap() -> None:
    paths = range_paths(DCGM, NOW - timedelta(days=3), NOW, 15)
    asked = [parse_qs(urlsplit(path).query) for path in paths]
    assert len(asked) == 2
    for one in asked:
        assert (float(one["end"][0]) - float(one["start"][0])) / 15 <= POINTS_A_QUERY - 1
    assert float(asked[1]["start"][0]) - float(asked[0]["end"][0]) == 15
    assert float(asked[-1]["end"][0]) == NOW.timestamp()


def test_case_of_gaps_nan_and_duplicates(cases: Path) -> None:
    folder = cases / "03-prom-gaps-nan-duplicates"
    series = [
        one
        for name in ("replica_a.json", "replica_b.json")
        for one in read_series((folder / name).read_text(), name)
    ]
    made = batch((DCGM, series))
    keys = made.frame.select("gpu_uuid", "sampled_at")
    assert keys.height > 0
    assert keys.is_unique().all()
    valid = made.frame["utilization_percent"].drop_nulls()
    assert valid.is_finite().all()
    assert valid.is_between(0, 100).all()
    is_null = made.frame["utilization_percent"].is_null()
    assert made.frame.filter(is_null)["null_reasons"].null_count() == 0


def test_case_of_the_blank_sentinel(cases: Path) -> None:
    text = (cases / "01-util-blank-sentinel" / "query_range.json").read_text()
    made = batch((DCGM, read_series(text, "q")))
    assert made.frame["utilization_percent"].drop_nulls().is_between(0, 100).all()
    assert sum(counts["utilization_percent"] for counts in made.rejected.values()) > 0


PERCENT = {"p95": 97.0, "lower": 95.0, "upper": 98.0, "sum": 5000.0, "smallest": 0.0, "largest": 100.0}


def measure(percent=PERCENT, count=5760, newest_s: float | None = NOW.timestamp(), **more):
    options = {
        "now": NOW,
        "window_hours": 24.0,
        "limit_percent": 92.0,
        "minimum_samples": 50,
        "minimum_coverage_ratio": 0.8,
        "scrape_s": 15.0,
        "source": "Prometheus",
    }
    return measure_quantiles("GPU-a", percent, count=count, newest_s=newest_s, **options | more)


def test_quantile_of_the_server_is_the_measurement() -> None:
    made = measure()
    assert (made.value, made.lower, made.upper, made.sample_count, made.is_tripped) == (
        97.0,
        95.0,
        98.0,
        5760,
        True,
    )


@pytest.mark.parametrize(
    ("changed", "cause"),
    [
        ({"count": 0}, "no samples"),
        ({"newest_s": None}, "stale"),
        ({"newest_s": NOW.timestamp() - 3600}, "stale"),
        ({"count": 49}, "too few"),
        ({"count": 4000}, "low coverage"),
    ],
)
def test_what_the_server_cannot_say_has_its_cause(changed, cause: str) -> None:
    made = measure(**changed)
    assert (made.status, made.cause, made.value) == ("cannot_say", cause, None)


@pytest.mark.parametrize(
    "odd",
    [{"sum": float("nan")}, {"largest": 2_147_483_632.0}, {"smallest": -1.0}, {"p95": float("nan")}],
)
def test_readings_that_are_none_have_to_be_looked_at(odd) -> None:
    assert measure(PERCENT | odd) is None


def test_interval_narrows_with_the_readings() -> None:
    few, many = interval_quantiles(100), interval_quantiles(10_000)
    assert few["lower"] < many["lower"] < 0.95 < many["upper"] < few["upper"] <= 1.0


def test_of_replicas_the_one_with_more_readings_counts() -> None:
    def vector(value: float, replica: str) -> Series:
        return Series({"UUID": "GPU-a", "replica": replica}, ((1.0, value),))

    answers = {
        "count": [vector(10, "1"), vector(90, "2")],
        "p95": [vector(11.0, "1"), vector(99.0, "2")],
        "newest": [Series({"__name__": "x", "UUID": "GPU-a", "replica": "2"}, ((1.0, 5.0),))],
    }
    (reading,), problems = window_readings(DCGM, answers)
    assert (reading.values, problems) == ({"count": 90.0, "p95": 99.0, "newest": 5.0}, [])


def test_queries_name_the_window_in_seconds() -> None:
    asked = window_queries(TRITON, 3600, {"p95": 0.95})
    assert asked["p95"] == "quantile_over_time(0.950000, nv_gpu_utilization[3600s])"
    assert asked["newest"] == "timestamp(nv_gpu_utilization)"
