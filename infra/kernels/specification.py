"""What the kernels must answer, in NumPy: short enough to be right by reading."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Float32Array = npt.NDArray[np.float32]
Int32Array = npt.NDArray[np.int32]


def scale_features(matrix: Float32Array, center: Float32Array, scale: Float32Array) -> Float32Array:
    """(value - center) / scale of each column, in float32; a scale of 0 divides by 1, NaN stays NaN.

    Args:
        matrix: Shape (rows, columns).
        center, scale: One number a column.
    """
    with np.errstate(all="ignore"):
        return (matrix - center) / np.where(scale == 0, np.float32(1), scale)


def top_k(matrix: Float32Array, k: int) -> tuple[Float32Array, Int32Array]:
    """The k largest values of each row, largest first, and their columns.

    Equal values go by lower column, NaN after every number; slots beyond the columns hold NaN and -1.

    Args:
        matrix: Shape (rows, columns).
        k: 0 or more.

    Returns:
        Values and columns, each of shape (rows, k).
    """
    order = np.argsort(-matrix, axis=1, kind="stable")[:, :k]
    values = np.full((len(matrix), k), np.nan, dtype=np.float32)
    columns = np.full((len(matrix), k), -1, dtype=np.int32)
    values[:, : order.shape[1]] = np.take_along_axis(matrix, order, axis=1)
    columns[:, : order.shape[1]] = order
    return values, columns
