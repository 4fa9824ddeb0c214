"""From tables to a bundle: what is trained on, when it is not, and that a bundle is whole or absent."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import registration, training
from tasks.bundles import bundle_facts
from tasks.storage import Store, cache_dir
from tasks.training import plan_training, train_docquality, train_latency
from warpgauge.errors import NoDataError, SettingsError, TrainingError
from warpgauge.latency.training import FOLD_RULE
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY
from warpgauge.tables import GPU_SAMPLES, QUARANTINE


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model of few trees, on one thread, without pictures."""
    from warpgauge.latency import plots

    monkeypatch.setattr(plots, "draw_training", lambda _: {})
    for name, value in {"THREADS": "1", "LATENCY_TREES": "5"}.items():
        monkeypatch.setenv(f"WARPGAUGE_{name}", value)


def train(**changes: Any) -> dict[str, Any]:
    """Facts of a launch-latency model trained on the table now."""
    plan = plan_training(LAUNCH_LATENCY, force=True) | changes
    return bundle_facts(Path(train_latency(plan, "test")))


# Plans


def test_nothing_collected_is_said_and_trains_nothing(registry: Path) -> None:
    for name, table in ((LAUNCH_LATENCY, "launches"), (DOC_QUALITY, "documents")):
        with pytest.raises(NoDataError, match=f"table {table} holds no valid row.*collect first"):
            plan_training(name)


def test_table_whose_rows_are_all_in_quarantine_trains_nothing(registry: Path, make: Any) -> None:
    Store().append("launches", make.launches().head(3))
    quarantine(Store().read("launches").collect())
    with pytest.raises(NoDataError, match="holds no valid row"):
        plan_training(LAUNCH_LATENCY)


def quarantine(rows: pl.DataFrame) -> None:
    from warpgauge.tables import LAUNCHES

    refused = pl.DataFrame(
        {
            "table_name": "launches",
            "row_sha256": LAUNCHES.key_hashes(rows),
            "row_key": "{}",
            "check_name": "range",
            "reason": "test",
            "quarantined_at": datetime.now(UTC),
        }
    )
    Store().append("quarantine", QUARANTINE.conform(refused))


def test_same_data_and_settings_are_skipped_with_the_reason(world: Path) -> None:
    for name, tables, model in (
        (LAUNCH_LATENCY, "launches version 1", "latency"),
        (DOC_QUALITY, "documents version 1, labels version 1", "docquality"),
    ):
        plan = plan_training(name)
        assert (plan["skip"], plan["version"]) == (True, "1")
        assert plan["why"] == (
            f"version 1 was trained on the same data ({tables}) and settings; "
            f"`warpgauge train {model} --force` trains again"
        )


def test_force_new_rows_other_settings_and_new_quarantine_are_each_trained_on(
    world: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not plan_training(LAUNCH_LATENCY, force=True)["skip"]
    with monkeypatch.context() as patch:
        patch.setenv("WARPGAUGE_LATENCY_LEAVES", "15")
        assert not plan_training(LAUNCH_LATENCY)["skip"]
    with monkeypatch.context() as patch:
        patch.setenv("WARPGAUGE_DOCQUALITY_SEED", "7")
        patch.setenv("WARPGAUGE_THREADS", "2")
        assert plan_training(LAUNCH_LATENCY)["skip"]
        assert not plan_training(DOC_QUALITY)["skip"]
    quarantine(make.launches().head(1))
    assert not plan_training(LAUNCH_LATENCY)["skip"]
    assert plan_training(DOC_QUALITY)["skip"]


def test_table_that_was_made_anew_is_other_data_though_its_version_number_is_the_same(
    world: Path, make: Any
) -> None:
    import shutil

    shutil.rmtree(world / "data" / "launches")
    Store().append("launches", make.launches(seed=9))
    plan = plan_training(LAUNCH_LATENCY)
    assert plan["data_versions"]["launches"] == 1
    assert not plan["skip"]


def test_rows_that_came_after_the_plan_are_not_trained_on(registry: Path, quick: None, make: Any) -> None:
    Store().append("launches", make.launches().gather_every(2))
    plan = plan_training(LAUNCH_LATENCY)
    Store().append("launches", make.launches())
    assert bundle_facts(Path(train_latency(plan, "test")))["counts"]["rows"] == 240


# What it learns from


def test_simulated_launches_are_left_out_where_measured_ones_are(
    registry: Path, quick: None, make: Any
) -> None:
    simulated = make.launches(seed=1).with_columns(
        pl.lit(True).alias("is_simulated"), pl.lit("simulator").alias("source_kind")
    )
    Store().append("launches", simulated)
    alone = train()
    assert (alone["is_simulated"], alone["provenance"]) == (True, "simulated")
    assert "trained on SIMULATED launches only: none was measured" in alone["notes"]
    Store().append("launches", make.launches())
    both = train()
    assert (both["is_simulated"], both["provenance"], both["counts"]["rows"]) == (False, "measured", 480)
    assert "480 simulated launches left out" in both["notes"]


def test_traces_alone_teach_what_traces_record_and_the_version_says_so(
    registry: Path, quick: None, make: Any
) -> None:
    traced = make.launches().with_columns(
        pl.col("first_launch_api_us").alias("launch_api_us"),
        pl.lit(None, dtype=pl.Float64).alias("first_launch_api_us"),
    )
    Store().append("launches", traced)
    facts = train()
    assert facts["target"] == "launch_api_us"
    assert facts["fold_rule"] == FOLD_RULE
    assert any("so the model predicts launch_api_us, what traces record" in note for note in facts["notes"])


def test_launches_without_any_of_the_labels_are_refused(registry: Path, quick: None, make: Any) -> None:
    unlabelled = make.launches().with_columns(
        pl.col("first_launch_api_us").alias("upload_api_us"),
        pl.lit(None, dtype=pl.Float64).alias("first_launch_api_us"),
    )
    Store().append("launches", unlabelled)
    with pytest.raises(
        TrainingError, match=r"0 of 480 launches have a positive first_launch_api_us.*upload_api_us 480"
    ):
        train()
    assert list(cache_dir("bundles").iterdir()) == []


def test_target_that_is_no_label_is_a_wrong_setting(
    registry: Path, quick: None, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store().append("launches", make.launches())
    monkeypatch.setenv("WARPGAUGE_LATENCY_TARGET", "latency_of_my_dreams")
    with pytest.raises(SettingsError, match=r"first_launch_api_us.*latency_of_my_dreams"):
        train()


@pytest.mark.parametrize(
    ("percents", "known"), [([], None), ([97.0] * 100, 97.0), ([97.0] * 10, None), ([None] * 100, None)]
)
def test_load_of_the_gpus_is_kept_where_enough_samples_tell_it(
    project: Path, percents: list[float | None], known: float | None
) -> None:
    from warpgauge.settings import load_settings

    start = datetime.now(UTC) - timedelta(hours=1)
    for gpu, values in (("GPU-1", percents), ("GPU-2", [20.0] * 100 if percents and known else [])):
        samples = pl.DataFrame(
            {
                "gpu_uuid": [gpu] * len(values),
                "sampled_at": [start + timedelta(seconds=second) for second in range(len(values))],
                "source_kind": ["nvml"] * len(values),
                "source_name": ["host"] * len(values),
                "collected_at": [start] * len(values),
                "utilization_percent": values,
            },
            schema={name: GPU_SAMPLES.schema[name] for name in SAMPLE_COLUMNS},
        )
        Store().append("gpu_samples", GPU_SAMPLES.conform(samples))
    assert training._utilization_p95_percent(load_settings()) == known


SAMPLE_COLUMNS = (
    "gpu_uuid",
    "sampled_at",
    "source_kind",
    "source_name",
    "collected_at",
    "utilization_percent",
)


def test_without_gpu_samples_the_training_record_says_null(world: Path) -> None:
    facts = registration.version_facts(LAUNCH_LATENCY, "1")
    assert facts["trained_utilization_p95_percent"] is None
    assert facts["reason"] == "test"


def test_documents_without_labels_are_refused(world: Path, make: Any) -> None:
    plan = plan_training(DOC_QUALITY, force=True)
    # Version 0 of a table is the empty one.
    plan["data_versions"] = plan["data_versions"] | {"labels": 0}
    with pytest.raises(TrainingError, match="label"):
        train_docquality(plan, "test")
