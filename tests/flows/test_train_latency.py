"""The model of a latency table through its flows: collected, trained, watched, retrained, and when it is not."""

from pathlib import Path
from typing import Any

import pytest

from flows.collect_sources import collect_sources
from flows.collect_table import collect_table
from flows.monitor_drift import monitor_drift
from flows.run_pipeline import run_pipeline
from flows.train_latency import train_latency
from tasks import attempts, deployment, leases
from tasks.presentation import exit_code, render
from tasks.registration import alias_version, list_versions, version_facts
from tests.fakes import write_kernel_spec, write_kernels, write_launches
from warpgauge.errors import ServiceUnavailableError, SettingsError

pytestmark = pytest.mark.usefixtures("prefect_server", "quick")
MODEL = "latency-tiny"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few trees on one thread, no pictures, and no automation that would start a training elsewhere."""
    from warpgauge.latency import explanation_plots, plots

    monkeypatch.setattr(deployment, "server_url", lambda: None)
    monkeypatch.setattr(plots, "draw_training", lambda *_: {})
    monkeypatch.setattr(explanation_plots, "draw_explanations", lambda *_: {})
    for name, value in {"THREADS": "1", "LATENCY_TREES": "20", "LATENCY_LEARNING_RATE": "0.3"}.items():
        monkeypatch.setenv(f"WARPGAUGE_{name}", value)


@pytest.fixture
def spec(registry: Path, expectations: Path) -> Path:
    """A spec with one file of 600 rows, in an empty store."""
    path = write_kernel_spec(registry / "specs")
    write_kernels(path.parent)
    return path


def champions() -> dict[str, str | None]:
    return {model["model_name"]: model["champion"] for model in list_versions()["models"]}


def test_table_is_collected_trained_and_promoted_in_one_command(spec: Path) -> None:
    (spec.parent / "kernels-cut.csv").write_text("device,dtype,m,n,k,latency\nTest GPU,float16,1,2")
    first = train_latency(table=str(spec))
    assert (first["model_name"], first["version"], first["outcome"]) == (MODEL, "1", "promote")
    # The damaged file stops nothing, and is no secret.
    assert exit_code(first) == 3
    assert "kernels-cut.csv" in first["refused"][0]
    shown = render("train", first)
    assert "latency-tiny version 1: gate says promote" in shown
    assert "mape_ratio" in shown
    assert "REFUSED: " in shown

    (spec.parent / "kernels-cut.csv").unlink()
    again = train_latency(table=str(spec))
    assert (again["skip"], exit_code(again)) == (True, 0)
    assert "not retrained: version 1 was trained on the same data (latency_tiny version 1)" in render(
        "train", again
    )
    assert champions() == {"launch-latency": None, "doc-quality": None, MODEL: "1"}
    with (
        leases.hold(attempts.training_job(MODEL)),
        pytest.raises(ServiceUnavailableError, match="'train latency-tiny' is already running"),
    ):
        train_latency(table=str(spec))


def test_drift_of_a_table_retrains_its_model_alone_and_once(spec: Path, project: Path) -> None:
    from flows.collect_launches import collect_launches

    collect_launches([str(write_launches(project, range(1, 101), trials=2))])
    train_latency()
    train_latency(table=str(spec))
    assert monitor_drift()["retrained"] == []
    write_kernels(spec.parent, 400, seed=1, slower=1.5)
    assert collect_table(str(spec))["added"] == 400
    monitored = monitor_drift()
    (retrained,) = monitored["retrained"]
    assert (retrained["model_name"], retrained["signal"], retrained["is_failed"]) == (
        MODEL,
        "residuals",
        False,
    )
    assert retrained["outcome"].startswith("promote: latency-tiny version 2: better: mape_ratio")
    assert exit_code(monitored) == 0
    assert champions() == {"launch-latency": "1", "doc-quality": None, MODEL: "2"}
    facts = version_facts(MODEL, "2")
    assert facts["row_choice"]["way"] == "new"
    assert facts["reason"] == retrained["reason"]
    assert [(one["model_name"], one["outcome"]) for one in attempts.list_attempts()] == [(MODEL, "promoted")]
    assert monitor_drift()["retrained"] == []
    assert alias_version(MODEL, "champion") == "2"


@pytest.mark.slow
def test_retraining_of_a_model_whose_spec_is_gone_fails_and_says_so(spec: Path) -> None:
    train_latency(table=str(spec))
    write_kernels(spec.parent, 400, seed=1, slower=1.5)
    collect_table(str(spec))
    moved = spec.rename(spec.parent / "moved.toml")
    monitored = monitor_drift()
    (retrained,) = monitored["retrained"]
    assert retrained["is_failed"]
    assert exit_code(monitored) == 3
    assert f"retraining of {MODEL}: failed: " in monitored["refused"][0]
    assert f"{spec}: no such file" in monitored["refused"][0]
    # It counts as failed at once, not only when nobody has heard of it for long enough.
    assert [(one["model_name"], one["outcome"]) for one in attempts.list_attempts()] == [(MODEL, "failed")]
    # Trained from where it lies now, it is known by that place.
    assert train_latency(table=str(moved))["outcome"] == "promote"
    assert collect_sources_of_tables()[0]["refused"] == []


def collect_sources_of_tables() -> list[dict[str, Any]]:
    from tasks.collection import collect_known_tables

    return collect_known_tables()


@pytest.mark.slow
def test_order_for_a_model_is_not_filled_with_another_table(spec: Path) -> None:
    train_latency(table=str(spec))
    spec.write_text(spec.read_text().replace('name = "tiny"', 'name = "other"'))
    state = train_latency(table=str(spec), model_name=MODEL, attempt_id="a/1", return_state=True)
    assert state.is_failed()
    with pytest.raises(
        SettingsError, match="describes the table other, which is not the one of latency-tiny"
    ):
        state.result()
    assert [(one["model_name"], one["outcome"]) for one in attempts.list_attempts()] == [(MODEL, "failed")]
    assert list(champions()) == ["launch-latency", "doc-quality", MODEL]


@pytest.mark.slow
def test_main_job_collects_known_tables_and_names_what_is_wrong_with_one(
    spec: Path, chain: dict[str, list[str]]
) -> None:
    train_latency(table=str(spec))
    write_kernels(spec.parent, 20, seed=1)
    collected = collect_sources(**chain)
    assert [(report["table"], report["added"]) for report in collected["known_tables"]] == [
        ("latency_tiny", 20)
    ]
    spec.unlink()
    result = run_pipeline(**chain)
    assert exit_code(result) == 3
    assert [text for text in result["refused"] if f"{MODEL}: {spec}: no such file" in text] == result[
        "refused"
    ]
    assert result["champions"] == {"launch-latency": "1", "doc-quality": "1", MODEL: "1"}
    said = {
        row["subject"]: row["reason"]
        for row in result["monitor"]["decisions"]
        if row["signal"] == "data_quality"
    }
    assert "its spec: " in said[MODEL]
