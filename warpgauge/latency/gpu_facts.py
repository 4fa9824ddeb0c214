"""Published figures of GPUs, by the name that NVML and nvidia-smi give.

A launch table knows a GPU by its name only; bandwidth, cache and link come from NVIDIA's own papers. Only
figures that a data sheet, a white paper or the CUDA runtime itself states are here; None where none is
certain. They are peaks: clocks under load, ECC and partitions (MIG) leave less.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass

from warpgauge.errors import SettingsError

MIB = 2**20
_SUGGESTED = 4
_NEAR_RATIO = 0.6
_LONGEST_NAME = 100


@dataclass(frozen=True)
class GpuFacts:
    """What is published of one GPU.

    Attributes:
        name: As NVML gives it.
        architecture: NVIDIA's name of the architecture.
        memory_bandwidth_gb_per_s: Peak, 1e9 bytes per second.
        l2_bytes: Size of the L2 cache.
        sm_count: Streaming multiprocessors in use on this product.
        fp32_flops_per_s: Peak of ordinary (not tensor) single precision at boost clock.
        pcie_generation, pcie_width: The card's own link; the slot may give less.
        compute_capability: For example 8.0.
        source: Where the figures are from.
    """

    name: str
    architecture: str | None
    memory_bandwidth_gb_per_s: float | None
    l2_bytes: int | None
    sm_count: int | None
    fp32_flops_per_s: float | None
    pcie_generation: int | None
    pcie_width: int | None
    compute_capability: float | None
    source: str


def _group(
    architecture: str,
    source: str,
    compute_capability: float,
    pcie_generation: int,
    products: dict[str, tuple[float, float | None, int, float | None]],
) -> list[GpuFacts]:
    """Products of one chip family: name -> GB/s, L2 in MiB, SMs, fp32 TFLOPS. All have 16 lanes."""
    return [
        GpuFacts(
            name=name,
            architecture=architecture,
            memory_bandwidth_gb_per_s=bandwidth,
            l2_bytes=None if l2_mib is None else int(l2_mib * MIB),
            sm_count=sm_count,
            fp32_flops_per_s=None if teraflops is None else teraflops * 1e12,
            pcie_generation=pcie_generation,
            pcie_width=16,
            compute_capability=compute_capability,
            source=source,
        )
        for name, (bandwidth, l2_mib, sm_count, teraflops) in products.items()
    ]


_FACTS: tuple[GpuFacts, ...] = (
    *_group(
        "Pascal",
        "NVIDIA Tesla P100 white paper (GP100) and the Tesla P100 PCIe data sheet",
        6.0,
        3,
        {
            "Tesla P100-PCIE-16GB": (732.0, 4, 56, 9.3),
            # Three memory stacks of four; its L2 is in no paper.
            "Tesla P100-PCIE-12GB": (549.0, None, 56, 9.3),
            "Tesla P100-SXM2-16GB": (732.0, 4, 56, 10.6),
        },
    ),
    *_group(
        "Pascal",
        "NVIDIA Tesla P4 and P40 data sheets; L2 as the CUDA runtime reports it",
        6.1,
        3,
        {
            "Tesla P4": (192.0, 2, 20, 5.5),
            "Tesla P40": (346.0, 3, 30, 12.0),
        },
    ),
    *_group(
        "Volta",
        "NVIDIA Tesla V100 white paper (GV100), V100 and V100S data sheets",
        7.0,
        3,
        {
            "Tesla V100-PCIE-16GB": (900.0, 6, 80, 14.0),
            "Tesla V100-PCIE-32GB": (900.0, 6, 80, 14.0),
            "Tesla V100-SXM2-16GB": (900.0, 6, 80, 15.7),
            "Tesla V100-SXM2-32GB": (900.0, 6, 80, 15.7),
            "Tesla V100S-PCIE-32GB": (1134.0, 6, 80, 16.4),
        },
    ),
    *_group(
        "Turing",
        "NVIDIA Turing white paper (TU102, TU104) and the T4 data sheet",
        7.5,
        3,
        {
            "Tesla T4": (320.0, 4, 40, 8.1),
            "NVIDIA GeForce RTX 2080 Ti": (616.0, 5.5, 68, 13.4),
        },
    ),
    *_group(
        "Ampere",
        "NVIDIA A100 white paper (GA100) and the A100 data sheet",
        8.0,
        4,
        {
            "NVIDIA A100-PCIE-40GB": (1555.0, 40, 108, 19.5),
            "NVIDIA A100-SXM4-40GB": (1555.0, 40, 108, 19.5),
            "NVIDIA A100 80GB PCIe": (1935.0, 40, 108, 19.5),
            "NVIDIA A100-SXM4-80GB": (2039.0, 40, 108, 19.5),
        },
    ),
    *_group(
        "Ampere",
        "NVIDIA A30 data sheet; L2 as the CUDA runtime reports it",
        8.0,
        4,
        {"NVIDIA A30": (933.0, 24, 56, 10.3)},
    ),
    *_group(
        "Ampere",
        "NVIDIA GA102 white paper; A10, A40, RTX A6000 data sheets; GeForce RTX 3060 product page",
        8.6,
        4,
        {
            "NVIDIA A10": (600.0, 6, 72, 31.2),
            "NVIDIA A40": (696.0, 6, 84, 37.4),
            "NVIDIA RTX A6000": (768.0, 6, 84, 38.7),
            # The chip has 3 MiB of L2; what this product keeps of it is in no paper.
            "NVIDIA GeForce RTX 3060": (360.0, None, 28, 12.7),
            "NVIDIA GeForce RTX 3080": (760.0, 5, 68, 29.8),
            "NVIDIA GeForce RTX 3090": (936.0, 6, 82, 35.6),
        },
    ),
    *_group(
        "Ada Lovelace",
        "NVIDIA Ada white paper (AD102); L4, L40, L40S, RTX 6000 Ada data sheets",
        8.9,
        4,
        {
            "NVIDIA L4": (300.0, 48, 58, 30.3),
            "NVIDIA L40": (864.0, 96, 142, 90.5),
            "NVIDIA L40S": (864.0, 96, 142, 91.6),
            "NVIDIA RTX 6000 Ada Generation": (960.0, 96, 142, 91.1),
            "NVIDIA GeForce RTX 4090": (1008.0, 72, 128, 82.6),
        },
    ),
    *_group(
        "Hopper",
        "NVIDIA H100 white paper (GH100); H100 and H200 data sheets",
        9.0,
        5,
        {
            "NVIDIA H100 PCIe": (2000.0, 50, 114, 51.0),
            "NVIDIA H100 80GB HBM3": (3350.0, 50, 132, 67.0),
            # The papers state the L2 of the 80 GB products only; these two have one more memory stack.
            "NVIDIA H100 NVL": (3900.0, None, 132, 60.0),
            "NVIDIA H200": (4800.0, None, 132, 67.0),
        },
    ),
    *_group(
        "Blackwell",
        "NVIDIA RTX Blackwell white paper (GB202)",
        12.0,
        5,
        {"NVIDIA GeForce RTX 5090": (1792.0, 96, 170, 104.8)},
    ),
)

GPU_FACTS: dict[str, GpuFacts] = {facts.name: facts for facts in _FACTS}


def gpu_facts(name: str) -> GpuFacts:
    """What is published of the GPU of that name.

    Case, blanks, dashes and the words NVIDIA and Tesla do not matter: drivers before 470 leave NVIDIA out.

    Raises:
        SettingsError: If the name is not known, naming the nearest known ones.

    >>> gpu_facts("A100-SXM4-80GB").memory_bandwidth_gb_per_s
    2039.0
    """
    facts = find_gpu_facts(name)
    if facts is not None:
        return facts
    nearest = nearest_names(name)
    said = f"nearest: {', '.join(nearest)}" if nearest else f"known: {', '.join(GPU_FACTS)}"
    raise SettingsError(
        f"no published figures are kept for a GPU named {name!r:.80}; {said}; give a name as nvidia-smi -L shows it"
    )


def find_gpu_facts(name: str | None) -> GpuFacts | None:
    """The same, None where the name is null or not known: for tables, in which unknown GPUs are ordinary."""
    return None if name is None else _BY_KEY.get(_key(name))


def nearest_names(name: str) -> list[str]:
    """Known names that the one given may mean, best first; empty if none is near."""
    asked = _key(name[:_LONGEST_NAME])
    scored = []
    for key, facts in _BY_KEY.items():
        shared = set(asked.split()) & set(key.split())
        # `a100` and `80gb` tell products apart, `pcie` and `rtx` hardly do.
        weight = sum(2 if any(sign.isdigit() for sign in word) else 1 for word in shared)
        likeness = difflib.SequenceMatcher(None, asked, key).ratio()
        if weight or likeness >= _NEAR_RATIO:
            scored.append((-weight, -likeness, facts.name))
    return [found for _, _, found in sorted(scored)[:_SUGGESTED]]


def _key(name: str) -> str:
    words = re.sub(r"[^a-z0-9]+", " ", name.casefold()).split()
    return " ".join(word for word in words if word not in ("nvidia", "tesla"))


_BY_KEY = {_key(facts.name): facts for facts in _FACTS}
