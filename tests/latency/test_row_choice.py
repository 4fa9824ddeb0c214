"""warpgauge/latency/row_choice.py: which rows a retraining learns from, shown on laws that changed."""

import json

import numpy as np
import polars as pl
import pytest

from warpgauge.latency import row_choice
from warpgauge.latency.fitting import Boosting, make_recipe
from warpgauge.latency.folds import GATE_FOLD, fold_numbers
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME
from warpgauge.latency.row_choice import LEAST_NEW_ROWS, RowChoice, choose_rows

QUICK = Boosting(trees=40, learning_rate=0.2, lambda_l2=1.0)


def slower_tn(row):
    return 1.5 if row["kind"] == "tn" and row["m"] >= 256 else 1.0


def wild(row):
    """A law of shapes that the new rows know nothing of: up to 8 times faster or slower."""
    return float(8 ** np.sin(row["m"] * 12.9 + row["n"] * 78.2))


@pytest.fixture(scope="module")
def changed(make_kernels) -> pl.DataFrame:
    """All kernels measured anew after one kind became 1.5 times as slow from 256 rows on."""
    return make_kernels(factor=slower_tn, seed=2, prefix="new:")


@pytest.fixture(scope="module")
def some(changed) -> pl.DataFrame:
    """200 of them."""
    return changed.sample(200, seed=1)


@pytest.fixture(scope="module")
def choice(make_scheme, kernels, some) -> RowChoice:
    """What is chosen for these."""
    return choose_rows(make_scheme(), kernels, some, QUICK, threads=1)


def test_few_new_rows_after_a_change_of_a_part_correct_the_older_model(choice):
    assert choice.way == "corrected"
    assert choice.errors["corrected"] < 0.7 * min(choice.errors["all"], choice.errors["new"])
    assert (choice.old_count, choice.new_count) == (576, 200)
    # The gate's fold is not judged.
    assert 120 < choice.judged_count < 200
    assert choice.reason.startswith("the older model corrected by the new rows: mean log error on")


def test_many_new_rows_of_another_law_stand_alone(make_scheme, make_kernels):
    older = make_kernels(factor=wild, seed=1)
    choice = choose_rows(make_scheme(), older, make_kernels(seed=2, prefix="new:"), QUICK, threads=1)
    assert choice.way == "new"
    assert choice.errors["new"] < 0.025
    assert choice.errors["new"] < 0.7 * min(choice.errors["all"], choice.errors["corrected"])


@pytest.mark.parametrize("count", [150, 576])
def test_rows_of_an_unchanged_law_are_all_kept(make_scheme, make_kernels, kernels, count):
    new = make_kernels(seed=2, prefix="new:").sample(count, seed=1)
    choice = choose_rows(make_scheme(), kernels, new, QUICK, threads=1)
    assert choice.way == "all"
    assert "no other way is surely better" in choice.reason
    assert set(choice.errors) == {"all", "new", "corrected"}


def test_category_that_only_new_rows_have_is_learned_from_them(make_scheme, make_kernels, kernels):
    new = make_kernels(kinds=("nn", "tn", "nt"), factor=slower_tn, seed=2, prefix="new:").sample(250, seed=1)
    choice = choose_rows(make_scheme(), kernels, new, QUICK, threads=1)
    assert choice.way == "new"


@pytest.mark.parametrize(
    ("old", "new", "reason"),
    [
        (0, 576, "no older row: all rows are new"),
        (576, LEAST_NEW_ROWS - 1, "99 new and 576 older rows are too few to compare, 100 of each are needed"),
        (576, 0, "0 new and 576 older rows are too few"),
        (1, 576, "576 new and 1 older rows are too few"),
    ],
)
def test_what_cannot_be_compared_keeps_all_rows_and_says_why(make_scheme, kernels, changed, old, new, reason):
    choice = choose_rows(make_scheme(), kernels.head(old), changed.head(new), QUICK, threads=1)
    assert choice.way == "all"
    assert choice.errors == {}
    assert choice.judged_count == 0
    assert reason in choice.reason


def test_older_rows_of_too_few_folds_keep_all_rows(make_scheme, kernels, changed):
    scheme = make_scheme()
    few = kernels.filter(pl.Series(fold_numbers(scheme, kernels)).is_in([1, 2]))
    choice = choose_rows(scheme, few, changed, QUICK, threads=1)
    assert (choice.way, choice.errors) == ("all", {})
    assert "older rows have shapes in 2 folds" in choice.reason


def test_new_rows_of_one_shape_keep_all_rows(make_scheme, kernels, changed):
    one = pl.concat([changed.head(1)] * 120).with_columns(row_id=pl.int_range(120).cast(pl.String))
    choice = choose_rows(make_scheme(), kernels, one, QUICK, threads=1)
    assert (choice.way, choice.errors) == ("all", {})


def test_labels_of_the_gates_fold_decide_nothing(make_scheme, kernels, some, choice):
    scheme = make_scheme()

    def spoilt(rows):
        is_gate = pl.Series(fold_numbers(scheme, rows) == GATE_FOLD)
        return rows.with_columns(latency=pl.when(is_gate).then(1e6).otherwise(pl.col("latency")))

    assert choose_rows(scheme, spoilt(kernels), spoilt(some), QUICK, threads=1) == choice


def test_neither_row_nor_column_order_matters(make_scheme, kernels, some, choice):
    other = some.reverse().select(reversed(some.columns))
    assert choose_rows(make_scheme(), kernels.reverse(), other, QUICK, threads=1) == choice


def test_row_that_is_old_and_new_counts_as_new(make_scheme, kernels, some, choice):
    assert choose_rows(make_scheme(), pl.concat([kernels, some]), some, QUICK, threads=1) == choice


def test_errors_of_the_three_ways_are_of_the_same_rows(make_scheme, kernels, some, monkeypatch):
    """Paired rows: the error of `all` is that of its new rows alone, in the order of the others."""
    scheme = make_scheme()
    seen = []
    monkeypatch.setattr(row_choice, "_upper_ratio", lambda *pair: seen.append(pair[:2]) or 1.0)
    choose_rows(scheme, kernels, some, QUICK, threads=1)
    errors, others = seen[0]
    mixed, _ = make_recipe(scheme, pl.concat([kernels, some]), QUICK, threads=1)
    expected = []
    for number in sorted(set(fold_numbers(scheme, some).tolist()) - {GATE_FOLD}):
        ids = mixed.rows.filter(pl.Series(mixed.fold == number))["row_id"]
        by_id = dict(zip(ids, mixed.heldout_errors(number), strict=True))
        members = some.filter(pl.Series(fold_numbers(scheme, some) == number)).sort("row_id")
        expected += [by_id[name] for name in members["row_id"]]
    assert others.tolist() == expected
    assert len(errors) == len(others)


def test_one_fold_of_very_many_new_rows_is_enough(make_scheme, kernels, changed, monkeypatch):
    monkeypatch.setattr(row_choice, "ROWS_OF_ONE_FOLD", 500)
    monkeypatch.setattr(row_choice, "LARGEST_OLD_COUNT", 300)
    choice = choose_rows(make_scheme(), kernels, changed, QUICK, threads=1)
    folds = fold_numbers(make_scheme(), changed)
    assert choice.judged_count == int((folds == 1).sum())
    assert choice.old_count == 576


def test_choice_is_json(make_scheme, kernels, changed):
    choice = choose_rows(make_scheme(), kernels, changed.head(10), QUICK, threads=1)
    assert json.loads(json.dumps(choice.to_document())) == choice.to_document()


def test_launches_choose_as_tables_do(make_launches):
    old = make_launches()
    factor = pl.when(pl.col("line_count") == 4).then(1.6).otherwise(1.0)
    new = make_launches(seed=3).with_columns(
        pl.concat_str(pl.lit("new:"), "launch_id").alias("launch_id"),
        first_launch_api_us=pl.col("first_launch_api_us") * factor,
    )
    choice = choose_rows(LAUNCH_SCHEME, old, new.sample(200, seed=1), QUICK, threads=1)
    assert choice.way != "all"
    assert choice.errors[choice.way] < 0.5 * choice.errors["all"]
    assert "held-out new launches" in choice.reason


def test_interval_of_the_ratio_knows_pairs():
    """Where both ways miss each row alike but for 3 %, the interval is narrow however much rows differ."""
    others = np.exp(np.random.default_rng(0).normal(0, 2, 200))
    units = np.arange(200)
    assert row_choice._upper_ratio(0.97 * others, others, units, 0) == pytest.approx(0.97)
    shuffled = np.random.default_rng(1).permutation(others)
    assert row_choice._upper_ratio(0.97 * shuffled, others, units, 0) > 1.2
    assert row_choice._upper_ratio(np.ones(5), np.zeros(5), units[:5], 0) > 1e6


def test_rows_of_one_shape_are_drawn_together():
    random = np.random.default_rng(0)
    false_gains = 0
    for seed in range(60):
        # 50 shapes of 10 rows whose error is shared: no way is better, and chance makes one look so.
        own, other = (np.repeat(random.lognormal(0, 0.5, 50), 10) for _ in range(2))
        units = np.repeat(np.arange(50), 10)
        false_gains += row_choice._upper_ratio(own, other, units, seed) < 1
    assert false_gains <= 8
