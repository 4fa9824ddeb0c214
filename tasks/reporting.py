"""What people and Prometheus see of a round of the monitor: its page, its pictures in MLflow and Prefect, its metrics.

A page is written for every round; pictures go to MLflow and Prefect only where something changed, and once a day: a
round every five minutes would fill them. Each of these fails by itself: a folder that cannot be written costs MLflow
nothing.
"""

from __future__ import annotations

import base64
import contextlib
import logging
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import polars as pl

from tasks import deployment, tracking
from tasks.attempts import list_attempts
from tasks.storage import Store, remove_stale, replace_text, reports_dir
from warpgauge.drift import exposition, report
from warpgauge.drift.exposition import Counts
from warpgauge.drift.timeline import build_timeline, recent
from warpgauge.drift.verdict import Round
from warpgauge.errors import ServiceUnavailableError, WarpgaugeError
from warpgauge.settings import PROJECT_ROOT, load_settings

if TYPE_CHECKING:
    from prometheus_client import Metric

LOGGER = logging.getLogger("warpgauge")
LATEST = "latest.html"
METRICS = "metrics.prom"
OVERVIEW = "overview.svg"
# Where the page and the pictures lie among the artifacts of the monitor's run.
ARTIFACT_FOLDER = "report"
Found = TypeVar("Found")


def publish(decided: Mapping[str, Any], retrained: Sequence[Mapping[str, Any]] = ()) -> None:
    """Write the round's page and metrics, and give the pictures to MLflow and Prefect where they say something new.

    Args:
        decided: Result of `monitoring.decide`.
        retrained: Retrainings that ran within the round, where it is told once more after them; its page takes the
            place of the first one.

    Raises:
        ServiceUnavailableError: Naming what could not be told; the rest was.
    """
    troubles: list[str] = []

    def attempt(what: str, work: Callable[[], Found]) -> Found | None:
        try:
            return work()
        except (WarpgaugeError, OSError) as error:
            troubles.append(f"{what}: {error}")
            return None

    attempts = attempt("retrainings", list_attempts) or []
    round_ = attempt("history", partial(_round, decided, attempts, retrained))
    if round_ is not None:
        page = report.render_page(round_)
        attempt("metrics", partial(_write_metrics, round_, attempts))
        attempt("page", partial(_write_page, round_, page))
        if round_.timeline.is_changed or retrained:
            pictures = report.draw_pictures(round_)
            address = attempt("pictures in MLflow", partial(_log_pictures, page, pictures))
            attempt("artifacts in Prefect", partial(_make_artifacts, round_, pictures[OVERVIEW], address))
    if troubles:
        raise ServiceUnavailableError("; ".join(troubles))


def publish_outcomes(decided: Mapping[str, Any], retrained: Sequence[Mapping[str, Any]]) -> None:
    """Tell a round once more where retrainings ran within it; what cannot be told is said in the log."""
    if not retrained:
        return
    try:
        publish(decided, retrained)
    except ServiceUnavailableError as error:
        LOGGER.error("could not tell how the retrainings of the round ended: %s", error)


def page_of(decided: Mapping[str, Any]) -> str | None:
    """Path of the page that a round wrote; None where it could not."""
    try:
        page = reports_dir() / _page_name(*_named(decided))
        return str(page) if page.exists() else None
    except (WarpgaugeError, OSError):
        # Why is said where it was to be written.
        return None


@contextlib.contextmanager
def metrics_endpoint() -> Iterator[str | None]:
    """Answer Prometheus with the newest round's metrics for as long as the block runs, where a port is set.

    The address is given. What is answered is the file that the newest round wrote, by whichever process.

    Raises:
        ServiceUnavailableError: If the port cannot be opened.
    """
    settings = load_settings()
    host, port = settings.monitor_metrics_host, settings.monitor_metrics_port
    if not port:
        yield None
        return
    from prometheus_client import CollectorRegistry, start_http_server

    registry = CollectorRegistry()
    registry.register(_Written())
    try:
        server, thread = start_http_server(port, host, registry)
    except (OSError, OverflowError) as error:
        raise ServiceUnavailableError(
            f"port {port} of {host} cannot be opened for Prometheus: {error}; free it, or set "
            "WARPGAUGE_MONITOR_METRICS_PORT and WARPGAUGE_MONITOR_METRICS_HOST"
        ) from error
    try:
        yield f"http://{host}:{port}/metrics"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Written:
    """A collector of the metrics that the newest round wrote; of none before the first one."""

    def collect(self) -> Iterator[Metric]:
        from prometheus_client.parser import text_string_to_metric_families

        with contextlib.suppress(FileNotFoundError):
            yield from text_string_to_metric_families((reports_dir() / METRICS).read_text(encoding="utf-8"))


def _named(decided: Mapping[str, Any]) -> tuple[str, datetime]:
    """Id and time of a round; of one that measured nothing there is no id, and its time is now."""
    rows = decided["decisions"]
    if not rows:
        return "nothing-measured", datetime.now(UTC)
    return str(rows[0]["monitor_run_id"]), rows[0]["decided_at"]


def _round(
    decided: Mapping[str, Any], attempts: list[dict[str, Any]], retrained: Sequence[Mapping[str, Any]]
) -> Round:
    run_id, decided_at = _named(decided)
    store = Store()
    history = recent(store.read("decisions"), decided_at).collect()
    waiting = store.read("alerts").filter(pl.col("outcome") == "waiting").sort("decided_at")
    return Round(
        run_id=run_id,
        decided_at=decided_at,
        rows=decided["decisions"],
        timeline=build_timeline(history, decided_at, attempts),
        retrained=retrained,
        undelivered=waiting.collect().to_dicts(),
    )


def _page_name(run_id: str, decided_at: datetime) -> str:
    return f"{decided_at.astimezone(UTC):%Y%m%dT%H%M%SZ}-{re.sub(r'[^A-Za-z0-9-]', '_', run_id)[:64]}.html"


def _write_page(round_: Round, page: str) -> None:
    folder = reports_dir()
    remove_stale(folder)
    replace_text(folder / _page_name(round_.run_id, round_.decided_at), page)
    replace_text(folder / LATEST, page)


def _write_metrics(round_: Round, attempts: list[dict[str, Any]]) -> None:
    """The metrics beside the pages, and where node_exporter looks for them; the counters go on from the newer one."""
    troubles: list[str] = []
    places: list[Path] = []
    with contextlib.ExitStack() as held:
        try:
            folder = reports_dir()
            held.enter_context(_alone_in(folder))
            places.append(folder / METRICS)
        except (ServiceUnavailableError, OSError) as error:
            troubles.append(str(error))
        if textfile := load_settings().monitor_textfile:
            places.append(PROJECT_ROOT / Path(textfile).expanduser())
        before = _counts_before(places)
        if before.is_later(round_.decided_at):
            return
        text = exposition.to_text(round_, _count_on(before, round_, attempts), _duration_s())
        for place in places:
            try:
                replace_text(place, text)
            except ServiceUnavailableError as error:
                troubles.append(str(error))
    if troubles:
        raise ServiceUnavailableError("; ".join(troubles))


@contextlib.contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """One writer at a time: another one between reading the counts and writing them would make them fall."""
    import fcntl

    opened = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(opened, fcntl.LOCK_EX)
        yield
    finally:
        os.close(opened)


def _counts_before(places: Sequence[Path]) -> Counts:
    found = [Counts()]
    for place in places:
        # One that is not there or cannot be read is made anew; damaged text has no counts.
        with contextlib.suppress(OSError):
            found.append(exposition.read_counts(place.read_text(encoding="utf-8", errors="replace")))
    return max(found, key=lambda counts: counts.until or datetime.min.replace(tzinfo=UTC))


def _count_on(before: Counts, round_: Round, attempts: list[dict[str, Any]]) -> Counts:
    since = pl.lit(True) if before.until is None else pl.col("decided_at") > before.until
    decided = (
        Store()
        .read("decisions")
        .filter(since, pl.col("decided_at") <= round_.decided_at)
        .group_by("action", "alert_cause")
        .len()
    )
    return before.count_on(round_.decided_at, decided.collect().rows(), attempts)


def _duration_s() -> float | None:
    """How long this flow run has taken; None outside of one."""
    if "prefect" not in sys.modules:
        return None
    from prefect.context import FlowRunContext

    context = FlowRunContext.get()
    return None if context is None else (datetime.now(UTC) - context.start_time).total_seconds()


def _log_pictures(page: str, pictures: Mapping[str, str]) -> str | None:
    """Page and pictures in MLflow; the overview's address there, where its server has one."""
    files = {"report.html": page, **pictures}
    run_id = tracking.log_monitor_files({f"{ARTIFACT_FOLDER}/{name}": text for name, text in files.items()})
    return tracking.artifact_address(run_id, f"{ARTIFACT_FOLDER}/{OVERVIEW}")


def _make_artifacts(round_: Round, overview: str, address: str | None) -> None:
    """The round as Markdown and its overview, in the flow run's artifacts; outside of one there is nowhere."""
    if "prefect" not in sys.modules:
        return
    from httpx import HTTPError
    from prefect.artifacts import create_image_artifact, create_markdown_artifact
    from prefect.context import FlowRunContext, TaskRunContext

    if FlowRunContext.get() is None and TaskRunContext.get() is None:
        return
    embedded = f"data:image/svg+xml;base64,{base64.b64encode(overview.encode()).decode()}"
    try:
        create_markdown_artifact(
            report.render_markdown(round_, _page_name(round_.run_id, round_.decided_at)),
            key="monitor-report",
            description="What the monitor measured and decided, when something changed",
        )
        create_image_artifact(
            address or embedded,
            key="monitor-overview",
            description="All signals over time: open episodes, what could not be said, what was done",
        )
    except HTTPError as error:
        raise deployment.unreachable(error) from error
