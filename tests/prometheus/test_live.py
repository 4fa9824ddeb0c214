"""A real Prometheus that scrapes an exporter of this test: its own quantile and the collected rows say the same."""

import math
import shutil
import subprocess
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import polars as pl
import pytest

from tasks import prometheus
from tasks.collection import collect_telemetry
from tasks.monitoring import summarize
from tasks.storage import Store
from warpgauge.settings import load_settings

pytestmark = pytest.mark.prometheus
SCRAPES = 40


def free_port() -> int:
    import socket

    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


@pytest.fixture(scope="module")
def exporter() -> Iterator[SimpleNamespace]:
    """DCGM and Triton metrics of some GPUs: busy, idle, one with NaN among its readings, one that goes away."""
    state = SimpleNamespace(scrapes=0)

    class Metrics(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            n = state.scrapes
            state.scrapes += 1
            lines = [
                f'DCGM_FI_DEV_GPU_UTIL{{gpu="0",UUID="GPU-busy",modelName="Test"}} {90 + n % 10}',
                f'DCGM_FI_DEV_GPU_UTIL{{gpu="1",UUID="GPU-idle",modelName="Test"}} {n % 5}',
                f'DCGM_FI_DEV_GPU_UTIL{{gpu="2",UUID="GPU-odd",modelName="Test"}} {"NaN" if n % 4 == 0 else 50}',
                f'nv_gpu_utilization{{gpu_uuid="GPU-triton"}} {0.25 + (n % 2) / 2}',
                f'nv_gpu_utilization{{gpu_uuid="GPU-wrong-unit"}} {55 + n % 3}',
                'DCGM_FI_DEV_POWER_USAGE{gpu="0",UUID="GPU-busy",modelName="Test"} 71.5',
            ]
            if n < SCRAPES // 2:
                lines.append('DCGM_FI_DEV_GPU_UTIL{gpu="3",UUID="GPU-gone",modelName="Test"} 99')
            body = ("\n".join(lines) + "\n").encode()
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Metrics)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    state.port = server.server_port
    yield state
    server.shutdown()


@pytest.fixture(scope="module")
def server(exporter: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Prometheus after some scrapes, one a second."""
    program = shutil.which("prometheus")
    assert program is not None, "no prometheus on PATH: `make test-prometheus` installs it"
    folder = tmp_path_factory.mktemp("prometheus")
    (folder / "prometheus.yml").write_text(
        "global: {scrape_interval: 1s}\n"
        "scrape_configs:\n- job_name: gpus\n  static_configs:\n"
        f"  - targets: ['127.0.0.1:{exporter.port}']\n"
    )
    port = free_port()
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [
                program,
                f"--config.file={folder / 'prometheus.yml'}",
                f"--storage.tsdb.path={folder / 'tsdb'}",
                f"--web.listen-address=127.0.0.1:{port}",
            ],
            stdout=log,
            stderr=log,
        )
    try:
        end = time.monotonic() + 120
        while exporter.scrapes < SCRAPES and process.poll() is None and time.monotonic() < end:
            time.sleep(0.2)
        assert exporter.scrapes >= SCRAPES, (folder / "log").read_text()[-2000:]
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(20)


@pytest.fixture
def settings_of_seconds(registry: Path, monkeypatch: pytest.MonkeyPatch, server: str) -> str:
    """A window of 36 s, in which a reading comes each second."""
    monkeypatch.setenv("WARPGAUGE_MONITOR_WINDOW_HOURS", "0.01")
    monkeypatch.setenv("WARPGAUGE_MONITOR_MINIMUM_SAMPLES", "20")
    monkeypatch.setenv("WARPGAUGE_PROMETHEUS_SCRAPE_S", "1")
    return server


def measured(address: str) -> dict[str, Any]:
    found = prometheus.measure_live(address, load_settings(), datetime.now(UTC))
    assert len({one.subject for one in found}) == len(found)
    return {one.subject: one for one in found}


def test_prometheus_and_the_rows_collected_from_it_say_the_same(settings_of_seconds: str) -> None:
    collected = collect_telemetry([f"prometheus:{settings_of_seconds}"])
    assert collected["added"] > 100
    rows = Store().read("gpu_samples").collect()
    found = measured(settings_of_seconds)
    for uuid, most in (("GPU-busy", 2.0), ("GPU-idle", 1.0)):
        values = rows.filter(pl.col("gpu_uuid") == uuid)["utilization_percent"].drop_nulls().to_numpy()
        assert abs(found[uuid].value - np.percentile(values, 95)) <= most
        assert found[uuid].lower <= found[uuid].value <= found[uuid].upper
    assert found["GPU-busy"].is_tripped
    assert not found["GPU-idle"].is_tripped
    power = rows.filter(pl.col("gpu_uuid") == "GPU-busy")["power_w"].drop_nulls()
    assert set(power) == {71.5}
    again = collect_telemetry([f"prometheus:{settings_of_seconds}"])
    assert again["added"] < collected["added"] / 2


def test_units_are_told_apart_and_a_wrong_one_is_said(settings_of_seconds: str) -> None:
    found = measured(settings_of_seconds)
    assert found["GPU-triton"].value == pytest.approx(75.0)
    wrong = found["GPU-wrong-unit"]
    assert (wrong.status, wrong.value) == ("cannot_say", None)
    assert wrong.details["null_reasons"] == {"impossible value": wrong.details["rejected_count"]}


def test_readings_that_are_not_numbers_are_counted_and_not_a_percentile(settings_of_seconds: str) -> None:
    odd = measured(settings_of_seconds)["GPU-odd"]
    assert odd.details["null_reasons"].get("not a number", 0) > 3
    # A quarter of its readings is none: 75 % is less than the 80 % that a percentile needs.
    assert (odd.status, odd.cause) == ("cannot_say", "low coverage")
    assert odd.value is None or math.isfinite(odd.value)


def test_gpu_that_went_away_is_stale_or_absent_and_never_hot(settings_of_seconds: str) -> None:
    gone = measured(settings_of_seconds).get("GPU-gone")
    assert gone is None or (gone.status, gone.cause) == ("cannot_say", "stale")


def test_server_that_is_away_is_said_and_blinds_nothing_else(registry: Path) -> None:
    (one,) = prometheus.measure_live("http://127.0.0.1:9", load_settings(), datetime.now(UTC))
    assert (one.status, one.cause) == ("cannot_say", "unavailable")
    row = {
        "signal": one.signal,
        "subject": one.subject,
        "reason": f"cannot say, {one.reason}",
        "monitor_run_id": "r",
        "decided_at": datetime.now(UTC),
    }
    assert "does not answer" in summarize({"decisions": [row]}, [])["refused"][0]
