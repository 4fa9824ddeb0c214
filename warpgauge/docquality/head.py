"""The linear head, its folds and its strength: logistic regression for any number of classes.

Folds keep a group (one function over all versions, one report) on one side, and spread the rarest class
first, so that a class of 6 % is in every fold while it has groups enough.
"""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from warpgauge.docquality.calibration import Floats, GroupCalibration, Integers, fit_group_calibration
from warpgauge.errors import TrainingError

# Inverse strengths of the ridge penalty that are tried, weakest last. On 1,417 real pull-request texts the
# best lies between 0.003 and 0.1 for unit-spread columns.
STRENGTHS = (0.0001, 0.0003, 0.001, 0.003, 0.01, 0.03, 0.1)

FOLD_COUNT = 5
_ITERATIONS = 2000

# Gradient at which the fit ends: on real header entries 1e-3 gives the held-out figures of 1e-4 to three
# digits in a third of the time.
_TOLERANCE = 1e-3


@dataclass(frozen=True)
class LinearHead:
    """Weights of a softmax regression.

    Attributes:
        weights: Shape (classes, columns); of two classes the first is the reference, all zero.
        intercepts: Shape (classes,).
    """

    weights: Floats
    intercepts: Floats

    def logits(self, matrix: Floats) -> Floats:
        """Uncalibrated scores, shape (rows, classes)."""
        return matrix @ self.weights.T + self.intercepts


def fit_head(matrix: Floats, labels: Integers, class_count: int, strength: float) -> LinearHead:
    """Logistic regression with balanced class weights.

    Args:
        matrix: Shape (rows, columns).
        labels: Class of each row, 0 to class_count - 1.
        class_count: Number of classes; all must occur.
        strength: scikit-learn's C, larger fits closer.

    Raises:
        TrainingError: If a class has no row, or the fit did not converge.
    """
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    counts = np.bincount(labels, minlength=class_count)
    if (counts == 0).any():
        raise TrainingError(
            f"class {int(np.argmin(counts))} has no row among {len(labels)}; a head needs rows of all "
            f"{class_count} classes, add labels of the missing one"
        )
    learner = LogisticRegression(C=strength, class_weight="balanced", max_iter=_ITERATIONS, tol=_TOLERANCE)
    with warnings.catch_warnings():
        warnings.simplefilter("error", ConvergenceWarning)
        try:
            learner.fit(matrix, labels)
        except ConvergenceWarning as warning:
            raise TrainingError(
                f"the linear head did not converge in {_ITERATIONS} steps at strength {strength} on "
                f"{matrix.shape[0]} rows x {matrix.shape[1]} columns ({warning}); look for a column with "
                f"extreme values"
            ) from warning
    if class_count == 2:
        zero = np.zeros((1, matrix.shape[1]))
        return LinearHead(
            np.concatenate([zero, learner.coef_]), np.array([0.0, float(learner.intercept_[0])])
        )
    return LinearHead(np.asarray(learner.coef_), np.asarray(learner.intercept_))


@contextmanager
def one_thread() -> Iterator[None]:
    """Numeric libraries use one thread inside.

    The products here are small, and on two busy cores the threads of the BLAS waited for each other twenty
    times as long as the work takes (340 s against 16 s for one whole training).
    """
    import scipy.linalg  # noqa: F401 - brings its own BLAS, which must be loaded to be limited
    import sklearn.linear_model  # noqa: F401
    from threadpoolctl import threadpool_limits

    with threadpool_limits(limits=1):
        yield


def assign_folds(
    labels: Integers, groups: Sequence[str], class_count: int, fold_count: int = FOLD_COUNT
) -> Integers:
    """The fold of each row, groups whole, each class spread as evenly as its groups allow.

    The same rows in any order get the same folds. There are fewer folds where the rarest class has fewer
    groups, never less than two.

    Raises:
        TrainingError: If a class is in one group only, so that no split has it on both sides.
    """
    members: dict[str, set[int]] = {}
    for label, group in zip(labels.tolist(), groups, strict=True):
        members.setdefault(group, set()).add(label)
    group_counts = np.array([sum(c in found for found in members.values()) for c in range(class_count)])
    if group_counts.min() < 2:
        raise TrainingError(
            f"class {int(group_counts.argmin())} occurs in {int(group_counts.min())} independent document(s), "
            f"a held-out estimate needs at least 2; label more documents of that class"
        )
    folds = int(min(fold_count, group_counts.min()))
    rarest = {group: min(found, key=lambda c: (group_counts[c], c)) for group, found in members.items()}
    order = sorted(members, key=lambda group: (rarest[group], hashlib.sha256(group.encode()).digest()))
    place = {group: at % folds for at, group in enumerate(order)}
    return np.array([place[group] for group in groups], dtype=np.int64)


def out_of_fold_logits(
    matrix: Floats, labels: Integers, folds: Integers, class_count: int, strength: float
) -> Floats:
    """Scores of each row by the head that was fitted without the row's fold, shape (rows, classes)."""
    logits = np.empty((len(labels), class_count))
    for fold in np.unique(folds):
        held = folds == fold
        logits[held] = fit_head(matrix[~held], labels[~held], class_count, strength).logits(matrix[held])
    return logits


def cross_calibrated(logits: Floats, labels: Integers, folds: Integers, groups: NDArray[np.str_]) -> Floats:
    """Probabilities of each row by a calibration that was fitted without the row's fold."""
    answer = np.empty_like(logits)
    for fold in np.unique(folds):
        held = folds == fold
        answer[held] = fold_calibration(logits, labels, folds, int(fold), groups).probabilities(
            logits[held], groups[held]
        )
    return answer


def fold_calibration(
    logits: Floats, labels: Integers, folds: Integers, fold: int, groups: NDArray[np.str_]
) -> GroupCalibration:
    """The calibration fitted on all folds but one."""
    kept = folds != fold
    return fit_group_calibration(logits[kept], labels[kept], groups[kept])


def heldout_loss(
    matrix: Floats,
    labels: Integers,
    folds: Integers,
    class_count: int,
    groups: NDArray[np.str_],
    strength: float,
) -> float:
    """Mean log loss, in nats, of cross-fitted heads after cross-fitted calibration."""
    logits = out_of_fold_logits(matrix, labels, folds, class_count, strength)
    return float(row_log_losses(cross_calibrated(logits, labels, folds, groups), labels).mean())


def choose_strength(
    matrix: Floats, labels: Integers, folds: Integers, class_count: int, groups: NDArray[np.str_]
) -> float:
    """The strength with the least held-out loss."""
    return min(STRENGTHS, key=lambda c: heldout_loss(matrix, labels, folds, class_count, groups, c))


def row_log_losses(probabilities: Floats, labels: Integers) -> Floats:
    """-log of the probability given to the true class, in nats; shape (rows,)."""
    return -np.log(np.clip(probabilities[np.arange(len(labels)), labels], 1e-15, 1.0))
