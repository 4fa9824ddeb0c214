"""Limits that physics sets: which of memory, cache, shared memory, PCIe link and arithmetic bounds some work.

Each function works alone, on single values and on numpy arrays alike, so that a kernel's author, a feature
and a report use the same one. One convention for all: a single value has to be known, and the answer is a
float or bool; in an array NaN stands for a missing value, and the answer there is NaN (flags are then 1.0,
0.0 and NaN). Whatever is impossible is refused by name, never answered with a number.

GB is 1e9 bytes, MiB is 2**20 bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, TypeVar, overload

import numpy as np
import numpy.typing as npt

from warpgauge.errors import QuantityError
from warpgauge.latency.gpu_facts import GpuFacts

FloatArray = npt.NDArray[np.float64]
Amount = TypeVar("Amount", float, FloatArray)

# Beyond this share of the peak a kernel waits for memory: refresh, turnaround between reads and writes, and
# row misses keep plain copies at 85 to 93 % of the data sheet's figure.
BANDWIDTH_BOUND_RATIO = 0.85
# The rest of L2 is for weights, instructions and what other kernels keep there.
L2_SAFE_SHARE = Fraction(7, 10)

# CUDA C++ Programming Guide, compute capability 5.x and later: 32 banks, successive 4-byte words in
# successive banks, each gives one word a cycle; threads that read the same word are served by one broadcast.
BANK_COUNT = 32
BANK_BYTES = 4
# 8 and 16 bytes a thread are more than the banks give in a cycle, so a warp is served in halves or quarters
# (NVIDIA's engineers on its developer forum; the guide says it of compute capability 3.x only).
ACCESS_BYTES = (4, 8, 16)

# PCI Express Base Specification, the revision of each generation: billions of transfers a second and lane,
# and the share that its encoding leaves. 8b/10b to generation 2; 128b/130b from 3 to 5; generation 6 moves
# two bits by PAM4 (64 GT/s are counted after that) in FLITs of 256 bytes, of which 8 are CRC and 6 error
# correction. The 6 bytes of link-layer payload are kept, as acknowledgements count in the older generations.
_GIGATRANSFERS = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
_ENCODING_SHARE = {1: 8 / 10, 2: 8 / 10, 3: 128 / 130, 4: 128 / 130, 5: 128 / 130, 6: 242 / 256}
PCIE_GENERATIONS = tuple(_GIGATRANSFERS)
PCIE_WIDTHS = (1, 2, 4, 8, 12, 16, 32)
# 7.2 of the 7.88 GB/s of Gen3 x8: packet headers and acknowledgements take the rest of a full link.
PCIE_SATURATION_RATIO = 0.91
# NVML counts over 20 ms and rounds; more than this over the ceiling is a link misread, not a reading.
_COUNTER_TOLERANCE_RATIO = 1.05


@dataclass(frozen=True)
class Constraint:
    """One limit of one GPU.

    Attributes:
        name: Ends with its unit.
        value: None where a figure it needs is not known.
        meaning: In words, what happens at the limit.
    """

    name: str
    value: float | None
    meaning: str


def bandwidth_utilization_ratio(
    bytes_moved: Amount, kernel_time_us: Amount, peak_bandwidth_gb_per_s: Amount | float
) -> Amount:
    """Share of the memory's peak bandwidth that a kernel used.

    Args:
        bytes_moved: Bytes read and written, at least 0.
        kernel_time_us: Time of the kernel in microseconds, above 0.
        peak_bandwidth_gb_per_s: Peak of the data sheet, above 0.

    Returns:
        0 for a kernel that moves nothing, 1 at the peak. More than 1 says that not all these bytes went to
        memory: a cache served some.

    Raises:
        QuantityError: If a value is impossible.

    >>> bandwidth_utilization_ratio(1_555_000.0, 2.0, 1555.0)
    0.5
    """
    moved, time, peak = _shaped(
        bytes_moved=_at_least_zero("bytes_moved", bytes_moved),
        kernel_time_us=_positive("kernel_time_us", kernel_time_us),
        peak_bandwidth_gb_per_s=_positive("peak_bandwidth_gb_per_s", peak_bandwidth_gb_per_s),
    )
    return _answer("bandwidth utilization", lambda: moved / (peak * 1e9 * (time * 1e-6)), moved, time, peak)


@overload
def is_bandwidth_bound(utilization_ratio: float) -> bool: ...
@overload
def is_bandwidth_bound(utilization_ratio: FloatArray) -> FloatArray: ...
def is_bandwidth_bound(utilization_ratio: float | FloatArray) -> bool | FloatArray:
    """Whether memory bandwidth, not arithmetic, sets a kernel's time: more than 85 % of the peak is used.

    Args:
        utilization_ratio: See `bandwidth_utilization_ratio`, at least 0.

    Returns:
        A bool for a single value; 1.0, 0.0 or NaN (missing) for each of an array.

    Raises:
        QuantityError: If a value is impossible.
    """
    values = _at_least_zero("utilization_ratio", utilization_ratio)
    return _flags(values > BANDWIDTH_BOUND_RATIO, values)


def l2_safe_batch(l2_bytes: Amount | float, activation_bytes_per_item: Amount) -> Amount:
    """The largest batch whose activations stay in the L2 cache: floor(0.7 x L2 / activation size).

    Args:
        l2_bytes: Size of the L2 cache, above 0.
        activation_bytes_per_item: Activations of one item of the batch in bytes, above 0.

    Returns:
        Items, a whole number; 0 where not even one fits.

    Raises:
        QuantityError: If a value is impossible.

    >>> l2_safe_batch(40 * 2**20, 1_048_576.0)
    28.0
    """
    l2, item = _shaped(
        l2_bytes=_positive("l2_bytes", l2_bytes),
        activation_bytes_per_item=_positive("activation_bytes_per_item", activation_bytes_per_item),
    )
    # As a fraction of whole numbers, so that an exact fit is not lost by 0.7 being a little less.
    share = L2_SAFE_SHARE
    return _answer(
        "L2-safe batch", lambda: np.floor(l2 * share.numerator / (item * share.denominator)), l2, item
    )


def bank_conflict_degree(stride: Amount, access_bytes: int = BANK_BYTES) -> Amount:
    """How many times longer a shared-memory access takes than one without bank conflicts.

    Thread t of a warp of 32 accesses element t x stride. With 4 bytes an element the 32 banks are met by
    gcd(stride, 32) threads each; with 8 or 16 bytes a half or quarter of the warp is served at a time, and
    the comparison is with the conflict-free access of the same size.

    Args:
        stride: Elements between neighbouring threads, a whole number. Its sign does not matter; 0 is one
            element for all, which is a broadcast and no conflict.
        access_bytes: Bytes of an element: 4, 8 or 16.

    Returns:
        1 (no conflict) to 32, a power of two.

    Raises:
        QuantityError: If the stride is not a whole number, or the bytes are others.

    >>> [bank_conflict_degree(float(stride)) for stride in (0, 1, 2, 32, 33)]
    [1.0, 1.0, 2.0, 32.0, 1.0]
    """
    if access_bytes not in ACCESS_BYTES:
        raise QuantityError(
            f"access_bytes is {access_bytes!r}; a thread accesses {_listed(ACCESS_BYTES)} bytes of shared "
            f"memory at a time here, give one of these"
        )
    values = _whole("stride", stride)
    threads = BANK_COUNT * BANK_BYTES // access_bytes
    known = np.where(np.isnan(values), 0.0, values)
    # The remainder first: a stride beyond the range of integers would otherwise wrap around.
    common = np.gcd(np.fmod(known, threads).astype(np.int64), threads)
    degree = np.where(known == 0, 1.0, common.astype(np.float64))
    return _answer("bank-conflict degree", lambda: np.where(np.isnan(values), np.nan, degree), values)


def bank_conflict_bound_ratio(stride: Amount, access_bytes: int = BANK_BYTES) -> Amount:
    """The most of shared memory's peak throughput that an access with this stride can reach.

    Args:
        stride, access_bytes: See `bank_conflict_degree`.

    Returns:
        1 / degree: 1 without conflicts, 1/32 where all threads meet in one bank.

    Raises:
        QuantityError: See `bank_conflict_degree`.
    """
    degree = bank_conflict_degree(stride, access_bytes)
    return _answer("bank-conflict bound", lambda: 1.0 / np.asarray(degree), np.asarray(degree))


def pcie_link_ceiling_gb_per_s(generation: Amount, width: Amount | float) -> Amount:
    """What a PCIe link can carry one way after its encoding, before packet headers.

    Args:
        generation: 1 to 6.
        width: Lanes: 1, 2, 4, 8, 12, 16 or 32.

    Returns:
        GB/s one way.

    Raises:
        QuantityError: If no such link exists.

    >>> round(pcie_link_ceiling_gb_per_s(3.0, 8.0), 2)
    7.88
    """
    generations, widths = _shaped(
        generation=_one_of("PCIe generation", generation, PCIE_GENERATIONS),
        width=_one_of("PCIe width", width, PCIE_WIDTHS),
    )
    lane = np.full(generations.shape, np.nan)
    for number, transfers in _GIGATRANSFERS.items():
        lane = np.where(generations == number, transfers * _ENCODING_SHARE[number] / 8, lane)
    return _answer("PCIe ceiling", lambda: lane * widths, generations, widths)


@overload
def is_pcie_saturated(rx_gb_per_s: float, generation: float, width: float) -> bool: ...
@overload
def is_pcie_saturated(
    rx_gb_per_s: FloatArray, generation: float | FloatArray, width: float | FloatArray
) -> FloatArray: ...
def is_pcie_saturated(
    rx_gb_per_s: float | FloatArray, generation: float | FloatArray, width: float | FloatArray
) -> bool | FloatArray:
    """Whether the PCIe link, not the GPU, sets the pace: it receives more than 91 % of its own ceiling.

    Give the link as it is under load: NVML's maximum generation and width of this GPU in this slot, or the
    current ones of a sample that was read while data flowed. The current generation of an idle GPU is 1
    (power saving), and against that ceiling ordinary traffic would look saturated; a reading that such a
    link could not have carried is refused.

    Args:
        rx_gb_per_s: Received by the GPU, GB/s (NVML and DCGM say KB/s: divide by 1e6), at least 0.
        generation, width: See `pcie_link_ceiling_gb_per_s`.

    Returns:
        A bool for single values; 1.0, 0.0 or NaN (missing) for each of an array.

    Raises:
        QuantityError: If a value is impossible, or more was received than the link can carry.
    """
    received, generations, widths = _shaped(
        rx_gb_per_s=_at_least_zero("rx_gb_per_s", rx_gb_per_s),
        generation=_one_of("PCIe generation", generation, PCIE_GENERATIONS),
        width=_one_of("PCIe width", width, PCIE_WIDTHS),
    )
    ceiling = np.asarray(pcie_link_ceiling_gb_per_s(generations, widths))
    _refuse(
        "rx_gb_per_s",
        received,
        received > ceiling * _COUNTER_TOLERANCE_RATIO,
        "at most what the stated link can carry; pass the link as it is under load (its maximum), an idle "
        "one reports generation 1",
    )
    return _flags(received > PCIE_SATURATION_RATIO * ceiling, received + ceiling)


def roofline_us(
    flops: Amount,
    bytes_moved: Amount,
    peak_flops_per_s: Amount | float,
    peak_bytes_per_s: Amount | float,
) -> Amount:
    """The least time that some work can take: the longer of its arithmetic and its memory traffic, at the peaks.

    Args:
        flops: Floating-point operations, at least 0.
        bytes_moved: Bytes read and written, at least 0.
        peak_flops_per_s: Peak of the data sheet for the type in use, above 0.
        peak_bytes_per_s: Peak memory bandwidth in bytes per second (not GB/s), above 0.

    Returns:
        Microseconds, above 0.

    Raises:
        QuantityError: If a value is impossible, or the work is none at all, which bounds nothing.

    >>> roofline_us(2e9, 1e6, 1e12, 1e9)
    2000.0
    """
    work, moved, peak_flops, peak_bytes = _shaped(
        flops=_at_least_zero("flops", flops),
        bytes_moved=_at_least_zero("bytes_moved", bytes_moved),
        peak_flops_per_s=_positive("peak_flops_per_s", peak_flops_per_s),
        peak_bytes_per_s=_positive("peak_bytes_per_s", peak_bytes_per_s),
    )
    _refuse("flops", work, (work == 0) & (moved == 0), "above 0 where bytes_moved is 0 too")
    return _answer(
        "roofline",
        lambda: 1e6 * np.maximum(work / peak_flops, moved / peak_bytes),
        work,
        moved,
        peak_flops,
        peak_bytes,
    )


def gpu_constraints(facts: GpuFacts) -> list[Constraint]:
    """The limits of one GPU, with what each means; None where a figure is not known.

    Args:
        facts: Published figures, `gpu_facts.gpu_facts(name)`; for a GPU at hand with the generation and width of
            its own link.
    """
    bandwidth, l2, flops = facts.memory_bandwidth_gb_per_s, facts.l2_bytes, facts.fp32_flops_per_s
    ceiling = None
    if facts.pcie_generation is not None and facts.pcie_width is not None:
        ceiling = pcie_link_ceiling_gb_per_s(float(facts.pcie_generation), float(facts.pcie_width))
    found = [
        Constraint(
            "bandwidth_bound_gb_per_s",
            None if bandwidth is None else BANDWIDTH_BOUND_RATIO * bandwidth,
            "a kernel that moves more is bound by memory bandwidth (85 % of the peak)",
        ),
        Constraint(
            "ridge_flops_per_byte",
            None if bandwidth is None or flops is None else flops / (bandwidth * 1e9),
            "work with fewer fp32 operations a byte is bound by memory, with more by arithmetic",
        ),
        Constraint(
            "l2_safe_bytes",
            None if l2 is None else float(l2 * L2_SAFE_SHARE),
            "activations of a batch beyond this leave the L2 cache (70 % of it)",
        ),
    ]
    found += [
        Constraint(
            f"l2_safe_batch_at_{mebibytes}_mib_per_item",
            None if l2 is None else l2_safe_batch(float(l2), mebibytes * 2.0**20),
            f"largest batch whose activations of {mebibytes} MiB an item stay in the L2 cache",
        )
        for mebibytes in (1, 4)
    ]
    found += [
        Constraint(
            "pcie_ceiling_gb_per_s",
            ceiling,
            "what the link can carry one way"
            if ceiling is None
            else f"what the link (Gen{facts.pcie_generation} x{facts.pcie_width}) can carry one way",
        ),
        Constraint(
            "pcie_saturation_gb_per_s",
            None if ceiling is None else PCIE_SATURATION_RATIO * ceiling,
            "receiving more, the link sets the pace of launches (91 % of its ceiling)",
        ),
    ]
    found += [
        Constraint(
            f"bank_conflict_degree_at_stride_{stride}",
            bank_conflict_degree(float(stride)),
            f"times longer, shared memory accessed every {stride} words of 4 bytes",
        )
        for stride in (2, 8, 32, 33)
    ]
    return found


def _numbers(name: str, value: object) -> FloatArray:
    """The value as an array of floats, NaN where missing; of no dimension for a single one."""
    if value is None:
        raise QuantityError(f"{name} is missing; a single value has to be known, in an array give NaN")
    found = np.asarray(value)
    if found.dtype.kind not in "iuf":
        raise QuantityError(
            f"{name} holds {found.dtype} ({value!r:.80}), needed is a number or an array of numbers with NaN "
            f"where one is missing"
        )
    numbers = found.astype(np.float64)
    if numbers.ndim == 0 and np.isnan(numbers):
        raise QuantityError(f"{name} is NaN; a single value has to be known, only in an array NaN is missing")
    _refuse(name, numbers, np.isinf(numbers), "a finite number")
    return numbers


def _refuse(name: str, values: FloatArray, is_bad: npt.NDArray[np.bool_], needed: str) -> None:
    """Stop at the first bad value, naming it and its place."""
    if not np.any(is_bad):
        return
    if values.ndim == 0:
        raise QuantityError(f"{name} is {float(values):g}, needed is {needed}")
    place = tuple(int(index) for index in np.argwhere(is_bad)[0])
    shown = place[0] if len(place) == 1 else place
    raise QuantityError(
        f"{name}: {float(values[place]):g} at index {shown} ({int(np.sum(is_bad))} of {values.size} values), "
        f"needed is {needed}"
    )


def _at_least_zero(name: str, value: object) -> FloatArray:
    numbers = _numbers(name, value)
    _refuse(name, numbers, numbers < 0, "0 or more")
    return numbers


def _positive(name: str, value: object) -> FloatArray:
    numbers = _numbers(name, value)
    _refuse(name, numbers, numbers <= 0, "above 0")
    return numbers


def _whole(name: str, value: object) -> FloatArray:
    numbers = _numbers(name, value)
    _refuse(name, numbers, np.isfinite(numbers) & (numbers != np.round(numbers)), "a whole number")
    return numbers


def _one_of(name: str, value: object, allowed: tuple[int, ...]) -> FloatArray:
    numbers = _numbers(name, value)
    _refuse(name, numbers, ~np.isnan(numbers) & ~np.isin(numbers, allowed), f"one of {_listed(allowed)}")
    return numbers


def _listed(values: tuple[int, ...]) -> str:
    return ", ".join(map(str, values))


def _shaped(**values: FloatArray) -> list[FloatArray]:
    """The arrays in one shape; single values go with every element."""
    try:
        return [np.asarray(part) for part in np.broadcast_arrays(*values.values())]
    except ValueError:
        shapes = ", ".join(f"{name} {part.shape}" for name, part in values.items())
        raise QuantityError(
            f"arrays of different shapes cannot go together: {shapes}; give one value each"
        ) from None


def _answer(name: str, compute: Callable[[], FloatArray], *inputs: FloatArray) -> Any:
    """What the formula gives: a float for single values, an array with NaN where an input is missing."""
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        found = np.asarray(compute())
    is_known = ~np.any(np.isnan(np.stack(inputs)), axis=0)
    if np.any(is_known & ~np.isfinite(found)):
        raise QuantityError(
            f"{name} is beyond what a number can hold; check the units of the values it is computed from"
        )
    return float(found) if found.ndim == 0 else found


def _flags(is_on: npt.NDArray[np.bool_], known: FloatArray) -> bool | FloatArray:
    if is_on.ndim == 0:
        return bool(is_on)
    return np.where(np.isnan(known), np.nan, is_on.astype(np.float64))
