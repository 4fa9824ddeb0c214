"""One Prefect server for all flow tests, one with workers for a few, and small sources to learn from."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.fakes import FakeEncoder, write_launches, write_reports

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PATIENCE_S = 180


class Service:
    """A Prefect server of a test's own with the deployments of this checkout, and workers beside it.

    Args:
        folder: Where it keeps its database and log.
    """

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.environment = os.environ | {
            "PREFECT_HOME": str(folder / "prefect"),
            "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
        self._log = (folder / "server.log").open("w")
        self._processes = [self._start(["server", "start", "--port", str(port)])]

    def _start(self, words: list[str], **more: str) -> subprocess.Popen[bytes]:
        command = [str(BIN / "prefect"), *words]
        environment = self.environment | more
        return subprocess.Popen(command, env=environment, stdout=self._log, stderr=self._log, cwd=ROOT)

    def start_worker(self, **settings: str) -> subprocess.Popen[bytes]:
        """A worker whose runs have these variables in their environment."""
        worker = self._start(["worker", "start", "--pool", "warpgauge"], **settings)
        self._processes.append(worker)
        return worker

    def command(self, *words: str, **settings: str) -> dict[str, Any]:
        """What a command of the product answers, which must not fail."""
        done = subprocess.run(
            [BIN / "warpgauge", *words, "--json"],
            env=self.environment | settings,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode in (0, 3), done.stderr
        return dict(json.loads(done.stdout))

    def ask(self, path: str, body: dict[str, Any] | None = None, method: str = "POST") -> Any:
        """The server's answer to a request."""
        request = urllib.request.Request(
            f"{self.environment['PREFECT_API_URL']}/{path}",
            data=json.dumps(body or {}).encode(),
            headers={"Content-Type": "application/json"},
            method=method,
        )

        def answer() -> Any:
            try:
                with urllib.request.urlopen(request, timeout=30) as answered:
                    return [json.loads(answered.read() or "null")]
            except urllib.error.HTTPError as error:
                # Its database is locked for a moment where much happens at once.
                if error.code != 503:
                    raise
                return None

        return wait_until(answer, f"an answer to {path}")[0]

    def runs(self, flow: str) -> list[dict[str, Any]]:
        """Runs of a flow, newest first."""
        wanted = {"flows": {"name": {"any_": [flow]}}, "sort": "EXPECTED_START_TIME_DESC"}
        return list(self.ask("flow_runs/filter", wanted))

    def stop_schedules(self) -> None:
        """Leave only what a test starts."""
        for deployment in self.ask("deployments/filter"):
            for schedule in deployment["schedules"]:
                path = f"deployments/{deployment['id']}/schedules/{schedule['id']}"
                self.ask(path, {"active": False}, "PATCH")
        for run in self.ask("flow_runs/filter", {"flow_runs": {"state": {"type": {"any_": ["SCHEDULED"]}}}}):
            self.ask(f"flow_runs/{run['id']}", method="DELETE")

    def is_up(self) -> bool:
        """Whether the server answers."""
        try:
            with urllib.request.urlopen(f"{self.environment['PREFECT_API_URL']}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except OSError:
            return False

    def stop(self) -> None:
        """End everything that was started."""
        for process in reversed(self._processes):
            process.terminate()
            process.wait(timeout=60)
        self._log.close()


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """What the condition gives as soon as it is true."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(0.5)
    raise AssertionError(f"{what} did not come about in {PATIENCE_S} s")


@pytest.fixture(scope="session")
def wait_for() -> Callable[[Callable[[], Any], str], Any]:
    """Wait until a condition is true, and give what it gives."""
    return wait_until


@pytest.fixture
def service(registry: Path) -> Iterator[Service]:
    """A Prefect server of its own; nothing is deployed and no worker runs yet."""
    started = Service(registry)
    try:
        wait_until(started.is_up, "the start of the Prefect server")
        yield started
    finally:
        started.stop()


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Prefect server of the tests' own; it takes some seconds to start, so one serves all."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture
def chain(
    registry: Path, project: Path, expectations: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[str]]:
    """Sources for one main job, an encoder that needs no weights, and docs that stay out of the checkout."""
    from tasks import embedding

    monkeypatch.setattr(embedding, "load_encoder", FakeEncoder)
    return {
        "launches": [str(write_launches(project, range(1, 101), trials=4))],
        "documents": [f"jsonl:{write_reports(project)}"],
    }
