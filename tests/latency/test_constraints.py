"""warpgauge/latency/constraints.py: known answers by hand, and the banks counted thread by thread."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpgauge.errors import QuantityError
from warpgauge.latency.constraints import (
    PCIE_GENERATIONS,
    PCIE_WIDTHS,
    bandwidth_utilization_ratio,
    bank_conflict_bound_ratio,
    bank_conflict_degree,
    gpu_constraints,
    is_bandwidth_bound,
    is_pcie_saturated,
    l2_safe_batch,
    pcie_link_ceiling_gb_per_s,
    roofline_us,
)
from warpgauge.latency.gpu_facts import GPU_FACTS, GpuFacts, gpu_facts

NAN = float("nan")


def counted_degree(stride: int, access_bytes: int) -> int:
    """Cycles of one served part of a warp over the cycles of a conflict-free one, counted bank by bank."""
    words = access_bytes // 4
    threads = 32 // words
    banks: dict[int, set[int]] = {}
    for thread in range(threads):
        for part in range(words):
            word = thread * stride * words + part
            banks.setdefault(word % 32, set()).add(word)
    return max(len(found) for found in banks.values())


def test_half_of_the_peak_is_a_utilization_of_one_half():
    # 1,555,000 B in 2 us are 777.5 GB/s, half of an A100's 1555.
    assert bandwidth_utilization_ratio(1_555_000, 2.0, 1555) == 0.5
    assert bandwidth_utilization_ratio(0, 2.0, 1555) == 0.0


def test_bandwidth_bound_starts_above_85_percent():
    assert is_bandwidth_bound(0.851) is True
    assert is_bandwidth_bound(0.85) is False


def test_l2_safe_batch_is_the_floor_of_seven_tenths():
    assert l2_safe_batch(40 * 2**20, 2**20) == 28
    assert l2_safe_batch(4 * 2**20, 4 * 2**20) == 0
    assert l2_safe_batch(6 * 2**20, 1_500_000) == math.floor(0.7 * 6 * 2**20 / 1_500_000)


@settings(deadline=None)
@given(st.integers(1, 10**6), st.integers(1, 10**4))
def test_an_exact_fit_counts_as_fitting(item_bytes, items):
    # 0.7 as a binary fraction is a little too small and would lose the last item of many exact fits.
    assert l2_safe_batch(10 * item_bytes * items, 7 * item_bytes) == items


@pytest.mark.parametrize(
    ("stride", "degree"),
    [(0, 1), (1, 1), (2, 2), (3, 1), (4, 4), (8, 8), (16, 16), (32, 32), (33, 1), (-2, 2)],
)
def test_bank_conflicts_of_known_strides(stride, degree):
    assert bank_conflict_degree(stride) == degree
    assert bank_conflict_bound_ratio(stride) == 1 / degree


@pytest.mark.parametrize("access_bytes", [4, 8, 16])
def test_bank_conflicts_are_those_counted_bank_by_bank(access_bytes):
    strides = np.arange(-70, 71)
    counted = [counted_degree(int(stride), access_bytes) for stride in strides]
    assert bank_conflict_degree(strides, access_bytes).tolist() == counted


def test_doubles_with_stride_1_have_no_conflict_and_with_stride_2_have_one():
    assert bank_conflict_degree(1, 8) == 1
    assert bank_conflict_degree(2, 8) == 2
    assert bank_conflict_degree(16, 8) == 16
    assert bank_conflict_degree(32, 8) == 16


def test_a_stride_beyond_any_integer_is_still_answered():
    assert bank_conflict_degree(1e300) == 32
    assert bank_conflict_degree(2.0**53 + 2) == 2


@pytest.mark.parametrize(
    ("generation", "width", "ceiling"),
    [
        (1, 16, 4.0),
        (2, 16, 8.0),
        (3, 8, 7.877),
        (3, 16, 15.754),
        (4, 16, 31.508),
        (5, 16, 63.015),
        (6, 16, 121.0),
    ],
)
def test_link_ceilings_are_the_known_ones(generation, width, ceiling):
    assert pcie_link_ceiling_gb_per_s(generation, width) == pytest.approx(ceiling, abs=0.001)


def test_the_essays_7_2_gb_per_s_saturate_gen3_x8_only():
    assert is_pcie_saturated(7.2, 3, 8) is True
    assert is_pcie_saturated(7.1, 3, 8) is False
    assert is_pcie_saturated(7.2, 3, 16) is False
    assert is_pcie_saturated(7.2, 4, 8) is False


def test_an_idle_links_generation_is_refused_rather_than_called_saturated():
    # 6 GB/s cannot have come over Gen1 x16, which is what an idle Gen3 GPU reports.
    with pytest.raises(QuantityError, match="idle one reports generation 1"):
        is_pcie_saturated(6.0, 1, 16)
    with pytest.raises(QuantityError, match=r"rx_gb_per_s: 6 at index 1 \(1 of 2 values\)"):
        is_pcie_saturated(np.array([1.0, 6.0]), np.array([1, 1]), 16)


def test_roofline_is_the_longer_of_both():
    assert roofline_us(2e9, 1e6, 1e12, 1e9) == 2000.0
    assert roofline_us(2e9, 1e3, 1e12, 1e9) == 2000.0
    assert roofline_us(1e6, 5e6, 1e12, 1e9) == 5000.0
    assert roofline_us(0, 5e6, 1e12, 1e9) == 5000.0


def test_arrays_answer_like_single_values_and_missing_stays_missing():
    rx = np.array([7.2, NAN, 1.0])
    assert np.array_equal(is_pcie_saturated(rx, np.array([3, 3, NAN]), 8), [1.0, NAN, NAN], equal_nan=True)
    assert np.array_equal(is_bandwidth_bound(np.array([0.9, NAN, 0.1])), [1.0, NAN, 0.0], equal_nan=True)
    assert np.array_equal(bank_conflict_degree(np.array([2.0, NAN, 0.0])), [2, NAN, 1], equal_nan=True)
    assert np.array_equal(
        l2_safe_batch(np.array([40 * 2**20, NAN]), np.array([2**20, 2**20])), [28, NAN], equal_nan=True
    )
    assert np.array_equal(
        roofline_us(np.array([2e9, NAN, 0.0]), np.array([1e6, 1e6, NAN]), 1e12, 1e9),
        [2000.0, NAN, NAN],
        equal_nan=True,
    )
    table = np.ones((2, 3))
    assert bandwidth_utilization_ratio(table, 1.0, 1000.0).shape == (2, 3)
    assert bandwidth_utilization_ratio(np.array([]), np.array([]), 1000.0).shape == (0,)


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: bandwidth_utilization_ratio(-1, 1, 1), "bytes_moved is -1, needed is 0 or more"),
        (lambda: bandwidth_utilization_ratio(1, 0, 1), "kernel_time_us is 0, needed is above 0"),
        (lambda: bandwidth_utilization_ratio(1, 1, NAN), "peak_bandwidth_gb_per_s is NaN"),
        (lambda: bandwidth_utilization_ratio(1, math.inf, 1), "kernel_time_us is inf, needed is a finite"),
        (lambda: bandwidth_utilization_ratio(None, 1, 1), "bytes_moved is missing"),
        (lambda: bandwidth_utilization_ratio("12", 1, 1), "bytes_moved holds <U2"),
        (lambda: bandwidth_utilization_ratio(True, 1, 1), "bytes_moved holds bool"),
        (lambda: bandwidth_utilization_ratio([1, None], 1, 1), "bytes_moved holds object"),
        (lambda: bandwidth_utilization_ratio(np.ones(2), np.ones(3), 1), r"bytes_moved \(2,\).*\(3,\)"),
        (lambda: bandwidth_utilization_ratio(1e300, 1e-300, 1e-300), "check the units"),
        (lambda: is_bandwidth_bound(-0.1), "utilization_ratio is -0.1"),
        (lambda: is_bandwidth_bound(NAN), "utilization_ratio is NaN"),
        (lambda: l2_safe_batch(0, 1), "l2_bytes is 0"),
        (lambda: l2_safe_batch(1, 0), "activation_bytes_per_item is 0"),
        (lambda: l2_safe_batch(np.array([5.0, 0.0]), np.ones(2)), r"l2_bytes: 0 at index 1 \(1 of 2"),
        (lambda: l2_safe_batch(np.array([[1.0], [-3.0]]), np.ones((2, 1))), r"-3 at index \(1, 0\)"),
        (lambda: bank_conflict_degree(1.5), "stride is 1.5, needed is a whole number"),
        (lambda: bank_conflict_degree(1, 12), "access_bytes is 12; a thread accesses 4, 8, 16"),
        (
            lambda: pcie_link_ceiling_gb_per_s(7, 16),
            "PCIe generation is 7, needed is one of 1, 2, 3, 4, 5, 6",
        ),
        (lambda: pcie_link_ceiling_gb_per_s(0, 16), "PCIe generation is 0"),
        (lambda: pcie_link_ceiling_gb_per_s(3.5, 16), "PCIe generation is 3.5"),
        (lambda: pcie_link_ceiling_gb_per_s(3, 0), "PCIe width is 0, needed is one of 1, 2, 4"),
        (lambda: pcie_link_ceiling_gb_per_s(3, 5), "PCIe width is 5"),
        (lambda: is_pcie_saturated(-1, 3, 8), "rx_gb_per_s is -1"),
        (lambda: roofline_us(-1, 1, 1, 1), "flops is -1"),
        (lambda: roofline_us(1, 1, 0, 1), "peak_flops_per_s is 0"),
        (lambda: roofline_us(0, 0, 1, 1), "flops is 0, needed is above 0 where bytes_moved is 0 too"),
    ],
)
def test_impossible_values_are_refused_by_name(call, said):
    with pytest.raises(QuantityError, match=said):
        call()


@settings(deadline=None)
@given(st.sampled_from(PCIE_GENERATIONS), st.sampled_from(PCIE_WIDTHS))
def test_a_link_is_saturated_above_91_percent_of_its_own_ceiling(generation, width):
    ceiling = pcie_link_ceiling_gb_per_s(generation, width)
    assert is_pcie_saturated(0.92 * ceiling, generation, width)
    assert not is_pcie_saturated(0.90 * ceiling, generation, width)


def test_constraints_of_a_gpu_are_its_figures_through_the_functions():
    found = {one.name: one.value for one in gpu_constraints(gpu_facts("Tesla P100-PCIE-16GB"))}
    assert found["bandwidth_bound_gb_per_s"] == pytest.approx(0.85 * 732)
    assert found["ridge_flops_per_byte"] == pytest.approx(9.3e12 / 732e9)
    assert found["l2_safe_batch_at_1_mib_per_item"] == 2
    assert found["pcie_ceiling_gb_per_s"] == pytest.approx(15.754, abs=0.001)
    assert found["pcie_saturation_gb_per_s"] == pytest.approx(0.91 * 15.754, abs=0.001)


def test_what_is_not_known_of_a_gpu_leaves_its_constraint_unknown():
    unknown = GpuFacts("some GPU", *(None,) * 8, source="none")
    for one in gpu_constraints(unknown):
        assert (one.value is None) is not one.name.startswith("bank_conflict")
    for facts in GPU_FACTS.values():
        assert all(one.value is None or one.value >= 0 for one in gpu_constraints(facts))
