"""What is a linear head's score worth as a probability? One temperature and one bias a class.

A head trained with balanced class weights believes in equally frequent classes, and a head on 400 columns
believes too much in itself: "0.95 sure" then means little, and it is what self-training selects by. The
two numbers (Platt's scaling, for any number of classes) are fitted on scores of rows the head never saw.
Groups with other base rates (pages, reports) get their own where they have the labels for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Rows of each class below which a group's own calibration is mostly noise: at 20 the standard error of a
# log-odds bias is already 0.3.
GROUP_MINIMUM_ROWS = 20

# Keeps a step defined where all scores are equal; too weak to move a base rate (1e-3 moved 9.4 % to 9.7 %).
_RIDGE = 1e-6

_LEAST_SLOPE = 1e-3
_NEWTON_STEPS = 100
_NEWTON_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Calibration:
    """Turns logits into probabilities: softmax(logits / temperature + bias).

    Attributes:
        temperature: Above 1 where the head is over-confident.
        bias: Log-odds added to each class, the first 0; shape (classes,).
    """

    temperature: float
    bias: tuple[float, ...]

    def probabilities(self, logits: Floats) -> Floats:
        """Probabilities of each class, shape of the logits (rows, classes), rows sum to 1."""
        return softmax(logits / self.temperature + np.asarray(self.bias))


@dataclass(frozen=True)
class GroupCalibration:
    """One calibration for all rows and one for each group that has labels enough.

    Attributes:
        overall: Serves every group without its own.
        by_group: Group name to its calibration.
    """

    overall: Calibration
    by_group: Mapping[str, Calibration] = field(default_factory=dict)

    def probabilities(self, logits: Floats, groups: NDArray[np.str_]) -> Floats:
        """Probabilities of each class for rows of the named groups, shape (rows, classes)."""
        answer = self.overall.probabilities(logits)
        for name, calibration in self.by_group.items():
            rows = groups == name
            answer[rows] = calibration.probabilities(logits[rows])
        return answer


def softmax(logits: Floats) -> Floats:
    """Probabilities of each class, rows sum to 1; safe for large logits."""
    powers = np.exp(logits - logits.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def fit_calibration(logits: Floats, labels: Integers) -> Calibration:
    """The temperature and biases under which the labels are likeliest.

    The targets are Platt's: a class with n rows is believed up to (n + 1) / (n + classes), so that ten rows
    without an error do not become certainty.

    Args:
        logits: Scores of rows that the head was not trained on, shape (rows, classes).
        labels: Class of each row, 0 to classes - 1.
    """
    count, classes = logits.shape
    counts = np.bincount(labels, minlength=classes)
    targets = np.repeat((1.0 / (counts[labels] + classes))[:, None], classes, axis=1)
    targets[np.arange(count), labels] = (counts[labels] + 1.0) / (counts[labels] + classes)

    # Newton's method on slope and biases: convex, two to a few numbers, a dozen steps. A general minimiser
    # spent half of a whole training on it.
    start = np.concatenate([[1.0], np.zeros(classes - 1)])
    parameters = start
    value = _calibration_loss(parameters, start, logits, targets)
    for _ in range(_NEWTON_STEPS):
        probabilities = softmax(_calibrated(parameters, logits))
        difference = (probabilities - targets) / count
        gradient = np.concatenate([[(difference * logits).sum()], difference.sum(axis=0)[1:]])
        gradient += _RIDGE * (parameters - start)
        centred = logits - (probabilities * logits).sum(axis=1, keepdims=True)
        weighted = probabilities * centred / count
        hessian = np.empty((classes, classes))
        hessian[0, 0] = (weighted * centred).sum()
        hessian[0, 1:] = hessian[1:, 0] = weighted.sum(axis=0)[1:]
        hessian[1:, 1:] = (np.diag(probabilities.mean(axis=0)) - probabilities.T @ probabilities / count)[
            1:, 1:
        ]
        step = np.linalg.solve(hessian + _RIDGE * np.eye(classes), gradient)
        while True:
            trial = parameters - step
            # A head that is worse than a guess is answered with the base rates, never turned around.
            trial[0] = max(trial[0], _LEAST_SLOPE)
            trial_value = _calibration_loss(trial, start, logits, targets)
            if trial_value <= value or np.abs(step).max() < _NEWTON_TOLERANCE:
                break
            step = step / 2
        is_done = np.abs(trial - parameters).max() < _NEWTON_TOLERANCE
        parameters, value = trial, trial_value
        if is_done:
            break
    return Calibration(temperature=float(1 / parameters[0]), bias=(0.0, *(float(b) for b in parameters[1:])))


def _calibrated(parameters: Floats, logits: Floats) -> Floats:
    values: Floats = parameters[0] * logits + np.concatenate([[0.0], parameters[1:]])
    return values


def _calibration_loss(parameters: Floats, start: Floats, logits: Floats, targets: Floats) -> float:
    values = _calibrated(parameters, logits)
    top = values.max(axis=1, keepdims=True)
    log_total = top + np.log(np.exp(values - top).sum(axis=1, keepdims=True))
    likelihood = float((targets * (values - log_total)).sum()) / len(logits)
    return _RIDGE * float(((parameters - start) ** 2).sum()) / 2 - likelihood


def fit_group_calibration(logits: Floats, labels: Integers, groups: NDArray[np.str_]) -> GroupCalibration:
    """A calibration for all rows, and for each group with GROUP_MINIMUM_ROWS rows of every class its own.

    Args:
        logits: Scores of rows that the head was not trained on, shape (rows, classes).
        labels: Class of each row.
        groups: Group of each row.
    """
    classes = logits.shape[1]
    names = sorted(str(name) for name in np.unique(groups))
    by_group = {}
    for name in names if len(names) > 1 else []:
        rows = groups == name
        if np.bincount(labels[rows], minlength=classes).min() >= GROUP_MINIMUM_ROWS:
            by_group[name] = fit_calibration(logits[rows], labels[rows])
    return GroupCalibration(overall=fit_calibration(logits, labels), by_group=by_group)
