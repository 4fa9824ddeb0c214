"""A round of the monitor as people and Prometheus see it: page, pictures, metrics, each failing by itself."""

import logging
import socket
import stat
import threading
import urllib.request
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tasks import announcement, deployment, monitoring, reporting, tracking
from tasks.storage import Store
from tests.fakes import ROUNDS_BEGIN, decision_row
from warpgauge.errors import ServiceUnavailableError
from warpgauge.tables import ALERTS, DECISIONS


@pytest.fixture(autouse=True)
def no_prefect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tester's own Prefect profile says."""
    monkeypatch.setattr(deployment, "server_url", lambda: None)


@pytest.fixture
def folder(project: Path) -> Path:
    """Where the pages lie."""
    return project / "data" / "reports" / "monitor"


@pytest.fixture
def logged(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """What went to MLflow, which here is not asked for anything."""
    calls: list[dict[str, str]] = []

    def log(files: dict[str, str]) -> str:
        calls.append(files)
        return "run-id"

    monkeypatch.setattr(tracking, "log_monitor_files", log)
    monkeypatch.setattr(reporting, "list_attempts", list)
    return calls


def kept(*rows: dict[str, Any]) -> dict[str, Any]:
    """Decisions as `monitoring.decide` returns them, kept in their table."""
    Store().append("decisions", DECISIONS.conform(pl.DataFrame(list(rows), schema=DECISIONS.schema)))
    return {"decisions": list(rows)}


def metric(path: Path, name: str, **labels: str) -> float | None:
    text = path.read_text(encoding="utf-8")
    return value(text, name, **labels)


def value(text: str, name: str, **labels: str) -> float | None:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            if sample.name == name and sample.labels == labels:
                return sample.value
    return None


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_real_round_writes_page_and_metrics_and_logs_pictures(registry: Path, folder: Path) -> None:
    decided = monitoring.decide(monitoring.measure())
    reporting.publish(decided)
    run_id = decided["decisions"][0]["monitor_run_id"]
    page = reporting.page_of(decided)
    assert page is not None
    text = Path(page).read_text(encoding="utf-8")
    assert run_id in text
    assert run_id in Path(page).name
    assert "Blind: none of" in text
    assert (folder / "latest.html").read_text(encoding="utf-8") == text
    assert names(folder) == sorted([Path(page).name, "latest.html", "metrics.prom"])
    client = tracking.connect()
    (run,) = client.search_runs([tracking.experiment_id(client)], "tags.role = 'monitor'")
    artifacts = [one.path for one in client.list_artifacts(run.info.run_id, reporting.ARTIFACT_FOLDER)]
    assert artifacts == ["report/overview.svg", "report/report.html", "report/signals.svg"]
    assert run.info.status == "FINISHED"
    count = len(decided["decisions"])
    assert metric(folder / "metrics.prom", "warpgauge_decisions_total", action="wait") == count
    assert metric(folder / "metrics.prom", "warpgauge_monitor_signals", status="cannot_say") == count


def test_quiet_rounds_write_pages_and_bother_nobody(folder: Path, logged: list[dict[str, str]]) -> None:
    for minutes in (0, 5, 10):
        reporting.publish(kept(decision_row(minutes)))
    assert len(list(folder.glob("2026*.html"))) == 3
    assert len(logged) == 1
    reporting.publish(kept(decision_row(15, 97.0, phase="firing", episode_id="e1")))
    reporting.publish(kept(decision_row(24 * 60, 97.0, phase="firing", episode_id="e1")))
    assert len(logged) == 3
    assert set(logged[0]) == {"report/report.html", "report/overview.svg", "report/signals.svg"}


def test_a_round_is_told_once_more_after_its_retrainings(folder: Path, logged: list[dict[str, str]]) -> None:
    decided = kept(decision_row(0, 97.0, phase="acting", action="retrain", episode_id="e1"))
    reporting.publish(decided)
    ended = {"model_name": "launch-latency", "outcome": "promote: better by 7 %", "is_failed": False}
    reporting.publish(decided, [ended])
    (page,) = folder.glob("2026*.html")
    assert "Retraining of launch-latency ended here: promote" in page.read_text(encoding="utf-8")
    assert metric(folder / "metrics.prom", "warpgauge_decisions_total", action="retrain") == 1


def test_counters_go_on_and_are_counted_anew_where_the_file_is_gone(
    folder: Path, logged: list[dict[str, str]]
) -> None:
    file = folder / "metrics.prom"
    for minutes in (0, 5, 10):
        reporting.publish(kept(decision_row(minutes), decision_row(minutes, None, subject="GPU-2")))
        assert metric(file, "warpgauge_decisions_total", action="none") == minutes / 5 + 1
    # Another monitor's round, told by nobody, is counted by the next one.
    kept(decision_row(12))
    reporting.publish(kept(decision_row(15, alert_cause="not_cured")))
    assert metric(file, "warpgauge_decisions_total", action="none") == 5
    assert metric(file, "warpgauge_alerts_total", cause="not_cured") == 1
    file.unlink()
    reporting.publish(kept(decision_row(20)))
    assert metric(file, "warpgauge_decisions_total", action="none") == 6
    file.write_text("damaged {")
    reporting.publish(kept(decision_row(25)))
    assert metric(file, "warpgauge_decisions_total", action="none") == 7


def test_rows_that_the_table_forgot_are_still_counted(folder: Path, logged: list[dict[str, str]]) -> None:
    reporting.publish(kept(decision_row(0), decision_row(0, subject="GPU-2")))
    Store().delete_rows("decisions", "subject = 'GPU-2'")
    reporting.publish(kept(decision_row(5)))
    assert metric(folder / "metrics.prom", "warpgauge_decisions_total", action="none") == 3


def test_an_older_round_does_not_replace_the_metrics_of_a_later_one(
    folder: Path, logged: list[dict[str, str]]
) -> None:
    reporting.publish(kept(decision_row(10)))
    before = (folder / "metrics.prom").read_text()
    reporting.publish(kept(decision_row(5)))
    assert (folder / "metrics.prom").read_text() == before
    reporting.publish(kept(decision_row(15)))
    # The older one was decided before the file's own round, whose counts held it already or never will.
    assert metric(folder / "metrics.prom", "warpgauge_decisions_total", action="none") == 2


def test_retrainings_are_counted_by_outcome(
    folder: Path, logged: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    one = {"model_name": "launch-latency", "attempt_id": "e1/1", "started_at": ROUNDS_BEGIN, "why": None}
    monkeypatch.setattr(reporting, "list_attempts", lambda: [{**one, "outcome": "failed", "wall_s": 60.0}])
    for minutes in (5, 10):
        reporting.publish(kept(decision_row(minutes)))
    found = metric(
        folder / "metrics.prom", "warpgauge_retrainings_total", model="launch-latency", outcome="failed"
    )
    assert found == 1


def test_alerts_that_nobody_took_are_told(folder: Path, logged: list[dict[str, str]]) -> None:
    alert = {
        "alert_id": "a",
        "decided_at": ROUNDS_BEGIN,
        "cause": "not_cured",
        "signal": "residuals",
        "subject": "launch-latency",
        "reason": "retraining does not cure it",
        "refusal_count": 1,
    }
    alerts = [{**alert, "outcome": "waiting"}, {**alert, "alert_id": "b", "outcome": "delivered"}]
    Store().append("alerts", ALERTS.conform(pl.DataFrame(alerts)))
    reporting.publish(kept(decision_row(5)))
    assert metric(folder / "metrics.prom", "warpgauge_alerts_undelivered") == 1
    assert "Alerts undelivered: 1" in (folder / "latest.html").read_text(encoding="utf-8")


def test_a_round_that_measured_nothing_is_told(folder: Path, logged: list[dict[str, str]]) -> None:
    reporting.publish({"decisions": []})
    assert "Nothing was measured" in (folder / "latest.html").read_text(encoding="utf-8")


def test_outcomes_are_told_where_there_are_some_and_trouble_is_said_in_the_log(
    folder: Path,
    logged: list[dict[str, str]],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    decided = kept(decision_row(0))
    reporting.publish_outcomes(decided, [])
    assert not folder.exists()
    ended = {"model_name": "launch-latency", "outcome": "failed: out of memory", "is_failed": True}
    reporting.publish_outcomes(decided, [ended])
    assert "ended here: failed" in (folder / "latest.html").read_text(encoding="utf-8")

    def away(*_: Any) -> Any:
        raise ServiceUnavailableError("MLflow store did not answer")

    monkeypatch.setattr(reporting, "list_attempts", away)
    reporting.publish_outcomes(decided, [ended])
    assert "could not tell how the retrainings of the round ended: retrainings: MLflow" in caplog.text


# What fails costs the others nothing


def test_a_folder_that_cannot_be_made_is_named_and_the_rest_is_told(
    project: Path, logged: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    textfile = project / "collector" / "warpgauge.prom"
    textfile.parent.mkdir()
    monkeypatch.setenv("WARPGAUGE_MONITOR_TEXTFILE", str(textfile))
    decided = kept(decision_row(0))
    (project / "data" / "reports").write_text("in the way")
    with pytest.raises(
        ServiceUnavailableError, match=r"metrics: the folder .*monitor cannot be made.*; page: "
    ):
        reporting.publish(decided)
    assert len(logged) == 1
    assert metric(textfile, "warpgauge_decisions_total", action="none") == 1
    assert reporting.page_of(decided) is None


def test_a_full_disk_leaves_the_page_before_and_no_rest(
    folder: Path, logged: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    reporting.publish(kept(decision_row(0)))
    before = (folder / "latest.html").read_bytes()

    def full(path: Path, text: str, **_: Any) -> None:
        with path.open("w", encoding="utf-8") as opened:
            opened.write(text[:100])
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        with pytest.raises(
            ServiceUnavailableError, match=r"latest\.html|\.html cannot be written: No space left"
        ):
            reporting.publish(kept(decision_row(5)))
    assert (folder / "latest.html").read_bytes() == before
    assert not list(folder.glob(".*"))


def test_without_mlflow_the_page_and_the_metrics_are_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(*_: Any) -> Any:
        raise ServiceUnavailableError("MLflow store did not answer")

    monkeypatch.setattr(reporting, "list_attempts", away)
    monkeypatch.setattr(tracking, "log_monitor_files", away)
    with pytest.raises(ServiceUnavailableError, match=r"retrainings: MLflow.*; pictures in MLflow: MLflow"):
        reporting.publish(kept(decision_row(0)))
    assert names(folder) == ["20260301T000000Z-run-0.html", "latest.html", "metrics.prom"]


def test_what_could_not_be_told_stops_no_retraining(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(*_: Any) -> Any:
        raise ServiceUnavailableError("MLflow store did not answer")

    monkeypatch.setattr(reporting, "list_attempts", away)
    monkeypatch.setattr(tracking, "log_monitor_files", away)
    monkeypatch.setattr(tracking, "log_monitor_metrics", away)
    order = {"model_name": "launch-latency", "attempt_id": "e1/1"}
    decided = {**kept(decision_row(0)), "orders": [order], "review": [], "alerts": []}
    with caplog.at_level(logging.ERROR, "warpgauge"):
        assert announcement.announce(decided) == [order]
    assert "could not tell of the round: retrainings: MLflow store did not answer" in caplog.text
    assert (folder / "latest.html").exists()


def test_two_monitors_at_once_leave_whole_files(folder: Path, logged: list[dict[str, str]]) -> None:
    rounds = [kept(decision_row(minutes, subject=f"GPU-{minutes}")) for minutes in range(4)]
    threads = [threading.Thread(target=reporting.publish, args=(decided,)) for decided in rounds]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert names(folder) == sorted(
        [
            *(f"20260301T000{minutes}00Z-run-{minutes}.html" for minutes in range(4)),
            "latest.html",
            "metrics.prom",
        ]
    )
    pages = [reporting.page_of(decided) for decided in rounds]
    whole = [Path(page).read_text(encoding="utf-8") for page in pages if page]
    assert all(text.endswith("</html>\n") for text in whole)
    assert (folder / "latest.html").read_text(encoding="utf-8") in whole
    # Whoever came last, the file is that of the latest round, with all that was decided until then.
    until = metric(folder / "metrics.prom", "warpgauge_monitor_last_run_timestamp_seconds")
    assert until == (ROUNDS_BEGIN + timedelta(minutes=3)).timestamp()
    assert metric(folder / "metrics.prom", "warpgauge_decisions_total", action="none") == 4


# Where the metrics can be read


def test_the_textfile_is_the_same_text_that_everybody_may_read(
    project: Path, folder: Path, logged: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    textfile = project / "warpgauge.prom"
    monkeypatch.setenv("WARPGAUGE_MONITOR_TEXTFILE", str(textfile))
    reporting.publish(kept(decision_row(0)))
    assert textfile.read_text() == (folder / "metrics.prom").read_text()
    assert textfile.stat().st_mode & stat.S_IRUSR
    assert not list(project.glob(".warpgauge*"))
    textfile.write_text("damaged")
    reporting.publish(kept(decision_row(5)))
    assert metric(textfile, "warpgauge_decisions_total", action="none") == 2


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def fetched(address: str) -> str:
    with urllib.request.urlopen(address, timeout=10) as answer:
        return str(answer.read().decode())


def test_prometheus_reads_the_newest_round_at_the_port(
    folder: Path, logged: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    port = free_port()
    monkeypatch.setenv("WARPGAUGE_MONITOR_METRICS_PORT", str(port))
    with reporting.metrics_endpoint() as address:
        assert address == f"http://127.0.0.1:{port}/metrics"
        assert fetched(address) == ""
        reporting.publish(kept(decision_row(0, 97.5, subject='GPU-"1"\n')))
        text = fetched(address)
        assert value(text, "warpgauge_signal_value", signal="utilization_p95", subject='GPU-"1"') == 97.5
        assert value(text, "warpgauge_decisions_total", action="none") == 1
        reporting.publish(kept(decision_row(5, 98.0)))
        assert value(fetched(address), "warpgauge_decisions_total", action="none") == 2
        with (
            pytest.raises(ServiceUnavailableError, match=f"port {port} of 127.0.0.1"),
            reporting.metrics_endpoint(),
        ):
            pass
    # Closed with the block, so another one can have it.
    with reporting.metrics_endpoint() as address:
        assert address is not None


def test_without_a_port_nothing_is_opened(project: Path) -> None:
    with reporting.metrics_endpoint() as address:
        assert address is None


# Prefect


def test_a_flow_run_gets_the_round_as_markdown_and_its_overview(
    folder: Path, logged: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    import prefect.artifacts
    from prefect.context import FlowRunContext

    class Context:
        start_time = datetime.now(UTC) - timedelta(seconds=90)

    made: dict[str, Any] = {}

    def keep(content: str, key: str, description: str) -> None:
        made[key] = content

    monkeypatch.setattr(FlowRunContext, "get", classmethod(lambda _: Context))
    monkeypatch.setattr(prefect.artifacts, "create_markdown_artifact", keep)
    monkeypatch.setattr(prefect.artifacts, "create_image_artifact", keep)
    reporting.publish(kept(decision_row(0)))
    assert set(made) == {"monitor-report", "monitor-overview"}
    assert made["monitor-report"].startswith("**All quiet: 1 signal measured, each within its limit**")
    assert "20260301T000000Z-run-0.html" in made["monitor-report"]
    assert made["monitor-overview"].startswith("data:image/svg+xml;base64,")
    duration_s = metric(folder / "metrics.prom", "warpgauge_monitor_run_duration_seconds")
    assert duration_s is not None
    assert duration_s >= 90
    made.clear()
    reporting.publish(kept(decision_row(5)))
    assert made == {}


@pytest.mark.parametrize(
    ("uri", "address"),
    [
        ("http://hub:5000/", "http://hub:5000/get-artifact?run_uuid=r1&path=report%2Foverview.svg"),
        ("http://ann:hunter22@hub:5000", None),
        (None, None),
    ],
)
def test_a_picture_has_an_address_where_a_server_gives_it_to_everybody(
    uri: str | None, address: str | None, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if uri:
        monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", uri)
    assert tracking.artifact_address("r1", "report/overview.svg") == address
