"""Are a window's embeddings drawn from what the reference's were: a kernel two-sample test (MMD).

The maximum mean discrepancy with a Gaussian kernel compares whole distributions: a fifth of the documents on another
topic moves it although mean and variances hardly move. The kernel is bounded, so one wild embedding decides nothing.

Where nothing changed, the unbiased statistic over (1/n + 1/m) is distributed as a sum of centred chi-squares, whose
weights are the eigenvalues of the centred kernel. Its variance and third cumulant follow from the reference's own
kernel matrix by traces, and a Pearson type III distribution with these three moments gives quantiles rarer than any
bootstrap could draw (Gretton et al. 2009 use the same idea with two moments).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

# Rows kept with the model: 1.5 MB at 384 dimensions. More rows sharpen the test by less than a window's own noise.
KEPT_ROWS = 1000
# A reference that is unlucky is so for all its windows. On 20 re-drawn references of heavy-tailed simulations a limit
# at an eighth of the stated ratio still fired 38 times in 20,000, 34 of them in one reference; a 32nd is used.
SAFETY = 32.0

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class KernelReference:
    """What the test keeps of the reference.

    Attributes:
        rows: Some of its different embeddings, shape (rows, dimensions).
        squared_width: Squared distance at which the kernel has fallen to 1/e: the median of the rows'.
        within: Mean kernel between two different rows.
        null_variance, null_third_cumulant: Of the statistic over (1/n + 1/m) where nothing changed.
    """

    rows: npt.NDArray[np.float32]
    squared_width: float
    within: float
    null_variance: float
    null_third_cumulant: float

    def discrepancy(self, window: Floats) -> tuple[float, float]:
        """Unbiased squared MMD of a window, about 0 where nothing changed, and its standard error where something did.

        The error is that of the witness over the window's rows.
        """
        within, across = self._means(window)
        value = float(within.mean() + self.within - 2 * across.mean())
        error = 2 * float((within - across).std(ddof=1)) / math.sqrt(len(window))
        return value, error

    def witness(self, window: Floats) -> Floats:
        """How much more at home each row is in the window than in the reference, shape (documents,).

        Large where the window is dense and the reference is not: the rows that make the discrepancy.
        """
        within, across = self._means(window)
        return within - across

    def _means(self, window: Floats) -> tuple[Floats, Floats]:
        """Mean kernel of each row with the window's other rows, and with the reference's."""
        rows = window.astype(np.float32)
        kernel = _kernel(rows, rows, self.squared_width)
        within = (kernel.sum(axis=1, dtype=np.float64) - np.diag(kernel)) / max(len(rows) - 1, 1)
        across = _kernel(rows, self.rows, self.squared_width).mean(axis=1, dtype=np.float64)
        return np.asarray(within), np.asarray(across)

    def limit(self, window_rows: int, false_alarm_ratio: float) -> float:
        """Squared MMD that an unchanged window of that size exceeds with at most the stated chance."""
        deviation = math.sqrt(self.null_variance)
        skewness = self.null_third_cumulant / deviation**3
        quantile = _pearson3_quantile(1 - false_alarm_ratio / SAFETY, skewness)
        return quantile * deviation * (1 / window_rows + 1 / len(self.rows))


def fit_kernel_reference(rows: Floats, seed: int) -> KernelReference:
    """The kernel's width and the test's null distribution, from different rows of the reference.

    Args:
        rows: Shape (documents, dimensions), at least 3 different ones.
        seed: Which rows are kept where there are more than 1,000.
    """
    if len(rows) > KEPT_ROWS:
        chosen = np.random.default_rng(seed).choice(len(rows), KEPT_ROWS, replace=False)
        rows = rows[np.sort(chosen)]
    kept = rows.astype(np.float32)
    rows = kept.astype(np.float64)
    count = len(rows)
    norms = (rows**2).sum(axis=1)
    squared = np.maximum(norms[:, None] + norms[None, :] - 2 * rows @ rows.T, 0.0)
    # Rows that differ in float64 only may be one in float32; a width of 0 has no kernel.
    squared_width = float(np.median(squared[np.triu_indices(count, 1)])) or float(squared.max()) or 1.0
    kernel = np.exp(-squared / squared_width)
    means = kernel.mean(axis=0)
    centred = kernel - means - means[:, None] + kernel.mean()
    # A row's kernel with itself is 1 whatever the data: it belongs to no pair of different rows.
    np.fill_diagonal(centred, 0.0)
    variance = 2 * float((centred**2).sum()) / (count * (count - 1))
    third = 8 * float(np.einsum("ij,ji->", centred @ centred, centred)) / count**3
    return KernelReference(kept, squared_width, _within(kernel), max(variance, 1e-30), max(third, 0.0))


def _kernel(first: Rows, second: Rows, squared_width: float) -> Rows:
    squares = np.einsum("ij,ij->i", first, first)[:, None] + np.einsum("ij,ij->i", second, second)[None, :]
    squares -= 2 * (first @ second.T)
    # Rounding may leave a row a little less than no distance from itself.
    np.maximum(squares, 0.0, out=squares)
    squares /= -squared_width
    return np.exp(squares, out=squares)


def _within(kernel: Rows) -> float:
    """Mean over pairs of different rows."""
    count = len(kernel)
    return float((kernel.sum() - np.trace(kernel)) / (count * (count - 1)))


def _pearson3_quantile(probability: float, skewness: float) -> float:
    """Quantile of the Pearson type III distribution of mean 0 and variance 1, by Wilson and Hilferty (1931)."""
    z = NormalDist().inv_cdf(probability)
    if skewness < 1e-6:
        return z
    shape = 4 / skewness**2
    gamma = shape * max(0.0, 1 - 1 / (9 * shape) + z / (3 * math.sqrt(shape))) ** 3
    return (gamma - shape) / math.sqrt(shape)
