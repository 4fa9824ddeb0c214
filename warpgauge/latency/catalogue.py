"""Which features the launch-latency model may see: name, unit, type, source columns and why each matters.

One list for training, prediction, the documentation and the tests, so that no feature exists in code alone.
A feature that no source fills, or that never varies, is dropped in training and named in the report; it
stays in the catalogue. Ordinals of repetition (the trial, the record) are left out on purpose: nobody knows
them before a launch, and in one public data set even and odd trials alternate between two levels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from warpgauge.errors import SchemaError

FeatureKind = Literal["numeric", "flag", "categorical"]


@dataclass(frozen=True)
class Feature:
    """One input of the model.

    Attributes:
        name: Ends with its unit where it is a quantity.
        kind: `numeric` and `flag` reach the booster as Float64 (a flag as 0 or 1), `categorical` as a code
            from the category table that is stored with the model.
        unit: Unit of the value, None for names.
        columns: Columns of the launches table that it is computed from; one of its own name is taken as it is.
        reason: Why it should matter to the time of a launch.
    """

    name: str
    kind: FeatureKind
    unit: str | None
    columns: tuple[str, ...]
    reason: str

    @property
    def is_derived(self) -> bool:
        """Whether it is computed rather than copied from the column of the same name."""
        return self.columns != (self.name,)


def _copied(name: str, unit: str, reason: str, kind: FeatureKind = "numeric") -> Feature:
    return Feature(name, kind, unit, (name,), reason)


def _named(name: str, reason: str) -> Feature:
    return Feature(name, "categorical", None, (name,), reason)


CATALOGUE: tuple[Feature, ...] = (
    # Identity of the machine.
    _named("gpu_name", "launch cost differs between GPUs in ways that no single number carries"),
    _named("cuda_version", "the runtime decides how a launch is encoded: straight lines changed in 12.6"),
    _named("driver_version", "the driver does most of the work of a launch"),
    _named("topology", "lines, captured and general graphs take different paths through the driver"),
    # Shape of the graph.
    Feature(
        "node_count",
        "numeric",
        "1",
        ("node_count", "line_length", "line_count"),
        "each node adds work to the first launch: 0.35 us on one P100",
    ),
    Feature(
        "node_count_log",
        "numeric",
        "ln(1)",
        ("node_count", "line_length", "line_count"),
        "relative error is judged over three decades of size",
    ),
    _copied("line_length", "1", "nodes that follow each other need no fork or join"),
    _copied("line_count", "1", "parallel lines need streams and events between them"),
    Feature(
        "nodes_per_line",
        "numeric",
        "1",
        ("node_count", "line_length", "line_count", "graph_width"),
        "the same number of nodes in more lines costs more to launch",
    ),
    _copied("kernel_count", "1", "a kernel node is the cheapest kind of node to launch"),
    _copied("memcpy_count", "1", "a copy may need staging and its own engine"),
    _copied("memset_count", "1", "2 kernels and 18 memsets took four times as long as 8 and 12 in one trace"),
    _copied("other_node_count", "1", "host, event and conditional nodes break the launch into pieces"),
    Feature(
        "kernel_share_ratio",
        "numeric",
        "ratio",
        ("kernel_count", "node_count", "line_length", "line_count"),
        "the mix of node types matters beyond their number",
    ),
    Feature(
        "memory_node_share_ratio",
        "numeric",
        "ratio",
        ("memcpy_count", "memset_count", "node_count", "line_length", "line_count"),
        "copies and sets are slower to launch than kernels",
    ),
    _copied("edge_count", "1", "each dependency is encoded"),
    Feature(
        "edges_per_node",
        "numeric",
        "1",
        ("edge_count", "node_count", "line_length", "line_count"),
        "dense dependencies cost synchronisation",
    ),
    _copied("root_count", "1", "each root starts a stream of its own"),
    _copied("leaf_count", "1", "each leaf is waited for"),
    _copied("depth", "1", "nodes on the longest path"),
    _copied("graph_width", "1", "how many nodes may run side by side"),
    Feature(
        "depth_share_ratio",
        "numeric",
        "ratio",
        ("depth", "node_count", "line_length", "line_count"),
        "1 for a straight line, towards 0 for a wide graph",
    ),
    _copied("is_straight_line", "1", "straight lines have a fast path", kind="flag"),
    Feature(
        "is_constant_time_line",
        "flag",
        "1",
        ("is_straight_line", "cuda_version"),
        "straight lines became constant time in CUDA 12.6",
    ),
    _copied("stream_count", "1", "each device stream of the launch is set up"),
    # Work of the nodes.
    _copied("memcpy_bytes", "B", "large copies are split"),
    _copied("memcpy_htod_bytes", "B", "pageable host memory is staged"),
    _copied("memcpy_dtoh_bytes", "B", "pageable host memory is staged"),
    _copied("memcpy_dtod_bytes", "B", "copies inside the device need no staging"),
    _copied("memset_bytes", "B", "large sets become kernels"),
    Feature(
        "bytes_per_memcpy",
        "numeric",
        "B",
        ("memcpy_bytes", "memcpy_count"),
        "small copies travel inside the command itself",
    ),
    _copied("block_count_total", "1", "work in flight that a full queue has to wait for"),
    _copied("block_count_maximum", "1", "size of the largest kernel"),
    Feature(
        "blocks_per_sm",
        "numeric",
        "1",
        ("block_count_maximum", "sm_count"),
        "waves of the largest kernel",
    ),
    _copied("threads_per_block_mean", "1", "launch configuration of the kernels"),
    _copied("threads_per_block_maximum", "1", "launch configuration of the kernels"),
    _copied("registers_per_thread_maximum", "1", "heavy kernels may need local memory to be resized"),
    _copied("shared_memory_bytes_maximum", "B", "a change of the carve-out is a synchronisation"),
    _copied("distinct_kernel_count", "1", "each function's code has to be resident"),
    # Hardware.
    _copied("sm_count", "1", "size of the GPU"),
    _copied("compute_capability", "1", "generation of the front end"),
    _copied("gpu_memory_bytes", "B", "size of the address space that is mapped"),
    _copied("gpus_in_process_count", "1", "each GPU of a process adds to its context"),
    # Circumstances.
    Feature(
        "cuda_version_ordinal",
        "numeric",
        "1",
        ("cuda_version",),
        "orders the versions: 12.9 is 1209, so a neighbour of an unseen version is known",
    ),
    Feature(
        "driver_version_ordinal",
        "numeric",
        "1",
        ("driver_version",),
        "orders the drivers by their branch: 570.86 is 570",
    ),
    _copied("is_first_launch", "1", "a first launch uploads and maps the executable graph", kind="flag"),
    _copied("is_profiled", "1", "a profiler adds 2 to 3 us per node", kind="flag"),
    _copied("is_simulated", "1", "a simulator's rows are another population", kind="flag"),
)

FEATURE_NAMES: tuple[str, ...] = tuple(feature.name for feature in CATALOGUE)
CATEGORICAL_NAMES: tuple[str, ...] = tuple(
    feature.name for feature in CATALOGUE if feature.kind == "categorical"
)
SOURCE_COLUMNS: tuple[str, ...] = tuple(
    dict.fromkeys(column for feature in CATALOGUE for column in feature.columns)
)


def feature(name: str) -> Feature:
    """The catalogue's entry of that name.

    Raises:
        SchemaError: If there is none.
    """
    for entry in CATALOGUE:
        if entry.name == name:
            return entry
    raise SchemaError(f"no feature is named {name}; the catalogue has {', '.join(FEATURE_NAMES)}")
