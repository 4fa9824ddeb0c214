"""warpgauge/latency/intervals.py."""

import json
import math

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import ModelFileError, TrainingError
from warpgauge.latency.intervals import (
    LARGEST_PLACE_COUNT,
    Intervals,
    conformal_quantile,
    fit_intervals,
)
from warpgauge.latency.launch_scheme import INTERVAL_LEVELS, STATED_FACTORS


def fit(*given: object, **more: object) -> Intervals:
    return fit_intervals(*given, **more, levels=INTERVAL_LEVELS, stated_factors=STATED_FACTORS)


def groups(topology: list[str | None], gpu: str = "A") -> pl.DataFrame:
    return pl.DataFrame({"topology": topology}, schema={"topology": pl.String}).with_columns(
        gpu_name=pl.lit(gpu), is_profiled=pl.lit(False)
    )


def test_quantile_of_99_scores_is_the_90th():
    assert conformal_quantile(np.arange(1.0, 100.0), 0.9) == 90.0


def test_quantile_of_too_few_scores_is_the_largest():
    assert conformal_quantile(np.array([3.0, 1.0]), 0.9) == 3.0


def test_each_topology_is_covered_although_their_noise_differs_tenfold():
    random = np.random.default_rng(0)
    names = ["quiet"] * 4000 + ["loud"] * 4000
    spread = np.array([0.01] * 4000 + [0.1] * 4000)
    predicted = random.uniform(3, 2000, 8000)
    intervals = fit(random.normal(0, spread), predicted, groups(names), 0.9)
    fresh = np.abs(random.normal(0, spread))
    inside = fresh <= intervals.half_width(predicted, groups(names))
    assert inside[:4000].mean() == pytest.approx(0.9, abs=0.02)
    assert inside[4000:].mean() == pytest.approx(0.9, abs=0.02)


def test_small_launches_are_covered_although_their_noise_is_larger():
    random = np.random.default_rng(1)
    predicted = np.exp(random.uniform(1, 7, 6000))
    spread = 0.2 / predicted**0.5
    names = ["lines"] * 6000
    intervals = fit(random.normal(0, spread), predicted, groups(names), 0.9)
    inside = np.abs(random.normal(0, spread)) <= intervals.half_width(predicted, groups(names))
    for low, high in ((1, 3), (3, 5), (5, 7)):
        band = (np.log(predicted) >= low) & (np.log(predicted) < high)
        assert inside[band].mean() == pytest.approx(0.9, abs=0.03)


def test_unknown_topology_takes_the_pooled_width():
    random = np.random.default_rng(2)
    intervals = fit(random.normal(0, 0.05, 500), np.full(500, 10.0), groups(["lines"] * 500), 0.9)
    ten = np.array([10.0])
    pooled = intervals.pooled.half_width(ten)
    assert intervals.half_width(ten, groups(["captured"])) == pooled
    assert intervals.half_width(ten, groups([None])) == pooled


def test_unknown_gpu_takes_the_width_of_its_topology():
    random = np.random.default_rng(2)
    spread = np.repeat([0.01, 0.1], 500)
    names = ["quiet"] * 500 + ["loud"] * 500
    intervals = fit(random.normal(0, spread), np.full(1000, 10.0), groups(names), 0.9)
    ten = np.array([10.0])
    assert intervals.half_width(ten, groups(["quiet"], "B")) == intervals.groups["quiet",].half_width(ten)


def test_equal_trials_keep_a_width_above_zero():
    intervals = fit(np.zeros(100), np.full(100, 10.0), groups(["lines"] * 100), 0.9)
    assert (intervals.half_width(np.array([1.0, 1e6]), groups(["lines"] * 2)) > 0).all()


def test_never_seen_gpu_widens_by_what_was_measured_else_by_the_stated_factor():
    residual, predicted, names = np.full(60, 0.01), np.full(60, 10.0), groups(["lines"] * 60)
    stated = fit(residual, predicted, names, 0.9)
    measured = fit(residual, predicted, names, 0.9, left_out_log_error={"gpu_name": [0.2, 0.7]})
    assert stated.unseen_width("gpu_name") == math.log(STATED_FACTORS["gpu_name"])
    assert stated.unseen_evidence["gpu_name"] == "stated"
    assert measured.unseen_width("gpu_name") == 0.7
    assert measured.unseen_evidence["gpu_name"] == "measured"
    assert measured.unseen_evidence["topology"] == "stated"


def test_document_brings_the_same_intervals_back():
    random = np.random.default_rng(3)
    intervals = fit(random.normal(0, 0.1, 400), random.uniform(1, 100, 400), groups(["a", "b"] * 200), 0.8)
    assert Intervals.from_document(json.loads(json.dumps(intervals.to_document()))) == intervals


def test_document_with_a_negative_scale_is_refused():
    document = fit(np.zeros(60), np.full(60, 9.0), groups(["a"] * 60), 0.9).to_document()
    document["pooled"]["scale"] = [-1.0]
    with pytest.raises(ModelFileError, match="not positive"):
        Intervals.from_document(document)


def test_no_row_calibrates_nothing():
    with pytest.raises(TrainingError, match="no held-out row"):
        fit(np.empty(0), np.empty(0), groups([]), 0.9)


def test_every_band_of_size_is_covered_where_noise_falls_fast_with_size():
    """2000 lengths of line, noise as on the P100: 12 % up to 50 nodes, 2 % from 80 on."""
    random = np.random.default_rng(4)
    length = np.repeat(np.arange(1.0, 2001.0), 8)
    spread = np.interp(np.log(length), np.log([50.0, 80.0]), [0.12, 0.02])
    predicted, names = 2 + 0.3 * length, groups(["lines"] * len(length))
    intervals = fit(random.normal(0, spread), predicted, names, 0.9)
    half = intervals.half_width(predicted, names)
    inside = np.abs(random.normal(0, spread)) <= half
    for low, high in ((1, 10), (11, 50), (81, 200), (201, 500), (501, 1000), (1001, 2000)):
        band = (length >= low) & (length <= high)
        assert inside[band].mean() == pytest.approx(0.9, abs=0.06), (low, high)
    # 1.645 standard deviations; bins of equal count gave 100 nodes the width of 50.
    assert half[length == 20][0] == pytest.approx(0.197, rel=0.2)
    assert half[length == 110][0] == pytest.approx(0.033, rel=0.2)


@pytest.mark.parametrize("count", [50, 200, 1000])
def test_new_rows_are_held_as_often_as_was_wanted_however_few_calibrate(count):
    random = np.random.default_rng(5)
    shares = []
    for _ in range(60):
        predicted = np.exp(random.uniform(1, 7, count + 500))
        residual = random.standard_t(3, count + 500) * 0.2 / predicted**0.5
        names = groups(["lines"] * (count + 500))
        intervals = fit(residual[:count], predicted[:count], names[:count], 0.9)
        half = intervals.half_width(predicted[count:], names[count:])
        shares.append((np.abs(residual[count:]) <= half).mean())
    assert np.mean(shares) == pytest.approx(0.9, abs=0.025)


def test_row_order_does_not_matter():
    random = np.random.default_rng(6)
    predicted = random.integers(1, 40, 900).astype(float)
    residual = random.normal(0, 0.1, 900)
    names = groups([("a", "b")[row % 2] for row in range(900)])
    order = random.permutation(900)
    assert (
        fit(residual[order], predicted[order], names[order], 0.9).to_document()
        == fit(residual, predicted, names, 0.9).to_document()
    )


@pytest.mark.parametrize(
    "predicted",
    [[7.0], [7.0, 7.0 + 1e-12], [1e-6, 1e9], [1e-300] * 3 + [1e300] * 3, list(np.geomspace(1e-9, 1e12, 500))],
)
def test_any_sizes_give_a_short_positive_rising_document(predicted):
    names = groups(["lines"] * len(predicted))
    intervals = fit(np.full(len(predicted), 0.1), np.array(predicted), names, 0.9)
    document = json.loads(json.dumps(intervals.to_document(), allow_nan=False))
    assert Intervals.from_document(document) == intervals
    assert 1 <= len(intervals.pooled.scale) <= LARGEST_PLACE_COUNT
    assert intervals.half_width(np.array(predicted), names) == pytest.approx(0.1)


@pytest.mark.parametrize(
    ("part", "value"),
    [("scale", [0.1, 0.1]), ("log_latency", []), ("quantile", 0.0), ("scale", ["0.1"]), ("row_count", 1.5)],
)
def test_document_with_a_part_that_does_not_fit_is_refused(part, value):
    document = fit(np.zeros(60), np.full(60, 9.0), groups(["a"] * 60), 0.9).to_document()
    document["pooled"][part] = value
    with pytest.raises(ModelFileError):
        Intervals.from_document(document)
