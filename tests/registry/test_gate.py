import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from warpgauge.errors import SettingsError
from warpgauge.registry.gate import Candidate, GatePolicy, judge

CHAMPION = Candidate("launch-latency", "1", "rmse_us", 3.2, 5000, "a" * 64)
CHALLENGER = replace(CHAMPION, version="2", metric_value=3.05)


def from_json(entry: dict[str, Any]) -> Candidate:
    metric = entry["rmse_us"]
    return Candidate(
        name="launch-latency",
        version=entry["id"],
        metric_name="rmse_us",
        metric_value=float(metric) if isinstance(metric, str) else metric,
        row_count=entry["n_test"],
        test_set_sha256=entry.get("test_set_hash", "the current one"),
        tail_name="p99_abs_error_us" if "p99_abs_err_us" in entry else None,
        tail_value=entry.get("p99_abs_err_us"),
    )


@pytest.fixture
def story(cases: Path) -> dict[str, Candidate]:
    entries = json.loads((cases / "15-nonfinite-metric-promotion-gate" / "candidates.json").read_text())
    return {entry["id"]: from_json(entry) for entry in entries}


@pytest.mark.parametrize(
    ("version", "outcome", "reason"),
    [
        ("v2", "refuse", "is NaN"),
        ("v3", "refuse", "is infinite"),
        ("v4", "refuse", "how a database returns infinity"),
        ("v5", "refuse", "is missing"),
        ("v6", "refuse", "cannot be negative"),
        ("v7", "refuse", "leakage"),
        ("v8", "refuse", "3 held-out rows, 30 are needed"),
        ("v9", "refuse", "tail: p99_abs_error_us 61"),
        ("v10", "promote", "not worse: rmse_us 3.05 against 3.2 of the champion v1"),
        ("v11", "refuse", "not comparable"),
    ],
)
@pytest.mark.parametrize("policy", [GatePolicy(), GatePolicy(tail_limit=20.0)])
def test_of_ten_challengers_one_is_promoted(
    story: dict[str, Candidate], version: str, outcome: str, reason: str, policy: GatePolicy
):
    verdict = judge(story[version], story["v1"], policy)
    assert verdict.outcome == outcome
    assert reason in " ".join(verdict.reasons)
    json.dumps(verdict.figures, allow_nan=False)


def test_a_longer_tail_than_the_champions_is_refused(story: dict[str, Candidate]):
    champion = replace(story["v1"], tail_name="p99_abs_error_us", tail_value=9.0)
    worse = replace(story["v9"], tail_value=12.0)
    assert "of the champion v1, 25% longer" in " ".join(judge(worse, champion, GatePolicy()).reasons)
    assert judge(replace(story["v9"], tail_value=11.0), champion, GatePolicy()).outcome == "promote"


@pytest.mark.parametrize("value", [math.nan, math.inf, None, -1.0, 0.0, 1.7976931348623157e308])
def test_a_champion_without_a_figure_does_not_block_for_ever(value: float | None):
    verdict = judge(CHALLENGER, replace(CHAMPION, metric_value=value), GatePolicy())
    assert verdict.outcome == "hold"
    assert "re-evaluate the champion 1 on the current test set" in verdict.reasons[0]


def test_versions_of_unknown_or_other_test_sets_are_not_compared():
    assert judge(CHALLENGER, replace(CHAMPION, test_set_sha256=None), GatePolicy()).outcome == "hold"
    assert judge(replace(CHALLENGER, test_set_sha256=None), CHAMPION, GatePolicy()).outcome == "refuse"
    assert judge(replace(CHALLENGER, row_count=4000), CHAMPION, GatePolicy()).outcome == "refuse"
    assert judge(replace(CHALLENGER, name="doc-quality"), CHAMPION, GatePolicy()).outcome == "refuse"


def test_a_larger_is_better_metric_is_not_taken_for_a_loss():
    verdict = judge(replace(CHALLENGER, metric_name="roc_auc"), CHAMPION, GatePolicy())
    assert verdict.outcome == "refuse"
    assert "larger for a better model" in verdict.reasons[0]
    assert judge(replace(CHALLENGER, metric_name="brier_score"), None, GatePolicy()).outcome == "hold"


@pytest.mark.parametrize("value", ["3.05", True, [3.0]])
def test_what_is_not_a_number_is_refused(value: Any):
    verdict = judge(replace(CHALLENGER, metric_value=value), CHAMPION, GatePolicy())
    assert verdict.outcome == "refuse"
    assert "not a number" in verdict.reasons[0]


def paired(
    factor: float, *, rows: int = 2000, noise: float = 0.2, seed: int = 0
) -> tuple[Candidate, Candidate]:
    """Challenger and champion with squared errors on the same rows; the mean loss differs by the factor."""
    random = np.random.default_rng(seed)
    theirs = random.standard_t(4, rows) ** 2
    ours = theirs * factor * np.exp(random.normal(0, noise, rows) - noise**2 / 2)
    both = []
    for version, losses in (("2", ours), ("1", theirs)):
        both.append(
            replace(
                CHAMPION,
                version=version,
                losses=losses,
                row_count=rows,
                metric_value=float(np.sqrt(losses.mean())),
            )
        )
    return both[0], both[1]


@pytest.mark.parametrize(
    ("factor", "noise", "outcome", "reason"),
    [
        (0.8, 0.2, "promote", "better"),
        (1.0, 0.05, "promote", "not worse"),
        (1.2, 0.2, "refuse", "worse"),
        (1.0, 2.0, "hold", "cannot be told from the champion"),
    ],
)
def test_the_paired_bootstrap_decides_on_the_same_rows(
    factor: float, noise: float, outcome: str, reason: str
):
    verdict = judge(*paired(factor, noise=noise), GatePolicy())
    assert (verdict.outcome, reason in verdict.reasons[0]) == (outcome, True)
    figures = verdict.figures
    assert figures["ratio_lower"] < figures["ratio"] < figures["ratio_upper"]


def test_the_same_model_again_is_not_worse():
    challenger, champion = paired(1.0, noise=0.0)
    verdict = judge(challenger, champion, GatePolicy())
    assert verdict.outcome == "promote"
    assert verdict.figures["ratio_upper"] == pytest.approx(1.0)


def test_an_equal_challenger_is_rarely_called_worse():
    outcomes = [
        judge(*paired(1.0, rows=300, noise=0.3, seed=seed), GatePolicy()).outcome for seed in range(60)
    ]
    assert outcomes.count("refuse") <= 4


def test_rows_of_one_graph_do_not_pass_for_many():
    challenger, champion = paired(0.97, rows=2000)
    alike = np.repeat(np.arange(40), 50)
    ours = np.asarray(champion.losses) * np.repeat(
        np.exp(np.random.default_rng(1).normal(-0.05, 0.3, 40)), 50
    )
    challenger = replace(challenger, losses=ours, metric_value=float(np.sqrt(ours.mean())))
    apart = judge(challenger, champion, GatePolicy()).figures
    grouped = judge(replace(challenger, groups=alike), champion, GatePolicy()).figures
    assert grouped["bootstrap_units"] == 40
    assert grouped["ratio"] == pytest.approx(apart["ratio"])
    width = {
        name: f["ratio_upper"] - f["ratio_lower"] for name, f in (("apart", apart), ("grouped", grouped))
    }
    assert width["grouped"] > 2 * width["apart"]
    few = judge(replace(challenger, groups=alike // 10), champion, GatePolicy())
    assert few.outcome == "hold"
    assert "4 groups" in few.reasons[0]
    assert judge(replace(challenger, groups=alike[:7]), champion, GatePolicy()).outcome == "refuse"


def test_many_rows_are_compared_with_bounded_work():
    verdict = judge(*paired(0.9, rows=200_000), GatePolicy())
    assert verdict.outcome == "promote"
    assert verdict.figures["bootstrap_units"] == 2000


@pytest.mark.parametrize(
    ("losses", "reason"),
    [
        (np.full(2000, np.nan), "not finite"),
        (np.full(1999, 1.0), "losses of shape"),
        (np.full(2000, -1.0), "negative"),
        (np.zeros(2000), "leakage"),
    ],
)
def test_losses_that_are_none_are_refused(losses: np.ndarray, reason: str):
    challenger, champion = paired(0.9)
    verdict = judge(replace(challenger, losses=losses), champion, GatePolicy())
    assert verdict.outcome == "refuse"
    assert reason in verdict.reasons[0]
    assert judge(challenger, replace(champion, losses=losses), GatePolicy()).outcome == "hold"


def test_without_losses_of_the_rows_the_metrics_decide():
    challenger, champion = paired(0.9)
    verdict = judge(challenger, replace(champion, losses=None), GatePolicy())
    assert verdict.outcome == "promote"
    assert "metrics alone" in verdict.reasons[0]
    assert judge(replace(CHALLENGER, metric_value=3.3), CHAMPION, GatePolicy()).outcome == "refuse"
    assert judge(replace(CHALLENGER, metric_value=3.25), CHAMPION, GatePolicy()).outcome == "promote"


@pytest.mark.parametrize(
    ("baseline", "outcome", "reason"),
    [
        (4.0, "promote", "beats its baseline"),
        (3.05, "refuse", "does not beat"),
        (2.0, "refuse", "does not beat"),
        (None, "hold", "no usable baseline"),
        (math.nan, "hold", "no usable baseline"),
    ],
)
def test_the_first_version_must_beat_its_baseline(baseline: float | None, outcome: str, reason: str):
    verdict = judge(replace(CHALLENGER, baseline_value=baseline), None, GatePolicy())
    assert (verdict.outcome, reason in verdict.reasons[0]) == (outcome, True)


@pytest.mark.parametrize(
    ("factor", "noise", "outcome"), [(0.5, 0.2, "promote"), (1.3, 0.2, "refuse"), (0.9, 0.5, "hold")]
)
def test_the_first_version_is_compared_with_its_baseline_row_by_row(
    factor: float, noise: float, outcome: str
):
    challenger, baseline = paired(factor, noise=noise)
    first = replace(challenger, baseline_losses=baseline.losses, baseline_value=baseline.metric_value)
    assert judge(first, None, GatePolicy()).outcome == outcome


def test_a_first_version_is_not_exempt_from_the_other_limits():
    good = replace(CHALLENGER, baseline_value=9.0)
    assert judge(replace(good, row_count=29), None, GatePolicy()).outcome == "refuse"
    assert judge(replace(good, metric_value=math.nan), None, GatePolicy()).outcome == "refuse"
    assert judge(replace(good, size_mb=2.0), None, GatePolicy(size_limit_mb=1.2)).outcome == "hold"


def test_a_simulated_version_is_promoted_only_where_the_run_says_so():
    simulated = replace(CHALLENGER, is_simulated=True, baseline_value=9.0)
    refused = judge(simulated, None, GatePolicy())
    assert refused.outcome == "refuse"
    assert "--allow-simulated" in refused.reasons[0]
    allowed = judge(simulated, None, GatePolicy(), allow_simulated=True)
    assert allowed.outcome == "promote"
    assert "simulated rows, allowed" in " ".join(allowed.reasons)
    over_measured = judge(simulated, CHAMPION, GatePolicy(), allow_simulated=True)
    assert over_measured.outcome == "hold"
    over_simulated = judge(
        simulated, replace(CHAMPION, is_simulated=True), GatePolicy(), allow_simulated=True
    )
    assert over_simulated.outcome == "promote"


def test_a_slice_that_became_worse_is_named_and_held():
    champion = replace(
        CHAMPION, slices={"T4": (2.0, 100), "P100": (3.0, 100), "tiny": (1.0, 5), "A|b": (1, 40)}
    )
    challenger = replace(
        CHALLENGER, slices={"T4": (2.5, 100), "P100": (3.2, 100), "tiny": (50.0, 5), "A|b": (1, 40)}
    )
    verdict = judge(challenger, champion, GatePolicy())
    assert verdict.outcome == "hold"
    assert [reason for reason in verdict.reasons if "worse in slice" in reason] == [verdict.reasons[0]]
    assert "slice T4: rmse_us 2.5 against 2" in verdict.reasons[0]
    missing = judge(replace(CHALLENGER, slices={"T4": (2.0, 100)}), champion, GatePolicy())
    assert missing.outcome == "hold"
    assert "slice P100 has no figure" in " ".join(missing.reasons)
    broken = judge(replace(challenger, slices={"T4": (math.nan, 100)}), champion, GatePolicy())
    assert broken.outcome == "refuse"


def test_a_model_over_its_size_says_by_how_much():
    verdict = judge(replace(CHALLENGER, size_mb=1.5), CHAMPION, GatePolicy(size_limit_mb=1.2))
    assert verdict.outcome == "hold"
    assert "0.30 MB (25.0%) over the limit of 1.2 MB" in verdict.reasons[0]
    assert (
        judge(replace(CHALLENGER, size_mb=1.2), CHAMPION, GatePolicy(size_limit_mb=1.2)).outcome == "promote"
    )


def test_all_findings_are_reasons_and_the_gravest_decides():
    bad = replace(CHALLENGER, is_simulated=True, size_mb=9.0, row_count=3, metric_value=math.nan)
    verdict = judge(bad, CHAMPION, GatePolicy(size_limit_mb=1.2))
    assert verdict.outcome == "refuse"
    assert len(verdict.reasons) == 4
    assert "challenger_metric" not in verdict.figures


def test_an_impossible_policy_is_refused():
    for wrong in ({"confidence_ratio": 1.0}, {"tolerance_ratio": -0.1}, {"minimum_rows": 1}):
        with pytest.raises(SettingsError, match=next(iter(wrong))):
            GatePolicy(**wrong)  # type: ignore[arg-type]


def test_first_version_that_is_off_by_more_than_what_it_answers_is_held_however_bad_its_baseline():
    lost = replace(CHALLENGER, metric_name="mape_ratio", metric_value=18.4, baseline_value=1003.8)
    verdict = judge(lost, None, GatePolicy())
    assert verdict.outcome == "hold"
    assert "mean error is 1840%" in "; ".join(verdict.reasons)
    assert "units" in "; ".join(verdict.reasons)
