"""What trainings took and gained, as the registry keeps it."""

from pathlib import Path
from typing import Any

import pytest

from tasks import attempts, costs, leases, registration
from tasks.presentation import render
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY


def test_first_versions_have_a_cost_and_nothing_to_gain_on(world: Path) -> None:
    told = costs.retraining_costs()
    assert {(row["model_name"], row["version"]) for row in told["trainings"]} == {
        (LAUNCH_LATENCY, "1"),
        (DOC_QUALITY, "1"),
    }
    for row in told["trainings"]:
        assert row["cpu_s"] > 0
        assert row["wall_s"] > 0
        assert (row["gpu_energy_j"], row["error_before"], row["gain_ratio"]) == (None, None, None)
        assert row["no_energy_because"]
        assert row["error_after"] > 0
        assert row["reason"] == "test"


def test_gain_compares_with_the_champion_on_the_same_rows(
    world: Path, latency_bundle: str, wrong_bundle: str
) -> None:
    registration.promote(LAUNCH_LATENCY, registration.register(wrong_bundle).version)
    better = registration.register(latency_bundle)
    verdict = registration.apply_gate(latency_bundle, better)
    assert verdict["outcome"] == "promote"
    row = next(row for row in costs.retraining_costs()["trainings"] if row["version"] == better.version)
    assert row["error_before"] == pytest.approx(verdict["figures"]["champion_metric"])
    assert row["error_after"] == pytest.approx(verdict["figures"]["challenger_metric"])
    assert row["gain_ratio"] == pytest.approx(1 - row["error_after"] / row["error_before"])
    assert row["metric"] == "rmse_us"


def test_failed_retraining_is_listed_and_counted(world: Path) -> None:
    with (
        pytest.raises(RuntimeError),
        leases.hold(attempts.training_job(LAUNCH_LATENCY)),
        attempts.attempt(LAUNCH_LATENCY, "episode/1"),
    ):
        raise RuntimeError("out of memory")
    told = costs.retraining_costs()
    (failed,) = [row for row in told["trainings"] if row["outcome"] == "failed"]
    assert (failed["model_name"], failed["version"]) == (LAUNCH_LATENCY, None)
    assert "out of memory" in failed["reason"]
    assert failed["wall_s"] >= 0
    (total,) = [row for row in told["totals"] if row["model_name"] == LAUNCH_LATENCY]
    assert (total["trainings"], total["failed"], total["promoted"]) == (2, 1, 1)


def test_version_of_an_older_release_has_no_cost(world: Path) -> None:
    from tasks.tracking import connect

    client = connect()
    for tag in ("cost", "gain"):
        client.delete_model_version_tag(LAUNCH_LATENCY, "1", tag)
    told: dict[str, Any] = costs.retraining_costs()
    row = next(row for row in told["trainings"] if row["model_name"] == LAUNCH_LATENCY)
    assert (row["wall_s"], row["gain_ratio"], row["outcome"]) == (None, None, "promote")
    assert "launch-latency" in render("models", told)
