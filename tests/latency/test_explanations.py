"""warpgauge/latency/explanations.py: sums that hold, curves that follow the physics, flags that rarely matter."""

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from tests.fakes import write_launches
from warpgauge.errors import SchemaError
from warpgauge.latency.booster import CategoricalBooster
from warpgauge.latency.explanation_plots import draw_explanations
from warpgauge.latency.explanations import (
    AVERAGE_LINE,
    BASELINE_LINE,
    CANNOT_SAY,
    DEPENDENCE_SCHEMA,
    OTHERS_LINE,
    conditional_effects,
    explain,
    partial_dependence,
    set_node_count,
    size_grid,
)
from warpgauge.launches.source import read_launches
from warpgauge.tables import LAUNCHES

NOISE_RATIO = 0.05
SATURATED_RATIO = 1.4


@pytest.fixture(scope="module")
def rare_flag() -> tuple[CategoricalBooster, pl.DataFrame, np.ndarray, np.ndarray, np.ndarray]:
    """6,000 launches; six ordinary features matter, 2 % are on a saturated link and 40 % slower, and one
    flag is idle. Gives booster, features (missing values and a category among them), baseline, actual, strata."""
    random = np.random.default_rng(1)
    count = 6_000
    frame = pl.DataFrame(
        {
            **{f"number_{place}": random.normal(0, 1, count) for place in range(5)},
            "kind": random.choice(["a", "b", "c"], count),
            "is_pcie_saturated": random.random(count) < 0.02,
            "is_idle_flag": random.random(count) < 0.02,
        }
    ).with_columns(
        number_0=pl.when(pl.int_range(pl.len()) % 7 > 0).then(pl.col("number_0")),
    )
    shift = sum(0.15 * frame[f"number_{place}"].fill_null(2.0).to_numpy() for place in range(5))
    shift = shift + np.where(frame["kind"] == "a", 0.3, 0.0)
    saturated = frame["is_pcie_saturated"].to_numpy()
    baseline = random.uniform(5, 500, count)
    log_ratio = shift + np.log(SATURATED_RATIO) * saturated + random.normal(0, NOISE_RATIO, count)
    booster = CategoricalBooster.fit(
        frame,
        log_ratio,
        [name for name in frame.columns if name != "kind"],
        ["kind"],
        {"seed": 1, "num_threads": 1, "num_leaves": 31, "learning_rate": 0.1},
        rounds=150,
    )
    return booster, frame, baseline, baseline * np.exp(log_ratio), shift


# Contributions


def test_contributions_and_base_value_sum_to_each_prediction(rare_flag):
    booster, frame, *_ = rare_flag
    rows = frame.head(500)
    contributions = booster.contributions(rows)
    assert contributions.shape == (500, len(booster.table.names) + 1)
    assert np.abs(contributions.sum(axis=1) - booster.predict(rows)).max() < 1e-9


def test_contributions_sum_for_missing_values_and_categories_never_seen(rare_flag):
    booster, frame, *_ = rare_flag
    rows = frame.head(4).with_columns(
        kind=pl.Series(["never seen", None, "a", "also new"]), number_1=pl.Series([None, 1.0, None, 2.0])
    )
    contributions = booster.contributions(rows)
    assert np.abs(contributions.sum(axis=1) - booster.predict(rows)).max() < 1e-9
    assert booster.contributions(rows.head(0)).shape == (0, len(booster.table.names) + 1)
    with pytest.raises(SchemaError, match="missing number_1"):
        booster.contributions(rows.drop("number_1"))


def test_contributions_of_two_independent_effects_are_these_effects():
    # On a full grid of two independent flags the SHAP value of each is half its effect, with its sign.
    frame = pl.DataFrame({"first": [0.0, 0.0, 1.0, 1.0] * 50, "second": [0.0, 1.0, 0.0, 1.0] * 50})
    target = 0.4 * frame["first"].to_numpy() + 0.1 * frame["second"].to_numpy()
    params = {"num_threads": 1, "min_data_in_leaf": 1, "learning_rate": 0.5, "boost_from_average": True}
    booster = CategoricalBooster.fit(frame, target, ["first", "second"], [], params, rounds=60)
    assert booster.contributions(frame.head(4)) == pytest.approx(
        np.array([[s * 0.2, t * 0.05, 0.25] for s, t in [(-1, -1), (-1, 1), (1, -1), (1, 1)]]), abs=1e-6
    )


# One answer


def test_shares_of_an_explanation_sum_to_the_prediction_and_factors_multiply_to_it(rare_flag):
    booster, frame, baseline, *_ = rare_flag
    rows = frame.head(50)
    predicted = baseline[:50] * np.exp(booster.predict(rows))
    for shown_count in (None, 3, 0):
        answers = explain(booster, rows, baseline[:50], shown_count=shown_count)
        for lines, base, expected in zip(answers, baseline[:50], predicted, strict=True):
            assert sum(line["share_us"] for line in lines) == pytest.approx(expected, rel=1e-9)
            factors = [1 + line["factor_percent"] / 100 for line in lines[1:]]
            assert base * np.prod(factors) == pytest.approx(expected, rel=1e-9)


def test_an_explanation_names_the_baseline_first_and_the_rest_last(rare_flag):
    booster, frame, baseline, *_ = rare_flag
    (lines,) = explain(booster, frame.head(1), baseline[:1], shown_count=2)
    assert [line["feature"] for line in lines[:2]] == [BASELINE_LINE, AVERAGE_LINE]
    assert lines[0]["share_us"] == lines[0]["value"] == baseline[0]
    assert lines[0]["factor_percent"] is None
    assert lines[-1]["feature"] == OTHERS_LINE
    assert len(lines) == 5
    assert abs(lines[2]["factor_percent"]) >= abs(lines[3]["factor_percent"]) / 2
    json.dumps(lines, allow_nan=False)


def test_the_answer_of_a_saturated_launch_names_the_saturation_though_shap_shares_its_effect_out(rare_flag):
    booster, frame, baseline, *_ = rare_flag
    saturated = frame.filter("is_pcie_saturated").head(20)
    factors = []
    for lines in explain(booster, saturated, baseline[:20], shown_count=None):
        (line,) = [line for line in lines if line["feature"] == "is_pcie_saturated"]
        assert line["value"] == 1.0
        factors.append(line["factor_percent"])
    # A part of the 40 % goes to features that the trees split on together with the flag.
    assert 25 < np.median(factors) < 42


def test_a_missing_value_is_null_and_a_category_is_its_name(rare_flag):
    booster, frame, baseline, *_ = rare_flag
    row = frame.filter(pl.col("number_0").is_null()).head(1)
    (lines,) = explain(booster, row, baseline[:1], shown_count=None)
    value = {line["feature"]: line["value"] for line in lines}
    assert value["number_0"] is None
    assert value["kind"] in ("a", "b", "c")


def test_an_explanation_needs_one_positive_baseline_a_row(rare_flag):
    booster, frame, *_ = rare_flag
    with pytest.raises(SchemaError, match=r"shape \(2,\), needed is one value for each of 3 rows"):
        explain(booster, frame.head(3), np.ones(2))
    with pytest.raises(SchemaError, match="baseline_us is 0 at row 1"):
        explain(booster, frame.head(2), np.array([1.0, 0.0]))
    assert explain(booster, frame.head(0), np.empty(0)) == []


# The size of a graph


def test_lines_made_longer_are_the_rows_that_the_sample_itself_would_give(tmp_path: Path):
    rows = read_launches(write_launches(tmp_path, [10, 30], trials=1)).frame
    ten, thirty = rows.filter(pl.col("line_length") == 10), rows.filter(pl.col("line_length") == 30)
    shape = [
        name
        for name in LAUNCHES.column_names
        if name.endswith(("_count", "_bytes", "_maximum", "_mean", "_total"))
        or name in ("depth", "graph_width", "line_length", "topology")
    ]
    assert set_node_count(ten, 30).select(shape).equals(thirty.select(shape))
    assert set_node_count(ten, 10).equals(ten)


def test_four_lines_take_the_nearest_size_that_four_lines_can_have(launches: pl.DataFrame):
    four = launches.filter(pl.col("line_count") == 4).head(1)
    sizes = [set_node_count(four, wanted)["node_count"].item() for wanted in (1, 9, 11, 400)]
    assert sizes == [4, 8, 12, 400]
    assert set_node_count(four, 400)["line_length"].item() == 100


def test_a_kernel_before_the_fork_stays_one():
    # Two lines of 3 after one kernel: 7 nodes; of 5: 11.
    row = LAUNCHES.conform(
        pl.DataFrame(
            {"line_count": [2], "line_length": [3], "node_count": [7], "edge_count": [6], "depth": [4]}
        )
    )
    longer = set_node_count(row, 11)
    assert longer.select("line_length", "node_count", "edge_count", "depth").row(0) == (5, 11, 10, 6)


def test_a_mixed_graph_keeps_its_mix_and_its_width():
    mixed = LAUNCHES.conform(
        pl.DataFrame(
            {
                "topology": ["general"],
                "node_count": [10],
                "kernel_count": [5],
                "memcpy_count": [3],
                "memset_count": [2],
                "other_node_count": [0],
                "edge_count": [12],
                "depth": [4],
                "graph_width": [3],
                "memcpy_bytes": [1000],
                "threads_per_block_mean": [128.0],
            }
        )
    )
    longer = set_node_count(mixed, 25).row(0, named=True)
    assert (longer["kernel_count"], longer["edge_count"], longer["depth"]) == (12, 30, 10)
    kinds = ("kernel_count", "memcpy_count", "memset_count", "other_node_count")
    assert sum(longer[name] for name in kinds) == longer["node_count"] == 25
    assert (longer["memcpy_bytes"], longer["graph_width"], longer["threads_per_block_mean"]) == (2500, 3, 128)
    assert longer["line_length"] is None
    assert longer["memset_bytes"] is None
    assert set_node_count(mixed, 10).equals(mixed)


def test_partial_dependence_follows_the_law_of_each_kind_of_line(training, launches: pl.DataFrame):
    # 4 us + 0.3 or 0.6 us a node, four lines 1.2 times that; the middle 80 % spans the two GPUs.
    curve = partial_dependence(training.model.predict_us, launches, set_node_count, [1, 4, 40, 120, 600])
    assert curve.schema == DEPENDENCE_SCHEMA
    found = {(row["group"], row["node_count"]): row for row in curve.iter_rows(named=True)}
    assert set(found) == {
        *(("straight_line x 1", size) for size in (1, 4, 40, 120)),
        *(("parallel_lines x 4", size) for size in (4, 40, 120, 600)),
    }
    for (group, size), row in found.items():
        factor = 1.2 if "4" in group else 1.0
        assert row["lower_us"] == pytest.approx(factor * (4 + 0.3 * size), rel=0.06)
        assert row["upper_us"] == pytest.approx(factor * (4 + 0.6 * size), rel=0.06)
        assert row["lower_us"] <= row["median_us"] <= row["upper_us"]


def test_partial_dependence_agrees_with_predicting_the_real_rows_of_that_size(
    training, launches: pl.DataFrame
):
    real = launches.filter((pl.col("line_length") == 101) & (pl.col("line_count") == 4))
    expected = np.median(training.model.predict_us(real))
    one_gpu = partial_dependence(training.model.predict_us, launches, set_node_count, [404])
    assert one_gpu["median_us"].item() == pytest.approx(expected, rel=1e-9)


def test_partial_dependence_leaves_out_rows_that_cannot_have_the_size(launches: pl.DataFrame):
    four = launches.filter(pl.col("line_count") == 4)
    curve = partial_dependence(lambda rows: np.ones(rows.height), four, set_node_count, [4, 6, 8, 41, 10_000])
    # 6 nodes are off by a third, 41 by 2 %, 10,000 were never seen.
    assert curve["node_count"].to_list() == [4, 8, 41]


def test_the_grid_runs_over_the_sizes_of_the_rows_at_equal_ratio(launches: pl.DataFrame):
    assert size_grid(np.array([1.0, 1000.0]), 4) == [1, 10, 100, 1000]
    assert size_grid(np.array([7.0])) == [7]
    curve = partial_dependence(lambda rows: rows["node_count"].to_numpy() * 1.0, launches, set_node_count)
    assert curve["node_count"].min() == 1
    assert (curve["median_us"] / curve["node_count"]).is_between(0.9, 1.1).all()
    assert (curve["row_count"] <= 200).all()


def test_partial_dependence_refuses_what_has_no_size(launches: pl.DataFrame):
    def predict(rows: pl.DataFrame) -> np.ndarray:
        return np.ones(rows.height)

    with pytest.raises(SchemaError, match="no row"):
        partial_dependence(predict, launches.head(0), set_node_count)
    sizeless = [pl.lit(None, dtype=pl.Int64).alias(name) for name in ("node_count", "line_count")]
    lacking = launches.head(2).with_columns(sizeless)
    with pytest.raises(SchemaError, match="node_count is nan at row 0"):
        partial_dependence(predict, lacking, set_node_count)
    with pytest.raises(SchemaError, match=r"whole numbers of at least 1, found \[0, 5\]"):
        partial_dependence(predict, launches, set_node_count, [5, 0])


# Flags


def effects_of(rare_flag, **more):
    booster, frame, baseline, actual, shift = rare_flag
    flags = frame.select("is_pcie_saturated", "is_idle_flag")
    strata = pl.DataFrame({"size_band": np.where(baseline > 100, "large", "small"), "kind": frame["kind"]})
    found = conditional_effects(
        flags, actual, baseline * np.exp(shift), strata, importance=booster.importance(), **more
    )
    return {row["flag"]: row for row in found.iter_rows(named=True)}


def test_a_rare_flag_of_little_importance_is_reported_with_its_whole_effect(rare_flag):
    found = effects_of(rare_flag)["is_pcie_saturated"]
    # Last of the features that matter, and a few percent of the gain at most...
    assert found["gain_rank"] == 7
    assert found["gain_ratio"] < 0.03
    assert found["on_ratio"] == pytest.approx(0.02, abs=0.005)
    # ...and yet 40 % slower where it is on.
    assert found["finding"] == "slower"
    assert found["lower_percent"] <= 40 <= found["upper_percent"]
    assert found["effect_percent"] == pytest.approx(40, abs=3)
    assert found["upper_percent"] - found["lower_percent"] < 6


def test_a_flag_without_effect_has_an_interval_that_holds_zero(rare_flag):
    found = effects_of(rare_flag)["is_idle_flag"]
    assert found["finding"] == "no effect seen"
    assert found["lower_percent"] <= 0 <= found["upper_percent"]
    assert found["upper_percent"] - found["lower_percent"] < 6
    assert found["on_count"] + found["off_count"] == 6_000


def test_what_the_model_learned_of_an_effect_is_not_left_in_it(rare_flag):
    booster, frame, baseline, *_ = rare_flag
    predicted = baseline * np.exp(booster.predict(frame))
    found = effects_of(rare_flag, predicted_us=predicted)["is_pcie_saturated"]
    assert abs(found["left_in_model_percent"]) < 3
    assert found["effect_percent"] == pytest.approx(40, abs=3)


def test_the_same_seed_gives_the_same_interval(rare_flag):
    assert effects_of(rare_flag, seed=3) == effects_of(rare_flag, seed=3)
    assert effects_of(rare_flag, seed=3) != effects_of(rare_flag, seed=4)


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    held = 0
    for seed in range(100):
        random = np.random.default_rng(seed)
        flag = random.random(600) < 0.1
        actual = np.exp(random.normal(0, 0.1, 600) + 0.2 * flag)
        found = conditional_effects(
            pl.DataFrame({"flag": flag}), actual, np.ones(600), pl.DataFrame(), seed=seed
        ).row(0, named=True)
        held += found["lower_percent"] <= 100 * np.expm1(0.2) <= found["upper_percent"]
    assert 88 <= held <= 100


def test_flags_are_compared_within_a_stratum_only():
    # The flag is on mostly on the slow GPU: unmatched it would look 3 times slower, matched it does nothing.
    random = np.random.default_rng(0)
    slow = random.random(4_000) < 0.5
    flag = random.random(4_000) < np.where(slow, 0.5, 0.02)
    actual = np.where(slow, 30.0, 10.0) * np.exp(random.normal(0, 0.05, 4_000))
    flags, gpu = pl.DataFrame({"flag": flag}), pl.DataFrame({"gpu": np.where(slow, "slow", "fast")})
    unmatched = conditional_effects(flags, actual, np.full(4_000, 10.0), pl.DataFrame()).row(0, named=True)
    matched = conditional_effects(flags, actual, np.full(4_000, 10.0), gpu).row(0, named=True)
    assert unmatched["effect_percent"] > 100
    assert matched["lower_percent"] <= 0 <= matched["upper_percent"]
    assert matched["effect_percent"] == pytest.approx(0, abs=1)


def test_trials_of_one_graph_count_once():
    # 3 graphs with 100 trials each with the flag on: 300 rows, three observations.
    random = np.random.default_rng(0)
    graph = np.repeat(np.arange(60), 100)
    flag = graph < 3
    actual = np.exp(np.repeat(random.normal(0, 0.3, 60), 100))
    arguments = (pl.DataFrame({"flag": flag}), actual, np.ones(6_000), pl.DataFrame())
    by_row = conditional_effects(*arguments).row(0, named=True)
    by_graph = conditional_effects(*arguments, graphs=pl.Series(graph)).row(0, named=True)
    assert by_row["finding"] != CANNOT_SAY
    assert by_graph["finding"] == CANNOT_SAY
    assert by_graph["reason"] == "3 graphs with the flag on, at least 20 are needed"
    assert by_graph["on_count"] == 300


@pytest.mark.parametrize(
    ("flag", "stratum", "reason"),
    [
        ([True] * 19 + [False] * 181, ["a"] * 200, "19 rows with the flag on, at least 20 are needed"),
        ([True] * 190 + [False] * 10, ["a"] * 200, "10 rows with the flag off, at least 20 are needed"),
        ([False] * 200, ["a"] * 200, "0 rows with the flag on"),
        ([None] * 200, ["a"] * 200, "0 rows with the flag on"),
        (
            [True] * 100 + [False] * 100,
            ["a"] * 100 + ["b"] * 100,
            "100 of 100 rows with the flag on have too few",
        ),
        ([True] * 100 + [False] * 100, ["a"] * 100 + [None] * 100, "0 can be compared"),
    ],
)
def test_too_little_data_is_named_and_not_answered(flag, stratum, reason):
    found = conditional_effects(
        pl.DataFrame({"flag": pl.Series(flag, dtype=pl.Boolean)}),
        np.ones(200),
        np.ones(200),
        pl.DataFrame({"gpu": stratum}),
        predicted_us=np.ones(200),
    ).row(0, named=True)
    assert found["finding"] == CANNOT_SAY
    assert reason in found["reason"]
    assert found["effect_percent"] is None
    assert found["left_in_model_percent"] is None


def test_null_is_a_stratum_and_an_unknown_flag_is_neither_on_nor_off():
    flag = [True] * 50 + [False] * 50 + [None] * 100
    actual = np.array([2.0] * 50 + [1.0] * 50 + [99.0] * 100)
    found = conditional_effects(
        pl.DataFrame({"flag": flag}), actual, np.ones(200), pl.DataFrame({"gpu": [None] * 200})
    ).row(0, named=True)
    assert (found["on_count"], found["off_count"], found["missing_count"]) == (50, 50, 100)
    assert found["effect_percent"] == pytest.approx(100)
    assert found["gain_rank"] is None


@pytest.mark.parametrize(
    ("flags", "actual", "strata", "said"),
    [
        ({"flag": [2.0, 1.0]}, [1.0, 1.0], {}, "flag holds 2 at row 0.*threshold"),
        ({"flag": ["a", "b"]}, [1.0, 1.0], {}, "flag is String"),
        ({"flag": [True, False]}, [1.0], {}, r"actual_us has shape \(1,\)"),
        ({"flag": [True, False]}, [1.0, 0.0], {}, "actual_us is 0 at row 1"),
        ({"flag": [True, False]}, [1.0, np.nan], {}, "actual_us is nan at row 1"),
        ({"flag": [True, False]}, [1.0, 1.0], {"gpu": ["a"]}, "strata has 1 rows, flags has 2"),
    ],
)
def test_input_that_does_not_fit_is_refused_by_name(flags, actual, strata, said):
    with pytest.raises(SchemaError, match=said):
        conditional_effects(pl.DataFrame(flags), np.array(actual), np.ones(2), pl.DataFrame(strata))


def test_explanations_are_drawn(tmp_path: Path, rare_flag, launches: pl.DataFrame):
    curve = partial_dependence(lambda rows: rows["node_count"].to_numpy() * 1.0, launches, set_node_count)
    booster, frame, baseline, actual, _ = rare_flag
    effects = conditional_effects(
        frame.select("is_pcie_saturated", "is_idle_flag").with_columns(never=pl.lit(False)),
        actual,
        baseline,
        pl.DataFrame(),
        importance=booster.importance(),
    )
    figures = draw_explanations(curve, effects)
    assert set(figures) == {"partial_dependence", "conditional_effects"}
    assert [line.get_label() for line in figures["partial_dependence"].axes[0].lines] == [
        "parallel_lines x 4",
        "straight_line x 1",
    ]
    assert [text.get_text() for text in figures["conditional_effects"].axes[0].texts] == [CANNOT_SAY]
    assert draw_explanations(curve.head(0), effects.head(0)) == {}
    for name, figure in figures.items():
        figure.savefig(tmp_path / f"{name}.png")
