import numpy as np
import pytest

from warpgauge.drift.residuals import (
    FACTS_FILE,
    TENSORS_FILE,
    ResidualReference,
    fit_residual_reference,
    measure_residuals,
)
from warpgauge.errors import ModelFileError, WindowError


def launches(random: np.random.Generator, graphs: int, trials: int = 10, first: int = 0):
    """Heavy-tailed residuals with an error of their own for each graph, as real launches have."""
    shared = np.repeat(random.standard_t(4, graphs) * 0.02, trials)
    residuals = shared + random.standard_t(3, graphs * trials) * 0.01
    return residuals, np.repeat([f"graph-{first + i}" for i in range(graphs)], trials).tolist()


@pytest.fixture(scope="module")
def reference() -> ResidualReference:
    residuals, ids = launches(np.random.default_rng(0), 400)
    return fit_residual_reference(residuals, graph_ids=ids)


def test_a_slower_machine_trips_and_an_unchanged_one_does_not(reference: ResidualReference):
    residuals, ids = launches(np.random.default_rng(1), 30)
    same = measure_residuals(reference, residuals, graph_ids=ids)
    assert not same.is_tripped
    assert same.lower < same.value < same.upper
    slower = measure_residuals(reference, residuals + np.log(1.15), graph_ids=ids)
    assert slower.is_tripped
    assert slower.details["mean_log_residual"] == pytest.approx(np.mean(residuals) + np.log(1.15))


def test_unchanged_windows_trip_about_as_often_as_stated(reference: ResidualReference):
    random = np.random.default_rng(2)
    tripped = 0
    for seed in range(100):
        residuals, ids = launches(random, 12)
        tripped += measure_residuals(
            reference, residuals, graph_ids=ids, false_alarm_ratio=0.02, seed=seed
        ).is_tripped
    assert tripped / 100 <= 0.06


def test_trials_of_few_graphs_do_not_pass_for_many_launches(reference: ResidualReference):
    residuals, ids = launches(np.random.default_rng(3), 6, trials=50)
    grouped = measure_residuals(reference, residuals, graph_ids=ids)
    apart = measure_residuals(reference, residuals)
    assert grouped.limit > apart.limit
    assert grouped.details["graph_count"] == 6


def test_one_stalled_launch_does_not_decide(reference: ResidualReference):
    residuals, ids = launches(np.random.default_rng(4), 30)
    residuals[5] = np.log(1000.0)
    m = measure_residuals(reference, residuals, graph_ids=ids)
    assert not m.is_tripped
    assert m.details["raw_rmse"] > 0.3 > m.value


def test_what_cannot_be_measured_says_why(reference: ResidualReference):
    residuals, ids = launches(np.random.default_rng(5), 30)
    assert measure_residuals(None, residuals, graph_ids=ids).cause == "no champion"
    assert measure_residuals(reference, []).cause == "no samples"
    assert measure_residuals(reference, residuals[:99], graph_ids=ids[:99]).cause == "too few"
    assert measure_residuals(reference, residuals, graph_ids=["one"] * 300).cause == "too few"
    broken = residuals.copy()
    broken[7] = -np.inf
    m = measure_residuals(reference, broken, graph_ids=ids)
    assert m.cause == "degenerate"
    assert "row 7" in m.reason


def test_the_same_seed_gives_the_same_limit(reference: ResidualReference):
    residuals, ids = launches(np.random.default_rng(6), 20)
    assert measure_residuals(reference, residuals, graph_ids=ids, seed=3) == measure_residuals(
        reference, residuals, graph_ids=ids, seed=3
    )


def test_a_huge_window_is_measured_with_bounded_work(reference: ResidualReference):
    residuals, ids = launches(np.random.default_rng(7), 2000, trials=20)
    m = measure_residuals(reference, residuals, graph_ids=ids, false_alarm_ratio=0.01)
    assert m.sample_count == 40_000
    assert not m.is_tripped
    one_graph = ["big"] * 39_000 + [f"g{i}" for i in range(1000)]
    assert measure_residuals(reference, residuals, graph_ids=one_graph, false_alarm_ratio=0.01).limit > 0


def test_many_held_out_rows_are_kept_as_whole_graphs():
    residuals, ids = launches(np.random.default_rng(8), 3000)
    kept = fit_residual_reference(residuals, graph_ids=ids)
    assert (kept.row_count, kept.group_count, kept.total_row_count) == (20_000, 2000, 30_000)
    assert kept.rmse == pytest.approx(fit_residual_reference(residuals[:20_000]).rmse, rel=0.1)
    assert len(kept.to_files()[TENSORS_FILE]) < 100_000
    one_graph = fit_residual_reference(residuals, graph_ids=["big"] * 29_990 + [f"g{i}" for i in range(10)])
    assert one_graph.row_count == 20_000


def test_held_out_residuals_that_teach_nothing_are_refused():
    random = np.random.default_rng(9)
    with pytest.raises(WindowError, match="19 held-out"):
        fit_residual_reference(random.normal(size=19))
    with pytest.raises(WindowError, match="4 graphs"):
        fit_residual_reference(random.normal(size=40), graph_ids=["a", "b", "c", "d"] * 10)
    with pytest.raises(WindowError, match="row 2"):
        fit_residual_reference([0.1, 0.2, np.nan] * 20)
    with pytest.raises(WindowError, match="saw its answers"):
        fit_residual_reference(np.zeros(100))
    with pytest.raises(WindowError, match="one number a launch"):
        fit_residual_reference(np.zeros((10, 10)))
    with pytest.raises(WindowError, match="graph ids"):
        fit_residual_reference(random.normal(size=40), graph_ids=["a"])


def test_files_give_the_same_reference_back(reference: ResidualReference):
    again = ResidualReference.from_files(reference.to_files())
    residuals, ids = launches(np.random.default_rng(10), 20)
    assert measure_residuals(again, residuals, graph_ids=ids) == measure_residuals(
        reference, residuals, graph_ids=ids
    )


@pytest.mark.parametrize("name", [TENSORS_FILE, FACTS_FILE])
def test_a_damaged_file_of_the_reference_is_refused(reference: ResidualReference, name: str):
    files = reference.to_files()
    with pytest.raises(ModelFileError, match="missing"):
        ResidualReference.from_files({key: value for key, value in files.items() if key != name})
    for damaged in (files[name][:-10], b"", b"{}"):
        with pytest.raises(ModelFileError, match=name):
            ResidualReference.from_files({**files, name: damaged})
