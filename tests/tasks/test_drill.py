"""A rehearsal's store is its own, and its verdict is about what the rehearsal should end with."""

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from tasks import deployment, drill, registration
from warpgauge.drift.rehearsal import SLOWDOWN_RATIO, SLOWED_GPU, draw_timeline, rehearsed_launches
from warpgauge.errors import SettingsError
from warpgauge.registry.names import LAUNCH_LATENCY
from warpgauge.settings import load_settings


@pytest.fixture(autouse=True)
def no_prefect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tester's own Prefect profile says."""
    monkeypatch.setattr(deployment, "server_url", lambda: None)


def test_store_and_everything_that_tells_somebody_are_the_rehearsals_own(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://production:4200/api")
    monkeypatch.setenv("WARPGAUGE_ALERT_WEBHOOK_URL", "http://pager/secret")
    before = dict(os.environ)
    with drill.own_store(str(tmp_path / "new")) as place:
        settings = load_settings()
        assert settings.resolved_data_dir() == str(place / "data")
        assert settings.resolved_mlflow_uri().startswith(f"sqlite:///{place}")
        assert settings.alert_webhook_url is None
        assert "PREFECT_API_URL" not in os.environ
        assert Path(os.environ["PREFECT_HOME"]).parent == place
    assert dict(os.environ) == before


def test_new_store_lies_in_the_cache_and_each_has_a_name_of_its_own(project: Path) -> None:
    with drill.own_store() as place:
        assert place.is_dir()
        assert place.parent.name == "drills"


@pytest.mark.parametrize(
    "make", [lambda p: p.write_text("x"), lambda p: (p.mkdir(), (p / "f").write_text("x"))]
)
def test_folder_with_something_in_it_is_not_used(project: Path, tmp_path: Path, make: Any) -> None:
    make(tmp_path / "used")
    with pytest.raises(SettingsError, match="not empty"), drill.own_store(str(tmp_path / "used")):
        raise AssertionError("the block must not run")


def test_process_that_speaks_with_a_server_rehearses_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "prefect", sys.modules.get("prefect"))
    monkeypatch.setattr(deployment, "server_url", lambda: "http://production:4200/api")
    with pytest.raises(SettingsError, match="PREFECT_API_URL"), drill.own_store():
        raise AssertionError("the block must not run")


def test_shifted_launches_are_those_of_one_gpu_a_quarter_slower_and_rows_of_their_own() -> None:
    plain, shifted = (rehearsed_launches(1, is_shifted=is_shifted) for is_shifted in (False, True))
    ratio = shifted["first_launch_api_us"] / plain["first_launch_api_us"]
    is_slowed = plain["gpu_name"] == SLOWED_GPU
    assert ratio.filter(is_slowed).drop_nulls().round(9).unique().to_list() == [SLOWDOWN_RATIO]
    assert ratio.filter(~is_slowed).drop_nulls().unique().to_list() == [1.0]
    assert not set(plain["launch_id"]) & set(shifted["launch_id"])
    assert shifted["is_simulated"].all()


def row(value: float | None, limit: float | None = 1.0) -> dict[str, Any]:
    return {
        "signal": "residuals",
        "model_name": LAUNCH_LATENCY,
        "status": "measured" if value is not None else "cannot_say",
        "value": value,
        "limit": limit,
        "action": "none",
        "reason": "why",
    }


@pytest.mark.parametrize(
    ("champion", "value", "missing"),
    [
        ("2", 0.5, []),
        ("1", 0.5, ["no new version"]),
        (None, 0.5, ["no new version"]),
        ("2", 1.5, ["residuals tripped"]),
        ("2", None, ["nothing was measured"]),
    ],
)
def test_rehearsal_that_ends_otherwise_than_it_should_says_so(
    project: Path,
    monkeypatch: pytest.MonkeyPatch,
    champion: str | None,
    value: float | None,
    missing: list[str],
) -> None:
    monkeypatch.setattr(registration, "alias_version", lambda *_: champion)
    timeline = drill.Timeline("latency")
    timeline.tell("first rows", "10 rows")
    last_round = {"decisions": [row(value)], "retrained": []}
    timeline.monitored(last_round)
    told = drill.summarize(timeline, last_round)
    assert len(told["refused"]) == len(missing)
    assert all(wanted in said for wanted, said in zip(missing, told["refused"], strict=True))
    assert Path(told["picture"]).read_bytes().startswith(b"\x89PNG")


def test_timeline_names_each_moment_with_its_seconds() -> None:
    timeline = drill.Timeline("latency")
    timeline.tell("first rows", "10 rows")
    timeline.monitored({"decisions": [row(1.5)], "retrained": []})
    figure = draw_timeline("Rehearsal", timeline.moments)
    labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert labels == ["first rows\n0 s", "monitor: residuals tripped\n0 s"]
    (line, limit) = figure.axes[0].get_lines()[:2]
    assert list(line.get_ydata()) == [1.5]
    assert set(limit.get_ydata()) == {1.0}
