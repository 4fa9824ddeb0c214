"""What a reader of GPU readings hands back, and which numbers are none.

A reading is a value with a unit or a null with a reason. Drivers and exporters pass markers for "no value"
through as numbers; a marker that reads as a utilization would retrain a model for nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import polars as pl

from warpgauge.tables import GPU_SAMPLES

BLANK = "blank marker instead of a value"
OUT_OF_RANGE = "impossible value"
# DCGM's blank, not found, not supported and not permitted: 0x7ffffff0, 0x7ffffffffffffff0 and 2^47 upwards
# for 32-bit, 64-bit and floating-point fields (dcgm_structs.h); NVML_VALUE_NOT_AVAILABLE is -1, unsigned.
BLANK_VALUES = (
    *(float(2_147_483_632 + step) for step in range(4)),
    *(140_737_488_355_328.0 + step for step in range(4)),
    4_294_967_295.0,
)
# As a double 0x7ffffffffffffff0 is 2^63; 2^64 - 1 is 2^64.
SMALLEST_WIDE_BLANK = 9.2e18
READINGS = tuple(column.name for column in GPU_SAMPLES.columns if column.dtype.is_numeric())


@dataclass(frozen=True)
class SampleBatch:
    """The readings of one source.

    Attributes:
        frame: Exactly the columns of `tables.GPU_SAMPLES`; `collected_at` is null, the task stamps it.
        problems: What was refused, salvaged or lost, one sentence each; empty where all went well.
        counts: What was seen, by name.
        rejected: Impossible readings turned into nulls, by GPU and column.
        lost: UUIDs of GPUs that were expected and did not answer.
    """

    frame: pl.DataFrame
    problems: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)
    rejected: dict[str, dict[str, int]] = field(default_factory=dict)
    lost: tuple[str, ...] = ()


def range_of(column: str) -> tuple[float, float]:
    """Least and largest possible value of a reading."""
    definition = GPU_SAMPLES.column(column)
    least = 0.0 if definition.minimum is None else definition.minimum
    return least, math.inf if definition.maximum is None else definition.maximum


def fault_of(column: str, raw: float, value: float) -> str | None:
    """Why a number is no reading of that column; None for a good one.

    Args:
        column: A column of `READINGS`.
        raw: The number as the source gave it.
        value: The same in the column's unit.
    """
    if raw in BLANK_VALUES or raw >= SMALLEST_WIDE_BLANK:
        return BLANK
    least, largest = range_of(column)
    return None if math.isfinite(value) and least <= value <= largest else OUT_OF_RANGE
