"""warpgauge/latency/tree_text.py: what of LightGBM's text is believed."""

import re

import lightgbm
import numpy as np
import pytest

from warpgauge.errors import ModelFileError
from warpgauge.latency.tree_text import CATEGORICAL_BIT, read_forest


def train(rounds: int = 3, **params: object) -> str:
    """Two numbers, one with missing values, and one category."""
    random = np.random.default_rng(0)
    matrix = np.column_stack(
        [random.standard_normal(400), random.standard_normal(400), random.integers(0, 40, 400)]
    )
    matrix[:40, 1] = np.nan
    target = 1 + np.abs(matrix[:, 0] + np.nan_to_num(matrix[:, 1]) + 5 * (matrix[:, 2] % 3))
    if params.get("num_class"):
        target = np.round(target) % 3
    data = lightgbm.Dataset(matrix, target, categorical_feature=[2], params={"verbosity": -1})
    settings = {
        "verbosity": -1,
        "num_threads": 1,
        "num_leaves": 8,
        "min_data_in_leaf": 5,
        "min_data_per_group": 1,
        "cat_smooth": 0,
        **params,
    }
    return lightgbm.train(settings, data, rounds).model_to_string()


@pytest.fixture(scope="module")
def text() -> str:
    return train()


def altered(text: str, name: str, change: str, tree: int = 0) -> str:
    """The text with one field of one tree replaced, tree_sizes corrected: an attacker would correct them."""
    start = text.index(f"Tree={tree}\n")
    head, body = text[:start], text[start:]
    found = re.search(rf"^{name}=(.*)$", body, flags=re.MULTILINE)
    assert found, name
    new = body[: found.start(1)] + change + body[found.end(1) :]
    sizes = re.search(r"^tree_sizes=(.*)$", head, flags=re.MULTILINE)
    assert sizes
    numbers = [int(size) for size in sizes.group(1).split()]
    numbers[tree] += len(new) - len(body)
    return head[: sizes.start(1)] + " ".join(map(str, numbers)) + head[sizes.end(1) :] + new


def values(text: str, name: str) -> list[str]:
    found = re.search(rf"^{name}=(.*)$", text[text.index("Tree=0\n") :], flags=re.MULTILINE)
    assert found
    return found.group(1).split()


def test_arrays_are_those_of_the_booster(text: str) -> None:
    forest = read_forest(text)
    assert forest.feature_count == 3
    assert not forest.is_average
    dumped = lightgbm.Booster(model_str=text).dump_model()["tree_info"]
    assert len(forest.trees) == len(dumped) == 3
    for tree, reference in zip(forest.trees, dumped, strict=True):
        root = reference["tree_structure"]
        assert tree.feature[0] == root["split_feature"]
        assert len(tree.value) == reference["num_leaves"]
        assert len(tree.feature) == reference["num_leaves"] - 1
        assert bool(tree.decision_type[0] & CATEGORICAL_BIT) == (root["decision_type"] == "==")
    assert any(tree.category_sets for tree in forest.trees)


def test_tree_of_one_leaf_is_a_tree() -> None:
    data = lightgbm.Dataset(np.zeros((30, 2)), np.full(30, 4.5), params={"verbosity": -1})
    forest = read_forest(lightgbm.train({"verbosity": -1}, data, 2).model_to_string())
    assert forest.trees[0].feature == ()
    assert forest.trees[0].value == (4.5,)


def test_random_forest_is_an_average() -> None:
    forest = read_forest(train(boosting="rf", bagging_freq=1, bagging_fraction=0.5))
    assert forest.is_average


def test_cut_text_is_refused_wherever_it_is_cut(text: str) -> None:
    whole = text.index("\nend of parameters\n") + len("\nend of parameters\n")
    for length in [*range(0, whole, 97), whole - 1]:
        with pytest.raises(ModelFileError, match="is no LightGBM text that can be used"):
            read_forest(text[:length])


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("left_child", lambda v: ["5000", *v[1:]], "outside of the tree"),
        ("left_child", lambda v: ["-5000", *v[1:]], "outside of the tree"),
        ("left_child", lambda v: ["0", *v[1:]], "reached twice"),
        ("left_child", lambda v: [v[1], *v[1:]], r"reached"),
        ("right_child", lambda v: ["-1" for _ in v], "reached"),
        ("right_child", lambda v: v[:-1], "values of right_child"),
        ("split_feature", lambda v: ["3", *v[1:]], "split_feature 3 of 3"),
        ("split_feature", lambda v: ["-1", *v[1:]], "split_feature -1 of 3"),
        ("split_feature", lambda v: ["1.5", *v[1:]], "invalid literal"),
        ("threshold", lambda v: ["nan" for _ in v], "not a number|category set nan"),
        ("decision_type", lambda v: ["15" for _ in v], "decision_type 15"),
        ("decision_type", lambda v: ["1" for _ in v], "category set"),
        ("leaf_value", lambda v: ["inf", *v[1:]], "finite"),
        ("leaf_value", lambda v: [*v, "1"], "values of leaf_value"),
        ("num_leaves", lambda _: ["999999999"], "values of leaf_value"),
        ("num_leaves", lambda _: ["0"], "values of leaf_value"),
        ("num_leaves", lambda _: ["-3"], "values of leaf_value"),
        ("num_cat", lambda _: ["77"], "values of cat_boundaries"),
        ("cat_threshold", lambda v: ["4294967296", *v[1:]], "32 bits"),
        ("cat_threshold", lambda v: ["-1", *v[1:]], "32 bits"),
        ("cat_threshold", lambda v: [*v, "1"], "do not divide"),
        ("cat_boundaries", lambda v: ["1", *v[1:]], "do not divide"),
        ("cat_boundaries", lambda v: ["0", "999", *v[2:]], "do not divide"),
        ("is_linear", lambda _: ["1"], "linear_tree"),
    ],
)
def test_array_that_points_outside_is_refused(text: str, name: str, change, said: str) -> None:
    with pytest.raises(ModelFileError, match=said):
        read_forest(altered(text, name, " ".join(change(values(text, name)))))


def test_tree_that_does_not_start_where_the_sizes_say_is_refused(text: str) -> None:
    sizes = re.search(r"^tree_sizes=(.*)$", text, flags=re.MULTILINE)
    assert sizes
    for listed in ("1 2 3", "", sizes.group(1) + " 10", sizes.group(1).rpartition(" ")[0], "99999999999"):
        with pytest.raises(ModelFileError, match=r"tree_sizes|tree \d does not start"):
            read_forest(text.replace(sizes.group(0), f"tree_sizes={listed}"))


def test_field_that_stands_twice_is_refused(text: str) -> None:
    once = "\n".join(["shrinkage=1", "shrinkage=1"])
    with pytest.raises(ModelFileError, match="names shrinkage twice"):
        read_forest(altered(text, "num_cat", values(text, "num_cat")[0] + "\n" + once))


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"objective": "multiclass", "num_class": 3}, "multi-class"),
        ({"linear_tree": True}, "linear"),
        ({"objective": "poisson"}, "objective `poisson` transforms"),
        ({"objective": "regression", "reg_sqrt": True}, "objective `regression sqrt` transforms"),
    ],
)
def test_model_of_another_kind_is_refused_by_name(params: dict[str, object], said: str) -> None:
    with pytest.raises(ModelFileError, match=said):
        read_forest(train(**params))


@pytest.mark.parametrize("objective", ["regression_l1", "huber", "fair", "quantile", "mape"])
def test_every_objective_without_a_transform_is_read(objective: str) -> None:
    assert len(read_forest(train(objective=objective)).trees) == 3
