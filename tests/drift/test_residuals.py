import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import numpy as np
import polars as pl
import pytest

from warpgauge.drift.residuals import (
    FACTS_FILE,
    TENSORS_FILE,
    ResidualReference,
    ResidualRows,
    fit_residual_reference,
    measure_residuals,
    unix_seconds,
)
from warpgauge.errors import ModelFileError, WindowError

GPUS = [f"GPU {number}" for number in range(10)]
START_S = 1.7e9


def launches(
    random: np.random.Generator,
    graphs: int,
    trials: int = 10,
    gpus: Sequence[str | None] = GPUS,
    slower: float | dict[str | None, float] = 1.0,
) -> ResidualRows:
    """Heavy-tailed errors with one of their own for each graph; each GPU has its bias and noise, and a noise scale."""
    number = random.integers(len(gpus), size=graphs)
    shared = random.standard_t(4, graphs) * 0.02
    gpu = np.repeat(number, trials)
    noise = (np.repeat(shared, trials) + random.standard_t(3, graphs * trials) * 0.01) * (1 + gpu % 3)
    factor = slower if isinstance(slower, dict) else dict.fromkeys(gpus, slower)
    names = [gpus[one] for one in gpu]
    return ResidualRows(
        noise + 0.01 * (gpu % 2) + np.log([factor.get(name, 1.0) for name in names]),
        noise_scale=0.05 * (1 + gpu % 3),
        graph_id=[f"graph {one}" for one in np.repeat(np.arange(graphs), trials)],
        slices=pl.DataFrame(
            {"gpu_name": pl.Series(names, dtype=pl.String), "is_profiled": [False] * len(names)}
        ),
        time_s=START_S + np.arange(len(names)),
        row_id=[f"{random.integers(1 << 60):x}" for _ in names],
    )


def joined(*parts: ResidualRows) -> ResidualRows:
    """Rows of several windows, one after another."""

    def all_of(name: str) -> list:
        return [one for part in parts for one in getattr(part, name)]

    return ResidualRows(
        all_of("log_residual"),
        noise_scale=all_of("noise_scale"),
        graph_id=all_of("graph_id"),
        slices=pl.concat([part.slices for part in parts]),
        time_s=all_of("time_s"),
        row_id=all_of("row_id"),
    )


def places(rows: ResidualRows, chosen: Sequence[int] | np.ndarray) -> ResidualRows:
    return ResidualRows(
        np.asarray(rows.log_residual)[chosen],
        noise_scale=np.asarray(rows.noise_scale)[chosen],
        graph_id=[rows.graph_id[one] for one in chosen],
        slices=rows.slices[list(chosen)],
        time_s=np.asarray(rows.time_s)[chosen],
        row_id=[rows.row_id[one] for one in chosen],
    )


def slice_of(measurement, name: str) -> dict:
    return next(one for one in measurement.details["slices"] if one["slice"].startswith(name))


@pytest.fixture(scope="module")
def reference() -> ResidualReference:
    return fit_residual_reference(launches(np.random.default_rng(0), 2_000))


# What trips, and what does not


def test_a_slower_or_faster_machine_trips_and_an_unchanged_one_does_not(reference: ResidualReference):
    same = measure_residuals(reference, launches(np.random.default_rng(1), 100))
    assert same.status == "measured"
    assert not same.is_tripped
    assert same.lower <= same.value <= same.upper
    for slower, said in ((1.05, r"[3-7]\.\d% higher"), (1 / 1.05, r"[3-7]\.\d% lower")):
        other = measure_residuals(reference, launches(np.random.default_rng(1), 100, slower=slower))
        assert other.is_tripped
        assert pytest.approx(slower - 1, abs=0.01) == slice_of(other, "all rows")["change_ratio"]
        with pytest.raises(AssertionError, match=said):
            raise AssertionError(other.reason)


def test_errors_that_grow_without_a_change_of_level_trip(reference: ResidualReference):
    rows = launches(np.random.default_rng(2), 100)
    wider = replace(rows, log_residual=np.asarray(rows.log_residual) * 2)
    found = measure_residuals(reference, wider)
    assert found.is_tripped
    whole = slice_of(found, "all rows")
    assert whole["test"] == "spread"
    assert whole["inside_ratio"] < whole["trained_inside_ratio"] - 0.1
    narrower = replace(rows, log_residual=np.asarray(rows.log_residual) * 0.3)
    assert slice_of(measure_residuals(reference, narrower), "all rows")["test"] != "spread"


def test_one_slowed_gpu_among_ten_is_not_averaged_away(reference: ResidualReference):
    random = np.random.default_rng(3)
    rest = launches(random, 95, gpus=GPUS[:9])
    one = launches(random, 5, gpus=["GPU 9"], slower=1.15)
    found = measure_residuals(reference, joined(rest, one))
    assert found.is_tripped
    assert "gpu_name=GPU 9: latency over predicted is 1" in found.reason
    whole, slowed = slice_of(found, "all rows"), slice_of(found, "gpu_name=GPU 9")
    assert whole["value"] < whole["limit"]
    assert (found.value, found.limit) == (slowed["value"], slowed["limit"])
    assert slowed["sample_count"] == 50
    assert slowed["change_ratio"] == pytest.approx(0.15, abs=0.05)


def test_quiet_slice_is_not_drowned_by_a_noisy_one():
    """The errors of one GPU are fifty times those of the other, and so is the model's noise scale there."""
    random = np.random.default_rng(4)

    def of(count: int, slower: float) -> ResidualRows:
        noisy = np.arange(count) % 2 == 0
        scale = np.where(noisy, 0.5, 0.01)
        return ResidualRows(
            random.normal(size=count) * scale / 1.645 + np.where(noisy, 0.0, np.log(slower)),
            noise_scale=scale,
            slices=pl.DataFrame({"gpu_name": np.where(noisy, "noisy", "quiet")}),
        )

    reference = fit_residual_reference(of(2_000, 1.0))
    found = measure_residuals(reference, of(200, 1.02))
    assert found.is_tripped
    assert found.reason.startswith("gpu_name=quiet")
    assert slice_of(found, "all rows")["value"] > slice_of(found, "all rows")["limit"]


def test_change_in_the_middle_of_the_window_is_dated(reference: ResidualReference):
    random = np.random.default_rng(5)
    before, after = launches(random, 300), launches(random, 15, slower=1.12)
    moment = START_S + 3_000
    found = measure_residuals(reference, joined(before, replace(after, time_s=moment + np.arange(150))))
    whole = slice_of(found, "all rows")
    assert whole["value"] > whole["limit"]
    assert abs(whole["since_s"] - moment) < 60
    assert f"since {datetime.fromtimestamp(whole['since_s'], UTC):%Y-%m-%d %H:%M}" in whole["reason"]


def test_unchanged_windows_trip_about_as_often_as_stated(reference: ResidualReference):
    random = np.random.default_rng(6)
    tripped = sum(
        measure_residuals(reference, launches(random, 20), false_alarm_ratio=0.02).is_tripped
        for _ in range(300)
    )
    # 6 of 300 are stated; two standard errors above it lie 11.
    assert tripped <= 11


def test_one_stalled_launch_does_not_decide(reference: ResidualReference):
    rows = launches(np.random.default_rng(7), 30)
    stalled = np.asarray(rows.log_residual).copy()
    stalled[-1] = np.log(1_000.0)
    found = measure_residuals(reference, replace(rows, log_residual=stalled))
    assert not found.is_tripped
    assert found.details["rmse"] > 0.3


def test_trials_of_few_graphs_do_not_pass_for_many_launches(reference: ResidualReference):
    random = np.random.default_rng(8)
    few = launches(random, 6, trials=50, gpus=GPUS[:1], slower=1.03)
    assert not measure_residuals(reference, few).is_tripped
    assert (
        measure_residuals(reference, replace(few, graph_id=None)).value
        > measure_residuals(reference, few).value
    )


# Slices


def test_gpu_never_seen_is_named_and_held_against_all_of_training(reference: ResidualReference):
    random = np.random.default_rng(9)
    seen = launches(random, 90)
    unchanged = joined(seen, launches(random, 10, gpus=["GPU new"]))
    entry = slice_of(measure_residuals(reference, unchanged), "gpu_name=GPU new")
    assert (entry["status"], entry["is_never_seen"], entry["sample_count"]) == ("measured", True, 100)
    found = measure_residuals(reference, joined(seen, launches(random, 10, gpus=["GPU new"], slower=1.4)))
    assert found.is_tripped
    assert found.reason.startswith("gpu_name=GPU new (never seen in training, so held against all of it): ")
    # It is no part of all rows, which stay as they were.
    whole = slice_of(found, "all rows")
    assert whole["sample_count"] == 900
    assert whole["value"] < whole["limit"]


def test_window_of_a_gpu_never_seen_alone_is_measured(reference: ResidualReference):
    found = measure_residuals(
        reference, launches(np.random.default_rng(10), 20, gpus=["GPU new"], slower=1.5)
    )
    assert found.is_tripped
    assert slice_of(found, "all rows")["status"] == "cannot_say"


def test_values_seen_but_never_together_are_a_slice_of_their_own(reference: ResidualReference):
    random = np.random.default_rng(11)
    made = launches(random, 40)
    both = pl.DataFrame({"gpu_name": made.slices["gpu_name"], "topology": ["line", "fork"] * 200})
    known = both.with_columns(
        pl.when(pl.col("gpu_name") == "GPU 0").then(pl.lit("line")).otherwise("topology").alias("topology")
    )
    own = fit_residual_reference(replace(made, slices=known))
    found = measure_residuals(own, replace(made, slices=both))
    entry = slice_of(found, "gpu_name=GPU 0 with topology=fork")
    assert entry["is_never_seen"]
    assert slice_of(found, "gpu_name=GPU 0")["is_never_seen"] is False


def test_unknown_gpu_is_a_slice_as_good_as_any():
    random = np.random.default_rng(12)
    reference = fit_residual_reference(launches(random, 300, gpus=["GPU 0", None]))
    found = measure_residuals(reference, launches(random, 60, gpus=["GPU 0", None], slower={None: 1.2}))
    assert found.is_tripped
    assert slice_of(found, "gpu_name=unknown")["value"] > 5
    unseen = fit_residual_reference(launches(random, 300, gpus=["GPU 0"]))
    found = measure_residuals(unseen, launches(random, 60, gpus=["GPU 0", None]))
    assert slice_of(found, "gpu_name=unknown")["is_never_seen"]


def test_slice_that_training_held_out_too_little_of_cannot_say(reference: ResidualReference):
    random = np.random.default_rng(13)
    thin = joined(launches(random, 100, gpus=GPUS[:2]), launches(random, 1, gpus=["GPU 2"]))
    own = fit_residual_reference(thin)
    found = measure_residuals(
        own, joined(launches(random, 50, gpus=GPUS[:2]), launches(random, 10, gpus=["GPU 2"], slower=3))
    )
    entry = slice_of(found, "gpu_name=GPU 2")
    assert (entry["status"], entry["value"], entry["is_never_seen"]) == ("cannot_say", None, False)
    assert "100 more are of a kind that training held out too few of" in entry["reason"]
    assert found.details["unjudged_row_count"] == 100
    assert not found.is_tripped
    alone = measure_residuals(own, launches(random, 20, gpus=["GPU 2"]))
    assert alone.cause == "too few"
    assert alone.details["slices"][0]["status"] == "cannot_say"


def test_slice_with_too_few_rows_of_the_window_cannot_say(reference: ResidualReference):
    random = np.random.default_rng(14)
    found = measure_residuals(
        reference, joined(launches(random, 40, gpus=GPUS[:1]), launches(random, 1, gpus=["GPU 3"]))
    )
    entry = slice_of(found, "gpu_name=GPU 3")
    assert entry["reason"] == "10 launches of 1 graphs, 20 of 5 are needed"


def test_columns_that_cut_alike_are_one_slice_and_a_constant_one_is_none(reference: ResidualReference):
    random = np.random.default_rng(15)
    rows = launches(random, 200, gpus=GPUS[:2])
    twice = rows.slices.with_columns(pl.col("gpu_name").str.replace("GPU", "node").alias("node"))
    own = fit_residual_reference(replace(rows, slices=twice))
    found = measure_residuals(own, replace(rows, slices=twice))
    assert [one["slice"] for one in found.details["slices"]] == [
        "all rows",
        "gpu_name=GPU 0, node=node 0",
        "gpu_name=GPU 1, node=node 1",
    ]
    assert found.details["slice_count"] == 2


def test_very_many_slices_share_the_alarms_and_the_list_is_bounded():
    random = np.random.default_rng(16)
    names = [f"GPU {number}" for number in range(150)]
    rows = launches(random, 3_000, trials=3, gpus=names)
    reference = fit_residual_reference(rows)
    assert len(reference.cells) == 150
    assert sum(law is not None for law in reference.cells.values()) == 100
    found = measure_residuals(reference, rows)
    assert found.details["slice_count"] == 150
    assert len(found.details["slices"]) == 101
    assert slice_of(found, "gpu_name")["limit"] > slice_of(found, "all rows")["limit"]


# Pure and idempotent


def test_order_of_arrival_does_not_matter(reference: ResidualReference):
    random = np.random.default_rng(17)
    rows = launches(random, 40, slower=1.03)
    rows = replace(rows, time_s=START_S + random.integers(12, size=400))
    assert measure_residuals(reference, rows) == measure_residuals(
        reference, places(rows, random.permutation(400))
    )


def test_rows_that_come_twice_count_once(reference: ResidualReference):
    rows = launches(np.random.default_rng(18), 30)
    again = measure_residuals(reference, joined(rows, places(rows, range(100))))
    once = measure_residuals(reference, rows)
    assert (again.value, again.sample_count, again.limit) == (once.value, 300, once.limit)
    assert again.details["duplicate_row_count"] == 100


def test_rows_of_the_future_are_left_out_and_counted(reference: ResidualReference):
    random = np.random.default_rng(19)
    rows, later = launches(random, 30), launches(random, 30, slower=3.0)
    later = replace(later, time_s=START_S + 1e6 + np.arange(300))
    found = measure_residuals(reference, joined(rows, later), now_s=START_S + 1_000)
    assert found.value == measure_residuals(reference, rows).value
    assert found.details["future_row_count"] == 300
    assert "300 stamped in the future are left out" in found.reason
    nothing = measure_residuals(reference, later, now_s=START_S)
    assert nothing.cause == "no samples"
    assert "300 stamped in the future" in nothing.reason


def test_rows_of_one_moment_change_together(reference: ResidualReference):
    rows = launches(np.random.default_rng(20), 40, slower=1.1)
    at_once = measure_residuals(reference, replace(rows, time_s=np.full(400, START_S)))
    assert slice_of(at_once, "all rows")["since_s"] is None
    # One look instead of hundreds: the limit is lower.
    assert (
        slice_of(at_once, "all rows")["limit"]
        < slice_of(measure_residuals(reference, rows), "all rows")["limit"]
    )


def test_times_of_any_unit_are_told_from_other_numbers():
    collected = pl.Series([datetime(2026, 1, 1, tzinfo=UTC)] * 7)
    seconds = 1_767_225_600.0
    times = pl.Series([None, 1.7e9, 1.7e12, 1.7e15, 1.7e18, 2_024.0, float("nan")])
    assert unix_seconds(times, collected).tolist() == [seconds, 1.7e9, 1.7e9, 1.7e9, 1.7e9, seconds, seconds]


# What cannot be said


def test_what_cannot_be_measured_says_why(reference: ResidualReference):
    rows = launches(np.random.default_rng(21), 30)
    nothing = ResidualRows([])
    assert measure_residuals(None, rows).cause == "no champion"
    assert measure_residuals(reference, nothing).cause == "no samples"
    few = measure_residuals(reference, places(rows, range(99)))
    assert (few.cause, few.sample_count) == ("too few", 99)
    assert measure_residuals(reference, rows, minimum=301).cause == "too few"
    assert measure_residuals(reference, replace(rows, graph_id=["one"] * 300)).cause == "too few"
    for part, value, said in (
        ("log_residual", -np.inf, "log residuals are no fit numbers"),
        ("noise_scale", 0.0, "noise scales are no fit numbers"),
        ("noise_scale", np.nan, "noise scales are no fit numbers"),
        ("time_s", np.nan, "times are no fit numbers"),
        ("time_s", 1e18, "times are no fit numbers"),
    ):
        broken = np.asarray(getattr(rows, part), dtype=float).copy()
        broken[7] = value
        found = measure_residuals(reference, replace(rows, **{part: broken}))
        assert found.cause == "degenerate"
        assert said in found.reason
        assert rows.row_id[7] in found.reason


def test_rows_that_do_not_belong_together_are_refused(reference: ResidualReference):
    rows = launches(np.random.default_rng(22), 30)
    for changed, said in (
        ({"noise_scale": [1.0]}, "1 noise_scale for 300"),
        ({"graph_id": ["a"]}, "1 graph_id for 300"),
        ({"slices": rows.slices[:5]}, "5 slices for 300"),
        ({"slices": None}, "cut by nothing, the reference by gpu_name, is_profiled"),
        ({"noise_scale": None}, "only one of the rows and the reference"),
        ({"log_residual": np.zeros((10, 10))}, "one number a launch"),
    ):
        with pytest.raises(WindowError, match=said):
            measure_residuals(reference, replace(rows, **changed))
    with pytest.raises(WindowError, match="false_alarm_ratio is 0"):
        measure_residuals(reference, rows, false_alarm_ratio=0)


def test_model_without_a_noise_scale_is_measured_in_logs():
    random = np.random.default_rng(23)

    def plain(slower: float, wider: float = 1.0) -> ResidualRows:
        return ResidualRows(random.standard_t(3, 300) * 0.03 * wider + np.log(slower))

    reference = fit_residual_reference(plain(1.0))
    assert not measure_residuals(reference, plain(1.0)).is_tripped
    assert measure_residuals(reference, plain(1.1)).is_tripped
    found = measure_residuals(reference, plain(1.0, 3.0))
    assert found.is_tripped
    assert "errors are larger than in training" in found.reason


def test_few_graphs_and_a_giant_one_are_measured_with_caution():
    random = np.random.default_rng(24)
    giant = ResidualRows(
        np.append(random.normal(size=5_000) * 0.01 + 0.05, random.normal(size=100) * 0.05),
        graph_id=["giant"] * 5_000 + [f"graph {number // 5}" for number in range(100)],
    )
    reference = fit_residual_reference(giant)
    others = ResidualRows(
        random.normal(size=100) * 0.05, graph_id=[f"graph {number // 5}" for number in range(100)]
    )
    assert not measure_residuals(reference, others).is_tripped
    few = fit_residual_reference(launches(random, 5, gpus=GPUS[:1]))
    found = measure_residuals(few, launches(random, 20, gpus=GPUS[:1]))
    assert found.status == "measured"
    assert not found.is_tripped


def test_held_out_residuals_that_teach_nothing_are_refused():
    random = np.random.default_rng(25)
    with pytest.raises(WindowError, match="19 held-out residuals of 19 graphs"):
        fit_residual_reference(ResidualRows(random.normal(size=19)))
    with pytest.raises(WindowError, match="4 graphs"):
        fit_residual_reference(ResidualRows(random.normal(size=40), graph_id=["a", "b", "c", "d"] * 10))
    with pytest.raises(
        WindowError, match="held-out rows: 20 of 60 log residuals are no fit numbers, the first at row 2"
    ):
        fit_residual_reference(ResidualRows([0.1, 0.2, np.nan] * 20))
    with pytest.raises(WindowError, match="nearly all held-out residuals are equal"):
        fit_residual_reference(ResidualRows(np.zeros(100)))
    with pytest.raises(WindowError, match="0 held-out"):
        fit_residual_reference(ResidualRows([]))


def test_window_of_equal_residuals_is_measured(reference: ResidualReference):
    rows = launches(np.random.default_rng(26), 30)
    assert not measure_residuals(reference, replace(rows, log_residual=np.zeros(300))).is_tripped
    assert measure_residuals(reference, replace(rows, log_residual=np.full(300, 0.5))).is_tripped


def test_a_huge_window_is_measured(reference: ResidualReference):
    rows = launches(np.random.default_rng(27), 2_000, trials=20)
    found = measure_residuals(reference, rows)
    assert (found.status, found.sample_count, found.is_tripped) == ("measured", 40_000, False)


# Files


def test_files_give_the_same_reference_back(reference: ResidualReference):
    files = reference.to_files()
    again = ResidualReference.from_files(files)
    rows = launches(np.random.default_rng(28), 40, gpus=[*GPUS, None])
    assert measure_residuals(again, rows) == measure_residuals(reference, rows)
    assert again.to_files() == files
    assert sum(map(len, files.values())) < 100_000


@pytest.mark.parametrize("name", [TENSORS_FILE, FACTS_FILE])
def test_a_damaged_file_of_the_reference_is_refused(reference: ResidualReference, name: str):
    files = reference.to_files()
    with pytest.raises(ModelFileError, match="missing"):
        ResidualReference.from_files({key: value for key, value in files.items() if key != name})
    for damaged in (files[name][:-10], b"", b"{}"):
        with pytest.raises(ModelFileError, match=name):
            ResidualReference.from_files({**files, name: damaged})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (
            {"format": "warpgauge.residual_reference.1"},
            r"reference\.1', this version reads .*reference\.2'; train",
        ),
        ({"cells": []}, "laws of at least 20"),
        ({"cells": [{"key": ["GPU 0"], "law": None}]}, "a value of each slice column"),
        ({"slice_columns": "gpu_name"}, "a list of names is needed"),
        ({"rmse": None}, "rmse is None"),
        ({"pooled": None}, "a law is no object"),
    ],
)
def test_facts_that_do_not_fit_are_refused(reference: ResidualReference, change: dict, said: str):
    files = reference.to_files()
    facts = json.dumps({**json.loads(files[FACTS_FILE]), **change}).encode()
    with pytest.raises(ModelFileError, match=said) as caught:
        ResidualReference.from_files({**files, FACTS_FILE: facts})
    assert "train a new version" in str(caught.value)


def test_errors_beyond_all_that_training_saw_trip_though_few_shapes_share_them() -> None:
    random = np.random.default_rng(5)

    def rows(offset: float, seed: str) -> ResidualRows:
        shapes = np.repeat(np.arange(10), 40)
        shared = np.repeat(random.normal(0.0, 0.05, 10), 40)
        return ResidualRows(
            offset + shared + random.normal(0.0, 0.01, 400),
            graph_id=[f"{seed}{number // 4}" for number in range(400)],
            shape_id=[str(shape) for shape in shapes],
        )

    reference = fit_residual_reference(rows(0.0, "a"), seed=0)
    assert not measure_residuals(reference, rows(0.0, "b")).is_tripped
    assert measure_residuals(reference, rows(0.5, "c")).is_tripped
    assert measure_residuals(reference, rows(-0.5, "d")).is_tripped


def test_few_shapes_of_training_cannot_tell_two_samples_apart() -> None:
    random = np.random.default_rng(6)
    few = ResidualRows(
        np.repeat(random.normal(0.0, 0.05, 5), 20) + random.normal(0.0, 0.001, 100),
        shape_id=[str(number // 20) for number in range(100)],
    )
    reference = fit_residual_reference(few, seed=0)
    moved = ResidualRows(few.log_residual + 0.3, shape_id=few.shape_id)
    # Five shapes beyond five others: that happens by chance once in 126 times.
    assert not measure_residuals(reference, moved).is_tripped
