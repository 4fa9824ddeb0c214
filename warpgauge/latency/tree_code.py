"""A forest as the one block of arrays that `tree_kernel.c` reads, and the limits of that form.

The kernel is one C source for every model, so a model costs packing (tens of milliseconds) and no compiler run.
All that LightGBM decides by cases (missing values, zeros taken as missing, category sets) is turned into
"byte above byte" here, once, so that the kernel has no cases left.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from warpgauge.latency.tree_text import (
    CATEGORICAL_BIT,
    DEFAULT_LEFT_BIT,
    MISSING_NONE,
    MISSING_ZERO,
    Forest,
    Tree,
)

# The numbers of tree_kernel.c.
BLOCK = 8
CUTS = 72  # one block of pivots finds one of nine blocks of eight
LANES = 16
LEAVES = 32
INTERLEAVED = 8
STRIKE_BYTES = 256
NEVER_RIGHT = 255
BYTE_CUTS = 254  # a byte counts them, and stays below NEVER_RIGHT
HEADER = (
    "size", "columns", "scales", "categories", "bytes", "trees", "is_average", "is_struck",
    "cuts_at", "column_at", "target_at", "special_at", "window_at", "category_at",
    "node_at", "root_at", "node_value_at",
    "byte_at", "upper_at", "cut_at", "strike_at", "leaf_at",
)  # fmt: skip

# LightGBM's kZeroThreshold, a 32-bit float (include/LightGBM/meta.h): what lies within is read as 0.
ZERO_WINDOW = float(np.float32(1e-35))
# The bytes of a row lie on the stack of the calling thread.
LARGEST_BYTE_COUNT = 32_768
# Category tables hold every code times every set; far above any table of this project (10,000 categories).
LARGEST_TABLE_BYTES = 64 * 1024 * 1024

_ScaleKey = tuple[int, int, bool]
_SetKey = tuple[int, tuple[int, ...]]


@dataclass(frozen=True)
class Unpackable:
    """Why a sound model does not fit the compiled form.

    Attributes:
        reason: For people, one clause.
    """

    reason: str


@dataclass(frozen=True)
class _Scale:
    """Up to 72 sorted cuts of a column, and the byte that their count is added to."""

    key: _ScaleKey
    byte: int
    cuts: list[float]


@dataclass(frozen=True)
class _Tests:
    """Where each test of the forest finds its byte: (byte, largest value that goes left)."""

    cuts: dict[tuple[_ScaleKey, float], tuple[int, int]]
    sets: dict[_SetKey, int]

    def of(self, tree: Tree, node: int) -> tuple[int, int]:
        """Byte and cut of a node."""
        if tree.decision_type[node] & CATEGORICAL_BIT:
            return self.sets[_set_key(tree, node)], 0
        return self.cuts[_scale_key(tree, node), _threshold(tree, node)]


def pack(forest: Forest, *, has_strikes: bool) -> npt.NDArray[np.uint8] | Unpackable:
    """The block of a forest.

    Args:
        forest: As `tree_text.read_forest` checked it.
        has_strikes: Whether the kernel on this CPU has the form that tests every node of 16 trees at once.

    Returns:
        The block, or why there is none.
    """
    scales, cuts, scale_bytes = _scales(forest)
    categories, tables, sets = _categories(forest, first_byte=scale_bytes)
    byte_count = scale_bytes + len(sets)
    if byte_count > LARGEST_BYTE_COUNT:
        return Unpackable(f"its tests need {byte_count} bytes a row, at most {LARGEST_BYTE_COUNT} fit")
    if isinstance(tables, int):
        return Unpackable(f"its category tables need {tables} bytes, at most {LARGEST_TABLE_BYTES} fit")
    tests = _Tests(cuts, sets)
    is_struck = (
        has_strikes and byte_count <= STRIKE_BYTES and all(len(tree.value) <= LEAVES for tree in forest.trees)
    )
    parts = {**_scale_arrays(scales), "category_at": categories}
    parts.update(_strike_arrays(forest, tests) if is_struck else _walk_arrays(forest, tests))
    counts = {
        "columns": forest.feature_count,
        "scales": len(scales),
        "categories": len(categories),
        "bytes": byte_count,
        "trees": len(forest.trees),
        "is_average": int(forest.is_average),
        "is_struck": int(is_struck),
    }
    return _block(counts, parts, tables)


def _block(
    counts: dict[str, int], parts: dict[str, npt.NDArray[Any]], tables: list[npt.NDArray[np.uint8]]
) -> npt.NDArray[np.uint8]:
    """Header, arrays and category tables one after the other, each from a multiple of 64 bytes."""
    place = _padded(8 * len(HEADER))
    header = dict.fromkeys(HEADER, 0) | counts
    placed: list[tuple[int, npt.NDArray[Any]]] = []
    for index, table in enumerate(tables):
        parts["category_at"][index, 4] = place
        placed.append((place, table))
        place += _padded(table.nbytes)
    for name, array in parts.items():
        header[name] = place
        placed.append((place, array))
        place += _padded(array.nbytes)
    header["size"] = place
    block = np.zeros(place, dtype=np.uint8)
    placed.append((0, np.array([header[name] for name in HEADER], dtype=np.int64)))
    for start, array in placed:
        block[start : start + array.nbytes] = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
    return block


def _padded(size: int) -> int:
    return -(-size // 64) * 64


def _nodes(forest: Forest) -> Iterator[tuple[Tree, int]]:
    for tree in forest.trees:
        for node in range(len(tree.feature)):
            yield tree, node


def _scale_key(tree: Tree, node: int) -> _ScaleKey:
    """Tests with the same key order the values of a column in the same way."""
    kind = tree.decision_type[node]
    return tree.feature[node], kind >> 2, bool(kind & DEFAULT_LEFT_BIT)


def _set_key(tree: Tree, node: int) -> _SetKey:
    return tree.feature[node], tree.category_sets[int(tree.threshold[node])]


def _threshold(tree: Tree, node: int) -> float:
    """The threshold for values that are not rounded: LightGBM reads what lies within the zero window as 0."""
    threshold = tree.threshold[node]
    if 0.0 <= threshold < ZERO_WINDOW:
        return ZERO_WINDOW
    if -ZERO_WINDOW <= threshold < 0.0:
        return float(np.nextafter(-ZERO_WINDOW, -np.inf))
    return threshold


def _scales(forest: Forest) -> tuple[list[_Scale], dict[tuple[_ScaleKey, float], tuple[int, int]], int]:
    """The cuts of each column in pieces of up to 72, where each threshold lies in its byte, and how many bytes."""
    thresholds: dict[_ScaleKey, set[float]] = {}
    for tree, node in _nodes(forest):
        if not tree.decision_type[node] & CATEGORICAL_BIT:
            thresholds.setdefault(_scale_key(tree, node), set()).add(_threshold(tree, node))
    scales: list[_Scale] = []
    places: dict[tuple[_ScaleKey, float], tuple[int, int]] = {}
    byte = 0
    for key in sorted(thresholds):
        ordered = sorted(thresholds[key])
        for first in range(0, len(ordered), BYTE_CUTS):
            cuts = ordered[first : first + BYTE_CUTS]
            places.update(((key, cut), (byte, place)) for place, cut in enumerate(cuts))
            scales += [_Scale(key, byte, cuts[start : start + CUTS]) for start in range(0, len(cuts), CUTS)]
            byte += 1
    return scales, places, byte


def _scale_arrays(scales: list[_Scale]) -> dict[str, npt.NDArray[Any]]:
    # No value is above infinity, so what fills a scale up counts nothing.
    cuts_at = np.full((len(scales), BLOCK + CUTS), np.inf)
    special_at = np.zeros(len(scales), dtype=np.uint8)
    for place, scale in enumerate(scales):
        _, missing, is_left = scale.key
        cuts_at[place, BLOCK : BLOCK + len(scale.cuts)] = scale.cuts
        if missing == MISSING_NONE:
            special_at[place] = bisect.bisect_left(scale.cuts, 0.0)  # no branch for missing: it is read as 0
        elif not is_left:
            special_at[place] = len(scale.cuts)
    cuts_at[:, :BLOCK] = cuts_at[:, BLOCK:].reshape(len(scales), BLOCK + 1, BLOCK)[:, :BLOCK, -1]
    return {
        "cuts_at": cuts_at,
        "column_at": np.array([scale.key[0] for scale in scales], dtype=np.int32),
        "target_at": np.array([scale.byte for scale in scales], dtype=np.int32),
        "special_at": special_at,
        "window_at": np.array([ZERO_WINDOW if s.key[1] == MISSING_ZERO else -1.0 for s in scales]),
    }


def _categories(
    forest: Forest, first_byte: int
) -> tuple[npt.NDArray[np.int64], list[npt.NDArray[np.uint8]] | int, dict[_SetKey, int]]:
    """One line a categorical column, its table of every code by every set, and the byte of each set.

    The tables are their size in bytes where that is above the limit.
    """
    keys = {
        _set_key(tree, node): None
        for tree, node in _nodes(forest)
        if tree.decision_type[node] & CATEGORICAL_BIT
    }
    columns: dict[int, list[tuple[int, ...]]] = {}
    for column, words in sorted(keys):
        columns.setdefault(column, []).append(words)
    code_counts = {column: 32 * max(map(len, sets)) for column, sets in columns.items()}
    size = sum((code_counts[column] + 1) * len(sets) for column, sets in columns.items())
    lines = np.zeros((len(columns), 5), dtype=np.int64)
    tables: list[npt.NDArray[np.uint8]] = []
    places: dict[_SetKey, int] = {}
    for index, (column, sets) in enumerate(columns.items()):
        lines[index, :4] = column, first_byte, len(sets), code_counts[column]
        places.update({(column, words): first_byte + place for place, words in enumerate(sets)})
        first_byte += len(sets)
        if size <= LARGEST_TABLE_BYTES:
            table = np.ones((code_counts[column] + 1, len(sets)), dtype=np.uint8)  # 1 goes right
            for place, words in enumerate(sets):
                bits = np.unpackbits(np.array(words, dtype="<u4").view(np.uint8), bitorder="little")
                table[: len(bits), place] -= bits
            tables.append(table)
    return lines, tables if size <= LARGEST_TABLE_BYTES else size, places


def _walk_arrays(forest: Forest, tests: _Tests) -> dict[str, npt.NDArray[Any]]:
    """Nodes and leaves of all trees in one array, siblings side by side, children after their parent."""
    nodes: list[tuple[int, int, int]] = []
    values: list[float] = []
    roots = []
    for tree in forest.trees:
        roots.append(len(nodes))
        waiting = deque([0 if tree.feature else -1])
        following = len(nodes) + 1
        while waiting:
            child = waiting.popleft()
            if child < 0:
                nodes.append((0, NEVER_RIGHT, len(nodes)))
                values.append(tree.value[~child])
            else:
                nodes.append((*tests.of(tree, child), following))
                values.append(0.0)
                waiting += (tree.left[child], tree.right[child])
                following += 2
    roots += [len(nodes)] * (-len(roots) % INTERLEAVED)
    nodes.append((0, NEVER_RIGHT, len(nodes)))
    values.append(0.0)
    layout = np.dtype([("byte", np.uint16), ("cut", np.uint16), ("left", np.uint32)])
    return {
        "node_at": np.array(nodes, dtype=layout),
        "root_at": np.array(roots, dtype=np.uint32),
        "node_value_at": np.array(values),
    }


def _strike_arrays(forest: Forest, tests: _Tests) -> dict[str, npt.NDArray[Any]]:
    """For each node its byte, its cut and the leaves that stay when it says "right", by groups of 16 trees."""
    groups = -(-len(forest.trees) // LANES)
    byte = np.zeros((groups, LEAVES, LANES), dtype=np.uint8)
    cut = np.full((groups, LEAVES, LANES), NEVER_RIGHT, dtype=np.uint8)
    kept = np.full((groups, LEAVES, LANES), 0xFFFF_FFFF, dtype=np.uint32)
    leaf = np.zeros((groups, LANES, LEAVES))
    for index, tree in enumerate(forest.trees):
        group, lane = divmod(index, LANES)
        order, spans = _in_order(tree)
        leaf[group, lane, : len(order)] = [tree.value[place] for place in order]
        for node, (start, stop) in enumerate(spans):
            byte[group, node, lane], cut[group, node, lane] = tests.of(tree, node)
            # Leaf 0 is the highest bit, so that the first one that is left is the count of leading zeros.
            kept[group, node, lane] = 0xFFFF_FFFF ^ ((0xFFFF_FFFF >> start) & ~(0xFFFF_FFFF >> stop))
    upper = np.packbits((byte >= 128).reshape(-1, 64), axis=1, bitorder="little").view("<u8")
    return {"byte_at": byte & 127, "upper_at": upper, "cut_at": cut, "strike_at": kept, "leaf_at": leaf}


def _in_order(tree: Tree) -> tuple[list[int], list[tuple[int, int]]]:
    """Leaves from left to right, and for each node which of them lie below its left child."""
    order: list[int] = []
    spans = [(0, 0)] * len(tree.feature)
    # A stack, not recursion: a tree may be a chain of thousands of nodes.
    waiting: list[tuple[int, int | None]] = [(0 if tree.feature else -1, None)]
    while waiting:
        child, start = waiting.pop()
        if child < 0:
            order.append(~child)
        elif start is None:
            waiting += [(child, len(order)), (tree.left[child], None)]
        else:
            spans[child] = (start, len(order))
            waiting.append((tree.right[child], None))
    return order, spans
