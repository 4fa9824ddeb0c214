"""warpgauge/latency/intervals.py."""

import json
import math

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import ModelFileError, TrainingError
from warpgauge.latency.intervals import STATED_FACTOR, Intervals, conformal_quantile, fit_intervals


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
    intervals = fit_intervals(random.normal(0, spread), predicted, groups(names), 0.9)
    fresh = np.abs(random.normal(0, spread))
    inside = fresh <= intervals.half_width(predicted, groups(names))
    assert inside[:4000].mean() == pytest.approx(0.9, abs=0.02)
    assert inside[4000:].mean() == pytest.approx(0.9, abs=0.02)


def test_small_launches_are_covered_although_their_noise_is_larger():
    random = np.random.default_rng(1)
    predicted = np.exp(random.uniform(1, 7, 6000))
    spread = 0.2 / predicted**0.5
    names = ["lines"] * 6000
    intervals = fit_intervals(random.normal(0, spread), predicted, groups(names), 0.9)
    inside = np.abs(random.normal(0, spread)) <= intervals.half_width(predicted, groups(names))
    for low, high in ((1, 3), (3, 5), (5, 7)):
        band = (np.log(predicted) >= low) & (np.log(predicted) < high)
        assert inside[band].mean() == pytest.approx(0.9, abs=0.03)


def test_unknown_topology_takes_the_pooled_width():
    random = np.random.default_rng(2)
    intervals = fit_intervals(random.normal(0, 0.05, 500), np.full(500, 10.0), groups(["lines"] * 500), 0.9)
    ten = np.array([10.0])
    pooled = intervals.pooled.half_width(ten)
    assert intervals.half_width(ten, groups(["captured"])) == pooled
    assert intervals.half_width(ten, groups([None])) == pooled


def test_unknown_gpu_takes_the_width_of_its_topology():
    random = np.random.default_rng(2)
    spread = np.repeat([0.01, 0.1], 500)
    names = ["quiet"] * 500 + ["loud"] * 500
    intervals = fit_intervals(random.normal(0, spread), np.full(1000, 10.0), groups(names), 0.9)
    ten = np.array([10.0])
    assert intervals.half_width(ten, groups(["quiet"], "B")) == intervals.groups["quiet",].half_width(ten)


def test_equal_trials_keep_a_width_above_zero():
    intervals = fit_intervals(np.zeros(100), np.full(100, 10.0), groups(["lines"] * 100), 0.9)
    assert (intervals.half_width(np.array([1.0, 1e6]), groups(["lines"] * 2)) > 0).all()


def test_never_seen_gpu_widens_by_what_was_measured_else_by_the_stated_factor():
    residual, predicted, names = np.full(60, 0.01), np.full(60, 10.0), groups(["lines"] * 60)
    stated = fit_intervals(residual, predicted, names, 0.9)
    measured = fit_intervals(residual, predicted, names, 0.9, {"gpu_name": [0.2, 0.7]})
    assert stated.unseen_width("gpu_name") == math.log(STATED_FACTOR["gpu_name"])
    assert stated.unseen_evidence["gpu_name"] == "stated"
    assert measured.unseen_width("gpu_name") == 0.7
    assert measured.unseen_evidence["gpu_name"] == "measured"
    assert measured.unseen_evidence["topology"] == "stated"


def test_document_brings_the_same_intervals_back():
    random = np.random.default_rng(3)
    intervals = fit_intervals(
        random.normal(0, 0.1, 400), random.uniform(1, 100, 400), groups(["a", "b"] * 200), 0.8
    )
    assert Intervals.from_document(json.loads(json.dumps(intervals.to_document()))) == intervals


def test_document_with_a_negative_scale_is_refused():
    document = fit_intervals(np.zeros(60), np.full(60, 9.0), groups(["a"] * 60), 0.9).to_document()
    document["pooled"]["scale"] = [-1.0]
    with pytest.raises(ModelFileError, match="not positive"):
        Intervals.from_document(document)


def test_no_row_calibrates_nothing():
    with pytest.raises(TrainingError, match="no held-out row"):
        fit_intervals(np.empty(0), np.empty(0), groups([]), 0.9)
