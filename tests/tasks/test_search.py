"""The search for settings of the trees: remembered trial by trial, the same whenever it is asked for again."""

import os
import shutil
import signal
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import optuna
import polars as pl
import pytest

from tasks import registration, training
from tasks import search as searching
from tasks.bundles import bundle_facts
from tasks.search import search_boosting
from tasks.storage import Store, cache_dir
from tasks.tracking import connect, experiment_id
from tasks.training import plan_training
from tests.fakes import write_kernel_spec, write_kernels
from warpgauge.errors import ServiceUnavailableError, SettingsError
from warpgauge.latency.fitting import Boosting
from warpgauge.latency.table_spec import TableSpec, read_table_spec
from warpgauge.source_file import read_source_file

ROOT = Path(__file__).parents[2]
DEFAULT = Boosting(trees=5, leaves=15, learning_rate=0.3, early_stopping_rounds=5)
ABOUT = {"model_name": "latency-tiny", "settings": {"latency_seed": 0}}


@pytest.fixture
def kernels(registry: Path) -> tuple[TableSpec, pl.DataFrame]:
    """A spec and 200 rows of its table."""
    return described(registry / "specs")


def described(folder: Path) -> tuple[TableSpec, pl.DataFrame]:
    spec = read_table_spec(write_kernel_spec(folder))
    path = write_kernels(folder, 200)
    return spec, spec.rows(pl.read_csv(path), read_source_file(path))[0]


def search(
    kernels: tuple[TableSpec, pl.DataFrame], trials: int, *, seed: int = 0
) -> tuple[Any, dict[str, Any]]:
    spec, rows = kernels
    return search_boosting(spec.scheme, rows, DEFAULT, trials, about=ABOUT, seed=seed, threads=1)


def logged() -> list[tuple[int, str, float, dict[str, str]]]:
    """Number, state, error and settings of each trial that MLflow holds."""
    client = connect()
    runs = client.search_runs([experiment_id(client)], "tags.role = 'trial'")
    assert all(run.info.status == "FINISHED" for run in runs)
    found = [
        (int(run.data.tags["trial"]), run.data.tags["state"], run.data.metrics["mape_ratio"], run.data.params)
        for run in runs
    ]
    return sorted(found, key=lambda trial: trial[0])


def test_each_trial_is_a_run_and_the_first_one_is_the_settings_in_use(kernels: Any) -> None:
    best, about = search(kernels, 3)
    trials = logged()
    assert [number for number, *_ in trials] == [0, 1, 2]
    first = trials[0][3]
    assert {name: first[name] for name in ("trees", "leaves", "learning_rate", "max_bin", "lambda_l2")} == {
        "trees": "5",
        "leaves": "15",
        "learning_rate": "0.3",
        "max_bin": "255",
        "lambda_l2": "10.0",
    }
    errors = [error for _, _, error, _ in trials]
    assert (about["default_value"], about["best_value"]) == (errors[0], min(errors))
    assert (about["trial_count"], about["metric"]) == (3, "mape_ratio")
    assert about["best_trial"] == errors.index(min(errors))
    assert trials[about["best_trial"]][3]["leaves"] == str(best.leaves)
    assert best.trees == DEFAULT.trees


def test_search_that_is_asked_for_again_tries_nothing_and_more_trials_go_on(kernels: Any) -> None:
    first = search(kernels, 2)
    assert search(kernels, 2) == first
    assert len(logged()) == 2
    search(kernels, 4)
    assert len(logged()) == 4
    # Fewer than there are: as if the others had not been made.
    assert search(kernels, 2) == first


def test_another_seed_and_other_rows_are_another_search(kernels: Any) -> None:
    spec, rows = kernels
    studies = [search(kernels, 2, seed=seed)[1]["study"] for seed in (0, 1)]
    studies.append(search((spec, rows.head(150)), 2)[1]["study"])
    assert len(set(studies)) == 3
    trials = logged()
    assert [number for number, *_ in trials] == [0, 0, 0, 1, 1, 1]
    # All begin with the settings in use, and go on with what the seed says.
    assert len({str(settings) for *_, settings in trials[:3]}) == 1
    assert len({str(settings) for *_, settings in trials[3:]}) == 2


KILLED_SEARCH = """
import os, signal, sys
from pathlib import Path
from tasks import search as searching
from tests.tasks import test_search as test

moment = sys.argv[1]
die = lambda: os.kill(os.getpid(), signal.SIGKILL)
whole, log = searching.fold_metrics, searching._log_trial
begun = 0

def fold_metrics(*arguments, **options):
    global begun
    begun += 1
    for number, value in enumerate(whole(*arguments, **options)):
        if (moment, begun, number) in (("in-the-first", 1, 1), ("in-the-second", 2, 0)):
            die()
        yield value

def log_trial(model, study, metric, number, *rest):
    if moment == "before-the-log" and number == 1:
        die()
    if moment == "within-the-log" and number == 1:
        from mlflow import MlflowClient
        MlflowClient.log_metric = lambda *a: die()
    log(model, study, metric, number, *rest)

searching.fold_metrics, searching._log_trial, searching.UNPRUNED_TRIALS = fold_metrics, log_trial, 1
test.search(test.described(Path(sys.argv[2])), 5)
"""
MOMENTS = {"in-the-first": 0, "in-the-second": 1, "before-the-log": 1, "within-the-log": 2}


def test_killed_search_goes_on_to_the_trials_of_an_undisturbed_one(
    kernels: Any, registry: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stores = {}
    for moment in MOMENTS:
        stores[moment] = registry / moment
        (stores[moment] / "mlruns").mkdir(parents=True)
        shutil.copy(registry / "mlruns" / "mlflow.db", stores[moment] / "mlruns" / "mlflow.db")
    monkeypatch.setattr(searching, "UNPRUNED_TRIALS", 1)
    undisturbed = search(kernels, 5)
    trials = logged()
    assert {state for _, state, *_ in trials} == {"complete", "pruned"}

    def environment(store: Path) -> dict[str, str]:
        return {
            "WARPGAUGE_DATA_DIR": str(store / "data"),
            "WARPGAUGE_MLFLOW_URI": f"sqlite:///{store / 'mlruns' / 'mlflow.db'}",
        }

    # All at once: most of each second is the start of Python.
    killed = {
        moment: subprocess.Popen(
            [sys.executable, "-c", KILLED_SEARCH, moment, str(store / "specs")],
            cwd=ROOT,
            env=os.environ | environment(store),
        )
        for moment, store in stores.items()
    }
    for moment, process in killed.items():
        assert process.wait(120) == -signal.SIGKILL, moment
        for name, value in environment(stores[moment]).items():
            monkeypatch.setenv(name, value)
        with sqlite3.connect(stores[moment] / "mlruns" / "mlflow.db") as database:
            count = database.execute("SELECT count(*) FROM tags WHERE key = 'role'").fetchone()[0]
        assert count == MOMENTS[moment], moment
        assert search(kernels, 5) == undisturbed, moment
        assert logged() == trials, moment


def test_trials_that_cannot_be_kept_are_said(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    _, about = search(kernels, 1)
    database = cache_dir("searches") / f"{about['study']}.db"
    with sqlite3.connect(database) as opened:
        opened.execute(
            "CREATE TRIGGER full BEFORE INSERT ON trials BEGIN SELECT RAISE(ABORT, 'disk full'); END"
        )
    with pytest.raises(
        ServiceUnavailableError, match=r"trials of the search cannot be kept.*--trials 0"
    ) as caught:
        search(kernels, 2)
    assert caught.value.exit_code == 3
    database.write_bytes(b"no database" * 100)
    with pytest.raises(ServiceUnavailableError, match=r"cannot be kept: .*file is not a database"):
        search(kernels, 2)
    database.unlink()
    database.mkdir()
    with pytest.raises(ServiceUnavailableError, match="cannot be kept"):
        search(kernels, 2)
    Path(Store().address).rename(Path(Store().address).with_name("away"))
    Path(Store().address).write_text("a file where the folder should be")
    with pytest.raises(ServiceUnavailableError, match="cache"):
        search(kernels, 2)


def test_registry_that_is_away_costs_no_trial(kernels: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.environ["WARPGAUGE_MLFLOW_URI"]
    monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", "sqlite:////dev/null/mlflow.db")
    with pytest.raises(ServiceUnavailableError, match=r"MLflow store .* did not answer"):
        search(kernels, 2)
    monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", whole)
    search(kernels, 2)
    assert [number for number, *_ in logged()] == [0, 1]


def test_training_searches_first_and_says_what_it_found(tiny: Path) -> None:
    plan = plan_training("latency-tiny", table=str(tiny), trials=2)
    assert (plan["skip"], plan["settings"]["latency_trials"]) == (False, 2)
    facts = bundle_facts(Path(training.train_latency(plan, "test")))
    found = facts["search"]
    assert (found["trial_count"], found["metric"]) == (2, "mape_ratio")
    assert found["best_value"] <= found["default_value"]
    assert any(note.startswith("2 settings of the trees tried: mape_ratio 0.0") for note in facts["notes"])
    trial = logged()[found["best_trial"]][3]
    assert (trial["leaves"], trial["max_bin"]) == (
        str(facts["boosting"]["leaves"]),
        str(facts["boosting"]["max_bin"]),
    )
    assert registration.version_facts("latency-tiny", "1")["search"] is None


def test_trials_that_are_no_count_are_refused(tiny: Path) -> None:
    for trials in (-1, 10_001):
        with pytest.raises(SettingsError, match="latency_trials"):
            plan_training("latency-tiny", table=str(tiny), trials=trials)


def test_settings_beyond_the_search_are_given_back_as_they_are_where_they_win(kernels: Any) -> None:
    spec, rows = kernels
    beyond = DEFAULT.changed({"leaves": 255, "learning_rate": 0.5, "max_bin": 1023})
    best, about = search_boosting(spec.scheme, rows, beyond, 1, about=ABOUT, seed=0, threads=1)
    assert about["best_trial"] == 0
    assert best == beyond
    assert logged()[0][3]["leaves"] == "255"
    # The sampler learns from it too, as from the nearest settings that it may ask for.
    study = optuna.load_study(
        study_name=about["study"], storage=f"sqlite:///{cache_dir('searches') / about['study']}.db"
    )
    assert study.trials[0].params["leaves"] == 127
