"""What is sent to Prometheus, and what comes of answers that are none; against a local server."""

import base64
import json
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tasks import prometheus
from tasks.collection import collect_telemetry
from tasks.monitoring import measure
from tasks.storage import Store
from warpgauge.errors import NoDataError, SettingsError, SourceUnavailableError, WarpgaugeError
from warpgauge.settings import load_settings

EMPTY = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": []}})


@pytest.fixture
def server() -> Iterator[SimpleNamespace]:
    """Answers every query with `answer(query, parameters)`, and keeps what was asked."""
    got = SimpleNamespace(asked=[], headers=[], status=200, answer=lambda *_: EMPTY)

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            parameters = parse_qs(urlsplit(self.path).query)
            got.asked.append(parameters)
            got.headers.append(dict(self.headers))
            body = got.answer(parameters["query"][0], parameters).encode()
            self.send_response(got.status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    one = HTTPServer(("127.0.0.1", 0), Api)
    threading.Thread(target=one.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    got.url = f"http://127.0.0.1:{one.server_port}"
    yield got
    one.shutdown()
    one.server_close()


def series(query: str, parameters: dict[str, list[str]]) -> str:
    """A GPU at 97 % at each step of a range; other metrics have no series."""
    if query != "DCGM_FI_DEV_GPU_UTIL":
        return EMPTY
    start, end, step = (float(parameters[name][0]) for name in ("start", "end", "step"))
    values = [[start + step * n, "97"] for n in range(int((end - start) / step) + 1)]
    result = [{"metric": {"UUID": "GPU-a"}, "values": values}]
    return json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}})


def test_range_is_collected_once_and_then_goes_on_from_the_newest_row(
    registry: Path, server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_MONITOR_WINDOW_HOURS", "1")
    server.answer = series
    first = collect_telemetry([f"prometheus:{server.url}"])
    assert first["added"] in (240, 241)
    asked = len(server.asked)
    assert collect_telemetry([f"prometheus:{server.url}"])["added"] <= 1
    newest = Store().read("gpu_samples").select("sampled_at").collect()["sampled_at"].max()
    assert all(float(one["start"][0]) >= newest.timestamp() for one in server.asked[asked:])


def test_server_without_gpu_metrics_is_refused_by_name(registry: Path, server: SimpleNamespace) -> None:
    with pytest.raises(NoDataError, match="DCGM exporter or Triton"):
        collect_telemetry([f"prometheus:{server.url}"])


@pytest.mark.parametrize(
    ("status", "body", "said"),
    [
        (500, "oops", "HTTP 500"),
        (401, "", "HTTP 401"),
        (200, "<html>", "no JSON"),
        (400, '{"status": "error", "errorType": "bad_data", "error": "parse"}', "bad_data"),
    ],
)
def test_answer_that_is_none_blinds_utilization_alone_and_says_why(
    registry: Path,
    server: SimpleNamespace,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    body: str,
    said: str,
) -> None:
    server.status, server.answer = status, lambda *_: body
    monkeypatch.setenv("WARPGAUGE_PROMETHEUS_URL", server.url)
    measured = measure()
    (one,) = [m for m in measured if m.signal == "utilization_p95"]
    assert (one.status, one.cause) == ("cannot_say", "unavailable")
    assert said in one.reason
    assert len(measured) > 4


def test_login_is_sent_and_never_shown(server: SimpleNamespace, registry: Path) -> None:
    login = server.url.replace("http://", "http://user:s3cr%40t@")
    prometheus.ask(login, "/api/v1/query?query=up")
    assert server.headers[0]["Authorization"] == "Basic " + base64.b64encode(b"user:s3cr@t").decode()
    server.status = 403
    with pytest.raises(SourceUnavailableError) as refused:
        prometheus.ask(login, "/api/v1/query?query=up")
    assert "s3cr" not in str(refused.value)
    with pytest.raises(WarpgaugeError) as shown:
        collect_telemetry([f"prometheus:{login}"])
    assert "WARPGAUGE_PROMETHEUS_URL" in str(shown.value)


@pytest.mark.parametrize("address", ["", "localhost:9090", "ftp://host", "http://"])
def test_address_that_is_none_is_refused(registry: Path, address: str) -> None:
    with pytest.raises(SettingsError, match="http://host:9090"):
        prometheus.ask(address, "/x")


def test_nan_in_a_window_is_looked_at_reading_by_reading(
    registry: Path, server: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_MONITOR_WINDOW_HOURS", "1")
    now = datetime.now(UTC)

    def answer(query: str, parameters: dict[str, list[str]]) -> str:
        if "nv_gpu" in query:
            return EMPTY.replace("matrix", "vector")
        if "start" in parameters:
            return series(query, parameters)
        value = (
            "NaN" if query.startswith("sum") else "240" if query.startswith("count") else str(now.timestamp())
        )
        result = [{"metric": {"UUID": "GPU-a"}, "value": [now.timestamp(), value]}]
        return json.dumps({"status": "success", "data": {"resultType": "vector", "result": result}})

    server.answer = answer
    (one,) = prometheus.measure_live(server.url, load_settings(), now)
    assert (one.subject, one.value, one.is_tripped) == ("GPU-a", 97.0, True)
    assert any("start" in parameters for parameters in server.asked)
