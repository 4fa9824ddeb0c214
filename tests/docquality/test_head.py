import numpy as np
import pytest

from warpgauge.docquality.head import (
    STRENGTHS,
    assign_folds,
    choose_strength,
    fit_head,
    heldout_loss,
    out_of_fold_logits,
)
from warpgauge.errors import TrainingError


def test_folds_keep_groups_whole_and_spread_a_class_of_six_percent():
    labels = np.array([1 if at % 17 == 0 else 0 for at in range(1000)])
    groups = [f"g{at // 2}" for at in range(1000)]
    folds = assign_folds(labels, groups, 2)
    assert set(folds) == {0, 1, 2, 3, 4}
    by_group = {
        group: {int(f) for f, g in zip(folds, groups, strict=True) if g == group} for group in groups[:50]
    }
    assert all(len(found) == 1 for found in by_group.values())
    counts = np.bincount(folds[labels == 1], minlength=5)
    assert counts.max() - counts.min() <= 1


def test_folds_do_not_depend_on_the_order_of_rows():
    labels = np.array([0, 1] * 20)
    groups = [f"g{at}" for at in range(40)]
    backwards = assign_folds(labels[::-1], groups[::-1], 2)[::-1]
    assert np.array_equal(assign_folds(labels, groups, 2), backwards)


def test_three_documents_of_a_class_give_three_folds_with_one_each():
    labels = np.array([1, 1, 1] + [0] * 30)
    folds = assign_folds(labels, [f"g{at}" for at in range(33)], 2)
    assert sorted(folds[:3]) == [0, 1, 2]


def test_a_class_that_is_one_document_only_is_refused():
    with pytest.raises(TrainingError, match=r"class 1 occurs in 1 independent"):
        assign_folds(np.array([1, 1, 0, 0]), ["a", "a", "b", "c"], 2)


def test_a_head_without_a_class_is_refused():
    with pytest.raises(TrainingError, match="class 1 has no row"):
        fit_head(np.zeros((5, 2)), np.zeros(5, dtype=np.int64), 2, 0.1)


@pytest.mark.parametrize("class_count", [2, 3])
def test_the_head_finds_the_column_that_tells(class_count):
    generator = np.random.default_rng(0)
    labels = generator.integers(0, class_count, 300)
    matrix = generator.normal(size=(300, 5))
    matrix[:, 2] += 3 * labels
    head = fit_head(matrix, labels, class_count, 0.1)
    assert np.abs(head.weights[-1] - head.weights[0]).argmax() == 2
    assert (head.logits(matrix).argmax(axis=1) == labels).mean() > 0.85


def test_out_of_fold_scores_of_noise_tell_nothing():
    generator = np.random.default_rng(0)
    matrix, labels = generator.normal(size=(200, 100)), np.arange(200) % 2
    groups = [f"g{at}" for at in range(200)]
    folds = assign_folds(labels, groups, 2)
    said = out_of_fold_logits(matrix, labels, folds, 2, 0.1).argmax(axis=1)
    fitted = fit_head(matrix, labels, 2, 0.1).logits(matrix).argmax(axis=1)
    assert abs((said == labels).mean() - 0.5) < 0.15
    assert (fitted == labels).mean() > 0.75


def test_the_chosen_strength_has_the_least_held_out_loss():
    generator = np.random.default_rng(0)
    labels = np.arange(120) % 2
    matrix = generator.normal(size=(120, 60))
    matrix[:, :30] += 0.5 * labels[:, None]
    everyone = np.repeat("all", 120)
    folds = assign_folds(labels, [f"g{at}" for at in range(120)], 2)
    losses = {c: heldout_loss(matrix, labels, folds, 2, everyone, c) for c in STRENGTHS}
    assert losses[choose_strength(matrix, labels, folds, 2, everyone)] == min(losses.values()) < np.log(2)
