import numpy as np
import pytest

from warpgauge.drift.cusum import (
    ScoreRows,
    cube_root_normal,
    graph_weights,
    scan_changes,
    since_limit,
    window_limit,
)


def rows(
    score,
    *,
    mean: float = 0.0,
    within: float = 1.0,
    between: float = 0.0,
    among: float = 0.0,
    mean_error: float = 0.0,
    few: float = 1.0,
    many: float = 1.0,
    graph=None,
    shape=None,
) -> ScoreRows:
    score = np.asarray(score, dtype=float)
    one = np.ones(score.size)
    apart = np.arange(score.size)
    graph = apart if graph is None else np.asarray(graph)
    return ScoreRows(
        score,
        mean * one,
        within * one,
        between * one,
        among * one,
        mean_error * one,
        few * one,
        many * one,
        graph,
        graph if shape is None else np.asarray(shape),
        np.zeros(score.size, dtype=int),
    )


def scan(made: ScoreRows, kind="level", may_start=None):
    starts = np.ones(made.score.size, dtype=bool) if may_start is None else may_start
    return scan_changes(made, starts, kind, graph_weights(made))


def test_sum_of_the_window_is_in_standard_errors():
    # 16 independent scores of 0.5: 8 over the square root of 16.
    assert scan(rows(np.full(16, 0.5))).window == pytest.approx(2.0)
    assert scan(rows(np.full(16, -0.5))).window == pytest.approx(2.0)
    assert scan(rows(np.full(16, 0.5), mean=0.5)).window == 0.0


def test_change_is_found_where_it_began():
    found = scan(rows(np.concatenate([np.zeros(84), np.ones(16)])))
    assert found.since_row == 84
    assert found.since == pytest.approx(4.0)
    assert found.window == pytest.approx(1.6)
    assert found.look_count == 99


def test_disturbance_that_has_passed_does_not_ring_on():
    disturbed = np.concatenate([np.zeros(40), np.full(20, 2.0)])
    assert scan(rows(disturbed)).since == pytest.approx(40 / np.sqrt(20))
    assert scan(rows(np.append(disturbed, np.zeros(300)))).since == pytest.approx(40 / np.sqrt(320))


def test_sums_start_only_where_they_may():
    may_start = np.zeros(100, dtype=bool)
    may_start[[0, 90]] = True
    found = scan(rows(np.concatenate([np.zeros(84), np.ones(16)])), may_start=may_start)
    assert (found.since_row, found.look_count) == (90, 1)
    alone = scan(rows(np.ones(30)), may_start=np.zeros(30, dtype=bool))
    assert (alone.since, alone.since_row, alone.look_count) == (None, None, 0)


def test_trials_of_one_graph_count_as_what_they_are_worth():
    apart = scan(rows(np.ones(50), within=0.5, between=0.5))
    assert apart.window == pytest.approx(np.sqrt(50))
    # Ten graphs of five trials: the mean of ten varies by (0.5 + 0.5 / 5) / 10.
    together = scan(rows(np.ones(50), within=0.5, between=0.5, graph=np.repeat(np.arange(10), 5)))
    assert together.window == pytest.approx(1 / np.sqrt(0.06))
    # In any order of time.
    mixed = scan(rows(np.ones(50), within=0.5, between=0.5, graph=np.tile(np.arange(10), 5)))
    assert mixed.window == pytest.approx(together.window)


def test_graphs_of_one_shape_are_alike_too():
    graph, shape = np.arange(40), np.repeat(np.arange(4), 10)
    found = scan(rows(np.ones(40), within=0.4, between=0.1, among=0.5, graph=graph, shape=shape))
    assert found.window == pytest.approx(1 / np.sqrt((0.5 + 0.5 / 10) / 4))


def test_giant_graph_does_not_drown_the_others():
    graph = np.concatenate([np.zeros(1_000, dtype=int), np.arange(1, 101)])
    score = np.where(graph > 0, 1.0, 0.0)
    assert scan(rows(score, within=0.5, between=0.5, graph=graph)).window > 9


def test_mean_that_is_not_known_well_says_less():
    assert scan(rows(np.ones(100), mean_error=0.25)).window == pytest.approx(100 / np.sqrt(100 + 2_500))


def test_sums_over_few_graphs_are_taken_with_their_own_caution():
    made = rows(np.concatenate([np.zeros(84), np.ones(16)]), few=2.0, many=1.25)
    found = scan(made)
    assert found.window == pytest.approx(1.6 / 1.25)
    # 20 graphs and more are many: the sum since row 80 is 16 over the square root of 20.
    assert (found.since_row, found.since) == (80, pytest.approx(16 / np.sqrt(20) / 1.25))


def test_growth_of_spread_is_one_sided():
    assert scan(rows(np.full(100, 1.6), mean=1.0), "spread").window > 5
    assert scan(rows(np.full(100, 0.4), mean=1.0), "spread").window < -6


@pytest.mark.parametrize("count", [5, 20, 100])
def test_cube_root_makes_sums_of_exponential_scores_normal(count: int):
    sums = np.random.default_rng(0).gamma(count, size=400_000)
    values = cube_root_normal(sums / count - 1, np.full(sums.size, 1 / count))
    for chance in (0.01, 0.001, 0.0001):
        assert np.quantile(values, 1 - chance) == pytest.approx(window_limit(chance, 1), rel=0.03)


def test_limits_of_known_chances():
    assert window_limit(0.05, 2) == pytest.approx(1.95996, abs=1e-4)
    assert window_limit(0.05, 1) == pytest.approx(1.64485, abs=1e-4)
    # One look is one chance; many looks cost, the more the longer the range is.
    assert since_limit(0.001, 2, 1, 0.0) == pytest.approx(window_limit(0.001, 2))
    assert since_limit(0.001, 2, 3, 4.6) == pytest.approx(window_limit(0.001 / 3, 2))
    few, many = since_limit(0.001, 2, 1_000, 2.3), since_limit(0.001, 2, 100_000, 4.6)
    assert window_limit(0.001, 2) < few < many < 4.6
    assert since_limit(0.001, 1, 1_000, 2.3) < few


@pytest.mark.parametrize(("kind", "sides"), [("level", 2), ("spread", 1)])
def test_unchanged_windows_exceed_the_limit_as_often_as_stated(kind: str, sides: int):
    random = np.random.default_rng(1)
    may_start = np.ones(200, dtype=bool)
    may_start[181:] = False
    draws = random.normal(size=(4_000, 200)) if kind == "level" else random.exponential(size=(4_000, 200))
    found = [scan(rows(draw, mean=float(kind == "spread")), kind, may_start) for draw in draws]
    limit = since_limit(0.02, sides, found[0].look_count, found[0].log_information_ratio)
    since = np.mean([one.since > limit for one in found])
    window = np.mean([one.window > window_limit(0.02, sides) for one in found])
    # Two standard errors of 4,000 draws are 0.0044; the limit of many looks is an upper bound.
    assert 0.008 < since <= 0.0244
    assert abs(window - 0.02) <= 0.0066
