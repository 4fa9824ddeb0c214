"""warpgauge/latency/hidden_state.py."""

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from warpgauge.errors import TrainingError
from warpgauge.latency.hidden_state import alternating_trials, hidden_state_notes
from warpgauge.launches.perfscaling import read_perfscaling


def trials(graphs: int = 200, trials: int = 10) -> pl.DataFrame:
    """Ten trials of each graph, sizes 1, 2, 3, ..."""
    size = np.repeat(np.arange(1, graphs + 1), trials)
    return pl.DataFrame(
        {
            "graph_id": [f"g{value}" for value in size],
            "trial": np.tile(np.arange(trials), graphs),
            "node_count": size,
            "line_length": size,
            "line_count": np.ones(len(size), dtype=int),
        }
    ).with_columns(
        gpu_name=pl.lit("A"), topology=pl.lit("lines"), is_profiled=pl.lit(False), is_simulated=pl.lit(False)
    )


def levels(frame: pl.DataFrame, gap_ratio: float, from_size: int = 1) -> np.ndarray:
    """100 us + 1 us a node; even trials slower by the gap from a size on."""
    size, trial = frame["node_count"].to_numpy(), frame["trial"].to_numpy()
    return (100.0 + size) * (1 + gap_ratio * ((trial % 2 == 0) & (size >= from_size)))


def test_two_levels_are_found_with_their_distance():
    frame = trials()
    random = np.random.default_rng(0)
    latency = levels(frame, 0.04) * np.exp(random.normal(0, 0.01, frame.height))
    (found,) = alternating_trials(frame, latency)
    assert found.group == ("A", "lines", "false", "false")
    assert (found.graph_count, found.smallest_nodes, found.largest_nodes) == (200, 1, 200)
    assert found.gap_ratio == pytest.approx(0.04, abs=0.003)
    assert found.gap_us == pytest.approx(8.0, abs=0.6)
    assert found.even_slower_ratio == 1.0
    # Variance of two levels 0.04 apart is 0.0004, that of the noise 0.0001.
    assert found.explained_ratio == pytest.approx(0.8, abs=0.05)


def test_levels_that_begin_at_a_size_are_named_from_there():
    frame = trials()
    latency = levels(frame, 0.05, from_size=101) * np.exp(np.random.default_rng(1).normal(0, 0.01, 2000))
    (found,) = alternating_trials(frame, latency)
    assert (found.smallest_nodes, found.largest_nodes) == (101, 200)
    (note,) = hidden_state_notes(frame, latency)
    assert "A, lines, 101 to 200 nodes (even trials slower in 100% of 100 graphs)" in note


@pytest.mark.parametrize("law", ["normal", "skewed", "ticks", "drift"])
def test_independent_or_drifting_trials_say_nothing_in_400_tables(law):
    random = np.random.default_rng(2)
    frame = trials(40)
    for _ in range(100):
        noise = random.normal(0, 0.03, frame.height)
        if law == "skewed":
            noise = random.pareto(1.5, frame.height) * 0.01
        if law == "drift":
            noise = noise * 0.1 + 0.01 * frame["trial"].to_numpy()
        latency = levels(frame, 0.0) * np.exp(noise)
        # A coarse clock gives many equal trials.
        assert not alternating_trials(frame, np.round(latency) if law == "ticks" else latency)


def test_an_alternation_far_below_the_noise_says_nothing():
    frame = trials(2000)
    latency = levels(frame, 0.005) * np.exp(np.random.default_rng(3).normal(0, 0.02, frame.height))
    assert hidden_state_notes(frame, latency) == ()


def test_disturbed_trials_do_not_hide_it():
    frame = trials()
    random = np.random.default_rng(4)
    latency = levels(frame, 0.04) * np.exp(random.normal(0, 0.01, frame.height))
    latency[random.random(frame.height) < 0.03] *= 5
    (found,) = alternating_trials(frame, latency)
    assert found.gap_ratio == pytest.approx(0.04, abs=0.004)
    assert found.explained_ratio > 0.6


def test_row_order_does_not_matter():
    frame = trials().with_columns(us=pl.Series(levels(trials(), 0.04)))
    latency = frame["us"].to_numpy() * np.exp(np.random.default_rng(5).normal(0, 0.01, frame.height))
    order = np.random.default_rng(6).permutation(frame.height)
    assert alternating_trials(frame[order], latency[order]) == alternating_trials(frame, latency)


@pytest.mark.parametrize(
    "change",
    [
        pl.lit(None, dtype=pl.Int64).alias("trial"),
        pl.lit(0).alias("trial"),
        (pl.col("graph_id") + pl.col("trial").cast(pl.String)).alias("graph_id"),
    ],
)
def test_trials_without_an_order_say_nothing(change):
    frame = trials()
    assert alternating_trials(frame.with_columns(change), levels(frame, 0.05)) == ()


def test_few_or_equal_or_no_trials_say_nothing():
    frame = trials(19)
    assert alternating_trials(frame, levels(frame, 0.05)) == ()
    frame = trials(40)
    assert alternating_trials(frame, levels(frame, 0.0)) == ()
    assert alternating_trials(frame[:0], np.empty(0)) == ()


def test_a_latency_that_is_not_finite_is_refused():
    with pytest.raises(TrainingError, match="not finite"):
        alternating_trials(trials(2), np.full(20, np.nan))


def test_public_trials_of_parallel_lines_alternate_and_straight_lines_do_not(bench_data: Path):
    files = sorted((bench_data / "perfscaling").glob("*.csv.gz"))
    launches = pl.concat([read_perfscaling(path).frame for path in files])
    (found,) = alternating_trials(launches, launches["first_launch_api_us"].to_numpy())
    assert found.group[1] == "parallel_lines"
    assert (found.smallest_nodes, found.largest_nodes) == (2004, 8000)
    assert 20 < found.gap_us < 45
    assert 0.02 < found.gap_ratio < 0.04
    assert found.even_slower_ratio > 0.98
    assert 0.5 < found.explained_ratio < 0.9
