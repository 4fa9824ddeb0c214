import dataclasses

import numpy as np
import pytest

from warpgauge.drift.noise_law import NoiseLaw, Units, fit_noise_law
from warpgauge.errors import ModelFileError


def law_of(errors, graphs=None, shapes=None, *, seed: int = 0) -> NoiseLaw | None:
    errors = np.asarray(errors, dtype=float)
    graphs = np.arange(errors.size) if graphs is None else np.asarray(graphs)
    shapes = graphs if shapes is None else np.asarray(shapes)
    return fit_noise_law(errors, errors * 0.1, graphs, shapes, np.random.default_rng(seed))


def test_scores_of_the_held_out_errors_are_normal_and_exponential_whatever_their_tails():
    errors = np.random.default_rng(0).standard_t(2, 5_000)
    law = law_of(errors)
    level, spread = law.score("level", errors), law.score("spread", errors)
    assert (level.mean(), level.std()) == (pytest.approx(0, abs=0.01), pytest.approx(1, abs=0.01))
    assert (spread.mean(), spread.std()) == (pytest.approx(1, abs=0.02), pytest.approx(1, abs=0.05))
    assert (np.diff(law.score("level", np.sort(errors))) >= 0).all()
    # One stalled launch counts as one large error, not as many.
    assert law.score("level", np.array([1e9]))[0] < 3.5
    assert law.score("spread", np.array([-1e9]))[0] < 7


def test_equal_errors_have_one_score():
    law = law_of(np.repeat([-3.0, -1.0, 0.0, 2.0, 4.0], 100))
    # The normal quantiles of a tenth, three tenths and so on.
    wanted = [-1.28, -0.52, 0.0, 0.52, 1.28]
    assert law.score("level", np.array([-3.0, -1.0, 0.0, 2.0, 4.0])) == pytest.approx(wanted, abs=0.02)


@pytest.mark.parametrize("likeness", [0.2, 0.8])
def test_likeness_of_trials_is_found_on_the_safe_side(likeness: float):
    random = np.random.default_rng(1)
    graphs = np.repeat(np.arange(600), 5)
    errors = np.sqrt(likeness) * random.normal(size=600)[graphs]
    errors += np.sqrt(1 - likeness) * random.normal(size=3_000)
    law = law_of(errors, graphs)
    found = (law.level.between + law.level.among) / law.level.total
    assert likeness < found < likeness + 0.1
    assert law.level.effective_count == pytest.approx(3_000 / (1 + 4 * found), rel=0.01)


def test_likeness_of_shapes_is_found_apart():
    random = np.random.default_rng(2)
    graphs, shapes = np.repeat(np.arange(1_000), 5), np.repeat(np.arange(100), 50)
    errors = random.normal(size=100)[shapes] + random.normal(size=1_000)[graphs] + random.normal(size=5_000)
    level = law_of(errors, graphs, shapes).level
    assert level.within == pytest.approx(1 / 3, abs=0.08)
    assert level.among == pytest.approx(1 / 3, abs=0.2)
    assert level.mean_error > 0.0025


def test_trials_that_nobody_repeated_say_nothing_new():
    level = law_of(np.random.default_rng(3).normal(size=500)).level
    assert level.within < 1e-5 * level.total
    equal_trials = law_of(
        np.repeat(np.random.default_rng(3).normal(size=100), 5), np.repeat(np.arange(100), 5)
    )
    assert equal_trials.level.within < 1e-5
    assert equal_trials.level.effective_count == pytest.approx(100, rel=0.01)


def test_few_graphs_are_taken_with_more_caution():
    random = np.random.default_rng(4)

    def of(count: int) -> NoiseLaw:
        graphs = np.repeat(np.arange(count), 10)
        return law_of(random.standard_t(3, count)[graphs] + random.standard_t(3, count * 10), graphs)

    few, many = of(20), of(2_000)
    assert few.spread.few_inflation > 1.15
    assert 1 < many.spread.many_inflation < 1.25
    assert many.spread.many_inflation <= many.spread.few_inflation
    # The largest score is that of an error which so few graphs can tell from others.
    assert few.score("spread", np.array([1e9]))[0] < 3 < many.score("spread", np.array([1e9]))[0]


def test_errors_that_are_nearly_all_equal_have_no_law():
    assert law_of(np.zeros(100)) is None
    assert law_of(np.append(np.zeros(95), [1, 2, 3, 4, 5])) is None


def test_law_does_not_depend_on_the_order_of_the_rows_but_for_its_bootstrap():
    random = np.random.default_rng(5)
    errors, graphs = random.normal(size=300), random.integers(60, size=300)
    order = random.permutation(300)
    one, other = law_of(errors, graphs), law_of(errors[order], graphs[order])
    assert one.quantiles.tolist() == other.quantiles.tolist()
    assert one.level.mean_error == pytest.approx(other.level.mean_error)
    assert law_of(errors, graphs).to_document() == one.to_document()


def test_drawn_shapes_come_whole():
    units = Units.of(np.array([7, 7, 3, 3, 9]), np.array([1, 1, 1, 1, 2]))
    assert (units.graph_sizes.tolist(), units.shape_sizes.tolist()) == ([2, 2, 1], [4, 1])
    rows, drawn = units.drawn(np.random.default_rng(0))
    assert sorted(drawn.shape_sizes.tolist()) in ([1, 1], [1, 4], [4, 4])
    assert rows.size == drawn.graph_sizes.sum() == drawn.shape_sizes.sum()


def test_law_comes_back_from_its_document_and_a_damaged_one_is_refused():
    law = law_of(np.random.default_rng(6).normal(size=100))
    document = law.to_document()
    again = NoiseLaw.from_document(document, law.quantiles)
    assert dataclasses.asdict(again.level) == dataclasses.asdict(law.level)
    for damaged, said in (
        ({"row_count": 1.5}, "1.5 rows"),
        ({"graph_count": 1_000}, "1000 graphs"),
        ({"median_log": float("nan")}, "median_log nan"),
        ({"level": None}, "mean of a residual law is None"),
        ({"level": {**document["level"], "within": 0.0}}, "impossible"),
        ({"spread": {**document["spread"], "few_inflation": 0.5}}, "impossible"),
        ({"spread": {**document["spread"], "mean": True}}, "mean of a residual law is True"),
    ):
        with pytest.raises(ModelFileError, match=said):
            NoiseLaw.from_document({**document, **damaged}, law.quantiles)
