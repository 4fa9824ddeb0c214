"""The kernels as functions of arrays, run through the driver."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np

from infra.kernels.driver import Driver, Kernel
from infra.kernels.specification import Float32Array, Int32Array

PTX_FOLDER = Path(__file__).parent / "ptx"
_ADDRESS, _COUNT = ctypes.c_uint64, ctypes.c_uint32
# Kernel -> (its file, its arguments in order).
KERNELS: dict[str, tuple[str, tuple[Any, ...]]] = {
    "scale_features": ("feature_scaling.ptx", (_ADDRESS, _ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _COUNT)),
    "top_k": ("top_k.ptx", (_ADDRESS, _ADDRESS, _ADDRESS, _COUNT, _COUNT, _COUNT)),
}
# 32 neighbours read one line of memory; 8 rows of them make a block of 256 threads.
SCALING_BLOCK = (32, 8, 1)
TOP_K_THREADS = 128
# Most blocks along y that a launch may have, on every GPU.
MOST_BLOCKS_Y = 65_535
# Enough for any GPU; further rows are walked by the same blocks.
MOST_ROW_BLOCKS = 1 << 20


def load_kernels(driver: Driver, folder: Path = PTX_FOLDER) -> dict[str, Kernel]:
    """Every kernel, compiled for the driver's GPU.

    Raises:
        DriverError: If the driver refuses one.
        OSError: If a file is missing.
    """
    return {
        name: driver.load((folder / file).read_text(encoding="ascii"), file).kernel(name, types)
        for name, (file, types) in KERNELS.items()
    }


def scale_features(
    kernel: Kernel, matrix: Float32Array, center: Float32Array, scale: Float32Array
) -> Float32Array:
    """See `specification.scale_features`.

    Raises:
        DriverError: If the driver fails, or the kernel wrote beyond its result.
    """
    rows, columns = matrix.shape
    scaled = np.zeros_like(matrix)
    wide, high, _ = SCALING_BLOCK
    grid = (-(-columns // wide), min(-(-rows // high), MOST_BLOCKS_Y), 1)
    inputs = (matrix, center, scale)
    _run(kernel, grid, SCALING_BLOCK, inputs, (scaled,), (rows, columns))
    return scaled


def top_k(kernel: Kernel, matrix: Float32Array, k: int) -> tuple[Float32Array, Int32Array]:
    """See `specification.top_k`.

    Raises:
        DriverError: If the driver fails, or the kernel wrote beyond its result.
    """
    rows, columns = matrix.shape
    values = np.zeros((rows, k), dtype=np.float32)
    indices = np.zeros((rows, k), dtype=np.int32)
    grid = (min(rows, MOST_ROW_BLOCKS) if k else 0, 1, 1)
    _run(kernel, grid, (TOP_K_THREADS, 1, 1), (matrix,), (values, indices), (rows, columns, k))
    return values, indices


def _run(
    kernel: Kernel,
    grid: tuple[int, int, int],
    block: tuple[int, int, int],
    inputs: tuple[np.ndarray, ...],
    outputs: tuple[np.ndarray, ...],
    counts: tuple[int, ...],
) -> None:
    """Send, launch, receive; afterwards the GPU's memory is as before."""
    driver = kernel.driver
    pointers = [driver.send(np.ascontiguousarray(array)) for array in (*inputs, *outputs)]
    kernel.launch(grid, block, *pointers, *counts)
    driver.synchronize()
    for pointer, array in zip(pointers[len(inputs) :], outputs, strict=True):
        driver.receive(pointer, array)
    for pointer in pointers:
        driver.check_guard(pointer)
        driver.free(pointer)
