"""A Prometheus server: readings collected from it, and utilization measured by it."""

from __future__ import annotations

import base64
import http.client
import urllib.error
import urllib.request
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

import polars as pl

from tasks.storage import Store
from tasks.telemetry import ALL_GPUS, utilization_rule
from warpgauge.drift.measurement import Measurement
from warpgauge.drift.utilization import SIGNAL
from warpgauge.errors import SettingsError, SourceFileError, SourceUnavailableError
from warpgauge.settings import Settings, load_settings

if TYPE_CHECKING:
    from warpgauge.telemetry.batch import SampleBatch
    from warpgauge.telemetry.prometheus import Metric, Series

SCHEME = "prometheus:"


def ask(address: str, path: str) -> str:
    """The answer to one query.

    Args:
        address: The server, `http://host:9090` or with a login, `http://user:password@host`.
        path: Of the query.

    Raises:
        SettingsError: If the address is no http address.
        SourceUnavailableError: If the server does not answer, refuses the login or answers too much.
    """
    settings = load_settings()
    base, login = _base(address)
    headers = {"User-Agent": "warpgauge", "Accept": "application/json"}
    if login is not None:
        headers["Authorization"] = "Basic " + base64.b64encode(login.encode()).decode()
    request = urllib.request.Request(base + path, headers=headers)
    try:
        with urllib.request.urlopen(request, timeout=settings.fetch_timeout_s) as answer:
            content: bytes = answer.read(settings.fetch_size_limit_bytes + 1)
    except urllib.error.HTTPError as error:
        # A refused query is explained in the answer's body, and read like any other.
        if error.code in (400, 422, 503):
            content = error.read(1 << 16)
        else:
            raise SourceUnavailableError(f"Prometheus {base}: HTTP {error.code} {error.reason}") from error
    except (OSError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error or type(error).__name__
        raise SourceUnavailableError(f"Prometheus {base} does not answer: {why}") from error
    if len(content) > settings.fetch_size_limit_bytes:
        raise SourceUnavailableError(f"Prometheus {base}: the answer is larger than the limit; ask for less")
    return content.decode("utf-8", "replace")


def _base(address: str) -> tuple[str, str | None]:
    """The server without the login, and the login."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise SettingsError("the address of Prometheus needs the form http://host:9090")
    login = None
    if parts.username is not None:
        login = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
    host = parts.netloc.rpartition("@")[2]
    return urlunsplit((parts.scheme, host, parts.path.rstrip("/"), "", "")), login


def collect_range(store: Store, source: str, now: datetime) -> SampleBatch:
    """Readings of all GPUs since the newest one that the table has of this server, at most the monitor's window.

    Args:
        store: Where the table lies.
        source: `prometheus:http://host:9090`, or `prometheus:` for the server of the setting.
        now: End of the range.

    Raises:
        SettingsError: If no server is named, or a login is named where a report would show it.
        SourceUnavailableError, SourceFileError: If the server is away, or gives no utilization.
    """
    from warpgauge.telemetry.prometheus import METRICS, sample_batch

    settings = load_settings()
    address = _named_server(source, settings)
    name = _base(address)[0]
    start = now - timedelta(hours=settings.monitor_window_hours)
    is_mine = (pl.col("source_kind") == "prometheus") & (pl.col("source_name") == name)
    newest = (
        store.read("gpu_samples")
        .filter(is_mine & (pl.col("sampled_at") >= start))
        .select(pl.col("sampled_at").max())
        .collect()
        .item()
    )
    step = timedelta(seconds=settings.prometheus_scrape_s)
    # Prometheus answers at start + n x step: on a fixed grid a second collection asks for the same times.
    first = start if newest is None else newest + step
    grid = datetime.fromtimestamp(first.timestamp() // step.total_seconds() * step.total_seconds(), UTC)
    answers = [
        (metric, series)
        for metric in METRICS
        if (series := _range(address, metric, grid if grid >= first else grid + step, now))
    ]
    batch = sample_batch(answers, name)
    # Nothing since the newest row is no fault; nothing in the whole window is.
    if newest is None and not any(metric.column == "utilization_percent" for metric, _ in answers):
        raise SourceUnavailableError(
            f"Prometheus {name} has no series of {' or '.join(m.name for m in METRICS if m.column == 'utilization_percent')} "
            "in the range; does it scrape the DCGM exporter or Triton?"
        )
    return batch


def _named_server(source: str, settings: Settings) -> str:
    address = source.removeprefix(SCHEME)
    if not address and settings.prometheus_url is not None:
        return settings.prometheus_url.get_secret_value()
    if "@" in address:
        raise SettingsError(
            "a login in a source would be shown in reports; set WARPGAUGE_PROMETHEUS_URL and collect `prometheus:`"
        )
    return address


def _range(address: str, metric: Metric, start: datetime, end: datetime) -> list[Series]:
    from warpgauge.telemetry.prometheus import range_paths, read_series

    step_s = load_settings().prometheus_scrape_s
    name = f"Prometheus {_base(address)[0]}"
    return [
        series
        for path in range_paths(metric, start, end, step_s)
        for series in read_series(ask(address, path), name)
    ]


def measure_live(address: str, settings: Settings, now: datetime) -> list[Measurement]:
    """Utilization of each GPU as Prometheus itself computes it; one "cannot say" where it cannot be asked.

    Where a series holds readings that are none (NaN, markers, other units), its raw readings are looked at instead.
    """
    from warpgauge.telemetry.prometheus import UTILIZATION

    try:
        measured = [one for metric in UTILIZATION for one in _measure_metric(address, metric, settings, now)]
    except (SourceUnavailableError, SourceFileError) as error:
        return [Measurement.cannot_say(SIGNAL, ALL_GPUS, "unavailable", str(error))]
    if not measured:
        names = " or ".join(metric.name for metric in UTILIZATION)
        said = f"Prometheus {_base(address)[0]} has no series of {names} in the window"
        return [Measurement.cannot_say(SIGNAL, ALL_GPUS, "no samples", said)]
    return _one_a_gpu(measured)


def _one_a_gpu(measured: Sequence[Measurement]) -> list[Measurement]:
    """Of two sources of one GPU the one that can say; of two that can, the one with more readings."""
    best: dict[str, Measurement] = {}
    for one in measured:
        other = best.get(one.subject)
        if other is None or (one.status == "measured", one.sample_count) > (
            other.status == "measured",
            other.sample_count,
        ):
            best[one.subject] = one
    return [best[subject] for subject in sorted(best)]


def _measure_metric(address: str, metric: Metric, settings: Settings, now: datetime) -> list[Measurement]:
    from warpgauge.drift.utilization import interval_quantiles, measure_quantiles
    from warpgauge.telemetry.prometheus import read_series, window_queries, window_readings

    window_s = round(settings.monitor_window_hours * 3600)
    name = f"Prometheus {_base(address)[0]}"

    def answered(queries: dict[str, str]) -> dict[str, list[Series]]:
        from warpgauge.telemetry.prometheus import query_path

        return {
            key: read_series(ask(address, query_path(query, now)), name) for key, query in queries.items()
        }

    answers = answered(window_queries(metric, window_s, {}))
    readings, problems = window_readings(metric, answers)
    measured = [Measurement.cannot_say(SIGNAL, ALL_GPUS, "degenerate", problem) for problem in problems]
    if not readings:
        return measured
    count = min(int(reading.values.get("count", 0)) for reading in readings)
    queries = window_queries(metric, window_s, interval_quantiles(max(count, 1)))
    answers |= answered({key: query for key, query in queries.items() if key not in answers})
    readings, _ = window_readings(metric, answers)
    raw: dict[str, list[Measurement]] | None = None
    for reading in readings:
        found = measure_quantiles(
            reading.gpu_uuid,
            {
                key: value * metric.factor
                for key, value in reading.values.items()
                if key not in ("count", "newest")
            },
            count=int(reading.values.get("count", 0)),
            newest_s=reading.values.get("newest"),
            now=now,
            **utilization_rule(settings),
            scrape_s=settings.prometheus_scrape_s,
            source=f"{name}, {metric.name}",
        )
        if found is None:
            raw = raw if raw is not None else _measure_raw(address, metric, settings, now)
            measured += raw.get(reading.gpu_uuid, [])
        else:
            measured.append(found)
    return measured


def _measure_raw(
    address: str, metric: Metric, settings: Settings, now: datetime
) -> dict[str, list[Measurement]]:
    """The same from raw readings, which are looked at one by one."""
    from warpgauge.drift.utilization import measure_utilization
    from warpgauge.telemetry.prometheus import sample_batch

    start = now - timedelta(hours=settings.monitor_window_hours)
    batch = sample_batch([(metric, _range(address, metric, start, now))], _base(address)[0])
    found: dict[str, list[Measurement]] = {}
    for measurement in measure_utilization(
        batch.frame,
        now=now,
        **utilization_rule(settings),
    ):
        found.setdefault(measurement.subject, []).append(measurement)
    return found
