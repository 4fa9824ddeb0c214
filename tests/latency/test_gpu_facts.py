"""warpgauge/latency/gpu_facts.py, against figures that others collected."""

import json

import pytest

from warpgauge.errors import SettingsError
from warpgauge.latency.constraints import PCIE_GENERATIONS, PCIE_WIDTHS
from warpgauge.latency.gpu_facts import GPU_FACTS, MIB, find_gpu_facts, gpu_facts, nearest_names

# Where the NeuSight files and the published figures differ by more than 10 %, and why.
KNOWN_DIFFERENCES = {
    ("Tesla P4", "sm_count"): "they count 64 cores an SM as on GP100; the GP104 of a P4 has 20 SMs of 128",
}
# Figures of two GPUs taken as one (`_TP`), and GPUs of another maker.
LEFT_OUT = ("NVIDIA_H100_80GB_HBM3_TP", "AMD_")


@pytest.mark.parametrize(
    ("name", "figures"),
    [
        ("Tesla P100-PCIE-16GB", (732.0, 4 * MIB, 56, 9.3e12, 3, 16, 6.0)),
        ("Tesla V100-SXM2-16GB", (900.0, 6 * MIB, 80, 15.7e12, 3, 16, 7.0)),
        ("Tesla T4", (320.0, 4 * MIB, 40, 8.1e12, 3, 16, 7.5)),
        ("NVIDIA A100-SXM4-80GB", (2039.0, 40 * MIB, 108, 19.5e12, 4, 16, 8.0)),
        ("NVIDIA L4", (300.0, 48 * MIB, 58, 30.3e12, 4, 16, 8.9)),
        ("NVIDIA H100 80GB HBM3", (3350.0, 50 * MIB, 132, 67e12, 5, 16, 9.0)),
        ("NVIDIA H200", (4800.0, None, 132, 67e12, 5, 16, 9.0)),
    ],
)
def test_figures_are_those_of_the_data_sheet(name, figures):
    facts = gpu_facts(name)
    assert (
        facts.memory_bandwidth_gb_per_s,
        facts.l2_bytes,
        facts.sm_count,
        facts.fp32_flops_per_s,
        facts.pcie_generation,
        facts.pcie_width,
        facts.compute_capability,
    ) == figures


def test_the_gpus_of_the_public_launches_are_known():
    for name in ("Tesla P100-PCIE-16GB", "Tesla V100-SXM2-16GB", "NVIDIA A100-SXM4-80GB"):
        assert find_gpu_facts(name) is GPU_FACTS[name]


def test_every_figure_is_possible_and_names_its_source():
    for name, facts in GPU_FACTS.items():
        assert facts.name == name
        assert "NVIDIA" in facts.source
        assert 100 < facts.memory_bandwidth_gb_per_s < 10_000
        assert facts.l2_bytes is None or 1 <= facts.l2_bytes / MIB <= 200
        assert 1 <= facts.sm_count <= 200
        assert 1e12 < facts.fp32_flops_per_s < 2e14
        assert facts.pcie_generation in PCIE_GENERATIONS
        assert facts.pcie_width in PCIE_WIDTHS


def test_peak_arithmetic_fits_the_cores_and_a_possible_clock():
    cores = {6.0: 64, 6.1: 128, 7.0: 64, 7.5: 64, 8.0: 64, 8.6: 128, 8.9: 128, 9.0: 128, 12.0: 128}
    for facts in GPU_FACTS.values():
        clock_ghz = facts.fp32_flops_per_s / (2 * cores[facts.compute_capability] * facts.sm_count) / 1e9
        assert 1.0 < clock_ghz < 2.7, facts.name


def test_old_and_new_spellings_of_a_name_are_one_gpu():
    for spelling in (
        "A100-SXM4-80GB",
        "nvidia a100 sxm4 80gb",
        "NVIDIA_A100-SXM4-80GB",
        " Tesla A100-SXM4-80GB ",
    ):
        assert gpu_facts(spelling).name == "NVIDIA A100-SXM4-80GB"
    assert find_gpu_facts(None) is None
    assert find_gpu_facts("") is None
    assert find_gpu_facts("NVIDIA") is None


def test_an_unknown_name_is_refused_with_the_nearest_known_ones():
    with pytest.raises(SettingsError, match=r"named 'H200 NVL'; nearest: NVIDIA H200, NVIDIA H100 NVL"):
        gpu_facts("H200 NVL")
    assert nearest_names("A100")[0].startswith("NVIDIA A100")
    assert nearest_names("RTX 3060 Ti")[0] == "NVIDIA GeForce RTX 3060"
    with pytest.raises(SettingsError, match="known: Tesla P100-PCIE-16GB, "):
        gpu_facts("zzz")


def test_a_hostile_name_does_not_flood_the_message():
    with pytest.raises(SettingsError) as refused:
        gpu_facts("x" * 100_000)
    assert len(str(refused.value)) < 2_000


def test_figures_agree_with_the_neusight_files_within_10_percent(bench_data):
    compared, differing = 0, set()
    for path in sorted((bench_data / "latency_tables" / "neusight_device_configs").glob("*.json")):
        if path.stem.startswith(LEFT_OUT):
            continue
        theirs = json.loads(path.read_text())
        facts = gpu_facts(theirs["Device"])
        for figure, expected in {
            "memory_bandwidth_gb_per_s": theirs["Mem_Bw"],
            "l2_bytes": theirs["L2Cache"] * MIB,
            "sm_count": theirs["Num_Sm"],
            "fp32_flops_per_s": theirs["SingleFLOPs"] * 1e9,
        }.items():
            compared += 1
            if getattr(facts, figure) != pytest.approx(expected, rel=0.10):
                differing.add((facts.name, figure))
    assert compared == 36
    assert differing == set(KNOWN_DIFFERENCES)
