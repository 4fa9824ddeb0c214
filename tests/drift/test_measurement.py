import json
import math
from typing import Any

import pytest

from warpgauge.drift.measurement import CAUSES, DETAILS_LENGTH, Measurement
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


def with_details(details: dict[str, Any]) -> Measurement:
    return Measurement.measured(
        "residuals", "launch-latency", 2.0, limit=4.0, sample_count=100, reason="x", details=details
    )


def test_details_are_kept_as_json_and_none_where_there_are_none() -> None:
    assert with_details({}).details_json() is None
    assert json.loads(with_details({"rmse": 0.25, "names": ["a"]}).details_json() or "") == {
        "rmse": 0.25,
        "names": ["a"],
    }


def test_of_many_slices_all_rows_and_those_nearest_their_limits_are_kept() -> None:
    slices = [{"slice": "all rows", "value": 0.5, "limit": 4.0, "reason": "long " * 50}]
    slices += [
        {"slice": f"s{number}", "value": float(number), "limit": 4.0, "reason": "long " * 50}
        for number in range(99)
    ]
    slices += [{"slice": "new", "value": None, "limit": None, "is_never_seen": True}]
    kept = json.loads(with_details({"slices": slices}).details_json() or "")["slices"]
    assert [one["slice"] for one in kept] == ["all rows", *(f"s{number}" for number in range(98, 79, -1))]
    assert not any("reason" in one for one in kept)


@pytest.mark.parametrize(
    "details",
    [
        {"slices": [{"slice": "x" * 5000}] * 9, "rmse": 0.25},
        {"text": "x" * 100_000, "rmse": 0.25},
        {"null_reasons": {f"reason {number}": number for number in range(5000)}, "rmse": 0.25},
        {"slices": "none", "rmse": 0.25},
        {"slices": [], "rmse": 0.25},
        {"slices": [None, 3], "rmse": 0.25},
    ],
)
def test_details_are_bounded_and_the_small_figures_stay(details: dict[str, Any]) -> None:
    text = with_details(details).details_json()
    assert text is not None
    assert len(text) <= DETAILS_LENGTH
    assert json.loads(text)["rmse"] == 0.25
