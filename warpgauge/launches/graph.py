"""Describe one CUDA graph by the feature columns of the launches table, before anyone launches it.

Two forms are read: a JSON graph that people write by hand, and the DOT text of cudaGraphDebugDotPrint, plain
or verbose. A child graph is counted by what it holds, each time it is referred to, because that is what runs.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

import polars as pl

from warpgauge.errors import SourceFileError
from warpgauge.launches.batch import lines_signature
from warpgauge.launches.graph_dot import read_dot_graph
from warpgauge.launches.graph_node import (
    DIRECTIONS,
    FORMS,
    KINDS,
    LARGEST_NODE_COUNT,
    LARGEST_WHOLE,
    Graph,
    GraphNode,
    bounded,
    too_large,
)
from warpgauge.tables import LAUNCHES


@dataclass(frozen=True)
class _Shape:
    """What the edges alone say."""

    in_degree: list[int]
    out_degree: list[int]
    level: list[int]
    lines: tuple[int, int, int] | None  # length, count, pattern


def describe_graph(text: str, *, source_name: str) -> pl.DataFrame:
    """One row with the columns of the launches table; those that a graph cannot tell are null.

    Args:
        text: A JSON graph or DOT text. Node attributes of JSON, all optional: `type`, `name`, `grid` and
            `block` (up to three sizes), `shared_memory_bytes`, `registers_per_thread`, `bytes`, `kind`
            (`htod`, `dtoh`, `dtod`). An unknown type counts as another node.
        source_name: Name of the text, for the row and for messages.

    Raises:
        SourceFileError: If the text is of another form, or the graph has no nodes, a duplicate id, an edge
            to a node it lacks, or a cycle: each is named.
    """
    start = text.lstrip("\ufeff \t\r\n")[:80]
    if start.startswith(("{", "[")):
        graph = _read_json(text.lstrip("\ufeff"), source_name)
    elif re.match(r"(?:strict\s+)?digraph\b", start):
        graph = read_dot_graph(text.lstrip("\ufeff"), source_name)
    else:
        raise SourceFileError(
            f"{source_name}: found {'text that starts with ' + repr(start[:40]) if start else 'no text'}; "
            f"needed: {FORMS}"
        )
    if not graph.nodes:
        raise SourceFileError(f"{source_name}: a graph without nodes; a launch needs at least one")
    return _to_row(graph, _shape_of(graph, source_name), source_name)


# --- JSON ---------------------------------------------------------------------------------------------


def _read_json(text: str, source_name: str) -> Graph:
    try:
        document = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise SourceFileError(f"{source_name}: not a JSON graph: {error}; needed: {FORMS}") from error
    if not isinstance(document, dict) or not isinstance(document.get("nodes"), list):
        raise SourceFileError(f"{source_name}: JSON without a list `nodes`; needed: {FORMS}")
    edges = document.get("edges", [])
    if not isinstance(edges, list):
        raise SourceFileError(f"{source_name}: `edges` is no list; needed: {FORMS}")
    if len(document["nodes"]) > LARGEST_NODE_COUNT:
        raise too_large(source_name)
    graph = Graph()
    position: dict[str, int] = {}
    for index, item in enumerate(document["nodes"]):
        node = _json_node(item, index, source_name)
        if node.name in position:
            raise SourceFileError(f"{source_name}: node id {node.name!r} occurs twice; ids tell nodes apart")
        position[node.name] = index
        graph.nodes.append(node)
    for index, edge in enumerate(edges):
        ends = [_id_text(end) for end in edge] if isinstance(edge, list) and len(edge) == 2 else [None]
        if None in ends:
            raise SourceFileError(f"{source_name}: edge {index} is no pair [from, to] of node ids")
        for end in ends:
            if end not in position:
                raise SourceFileError(f"{source_name}: edge {index} names node {end!r}, which `nodes` lacks")
        graph.edges.add((position[str(ends[0])], position[str(ends[1])]))
    return graph


def _json_node(item: Any, index: int, source_name: str) -> GraphNode:
    name = _id_text(item.get("id")) if isinstance(item, dict) else None
    if name is None:
        raise SourceFileError(f"{source_name}: node {index} has no `id` (a string or a whole number)")

    def whole(key: str) -> int | None:
        value = item.get(key)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= LARGEST_WHOLE:
            raise SourceFileError(
                f"{source_name}: node {name!r}: {key} is {str(value)[:40]!r}, a whole number of 0 or more is needed"
            )
        return value

    def sizes(key: str) -> int | None:
        value = item.get(key)
        if value is None:
            return None
        is_list = isinstance(value, list) and 1 <= len(value) <= 3
        if not is_list or not all(type(size) is int and 1 <= size < 2**31 for size in value):
            raise SourceFileError(
                f"{source_name}: node {name!r}: {key} is {str(value)[:40]!r}, up to three sizes of 1 or more are needed"
            )
        return min(math.prod(value), LARGEST_WHOLE)

    kind = str(item.get("type", "")).lower()
    direction = str(item.get("kind", "")).lower()
    kernel = item.get("name")
    return GraphNode(
        name=name,
        kind=kind if kind in KINDS else "other",
        kernel=kernel if isinstance(kernel, str) else None,
        grid=sizes("grid"),
        block=sizes("block"),
        shared_memory_bytes=whole("shared_memory_bytes"),
        registers_per_thread=whole("registers_per_thread"),
        moved_bytes=whole("bytes"),
        direction=direction if direction in DIRECTIONS else None,
    )


def _id_text(value: Any) -> str | None:
    if isinstance(value, bool) or not isinstance(value, str | int):
        return None
    return str(value)


# --- shape --------------------------------------------------------------------------------------------


def _shape_of(graph: Graph, source_name: str) -> _Shape:
    """Degrees, level (nodes on the longest path up to a node, less one) and family.

    Raises:
        SourceFileError: If the edges form a cycle.
    """
    count = len(graph.nodes)
    successors: list[list[int]] = [[] for _ in range(count)]
    in_degree = [0] * count
    for before, after in graph.edges:
        successors[before].append(after)
        in_degree[after] += 1
    waiting = in_degree.copy()
    level = [0] * count
    ready = [node for node in range(count) if not waiting[node]]
    done = 0
    while ready:
        node = ready.pop()
        done += 1
        for after in successors[node]:
            level[after] = max(level[after], level[node] + 1)
            waiting[after] -= 1
            if not waiting[after]:
                ready.append(after)
    if done < count:
        raise SourceFileError(f"{source_name}: the edges form a cycle: {_cycle(graph, successors, waiting)}")
    out_degree = [len(of_one) for of_one in successors]
    return _Shape(in_degree, out_degree, level, _lines(successors, in_degree, out_degree))


def _cycle(graph: Graph, successors: list[list[int]], waiting: list[int]) -> str:
    """Names along one cycle: among the nodes that never became ready each has a predecessor that did not."""
    predecessor: dict[int, int] = {}
    for node, left in enumerate(waiting):
        if left:
            predecessor.update((after, node) for after in successors[node] if waiting[after])
    node = next(iter(predecessor))
    seen: dict[int, int] = {}
    while node not in seen:
        seen[node] = len(seen)
        node = predecessor[node]
    names = [graph.nodes[one].name for one, order in seen.items() if order >= seen[node]]
    names = [*reversed(names), names[-1]]
    shown = names if len(names) <= 10 else [*names[:8], "...", names[-1]]
    return " -> ".join(shown)


def _lines(
    successors: list[list[int]], in_degree: list[int], out_degree: list[int]
) -> tuple[int, int, int] | None:
    """Length, number and pattern of equal lines; None for any other shape."""
    if max(in_degree) > 1:
        return None
    roots = [node for node, degree in enumerate(in_degree) if not degree]
    pattern = int(len(roots) == 1 and out_degree[roots[0]] > 1)
    starts = successors[roots[0]] if pattern else roots
    lengths = set()
    for start in starts:
        length, node = 1, start
        while out_degree[node] == 1:
            length, node = length + 1, successors[node][0]
        if out_degree[node]:
            return None
        lengths.add(length)
    return (lengths.pop(), len(starts), pattern) if len(lengths) == 1 else None


# --- row ----------------------------------------------------------------------------------------------


def _to_row(graph: Graph, shape: _Shape, source_name: str) -> pl.DataFrame:
    kinds = Counter(node.kind for node in graph.nodes)
    kernels = [node for node in graph.nodes if node.kind == "kernel"]
    copies = [node for node in graph.nodes if node.kind == "memcpy"]
    lines = shape.lines
    is_straight_line = lines is not None and lines[1:] == (1, 0)
    threads = [node.block for node in kernels]
    threads_total = _total(threads)
    names = [node.kernel for node in kernels]
    row: dict[str, Any] = {
        "source_name": source_name,
        "graph_signature": _signature(graph, shape),
        "topology": "straight_line" if is_straight_line else "parallel_lines" if lines else "general",
        "line_length": lines[0] if lines else None,
        "line_count": lines[1] if lines else None,
        "node_count": len(graph.nodes),
        **{f"{kind}_count": kinds[kind] for kind in KINDS},
        "other_node_count": kinds["other"],
        "edge_count": len(graph.edges),
        "root_count": shape.in_degree.count(0),
        "leaf_count": shape.out_degree.count(0),
        "depth": max(shape.level) + 1,
        "graph_width": max(Counter(shape.level).values()),
        "is_straight_line": is_straight_line,
        "memcpy_bytes": _total([node.moved_bytes for node in copies]),
        **_bytes_by_direction(copies),
        "memset_bytes": _total([node.moved_bytes for node in graph.nodes if node.kind == "memset"]),
        "block_count_total": _total([node.grid for node in kernels]),
        "block_count_maximum": _largest([node.grid for node in kernels]),
        "threads_per_block_mean": (
            threads_total / len(kernels) if kernels and threads_total is not None else None
        ),
        "threads_per_block_maximum": _largest(threads),
        "registers_per_thread_maximum": _largest([node.registers_per_thread for node in kernels]),
        "shared_memory_bytes_maximum": _largest([node.shared_memory_bytes for node in kernels]),
        "distinct_kernel_count": None if None in names else len(set(names)),
    }
    return LAUNCHES.conform(pl.DataFrame([row], schema={name: LAUNCHES.schema[name] for name in row}))


def _signature(graph: Graph, shape: _Shape) -> str:
    """The same for the same shape, whatever the ids and the order of the text."""
    if shape.lines and all(node.kind == "kernel" for node in graph.nodes):
        return lines_signature(*shape.lines)
    facts = sorted(
        [shape.level[index], shape.in_degree[index], shape.out_degree[index], node.kind, node.kernel or ""]
        for index, node in enumerate(graph.nodes)
    )
    return f"general:{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}"


def _bytes_by_direction(copies: list[GraphNode]) -> dict[str, int | None]:
    """Bytes each way; unknown as soon as one copy does not say which way it goes."""
    is_known = all(node.direction for node in copies)
    return {
        f"memcpy_{way}_bytes": _total([node.moved_bytes for node in copies if node.direction == way])
        if is_known
        else None
        for way in DIRECTIONS
    }


def _total(values: list[int | None]) -> int | None:
    """Sum, or None if one is unknown."""
    known = [value for value in values if value is not None]
    return bounded(sum(known)) if len(known) == len(values) else None


def _largest(values: list[int | None]) -> int | None:
    """Largest, or None if there is none or one is unknown."""
    known = [value for value in values if value is not None]
    return max(known) if known and len(known) == len(values) else None
