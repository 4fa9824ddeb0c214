"""warpgauge/latency/baseline.py."""

import json

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpgauge.errors import ModelFileError, SchemaError, TrainingError
from warpgauge.latency.baseline import Baseline, Curve
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME, LEVELS
from warpgauge.tables import LAUNCHES


def graphs(nodes: list[int], gpu: str | None = "A", **more: object) -> pl.DataFrame:
    frame = pl.DataFrame({"node_count": nodes}).with_columns(
        gpu_name=pl.lit(gpu, dtype=pl.String),
        topology=pl.lit(more.get("topology", "straight_line"), dtype=pl.String),
        is_profiled=pl.lit(more.get("is_profiled", False)),
        is_simulated=pl.lit(more.get("is_simulated", False)),
        cuda_version=pl.lit(more.get("cuda_version"), dtype=pl.String),
    )
    return LAUNCHES.conform(frame)


def law(nodes: list[int]) -> np.ndarray:
    return 4.0 + 0.5 * np.asarray(nodes, dtype=float)


def test_line_is_found_again_and_goes_on_beyond_the_sizes():
    nodes = list(range(10, 200))
    baseline = Baseline.fit(LAUNCH_SCHEME, graphs(nodes), law(nodes))
    asked = [1, 50, 150, 10_000]
    assert baseline.predict(graphs(asked)).latency_us == pytest.approx(law(asked), rel=1e-3)


def test_small_sizes_are_right_where_least_squares_is_negative():
    nodes = list(range(1, 1001))
    curved = 3.0 + 0.3 * np.asarray(nodes) + 5e-4 * np.asarray(nodes) ** 2.0
    asked = graphs([1, 2, 5])
    assert Baseline.fit(LAUNCH_SCHEME, graphs(nodes), curved).predict(asked).latency_us == pytest.approx(
        curved[[0, 1, 4]], rel=0.1
    )
    assert (
        Baseline.fit(LAUNCH_SCHEME, graphs(nodes), curved, kind="line").predict(asked).latency_us > 0
    ).all()


def test_one_disturbed_launch_in_a_hundred_does_not_bend_it():
    nodes = list(range(1, 301))
    latency = law(nodes)
    latency[::100] += 5000.0
    asked = list(range(20, 280, 20))
    assert Baseline.fit(LAUNCH_SCHEME, graphs(nodes), latency).predict(
        graphs(asked)
    ).latency_us == pytest.approx(law(asked), rel=0.05)


def test_line_kind_is_plain_least_squares():
    nodes = list(range(100, 300))
    latency = law(nodes) + np.random.default_rng(0).normal(0, 1, 200)
    slope, intercept = np.polyfit(nodes, latency, 1)
    asked = graphs([150, 250])
    expected = [intercept + slope * 150, intercept + slope * 250]
    assert Baseline.fit(LAUNCH_SCHEME, graphs(nodes), latency, "line").predict(
        asked
    ).latency_us == pytest.approx(expected)


def test_each_gpu_has_its_own_curve_and_a_new_one_the_middle():
    nodes = list(range(1, 101))
    both = pl.concat([graphs(nodes, "A"), graphs(nodes, "B")])
    baseline = Baseline.fit(LAUNCH_SCHEME, both, np.concatenate([law(nodes), 4 * law(nodes)]))
    middle = [50]
    answers = [baseline.predict(graphs(middle, gpu)) for gpu in ("A", "B", "C")]
    assert answers[0].latency_us == pytest.approx(law(middle), rel=0.01)
    assert answers[1].latency_us == pytest.approx(4 * law(middle), rel=0.01)
    assert law(middle)[0] < answers[2].latency_us[0] < 4 * law(middle)[0]
    assert answers[0].level[0] == 0
    assert "gpu_name" not in LEVELS[answers[2].level[0]]


def test_thin_group_shifts_the_curve_of_the_others():
    nodes = list(range(1, 101))
    few = [10, 50, 90]
    baseline = Baseline.fit(
        LAUNCH_SCHEME,
        pl.concat([graphs(nodes, "A"), graphs(few, "B")]),
        np.concatenate([law(nodes), 2 * law(few)]),
    )
    assert baseline.predict(graphs([30], "B")).latency_us == pytest.approx(2 * law([30]), rel=0.05)


def test_single_size_still_gives_a_rising_positive_line():
    baseline = Baseline.fit(LAUNCH_SCHEME, graphs([100] * 20), np.full(20, 50.0))
    low, same, high = baseline.predict(graphs([1, 100, 1000])).latency_us
    assert 0 < low < same < high
    assert same == pytest.approx(50.0)


def test_value_that_training_never_varied_is_meant_where_a_query_is_silent():
    nodes = list(range(1, 101))
    baseline = Baseline.fit(LAUNCH_SCHEME, graphs(nodes, cuda_version="12.4"), law(nodes))
    for version, is_new in ((None, False), ("12.4", False), ("13.0", True)):
        asked = graphs([50], cuda_version=version)
        assert baseline.unseen(asked, "cuda_version")[1].tolist() == [is_new]


def test_value_that_training_never_gave_is_ignored():
    nodes = list(range(1, 101))
    baseline = Baseline.fit(LAUNCH_SCHEME, graphs(nodes), law(nodes))
    assert baseline.unseen(graphs([5], cuda_version="12.9"), "cuda_version")[1].tolist() == [False]
    assert baseline.predict(graphs([5], cuda_version="12.9")).level[0] == 0


def test_query_needs_no_word_on_simulation():
    nodes = list(range(1, 101))
    baseline = Baseline.fit(LAUNCH_SCHEME, graphs(nodes, is_simulated=True), law(nodes))
    assert baseline.predict(graphs([5], is_simulated=False)).level[0] == 0


@given(
    rows=st.lists(
        st.tuples(st.integers(1, 5000), st.floats(0.01, 1e6), st.sampled_from(["A", "B", None])),
        min_size=1,
        max_size=40,
    ),
    asked=st.integers(1, 10_000_000),
    kind=st.sampled_from(["polyline", "line"]),
)
@settings(max_examples=25, deadline=None)
def test_any_rows_give_a_positive_rising_finite_baseline(rows, asked, kind):
    frame = pl.concat([graphs([nodes], gpu) for nodes, _, gpu in rows])
    baseline = Baseline.fit(LAUNCH_SCHEME, frame, np.array([latency for _, latency, _ in rows]), kind)
    for gpu in ("A", "B", "C", None):
        answer = baseline.predict(graphs([1, asked, 10_000_000], gpu)).latency_us
        assert np.isfinite(answer).all()
        assert (answer > 0).all()
        assert (np.diff(answer) >= -1e-9 * answer[1:]).all()


def test_document_brings_the_same_baseline_back():
    nodes = list(range(1, 101))
    baseline = Baseline.fit(LAUNCH_SCHEME, graphs(nodes), law(nodes))
    again = Baseline.from_document(json.loads(json.dumps(baseline.to_document())), LAUNCH_SCHEME)
    asked = graphs([1, 7, 99, 5000], "C")
    assert (again.predict(asked).latency_us == baseline.predict(asked).latency_us).all()


@pytest.mark.parametrize("values", [[-1.0, 5.0], [5.0, 1.0], []])
def test_document_with_an_impossible_curve_is_refused(values):
    nodes = list(range(1, 101))
    document = Baseline.fit(LAUNCH_SCHEME, graphs(nodes), law(nodes)).to_document()
    document["levels"][0]["curves"][0] |= {"nodes": [1.0, 2.0], "latency_us": values}
    with pytest.raises(ModelFileError):
        Baseline.from_document(document, LAUNCH_SCHEME)


def test_rows_without_a_node_count_are_named():
    with pytest.raises(SchemaError, match="1 of 2 rows have no node count of at least 1 \\(first: row 1\\)"):
        Baseline.fit(LAUNCH_SCHEME, graphs([5, 0]), np.array([1.0, 2.0]))


def test_no_row_trains_nothing():
    with pytest.raises(TrainingError, match="no row"):
        Baseline.fit(LAUNCH_SCHEME, graphs([5]).head(0), np.empty(0))


def test_curve_below_its_first_knot_stays_between_proportion_and_level():
    curve = Curve((100.0, 200.0), (50.0, 200.0), 100.0, 200.0)
    low = curve.predict(np.array([1.0, 50.0]))
    assert low == pytest.approx([0.5, 25.0])
