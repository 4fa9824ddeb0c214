"""LightGBM's model text as arrays that are safe to follow.

The compiled predictor (`predictor.py`) walks these arrays in C, where an index that points outside of them
would read foreign memory. So nothing is believed of the text: every number is read, every child, leaf, feature
and category set is checked to be inside its array, and every node and leaf to be reached exactly once. A text that
fails is refused before anything is built from it, LightGBM included, which ends the whole process on a cut text.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from warpgauge.errors import ModelFileError
from warpgauge.latency.sealed_files import LARGEST_FILE_BYTES, TEXT_FILE

# Bits of LightGBM's decision_type (include/LightGBM/tree.h): 1 categorical, 2 default left, then the missing type.
CATEGORICAL_BIT = 1
DEFAULT_LEFT_BIT = 2
MISSING_NONE, MISSING_ZERO, MISSING_NAN = 0, 1, 2
LARGEST_DECISION_TYPE = 0b1011

# Objectives whose answer is the sum of the leaves as it stands; the others pass it through a function.
PLAIN_OBJECTIVES = frozenset({"regression", "regression_l1", "huber", "fair", "quantile", "mape", "custom"})
# The wheel reads feature numbers as 32-bit; a table of this project has some 150 columns.
LARGEST_FEATURE_COUNT = 1_000_000

_Number = TypeVar("_Number", int, float)


@dataclass(frozen=True)
class Tree:
    """One tree. A child at or above 0 is a node, one below 0 is the leaf `-child - 1`; node 0 is the root.

    Attributes:
        feature: Column each node looks at.
        threshold: Left where the value is at most this; for a categorical node the place of its set.
        decision_type: LightGBM's bits, see `CATEGORICAL_BIT`.
        left: Child where the test holds.
        right: Child where it does not.
        value: Answer of each leaf; a tree without nodes has one.
        category_sets: The codes that go left, each set as 32-bit words, lowest code in the lowest bit.
    """

    feature: tuple[int, ...]
    threshold: tuple[float, ...]
    decision_type: tuple[int, ...]
    left: tuple[int, ...]
    right: tuple[int, ...]
    value: tuple[float, ...]
    category_sets: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Forest:
    """Trees whose leaves are added up in order.

    Attributes:
        feature_count: Columns of a row.
        is_average: Whether the sum is divided by the number of trees (a random forest).
        trees: At least one.
    """

    feature_count: int
    is_average: bool
    trees: tuple[Tree, ...]


def read_forest(text: str) -> Forest:
    """The trees of a LightGBM regression model.

    Raises:
        ModelFileError: If the text is cut, altered so that an array no longer fits, or of a kind whose answer is
            not a plain sum of leaves (several classes, linear trees, an objective that transforms its answer).
    """
    if len(text) > LARGEST_FILE_BYTES:
        _refuse(f"{len(text)} characters, at most {LARGEST_FILE_BYTES} are read")
    if not text.startswith("tree\n"):
        _refuse("the first line is not `tree`")
    head, mark, rest = text.partition("\nTree=0\n")
    if not mark:
        _refuse("there is no `Tree=0`, so it holds no tree")
    body, mark, tail = rest.partition("\nend of trees\n")
    if not mark or "\nend of parameters\n" not in tail:
        _refuse("the end marks are absent, so it is cut")
    fields = _fields(head, "the head")
    if (
        _whole(fields, "num_class", "the head") != 1
        or _whole(fields, "num_tree_per_iteration", "the head") != 1
    ):
        _refuse("it is a multi-class model (num_class above 1)")
    objective = fields.get("objective", "custom").split(" ")
    if objective[0] not in PLAIN_OBJECTIVES or "sqrt" in objective:
        _refuse(f"its objective `{' '.join(objective)}` transforms the sum of the leaves")
    feature_count = _whole(fields, "max_feature_idx", "the head") + 1
    if not 1 <= feature_count <= LARGEST_FEATURE_COUNT:
        _refuse(f"max_feature_idx={feature_count - 1}, needed is 0 to {LARGEST_FEATURE_COUNT - 1}")
    sizes = _numbers(fields, "tree_sizes", "the head", int)
    # LightGBM cuts the text at these sizes without looking, so they must be those of the trees.
    blocks = _blocks(f"Tree=0\n{body}\n", sizes)
    trees = tuple(_read_tree(block, f"tree {place}", feature_count) for place, block in enumerate(blocks))
    return Forest(feature_count, "average_output" in head.split("\n"), trees)


def _blocks(body: str, sizes: tuple[int, ...]) -> list[str]:
    """The text of each tree."""
    blocks, start = [], 0
    for place, size in enumerate(sizes):
        block = body[start : start + size]
        if size <= 0 or len(block) < size or not block.startswith(f"Tree={place}\n"):
            _refuse(f"tree {place} does not start where tree_sizes says")
        blocks.append(block)
        start += size
    if body[start:].strip("\n") or not blocks:
        _refuse(f"tree_sizes lists {len(sizes)} trees and the text holds another number")
    return blocks


def _read_tree(block: str, where: str, feature_count: int) -> Tree:
    fields = _fields(block, where)
    leaf_count = _whole(fields, "num_leaves", where)
    set_count = _whole(fields, "num_cat", where)
    if fields.get("is_linear", "0") != "0":
        _refuse(f"{where} is linear (linear_tree), only constant leaves are read")
    value = _numbers(fields, "leaf_value", where, float, leaf_count)
    if leaf_count < 1 or not all(map(math.isfinite, value)):
        _refuse(f"{where} has {leaf_count} leaves or a leaf that is not a finite number")
    node_count = leaf_count - 1
    if not node_count:
        return Tree((), (), (), (), (), value, ())
    feature = _numbers(fields, "split_feature", where, int, node_count)
    threshold = _numbers(fields, "threshold", where, float, node_count)
    decision_type = _numbers(fields, "decision_type", where, int, node_count)
    left = _numbers(fields, "left_child", where, int, node_count)
    right = _numbers(fields, "right_child", where, int, node_count)
    sets = _category_sets(fields, where, set_count)
    for node in range(node_count):
        if not 0 <= feature[node] < feature_count:
            _refuse(f"{where}, node {node}: split_feature {feature[node]} of {feature_count} columns")
        if not 0 <= decision_type[node] <= LARGEST_DECISION_TYPE:
            _refuse(f"{where}, node {node}: decision_type {decision_type[node]} is unknown")
        if math.isnan(threshold[node]):
            _refuse(f"{where}, node {node}: the threshold is not a number")
        if decision_type[node] & CATEGORICAL_BIT and threshold[node] not in range(len(sets)):
            _refuse(f"{where}, node {node}: category set {threshold[node]} of {len(sets)}")
    _check_children(left, right, where)
    return Tree(feature, threshold, decision_type, left, right, value, sets)


def _category_sets(fields: Mapping[str, str], where: str, count: int) -> tuple[tuple[int, ...], ...]:
    if not count:
        return ()
    words = _numbers(fields, "cat_threshold", where, int)
    bounds = _numbers(fields, "cat_boundaries", where, int, count + 1)
    if bounds[0] != 0 or bounds[-1] != len(words) or any(a > b for a, b in itertools.pairwise(bounds)):
        _refuse(f"{where}: cat_boundaries do not divide the {len(words)} words of cat_threshold")
    if not all(0 <= word < 2**32 for word in words):
        _refuse(f"{where}: cat_threshold holds a word of more than 32 bits")
    return tuple(words[a:b] for a, b in itertools.pairwise(bounds))


def _check_children(left: tuple[int, ...], right: tuple[int, ...], where: str) -> None:
    """Stop unless the children form one tree from node 0 over every node and leaf."""
    node_count = len(left)
    seen_nodes, seen_leaves = {0}, set()
    waiting = [0]
    while waiting:
        node = waiting.pop()
        for child in (left[node], right[node]):
            if child >= 0:
                if child >= node_count or child in seen_nodes:
                    _refuse(f"{where}, node {node}: child {child} is outside of the tree or reached twice")
                seen_nodes.add(child)
                waiting.append(child)
            else:
                if ~child > node_count or ~child in seen_leaves:
                    _refuse(f"{where}, node {node}: leaf {~child} is outside of the tree or reached twice")
                seen_leaves.add(~child)
    if len(seen_nodes) != node_count or len(seen_leaves) != node_count + 1:
        _refuse(f"{where}: {node_count - len(seen_nodes)} nodes are not reached from the root")


def _fields(block: str, where: str) -> dict[str, str]:
    """`name=value` lines; a name that stands twice would mean different trees to different readers."""
    found: dict[str, str] = {}
    for line in block.split("\n"):
        name, mark, value = line.partition("=")
        if mark:
            if name in found:
                _refuse(f"{where} names {name} twice")
            found[name] = value
    return found


def _whole(fields: Mapping[str, str], name: str, where: str) -> int:
    return _numbers(fields, name, where, int, 1)[0]


def _numbers(
    fields: Mapping[str, str], name: str, where: str, kind: Callable[[str], _Number], count: int | None = None
) -> tuple[_Number, ...]:
    if name not in fields:
        _refuse(f"{where} lacks {name}")
    try:
        values = tuple(map(kind, fields[name].split()))
    except ValueError as error:
        _refuse(f"{where}, {name}: {error}")
    if count is not None and len(values) != count:
        _refuse(f"{where} has {len(values)} values of {name}, needed are {count}")
    return values


def _refuse(what: str) -> NoReturn:
    raise ModelFileError(
        f"{TEXT_FILE} is no LightGBM text that can be used: {what}; fetch the model's files again, or train a new version"
    )
