"""A bundle is whole or absent, and old ones go."""

import json
import math
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import bundles
from tasks.bundles import KEPT_BUNDLES, bundle_facts
from tasks.storage import cache_dir
from warpgauge.errors import ServiceUnavailableError
from warpgauge.registry.names import LAUNCH_LATENCY
from warpgauge.settings import PROJECT_ROOT

FACTS = {"model_name": LAUNCH_LATENCY, "metrics": {"rmse_us": 1.5}}


def write_bundle(**facts: Any) -> Path:
    made = bundles.write_bundle(
        FACTS | facts, {"model.txt": b"tree"}, {"rows.parquet": pl.DataFrame({"a": [1]})}, {}, {}
    )
    return Path(made)


def test_bundle_holds_what_registering_and_judging_need(latency_bundle: str, docquality_bundle: str) -> None:
    for bundle, gate in (
        (latency_bundle, {"rows.parquet", "baseline.parquet"}),
        (docquality_bundle, {"rows.parquet", "baseline.parquet", "checks.parquet", "embeddings.safetensors"}),
    ):
        folder = Path(bundle)
        assert {path.name for path in folder.iterdir()} == {"model", "gate", "figures", "bundle.json"}
        assert {path.name for path in (folder / "gate").iterdir()} == gate
        assert list((folder / "figures").glob("*.png"))


def test_failure_while_writing_leaves_nothing(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(pl.DataFrame, "write_parquet", full)
        with pytest.raises(ServiceUnavailableError, match=r"No space left.*free the disk and train again"):
            write_bundle()
    assert list(cache_dir("bundles").iterdir()) == []
    assert bundle_facts(write_bundle())["metrics"] == {"rmse_us": 1.5}


KILLED_WRITING = """
import os, signal
import polars as pl
from tasks import bundles
os.replace = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
bundles.write_bundle({"model_name": "launch-latency"}, {"model.txt": b"tree"}, {}, {}, {})
"""


def test_killed_writer_leaves_no_bundle_and_its_remains_go_in_their_turn(project: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", KILLED_WRITING], cwd=PROJECT_ROOT, env={**os.environ}, check=False, timeout=60
    )
    assert done.returncode == -9
    remains = list(cache_dir("bundles").iterdir())
    assert [path.suffix for path in remains] == [".partial"]
    old = datetime.now(UTC).timestamp() - 1000
    os.utime(remains[0], (old, old))
    for _ in range(KEPT_BUNDLES):
        write_bundle()
    assert all(path.suffix != ".partial" for path in cache_dir("bundles").iterdir())


def test_newest_bundles_are_kept(project: Path) -> None:
    made = []
    for age in range(KEPT_BUNDLES + 3, 0, -1):
        place = write_bundle()
        if place.exists():
            then = datetime.now(UTC).timestamp() - 100 * age
            os.utime(place, (then, then))
        made.append(place)
    assert sorted(cache_dir("bundles").iterdir()) == sorted(made[-KEPT_BUNDLES:])


def test_numbers_that_are_none_become_null(project: Path) -> None:
    place = write_bundle(
        metrics={"rmse_us": math.nan, "mae_us": math.inf, "p99_abs_us": 2.0},
        evaluation=[{"slice": "overall", "rmse_us": -math.inf, "row_count": 3}],
    )
    text = (place / "bundle.json").read_text()
    assert "NaN" not in text
    assert "Infinity" not in text
    facts = json.loads(text)
    assert facts["metrics"] == {"rmse_us": None, "mae_us": None, "p99_abs_us": 2.0}
    assert facts["evaluation"] == [{"slice": "overall", "rmse_us": None, "row_count": 3}]
