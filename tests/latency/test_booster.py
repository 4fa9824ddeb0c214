"""warpgauge/latency/booster.py and sealed_files.py: cases 16 (column order) and 17 (category codes)."""

import json

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import ModelFileError, SchemaError, TrainingError
from warpgauge.latency.booster import CategoricalBooster
from warpgauge.latency.sealed_files import seal, unseal
from warpgauge.latency.tree_text import read_forest

EFFECT_US = {"A100": 12.0, "H100": 8.0, "H200": 7.0, "L4": 20.0}


def rmse(predicted: np.ndarray, actual: np.ndarray) -> float:
    return float(np.sqrt(np.mean((predicted - actual) ** 2)))


@pytest.fixture(scope="module")
def ordered() -> tuple[CategoricalBooster, pl.DataFrame, np.ndarray]:
    """Case 16: node count and NUMA distance, latency 2 + 0.05 nodes + 0.3 (distance - 10)."""
    random = np.random.default_rng(0)
    frame = pl.DataFrame(
        {
            "num_nodes": random.integers(1, 500, 2000),
            "numa_distance": random.choice([10, 21, 32], 2000),
        }
    )
    target = (2.0 + 0.05 * frame["num_nodes"] + (frame["numa_distance"] - 10) * 0.3).to_numpy()
    booster = CategoricalBooster.fit(
        frame, target, ["num_nodes", "numa_distance"], [], {"seed": 1, "num_threads": 1}
    )
    return booster, frame, target


@pytest.fixture(scope="module")
def categorical() -> tuple[CategoricalBooster, pl.DataFrame, np.ndarray]:
    """Case 17: four GPUs of different cost, plus 0.02 us a node."""
    random = np.random.default_rng(0)
    gpu = random.choice(list(EFFECT_US), 3000)
    frame = pl.DataFrame({"gpu": gpu, "nodes": random.integers(1, 300, 3000)})
    target = np.array([EFFECT_US[name] for name in gpu]) + 0.02 * frame["nodes"].to_numpy()
    booster = CategoricalBooster.fit(frame, target, ["nodes"], ["gpu"], {"seed": 1, "num_threads": 1})
    return booster, frame, target


def test_case_16_column_order_does_not_matter(ordered):
    booster, frame, target = ordered
    swapped = frame.select("numa_distance", "num_nodes")
    loaded = CategoricalBooster.from_files(booster.to_files())
    for scorer in (booster, loaded):
        assert rmse(scorer.predict(frame), target) == pytest.approx(0.055, abs=0.002)
        assert rmse(scorer.predict(swapped), target) == rmse(scorer.predict(frame), target)


def test_case_16_missing_column_is_named(ordered):
    booster, frame, _ = ordered
    with pytest.raises(SchemaError, match="missing numa_distance"):
        booster.predict(frame.drop("numa_distance"))


def test_case_16_extra_column_is_named(ordered):
    booster, frame, _ = ordered
    with pytest.raises(SchemaError, match="unknown clock_mhz"):
        booster.predict(frame.with_columns(clock_mhz=pl.lit(1)))


def test_case_16_renamed_column_is_named_with_its_new_name(ordered):
    booster, frame, _ = ordered
    with pytest.raises(SchemaError, match=r"missing num_nodes \(renamed to number_nodes\?\)"):
        booster.predict(frame.rename({"num_nodes": "number_nodes"}))


def test_text_where_a_number_is_needed_is_refused(ordered):
    booster, frame, _ = ordered
    with pytest.raises(SchemaError, match="num_nodes is String"):
        booster.predict(frame.with_columns(pl.col("num_nodes").cast(pl.String)))


def test_case_17_every_scoring_path_knows_the_training_codes(categorical):
    booster, frame, target = categorical
    rows = frame["gpu"].is_in(["H200", "L4"])
    batch, wanted = frame.filter(rows), target[rows.to_numpy()]
    loaded = CategoricalBooster.from_files(booster.to_files())
    own_codes = batch.with_columns(pl.col("gpu").cast(pl.Categorical))
    paths = {
        "batch": booster.predict(batch),
        "loaded": loaded.predict(batch),
        "swapped": booster.predict(batch.select("nodes", "gpu")),
        "categorical of the batch": booster.predict(own_codes),
        "row by row": np.concatenate([loaded.predict(batch[row : row + 1]) for row in range(200)]),
    }
    for name, predicted in paths.items():
        assert rmse(predicted, wanted[: len(predicted)]) == pytest.approx(0.015, abs=0.002), name


def test_case_17_unseen_gpu_is_named_and_not_equal_to_missing(categorical):
    booster, _, _ = categorical
    batch = pl.DataFrame({"gpu": ["B200", None, "L4"], "nodes": [100, 100, 100]})
    unseen, missing, known = booster.predict(batch)
    assert booster.never_seen(batch) == [["gpu=B200"], ["gpu=missing"], []]
    assert unseen != missing
    # The mean over the four known GPUs: 11.75 us, and 2 us for the nodes.
    assert unseen == pytest.approx(13.75, abs=0.1)
    assert known == pytest.approx(22.0, abs=0.1)


def test_case_17_model_without_its_category_table_is_refused(categorical):
    files = categorical[0].to_files()
    with pytest.raises(ModelFileError, match="category table"):
        CategoricalBooster.from_files({"model.txt": files["model.txt"]})
    document = json.loads(files["model.json"])
    del document["features"]["categorical"]
    with pytest.raises(ModelFileError):
        CategoricalBooster.from_files({**files, "model.json": json.dumps(document).encode()})
    del document["text_sha256"], document["document_sha256"]
    resealed = seal(document, files["model.txt"].decode())
    with pytest.raises(ModelFileError, match="categorical"):
        CategoricalBooster.from_files(resealed)


def test_codes_in_place_of_names_are_refused(categorical):
    with pytest.raises(SchemaError, match="codes have no meaning"):
        categorical[0].predict(pl.DataFrame({"gpu": [0, 1], "nodes": [1, 2]}))


def test_category_that_was_missing_in_training_may_be_missing():
    frame = pl.DataFrame({"gpu": ["A", None] * 100, "nodes": list(range(200))})
    booster = CategoricalBooster.fit(frame, np.arange(200.0), ["nodes"], ["gpu"], {"num_threads": 1})
    assert booster.never_seen(frame.head(2)) == [[], []]


def test_number_that_was_never_missing_is_answered_as_the_median_and_named(ordered):
    booster, frame, _ = ordered
    middle = float(frame["num_nodes"].median())
    asked = pl.DataFrame({"num_nodes": [None, middle, float("inf")], "numa_distance": [10, 10, 10]})
    predicted = booster.predict(asked)
    # LightGBM alone would read the missing value as 0 nodes and answer 2 us.
    assert predicted[0] == predicted[1] == predicted[2] == pytest.approx(2 + 0.05 * middle, abs=0.3)
    assert booster.never_seen(asked) == [["num_nodes=missing"], [], ["num_nodes=missing"]]


def test_empty_batch_gives_no_prediction(categorical):
    assert categorical[0].predict(categorical[1].head(0)).shape == (0,)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_target_that_is_not_finite_trains_nothing(bad):
    frame = pl.DataFrame({"nodes": [1, 2, 3]})
    with pytest.raises(TrainingError, match="1 of 3 targets are not finite"):
        CategoricalBooster.fit(frame, np.array([1.0, bad, 2.0]), ["nodes"], [], {})


def test_every_truncation_is_refused_before_lightgbm_sees_it(categorical):
    files = categorical[0].to_files()
    for name, content in files.items():
        for length in (0, 1, 100, len(content) // 2, len(content) - 2):
            with pytest.raises(ModelFileError):
                CategoricalBooster.from_files({**files, name: content[:length]})


def test_swapped_categories_are_refused(categorical):
    files = categorical[0].to_files()
    altered = (
        files["model.json"]
        .replace(b'"A100"', b'"TEMP"')
        .replace(b'"L4"', b'"A100"')
        .replace(b'"TEMP"', b'"L4"')
    )
    assert altered != files["model.json"]
    with pytest.raises(ModelFileError, match="altered"):
        CategoricalBooster.from_files({**files, "model.json": altered})


def test_text_of_another_model_is_refused(ordered, categorical):
    with pytest.raises(ModelFileError, match="another model"):
        CategoricalBooster.from_files(
            {
                "model.json": categorical[0].to_files()["model.json"],
                "model.txt": ordered[0].to_files()["model.txt"],
            }
        )


def test_whole_seal_around_a_cut_text_is_still_refused(categorical):
    booster = categorical[0]
    document = json.loads(booster.to_files()["model.json"])
    del document["text_sha256"], document["document_sha256"]
    with pytest.raises(
        ModelFileError, match="is no LightGBM text that can be used: the end marks are absent"
    ):
        CategoricalBooster.from_files(seal(document, booster.text[: len(booster.text) // 2]))


@pytest.mark.parametrize(
    "content", [b"[1]", b'{"format": "other"}', b"\xff\xfe", b"[" * 100_000, b'{"a": NaN}']
)
def test_document_of_another_kind_is_refused(content):
    with pytest.raises(ModelFileError):
        unseal({"model.json": content, "model.txt": b"tree\n"}, "warpgauge-booster-1")


def test_text_limit_leaves_out_later_trees(ordered):
    _, frame, target = ordered
    booster = CategoricalBooster.fit(
        frame, target, ["num_nodes", "numa_distance"], [], {"num_threads": 1}, text_limit_bytes=50_000
    )
    assert len(booster.text) <= 50_000
    assert 0 < booster.tree_count < 100


def test_started_booster_keeps_the_older_trees_first_and_learns_the_rest(categorical):
    older, frame, target = categorical
    more = target + np.where(frame["gpu"].to_numpy() == "L4", 5.0, 0.0)
    text, answers = older.text, older.predict(frame)
    newer = CategoricalBooster.fit(
        frame, more, ["nodes"], ["gpu"], {"seed": 1, "num_threads": 1}, rounds=80, start=older
    )
    kept, trees = read_forest(text).trees, read_forest(newer.text).trees
    assert trees[: len(kept)] == kept
    assert len(trees) == len(kept) + 80
    assert newer.tree_count == older.tree_count + 80
    assert newer.table is older.table
    assert rmse(newer.predict(frame), more) < 0.1
    # The older one answers as before.
    assert older.text == text
    assert np.array_equal(older.predict(frame), answers)


def test_early_stop_of_a_started_booster_leaves_out_new_trees_only(categorical):
    older, frame, target = categorical
    noise = np.random.default_rng(1).normal(0, 1, len(target))
    newer = CategoricalBooster.fit(
        frame,
        older.predict(frame) + noise,
        ["nodes"],
        ["gpu"],
        {"seed": 1, "num_threads": 1},
        validation=(frame, older.predict(frame) - noise, None),
        early_stopping_rounds=5,
        start=older,
    )
    kept = read_forest(older.text).trees
    assert read_forest(newer.text).trees[: len(kept)] == kept
    assert older.tree_count <= newer.tree_count <= older.tree_count + 1


def test_category_that_the_start_never_saw_trains_and_is_still_named(categorical):
    older, frame, target = categorical
    other = frame.with_columns(
        gpu=pl.when(pl.col("gpu") == "L4").then(pl.lit("B200")).otherwise(pl.col("gpu"))
    )
    newer = CategoricalBooster.fit(
        other, target, ["nodes"], ["gpu"], {"seed": 1, "num_threads": 1}, rounds=10, start=older
    )
    asked = pl.DataFrame({"gpu": ["B200", "A100"], "nodes": [10, 10]})
    assert newer.never_seen(asked) == [["gpu=B200"], []]
    assert np.isfinite(newer.predict(asked)).all()


def noisy_line() -> tuple[pl.DataFrame, np.ndarray]:
    random = np.random.default_rng(0)
    frame = pl.DataFrame({"nodes": random.integers(1, 300, 1000), "other": random.normal(size=1000)})
    return frame, 10 + 0.01 * frame["nodes"].to_numpy() + random.normal(0, 3, 1000)


@pytest.mark.parametrize("sign", [1, -1])
def test_monotone_feature_only_rises_or_falls(sign):
    frame, target = noisy_line()
    grid = pl.DataFrame({"nodes": list(range(1, 300)), "other": [0.0] * 299})
    params = {"num_threads": 1, "seed": 1}
    free = CategoricalBooster.fit(frame, sign * target, ["nodes", "other"], [], params)
    held = CategoricalBooster.fit(
        frame, sign * target, ["nodes", "other"], [], params, monotone={"nodes": sign}
    )
    assert (sign * np.diff(free.predict(grid))).min() < 0
    assert (sign * np.diff(held.predict(grid))).min() >= 0
    assert np.ptp(held.predict(grid)) > 1.0
    # The other feature is left free.
    other = pl.DataFrame({"nodes": [150] * 200, "other": np.linspace(-2, 2, 200)})
    assert np.diff(held.predict(other)).min() < 0 < np.diff(held.predict(other)).max()


def test_compiled_booster_answers_the_same_to_the_last_bit(categorical):
    booster, frame, _ = categorical
    plain = CategoricalBooster.from_files(booster.to_files())
    compiled = CategoricalBooster.from_files(booster.to_files())
    predictor = compiled.compile()
    asked = pl.concat(
        [
            frame,
            pl.DataFrame({"gpu": ["B200", None, "A100", "new", "L4"], "nodes": [5, 5, None, None, 10**9]}),
        ]
    )
    assert np.array_equal(compiled.predict(asked), plain.predict(asked))
    assert compiled.never_seen(asked) == plain.never_seen(asked)
    assert np.array_equal(compiled.contributions(asked), plain.contributions(asked))
    assert compiled.to_files() == plain.to_files()
    assert compiled.predict(frame.head(0)).shape == (0,)
    row = compiled.table.encode(frame.head(1))[0]
    assert predictor.predict_row(row) == plain.predict(frame.head(1))[0]


def test_compiled_booster_averages_over_categories_for_one_never_seen(categorical):
    booster = CategoricalBooster.from_files(categorical[0].to_files())
    booster.compile()
    known = pl.DataFrame({"gpu": ["A100", "H100", "H200", "L4"], "nodes": [100] * 4})
    unseen = pl.DataFrame({"gpu": ["B200"], "nodes": [100]})
    assert booster.predict(unseen)[0] == pytest.approx(booster.predict(known).mean(), rel=1e-12)


def test_compiled_booster_still_refuses_columns_that_do_not_fit(categorical):
    booster = CategoricalBooster.from_files(categorical[0].to_files())
    booster.compile()
    with pytest.raises(SchemaError, match="missing nodes"):
        booster.predict(pl.DataFrame({"gpu": ["A100"]}))


def test_text_limit_counts_trees_as_long_as_they_are(ordered):
    """Small first trees and large later ones: the cut comes where the text fits, not at a share of the trees."""
    _, frame, target = ordered
    names = ["num_nodes", "numa_distance"]
    small = CategoricalBooster.fit(frame, target, names, [], {"num_threads": 1, "num_leaves": 3}, rounds=40)
    whole = CategoricalBooster.fit(
        frame, target, names, [], {"num_threads": 1, "num_leaves": 63}, rounds=40, start=small
    )
    limit = len(small.text) + 3 * (len(whole.text) - len(small.text)) // 40
    cut = CategoricalBooster.fit(
        frame,
        target,
        names,
        [],
        {"num_threads": 1, "num_leaves": 63},
        rounds=40,
        start=small,
        text_limit_bytes=limit,
    )
    assert len(cut.text) <= limit
    assert 40 < cut.tree_count < 45


def test_number_of_threads_leaves_no_trace_in_the_text():
    random = np.random.default_rng(0)
    frame = pl.DataFrame({"x": random.normal(size=500), "y": random.normal(size=500)})
    params = {"num_leaves": 7, "deterministic": True, "force_row_wise": True}
    texts = {
        CategoricalBooster.fit(
            frame, frame["x"].to_numpy() ** 2, ["x", "y"], [], {**params, "num_threads": threads}, rounds=20
        ).text
        for threads in (1, 2)
    }
    assert len(texts) == 1
