"""Deployments, schedules and automations on a real Prefect server, and the event that starts a retraining."""

import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import registration
from tests.fakes import write_kernel_spec, write_kernels
from warpgauge.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PATIENCE_S = 120
DEPLOYMENTS = {"collect-telemetry", "collect", "train-latency", "train-docquality", "monitor"}


def test_prefect_yaml_names_flows_that_exist_and_the_monitors_events() -> None:
    from tasks.announcement import DOCQUALITY_EVENT, LATENCY_EVENT

    deployments = yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    assert {entry["name"] for entry in deployments} == DEPLOYMENTS
    for entry in deployments:
        path, function = entry["entrypoint"].split(":")
        assert f"def {function}(" in (ROOT / path).read_text()
        assert entry["schedules"]
    expected = {
        event for entry in deployments for trigger in entry.get("triggers", []) for event in trigger["expect"]
    }
    assert expected == {DOCQUALITY_EVENT, LATENCY_EVENT}


def test_schedule_of_telemetry_gives_the_monitor_enough_readings() -> None:
    settings = Settings()
    deployments = {
        entry["name"]: entry for entry in yaml.safe_load((ROOT / "prefect.yaml").read_text())["deployments"]
    }
    minutes = re.fullmatch(r"\*/(\d+) \* \* \* \*", deployments["collect-telemetry"]["schedules"][0]["cron"])
    assert minutes is not None
    readings = settings.monitor_window_hours * 60 / int(minutes.group(1))
    assert readings * settings.monitor_minimum_coverage_ratio >= settings.monitor_minimum_samples


def test_deploy_without_a_server_says_what_to_do() -> None:
    environment = {name: value for name, value in os.environ.items() if name != "PREFECT_API_URL"}
    done = subprocess.run(
        [BIN / "warpgauge", "deploy", "--json"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert "prefect server start" in json.loads(done.stdout)["message"]


def wait_for(condition: Any, what: str) -> Any:
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if found := condition():
            return found
        time.sleep(1)
    raise AssertionError(f"{what} did not happen in {PATIENCE_S} s")


@pytest.fixture
def server(registry: Path) -> Iterator[dict[str, str]]:
    """Environment of a Prefect server of its own, with a worker beside it."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = os.environ | {
        "PREFECT_HOME": str(registry / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    }
    prefect = str(BIN / "prefect")
    log = (registry / "server.log").open("w")
    processes = [
        subprocess.Popen(
            [prefect, "server", "start", "--port", str(port)], env=environment, stdout=log, stderr=log
        )
    ]
    try:

        def is_up() -> bool:
            try:
                with urllib.request.urlopen(f"{environment['PREFECT_API_URL']}/health", timeout=5) as answer:
                    return bool(answer.status == 200)
            except OSError:
                return False

        wait_for(is_up, "the start of the Prefect server")
        deployed = subprocess.run(
            [BIN / "warpgauge", "deploy", "--json"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert deployed.returncode == 0, deployed.stderr
        environment["DEPLOYED"] = deployed.stdout
        worker = [prefect, "worker", "start", "--pool", "warpgauge"]
        processes.append(subprocess.Popen(worker, env=environment, stdout=log, stderr=log, cwd=ROOT))
        yield environment
    finally:
        for process in reversed(processes):
            process.terminate()
            process.wait(timeout=60)
        log.close()


@pytest.mark.slow
def test_drift_event_starts_the_training_deployment_with_its_reason_and_its_spec(
    server: dict[str, str], registry: Path
) -> None:
    deployed = json.loads(server["DEPLOYED"])
    assert {entry["name"] for entry in deployed["deployments"]} == DEPLOYMENTS
    assert {event for entry in deployed["automations"] for event in entry["expects"]} == {
        "warpgauge.drift.latency",
        "warpgauge.drift.docquality",
    }
    again = subprocess.run(
        [BIN / "warpgauge", "deploy", "--json"], env=server, capture_output=True, text=True, check=False
    )
    assert len(json.loads(again.stdout)["automations"]) == 2

    # As `monitoring.decide` gives them; their templates are checked against real ones in the monitor's tests.
    spec = write_kernel_spec(registry / "specs")
    write_kernels(spec.parent, 200)
    orders = [
        {
            "model_name": model_name,
            "attempt_id": f"residuals-{model_name}/1",
            "reason": f"a test of the automation of {model_name}",
            "signal": "residuals",
            "table": table,
            "folder": "",
        }
        for model_name, table in (("launch-latency", ""), ("latency-tiny", str(spec)))
    ]
    program = (
        "import json, sys, time; from tasks import announcement, deployment\n"
        "assert deployment.has_automation('warpgauge.drift.latency')\n"
        "print(announcement.announce({'decisions': [], 'review': [], 'alerts': [], 'orders': json.loads(sys.argv[1])}))\n"
        "time.sleep(3)\n"
    )
    sent = subprocess.run(
        [sys.executable, "-c", program, json.dumps(orders)],
        env=server,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert sent.returncode == 0, sent.stderr
    assert sent.stdout.strip() == "[]"  # nothing is left to run in the monitor's process

    def started(order: dict[str, str]) -> Any:
        body = json.dumps({"flows": {"name": {"any_": ["train-latency"]}}}).encode()
        request = urllib.request.Request(
            f"{server['PREFECT_API_URL']}/flow_runs/filter",
            data=body,
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=10) as answer:
            runs = json.loads(answer.read())
        return [run for run in runs if run["parameters"].get("attempt_id") == order["attempt_id"]]

    # There are no launches in this store, so their training ends with what it needs; the other one waits for it.
    for order, end in zip(orders, ("FAILED", "COMPLETED"), strict=True):
        run = wait_for(partial(started, order), "the start of the training by its automation")[0]
        for name in ("reason", "model_name", "table", "folder"):
            assert run["parameters"][name] == order[name]
        wait_for(lambda: started(order)[0]["state_type"] == end, "the end of the training")  # noqa: B023
    assert registration.table_models() == {"latency-tiny": {"table": str(spec), "folder": ""}}
