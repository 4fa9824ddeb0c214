"""warpgauge/latency/tree_code.py and tree_kernel.c on trees made by hand, against LightGBM's rules written out."""

import math
import shutil
from collections.abc import Sequence

import numpy as np
import pytest

from warpgauge.latency import predictor, tree_code
from warpgauge.latency.tree_code import LARGEST_BYTE_COUNT, ZERO_WINDOW, Unpackable, pack
from warpgauge.latency.tree_text import (
    CATEGORICAL_BIT,
    DEFAULT_LEFT_BIT,
    MISSING_NAN,
    MISSING_NONE,
    MISSING_ZERO,
    Forest,
    Tree,
)

pytestmark = pytest.mark.skipif(
    not any(map(shutil.which, predictor.COMPILERS)), reason="no C compiler on this machine"
)
INFINITY = math.inf
HARD = (
    0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 2.7, 31.0, 31.9, 32.0, 33.0, -0.99, 1e10, 2147483647.0, 2147483648.0, -2147483649.0,
    1e300, -1e300, math.nan, INFINITY, -INFINITY, 1e-36, -1e-36, ZERO_WINDOW, -ZERO_WINDOW, 1e-35, -1e-35, 5e-324,
    float(np.nextafter(ZERO_WINDOW, 1)), float(np.nextafter(-ZERO_WINDOW, -1)),
)  # fmt: skip


def stump(threshold: float, kind: int, sets: tuple[tuple[int, ...], ...] = (), feature: int = 0) -> Tree:
    return Tree((feature,), (threshold,), (kind,), (-1,), (-2,), (1.0, 2.0), sets)


def chain(length: int, towards_left: bool) -> Tree:
    """A tree as deep as it has nodes: node i asks whether the value is at most i."""
    nodes = range(length)
    following = tuple(node + 1 if node + 1 < length else ~length for node in nodes)
    leaves = tuple(~node for node in nodes)
    thresholds = tuple(float(length - node if towards_left else node) for node in nodes)
    left, right = (following, leaves) if towards_left else (leaves, following)
    return Tree(
        (0,) * length, thresholds, (8,) * length, left, right, tuple(map(float, range(length + 1))), ()
    )


def expected(forest: Forest, row: Sequence[float]) -> float:
    """LightGBM's Tree::Decision, after the zero window that its matrix reader applies to every value."""
    total = 0.0
    for tree in forest.trees:
        child = 0 if tree.feature else -1
        while child >= 0:
            value = row[tree.feature[child]]
            value = 0.0 if abs(value) <= ZERO_WINDOW else value
            kind = tree.decision_type[child]
            missing = kind >> 2
            if kind & CATEGORICAL_BIT:
                words = tree.category_sets[int(tree.threshold[child])]
                code = int(value) if -1 < value < 2**31 else -1
                goes_left = 0 <= code < 32 * len(words) and bool(words[code // 32] >> code % 32 & 1)
            else:
                value = 0.0 if math.isnan(value) and missing != MISSING_NAN else value
                if math.isnan(value) or (missing == MISSING_ZERO and abs(value) <= ZERO_WINDOW):
                    goes_left = bool(kind & DEFAULT_LEFT_BIT)
                else:
                    goes_left = value <= tree.threshold[child]
            child = tree.left[child] if goes_left else tree.right[child]
        total += tree.value[~child]
    return total / len(forest.trees) if forest.is_average else total


def answers(forest: Forest, rows: np.ndarray, form: str) -> list[float]:
    """From the kernel, in the form asked for."""
    kernel = predictor._load_kernel(None, predictor.COMPILERS)
    if form == "struck" and not kernel.has_strikes:
        pytest.skip("this CPU has no AVX-512 VBMI")
    block = pack(forest, has_strikes=form == "struck")
    assert not isinstance(block, Unpackable)
    compiled = predictor._CompiledAnswers(kernel, block)
    one_by_one = [compiled.predict_row(row) for row in rows]
    assert compiled.predict(np.ascontiguousarray(rows)).tolist() == one_by_one
    return one_by_one


FORMS = pytest.mark.parametrize("form", ["struck", "walked"])


@FORMS
@pytest.mark.parametrize("missing", [MISSING_NONE, MISSING_ZERO, MISSING_NAN])
@pytest.mark.parametrize("default", [0, DEFAULT_LEFT_BIT])
def test_every_kind_of_missing_goes_where_lightgbm_sends_it(form: str, missing: int, default: int) -> None:
    rows = np.array(HARD)[:, None]
    for threshold in (*(value for value in HARD if not math.isnan(value)), 3.25):
        forest = Forest(1, False, (stump(threshold, missing << 2 | default),))
        assert answers(forest, rows, form) == [expected(forest, row) for row in rows.tolist()], threshold


@FORMS
def test_two_kinds_of_missing_on_one_column_stay_apart(form: str) -> None:
    kinds = [missing << 2 | default for missing in range(3) for default in (0, DEFAULT_LEFT_BIT)]
    trees = tuple(stump(float(threshold), kind) for kind in kinds for threshold in (-1, 0, 1, 2))
    forest = Forest(1, False, trees)
    rows = np.array(HARD)[:, None]
    assert answers(forest, rows, form) == [expected(forest, row) for row in rows.tolist()]


@FORMS
def test_category_codes_of_any_kind_go_where_lightgbm_sends_them(form: str) -> None:
    sets = ((0b1011,), (0, 0x80000001), (0xFFFFFFFF, 0xFFFFFFFF), (0,))
    trees = tuple(stump(float(place), CATEGORICAL_BIT, sets) for place in range(4))
    trees += tuple(stump(float(place), CATEGORICAL_BIT, sets, feature=1) for place in range(2))
    forest = Forest(2, False, trees)
    rows = np.column_stack([HARD, HARD[::-1]])
    assert answers(forest, rows, form) == [expected(forest, row) for row in rows.tolist()]
    assert expected(forest, [math.nan, math.nan]) == 12.0


@pytest.mark.parametrize("length", [31, 32, 40, 1000])
@pytest.mark.parametrize("towards_left", [True, False])
def test_chain_of_nodes_is_followed_to_its_end(length: int, towards_left: bool) -> None:
    forest = Forest(1, False, (chain(length, towards_left),) * 3)
    rows = np.array([-1.0, 0.0, 0.5, 1.0, length - 1.5, length - 1, length, length + 1, math.nan])[:, None]
    assert answers(forest, rows, "walked") == [expected(forest, row) for row in rows.tolist()]
    if length == 31:
        assert answers(forest, rows, "struck") == [expected(forest, row) for row in rows.tolist()]


@FORMS
@pytest.mark.parametrize("count", [1, 7, 8, 9, 71, 72, 73, 144, 253, 254, 255, 600])
def test_any_number_of_thresholds_on_one_column_is_counted(form: str, count: int) -> None:
    forest = Forest(1, False, tuple(stump(float(threshold), 8) for threshold in range(count)))
    rows = np.array([-1.0, *np.arange(0, count, 0.5), count, INFINITY, -INFINITY, math.nan])[:, None]
    assert answers(forest, rows, form) == [expected(forest, row) for row in rows.tolist()]


@FORMS
@pytest.mark.parametrize("trees", [1, 2, 15, 16, 17, 33])
def test_any_number_of_trees_is_added_up_in_order(form: str, trees: int) -> None:
    random = np.random.default_rng(trees)
    parts = tuple(
        Tree(
            (0,), (float(random.random()),), (8,), (-1,), (-2,), tuple(random.standard_normal(2).tolist()), ()
        )
        for _ in range(trees - 1)
    )
    constant = Tree((), (), (), (), (), (0.1,), ())
    for is_average in (False, True):
        forest = Forest(1, is_average, (constant, *parts))
        rows = random.random((50, 1))
        assert answers(forest, rows, form) == [expected(forest, row) for row in rows.tolist()]


@FORMS
@pytest.mark.parametrize("columns", [127, 128, 129, 255, 256])
def test_a_row_of_any_number_of_columns_is_read(form: str, columns: int) -> None:
    forest = Forest(columns, False, tuple(stump(0.0, 8, feature=column) for column in range(columns)))
    rows = np.random.default_rng(columns).standard_normal((20, columns))
    assert answers(forest, rows, form) == [expected(forest, row) for row in rows.tolist()]


def test_more_columns_than_the_vectors_hold_are_walked() -> None:
    forest = Forest(400, False, tuple(stump(0.0, 8, feature=column) for column in range(400)))
    rows = np.random.default_rng(0).standard_normal((20, 400))
    kernel = predictor._load_kernel(None, predictor.COMPILERS)
    block = pack(forest, has_strikes=True)
    assert not isinstance(block, Unpackable)
    compiled = predictor._CompiledAnswers(kernel, block)
    assert [compiled.predict_row(row) for row in rows] == [expected(forest, row) for row in rows.tolist()]


def test_too_many_tests_for_a_row_are_named() -> None:
    count = LARGEST_BYTE_COUNT + 1
    tree = Tree(tuple(range(count)), *([0.0] * count, [8] * count), (), (), (), ())  # type: ignore[arg-type]
    found = pack(Forest(count, False, (tree,)), has_strikes=False)
    assert isinstance(found, Unpackable)
    assert "32769 bytes a row" in found.reason


def test_category_tables_above_the_limit_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tree_code, "LARGEST_TABLE_BYTES", 100)
    found = pack(Forest(1, False, (stump(0.0, CATEGORICAL_BIT, ((1,) * 4,)),)), has_strikes=False)
    assert isinstance(found, Unpackable)
    assert "129 bytes, at most 100" in found.reason
