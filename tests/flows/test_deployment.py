"""Deployments, schedules and automations on a real Prefect server, and the event that starts a retraining."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from tasks import deployment, flow_runs, registration
from tests.fakes import write_kernel_spec, write_kernels
from warpgauge.errors import SettingsError
from warpgauge.settings import Settings

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
DEPLOYMENTS = {"collect-telemetry", "collect", "train-latency", "train-docquality", "monitor", "compact"}


def test_prefect_yaml_names_flows_that_exist_and_the_monitors_events() -> None:
    from tasks.deployment import DOCQUALITY_EVENT, LATENCY_EVENT

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


@pytest.mark.slow
@pytest.mark.prefect
def test_drift_event_starts_the_training_deployment_with_its_reason_and_its_spec(
    service: Any, registry: Path, wait_for: Any
) -> None:
    deployed = service.command("deploy")
    service.start_worker()
    assert {entry["name"] for entry in deployed["deployments"]} == DEPLOYMENTS
    assert {event for entry in deployed["automations"] for event in entry["expects"]} == {
        "warpgauge.drift.latency",
        "warpgauge.drift.docquality",
    }
    again = service.command("deploy")
    assert len(again["automations"]) == 2
    assert again["not_in_file"] == []

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
        env=service.environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert sent.returncode == 0, sent.stderr
    assert sent.stdout.strip() == "[]"  # nothing is left to run in the monitor's process

    def started(order: dict[str, str]) -> Any:
        runs = service.runs("train-latency")
        return [run for run in runs if run["parameters"].get("attempt_id") == order["attempt_id"]]

    # There are no launches in this store, so their training ends with what it needs; the other one waits for it.
    for order, end in zip(orders, ("FAILED", "COMPLETED"), strict=True):
        run = wait_for(partial(started, order), "the start of the training by its automation")[0]
        for name in ("reason", "model_name", "table", "folder"):
            assert run["parameters"][name] == order[name]
        wait_for(lambda: started(order)[0]["state_type"] == end, "the end of the training")  # noqa: B023
    assert registration.table_models() == {"latency-tiny": {"table": str(spec), "folder": ""}}


# What is refused before anything is applied


def test_own_file_may_be_deployed() -> None:
    deployment.check_deployments(deployment.DEPLOYMENTS_FILE)


def test_flows_are_read_with_what_they_take_run_and_emit() -> None:
    flows = deployment.read_flows(ROOT)
    monitor = flows["flows/monitor_drift.py:monitor_drift"]
    assert monitor.runs == {"monitor", "train-latency", "train-docquality"}
    assert monitor.emits == set(deployment.emitted_events())
    assert {name for name, flow in flows.items() if flow.is_training} == {
        "flows/run_pipeline.py:run_pipeline",
        "flows/train_docquality.py:train_docquality",
        "flows/train_latency.py:train_latency",
    }
    train = flows["flows/train_latency.py:train_latency"]
    assert {"reason", "attempt_id", "model_name", "table", "folder"} <= train.parameters
    assert train.emits == frozenset()


def test_every_flow_is_among_those_whose_dead_runs_are_closed() -> None:
    named = {name for flow in deployment.read_flows(ROOT).values() for name in flow.runs}
    # A rehearsal has a server of its own, which ends with it.
    assert named - {"drill"} == set(flow_runs.FLOW_NAMES)


BAD_FILES = {
    "expects everything": (
        'expect: ["warpgauge.drift.docquality"]',
        "expect: []",
        "would fire on every event of the server",
    ),
    "mistyped event": (
        "warpgauge.drift.latency",
        "warpgauge.drift.latncy",
        "did you mean warpgauge.drift.latency?",
    ),
    "field that is not sent": (
        "{{ event.payload.attempt_id }}",
        "{{ event.payload.attempt }}",
        "takes `event.payload.attempt`",
    ),
    "starts itself": (
        'expect: ["warpgauge.drift.docquality"]\n        match: {"prefect.resource.id": "warpgauge.model.*"}',
        'expect: ["prefect.flow-run.Completed"]',
        "a run of train-docquality starts train-docquality, without end",
    ),
    "no limit": ("concurrency_limit", "concurrency_limits", "must not run at once"),
    "no YAML": ("deployments:", "deployments: [", "cannot be read"),
}


@pytest.mark.parametrize(("old", "new", "said"), BAD_FILES.values(), ids=BAD_FILES)
def test_bad_file_is_refused_before_anything_is_applied(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    old: str,
    new: str,
    said: str,
) -> None:
    text = (ROOT / "prefect.yaml").read_text()
    assert old in text
    (tmp_path / "prefect.yaml").write_text(text.replace(old, new))
    (tmp_path / "flows").symlink_to(ROOT / "flows")

    def applied(*_: object, **__: object) -> None:
        pytest.fail("something was applied")

    monkeypatch.setattr(deployment, "DEPLOYMENTS_FILE", tmp_path / "prefect.yaml")
    monkeypatch.setattr(deployment, "server_url", lambda: "http://127.0.0.1:1/api")
    monkeypatch.setattr(deployment, "_create_work_pool", applied)
    with pytest.raises(SettingsError, match=r"prefect\.yaml") as refused:
        deployment.deploy()
    assert said in str(refused.value)
    assert refused.value.exit_code == 2


def test_what_is_on_the_server_and_not_in_the_file_is_named(tmp_path: Path) -> None:
    file = tmp_path / "prefect.yaml"
    file.write_text("deployments: [{name: monitor}, {name: train, triggers: [{name: warpgauge drift}]}]")
    on_server = [{"name": "monitor"}, {"name": "train"}, {"name": "retired"}]
    automations = [{"name": "warpgauge drift"}, {"name": "warpgauge page me"}]
    assert deployment._not_in_file(file, on_server, automations) == [
        "deployment retired",
        "automation warpgauge page me",
    ]
