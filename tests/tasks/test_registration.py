"""The registry: one store from everywhere, versions that hold no pickle, aliases, and what happens when it is away."""

import json
import math
import multiprocessing
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import registration, tracking
from tasks.registration import (
    CHALLENGER,
    CHAMPION,
    Registered,
    alias_version,
    apply_gate,
    register,
    rollback,
)
from tasks.tracking import connect
from warpgauge.errors import (
    ModelFileError,
    ModelNotFoundError,
    NoDataError,
    ServiceUnavailableError,
)
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY, MODEL_NAMES

# MLflow's own page of a run, and the pages of an experiment, fail on a number that is none.
STORED_INFINITY = 1.7976931348623157e308
PICKLE_STARTS = tuple(bytes([0x80, protocol]) for protocol in range(2, 6))


def add_version(name: str, **tags: str) -> str:
    """A version without a model, where only the registry's entry matters."""
    client = connect()
    if not client.search_registered_models(f"name = '{name}'"):
        client.create_registered_model(name)
    return str(client.create_model_version(name, source="/none", tags=tags).version)


def versions(name: str = LAUNCH_LATENCY) -> list[dict[str, Any]]:
    return next(
        model["versions"] for model in registration.list_versions()["models"] if model["model_name"] == name
    )


# What a version holds


def test_registered_version_holds_no_pickle(world: Path) -> None:
    files = [path for path in (world / "mlruns" / "artifacts").rglob("*") if path.is_file()]
    assert {path.name for path in files} >= {
        "model.txt",
        "model.json",
        "MLmodel",
        "latency.py",
        "doc_quality.py",
    }
    for path in files:
        assert path.suffix not in {".pkl", ".pickle", ".joblib", ".pt", ".pth", ".bin", ".npy", ".npz"}, path
        start = path.read_bytes()[:4]
        assert not start.startswith(PICKLE_STARTS), path
        assert start != b"PK\x03\x04", f"{path}: a zip, as torch.save writes it"
    for described in (path for path in files if path.name == "MLmodel"):
        assert "python_model:" not in described.read_text()


def test_run_says_what_it_was_made_of(world: Path) -> None:
    client = connect()
    for name in MODEL_NAMES:
        row = versions(name)[0]
        run = client.get_run(row["run_id"])
        assert json.loads(run.data.tags["data_versions"]) == row["data_versions"]
        assert run.info.status == "FINISHED"
        assert run.data.params["warpgauge"]
        assert all(math.isfinite(value) and abs(value) < 1e300 for value in run.data.metrics.values())
        assert client.get_model_version(name, "1").description.startswith(row["headline"])


def test_numbers_that_are_none_are_left_out_of_the_run_and_named(
    registry: Path, latency_bundle: str, tmp_path: Path, make: Any
) -> None:
    facts = json.loads((Path(latency_bundle) / "bundle.json").read_text())
    metrics = facts["metrics"] | {
        "worst_us": math.inf,
        "lowest_us": -math.inf,
        "broken_us": math.nan,
        "absent_us": None,
    }
    made = register(make.bundle(latency_bundle, tmp_path, metrics=metrics))
    run = connect().get_run(made.run_id)
    assert run.data.tags["nonfinite_metrics"] == "absent_us, broken_us, lowest_us, worst_us"
    assert {name for name in run.data.metrics if not name.startswith("cost/")} == set(facts["metrics"])
    assert max(abs(value) for value in run.data.metrics.values()) < STORED_INFINITY


def test_bundle_that_is_gone_or_cut_registers_nothing(
    registry: Path, latency_bundle: str, tmp_path: Path, make: Any
) -> None:
    with pytest.raises(NoDataError, match="holds no whole trained model"):
        register(str(tmp_path / "gone"))
    cut = make.bundle(latency_bundle, tmp_path)
    text = (Path(cut) / "bundle.json").read_text()
    (Path(cut) / "bundle.json").write_text(text[: len(text) // 2])
    with pytest.raises(NoDataError, match="holds no whole trained model"):
        register(cut)
    assert versions() == []


# The served model (cases 16 and 17)


@pytest.fixture
def served(world: Path) -> Any:
    """The champion as MLflow loads it."""
    import mlflow

    connect()
    return mlflow.pyfunc.load_model(f"models:/{LAUNCH_LATENCY}@{CHAMPION}")


@pytest.fixture
def batch(world: Path) -> Any:
    """Launches of the table as a caller holds them: every column that the model reads, numbers as doubles."""
    from tasks.storage import Store
    from warpgauge.latency.launch_scheme import PREDICTION_COLUMNS

    rows = Store().read("launches").collect().select(PREDICTION_COLUMNS).gather_every(7)
    numbers = [name for name, kind in rows.schema.items() if kind != pl.String()]
    return rows.with_columns(pl.col(numbers).cast(pl.Float64)).to_pandas()


def predicted(answer: Any) -> list[float]:
    return list(answer["predicted_latency_us"])


def test_columns_in_another_order_give_equal_predictions(served: Any, batch: Any) -> None:
    straight = served.predict(batch)
    turned = served.predict(batch[list(reversed(batch.columns))])
    assert predicted(turned) == predicted(straight)
    assert list(turned["upper_us"]) == list(straight["upper_us"])
    assert len(set(predicted(straight))) > 20


def test_served_predictions_are_those_of_the_trained_model(
    served: Any, batch: Any, latency_bundle: str
) -> None:
    from tasks.storage import Store
    from warpgauge.latency.model import LatencyModel

    files = {path.name: path.read_bytes() for path in (Path(latency_bundle) / "model").iterdir()}
    rows = Store().read("launches").collect().gather_every(7)
    direct = LatencyModel.from_files(files).predict(rows)
    assert predicted(served.predict(batch)) == direct["predicted_latency_us"].to_list()


def test_batch_of_one_gpu_gets_the_categories_of_training(served: Any, batch: Any) -> None:
    whole = served.predict(batch)
    names = sorted(set(batch["gpu_name"]))
    assert len(names) == 2
    for name in names:
        chosen = (batch["gpu_name"] == name).to_numpy()
        assert predicted(served.predict(batch[chosen])) == predicted(whole[chosen])
    first, second = (predicted(whole[(batch["gpu_name"] == name).to_numpy()]) for name in names)
    assert first != second


def test_absent_column_is_a_null_and_a_renamed_one_is_said(served: Any, batch: Any) -> None:
    without = batch.drop(columns=["gpu_name"])
    nulled = batch.assign(gpu_name=None).astype({"gpu_name": object})
    absent, null = served.predict(without), served.predict(nulled)
    assert predicted(absent) == predicted(null)
    assert all("gpu_name=missing" in said for said in absent["never_seen"])
    renamed = served.predict(batch.rename(columns={"gpu_name": "GPU"}))
    assert all("gpu_name=missing" in said for said in renamed["never_seen"])


def test_flags_left_open_mean_an_ordinary_launch(
    served: Any, batch: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[pl.DataFrame] = []
    whole = type(served.unwrap_python_model().model).predict

    def seen(self: Any, frame: pl.DataFrame) -> pl.DataFrame:
        asked.append(frame)
        return whole(self, frame)

    monkeypatch.setattr(type(served.unwrap_python_model().model), "predict", seen)
    answer = served.predict(batch.drop(columns=["is_profiled", "is_simulated"]))
    assert asked[0].select("is_profiled", "is_simulated").unique().rows() == [(False, False)]
    assert predicted(answer) == predicted(served.predict(batch))
    assert set(answer["never_seen"]) == {""}


def test_unknown_gpu_is_named_and_widens_the_interval(served: Any, batch: Any) -> None:
    known = served.predict(batch)
    unknown = served.predict(batch.assign(gpu_name="NVIDIA B200"))
    assert all("gpu_name=NVIDIA B200" in said for said in unknown["never_seen"])
    wider = (unknown["upper_us"] / unknown["lower_us"]) > (known["upper_us"] / known["lower_us"])
    assert wider.all()
    missing = served.predict(batch.assign(gpu_name=None).astype({"gpu_name": object}))
    assert list(missing["never_seen"]) != list(unknown["never_seen"])


def test_column_of_another_type_is_refused_by_name(served: Any, batch: Any) -> None:
    from mlflow.exceptions import MlflowException

    with pytest.raises(MlflowException, match="node_count"):
        served.predict(batch.assign(node_count="many"))


def test_served_documentation_model_scores_texts_with_absent_columns(world: Path) -> None:
    import mlflow
    import pandas as pd

    connect()
    model = mlflow.pyfunc.load_model(f"models:/{DOC_QUALITY}@{CHAMPION}")
    texts = pd.DataFrame(
        {
            "body": ["documentation page link outdated manual wrongly", "kernel crash race segfault memory"],
            "title": ["documentation page", None],
        }
    )
    answer = model.predict(texts)
    assert answer["defect_probability"][0] > 0.5 > answer["defect_probability"][1]


# Damaged and absent models


def _stored(world: Path, file: str, script: str) -> Path:
    """One file of a registered model in the artifact store."""
    folder = next(path.parent for path in (world / "mlruns").rglob(script))
    return next(folder.rglob(f"artifacts/*/{file}"))


def test_cut_model_file_is_refused_and_ends_no_process(world: Path) -> None:
    from warpgauge.latency.model import LatencyModel

    path = _stored(world, "model.txt", "latency.py")
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    with pytest.raises(ModelFileError, match=r"model\.txt .* truncated"):
        LatencyModel.from_files(registration.model_files(LAUNCH_LATENCY, "1"))


def test_model_without_its_category_table_is_refused(world: Path) -> None:
    from warpgauge.latency.model import LatencyModel

    _stored(world, "model.json", "latency.py").unlink()
    with pytest.raises(ModelFileError, match="category table"):
        LatencyModel.from_files(registration.model_files(LAUNCH_LATENCY, "1"))


def test_version_whose_files_are_gone_says_so(world: Path) -> None:
    shutil.rmtree(_stored(world, "model.txt", "latency.py").parent)
    with pytest.raises(ModelNotFoundError, match="launch-latency version 1: its artifacts"):
        registration.model_files(LAUNCH_LATENCY, "1")
    shutil.rmtree(world / "mlruns" / "artifacts")
    for call in (registration.model_files, registration.version_facts):
        with pytest.raises(ModelNotFoundError, match="doc-quality version 1: its"):
            call(DOC_QUALITY, "1")


@pytest.mark.parametrize("error", ["mlflow", "disk", "connection"])
def test_store_that_is_away_is_no_lost_model(
    world: Path, monkeypatch: pytest.MonkeyPatch, error: str
) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException
    from requests.exceptions import ConnectionError as NoConnection

    away = {
        "mlflow": MlflowException("503 Server Error: Service Unavailable"),
        "disk": OSError(5, "Input/output error"),
        "connection": NoConnection("http://user:secret@127.0.0.1:1/api refused"),
    }[error]

    def fail(*_: Any, **__: Any) -> None:
        raise away

    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", fail)
    for call in (registration.model_files, registration.version_facts):
        with pytest.raises(ServiceUnavailableError, match="did not answer") as caught:
            call(LAUNCH_LATENCY, "1")
        assert caught.value.exit_code == 3
        assert "secret" not in str(caught.value)
    with pytest.raises(ServiceUnavailableError):
        registration.yardstick(LAUNCH_LATENCY)


def test_version_of_no_run_has_no_record_of_its_training(registry: Path) -> None:
    add_version(LAUNCH_LATENCY)
    with pytest.raises(ModelNotFoundError, match=r"version 1: its training\.json cannot be read"):
        registration.version_facts(LAUNCH_LATENCY, "1")


def test_files_that_a_server_no_longer_lists_are_lost(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import mlflow
    from mlflow.exceptions import MlflowException

    def fail(*_: Any, **__: Any) -> None:
        # What a server's 404 becomes on the way: no code of its own.
        raise MlflowException("404 Client Error: Not Found for url: http://user:secret@127.0.0.1:1/api")

    shutil.rmtree(world / "mlruns" / "artifacts")
    monkeypatch.setattr(mlflow.artifacts, "download_artifacts", fail)
    for call in (registration.model_files, registration.version_facts):
        with pytest.raises(ModelNotFoundError, match=r"cannot be read: 404 .*user:\*\*\*@") as caught:
            call(LAUNCH_LATENCY, "1")
        assert "secret" not in str(caught.value)


def test_reading_a_model_changes_nothing_in_the_store_and_leaves_no_copy(
    world: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect()
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(registration.tempfile, "tempdir", str(scratch))
    before = {path: path.stat().st_mtime_ns for path in (world / "mlruns" / "artifacts").rglob("*")}
    registration.model_files(LAUNCH_LATENCY, "1")
    registration.version_facts(LAUNCH_LATENCY, "1")
    assert {path: path.stat().st_mtime_ns for path in (world / "mlruns" / "artifacts").rglob("*")} == before
    assert list(scratch.iterdir()) == []


def test_unknown_model_or_version_is_said_with_what_there_is(world: Path) -> None:
    for version in ("7", "0", "9" * 30, "best", "no such alias!", ""):
        said = f"launch-latency has no version {version}; known versions: 1"
        for call in (registration.model_files, registration.promote, registration.data_versions):
            with pytest.raises(ModelNotFoundError, match=said):
                call(LAUNCH_LATENCY, version)
        with pytest.raises(ModelNotFoundError, match=said):
            registration.compare_versions(LAUNCH_LATENCY, "1", version)
    for name in ("nothing", "it's", ""):
        said = f"there is no model {name!r}; the models are launch-latency, doc-quality"
        for call in (registration.model_files, registration.promote, registration.version_facts):
            with pytest.raises(ModelNotFoundError, match=said):
                call(name, "1")
        with pytest.raises(ModelNotFoundError, match=said):
            rollback(name)


# Aliases, promotion, rollback


def test_new_version_is_challenger_and_the_gate_makes_it_champion(
    registry: Path, latency_bundle: str
) -> None:
    made = register(latency_bundle)
    assert (alias_version(LAUNCH_LATENCY, CHALLENGER), alias_version(LAUNCH_LATENCY, CHAMPION)) == ("1", None)
    assert registration.serving_version(LAUNCH_LATENCY) == ("1", False)
    verdict = apply_gate(latency_bundle, made)
    assert (verdict["outcome"], verdict["version"], verdict["refused"]) == ("promote", "1", [])
    assert registration.serving_version(LAUNCH_LATENCY) == ("1", True)
    row = versions()[0]
    assert row["gate"] == "promote"
    assert row["aliases"] == [CHALLENGER, CHAMPION]
    client = connect()
    gate = json.loads(Path(client.download_artifacts(made.run_id, "gate.json")).read_text())
    assert gate["outcome"] == "promote"
    assert "launch-latency" in Path(client.download_artifacts(made.run_id, "model_card.md")).read_text()


def test_nothing_registered_is_said_and_not_an_error(registry: Path) -> None:
    assert alias_version(LAUNCH_LATENCY, CHAMPION) is None
    listed = registration.list_versions()["models"]
    assert [(row["champion"], row["versions"]) for row in listed] == [(None, []), (None, [])]
    assert all("warpgauge run" in row["no_champion_because"] for row in listed)
    with pytest.raises(ModelNotFoundError, match="train one with `warpgauge run`"):
        registration.serving_version(DOC_QUALITY)
    with pytest.raises(ModelNotFoundError, match="nothing to roll back from"):
        rollback(LAUNCH_LATENCY)


def test_rollback_twice_goes_two_champions_back_and_then_says_it_cannot(registry: Path) -> None:
    for number in ("1", "2", "3"):
        add_version(LAUNCH_LATENCY)
        registration.promote(LAUNCH_LATENCY, number)
    assert rollback(LAUNCH_LATENCY) == {"model_name": LAUNCH_LATENCY, "champion": "2", "rolled_back": "3"}
    assert rollback(LAUNCH_LATENCY)["champion"] == "1"
    with pytest.raises(ModelNotFoundError, match="version 1 has no champion before it"):
        rollback(LAUNCH_LATENCY)
    assert alias_version(LAUNCH_LATENCY, CHAMPION) == "1"


def test_rollback_never_goes_to_a_version_that_was_rolled_back(registry: Path) -> None:
    for number in ("1", "2"):
        add_version(LAUNCH_LATENCY)
        registration.promote(LAUNCH_LATENCY, number)
    rollback(LAUNCH_LATENCY)
    add_version(LAUNCH_LATENCY)
    registration.promote(LAUNCH_LATENCY, "3")
    assert rollback(LAUNCH_LATENCY)["champion"] == "1"
    registration.promote(LAUNCH_LATENCY, "2")
    assert rollback(LAUNCH_LATENCY)["champion"] == "1"


def test_rollback_knows_a_champion_that_a_reviewer_set_in_the_ui(registry: Path) -> None:
    for _ in range(3):
        add_version(LAUNCH_LATENCY)
    registration.promote(LAUNCH_LATENCY, "1")
    connect().set_registered_model_alias(LAUNCH_LATENCY, CHAMPION, "2")
    registration.promote(LAUNCH_LATENCY, "3")
    assert rollback(LAUNCH_LATENCY)["champion"] == "2"
    assert rollback(LAUNCH_LATENCY)["champion"] == "1"


def test_rollback_passes_over_a_version_that_was_deleted(registry: Path) -> None:
    for number in ("1", "2", "3"):
        add_version(LAUNCH_LATENCY)
        registration.promote(LAUNCH_LATENCY, number)
    connect().delete_model_version(LAUNCH_LATENCY, "2")
    assert rollback(LAUNCH_LATENCY)["champion"] == "1"


def test_person_promotes_a_held_version_and_that_is_said(registry: Path) -> None:
    add_version(LAUNCH_LATENCY, gate="hold", review="pending")
    answer = registration.promote(LAUNCH_LATENCY, "1")
    assert answer == {"model_name": LAUNCH_LATENCY, "champion": "1", "gate": "hold"}
    tags = connect().get_model_version(LAUNCH_LATENCY, "1").tags
    assert tags["promoted_by"] == "person"
    assert "review" not in tags


def test_two_versions_are_compared_by_number_or_alias(world: Path, latency_bundle: str) -> None:
    register(latency_bundle)
    answer = registration.compare_versions(LAUNCH_LATENCY, CHAMPION, "2")
    row = next(row for row in answer["metrics"] if row["metric"] == "rmse_us")
    assert row[CHAMPION] == row["2"] > 0


def test_comparison_says_what_each_version_was_judged_on(world: Path, latency_bundle: str) -> None:
    apply_gate(latency_bundle, register(latency_bundle))
    register(latency_bundle)
    judged, unjudged = registration.compare_versions(LAUNCH_LATENCY, "2", "3")["sides"]
    rows = pl.read_parquet(Path(latency_bundle) / "gate" / "rows.parquet").height
    assert (judged["version"], judged["gate"], judged["judged_rows"]) == ("2", "promote", rows)
    assert len(judged["test_set_sha256"]) == 64
    assert judged["data_versions"] == unjudged["data_versions"] == versions()[0]["data_versions"]
    assert (unjudged["gate"], unjudged["judged_rows"], unjudged["test_set_sha256"]) == (None, None, None)
    first = registration.compare_versions(LAUNCH_LATENCY, "1", "2")["sides"][0]
    assert first["test_set_sha256"] == judged["test_set_sha256"]
    for path in (world / "mlruns" / "artifacts").rglob("gate.json"):
        path.unlink()
    lost = registration.compare_versions(LAUNCH_LATENCY, "1", "2")["sides"][0]
    assert (lost["gate"], lost["judged_rows"]) == ("promote", None)


def test_longer_words_than_a_tag_or_description_holds_are_cut(
    registry: Path, latency_bundle: str, tmp_path: Path, make: Any
) -> None:
    long = make.bundle(latency_bundle, tmp_path, headline="h" * 20_000)
    verdict = apply_gate(long, register(long))
    assert verdict["outcome"] == "promote"
    stored = connect().get_model_version(LAUNCH_LATENCY, "1")
    assert len(stored.tags["headline"]) == len(stored.description) == 5000
    assert stored.tags["headline"].endswith("…")


# Failures in the middle


def test_model_that_cannot_be_logged_leaves_a_failed_run_and_no_version(
    registry: Path, latency_bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    import mlflow

    def fail(**_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(mlflow.pyfunc, "log_model", fail)
    with pytest.raises(ServiceUnavailableError, match=r"No space left.*launch-latency was not registered"):
        register(latency_bundle)
    assert versions() == []
    client = connect()
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT)
    assert [run.info.status for run in client.search_runs([experiment.experiment_id])] == ["FAILED"]


def test_version_that_cannot_be_made_leaves_none_and_the_next_registration_is_whole(
    registry: Path, latency_bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    def fail(*_: Any, **__: Any) -> None:
        raise MlflowException("database is locked")

    with monkeypatch.context() as patch:
        patch.setattr(MlflowClient, "create_model_version", fail)
        with pytest.raises(ServiceUnavailableError, match="database is locked"):
            register(latency_bundle)
    assert versions() == []
    assert alias_version(LAUNCH_LATENCY, CHALLENGER) is None
    assert register(latency_bundle).version == "1"


def test_version_that_the_gate_never_judged_counts_as_not_trained(
    registry: Path, latency_bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    facts = json.loads((Path(latency_bundle) / "bundle.json").read_text())
    key = facts["data_versions"], facts["settings_sha256"]
    made = register(latency_bundle)
    assert registration.already_trained(LAUNCH_LATENCY, *key) is None
    assert "not judged" in registration.list_versions()["models"][0]["no_champion_because"]

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(registration, "_promote", killed)
        with pytest.raises(KeyboardInterrupt):
            apply_gate(latency_bundle, made)
    assert registration.already_trained(LAUNCH_LATENCY, *key) is None
    apply_gate(latency_bundle, made)
    assert registration.already_trained(LAUNCH_LATENCY, *key) == "1"


def test_same_data_and_settings_are_found_and_others_are_not(world: Path, latency_bundle: str) -> None:
    facts = json.loads((Path(latency_bundle) / "bundle.json").read_text())
    data, settings = facts["data_versions"], facts["settings_sha256"]
    assert registration.already_trained(LAUNCH_LATENCY, data, settings) == "1"
    assert registration.already_trained(LAUNCH_LATENCY, dict(reversed(data.items())), settings) == "1"
    assert registration.already_trained(LAUNCH_LATENCY, data | {"launches": 2}, settings) is None
    assert (
        registration.already_trained(LAUNCH_LATENCY, data | {"launches.table": "another"}, settings) is None
    )
    assert registration.already_trained(LAUNCH_LATENCY, data, "other settings") is None
    assert registration.already_trained(DOC_QUALITY, data, settings) is None


# Many at once, and many


def _register_in_a_process(bundle: str, answers: Any) -> None:
    answers.put(register(bundle).version)


@pytest.mark.slow
def test_two_registrations_at_once_both_land_with_versions_of_their_own(
    project: Path, latency_bundle: str
) -> None:
    # Neither the database nor the experiment nor the model is there: both make them.
    spawned = multiprocessing.get_context("spawn")
    answers = spawned.Queue()
    both = [spawned.Process(target=_register_in_a_process, args=(latency_bundle, answers)) for _ in range(2)]
    for process in both:
        process.start()
    for process in both:
        process.join(120)
    assert [process.exitcode for process in both] == [0, 0]
    assert {answers.get(timeout=5), answers.get(timeout=5)} == {"1", "2"}
    assert [row["version"] for row in versions()] == ["2", "1"]
    assert alias_version(LAUNCH_LATENCY, CHALLENGER) in ("1", "2")
    for version in ("1", "2"):
        assert "model.txt" in registration.model_files(LAUNCH_LATENCY, version)


def test_more_versions_than_a_page_are_all_there(registry: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "PAGE_ROWS", 3)
    for number in range(8):
        add_version(
            LAUNCH_LATENCY, data_versions=f'{{"launches": {number}}}', settings_sha256="s", gate="promote"
        )
    registration.promote(LAUNCH_LATENCY, "1")
    listed = registration.list_versions()["models"][0]
    assert listed["champion"] == "1"
    assert [row["version"] for row in listed["versions"]] == [str(number) for number in range(8, 0, -1)]
    assert registration.already_trained(LAUNCH_LATENCY, {"launches": 0}, "s") == "1"
    with pytest.raises(ModelNotFoundError, match="known versions: 8, 7, 6, 5, 4, 3, 2, 1"):
        registration.data_versions(LAUNCH_LATENCY, "9")


def test_registered_is_what_passes_between_tasks() -> None:
    import pickle

    made = Registered(LAUNCH_LATENCY, "1", "run")
    assert pickle.loads(pickle.dumps(made)) == made  # noqa: S301 - Prefect passes it between tasks so
