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

# Keeps the fit finite where the classes are separated without error; far too weak to matter elsewhere.
_RIDGE = 1e-3


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
    from scipy.optimize import minimize

    classes = logits.shape[1]
    counts = np.bincount(labels, minlength=classes)
    targets = np.repeat((1.0 / (counts[labels] + classes))[:, None], classes, axis=1)
    targets[np.arange(len(labels)), labels] = (counts[labels] + 1.0) / (counts[labels] + classes)

    def loss(parameters: Floats) -> tuple[float, Floats]:
        slope = np.exp(parameters[0])
        bias = np.concatenate([[0.0], parameters[1:]])
        values = slope * logits + bias
        top = values.max(axis=1, keepdims=True)
        log_total = top + np.log(np.exp(values - top).sum(axis=1, keepdims=True))
        difference = (np.exp(values - log_total) - targets) / len(labels)
        value = -float((targets * (values - log_total)).sum()) / len(labels)
        gradient = np.concatenate([[float((difference * logits).sum()) * slope], difference.sum(axis=0)[1:]])
        return value + _RIDGE * float(parameters @ parameters) / 2, gradient + _RIDGE * parameters

    bounds = [(-5.0, 5.0)] + [(-20.0, 20.0)] * (classes - 1)
    found = minimize(loss, np.zeros(classes), jac=True, method="L-BFGS-B", bounds=bounds).x
    return Calibration(temperature=float(np.exp(-found[0])), bias=(0.0, *(float(b) for b in found[1:])))


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
