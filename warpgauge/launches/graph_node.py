"""Nodes and edges of one CUDA graph, as the readers of its two written forms hand them over."""

from __future__ import annotations

from dataclasses import dataclass, field

from warpgauge.errors import SourceFileError

# CUDA allows more; a text that unfolds to more than this was not printed for a person to ask about.
LARGEST_NODE_COUNT = 1_000_000
FORMS = (
    'JSON {"nodes": [{"id": ..., "type": "kernel"}, ...], "edges": [[from, to], ...]} '
    "or the DOT text of cudaGraphDebugDotPrint"
)
LARGEST_WHOLE = 2**63 - 1
KINDS = ("kernel", "memcpy", "memset")
DIRECTIONS = ("htod", "dtoh", "dtod")


@dataclass
class GraphNode:
    """One node: `kind` is kernel, memcpy, memset or other."""

    name: str
    kind: str
    kernel: str | None = None
    grid: int | None = None
    block: int | None = None
    shared_memory_bytes: int | None = None
    registers_per_thread: int | None = None
    moved_bytes: int | None = None
    direction: str | None = None


@dataclass
class Graph:
    """Nodes by position and edges between positions."""

    nodes: list[GraphNode] = field(default_factory=list)
    edges: set[tuple[int, int]] = field(default_factory=set)


def bounded(value: int) -> int | None:
    """The value if a table can hold it."""
    return value if 0 <= value <= LARGEST_WHOLE else None


def too_large(source_name: str) -> SourceFileError:
    """The refusal of a graph beyond `LARGEST_NODE_COUNT`."""
    return SourceFileError(
        f"{source_name}: the graph has more than {LARGEST_NODE_COUNT:,} nodes or edges at a node"
    )
