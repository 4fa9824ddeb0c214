import math
from typing import Any

import pytest

from warpgauge.drift.measurement import CAUSES, Measurement
from warpgauge.errors import WindowError


def measured(**changes: Any) -> Measurement:
    facts: dict[str, Any] = {"limit": 92.0, "sample_count": 60, "reason": "p95 98 %"} | changes
    value = facts.pop("value", 98.0)
    return Measurement.measured("utilization_p95", "GPU-a", value, **facts)


def test_a_value_above_its_limit_is_tripped_and_one_at_the_limit_is_not():
    assert measured().is_tripped
    assert not measured(value=92.0).is_tripped
    assert not measured(limit=None).is_tripped


@pytest.mark.parametrize("part", ["value", "lower", "upper", "limit"])
@pytest.mark.parametrize("number", [math.nan, math.inf, -math.inf])
def test_a_number_that_is_none_is_never_measured(part: str, number: float):
    with pytest.raises(WindowError, match=part):
        measured(**{part: number})


def test_what_cannot_be_said_names_its_cause_and_never_trips():
    m = Measurement.cannot_say(
        "residuals", "launch-latency", "too few", "3 of 100", sample_count=3, limit=0.1
    )
    assert (m.status, m.value, m.cause, m.is_tripped) == ("cannot_say", None, "too few", False)
    assert m.reason == "too few: 3 of 100"
    assert set(CAUSES) >= {"too few", "degenerate", "encoder changed", "no champion", "no samples", "stale"}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"status": "cannot_say", "value": 1.0}, "with a value"),
        ({"status": "cannot_say", "value": None}, "names no cause"),
        ({"value": None}, "without a value"),
        ({"status": "fine"}, "status"),
        ({"signal": "mood"}, "unknown signal"),
        ({"subject": ""}, "subject"),
        ({"sample_count": -1}, "sample_count"),
        ({"details": {"x": math.nan}}, "details"),
        ({"details": {"x": object()}}, "details"),
    ],
)
def test_a_contradictory_measurement_is_refused(changes: dict[str, Any], message: str):
    facts: dict[str, Any] = {
        "signal": "residuals",
        "subject": "launch-latency",
        "status": "measured",
        "value": 1.0,
        "lower": None,
        "upper": None,
        "limit": 2.0,
        "sample_count": 5,
        "reason": "because",
    }
    with pytest.raises(WindowError, match=message):
        Measurement(**(facts | changes))
