"""Launches with a known law, shared by the tests of the latency model."""

from collections.abc import Callable

import numpy as np
import polars as pl
import pytest

from warpgauge.latency.fitting import Boosting
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME
from warpgauge.latency.training import LatencyTraining, train_latency
from warpgauge.tables import LAUNCHES

MakeLaunches = Callable[..., pl.DataFrame]
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
