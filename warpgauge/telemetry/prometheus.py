"""GPU readings out of Prometheus: what to ask, and what its answers say.

Units are told by a metric's name, never by its values: DCGM's utilization is a percentage, Triton's a ratio, and a
percentage that somebody exports under a ratio's name is refused as impossible instead of being guessed at. A GPU is
its UUID; a series without one could be any.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlencode

import polars as pl

from warpgauge.errors import SourceFileError
from warpgauge.tables import GPU_SAMPLES
from warpgauge.telemetry.batch import SampleBatch, fault_of

# Prometheus answers at most 11,000 points a series and query (its web/api/v1).
POINTS_A_QUERY = 11_000
UUID_LABELS = ("UUID", "gpu_uuid", "uuid")
NAME_LABELS = ("modelName", "gpu_name")
MEBIBYTE = float(2**20)


@dataclass(frozen=True)
class Metric:
    """A metric by its exporter's name, and what makes its value the table's unit."""

    name: str
    column: str
    factor: float


# DCGM's field names and units (dcgm_fields.h: percent, W, C, MHz, MiB), Triton's (docs/user_guide/metrics.md: a ratio).
METRICS = (
    Metric("DCGM_FI_DEV_GPU_UTIL", "utilization_percent", 1.0),
    Metric("nv_gpu_utilization", "utilization_percent", 100.0),
    Metric("DCGM_FI_DEV_MEM_COPY_UTIL", "memory_utilization_percent", 1.0),
    Metric("DCGM_FI_DEV_FB_USED", "memory_used_bytes", MEBIBYTE),
    Metric("DCGM_FI_DEV_SM_CLOCK", "sm_clock_mhz", 1.0),
    Metric("DCGM_FI_DEV_MEM_CLOCK", "memory_clock_mhz", 1.0),
    Metric("DCGM_FI_DEV_GPU_TEMP", "temperature_celsius", 1.0),
    Metric("DCGM_FI_DEV_POWER_USAGE", "power_w", 1.0),
)
UTILIZATION = tuple(metric for metric in METRICS if metric.column == "utilization_percent")


@dataclass(frozen=True)
class Series:
    """One time series of an answer: its labels, and (unix seconds, value) pairs in the order given."""

    labels: Mapping[str, str]
    points: tuple[tuple[float, float], ...]

    @property
    def gpu_uuid(self) -> str | None:
        """The GPU, None where no label names it."""
        return next((self.labels[name] for name in UUID_LABELS if self.labels.get(name)), None)


@dataclass(frozen=True)
class QuantileReading:
    """What Prometheus computed of one GPU's utilization over a window, in the metric's own unit.

    Attributes:
        metric: Which.
        values: Name of the statistic -> value; absent where Prometheus gave none.
    """

    gpu_uuid: str
    metric: Metric
    values: dict[str, float] = field(default_factory=dict)


def query_path(query: str, at: datetime) -> str:
    """Path of an instant query."""
    return "/api/v1/query?" + urlencode({"query": query, "time": f"{at.timestamp():.3f}"})


def range_paths(metric: Metric, start: datetime, end: datetime, step_s: float) -> list[str]:
    """Paths of the range queries that together cover start to end, each small enough to be answered."""
    paths = []
    length = timedelta(seconds=step_s * (POINTS_A_QUERY - 1))
    while start <= end:
        stop = min(start + length, end)
        asked = {
            "query": metric.name,
            "start": f"{start.timestamp():.3f}",
            "end": f"{stop.timestamp():.3f}",
            "step": f"{step_s:g}",
        }
        paths.append("/api/v1/query_range?" + urlencode(asked))
        start = stop + timedelta(seconds=step_s)
    return paths


def window_queries(metric: Metric, window_s: int, quantiles: Mapping[str, float]) -> dict[str, str]:
    """Instant queries of one metric over a window, by the name of what they ask.

    `sum` is NaN where one reading is, `smallest` and `largest` show impossible readings: where one of them is not as
    it should be, the raw readings have to be looked at. `newest` is the time of the newest scrape; a series that is no
    longer scraped has none.
    """
    window = f"{metric.name}[{window_s}s]"
    asked = {
        "count": f"count_over_time({window})",
        "sum": f"sum_over_time({window})",
        "smallest": f"min_over_time({window})",
        "largest": f"max_over_time({window})",
        "newest": f"timestamp({metric.name})",
    }
    return asked | {name: f"quantile_over_time({q:.6f}, {window})" for name, q in quantiles.items()}


def read_series(text: str, source: str) -> list[Series]:
    """The series of an answer to a query or a range query.

    Raises:
        SourceFileError: If the answer is no JSON of Prometheus, is cut, or says that the query failed.
    """
    try:
        answer = json.loads(text)
    except ValueError as error:
        raise SourceFileError(
            f"{source}: the answer is no JSON ({error}): cut, or of something else than Prometheus"
        ) from error
    if not isinstance(answer, dict) or answer.get("status") not in ("success", "error"):
        raise SourceFileError(f"{source}: the answer has no status; it is not of Prometheus")
    if answer["status"] == "error":
        raise SourceFileError(
            f"{source}: Prometheus refused the query: {answer.get('errorType')}: {answer.get('error')}"
        )
    data = answer.get("data")
    kind, results = (data.get("resultType"), data.get("result")) if isinstance(data, dict) else (None, None)
    if kind not in ("matrix", "vector") or not isinstance(results, list):
        raise SourceFileError(f"{source}: result type is {kind!r}; matrix or vector is needed")
    return [_series(one, kind, source) for one in results]


def _series(one: Any, kind: str, source: str) -> Series:
    try:
        raw = one["values"] if kind == "matrix" else [one["value"]]
        # Prometheus writes numbers as text, because JSON has no NaN.
        points = tuple((float(time), float(value)) for time, value in raw)
        labels = {str(name): str(value) for name, value in one["metric"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise SourceFileError(f"{source}: a series is damaged ({error!r}): {str(one)[:120]}") from error
    return Series(labels, points)


def sample_batch(answers: Sequence[tuple[Metric, Sequence[Series]]], source_name: str) -> SampleBatch:
    """Rows of `tables.GPU_SAMPLES` from range queries, one a GPU and time.

    Of several series of one GPU and time (replicas of an exporter or of Prometheus) the first good value counts. NaN,
    markers and impossible values are null with their reason.

    Args:
        answers: Each metric with the series that its query gave.
        source_name: The server, for the rows; without a login.
    """
    rows: dict[tuple[str, float], dict[str, Any]] = {}
    reasons: dict[tuple[str, float], dict[str, str]] = {}
    rejected: dict[str, dict[str, int]] = {}
    problems: list[str] = []
    duplicate_count = 0
    for metric, series in answers:
        nameless = [one for one in series if one.gpu_uuid is None]
        if nameless:
            problems.append(
                f"{source_name}: {len(nameless)} series of {metric.name} name no GPU (label {', '.join(UUID_LABELS)}): "
                f"{dict(nameless[0].labels)}; let the exporter give the UUID"
            )
        for one in series:
            uuid = one.gpu_uuid
            if uuid is None:
                continue
            for seconds, raw in one.points:
                key = (uuid, seconds)
                row = rows.setdefault(key, {})
                name = next((one.labels[label] for label in NAME_LABELS if one.labels.get(label)), None)
                row.setdefault("gpu_name", name)
                if row.get(metric.column) is not None:
                    duplicate_count += 1
                    continue
                value = raw * metric.factor
                fault = "not a number" if math.isnan(raw) else fault_of(metric.column, raw, value)
                if fault is None:
                    is_whole = GPU_SAMPLES.column(metric.column).dtype.is_integer()
                    row[metric.column] = int(value) if is_whole else value
                    reasons.get(key, {}).pop(metric.column, None)
                else:
                    row.setdefault(metric.column, None)
                    reasons.setdefault(key, {})[metric.column] = fault
    for (uuid, _), faults in reasons.items():
        for column in faults:
            counts = rejected.setdefault(uuid, {})
            counts[column] = counts.get(column, 0) + 1
    frame = pl.DataFrame(
        [
            row
            | {
                "gpu_uuid": uuid,
                "sampled_at": datetime.fromtimestamp(seconds, UTC),
                "source_kind": "prometheus",
                "source_name": source_name,
                "null_reasons": json.dumps(reasons[uuid, seconds]) if reasons.get((uuid, seconds)) else None,
            }
            for (uuid, seconds), row in sorted(rows.items())
        ],
        schema={name: dtype for name, dtype in GPU_SAMPLES.schema.items() if name != "collected_at"},
        orient="row",
    )
    counts = {"samples": frame.height, "duplicates": duplicate_count}
    return SampleBatch(GPU_SAMPLES.conform(frame), tuple(problems), counts, rejected)


def window_readings(
    metric: Metric, answers: Mapping[str, Sequence[Series]]
) -> tuple[list[QuantileReading], list[str]]:
    """What the instant queries of `window_queries` say of each GPU, and what is wrong with a series.

    Of replicas of one GPU the one with more readings counts.
    """
    found: dict[str, dict[tuple[tuple[str, str], ...], dict[str, float]]] = {}
    problems: list[str] = []
    for name, series in answers.items():
        for one in series:
            if one.gpu_uuid is None:
                if name == "count":
                    problems.append(f"a series of {metric.name} names no GPU: {dict(one.labels)}")
                continue
            # `timestamp` and `*_over_time` drop the metric's name, and nothing else.
            labels = tuple(sorted((k, v) for k, v in one.labels.items() if k != "__name__"))
            found.setdefault(one.gpu_uuid, {}).setdefault(labels, {})[name] = one.points[0][1]
    readings = []
    for uuid, replicas in sorted(found.items()):
        best = max(replicas.values(), key=lambda values: values.get("count", 0.0))
        readings.append(QuantileReading(uuid, metric, best))
    return readings, problems
