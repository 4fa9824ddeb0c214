"""What was decided is told whatever dies in between: orders are made again, alerts are kept."""

import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import alerts, announcement, attempts, deployment, monitoring
from tasks.storage import Store
from warpgauge.registry.names import LAUNCH_LATENCY
from warpgauge.tables import GPU_SAMPLES


@pytest.fixture
def loaded(world: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A fleet under load, a champion that can be retrained, no server, and no cool-down."""
    now = datetime.now(UTC)
    rows = {
        "gpu_uuid": "GPU-1",
        "sampled_at": [now - timedelta(hours=1, seconds=second) for second in range(100)],
        "source_kind": "nvml",
        "source_name": "host",
        "collected_at": now,
        "utilization_percent": 97.0,
    }
    Store().append("gpu_samples", GPU_SAMPLES.conform(pl.DataFrame(rows)))
    monkeypatch.setattr(deployment, "server_url", lambda: None)
    monkeypatch.setenv("WARPGAUGE_MONITOR_COOLDOWN_MINUTES", "0")
    return world


def decide() -> dict[str, Any]:
    return monitoring.decide(monitoring.measure())


def test_order_holds_what_its_event_promises(loaded: Path) -> None:
    (order,) = decide()["orders"]
    assert set(order) == set(deployment.ORDER_FIELDS)


def test_order_of_a_monitor_that_died_before_it_told_anybody_is_made_again_in_time(
    loaded: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (lost,) = decide()["orders"]
    # Killed here. Whether somebody took the order cannot be known for `monitor_lease_minutes`.
    assert decide()["orders"] == []
    assert attempts.list_attempts() == []
    monkeypatch.setenv("WARPGAUGE_MONITOR_LEASE_MINUTES", "0.001")
    time.sleep(0.1)
    (again,) = decide()["orders"]
    assert lost["attempt_id"].endswith("/1")
    assert again["attempt_id"] == lost["attempt_id"].removesuffix("1") + "2"


def test_order_that_began_late_is_not_made_twice(loaded: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (order,) = decide()["orders"]
    monkeypatch.setenv("WARPGAUGE_MONITOR_LEASE_MINUTES", "0.001")
    time.sleep(0.1)
    with attempts.attempt(LAUNCH_LATENCY, order["attempt_id"]):
        assert decide()["orders"] == []


def test_three_failures_reach_a_person_by_one_alert(
    loaded: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(3):
        decided = decide()
        (order,) = announcement.announce(decided)
        with (
            pytest.raises(ValueError, match="broken"),
            attempts.attempt(LAUNCH_LATENCY, order["attempt_id"]),
        ):
            raise ValueError("broken")
    last = decide()
    assert [alert["cause"] for alert in last["alerts"]] == ["retraining_failed"]
    assert announcement.announce(last) == []
    assert announcement.announce(decide()) == []
    assert {"cause": "retraining_failed", "outcome": "logged", "count": 1} in alerts.alert_counts()
    assert caplog.text.count("alert retraining_failed: utilization_p95 of GPU-1") == 1
