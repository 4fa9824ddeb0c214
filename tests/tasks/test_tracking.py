"""One tracking store from everywhere, what happens when it is away, and where its artifacts lie."""

import shlex
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tasks import attempts, registration, tracking
from tasks.registration import CHAMPION, register, rollback
from tasks.tracking import connect
from warpgauge.errors import ServiceUnavailableError, SettingsError
from warpgauge.registry.names import LAUNCH_LATENCY, MODEL_NAMES
from warpgauge.settings import PROJECT_ROOT


def versions(name: str = LAUNCH_LATENCY) -> list[dict[str, Any]]:
    return next(
        model["versions"] for model in registration.list_versions()["models"] if model["model_name"] == name
    )


# One store, whatever the working directory (case 14)


def test_default_store_is_absolute_and_the_same_from_any_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("WARPGAUGE_MLFLOW_URI", raising=False)
    from_root = tracking.tracking_uri()
    monkeypatch.chdir(tmp_path)
    assert tracking.tracking_uri() == from_root == f"sqlite:///{PROJECT_ROOT / 'mlruns' / 'mlflow.db'}"


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("file:./mlruns", "file store, which MLflow 3 refuses"),
        ("file:///data/mlruns", "file store, which MLflow 3 refuses"),
        ("./mlruns", "file store, which MLflow 3 refuses"),
        ("/data/mlruns", "file store, which MLflow 3 refuses"),
        ("sqlite:///mlruns/mlflow.db", "relative"),
        ("sqlite:///:memory:", "in memory"),
        ("sqlite://", "in memory"),
    ],
)
def test_file_store_and_relative_store_are_refused_in_one_line(
    monkeypatch: pytest.MonkeyPatch, uri: str, said: str
) -> None:
    monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", uri)
    for call in (connect, registration.list_versions, tracking.ui_command):
        with pytest.raises(SettingsError, match=said) as caught:
            call()
        assert "\n" not in str(caught.value)
        assert "sqlite:////" in str(caught.value)


def test_registering_from_another_folder_makes_no_file_there_and_lands_in_the_one_store(
    registry: Path, latency_bundle: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    elsewhere = tmp_path / "elsewhere"
    (elsewhere / "mlruns").mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{elsewhere / 'mlruns'}")
    register(latency_bundle)
    assert [path for path in elsewhere.rglob("*") if path.is_file()] == []
    monkeypatch.chdir(registry)
    register(latency_bundle)
    assert [row["version"] for row in versions()] == ["2", "1"]
    assert {path.name for path in (registry / "mlruns").iterdir()} == {"mlflow.db", "artifacts"}


def test_command_for_the_ui_opens_the_store_that_was_written(world: Path) -> None:
    from mlflow import MlflowClient

    command = shlex.split(tracking.ui_command())
    assert (Path(command[0]).name, command[1]) == ("mlflow", "ui")
    assert Path(command[0]).exists()
    uri = command[command.index("--backend-store-uri") + 1]
    client = MlflowClient(tracking_uri=uri, registry_uri=uri)
    assert {model.name for model in client.search_registered_models()} == set(MODEL_NAMES)


def test_password_of_a_store_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", "postgresql://user:s3cret@host:5432/mlflow")
    assert "s3cret" not in tracking.ui_command()
    assert "postgresql://user:***@host:5432/mlflow" in tracking.ui_command()


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("to http://user:secret@127.0.0.1:1/api failed", "to http://user:***@127.0.0.1:1/api failed"),
        ("'postgresql+psycopg2://u:se@cret@h/d'", "'postgresql+psycopg2://u:***@h/d'"),
        ("mysql://u:se/cret@h/d, http://:secret@h", "mysql://u:***@h/d, http://:***@h"),
        ("http://127.0.0.1:5000/api and a@b", "http://127.0.0.1:5000/api and a@b"),
        (
            "models:/launch-latency@champion at s3://bucket/a",
            "models:/launch-latency@champion at s3://bucket/a",
        ),
    ],
)
def test_passwords_are_hidden_wherever_they_stand(said: str, shown: str) -> None:
    assert tracking.without_passwords(said) == shown


def test_words_of_mlflow_show_no_password(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "sleep", lambda _: None)
    monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", "http://user:secret@127.0.0.1:1")
    with pytest.raises(ServiceUnavailableError, match="API request to http://user:") as caught:
        registration.list_versions()
    assert "secret" not in str(caught.value)


def test_old_runs_in_the_artifact_folder_are_named_and_break_nothing(
    registry: Path, latency_bundle: str
) -> None:
    assert tracking.old_file_store() is None
    for experiment, content in (("0", "artifact_location: /gone/mlruns/0\nname: Default\n"), ("1", "")):
        (registry / "mlruns" / experiment).mkdir()
        (registry / "mlruns" / experiment / "meta.yaml").write_text(content)
    warning = tracking.old_file_store()
    assert warning is not None
    assert "2 experiments" in warning
    assert "mlflow migrate-filestore" in warning
    assert "\n" not in warning
    assert register(latency_bundle).version == "1"
    # What the case calls its fifth situation: the other experiments are still listed.
    assert {experiment.name for experiment in connect().search_experiments()} >= {"Default", "warpgauge"}


def test_models_and_artifacts_of_a_moved_project_are_found_again(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect()
    moved = tmp_path / "moved's place"
    (world / "mlruns").rename(tmp_path / "away")
    moved.mkdir()
    (tmp_path / "away").rename(moved / "mlruns")
    monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", f"sqlite:///{moved / 'mlruns' / 'mlflow.db'}")
    assert "model.txt" in registration.model_files(LAUNCH_LATENCY, "1")
    assert registration.version_facts(LAUNCH_LATENCY, "1")["model_name"] == LAUNCH_LATENCY
    client = connect()
    run = client.get_run(versions()[0]["run_id"])
    assert run.info.artifact_uri.startswith(str(moved))
    listed = {file.path for file in client.list_artifacts(run.info.run_id)}
    assert {
        "training.json",
        "evaluation.csv",
        "environment.json",
        "figures",
        "model_card.md",
        "gate.json",
    } <= listed
    import mlflow

    mlflow.pyfunc.load_model(f"models:/{LAUNCH_LATENCY}@{CHAMPION}")
    database = (moved / "mlruns" / "mlflow.db").read_bytes()
    assert str(world / "mlruns" / "artifacts").encode() not in _live_text(moved / "mlruns" / "mlflow.db")
    assert database.startswith(b"SQLite format 3")


@pytest.mark.parametrize(
    "location", ["s3://team/models/artifacts", "mlflow-artifacts:/1", "{elsewhere}", "{gone}"]
)
def test_artifact_place_that_somebody_chose_is_left_alone(
    registry: Path, tmp_path: Path, location: str
) -> None:
    from mlflow import MlflowClient

    (tmp_path / "elsewhere" / "artifacts").mkdir(parents=True)
    chosen = location.format(elsewhere=tmp_path / "elsewhere" / "artifacts", gone="/mnt/unmounted/artifacts")
    database = registry / "mlruns" / "mlflow.db"
    MlflowClient(f"sqlite:///{database}").create_experiment(tracking.EXPERIMENT, chosen)
    before = _live_text(database)
    assert connect().get_experiment_by_name(tracking.EXPERIMENT).artifact_location == chosen
    assert _live_text(database) == before


def test_file_address_of_a_moved_store_is_found_again(registry: Path, tmp_path: Path) -> None:
    from mlflow import MlflowClient

    place = registry / "mlruns"
    client = MlflowClient(f"sqlite:///{place / 'mlflow.db'}")
    client.create_experiment(tracking.EXPERIMENT, "file:///former%20place/mlruns/artifacts")
    (place / "artifacts").mkdir()
    found = connect().get_experiment_by_name(tracking.EXPERIMENT)
    assert found.artifact_location == str(place / "artifacts")


def _live_text(database: Path) -> bytes:
    """All text in the rows of a database; deleted rows stay in the file's free pages."""
    import sqlite3

    with sqlite3.connect(database) as connection:
        return "\n".join(connection.iterdump()).encode()


def test_copy_of_a_project_writes_into_itself_and_not_into_the_original(
    world: Path, champions: Path, latency_bundle: str
) -> None:
    before = sorted(path for path in (champions / "mlruns").rglob("*") if path.is_file())
    register(latency_bundle)
    assert sorted(path for path in (champions / "mlruns").rglob("*") if path.is_file()) == before


# MLflow away


@pytest.fixture
def silent_port() -> Iterator[int]:
    """A port at which nobody listens."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield taken.getsockname()[1]


def test_server_that_is_away_is_said_after_two_retries(
    project: Path, silent_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []
    monkeypatch.setattr(time, "sleep", pauses.append)
    monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", f"http://user:s3cret@127.0.0.1:{silent_port}")
    with pytest.raises(
        ServiceUnavailableError, match=f"http://user:.*@127.0.0.1:{silent_port} did not answer"
    ) as caught:
        registration.list_versions()
    assert "s3cret" not in str(caught.value).split("did not answer")[0]
    assert sum(pauses) < 15
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("answer", [b"", b"hello", b"{}"])
def test_server_that_is_no_mlflow_is_said(
    project: Path, monkeypatch: pytest.MonkeyPatch, answer: bytes
) -> None:
    import threading
    from http.server import BaseHTTPRequestHandler, HTTPServer

    class Other(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_: Any) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Other)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", f"http://127.0.0.1:{server.server_port}")
        with pytest.raises(ServiceUnavailableError, match=r"did not answer|not as MLflow does"):
            registration.list_versions()
    finally:
        server.shutdown()
        server.server_close()


def test_store_that_cannot_be_opened_is_said(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mlruns").mkdir()
    (tmp_path / "mlruns" / "mlflow.db").write_bytes(b"this is no database" * 1000)
    with pytest.raises(ServiceUnavailableError, match="not a database"):
        registration.list_versions()
    monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", f"sqlite:///{tmp_path / 'mlruns' / 'mlflow.db' / 'below'}")
    with pytest.raises(ServiceUnavailableError, match="did not answer"):
        connect()


def test_store_that_goes_away_later_is_said_too(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow import MlflowClient
    from sqlalchemy.exc import OperationalError

    connect()

    def fail(*_: Any, **__: Any) -> None:
        raise OperationalError("SELECT", {}, Exception("disk I/O error"))

    for name in ("search_model_versions", "search_runs", "get_registered_model", "get_model_version"):
        monkeypatch.setattr(MlflowClient, name, fail)
    for call in (
        registration.list_versions,
        attempts.list_attempts,
        lambda: tracking.log_monitor_metrics({"a": 1.0}),
        lambda: registration.serving_version(LAUNCH_LATENCY),
        lambda: registration.data_versions(LAUNCH_LATENCY, "1"),
        lambda: rollback(LAUNCH_LATENCY),
    ):
        with pytest.raises(ServiceUnavailableError, match="disk I/O error"):
            call()


def test_two_first_runs_at_once_make_one_whole_store_whatever_a_killed_one_left(project: Path) -> None:
    (project / "mlruns").mkdir()
    (project / "mlruns" / ".mlflow.db.partial").write_bytes(b"half a database")
    database = project / "mlruns" / "mlflow.db"
    with ThreadPoolExecutor(2) as both:
        for made in [
            both.submit(tracking._make_database, database, str(project / "mlruns" / "artifacts"))
            for _ in range(2)
        ]:
            made.result()
    assert {path.name for path in (project / "mlruns").iterdir()} <= {"mlflow.db", "artifacts"}
    assert versions() == []


# The monitor's run


def test_monitor_metrics_go_into_one_run(registry: Path) -> None:
    tracking.log_monitor_metrics({"residuals/launch-latency": 0.5})
    tracking.log_monitor_metrics({"residuals/launch-latency": 0.6, "utilization_p95/GPU-1": 93.0})
    tracking.log_monitor_metrics({})
    client = connect()
    runs = client.search_runs([client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id])
    assert len(runs) == 1
    assert runs[0].data.metrics == {"residuals/launch-latency": 0.6, "utilization_p95/GPU-1": 93.0}
    history = client.get_metric_history(runs[0].info.run_id, "residuals/launch-latency")
    assert [metric.value for metric in history] == [0.5, 0.6]
