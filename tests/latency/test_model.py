"""warpgauge/latency/model.py."""

import itertools
import json

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import ModelFileError, SchemaError
from warpgauge.latency.fitting import Boosting
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME
from warpgauge.latency.model import LatencyModel
from warpgauge.latency.sealed_files import seal, unseal
from warpgauge.latency.training import train_latency
from warpgauge.tables import LAUNCHES


def ask(**values: object) -> pl.DataFrame:
    known = {
        "gpu_name": "Tesla A",
        "topology": "straight_line",
        "line_count": 1,
        "line_length": 100,
        "node_count": 100,
        "kernel_count": 100,
        "is_straight_line": True,
        "is_profiled": False,
        "is_simulated": False,
    }
    return LAUNCHES.conform(pl.DataFrame([{**known, **values}]))


def ratio(answer: pl.DataFrame) -> float:
    return float(answer["upper_us"][0] / answer["lower_us"][0])


def test_known_graph_is_answered_near_its_law(training):
    answer = training.model.predict(ask()).row(0, named=True)
    assert answer["predicted_latency_us"] == pytest.approx(34.0, rel=0.03)
    assert 0 < answer["lower_us"] < answer["predicted_latency_us"] < answer["upper_us"]
    assert answer["never_seen"] == []
    assert answer["is_simulated"] is False


def test_column_order_does_not_matter(training, launches):
    shuffled = launches.select(reversed(launches.columns))
    assert training.model.predict(launches).equals(training.model.predict(shuffled))


def test_rows_are_answered_alone_as_together(training, launches):
    together = training.model.predict(launches[:20])
    alone = pl.concat([training.model.predict(launches[row : row + 1]) for row in range(20)])
    assert together.equals(alone)


def test_labels_and_identity_are_not_read(training, launches):
    bare = launches.drop("first_launch_api_us", "launch_id", "trial", "graph_id", "graph_signature")
    assert training.model.predict(bare).equals(training.model.predict(launches))


def test_trial_is_not_read(training, launches):
    other = launches.with_columns(trial=pl.col("trial") + 1)
    assert training.model.predict(other).equals(training.model.predict(launches))


@pytest.mark.parametrize("column", ["gpu_name", "topology", "is_profiled", "node_count", "kernel_count"])
def test_missing_column_is_named(training, launches, column):
    with pytest.raises(SchemaError, match=column):
        training.model.predict(launches.drop(column))


def test_renamed_column_is_named(training, launches):
    with pytest.raises(SchemaError, match=r"missing node_count \(renamed to nodes_count\?\)"):
        training.model.predict(launches.rename({"node_count": "nodes_count"}))


def test_row_without_node_count_is_named(training):
    with pytest.raises(SchemaError, match="row 0"):
        training.model.predict(ask(node_count=None, line_length=None, line_count=None))


def test_gpu_never_seen_is_named_and_widens_the_interval(training):
    known, unseen = training.model.predict(ask()), training.model.predict(ask(gpu_name="B200"))
    assert unseen["never_seen"].to_list() == [["gpu_name=B200"]]
    # The other GPU costs twice as much a node: the interval must hold that.
    assert ratio(unseen) > 2 * ratio(known)
    assert unseen["lower_us"][0] < 34.0 < unseen["upper_us"][0]
    assert unseen["lower_us"][0] < 64.0 < unseen["upper_us"][0]


def test_missing_gpu_is_not_the_same_as_an_unseen_one(training):
    missing = training.model.predict(ask(gpu_name=None))
    assert missing["never_seen"].to_list() == [["gpu_name=missing"]]


def test_profiler_never_seen_is_named_and_widens_tenfold(training):
    known, unseen = training.model.predict(ask()), training.model.predict(ask(is_profiled=True))
    assert unseen["never_seen"].to_list() == [["is_profiled=true"]]
    assert ratio(unseen) == pytest.approx(100 * ratio(known), rel=0.3)


def test_version_that_training_never_varied_may_be_left_out(training):
    assert training.model.predict(ask(cuda_version=None))["never_seen"].to_list() == [[]]
    assert training.model.predict(ask(cuda_version="13.0"))["never_seen"].to_list() == [["cuda_version=13.0"]]


def test_size_far_beyond_training_is_named_and_follows_the_slope(training):
    big = 100_000
    answer = training.model.predict(ask(node_count=big, line_length=big, kernel_count=big))
    assert answer["never_seen"].to_list() == [["node_count=100000"]]
    assert answer["predicted_latency_us"][0] == pytest.approx(4 + 0.3 * big, rel=0.1)
    assert ratio(answer) > 2 * ratio(training.model.predict(ask()))


def test_feature_that_was_never_missing_is_named_when_it_is(training):
    answer = training.model.predict(ask(kernel_count=None))
    assert answer["never_seen"].to_list() == [["kernel_count=missing"]]
    assert answer["predicted_latency_us"][0] == pytest.approx(34.0, rel=0.1)


def test_new_combination_of_known_values_is_named(make_launches):
    from warpgauge.latency.training import train_latency

    rows = make_launches().filter(~((pl.col("gpu_name") == "Tesla B") & (pl.col("line_count") == 4)))
    model = train_latency(LAUNCH_SCHEME, rows, Boosting(trees=20), threads=1).model
    asked = ask(
        gpu_name="Tesla B", topology="parallel_lines", line_count=4, line_length=25, is_straight_line=False
    )
    answer = model.predict(asked)
    assert answer["never_seen"].to_list() == [
        ["gpu_name=Tesla B with topology=parallel_lines with is_profiled=false"]
    ]
    assert ratio(answer) > ratio(model.predict(ask(gpu_name="Tesla B")))


def test_empty_frame_gives_an_empty_answer(training, launches):
    assert training.model.predict(launches.head(0)).shape == (0, 5)


def test_files_bring_the_same_model_back(training, launches):
    files = training.model.to_files()
    again = LatencyModel.from_files(files)
    assert set(files) == {"model.txt", "model.json"}
    assert again.predict(launches).equals(training.model.predict(launches))
    assert again.to_files() == files
    assert again.target == "first_launch_api_us"


def test_document_tells_what_the_model_was_trained_on(training):
    document = json.loads(training.model.to_files()["model.json"])
    assert document["trained_on"]["gpu_name"] == ["Tesla A", "Tesla B"]
    assert document["trained_on"]["row_count"] == training.training_row_count
    assert document["unit"] == "us"
    assert [entry["name"] for entry in document["features"]["categorical"]] == ["gpu_name", "topology"]


def test_files_hold_no_pickle(training):
    files = training.model.to_files()
    assert json.loads(files["model.json"])
    assert files["model.txt"].startswith(b"tree\n")


@pytest.mark.parametrize("name", ["model.txt", "model.json"])
def test_absent_file_is_refused(training, name):
    files = training.model.to_files()
    del files[name]
    with pytest.raises(ModelFileError, match=name):
        LatencyModel.from_files(files)


@pytest.mark.parametrize("name", ["model.txt", "model.json"])
def test_truncated_or_altered_file_is_refused(training, name):
    files = training.model.to_files()
    content = files[name]
    for length in range(0, len(content), max(1, len(content) // 25)):
        with pytest.raises(ModelFileError):
            LatencyModel.from_files({**files, name: content[:length]})
    middle = len(content) // 2
    flipped = content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    with pytest.raises(ModelFileError):
        LatencyModel.from_files({**files, name: flipped})


@pytest.mark.parametrize("part", ["features", "baseline", "intervals", "scheme", "trained_on"])
def test_document_without_a_part_is_refused_even_with_whole_hashes(training, part):
    files = training.model.to_files()
    document = json.loads(files["model.json"])
    for name in (part, "text_sha256", "document_sha256"):
        del document[name]
    with pytest.raises(ModelFileError, match=part):
        LatencyModel.from_files(seal(document, files["model.txt"].decode()))


def test_document_with_features_in_another_order_is_refused(training):
    files = training.model.to_files()
    document = json.loads(files["model.json"])
    del document["text_sha256"], document["document_sha256"]
    document["features"]["numeric"].reverse()
    with pytest.raises(ModelFileError, match="has the features"):
        LatencyModel.from_files(seal(document, files["model.txt"].decode()))


def test_model_of_simulated_rows_says_so_in_every_answer(make_launches):
    from warpgauge.latency.training import train_latency

    rows = make_launches(gpus=("Tesla A",)).with_columns(is_simulated=pl.lit(True))
    model = LatencyModel.from_files(
        train_latency(LAUNCH_SCHEME, rows, Boosting(trees=10), threads=1).model.to_files()
    )
    answer = model.predict(pl.concat([ask(), ask(is_simulated=None)]))
    assert answer["is_simulated"].to_list() == [True, True]
    assert answer["never_seen"].to_list() == [[], []]


def test_intervals_are_ordered_and_finite_for_anything(training):
    rows = pl.concat(
        [
            ask(node_count=nodes, gpu_name=gpu, topology=topology, is_profiled=True)
            for nodes in (1, 10_000_000)
            for gpu in (None, "X")
            for topology in ("captured", "general")
        ]
    )
    answer = training.model.predict(rows)
    low, mid, high = (answer[name].to_numpy() for name in ("lower_us", "predicted_latency_us", "upper_us"))
    assert np.isfinite(high).all()
    assert ((low > 0) & (low <= mid) & (mid <= high)).all()


def kernel(**values: object) -> pl.DataFrame:
    known = {"m": 512.0, "n": 512.0, "k": 512.0, "card": "Card A", "kind": "tn"}
    return pl.DataFrame([{**known, **values}])


def test_kernel_is_answered_near_its_law(kernel_training):
    answer = kernel_training.model.predict(kernel()).row(0, named=True)
    # (2 us + 2 x 512^3 FLOP at 10 TFLOP/s) x 1.3.
    assert answer["predicted_latency_us"] == pytest.approx((2 + 2 * 512**3 / 1e7) * 1.3, rel=0.03)
    assert answer["lower_us"] < answer["predicted_latency_us"] < answer["upper_us"]
    assert answer["never_seen"] == []


def test_device_never_seen_is_named_and_widens_the_interval(make_scheme, kernels):
    from warpgauge.latency.table_scheme import Devices
    from warpgauge.latency.training import train_latency

    figures = {
        "Card A": {"peak_tflops": 10.0, "bandwidth_gb_per_s": 500.0},
        "Card B": {"peak_tflops": 40.0, "bandwidth_gb_per_s": 2000.0},
    }
    scheme = make_scheme(devices=Devices("card", figures))
    only = kernels.filter(pl.col("card") == "Card A")
    training = train_latency(scheme, only, Boosting(trees=20, learning_rate=0.2), threads=1)
    known, unseen = training.model.predict(kernel()), training.model.predict(kernel(card="Card B"))
    assert unseen["never_seen"].to_list() == [["card=Card B"]]
    # One card alone: nothing could be left out, so the stated factor of 3 each way.
    assert ratio(unseen) == pytest.approx(9 * ratio(known), rel=0.15)
    assert any("one card alone" in note for note in training.notes)
    law_us = (2 + 2 * 512**3 / 4e7) * 1.3
    assert unseen["lower_us"][0] < law_us < unseen["upper_us"][0]


def test_device_without_figures_in_the_spec_cannot_be_answered(kernel_training):
    with pytest.raises(SchemaError, match=r"no roofline .*card=Card X"):
        kernel_training.model.predict(kernel(card="Card X"))


def test_kind_never_seen_is_named_and_answered_between_the_known_ones(kernel_training):
    model = kernel_training.model
    answer = model.predict(kernel(kind="nt"))
    assert answer["never_seen"].to_list() == [["kind=nt"]]
    low, high = (model.predict(kernel(kind=kind))["predicted_latency_us"][0] for kind in ("nn", "tn"))
    assert low < answer["predicted_latency_us"][0] < high
    assert ratio(answer) > ratio(model.predict(kernel()))


def test_kernel_far_beyond_training_is_named_and_follows_the_roofline(kernel_training):
    answer = kernel_training.model.predict(kernel(m=2.0**17))
    assert answer["never_seen"].to_list() == [["roofline_us=6871.95"]]
    assert answer["predicted_latency_us"][0] == pytest.approx((2 + 6871.95) * 1.3, rel=0.1)


def test_table_model_reads_no_label_and_no_identity(kernel_training, kernels):
    model = kernel_training.model
    bare = kernels.select("kind", "k", "n", "m", "card")
    assert model.predict(bare).equals(model.predict(kernels))
    assert np.array_equal(model.predict_us(bare), model.predict(kernels)["predicted_latency_us"].to_numpy())
    assert model.predict(bare.head(0)).shape == (0, 5)
    whole = bare.with_columns(pl.col("m", "n", "k").cast(pl.Int64), pl.col("kind").cast(pl.Categorical))
    assert model.predict(whole).equals(model.predict(bare))


def test_table_model_comes_back_from_its_files(kernel_training, kernels):
    files = kernel_training.model.to_files()
    again = LatencyModel.from_files(files)
    assert again.scheme == kernel_training.model.scheme
    assert again.predict(kernels).equals(kernel_training.model.predict(kernels))
    assert again.to_files() == files


def test_explanation_of_a_kernel_sums_up_to_its_prediction(kernel_training, kernels):
    model = kernel_training.model
    rows = kernels.head(5)
    for lines, predicted in zip(model.explain(rows), model.predict_us(rows), strict=True):
        assert sum(line["share_us"] for line in lines) == pytest.approx(predicted)
        assert lines[0]["feature"] == "physics baseline"
    tn = next(line for line in model.explain(kernel())[0] if line["feature"] == "kind")
    nn = next(line for line in model.explain(kernel(kind="nn"))[0] if line["feature"] == "kind")
    # The kinds differ by 1.3.
    assert tn["value"] == "tn"
    assert (100 + tn["factor_percent"]) / (100 + nn["factor_percent"]) == pytest.approx(1.3, abs=0.03)


def test_explanation_of_a_launch_sums_up_to_its_prediction(training, launches):
    for lines, predicted in zip(
        training.model.explain(launches.head(3)), training.model.predict_us(launches.head(3)), strict=True
    ):
        assert sum(line["share_us"] for line in lines) == pytest.approx(predicted)
    assert training.model.explain(launches.head(0)) == []


STRANGE: list[object] = [None, True, -1, 1.5, "x", [], [1], ["x"], [[]], {}, {"x": {}}, 10**400]


@pytest.mark.parametrize("which", ["training", "kernel_training"])
def test_damaged_part_behind_a_whole_seal_is_refused_or_harmless(which, request, launches, kernels):
    """Each part of the document absent or of another kind: refused as a model file, or it answers finitely."""
    files = request.getfixturevalue(which).model.to_files()
    rows = (launches if which == "training" else kernels).head(2)
    document, text = unseal(files, "warpgauge-latency-2")
    del document["text_sha256"], document["document_sha256"]
    del document["trained_on"]["fold_rule"]
    refused = 0
    parts = places({name: document[name] for name in ("scheme", "features", "baseline", "intervals")})
    # Two strange values a part, others for its neighbour.
    turns = itertools.cycle(STRANGE)
    for path in parts:
        for wrong in ("absent", next(turns), next(turns)):
            damaged = json.loads(json.dumps(document))
            holder = damaged
            for step in path[:-1]:
                holder = holder[step]
            if wrong == "absent":
                del holder[path[-1]]
            else:
                holder[path[-1]] = wrong
            try:
                model = LatencyModel.from_files(seal(damaged, text))
            except ModelFileError:
                refused += 1
                continue
            try:
                answer = model.predict(rows)
            except SchemaError:
                continue
            assert np.isfinite(
                answer.select("lower_us", "predicted_latency_us", "upper_us").to_numpy()
            ).all(), path
    assert refused > 150


def places(node: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    """Paths of the parts of a document, the first one of a list for all of them."""
    steps = node if isinstance(node, dict) else range(min(len(node), 1)) if isinstance(node, list) else ()
    return [deeper for step in steps for deeper in [(*path, step), *places(node[step], (*path, step))]]


def test_without_a_roofline_a_column_beyond_training_is_named_and_widens(make_scheme, kernels):
    scheme = make_scheme(by=(), slices=(), devices=None, roofline=None, derived={})
    model = train_latency(scheme, kernels, Boosting(trees=20), threads=1).model
    asked = kernels.head(1).select(list(scheme.input_kinds))
    largest = float(kernels["m"].max())
    inside = model.predict(asked.with_columns(m=pl.lit(largest))).row(0, named=True)
    beyond = model.predict(asked.with_columns(m=pl.lit(100 * largest))).row(0, named=True)
    nonsense = model.predict(asked.with_columns(m=pl.lit(-5.0))).row(0, named=True)
    assert inside["never_seen"] == []
    assert beyond["never_seen"] == [f"m={100 * largest:.6g}"]
    assert beyond["upper_us"] / inside["upper_us"] == pytest.approx(100, rel=0.01)
    assert nonsense["never_seen"] == ["m=-5"]
    assert nonsense["upper_us"] / nonsense["predicted_latency_us"] == pytest.approx(np.exp(7))
