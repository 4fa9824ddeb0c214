"""Launches and kernels with a known law, shared by the tests of the latency model."""

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
import pytest

from warpgauge.latency.fitting import Boosting
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME
from warpgauge.latency.table_scheme import Devices, Roofline, TableScheme, table_scheme
from warpgauge.latency.training import LatencyTraining, train_latency
from warpgauge.tables import LAUNCHES

MakeLaunches = Callable[..., pl.DataFrame]
MakeKernels = Callable[..., pl.DataFrame]
MakeScheme = Callable[..., TableScheme]
COST_US_PER_NODE = {"Tesla A": 0.3, "Tesla B": 0.6}


def _make(
    gpus: tuple[str, ...] = ("Tesla A", "Tesla B"),
    lengths: range = range(1, 201, 4),
    trials: int = 3,
    noise_ratio: float = 0.03,
    seed: int = 0,
) -> pl.DataFrame:
    """Straight and 4 parallel lines: (4 us + cost x nodes) x (1 or 1.2) x log-normal noise."""
    random = np.random.default_rng(seed)
    rows = []
    for gpu in gpus:
        for line_count in (1, 4):
            for length in lengths:
                for trial in range(trials):
                    nodes = length * line_count
                    median_us = (4 + COST_US_PER_NODE[gpu] * nodes) * (1.0 if line_count == 1 else 1.2)
                    rows.append(
                        {
                            "launch_id": f"{gpu}:{line_count}:{length}:{trial}",
                            "source_kind": "perfscaling",
                            "source_name": "made.csv",
                            "source_sha256": "0" * 64,
                            "record_ordinal": len(rows),
                            "gpu_name": gpu,
                            "cuda_version": "12.4",
                            "graph_id": f"{gpu}:{line_count}:{length}",
                            "graph_signature": f"lines:{line_count}:{length}",
                            "topology": "straight_line" if line_count == 1 else "parallel_lines",
                            "trial": trial,
                            "line_length": length,
                            "line_count": line_count,
                            "node_count": nodes,
                            "kernel_count": nodes,
                            "is_straight_line": line_count == 1,
                            "is_profiled": False,
                            "is_simulated": False,
                            "first_launch_api_us": median_us * np.exp(random.normal(0, noise_ratio)),
                        }
                    )
    return LAUNCHES.conform(pl.DataFrame(rows))


@pytest.fixture(scope="session")
def make_launches() -> MakeLaunches:
    """Builds such launches."""
    return _make


@pytest.fixture(scope="session")
def launches() -> pl.DataFrame:
    """600 launches of two GPUs and two topologies."""
    return _make()


@pytest.fixture(scope="session")
def training(launches: pl.DataFrame) -> LatencyTraining:
    """A training on them."""
    return train_latency(LAUNCH_SCHEME, launches, Boosting(trees=80), threads=1)


# Device -> peak in FLOP/s and bytes/s, in the units of the figures below.
KERNEL_DEVICES = {
    "Card A": {"peak_tflops": 10.0, "bandwidth_gb_per_s": 500.0},
    "Card B": {"peak_tflops": 40.0, "bandwidth_gb_per_s": 2000.0},
}
KIND_FACTORS = {"nn": 1.0, "tn": 1.3, "nt": 2.0}
SIZES = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048)


def _scheme(**changes: Any) -> TableScheme:
    """Matrix products m x n x k of two cards: 4 bytes a number, a roofline for each card."""
    return table_scheme(
        **{
            "name": "kernels",
            "target": "latency",
            "unit": "us",
            "numeric": ("m", "n", "k"),
            "text": ("card", "kind"),
            "categorical": ("card", "kind"),
            "derived": {"gflop": "2 * m * n * k / 1e9", "mbyte": "4 * (m * k + k * n + m * n) / 1e6"},
            "shape": ("m", "n", "k"),
            "by": ("card",),
            "slices": ("card", "kind"),
            "roofline": Roofline(
                "gflop * 1e9", "mbyte * 1e6", "peak_tflops * 1e12", "bandwidth_gb_per_s * 1e9"
            ),
            "devices": Devices("card", KERNEL_DEVICES),
            "time": None,
            "promise_us": 0.0,
            "promise_ratio": 0.05,
            "parameters": {"learning_rate": 0.2, "lambda_l2": 1.0},
            "monotone": {},
            **changes,
        }
    )


def _kernels(
    cards: tuple[str, ...] = ("Card A", "Card B"),
    kinds: tuple[str, ...] = ("nn", "tn"),
    sizes: tuple[int, ...] = SIZES,
    depths: tuple[int, ...] = (64, 512),
    factor: Callable[[dict[str, Any]], float] = lambda _: 1.0,
    noise_ratio: float = 0.02,
    seed: int = 0,
    prefix: str = "",
) -> pl.DataFrame:
    """(2 us + roofline) x factor of the kind x `factor` of the row x log-normal noise."""
    random = np.random.default_rng(seed)
    rows = []
    for card, kind, m, n, k in itertools.product(cards, kinds, sizes, sizes[::2], depths):
        peaks = KERNEL_DEVICES[card]
        compute_us = 2 * m * n * k / peaks["peak_tflops"] / 1e6
        memory_us = 4 * (m * k + k * n + m * n) / peaks["bandwidth_gb_per_s"] / 1e3
        row: dict[str, Any] = {"m": m, "n": n, "k": k, "card": card, "kind": kind}
        law = (2.0 + max(compute_us, memory_us)) * KIND_FACTORS[kind] * factor(row)
        name = f"{prefix}{card}:{kind}:{m}:{n}:{k}"
        rows.append(
            {
                "row_id": name,
                "source_name": f"{prefix}kernels.csv",
                "source_sha256": "0" * 64,
                "record_ordinal": len(rows),
                **row,
                "latency": law * float(np.exp(random.normal(0, noise_ratio))),
            }
        )
    return _scheme().table.conform(pl.DataFrame(rows))


@pytest.fixture(scope="session")
def make_scheme() -> MakeScheme:
    """Builds the scheme of the kernels, with changes."""
    return _scheme


@pytest.fixture(scope="session")
def make_kernels() -> MakeKernels:
    """Builds kernels with a known law."""
    return _kernels


@pytest.fixture(scope="session")
def kernels() -> pl.DataFrame:
    """576 kernels of two cards and two kinds."""
    return _kernels()


@pytest.fixture(scope="session")
def kernel_training(kernels: pl.DataFrame) -> LatencyTraining:
    """A training on them."""
    return train_latency(_scheme(), kernels, Boosting(trees=60, learning_rate=0.2, lambda_l2=1.0), threads=1)
