"""Random cases for the kernels: the same ones for the same seed, on every machine.

Each case mixes a size (1 x 1, nothing at all, odd, a block and one more), a kind of values (many zeros, few
different values, so that ties decide, or any float32 that bits can make) and special ones (NaN, infinities,
denormals, both zeros).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from infra.kernels.specification import Float32Array

SIZES = (0, 1, 2, 3, 5, 8, 31, 32, 33, 63, 64, 65)
# One line of threads, one block, the catalogue's 142 features, and sizes around them.
WIDTHS = (*SIZES, 127, 128, 129, 142, 255, 256, 257)
LARGE = ((3, 1021), (1021, 3), (1, 2049), (513, 33))
LARGE_EVERY = 50
VALUES = ("normal", "sparse", "very sparse", "ties", "two values", "equal", "any bits", "wide range")
SPECIAL = (np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45, 1.1754942e-38, 3.4028235e38, -3.4028235e38)


@dataclass(frozen=True)
class Case:
    """What goes into both kernels.

    Attributes:
        number: Place in the sequence of its seed.
        values: How the matrix was made.
        matrix: Shape (rows, columns).
        center, scale: One number a column.
        k: Largest values wanted, from 0 to a few more than there are columns.
    """

    number: int
    values: str
    matrix: Float32Array
    center: Float32Array
    scale: Float32Array
    k: int


def make_cases(count: int, seed: int) -> Iterator[Case]:
    """The first `count` cases of a seed; a case depends on nothing but the seed and its number."""
    for number in range(count):
        random = np.random.default_rng([seed, number])
        if number % LARGE_EVERY == LARGE_EVERY - 1:
            rows, columns = LARGE[number // LARGE_EVERY % len(LARGE)]
        else:
            rows, columns = int(random.choice(SIZES)), int(random.choice(WIDTHS))
        values = VALUES[number % len(VALUES)]
        matrix = _matrix(values, rows, columns, random)
        if random.random() < 0.5:
            matrix = _with_special(matrix, random)
        center = _with_special(random.normal(size=columns).astype(np.float32), random, share=0.05)
        scale = np.abs(_matrix("wide range", 1, columns, random)[0])
        scale[random.random(columns) < 0.2] = 0.0
        # Every size from none to all, and more than there are.
        k = int(
            random.choice([0, 1, 2, min(10, columns), columns, columns + 3, random.integers(columns + 1)])
        )
        yield Case(number, values, matrix, center, scale, k)


def _matrix(values: str, rows: int, columns: int, random: np.random.Generator) -> Float32Array:
    shape = (rows, columns)
    matrix = random.normal(size=shape)
    if values == "sparse":
        matrix[random.random(shape) < 0.9] = 0.0
    elif values == "very sparse":
        matrix[random.random(shape) < 0.995] = 0.0
    elif values == "ties":
        matrix = random.integers(-3, 4, size=shape)
    elif values == "two values":
        matrix = random.integers(0, 2, size=shape)
    elif values == "equal":
        matrix = np.full(shape, random.normal())
    elif values == "any bits":
        return random.integers(0, 2**32, size=shape, dtype=np.uint32).view(np.float32)
    elif values == "wide range":
        matrix = matrix * 10.0 ** random.uniform(-30, 30, size=shape)
    return matrix.astype(np.float32)


def _with_special(matrix: Float32Array, random: np.random.Generator, share: float = 0.2) -> Float32Array:
    """Some cells replaced by special values; a few columns of nothing but NaN."""
    special = np.array(SPECIAL, dtype=np.float32)[random.integers(len(SPECIAL), size=matrix.shape)]
    mixed = np.where(random.random(matrix.shape) < share, special, matrix)
    if matrix.ndim == 2:
        mixed[:, random.random(matrix.shape[1]) < 0.05] = np.nan
    return mixed.astype(np.float32)
