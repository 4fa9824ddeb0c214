"""warpgauge/latency/search.py: what may be chosen about the trees, and what one choice is worth."""

import numpy as np
import optuna
import polars as pl
import pytest

from warpgauge.errors import TrainingError
from warpgauge.latency.fitting import Boosting, make_recipe
from warpgauge.latency.folds import GATE_FOLD, fold_numbers
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME
from warpgauge.latency.search import MAX_BINS, first_guess, fold_metrics, suggested

QUICK = Boosting(trees=30, learning_rate=0.2, lambda_l2=1.0)


def heldout(scheme, rows, number):
    """Actual and predicted of one fold, by a fit that saw neither it nor the gate's."""
    recipe, _ = make_recipe(scheme, rows, QUICK, threads=1)
    places = np.flatnonzero(recipe.fold == number)
    fit = recipe.fit(GATE_FOLD, number, rounds=recipe.rounds_without(GATE_FOLD, number))
    return recipe.latency_us[places], recipe.predict_us(fit, places)


def test_value_after_each_fold_is_the_gates_metric_over_the_folds_so_far(make_scheme, kernels):
    scheme = make_scheme()
    found = list(fold_metrics(scheme, kernels, QUICK, threads=1))
    errors = []
    for value, number in zip(found, (1, 2, 3, 4), strict=True):
        actual, predicted = heldout(scheme, kernels, number)
        errors += (np.abs(actual - predicted) / actual).tolist()
        assert value == pytest.approx(np.mean(errors), rel=1e-12)
    assert found[-1] == pytest.approx(0.016, rel=0.2)


def test_launches_are_judged_by_squared_microseconds(launches):
    found = list(fold_metrics(LAUNCH_SCHEME, launches, QUICK, threads=1))
    squares = []
    for number in (1, 2, 3, 4):
        actual, predicted = heldout(LAUNCH_SCHEME, launches, number)
        squares += ((actual - predicted) ** 2).tolist()
    assert found[-1] == pytest.approx(np.sqrt(np.mean(squares)), rel=1e-12)


def test_same_rows_and_seed_give_the_same_values_in_any_order(make_scheme, kernels):
    found = list(fold_metrics(make_scheme(), kernels, QUICK, seed=1, threads=1))
    again = list(fold_metrics(make_scheme(), kernels.reverse(), QUICK, seed=1, threads=1))
    assert found == again


def test_labels_of_the_gates_fold_are_not_looked_at(make_scheme, kernels):
    scheme = make_scheme()
    is_gate = pl.Series(fold_numbers(scheme, kernels) == GATE_FOLD)
    spoilt = kernels.with_columns(latency=pl.when(is_gate).then(1e6).otherwise(pl.col("latency")))
    options = {"threads": 1}
    assert list(fold_metrics(scheme, spoilt, QUICK, **options)) == list(
        fold_metrics(scheme, kernels, QUICK, **options)
    )


def test_trial_may_be_given_up_after_any_fold(make_scheme, kernels):
    values = fold_metrics(make_scheme(), kernels, QUICK, threads=1)
    assert next(values) > 0
    values.close()


def test_better_settings_get_a_better_value(make_scheme, kernels):
    one_tree = list(fold_metrics(make_scheme(), kernels, QUICK.changed({"trees": 1}), threads=1))
    assert one_tree[-1] > 2 * list(fold_metrics(make_scheme(), kernels, QUICK, threads=1))[-1]


def test_too_few_shapes_say_so(make_scheme, kernels):
    with pytest.raises(TrainingError, match="1 shapes"):
        next(fold_metrics(make_scheme(), kernels.head(1), QUICK))


def test_first_guess_is_the_settings_in_use(make_scheme):
    default = Boosting(leaves=40, learning_rate=0.1, max_bin=127, lambda_l2=2.0, objective="l1")
    guess = first_guess(default, make_scheme(), 50_000)
    assert suggested(optuna.trial.FixedTrial(guess), default) == default.changed({"min_data_in_leaf": 20})
    assert first_guess(default, LAUNCH_SCHEME, 40_000)["min_data_in_leaf"] == 200
    assert first_guess(default.changed({"min_data_in_leaf": 9}), make_scheme(), 1)["min_data_in_leaf"] == 9


@pytest.mark.parametrize(
    "extreme",
    [
        Boosting(
            leaves=2, learning_rate=1e-4, max_bin=2, lambda_l2=0.0, feature_fraction=0.01, min_data_in_leaf=1
        ),
        Boosting(leaves=4096, learning_rate=1.0, max_bin=65_535, lambda_l2=1e6, min_data_in_leaf=1_000_000),
    ],
)
def test_first_guess_stays_where_the_search_may_go(make_scheme, extreme):
    guess = first_guess(extreme, make_scheme(), 1_000)
    # A fixed trial refuses a value outside of its range.
    found = suggested(optuna.trial.FixedTrial(guess), extreme)
    assert {name: getattr(found, name) for name in guess} == guess


def test_every_suggestion_is_within_bounds_and_keeps_what_is_not_searched():
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    default = Boosting(trees=77, objective="l1", early_stopping_rounds=9)
    found = [suggested(study.ask(), default) for _ in range(60)]
    assert {one.max_bin for one in found} == set(MAX_BINS)
    for one in found:
        assert 7 <= one.leaves <= 127
        assert 0.02 <= one.learning_rate <= 0.3
        assert one.min_data_in_leaf is not None
        assert 5 <= one.min_data_in_leaf <= 400
        assert 0.1 <= one.lambda_l2 <= 50.0
        assert 0.5 <= one.feature_fraction <= 1.0
        assert (one.trees, one.objective, one.early_stopping_rounds) == (77, "l1", 9)
