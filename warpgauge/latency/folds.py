"""Which side of a split a row is on: the same today and in a year, whatever arrived in between.

Rows of one shape stay on one side. Fold 0 is the gate's: no final model ever trains on it, so champion and
challenger can always be compared on rows that neither has seen.
"""

from __future__ import annotations

import hashlib

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.latency.scheme import RowScheme

IntArray = npt.NDArray[np.int64]

FOLD_COUNT = 5
GATE_FOLD = 0
# One fold to learn from and one to say when to stop.
LEAST_TRAINING_FOLDS = 2
FOLD_RULE = (
    "5 folds by SHA-256 of (topology, lines, block of 10 consecutive lengths) for lines, of the graph signature "
    "or the spec's shape otherwise; fold 0 is the gate's and is never trained on"
)


def fold_numbers(scheme: RowScheme, rows: pl.DataFrame) -> IntArray:
    """Fold of each row, 0 to 4: the same for the same shape under any circumstances."""
    shapes = scheme.shapes(rows)
    known = {shape: _hash_fold(shape) for shape in shapes.unique().to_list()}
    return np.asarray([known[shape] for shape in shapes.to_list()], dtype=np.int64)


def _hash_fold(shape: str) -> int:
    return int(hashlib.sha256(shape.encode()).hexdigest()[:8], 16) % FOLD_COUNT
