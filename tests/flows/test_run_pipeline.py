"""The main job as a whole: what it leaves behind, twice, and when a step fails."""

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from prefect import Task

from flows import collect_sources, train_docquality, train_latency
from flows.run_pipeline import run_pipeline
from tasks.presentation import exit_code, render
from tasks.registration import list_versions, version_facts
from tasks.storage import Store
from tests.fakes import write_launches

pytestmark = pytest.mark.usefixtures("prefect_server")


def versions() -> dict[str, int]:
    return {model["model_name"]: len(model["versions"]) for model in list_versions()["models"]}


def test_main_job_leaves_champions_and_a_second_one_changes_nothing(chain: dict[str, list[str]]) -> None:
    first = run_pipeline(**chain)
    assert first["champions"] == {"launch-latency": "1", "doc-quality": "1"}
    assert {row["table"]: row["rows"] for row in first["tables"]} == {
        "launches": 400,
        "documents": 160,
        "labels": 160,
        "gpu_samples": 0,
    }
    assert [verdict["outcome"] for verdict in first["models"]] == ["promote", "promote"]
    assert exit_code(first) == 0
    shown = render("run", first)
    for expected in ("launch-latency version 1", "doc-quality version 1", "mlflow ui", "utilization_p95"):
        assert expected in shown

    data_versions = {
        name: Store().version(name) for name in ("launches", "documents", "labels", "quarantine")
    }
    second = run_pipeline(**chain)
    assert [row["added"] for row in second["tables"]] == [0, 0, 0, 0]
    assert all("same data" in verdict["why"] for verdict in second["models"])
    assert versions() == {"launch-latency": 1, "doc-quality": 1}
    assert data_versions == {
        name: Store().version(name) for name in ("launches", "documents", "labels", "quarantine")
    }
    assert "not retrained" in render("run", second)


def test_simulated_launches_are_said_loudly_and_never_promoted(
    chain: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    from warpgauge.launches import simulator

    whole = simulator.simulate_launches
    monkeypatch.setattr(
        simulator, "simulate_launches", lambda seed: whole(seed, lengths=range(1, 60, 3), trials=3)
    )
    result = run_pipeline(launches=None, documents=chain["documents"])
    assert "SIMULATED" in result["launch_source"]
    assert result["champions"]["launch-latency"] is None
    latency = result["models"][0]
    assert latency["outcome"] == "refuse"
    assert "--allow-simulated" in " ".join(latency["reasons"])
    # Nothing went wrong: a version of simulated rows is withheld by design.
    assert exit_code(result) == 0
    decisions = {row["signal"]: row["reason"] for row in result["monitor"]["decisions"]}
    assert "no champion" in decisions["residuals"]

    allowed = train_latency.train_latency(allow_simulated=True)
    assert allowed["outcome"] == "promote"
    assert "simulated" in " ".join(allowed["reasons"])


REQUIRED: list[tuple[Task[..., Any], str]] = [
    (collect_sources.collect_launches, "collect launches"),
    (collect_sources.collect_documents, "collect documents"),
    (collect_sources.validate_tables, "validate tables"),
    (train_latency.plan, "plan latency"),
    (train_latency.train, "train latency"),
    (train_docquality.train, "train docquality"),
    (train_latency.register, "register latency"),
]


@pytest.mark.parametrize(("step", "name"), REQUIRED, ids=[name for _, name in REQUIRED])
def test_failing_required_step_fails_the_flow_and_registers_nothing(
    chain: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch, step: Task[..., Any], name: str
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError(f"injected into {name}")

    monkeypatch.setattr(step, "fn", fail)
    monkeypatch.setattr(step, "retries", 0)
    state = run_pipeline(**chain, return_state=True)
    assert state.is_failed()
    assert f"injected into {name}" in str(state.message)
    assert versions() == {"launch-latency": 0, "doc-quality": 0}


def test_failing_gate_fails_the_flow_and_promotes_nothing(
    chain: dict[str, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("injected into the gate")

    monkeypatch.setattr(train_latency.gate, "fn", fail)
    assert run_pipeline(**chain, return_state=True).is_failed()
    assert [model["champion"] for model in list_versions()["models"]] == [None, None]


def test_refused_file_beside_a_good_one_is_named_and_the_job_goes_on(
    chain: dict[str, list[str]], project: Path
) -> None:
    bad = project / "cut.csv.gz"
    bad.write_bytes(b"\x1f\x8b\x08\x00cut")
    result = run_pipeline(launches=[*chain["launches"], str(bad)], documents=chain["documents"])
    assert exit_code(result) == 3
    assert "cut.csv.gz" in " ".join(result["refused"])
    assert result["champions"]["launch-latency"] == "1"


def test_unavailable_telemetry_is_no_failure(chain: dict[str, list[str]]) -> None:
    result = collect_sources.collect_sources(**chain)
    assert result["collected"]["gpu_samples"]["unavailable"]
    assert result["collected"]["launches"]["added"] == 400


def test_drifted_launches_retrain_once_and_the_new_version_is_promoted(
    chain: dict[str, list[str]], project: Path
) -> None:
    from flows.collect_launches import collect_launches
    from flows.monitor_drift import monitor_drift

    run_pipeline(**chain)
    slower = write_launches(project, range(1, 101), trials=4, us_per_node=0.7, seed=1)
    collect_launches([str(slower)])
    monitored = monitor_drift()
    residuals = next(row for row in monitored["decisions"] if row["signal"] == "residuals")
    assert residuals["action"] == "retrain"
    assert [order["model_name"] for order in monitored["retrained"]] == ["launch-latency"]
    assert versions()["launch-latency"] == 2
    assert monitored["retrained"][0]["outcome"].startswith("promote")
    again = monitor_drift()
    assert again["retrained"] == []
    assert versions()["launch-latency"] == 2


def test_training_on_its_own_does_not_learn_from_rows_that_fail_validation(
    chain: dict[str, list[str]],
) -> None:
    from flows.collect_launches import collect_launches

    collect_launches(chain["launches"])
    store = Store()
    rows = store.read("launches").collect()
    impossible = rows.head(5).with_columns(
        pl.concat_str(pl.lit("bad-"), "launch_id").alias("launch_id"),
        pl.lit(-5.0).alias("first_launch_api_us"),
    )
    store.append("launches", impossible)
    result = train_latency.train_latency()
    assert result["outcome"] == "promote"
    assert store.read("quarantine").collect().height == 5
    assert version_facts("launch-latency", result["version"])["counts"]["rows"] == 400
