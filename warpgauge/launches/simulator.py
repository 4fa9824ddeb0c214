"""Make launches where no GPU and no file is: a stand-in with the shape of the real thing, marked as such.

Each GPU and CUDA version has its own costs, piecewise linear in the number of nodes: a base, a cost per node,
and a further cost per node beyond the size where the host's caches overflow. A trial scatters log-normally
about the median of its graph, more for larger graphs, and on parallel lines even and odd trials alternate
between two levels, as measured. The figures with a published source are tested against it.

Not measured, only plausible: everything of mixed graphs beyond "node type matters", and the quantities of a
GPU for which no source gives them.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.errors import SettingsError
from warpgauge.launches.batch import LaunchBatch, graph_id, launch_ids, lines_signature
from warpgauge.tables import LAUNCHES

SOURCE_KIND = "simulator"
# Part of what a row's id is made of: raise it when the same seed gives other values.
SIMULATOR_VERSION = 1
# Sizes from 1 to 2000, closer where graphs are small and common.
DEFAULT_LENGTHS = tuple(
    sorted(
        {round(length) for length in np.geomspace(1, 2000, 64)} | {3, 5, 7, 10, 20, 50, 100, 200, 500, 1000}
    )
)
DEFAULT_TRIALS = 6
LINE_COUNT = 4
PROFILED_LENGTHS = (339, 400, 450, 502)
# Relative cost of one node of each type to a kernel node. In one real trace 2 kernels and 18 sets took four
# times as long as 8 kernels and 12 sets: sets are dear, by how much differs.
_SET_COST, _COPY_COST = 2.5, 1.8
_Floats = npt.NDArray[np.float64]
_Sizes = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Cost:
    """Median time of n nodes: base + per node x n + beyond x (n - knee where n is above it), microseconds."""

    base_us: float
    node_us: float
    beyond_us: float = 0.0
    knee_nodes: int = 200

    def median_us(self, nodes: _Floats) -> _Floats:
        """Median for each number of nodes."""
        return self.base_us + self.node_us * nodes + self.beyond_us * np.maximum(nodes - self.knee_nodes, 0.0)


@dataclass(frozen=True)
class Topology:
    """Costs of one family of graphs on one system. Totals are what remains after the call returned."""

    first: Cost
    repeat: Cost
    instantiate: Cost
    capture: Cost
    upload: Cost
    upload_device: Cost
    device: Cost


@dataclass(frozen=True)
class System:
    """One GPU under one CUDA version.

    Attributes:
        noise_nodes, noise_us: Scatter (root mean square about the median) of one first launch by nodes.
        level_us: Half the distance of the two levels of even and odd trials of large parallel lines.
    """

    gpu_name: str
    cuda_version: str
    sm_count: int
    compute_capability: float
    gpu_memory_bytes: int
    straight: Topology
    parallel: Topology
    noise_nodes: tuple[float, ...]
    noise_us: tuple[float, ...]
    level_us: float = 0.0


def _scaled(topology: Topology, factor: float) -> Topology:
    """The same family with every cost per node changed by a factor."""
    return Topology(
        **{
            name: Cost(cost.base_us, cost.node_us * factor, cost.beyond_us * factor, cost.knee_nodes)
            for name, cost in vars(topology).items()
        }
    )


# Tesla P100, CUDA 12.9: fitted to the medians of 20,000 public trials each of cudaGraphsPerfScaling
# (lengths 1 to 2000). Sizes of parallel lines are nodes, lines x length.
_P100_STRAIGHT = Topology(
    first=Cost(2.5, 0.302, 0.0525),
    repeat=Cost(1.7, 0.188, 0.0515),
    instantiate=Cost(4.1, 0.71, 0.5),
    capture=Cost(1.7, 0.56, 0.09),
    upload=Cost(2.2, 0.265, 0.055),
    upload_device=Cost(5.4, 0.215),
    device=Cost(2.6, 0.894),
)
_P100_PARALLEL = Topology(
    first=Cost(7.3, 0.202, 0.102, 3000),
    repeat=Cost(5.1, 0.00055),
    instantiate=Cost(9.0, 0.86, 1.27, 800),
    capture=Cost(5.5, 0.6, 0.3, 1000),
    upload=Cost(5.2, 0.2, 0.102, 3000),
    upload_device=Cost(1.83, 0.0),
    device=Cost(5.0, 0.33, 0.13, 800),
)
# Scatter by nodes of the same trials; it leaps at about 500 nodes.
_P100_NOISE_NODES = (1.0, 35.0, 75.0, 110.0, 200.0, 350.0, 470.0, 501.0)
_P100_NOISE_US = (0.35, 0.42, 0.75, 2.3, 2.8, 2.9, 3.2, 10.9)


def _per_node(
    first: Cost, repeat: Cost, instantiate: Cost, *, capture_us: float, noise_us: float
) -> Topology:
    """A straight line known by its launches and instantiation; the rest in proportion to the P100's."""
    return Topology(
        first=first,
        repeat=repeat,
        instantiate=instantiate,
        capture=Cost(1.5, capture_us),
        upload=Cost(2.0, max(first.node_us - repeat.node_us, 0.05)),
        upload_device=Cost(3.0, 0.12),
        device=Cost(2.5 + noise_us / 10, 0.7),
    )


def _system(
    gpu_name: str,
    cuda_version: str,
    sm_count: int,
    compute_capability: float,
    memory_gib: int,
    straight: Topology,
    noise_at_20_us: float,
) -> System:
    """A system known at few sizes: parallel lines as the P100's in proportion, noise growing with size."""
    proportion = straight.first.node_us / _P100_STRAIGHT.first.node_us
    return System(
        gpu_name=gpu_name,
        cuda_version=cuda_version,
        sm_count=sm_count,
        compute_capability=compute_capability,
        gpu_memory_bytes=memory_gib * 2**30,
        straight=straight,
        parallel=_scaled(_P100_PARALLEL, proportion),
        noise_nodes=(1.0, 20.0, 200.0, 2000.0),
        noise_us=(noise_at_20_us * 0.6, noise_at_20_us, noise_at_20_us * 1.6, noise_at_20_us * 5),
        level_us=noise_at_20_us * 2,
    )


SYSTEMS = (
    System(
        gpu_name="Tesla P100-PCIE-16GB",
        cuda_version="12.9",
        sm_count=56,
        compute_capability=6.0,
        gpu_memory_bytes=16 * 2**30,
        straight=_P100_STRAIGHT,
        parallel=_P100_PARALLEL,
        noise_nodes=_P100_NOISE_NODES,
        noise_us=_P100_NOISE_US,
        level_us=23.0,
    ),
    # 20 nodes: first 19.20 us (standard deviation 6.0), repeat 9.73, instantiate 66.56: medians of 11.
    _system(
        "Tesla V100-SXM2-16GB",
        "10.1",
        80,
        7.0,
        16,
        _per_node(Cost(9.2, 0.5), Cost(5.0, 0.2365), Cost(20.0, 2.328), capture_us=1.1, noise_us=6.0),
        6.0,
    ),
    # 20 nodes: first 17.41 us (standard deviation 4.9), repeat 6.09, instantiate 107.78: medians of 11.
    _system(
        "NVIDIA A100-SXM4-40GB",
        "11.2",
        108,
        8.0,
        40,
        _per_node(Cost(8.41, 0.45), Cost(2.49, 0.18), Cost(35.0, 3.639), capture_us=0.9, noise_us=4.9),
        4.9,
    ),
    # Create, instantiate and upload together 4.36 us a node, linear up to 10,000 nodes.
    _system(
        "Tesla T4",
        "11.0",
        40,
        7.5,
        16,
        _per_node(Cost(6.0, 0.62), Cost(3.5, 0.30), Cost(18.0, 3.02), capture_us=1.02, noise_us=2.5),
        2.5,
    ),
    # Repeat launch 2 + 0.2 n us, and 2.5 + 0.001 n from CUDA 12.6 on: straight lines became constant time.
    _system(
        "NVIDIA GeForce RTX 3060",
        "11.8",
        28,
        8.6,
        12,
        _per_node(Cost(4.5, 0.36), Cost(2.0, 0.2), Cost(12.0, 1.6), capture_us=0.7, noise_us=1.2),
        1.2,
    ),
    _system(
        "NVIDIA GeForce RTX 3060",
        "12.6",
        28,
        8.6,
        12,
        _per_node(Cost(5.0, 0.17), Cost(2.5, 0.001), Cost(10.0, 1.1), capture_us=0.6, noise_us=0.9),
        0.9,
    ),
)


def simulate_launches(
    seed: int,
    *,
    lengths: Sequence[int] = DEFAULT_LENGTHS,
    trials: int = DEFAULT_TRIALS,
    systems: Sequence[System] = SYSTEMS,
) -> LaunchBatch:
    """Launches of straight lines, four parallel lines and mixed graphs on several GPUs.

    The same seed and parameters give the same ids and values.

    Args:
        seed: 0 or more.
        lengths: Nodes of each line, and nodes of each mixed graph, at least 1.
        trials: Trials of each graph, at least 1.
        systems: GPUs and CUDA versions.

    Returns:
        len(systems) x 3 x len(lengths) x trials rows, each `is_simulated`, and a few profiled launches of
        captured graphs (2.75 us a node, on a V100). All times in microseconds.

    Raises:
        SettingsError: If a parameter is out of range.
    """
    if seed < 0 or trials < 1 or not lengths or not systems or min(lengths) < 1 or max(lengths) > 100_000:
        raise SettingsError(
            f"simulator: seed {seed}, {trials} trials, {len(lengths)} lengths, {len(systems)} systems; needed: "
            f"a seed of 0 or more, at least one trial, lengths from 1 to 100,000 and a system"
        )
    parameters = {
        "version": SIMULATOR_VERSION,
        "seed": seed,
        "lengths": list(lengths),
        "trials": trials,
        "systems": [repr(system) for system in systems],
    }
    digest = hashlib.sha256(json.dumps(parameters, sort_keys=True).encode()).hexdigest()
    random = np.random.default_rng(seed)
    sizes = np.asarray(sorted(lengths), dtype=np.int64)
    frames = [
        make(system, sizes, trials, random)
        for system in systems
        for make in (_straight_lines, _parallel_lines, _mixed_graphs)
    ]
    frames.append(_profiled_launches(trials, random))
    frame = pl.concat([LAUNCHES.conform(one) for one in frames])
    ordinals = range(frame.height)
    frame = frame.with_columns(
        pl.Series("launch_id", launch_ids(SOURCE_KIND, digest, ordinals), dtype=pl.String),
        pl.Series("record_ordinal", ordinals, dtype=pl.Int64),
        pl.lit(SOURCE_KIND).alias("source_kind"),
        pl.lit(f"simulator seed {seed}").alias("source_name"),
        pl.lit(digest).alias("source_sha256"),
        pl.lit(True).alias("is_simulated"),
        pl.lit(1).alias("gpus_in_process_count"),
    )
    return LaunchBatch(LAUNCHES.conform(frame), counts={"launches": frame.height})


def _straight_lines(system: System, sizes: _Sizes, trials: int, random: np.random.Generator) -> pl.DataFrame:
    length, trial = np.repeat(sizes, trials), np.tile(np.arange(trials), len(sizes))
    return _lines(system, length, trial, 1, random)


def _parallel_lines(system: System, sizes: _Sizes, trials: int, random: np.random.Generator) -> pl.DataFrame:
    length, trial = np.repeat(sizes, trials), np.tile(np.arange(trials), len(sizes))
    return _lines(system, length, trial, LINE_COUNT, random)


def _lines(
    system: System, length: _Sizes, trial: _Sizes, width: int, random: np.random.Generator
) -> pl.DataFrame:
    nodes = length * width
    frame = pl.DataFrame({"line_length": length, "trial": trial}).with_columns(
        pl.lit(width).alias("line_count"),
        pl.lit("straight_line" if width == 1 else "parallel_lines").alias("topology"),
        pl.Series("graph_signature", [lines_signature(int(one), width, 0) for one in length]),
        pl.Series("node_count", nodes),
        pl.Series("kernel_count", nodes),
        *(pl.lit(0).alias(name) for name in ("memcpy_count", "memset_count", "other_node_count")),
        pl.Series("edge_count", nodes - width),
        *(pl.lit(width).alias(name) for name in ("root_count", "leaf_count", "graph_width")),
        pl.Series("depth", length),
        pl.lit(width == 1).alias("is_straight_line"),
        *(pl.lit(0).alias(name) for name in _BYTE_COLUMNS),
        pl.Series("block_count_total", nodes),
        *(pl.lit(1).alias(name) for name in _ONE_IN_EMPTY_KERNELS),
        pl.lit(0).alias("shared_memory_bytes_maximum"),
    )
    costs = system.straight if width == 1 else system.parallel
    level = system.level_us if width > 1 else 0.0
    return _with_labels(frame, system, costs, nodes.astype(np.float64), nodes / width, level, random)


def _mixed_graphs(system: System, sizes: _Sizes, trials: int, random: np.random.Generator) -> pl.DataFrame:
    """Graphs of all node types; costs follow the nodes weighted by type, between a line and four lines."""
    count = len(sizes)
    memset = np.floor(sizes * random.uniform(0.0, 0.5, count)).astype(np.int64)
    memcpy = np.floor((sizes - memset) * random.uniform(0.0, 0.4, count)).astype(np.int64)
    kernel = sizes - memset - memcpy
    width = np.minimum(1 + random.integers(0, 6, count), sizes)
    depth = np.ceil(sizes / width).astype(np.int64)
    copy_bytes = memcpy * 4 ** random.integers(5, 11, count)
    blocks = 2 ** random.integers(0, 9, count)
    threads = 2 ** random.integers(5, 11, count)
    to_device = copy_bytes // 2
    graphs = pl.DataFrame(
        {
            "graph_signature": [
                "general:" + hashlib.sha256(repr(facts).encode()).hexdigest()[:32]
                for facts in zip(kernel, memcpy, memset, width, copy_bytes, blocks, threads, strict=True)
            ],
            "node_count": sizes,
            "kernel_count": kernel,
            "memcpy_count": memcpy,
            "memset_count": memset,
            "other_node_count": np.zeros(count, dtype=np.int64),
            "edge_count": np.maximum(sizes - width, 0) + np.minimum(width, sizes - 1),
            "root_count": width,
            "leaf_count": np.ones(count, dtype=np.int64),
            "depth": depth,
            "graph_width": width,
            "memcpy_bytes": copy_bytes,
            "memcpy_htod_bytes": to_device,
            "memcpy_dtoh_bytes": np.zeros(count, dtype=np.int64),
            "memcpy_dtod_bytes": copy_bytes - to_device,
            "memset_bytes": memset * 1024,
            "block_count_total": (kernel * blocks).astype(np.float64),
            "block_count_maximum": blocks.astype(np.float64),
            "threads_per_block_mean": threads.astype(np.float64),
            "threads_per_block_maximum": threads.astype(np.float64),
            "registers_per_thread_maximum": random.integers(16, 129, count).astype(np.float64),
            "shared_memory_bytes_maximum": (random.integers(0, 49, count) * 1024).astype(np.float64),
            "distinct_kernel_count": np.maximum(kernel // 4, 1),
            "weight": kernel + _SET_COST * memset + _COPY_COST * memcpy,
        }
    ).with_columns(
        pl.lit("general").alias("topology"),
        pl.lit(False).alias("is_straight_line"),
    )
    frame = graphs[np.repeat(np.arange(count), trials)].with_columns(
        pl.Series("trial", np.tile(np.arange(trials), count))
    )
    weight = frame["weight"].to_numpy().astype(np.float64)
    steps = frame["depth"].to_numpy().astype(np.float64)
    return _with_labels(frame.drop("weight"), system, system.straight, weight, steps, 0.0, random)


def _with_labels(
    frame: pl.DataFrame,
    system: System,
    costs: Topology,
    nodes: _Floats,
    steps: _Floats,
    level_us: float,
    random: np.random.Generator,
) -> pl.DataFrame:
    """The frame with identity of the system and all labels.

    Args:
        nodes: Nodes that the host pays for, weighted by type.
        steps: Nodes one after another on the device.
        level_us: Half the distance between even and odd trials of large graphs.
    """
    noise_us = np.interp(np.log(nodes), np.log(system.noise_nodes), system.noise_us)
    side = np.where(frame["trial"].to_numpy() % 2 == 0, 1.0, -1.0)
    # The two levels part where the noise itself has grown to its largest.
    parted = level_us * np.clip((nodes - 1000.0) / 1000.0, 0.0, 1.0) * side

    def scatter(median_us: _Floats, share: float) -> _Floats:
        """Log-normal trials whose median and standard deviation are these."""
        ratio = (1.0 + np.sqrt(1.0 + 4.0 * (share * noise_us / median_us) ** 2)) / 2.0
        return median_us * np.exp(np.sqrt(np.log(ratio)) * random.standard_normal(len(median_us)))

    first_us = scatter(costs.first.median_us(nodes) + parted, 1.0)
    repeat_us = scatter(costs.repeat.median_us(nodes), 0.3)
    device_us = scatter(costs.device.median_us(steps), 0.1)
    labels = {
        "first_launch_api_us": first_us,
        "first_launch_total_us": np.maximum(first_us, device_us) + scatter(np.full_like(nodes, 4.0), 0.05),
        "first_launch_device_us": device_us * 1.01,
        "repeat_launch_api_us": repeat_us,
        "repeat_launch_total_us": np.maximum(repeat_us, device_us) + scatter(np.full_like(nodes, 3.0), 0.05),
        "repeat_launch_device_us": device_us,
        "upload_api_us": scatter(costs.upload.median_us(nodes), 0.8),
        "upload_device_us": scatter(costs.upload_device.median_us(nodes), 0.05),
        "instantiate_us": scatter(costs.instantiate.median_us(nodes), 2.0),
        "capture_us": scatter(costs.capture.median_us(nodes), 0.5),
    }
    identities = {
        signature: graph_id(system.gpu_name, system.cuda_version, signature)
        for signature in frame["graph_signature"].unique()
    }
    return frame.with_columns(
        *(pl.Series(name, np.round(values, 3)) for name, values in labels.items()),
        pl.Series("graph_id", [f"simulated-{identities[one]}" for one in frame["graph_signature"]]),
        pl.lit(True).alias("is_first_launch"),
        pl.lit(False).alias("is_profiled"),
        *(pl.lit(False).alias(f"{which}_timed_out") for which in ("first_launch", "repeat_launch", "upload")),
        pl.lit(system.cuda_version).alias("cuda_version"),
        *_gpu_columns(system),
    )


def _profiled_launches(trials: int, random: np.random.Generator) -> pl.DataFrame:
    """Launch calls of captured graphs under a profiler: 2.5 to 3 us a node on a V100, another population."""
    system = next(one for one in SYSTEMS if "V100" in one.gpu_name)
    nodes = np.repeat(np.asarray(PROFILED_LENGTHS, dtype=np.int64), trials)
    signatures = [f"captured:simulated-{count}" for count in nodes]
    return pl.DataFrame(
        {
            "graph_signature": signatures,
            "graph_id": [f"simulated-{graph_id(system.gpu_name, None, one)}" for one in signatures],
            "node_count": nodes,
            "kernel_count": nodes,
            "trial": np.tile(np.arange(trials), len(PROFILED_LENGTHS)),
            "launch_api_us": np.round(nodes * 2.75 * np.exp(0.04 * random.standard_normal(len(nodes))), 3),
        }
    ).with_columns(
        pl.lit("captured").alias("topology"),
        *(pl.lit(0).alias(name) for name in ("memcpy_count", "memset_count")),
        pl.lit(True).alias("is_profiled"),
        *_gpu_columns(system),
    )


def _gpu_columns(system: System) -> list[pl.Expr]:
    return [
        pl.lit(system.gpu_name).alias("gpu_name"),
        pl.lit(system.sm_count).alias("sm_count"),
        pl.lit(system.compute_capability).alias("compute_capability"),
        pl.lit(system.gpu_memory_bytes).alias("gpu_memory_bytes"),
    ]


_BYTE_COLUMNS = (
    "memcpy_bytes",
    "memcpy_htod_bytes",
    "memcpy_dtoh_bytes",
    "memcpy_dtod_bytes",
    "memset_bytes",
)
_ONE_IN_EMPTY_KERNELS = (
    "block_count_maximum",
    "threads_per_block_mean",
    "threads_per_block_maximum",
    "distinct_kernel_count",
)
