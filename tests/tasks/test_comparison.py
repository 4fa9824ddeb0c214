"""The gate's rows: champion and challenger answer the same ones, or a reviewer is asked."""

import dataclasses
import shutil
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import comparison, registration, tracking
from tasks.bundles import bundle_facts
from tasks.registration import apply_gate, promote, register
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY


def reasons(verdict: Any) -> str:
    return "; ".join(verdict.reasons)


def judge_bundle(bundle: Path, version: str, champion: str | None, *, allow_simulated: bool) -> Any:
    """The verdict on a bundle against that champion."""
    found = registration.yardstick(bundle_facts(bundle)["model_name"])
    assert (found and found.version) == champion
    return comparison.judge_bundle(bundle, version, found, allow_simulated)


def champion_of(bundle: str) -> str:
    """Registers the bundle and makes it champion."""
    made = register(bundle)
    promote(made.model_name, made.version)
    return made.version


def test_first_version_is_judged_against_its_baseline(
    registry: Path, latency_bundle: str, docquality_bundle: str
) -> None:
    for bundle in (latency_bundle, docquality_bundle):
        verdict = judge_bundle(Path(bundle), "1", None, allow_simulated=False)
        assert verdict.outcome == "promote"
        assert "first version, beats its baseline" in reasons(verdict)


def test_first_version_worse_than_its_baseline_is_refused(registry: Path, wrong_bundle: str) -> None:
    verdict = judge_bundle(Path(wrong_bundle), "1", None, allow_simulated=False)
    assert verdict.outcome == "refuse"
    assert "does not beat its baseline" in reasons(verdict)


def test_equal_challenger_is_promoted(world: Path, latency_bundle: str, docquality_bundle: str) -> None:
    for bundle in (latency_bundle, docquality_bundle):
        made = register(bundle)
        verdict = apply_gate(bundle, made)
        assert verdict["outcome"] == "promote"
        assert verdict["figures"]["ratio"] == 1
        assert "loss ratio 1.000 (1.000 to 1.000)" in verdict["reasons"][0]
        assert registration.alias_version(made.model_name, "champion") == made.version == "2"


def test_worse_challenger_is_refused_and_the_champion_stays(world: Path, wrong_bundle: str) -> None:
    made = register(wrong_bundle)
    verdict = apply_gate(wrong_bundle, made)
    assert verdict["outcome"] == "refuse"
    assert "worse: rmse_us" in verdict["reasons"][0]
    assert verdict["refused"] == [f"gate: launch-latency version 2: {'; '.join(verdict['reasons'])}"]
    assert registration.alias_version(LAUNCH_LATENCY, "champion") == "1"
    row = registration.list_versions()["models"][0]["versions"][0]
    assert (row["version"], row["gate"], row["review"]) == ("2", "refuse", None)
    assert row["reasons"] == "; ".join(verdict["reasons"])


def test_champion_answers_the_challengers_rows_itself(
    world: Path, wrong_bundle: str, latency_bundle: str
) -> None:
    assert champion_of(wrong_bundle) == "2"
    verdict = judge_bundle(Path(latency_bundle), "3", "2", allow_simulated=False)
    assert verdict.outcome == "promote"
    assert "better" in reasons(verdict)
    # Not the figure of its own training, but its error on these rows.
    stored = registration.version_facts(LAUNCH_LATENCY, "2")["metrics"]["gate_rmse_us"]
    assert verdict.figures["champion_metric"] > 2 * stored
    assert verdict.figures["champion_rows"] == verdict.figures["challenger_rows"]


def test_simulated_version_is_promoted_only_where_the_run_says_so(
    registry: Path, latency_bundle: str, tmp_path: Path, make: Any
) -> None:
    simulated = make.bundle(latency_bundle, tmp_path, is_simulated=True, provenance="simulated")
    made = register(simulated)
    verdict = apply_gate(simulated, made)
    assert verdict["outcome"] == "refuse"
    assert "--allow-simulated" in verdict["reasons"][0]
    assert registration.alias_version(LAUNCH_LATENCY, "champion") is None
    assert apply_gate(simulated, made, allow_simulated=True)["outcome"] == "promote"
    assert registration.alias_version(LAUNCH_LATENCY, "champion") == "1"
    assert registration.list_versions()["models"][0]["versions"][0]["provenance"] == "simulated"


def test_simulated_challenger_never_replaces_a_measured_champion_by_itself(
    world: Path, latency_bundle: str, tmp_path: Path, make: Any
) -> None:
    simulated = make.bundle(latency_bundle, tmp_path, is_simulated=True)
    verdict = judge_bundle(Path(simulated), "2", "1", allow_simulated=True)
    assert verdict.outcome == "hold"
    assert "trained on measured rows" in reasons(verdict)


def test_champion_of_another_target_is_no_yardstick(
    registry: Path, latency_bundle: str, tmp_path: Path, make: Any
) -> None:
    from warpgauge.latency.launch_scheme import LaunchScheme
    from warpgauge.latency.model import LatencyModel

    model = LatencyModel.from_files(make.model_files(latency_bundle))
    scheme = LaunchScheme(target="launch_api_us")
    other = dataclasses.replace(model, baseline=dataclasses.replace(model.baseline, scheme=scheme)).to_files()
    champion_of(make.bundle(latency_bundle, tmp_path, other, target="launch_api_us"))
    made = register(latency_bundle)
    verdict = apply_gate(latency_bundle, made)
    assert verdict["outcome"] == "hold"
    said = "; ".join(verdict["reasons"])
    assert "re-evaluate the champion 1" in said
    assert "version 1 predicts launch_api_us, the rows are judged by first_launch_api_us" in said
    assert registration.alias_version(LAUNCH_LATENCY, "champion") == "1"
    assert registration.list_versions()["models"][0]["versions"][0]["review"] == "pending"


def test_champion_of_another_encoder_is_no_yardstick(
    registry: Path, docquality_bundle: str, tmp_path: Path, make: Any
) -> None:
    from warpgauge.docquality.model import DocQualityModel

    model = DocQualityModel.from_files(make.model_files(docquality_bundle))
    other = dataclasses.replace(model, encoder_id="of another encoder").to_files()
    champion_of(make.bundle(docquality_bundle, tmp_path, other))
    verdict = judge_bundle(Path(docquality_bundle), "2", "1", allow_simulated=False)
    assert verdict.outcome == "hold"
    assert "champion 1 cannot be evaluated on these rows: embeddings come from encoder" in reasons(verdict)


@pytest.mark.parametrize("what", ["model.txt", "model.json", "training.json", "everything"])
def test_champion_whose_files_are_damaged_asks_for_a_reviewer(
    world: Path, latency_bundle: str, what: str
) -> None:
    tracking.connect()
    artifacts = world / "mlruns" / "artifacts"
    if what == "everything":
        shutil.rmtree(artifacts)
    else:
        for path in artifacts.rglob(what):
            path.write_bytes(path.read_bytes()[:100])
    verdict = judge_bundle(Path(latency_bundle), "2", "1", allow_simulated=False)
    assert verdict.outcome == "hold"
    assert "champion 1 cannot be evaluated on these rows" in reasons(verdict)


def test_version_without_held_out_launches_is_refused(
    registry: Path, latency_bundle: str, tmp_path: Path, make: Any
) -> None:
    empty = make.bundle(latency_bundle, tmp_path)
    for file in ("rows.parquet", "baseline.parquet"):
        path = Path(empty) / "gate" / file
        pl.read_parquet(path).head(0).write_parquet(path)
    verdict = judge_bundle(Path(empty), "1", None, allow_simulated=False)
    assert verdict.outcome == "refuse"
    assert "judged on 0 held-out rows" in reasons(verdict)


def test_too_few_held_out_documents_are_refused(
    registry: Path, docquality_bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_GATE_MINIMUM_ROWS", "500")
    verdict = judge_bundle(Path(docquality_bundle), "1", None, allow_simulated=False)
    assert verdict.outcome == "refuse"
    assert "500 are needed" in reasons(verdict)


def test_large_model_asks_for_a_reviewer(
    registry: Path, latency_bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_GATE_MODEL_SIZE_LIMIT_MB", "0.001")
    verdict = judge_bundle(Path(latency_bundle), "1", None, allow_simulated=False)
    assert verdict.outcome == "hold"
    assert "over the limit of 0.001 MB" in reasons(verdict)


def test_slices_and_tail_of_both_are_in_the_verdict(world: Path, latency_bundle: str) -> None:
    figures = judge_bundle(Path(latency_bundle), "2", "1", allow_simulated=False).figures
    assert {name for name in figures if name.startswith("slice.topology")} == {
        "slice.topology=straight_line",
        "slice.topology=parallel_lines",
    }
    assert figures["challenger_tail"] == figures["champion_tail"] > 0
    assert 0 < figures["challenger_size_mb"] < 1.2


def test_verdict_names_the_version_it_is_of(world: Path, docquality_bundle: str) -> None:
    verdict = judge_bundle(Path(docquality_bundle), "5", "1", allow_simulated=False)
    assert f"{DOC_QUALITY} version 5" in reasons(verdict)
    assert verdict.figures["champion_version"] == "1"
