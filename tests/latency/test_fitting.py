"""warpgauge/latency/fitting.py: one fit, and one that corrects another."""

from dataclasses import replace

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import TrainingError
from warpgauge.latency.fitting import (
    BASE_TEXT_LIMIT_BYTES,
    CORRECTION,
    TEXT_LIMIT_BYTES,
    Boosting,
    base_recipe,
    correcting,
    make_recipe,
)
from warpgauge.latency.folds import GATE_FOLD, fold_numbers
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME
from warpgauge.latency.tree_text import read_forest

QUICK = Boosting(trees=40, learning_rate=0.2, lambda_l2=1.0)


def slower_tn(row):
    """The law after a change: one kind takes 1.5 times as long from 256 rows on."""
    return 1.5 if row["kind"] == "tn" and row["m"] >= 256 else 1.0


@pytest.fixture(scope="module")
def changed(make_kernels) -> pl.DataFrame:
    """200 new rows after the change."""
    return make_kernels(factor=slower_tn, seed=2, prefix="new:").sample(200, seed=1)


def test_choices_become_parameters_of_lightgbm(make_scheme):
    from warpgauge.accelerate import CPU

    boosting = Boosting().changed({"objective": "l1", "leaves": 5, "min_data_in_leaf": 7, "max_bin": 63})
    params = boosting.lightgbm_params(make_scheme(), 1_000, seed=3, device=CPU, threads=2)
    assert params["objective"] == "regression_l1"
    assert params["metric"] == "l1"
    assert (params["num_leaves"], params["min_data_in_leaf"], params["max_bin"]) == (5, 7, 63)
    assert (params["seed"], params["num_threads"]) == (3, 2)


def test_fewest_rows_of_a_leaf_are_the_schemes_where_nobody_chose(make_scheme):
    from warpgauge.accelerate import CPU

    options = {"seed": 0, "device": CPU, "threads": 1}
    assert Boosting().lightgbm_params(make_scheme(), 50_000, **options)["min_data_in_leaf"] == 20
    assert Boosting().lightgbm_params(LAUNCH_SCHEME, 40_000, **options)["min_data_in_leaf"] == 200
    assert Boosting().lightgbm_params(LAUNCH_SCHEME, 100, **options)["min_data_in_leaf"] == 5


def test_fit_never_sees_the_folds_that_it_must_not(make_scheme, kernels):
    scheme = make_scheme()
    spoilt = kernels.with_columns(
        latency=pl.when(pl.Series(fold_numbers(scheme, kernels)).is_in([GATE_FOLD, 2]))
        .then(1e6)
        .otherwise(pl.col("latency"))
    )
    fits = []
    for rows in (kernels, spoilt):
        recipe, _ = make_recipe(scheme, rows, QUICK, threads=1)
        fits.append(recipe.fit_once(GATE_FOLD, 2))
    assert fits[0].booster.text == fits[1].booster.text
    assert fits[0].baseline.to_document() == fits[1].baseline.to_document()


def test_heldout_errors_are_log_errors_of_rows_that_were_not_seen(make_scheme, kernels):
    recipe, _ = make_recipe(make_scheme(), kernels, QUICK, threads=1)
    for number in recipe.training_folds:
        errors = recipe.heldout_errors(number)
        assert len(errors) == int((recipe.fold == number).sum())
        # Log-normal noise of 2 %: the mean of its absolute value is 0.016.
        assert errors.mean() == pytest.approx(0.02 * np.sqrt(2 / np.pi), rel=0.35)
        assert (errors >= 0).all()


def test_category_that_only_some_folds_have_trains(make_scheme, kernels):
    """Rows of one shape alone name their kind: where its fold is held out, nothing is known of kinds."""
    scheme = make_scheme(by=("kind",), slices=("kind",))
    one = scheme.shapes(kernels) == "32.0|32.0|64.0"
    assert fold_numbers(scheme, kernels.filter(one))[0] != GATE_FOLD
    rows = kernels.with_columns(kind=pl.when(one).then(pl.col("kind")))
    recipe, _ = make_recipe(scheme, rows, QUICK, threads=1)
    held = int(fold_numbers(scheme, kernels.filter(one))[0])
    assert "kind" in recipe.features.columns
    assert "kind" not in recipe.fit_once(GATE_FOLD, held).booster.table.names
    assert "kind" in recipe.fit_once(GATE_FOLD).booster.table.names
    assert np.isfinite(recipe.heldout_errors(held)).all()


def test_features_that_tell_no_row_apart_are_left_out_with_the_reason(make_scheme, kernels):
    rows = kernels.with_columns(k=pl.lit(64.0), kind=pl.lit(None, dtype=pl.String))
    recipe, dropped = make_recipe(make_scheme(), rows, QUICK, threads=1)
    assert dropped == {"k": "always 64.0", "kind": "no source filled it"}
    assert recipe.features.columns == [
        "m",
        "n",
        "bandwidth_gb_per_s",
        "peak_tflops",
        "gflop",
        "mbyte",
        "card",
    ]


def test_rows_that_are_all_equal_or_of_one_shape_teach_nothing(make_scheme, kernels):
    with pytest.raises(TrainingError, match="1 shapes in 1 of 5 folds"):
        make_recipe(make_scheme(), pl.concat([kernels.head(1)] * 60), QUICK)
    only_shape = make_scheme(
        numeric=("m",),
        categorical=(),
        derived={},
        roofline=None,
        devices=None,
        by=(),
        slices=(),
        shape=("kind",),
    )
    rows = kernels.with_columns(m=pl.lit(1.0), kind=pl.int_range(pl.len()).cast(pl.String))
    with pytest.raises(TrainingError, match="equal features, so there is nothing to learn"):
        make_recipe(only_shape, rows, QUICK)


def test_correction_keeps_the_older_trees_and_baseline_and_adds_few(make_scheme, kernels, changed):
    scheme = make_scheme()
    base = base_recipe(scheme, kernels, QUICK, threads=1)
    recipe, dropped = make_recipe(scheme, changed, correcting(QUICK), corrects=base, threads=1)
    older, fit = base.fit_once(GATE_FOLD), recipe.fit_once(GATE_FOLD)
    assert dropped == {}
    assert fit.baseline is older.baseline
    assert fit.booster.table is older.booster.table
    kept, added = read_forest(older.booster.text).trees, read_forest(fit.booster.text).trees
    assert added[: len(kept)] == kept
    assert 0 < len(added) - len(kept) <= CORRECTION["trees"]
    assert all(len(tree.value) <= CORRECTION["leaves"] for tree in added[len(kept) :])


def test_correction_learns_that_everything_became_slower_by_one_factor(make_scheme, kernels):
    scheme = make_scheme()
    base = base_recipe(scheme, kernels, QUICK, threads=1)
    slower = kernels.sample(150, seed=3).with_columns(
        pl.col(scheme.target) * 1.5, row_id=pl.col("row_id") + "again"
    )
    recipe, _ = make_recipe(scheme, slower, correcting(QUICK), corrects=base, threads=1)
    assert np.concatenate([recipe.heldout_errors(number) for number in recipe.training_folds]).mean() < 0.05


def test_correction_learns_what_changed(make_scheme, make_kernels, kernels, changed):
    scheme = make_scheme()
    base = base_recipe(scheme, kernels, QUICK, threads=1)
    recipe, _ = make_recipe(scheme, changed, correcting(QUICK), corrects=base, threads=1)
    alone, _ = make_recipe(scheme, changed, QUICK, threads=1)
    older_error = np.mean(
        np.abs(np.log(recipe.latency_us / recipe.predict_us(base.fit_once(GATE_FOLD), recipe.places())))
    )
    errors = np.concatenate([recipe.heldout_errors(number) for number in recipe.training_folds])
    alone_errors = np.concatenate([alone.heldout_errors(number) for number in alone.training_folds])
    # A quarter of the rows moved by ln 1.5 = 0.41.
    assert older_error > 0.08
    assert errors.mean() < 0.025
    assert errors.mean() < 0.7 * alone_errors.mean()


def test_correction_never_sees_its_held_out_shapes_in_the_older_rows(make_scheme, kernels, changed):
    scheme = make_scheme()
    spoilt = kernels.with_columns(
        latency=pl.when(pl.Series(fold_numbers(scheme, kernels)).is_in([GATE_FOLD, 3]))
        .then(1e6)
        .otherwise(pl.col("latency"))
    )
    texts = []
    for older in (kernels, spoilt):
        base = base_recipe(scheme, older, QUICK, threads=1)
        recipe, _ = make_recipe(scheme, changed, correcting(QUICK), corrects=base, threads=1)
        texts.append(recipe.fit_once(GATE_FOLD, 3).booster.text)
    assert texts[0] == texts[1]


def test_category_that_the_older_model_never_saw_works_in_a_correction(make_scheme, make_kernels, kernels):
    scheme = make_scheme()
    new = make_kernels(kinds=("nn", "nt"), seed=2, prefix="new:").sample(250, seed=1)
    base = base_recipe(scheme, kernels, QUICK, threads=1)
    recipe, _ = make_recipe(scheme, new, correcting(QUICK), corrects=base, threads=1)
    fit = recipe.fit_once(GATE_FOLD)
    assert fit.booster.table.categorical[-1].categories == ("nn", "tn")
    predicted = recipe.predict_us(fit, recipe.places())
    assert np.isfinite(predicted).all()
    assert (predicted > 0).all()
    known = (recipe.rows["kind"] == "nn").to_numpy()
    error = np.abs(np.log(recipe.latency_us / predicted))
    assert error[known].mean() < 0.1


def test_text_stays_within_its_limit_with_and_without_a_correction(make_scheme, kernels, changed):
    scheme = make_scheme()
    slow = Boosting(trees=60, learning_rate=0.05)
    base = replace(base_recipe(scheme, kernels, slow, threads=1), text_limit_bytes=30_000)
    recipe, _ = make_recipe(scheme, changed, correcting(slow), corrects=base, threads=1)
    recipe = replace(recipe, text_limit_bytes=45_000)
    older, fit = base.fit(GATE_FOLD), recipe.fit(GATE_FOLD)
    assert len(older.booster.text) <= 30_000
    assert len(fit.booster.text) <= 45_000
    assert older.booster.tree_count < 60
    # What is left out are the last trees of the correction, though they are longer than those of the older model.
    kept = read_forest(base.fit_once(GATE_FOLD).booster.text).trees
    trees = read_forest(fit.booster.text).trees
    assert trees[: len(kept)] == kept
    assert len(kept) < len(trees) < len(kept) + CORRECTION["trees"]
    assert base_recipe(scheme, kernels, slow).text_limit_bytes == BASE_TEXT_LIMIT_BYTES < TEXT_LIMIT_BYTES


def test_older_rows_of_two_folds_cannot_be_corrected(make_scheme, kernels, changed):
    """A correction leaves out two folds, and then nothing would be left to correct."""
    scheme = make_scheme()
    few = kernels.filter(pl.Series(fold_numbers(scheme, kernels)).is_in([1, 2]))
    base = base_recipe(scheme, few, QUICK, threads=1)
    with pytest.raises(
        TrainingError, match=r"older rows have shapes in 2 folds .* needs 3: train on all rows"
    ):
        make_recipe(scheme, changed, correcting(QUICK), corrects=base, threads=1)


@pytest.mark.parametrize("fold", [GATE_FOLD, 2])
def test_new_rows_of_one_fold_cannot_correct(make_scheme, kernels, changed, fold):
    scheme = make_scheme()
    few = changed.filter(pl.Series(fold_numbers(scheme, changed)) == fold)
    base = base_recipe(scheme, kernels, QUICK, threads=1)
    with pytest.raises(TrainingError, match="in 1 of 5 folds; training needs shapes in at least 2 folds"):
        make_recipe(scheme, few, correcting(QUICK), corrects=base, threads=1)


def test_row_order_does_not_change_a_fit(make_scheme, kernels, changed):
    scheme = make_scheme()
    texts = []
    for older, new in (
        (kernels, changed),
        (kernels.reverse(), changed.sample(fraction=1.0, shuffle=True, seed=5)),
    ):
        base = base_recipe(scheme, older, QUICK, threads=1)
        recipe, _ = make_recipe(scheme, new, correcting(QUICK), corrects=base, threads=1)
        texts.append(recipe.fit_once(GATE_FOLD).booster.text)
    assert texts[0] == texts[1]


def test_noisier_trials_weigh_less_but_no_row_more_than_25_times_another(launches):
    noisy = launches.with_columns(
        first_launch_api_us=pl.when((pl.col("line_count") == 4) & (pl.col("trial") == 1))
        .then(pl.col("first_launch_api_us") * 1.5)
        .otherwise(pl.col("first_launch_api_us"))
    )
    recipe, _ = make_recipe(LAUNCH_SCHEME, noisy, QUICK, threads=1)
    places = recipe.places(GATE_FOLD)
    baseline = recipe.fit_once(GATE_FOLD).baseline
    _, weight = recipe._ratio_and_weight(places, baseline)
    assert weight is not None
    is_noisy = (recipe.rows[places]["line_count"] == 4).to_numpy()
    assert weight.mean() == pytest.approx(1.0)
    assert np.median(weight[is_noisy]) < 0.2 * np.median(weight[~is_noisy])
    assert weight.max() / weight.min() <= 25.0 * (1 + 1e-9)


def test_table_rows_are_measured_once_and_weigh_alike(make_scheme, kernels):
    recipe, _ = make_recipe(make_scheme(), kernels, QUICK, threads=1)
    _, weight = recipe._ratio_and_weight(recipe.places(), recipe.fit_once(GATE_FOLD).baseline)
    assert weight is None
