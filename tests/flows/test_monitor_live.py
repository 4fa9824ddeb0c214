"""The monitor's flow on a real Prefect server: what killed retrainings leave, failing steps, and drift that retrains."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from flows import monitor_drift as monitoring_flow
from flows import train_docquality, train_latency
from tasks import attempts, embedding, leases, registration, tracking, training
from tasks.storage import Store
from tests.fakes import write_launches
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY
from warpgauge.tables import DOCUMENTS, GPU_SAMPLES, LABELS

pytestmark = pytest.mark.prefect
ROOT = Path(__file__).resolve().parents[2]
NOW = datetime.now(UTC)
TRAINED_AT = NOW - timedelta(days=2)
# Spread of the constructed embeddings along their axes; the first coordinate is 1, so that their length hardly varies.
DEVIATIONS = np.array([0.09, 0.07, 0.05, 0.035, 0.025, 0.018, 0.012])
AXIS = 3
QUICK = {
    "THREADS": "1",
    "LATENCY_TREES": "20",
    "LATENCY_LEARNING_RATE": "0.3",
    "DOCQUALITY_ROUNDS": "0",
    "MONITOR_COOLDOWN_MINUTES": "0",
}


class Encoder:
    """Reads the vector that a text spells out."""

    encoder_id = "0" * 64
    dimensions = len(DEVIATIONS) + 1

    def encode(self, texts: list[str | None]) -> NDArray[np.float32]:
        """Unit vectors, shape (texts, 8)."""
        spelled = [[1.0, *map(float, (text or "").split())] for text in texts]
        vectors = np.array(spelled, dtype=np.float32).reshape(-1, self.dimensions)
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def documents(
    count: int, seed: int, fetched_at: datetime, *, grown_axis: int | None = None, grown_by: float = 1.0
) -> pl.DataFrame:
    """Reports whose embeddings have exactly the reference's mean and variances, but along one axis."""
    drawn = np.random.default_rng(seed).normal(size=(count, len(DEVIATIONS)))
    drawn -= drawn.mean(axis=0)
    exact = np.linalg.solve(np.linalg.cholesky(np.cov(drawn.T)), drawn.T).T * DEVIATIONS
    if grown_axis is not None:
        exact[:, grown_axis - 1] *= np.sqrt(grown_by)
    names = [f"report-{seed}-{number}" for number in range(count)]
    rows = {
        "document_id": names,
        "source": "made/up",
        "source_id": names,
        "family": "report",
        "title": [" ".join(f"{value:.7f}" for value in vector) for vector in exact],
        "body": "",
        "fetched_at": fetched_at,
        "content_sha256": names,
        "redaction_count": 0,
    }
    return DOCUMENTS.conform(pl.DataFrame(rows))


def labels(of: pl.DataFrame) -> pl.DataFrame:
    """A person's: a defect is what lies on one side along the first axis."""
    is_defect = [float(title.split()[0]) > 0.03 for title in of["title"]]
    rows = {
        "document_id": of["document_id"],
        "annotator": "person",
        "labelled_at": TRAINED_AT,
        "label_source": "human",
        "is_defect": is_defect,
    }
    return LABELS.conform(pl.DataFrame(rows))


def load(percent: float) -> None:
    """GPU samples of the last hours."""
    rows = {
        "gpu_uuid": "GPU-1",
        "sampled_at": [NOW - timedelta(hours=1, seconds=second) for second in range(100)],
        "source_kind": "nvml",
        "source_name": "host",
        "collected_at": NOW,
        "utilization_percent": percent,
    }
    Store().append("gpu_samples", GPU_SAMPLES.conform(pl.DataFrame(rows)))


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, empty_tracking_store: Path) -> Path:
    """A store where both models are version 1 and champion. Not to be changed: `world` is a copy."""
    from warpgauge.latency import explanation_plots, plots
    from warpgauge.launches.perfscaling import read_perfscaling

    root = tmp_path_factory.mktemp("trained")
    (root / "mlruns").mkdir()
    shutil.copy(empty_tracking_store, root / "mlruns" / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        use(patch, root)
        patch.setattr(plots, "draw_training", lambda *_: {})
        patch.setattr(explanation_plots, "draw_explanations", lambda *_: {})
        store = Store()
        launches = read_perfscaling(str(write_launches(root, range(1, 101), trials=4))).frame
        store.append("launches", launches.with_columns(pl.lit(TRAINED_AT).alias("collected_at")))
        reports = documents(900, 0, TRAINED_AT)
        store.append("documents", reports)
        store.append("labels", labels(reports.head(400)))
        for name, train in (
            (LAUNCH_LATENCY, training.train_latency),
            (DOC_QUALITY, training.train_docquality),
        ):
            bundle = train(training.plan_training(name), "test")
            verdict = registration.apply_gate(bundle, registration.register(bundle))
            assert verdict["outcome"] == "promote", verdict["reasons"]
            shutil.copytree(bundle, root / "bundles" / name)
    return root


def use(patch: pytest.MonkeyPatch, root: Path) -> None:
    patch.setenv("WARPGAUGE_DATA_DIR", str(root / "data"))
    patch.setenv("WARPGAUGE_MLFLOW_URI", f"sqlite:///{root / 'mlruns' / 'mlflow.db'}")
    patch.setattr(embedding, "load_encoder", Encoder)
    for name, value in QUICK.items():
        patch.setenv(f"WARPGAUGE_{name}", value)


@pytest.fixture
def world(trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own with both champions and quick settings; validation is tested elsewhere."""
    shutil.copytree(trained, tmp_path, dirs_exist_ok=True)
    use(monkeypatch, tmp_path)
    for module in (train_latency, train_docquality):
        monkeypatch.setattr(module.validate, "fn", lambda *_: {})
    return tmp_path


def champion(name: str) -> str | None:
    return registration.alias_version(name, registration.CHAMPION)


def version_count(name: str) -> int:
    (model,) = [one for one in registration.list_versions()["models"] if one["model_name"] == name]
    return len(model["versions"])


# Killed retrainings

RETRAINING = """
import sys, time
from flows import FLOW, train_latency, train_docquality
def work(*_):
    print("at work", flush=True)
    time.sleep(600)
for module in (train_latency, train_docquality):
    module.validate.fn = lambda *_: {}
    module.plan.fn = lambda *_: {"skip": False}
    module.train.fn = work
FLOW.FLOW()
"""


@pytest.fixture
def start(world: Path, prefect_server: None) -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Run a flow in a process of its own, on the tests' server, until it is in the middle of a training."""
    from prefect.settings import get_current_settings

    started: list[subprocess.Popen[str]] = []

    def run(*flows: str) -> list[subprocess.Popen[str]]:
        environment = os.environ | {"PREFECT_API_URL": str(get_current_settings().api.url)}
        made = [
            subprocess.Popen(
                [sys.executable, "-c", RETRAINING.replace("FLOW", flow)],
                env=environment,
                cwd=ROOT,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for flow in flows
        ]
        started.extend(made)
        for process in made:
            assert process.stdout is not None
            said = [process.stdout.readline()]
            while "at work" not in said[-1]:
                assert said[-1], "".join(said)
                said.append(process.stdout.readline())
        return made

    yield run
    for process in started:
        process.kill()
        process.wait()
        assert process.stdout is not None
        process.stdout.close()


def flow_states() -> list[tuple[str, str, str]]:
    """Flow, type of state and message of every run of the flows that are looked at here, oldest first."""
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.sorting import FlowRunSort

    with get_client(sync_client=True) as client:
        names = {flow.id: flow.name for flow in client.read_flows()}
        runs = client.read_flow_runs(sort=FlowRunSort.START_TIME_ASC)
        return [
            (names[run.flow_id], run.state.type.value, run.state.message or "")
            for run in runs
            if run.state is not None
            and names[run.flow_id] in ("monitor", "train-latency", "train-docquality")
        ]


def test_killed_retraining_is_closed_by_the_next_monitor_run_which_starts_another_and_leaves_the_living_alone(
    world: Path, start: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(97)
    before = len(flow_states())
    doomed, living = start("monitor_drift", "train_docquality")
    (first,) = attempts.list_attempts()[:1]
    assert (first["model_name"], first["outcome"]) == (LAUNCH_LATENCY, "running")
    doomed.send_signal(signal.SIGKILL)
    doomed.wait()
    # Case 12: everything still says that it runs.
    assert sorted(flow_states()[before:]) == [
        ("monitor", "RUNNING", ""),
        ("train-docquality", "RUNNING", ""),
        ("train-latency", "RUNNING", ""),
    ]

    monkeypatch.setattr(train_latency.plan, "fn", lambda *_: {"skip": False})
    monkeypatch.setattr(
        train_latency.train,
        "fn",
        lambda *_: str(shutil.copytree(world / "bundles" / LAUNCH_LATENCY, world / "new")),
    )
    result = monitoring_flow.monitor_drift()
    closed = {one["what"] for one in result["closed"]}
    assert closed == {"flow run", "MLflow run", "lease"}
    states = flow_states()[before:]
    crashed = [(name, message) for name, state, message in states if state == "CRASHED"]
    assert sorted(name for name, _ in crashed) == ["monitor", "train-latency"]
    assert all("closed by the monitor: its process" in message for _, message in crashed)
    assert ("train-docquality", "RUNNING", "") in states
    assert leases.is_held(attempts.training_job(DOC_QUALITY))

    # The killed attempt counts as failed, and the next one was made at once.
    (order,) = result["orders"]
    assert order["attempt_id"] == first["attempt_id"].removesuffix("1") + "2"
    (retrained,) = result["retrained"]
    assert not retrained["is_failed"]
    listed = {one["attempt_id"]: one for one in attempts.list_attempts()}
    assert listed[first["attempt_id"]]["outcome"] == "failed"
    assert "killed" in listed[first["attempt_id"]]["why"]
    assert version_count(LAUNCH_LATENCY) == 2
    assert not leases.is_held(attempts.training_job(LAUNCH_LATENCY))

    # A process that is asked to end says so itself.
    living.send_signal(signal.SIGTERM)
    assert living.wait(60) != 0
    (ended,) = [
        (state, message) for name, state, message in flow_states()[before:] if name == "train-docquality"
    ]
    assert ended[0] == "CRASHED"
    assert not leases.is_held(attempts.training_job(DOC_QUALITY))
    again = monitoring_flow.monitor_drift()
    assert again["closed"] == []


# Failing steps


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize("step", ["close_dead_runs", "measure", "decide", "announce"])
def test_failing_step_of_the_monitor_fails_its_flow_and_retrains_nothing(
    world: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    load(97)

    def fail(*_: object) -> None:
        raise RuntimeError(f"injected into {step}")

    monkeypatch.setattr(getattr(monitoring_flow, step), "fn", fail)
    state = monitoring_flow.monitor_drift(return_state=True)
    assert state.is_failed()
    assert f"injected into {step}" in str(state.message)
    assert version_count(LAUNCH_LATENCY) == 1
    assert attempts.list_attempts() == []


STEPS = [
    *((train_latency, LAUNCH_LATENCY, step) for step in ("validate", "plan", "train", "register", "gate")),
    *((train_docquality, DOC_QUALITY, step) for step in ("plan", "register", "gate")),
]


@pytest.mark.usefixtures("prefect_server")
@pytest.mark.parametrize(("module", "name", "step"), STEPS, ids=[f"{name} {step}" for _, name, step in STEPS])
def test_failing_step_of_an_ordered_training_fails_its_flow_its_attempt_and_promotes_nothing(
    world: Path, monkeypatch: pytest.MonkeyPatch, module: Any, name: str, step: str
) -> None:
    def fail(*_: object) -> None:
        raise RuntimeError(f"injected into {step}")

    monkeypatch.setattr(module.plan, "fn", lambda *_: {"skip": False})
    monkeypatch.setattr(module.train, "fn", lambda *_: str(world / "bundles" / name))
    monkeypatch.setattr(getattr(module, step), "fn", fail)
    monkeypatch.setattr(getattr(module, step), "retries", 0)
    train = getattr(module, module.__name__.rpartition(".")[2])
    state = train(attempt_id="episode/1", reason="test", return_state=True)
    assert state.is_failed()
    (attempt,) = attempts.list_attempts()
    assert (attempt["outcome"], attempt["why"]) == ("failed", f"RuntimeError: injected into {step}")
    assert champion(name) == "1"
    assert version_count(name) == (2 if step == "gate" else 1)
    assert not leases.is_held(attempts.training_job(name))
    runs = tracking.connect().search_runs([tracking.experiment_id(tracking.connect())])
    assert all(run.info.status != "RUNNING" for run in runs)


# Case 18 on the server


@pytest.fixture
def listener(prefect_server: None) -> Iterator[Any]:
    """An automation that waits for the drift event, as `deploy` makes it; it starts nothing here."""
    from prefect.client.orchestration import get_client
    from prefect.events.actions import DoNothing
    from prefect.events.schemas.automations import AutomationCore, EventTrigger

    trigger = EventTrigger(expect={"warpgauge.drift.docquality"}, posture="Reactive", threshold=1)
    with get_client(sync_client=True) as client:
        made = client.create_automation(
            AutomationCore(name="warpgauge docquality drift", trigger=trigger, actions=[DoNothing()])
        )
        yield client
        client.delete_automation(made)


def drift_of(result: dict[str, Any]) -> dict[str, Any]:
    return {row["signal"]: row for row in result["decisions"] if row["signal"].startswith("embedding")}


@pytest.mark.usefixtures("prefect_server")
def test_variance_that_grows_by_half_along_axis_3_retrains_and_along_another_axis_does_not(
    world: Path,
) -> None:
    Store().append("documents", documents(600, 1, NOW, grown_axis=AXIS + 2, grown_by=1.5))
    quiet = monitoring_flow.monitor_drift()
    rows = drift_of(quiet)
    assert rows["embedding_variance"]["value"] == pytest.approx(0.0, abs=0.02)
    assert {row["action"] for row in rows.values()} == {"none"}
    assert quiet["orders"] == []

    Store().append("documents", documents(1800, 2, NOW, grown_axis=AXIS, grown_by=1.75))
    # Over the window's 2,400 documents together.
    result = monitoring_flow.monitor_drift()
    rows = drift_of(result)
    assert rows["embedding_variance"]["value"] == pytest.approx(0.75 * 1800 / 2400, abs=0.03)
    (order,) = result["orders"]
    assert (order["model_name"], order["signal"]) == (DOC_QUALITY, "embedding_variance")
    (retrained,) = result["retrained"]
    assert not retrained["is_failed"], retrained["outcome"]
    assert version_count(DOC_QUALITY) == 2


def test_drift_event_carries_the_order_of_axis_3_to_whoever_waits_for_it(world: Path, listener: Any) -> None:
    Store().append("documents", documents(600, 2, NOW, grown_axis=AXIS, grown_by=1.5))
    result = monitoring_flow.monitor_drift()
    assert result["retrained"] == []
    (order,) = result["orders"]
    assert order["signal"] == "embedding_variance"
    sent = wait_for_event(listener, "warpgauge.drift.docquality", "attempt_id", order["attempt_id"])
    assert sent == order
    (decision,) = [row for row in result["decisions"] if row["alert_cause"] == "review_due"]
    told = wait_for_event(listener, "warpgauge.alert.review_due", "alert_id", decision["decision_id"])
    assert told["reason"] == decision["reason"]


def wait_for_event(client: Any, name: str, key: str, value: str) -> dict[str, Any]:
    import time

    wanted = {
        "event": {"name": [name]},
        "occurred": {"since": NOW.isoformat(), "until": "2100-01-01T00:00:00Z"},
    }
    for _ in range(200):
        found = client.request("POST", "/events/filter", json={"filter": wanted}).json()["events"]
        for event in found:
            if event["payload"][key] == value:
                return dict(event["payload"])
        time.sleep(0.1)
    pytest.fail(f"the server got no event {name} in 20 s: {json.dumps(found)}")


# The same with an automation, its deployment and a worker

SETTINGS = {f"WARPGAUGE_{name}": value for name, value in QUICK.items()}


@pytest.mark.slow
def test_killed_worker_and_its_retraining_are_closed_and_the_next_order_gets_the_slot(
    service: Any, world: Path, wait_for: Any
) -> None:
    deployed = service.command("deploy")
    assert deployed["not_in_file"] == []
    service.stop_schedules()
    # Long enough to be killed in the middle.
    worker = service.start_worker(**SETTINGS, WARPGAUGE_LATENCY_TRIALS="9999")
    more = (
        Store()
        .read("launches")
        .collect()
        .with_columns(
            pl.concat_str(pl.lit("more-"), "launch_id").alias("launch_id"), pl.lit(NOW).alias("collected_at")
        )
    )
    Store().append("launches", more)
    load(97)
    (order,) = service.command("monitor", "--once", **SETTINGS)["orders"]

    def run_of(attempt_id: str, state: str) -> Any:
        found = [
            run for run in service.runs("train-latency") if run["parameters"].get("attempt_id") == attempt_id
        ]
        return found and found[0]["state_type"] == state and found[0]

    wait_for(
        lambda: (
            {one["attempt_id"]: one["outcome"] for one in attempts.list_attempts()}.get(order["attempt_id"])
            == "running"
        ),
        "the retraining that the automation starts",
    )
    run = run_of(order["attempt_id"], "RUNNING")
    process = int(run["labels"]["warpgauge.process"].split("/")[1])
    for victim in (worker.pid, process):
        os.kill(victim, signal.SIGKILL)
    worker.wait()
    assert run_of(order["attempt_id"], "RUNNING")
    assert slots(service) == 1

    service.start_worker(**SETTINGS)
    result = service.command("monitor", "--once", **SETTINGS)
    assert {one["what"] for one in result["closed"]} == {"flow run", "MLflow run", "lease"}
    closed = run_of(order["attempt_id"], "CRASHED")
    assert "closed by the monitor: its process" in closed["state"]["message"]
    (again,) = result["orders"]
    assert again["attempt_id"].endswith("/2")
    wait_for(lambda: run_of(again["attempt_id"], "COMPLETED"), "the end of the second retraining")
    wait_for(lambda: slots(service) == 0, "the release of the slot")
    listed = {one["attempt_id"]: one["outcome"] for one in attempts.list_attempts()}
    assert listed.pop(order["attempt_id"]) == "failed"
    assert listed[again["attempt_id"]] in ("promoted", "held", "refused")


def slots(service: Any) -> int:
    (deployment,) = [one for one in service.ask("deployments/filter") if one["name"] == "train-latency"]
    return int(deployment["global_concurrency_limit"]["active_slots"])


@pytest.mark.slow
def test_variance_along_axis_3_ends_with_the_event_and_a_retraining_by_the_worker(
    service: Any, world: Path, wait_for: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from warpgauge.docquality.encoder import Encoder as RealEncoder
    from warpgauge.settings import load_settings

    real = RealEncoder.load(tokens=load_settings().docquality_encoder_tokens)

    class Padded(Encoder):
        """The constructed vectors under the name of the encoder that the other processes load."""

        encoder_id = real.encoder_id
        dimensions = real.dimensions

        def encode(self, texts: list[str | None]) -> NDArray[np.float32]:
            vectors = Encoder().encode(texts)
            return np.pad(vectors, ((0, 0), (0, self.dimensions - vectors.shape[1])))

    monkeypatch.setattr(embedding, "load_encoder", Padded)
    bundle = training.train_docquality(training.plan_training(DOC_QUALITY, force=True), "test")
    registration.promote(DOC_QUALITY, registration.register(bundle).version)
    service.command("deploy")
    service.stop_schedules()
    service.start_worker(**SETTINGS)
    quiet = service.command("monitor", "--once", **SETTINGS)
    assert quiet["orders"] == []

    grown = documents(600, 2, NOW, grown_axis=AXIS, grown_by=1.5)
    Store().append("documents", grown)
    # The other processes find the vectors in the cache.
    embedding.embed(grown, Padded())
    (order,) = service.command("monitor", "--once", **SETTINGS)["orders"]
    assert (order["model_name"], order["signal"]) == (DOC_QUALITY, "embedding_variance")

    def trained_run() -> Any:
        runs = service.runs("train-docquality")
        return [run for run in runs if run["parameters"].get("attempt_id") == order["attempt_id"]]

    run = wait_for(trained_run, "the start of the retraining by its automation")[0]
    assert run["parameters"]["reason"] == order["reason"]
    wait_for(lambda: trained_run()[0]["state_type"] == "COMPLETED", "the end of the retraining")
    outcomes = {one["attempt_id"]: one["outcome"] for one in attempts.list_attempts()}
    assert outcomes[order["attempt_id"]] in ("promoted", "held", "refused")
    assert version_count(DOC_QUALITY) == 3
