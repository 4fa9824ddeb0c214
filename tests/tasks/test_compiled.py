"""tasks/compiled.py."""

import logging
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import compiled
from tasks.compiled import compile_for
from tasks.storage import cache_dir
from warpgauge.latency.model import LatencyModel


@pytest.fixture
def model(registry: Path, latency_bundle: str, make: Any) -> LatencyModel:
    return LatencyModel.from_files(make.model_files(latency_bundle))


@pytest.fixture
def launches(latency_bundle: str) -> pl.DataFrame:
    return pl.read_parquet(Path(latency_bundle) / "gate" / "rows.parquet")


def test_many_rows_are_answered_by_compiled_trees_with_equal_numbers(
    model: LatencyModel, launches: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = model.predict(launches)
    made = []
    compile_own = model.booster.compile
    monkeypatch.setattr(model.booster, "compile", lambda *given: made.append(compile_own(*given)))
    compile_for(model, compiled.LEAST_ROWS - 1)
    assert made == []
    compile_for(model, compiled.LEAST_ROWS)
    assert model.predict(launches).equals(before)
    assert len(made) == 1
    # Whether a file lies there depends on what this process compiled before: one kernel serves all models.
    assert cache_dir("compiled").stat().st_mode & 0o077 == 0


def test_folder_that_cannot_be_kept_private_costs_a_warning_and_no_answer(
    model: LatencyModel,
    launches: pl.DataFrame,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    before = model.predict(launches)
    folder = cache_dir("compiled")
    folder.parent.chmod(0o777)
    try:
        with caplog.at_level(logging.WARNING, logger="warpgauge"):
            compile_for(model, compiled.LEAST_ROWS)
    finally:
        folder.parent.chmod(0o755)
    assert model.predict(launches).equals(before)
    assert "compiled trees are not kept" in caplog.text
