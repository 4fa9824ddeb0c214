"""May a challenger become champion: promote, hold for a reviewer, or refuse, always with reasons.

`new < best` is False for NaN, and so is `new > best`: a bare comparison promotes a broken model or keeps a
champion for ever, depending on which way round it was written. So every figure is judged for being a figure
first. Both models are compared on the same rows by a paired bootstrap; where only their metrics are known, on
those. Figures are losses: smaller is better.

The rule: a challenger knows newer data, so it is promoted when it is not worse, that is when the upper end of
the interval of (its loss / the champion's) is at most 1 + tolerance. It is refused when even the lower end is
above that, and a reviewer decides in between.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from warpgauge.errors import SettingsError

Outcome = Literal["promote", "hold", "refuse"]

# MLflow's database gives infinity back as 1.797e308; no loss of ours comes near this.
HIGHEST_METRIC = 1e300
# Answers that are off by as much as what they answer are no answers.
HIGHEST_MAPE_RATIO = 1.0
# 1 % of the rows at p99 alone make an RMSE of p99 / 10, so p99 is at most 10 x RMSE on the same rows; half a unit
# more, because a percentile is interpolated.
HIGHEST_P99_OVER_RMSE = 10.5
# More rows than this are summed in random blocks first: same interval, bounded work.
BOOTSTRAP_UNITS = 2_000
# Resampling fewer independent groups than this gives an interval that is far too narrow.
MINIMUM_UNITS = 10
BOOTSTRAP_DRAWS = 2_000
LARGER_IS_BETTER = ("accuracy", "auc", "f1", "precision", "recall", "coverage", "r2", "within")

Losses = npt.NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Candidate:
    """One model version and its figures on the held-out rows.

    Attributes:
        name: Registered model.
        version: Its version number or id.
        metric_name: A loss with its unit, for example `rmse_us`.
        metric_value: Its value; None where it was never recorded.
        row_count: Held-out rows.
        test_set_sha256: Hash of these rows; None where unknown. Versions compare on equal hashes only.
        losses: Loss of each held-out row, in the order of the test set; for an RMSE the squared errors.
        groups: Number of the graph or document family of each row, where rows are alike within it.
        baseline_losses, baseline_value: The same loss and metric of the simple baseline on the same rows.
        slices: Slice -> (metric, rows).
        tail_name, tail_value: For example `p99_abs_error_us`.
        size_mb: Of the model file.
        is_simulated: Trained on rows of the simulator.
    """

    name: str
    version: str
    metric_name: str
    metric_value: float | None
    row_count: int
    test_set_sha256: str | None
    losses: Losses | None = None
    groups: npt.NDArray[np.int64] | None = None
    baseline_losses: Losses | None = None
    baseline_value: float | None = None
    slices: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    tail_name: str | None = None
    tail_value: float | None = None
    size_mb: float | None = None
    is_simulated: bool = False


@dataclass(frozen=True)
class GatePolicy:
    """What a challenger must show.

    Attributes:
        minimum_rows: Fewest held-out rows for a verdict.
        confidence_ratio: One-sided confidence of each end of the bootstrap interval.
        tolerance_ratio: Worse by this share still counts as equal.
        slice_tolerance_ratio: The same in each slice.
        minimum_slice_rows: Fewer rows judge no slice.
        tail_tolerance_ratio: The tail may be longer than the champion's by this share.
        tail_limit: Longest tail at all, in the tail's unit; None for no such limit.
        size_limit_mb: Largest model file; None for no limit.
        seed: Of the bootstrap.

    Raises:
        SettingsError: If a value is out of its range.
    """

    minimum_rows: int = 30
    confidence_ratio: float = 0.95
    tolerance_ratio: float = 0.02
    slice_tolerance_ratio: float = 0.10
    minimum_slice_rows: int = 30
    tail_tolerance_ratio: float = 0.25
    tail_limit: float | None = None
    size_limit_mb: float | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.5 <= self.confidence_ratio < 1:
            raise SettingsError(f"gate policy: confidence_ratio is {self.confidence_ratio}; 0.5 to under 1")
        for name in ("tolerance_ratio", "slice_tolerance_ratio", "tail_tolerance_ratio"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise SettingsError(f"gate policy: {name} is {getattr(self, name)}; needs 0 or more")
        if self.minimum_rows < 2 or self.minimum_slice_rows < 2:
            raise SettingsError("gate policy: minimum_rows and minimum_slice_rows are at least 2")


@dataclass(frozen=True)
class Verdict:
    """What the gate decided.

    Attributes:
        outcome: `promote`, `hold` (a reviewer decides) or `refuse`.
        reasons: Sentences, those that decided first; never empty.
        figures: JSON-ready finite figures.
    """

    outcome: Outcome
    reasons: tuple[str, ...]
    figures: dict[str, Any]


class _Findings:
    """Reasons as they are found; the gravest kind decides."""

    def __init__(self) -> None:
        self.refusals: list[str] = []
        self.holds: list[str] = []
        self.notes: list[str] = []
        self.figures: dict[str, Any] = {}

    def record(self, **figures: float | int | str | None) -> None:
        """Keeps what is finite; a figure that is none is left out, so that no page fails on it."""
        for name, value in figures.items():
            if isinstance(value, str) or (value is not None and math.isfinite(value)):
                self.figures[name] = value

    def verdict(self) -> Verdict:
        outcome: Outcome = "refuse" if self.refusals else "hold" if self.holds else "promote"
        return Verdict(outcome, tuple(self.refusals + self.holds + self.notes), self.figures)


def judge(
    challenger: Candidate,
    champion: Candidate | None,
    policy: GatePolicy,
    *,
    allow_simulated: bool = False,
) -> Verdict:
    """Whether the challenger is promoted, held for a reviewer or refused.

    Args:
        challenger: The new version.
        champion: The present one, None where there is none: then the challenger must beat its own baseline.
        policy: Limits.
        allow_simulated: The run said that a model of simulated rows may be promoted.

    Returns:
        The verdict; all findings are in its reasons, not only the first.
    """
    found = _Findings()
    found.record(
        metric_name=challenger.metric_name,
        challenger_version=challenger.version,
        challenger_metric=_number(challenger.metric_value),
        challenger_rows=challenger.row_count,
        challenger_tail=_number(challenger.tail_value),
        challenger_size_mb=_number(challenger.size_mb),
        baseline_metric=_number(challenger.baseline_value),
    )
    label = f"{challenger.name} version {challenger.version}"
    problem = _metric_problem(challenger)
    if problem:
        found.refusals.append(f"{label}: {problem}")
    if challenger.row_count < policy.minimum_rows:
        found.refusals.append(
            f"{label}: judged on {challenger.row_count} held-out rows, {policy.minimum_rows} are needed"
        )
    _judge_provenance(challenger, champion, label, allow_simulated, found)
    _judge_size(challenger, policy, label, found)
    _judge_own_tail(challenger, policy, label, found)
    _judge_own_slices(challenger, policy, label, found)
    if problem:
        return found.verdict()
    if champion is None:
        _judge_against_baseline(challenger, policy, label, found)
    else:
        _judge_against_champion(challenger, champion, policy, label, found)
    return found.verdict()


def _judge_provenance(
    challenger: Candidate, champion: Candidate | None, label: str, allow_simulated: bool, found: _Findings
) -> None:
    if not challenger.is_simulated:
        return
    if not allow_simulated:
        found.refusals.append(
            f"{label}: trained on simulated rows; it is promoted only where the run says --allow-simulated"
        )
        return
    found.notes.append(f"{label}: trained on simulated rows, allowed by --allow-simulated")
    if champion is not None and not champion.is_simulated:
        found.holds.append(
            f"{label}: simulated, and the champion {champion.version} was trained on measured rows; "
            "a reviewer decides"
        )


def _judge_size(challenger: Candidate, policy: GatePolicy, label: str, found: _Findings) -> None:
    if policy.size_limit_mb is None or challenger.size_mb is None:
        return
    if not math.isfinite(challenger.size_mb) or challenger.size_mb <= 0:
        found.refusals.append(f"{label}: model size is {challenger.size_mb} MB, which is no size")
    elif challenger.size_mb > policy.size_limit_mb:
        over = challenger.size_mb - policy.size_limit_mb
        found.holds.append(
            f"{label}: the model file of {challenger.size_mb:.2f} MB is {over:.2f} MB "
            f"({over / policy.size_limit_mb:.1%}) over the limit of {policy.size_limit_mb:g} MB"
        )


def _judge_own_tail(challenger: Candidate, policy: GatePolicy, label: str, found: _Findings) -> None:
    tail = challenger.tail_value
    if tail is None:
        return
    name = challenger.tail_name or "tail"
    if not math.isfinite(tail) or tail < 0 or tail >= HIGHEST_METRIC:
        found.refusals.append(f"{label}: {name} is {tail}, which is no length of a tail")
        return
    if policy.tail_limit is not None and tail > policy.tail_limit:
        found.refusals.append(f"{label}: tail: {name} {tail:g} is above the limit of {policy.tail_limit:g}")
    metric = _number(challenger.metric_value)
    if (
        metric is not None
        and 0 < metric < HIGHEST_METRIC
        and challenger.metric_name == "rmse_us"
        and name.startswith("p99")
        and name.endswith("_us")
        and challenger.row_count >= 1000
        and tail > HIGHEST_P99_OVER_RMSE * metric
    ):
        found.refusals.append(
            f"{label}: tail: {name} {tail:g} cannot go with an RMSE of {metric:g} on the same rows: "
            f"one row in 100 at {tail:g} alone makes an RMSE of {tail / 10:g}; "
            "evaluate it again"
        )


def _judge_own_slices(challenger: Candidate, policy: GatePolicy, label: str, found: _Findings) -> None:
    for name, (value, rows) in sorted(challenger.slices.items()):
        found.record(**{f"slice.{name}": _number(value), f"slice_rows.{name}": rows})
        number = _number(value)
        if rows >= policy.minimum_slice_rows and (
            number is None or not math.isfinite(number) or not 0 <= number < HIGHEST_METRIC
        ):
            found.refusals.append(f"{label}: {challenger.metric_name} in slice {name} is {value!r}")


def _judge_against_baseline(challenger: Candidate, policy: GatePolicy, label: str, found: _Findings) -> None:
    """No champion: the first version must beat the simple baseline on the same rows."""
    interval = None
    if challenger.losses is not None and challenger.baseline_losses is not None:
        interval = _ratio_interval(challenger, challenger.baseline_losses, "baseline", policy, found)
        if interval is None:
            return
    metric, baseline = _number(challenger.metric_value), _number(challenger.baseline_value)
    if challenger.metric_name == "mape_ratio" and metric is not None and metric > HIGHEST_MAPE_RATIO:
        found.holds.append(
            f"{label}: its mean error is {metric:.0%}, so its baseline's being worse says nothing; are the units of the "
            f"label mixed?"
        )
    if interval is None:
        if metric is None or baseline is None or not 0 < baseline < HIGHEST_METRIC:
            found.holds.append(
                f"{label}: there is no champion, and no usable baseline figure to compare with "
                f"({challenger.baseline_value!r}); evaluate the baseline on the same rows"
            )
            return
        ratio = metric / baseline
        found.record(ratio=ratio)
        text = f"{challenger.metric_name} {metric:g} against {baseline:g} of the baseline"
        if ratio < 1:
            found.notes.append(f"{label}: first version, beats its baseline: {text}")
        else:
            found.refusals.append(f"{label}: does not beat its baseline: {text}")
        return
    ratio, lower, upper = interval
    text = f"loss ratio to the baseline {ratio:.3f} ({lower:.3f} to {upper:.3f})"
    if upper < 1:
        found.notes.append(f"{label}: first version, beats its baseline: {text}")
    elif ratio >= 1:
        found.refusals.append(f"{label}: does not beat its baseline: {text}")
    else:
        found.holds.append(f"{label}: cannot be told from its baseline: {text}; a reviewer decides")


def _judge_against_champion(
    challenger: Candidate, champion: Candidate, policy: GatePolicy, label: str, found: _Findings
) -> None:
    found.record(
        champion_version=champion.version,
        champion_metric=_number(champion.metric_value),
        champion_rows=champion.row_count,
        champion_tail=_number(champion.tail_value),
    )
    if challenger.test_set_sha256 is None:
        found.refusals.append(f"{label}: not comparable: the hash of its test set was not recorded")
        return
    renew = f"re-evaluate the champion {champion.version} on the current test set"
    problem = _metric_problem(champion)
    if problem:
        found.holds.append(f"{renew}: {problem}")
        return
    if champion.test_set_sha256 is None:
        found.holds.append(f"{renew}: the hash of its test set was not recorded")
        return
    if challenger.name != champion.name or challenger.metric_name != champion.metric_name:
        found.refusals.append(
            f"{label}: not comparable: {challenger.name} by {challenger.metric_name} against "
            f"{champion.name} by {champion.metric_name}"
        )
        return
    if challenger.test_set_sha256 != champion.test_set_sha256:
        found.refusals.append(
            f"{label}: not comparable: judged on test set {challenger.test_set_sha256[:12]}, the champion "
            f"{champion.version} on {champion.test_set_sha256[:12]}; evaluate both on the same rows"
        )
        return
    if challenger.row_count >= policy.minimum_rows and challenger.row_count != champion.row_count:
        found.refusals.append(
            f"{label}: not comparable: {challenger.row_count} rows against {champion.row_count} of the champion "
            "on a test set of the same hash; evaluate both again"
        )
        return
    _compare_losses(challenger, champion, policy, label, found)
    _compare_tails(challenger, champion, policy, label, found)
    _compare_slices(challenger, champion, policy, label, found)
    baseline, metric = _number(challenger.baseline_value), _number(challenger.metric_value)
    if baseline is not None and metric is not None and 0 < baseline <= metric:
        found.notes.append(
            f"{label}: its baseline is as good: {challenger.metric_name} {baseline:g} against {metric:g}"
        )


def _compare_losses(
    challenger: Candidate, champion: Candidate, policy: GatePolicy, label: str, found: _Findings
) -> None:
    highest = 1 + policy.tolerance_ratio
    metric, best = _number(challenger.metric_value), _number(champion.metric_value)
    if metric is None or best is None:  # judged before; for the type checker
        return
    text = f"{challenger.metric_name} {metric:g} against {best:g} of the champion {champion.version}"
    if challenger.losses is None or champion.losses is None:
        ratio = metric / best
        found.record(ratio=ratio)
        text = f"{text}, ratio {ratio:.3f} of the metrics alone (no losses a row)"
        if ratio <= highest:
            found.notes.append(f"{label}: not worse: {text}, at most {highest:g} allowed")
        else:
            found.refusals.append(f"{label}: worse: {text}, at most {highest:g} allowed")
        return
    interval = _ratio_interval(challenger, champion.losses, "champion", policy, found)
    if interval is None:
        return
    ratio, lower, upper = interval
    text = f"{text}, loss ratio {ratio:.3f} ({lower:.3f} to {upper:.3f})"
    if upper <= highest:
        found.notes.append(
            f"{label}: {'better' if upper < 1 else 'not worse'}: {text}, at most {highest:g} allowed"
        )
    elif lower > highest:
        found.refusals.append(f"{label}: worse: {text}, at most {highest:g} allowed")
    else:
        found.holds.append(
            f"{label}: cannot be told from the champion on these rows: {text}, at most {highest:g} allowed; "
            "a reviewer decides"
        )


def _compare_tails(
    challenger: Candidate, champion: Candidate, policy: GatePolicy, label: str, found: _Findings
) -> None:
    name = challenger.tail_name or "tail"
    tail, best = _number(challenger.tail_value), _number(champion.tail_value)
    if challenger.tail_value is None and champion.tail_value is None:
        return
    if tail is None or best is None or not 0 <= best < HIGHEST_METRIC:
        found.notes.append(
            f"{label}: tail not compared: {name} is {challenger.tail_value!r}, "
            f"of the champion {champion.tail_value!r}"
        )
    elif challenger.tail_name != champion.tail_name:
        found.notes.append(f"{label}: tail not compared: {name} against {champion.tail_name or 'tail'}")
    elif tail > best * (1 + policy.tail_tolerance_ratio):
        found.refusals.append(
            f"{label}: tail: {name} {tail:g} against {best:g} of the champion {champion.version}, "
            f"{policy.tail_tolerance_ratio:.0%} longer is allowed"
        )


def _compare_slices(
    challenger: Candidate, champion: Candidate, policy: GatePolicy, label: str, found: _Findings
) -> None:
    for name, (best, best_rows) in sorted(champion.slices.items()):
        number = _number(best)
        if best_rows < policy.minimum_slice_rows or number is None or not 0 <= number < HIGHEST_METRIC:
            continue
        if name not in challenger.slices:
            found.holds.append(f"{label}: slice {name} has no figure, the champion has {number:g} there")
            continue
        value, rows = challenger.slices[name]
        if _number(value) is None:  # refused above where the slice has enough rows
            continue
        if rows < policy.minimum_slice_rows:
            found.notes.append(f"{label}: slice {name} not compared: {rows} rows")
        elif value > number * (1 + policy.slice_tolerance_ratio):
            found.holds.append(
                f"{label}: worse in slice {name}: {challenger.metric_name} {value:g} against {number:g} of the "
                f"champion on {rows} rows, {policy.slice_tolerance_ratio:.0%} is allowed; a reviewer decides"
            )


def _number(value: object) -> float | None:
    """A real number, or None: text, flags and absent values are no figures."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating | np.integer):
        return None
    return float(value)


def _metric_problem(candidate: Candidate) -> str | None:  # noqa: PLR0911 - one return for each problem
    """Why the metric cannot be compared; None where it can."""
    name, value = candidate.metric_name, candidate.metric_value
    words = name.lower().split("_")
    if any(word in words for word in LARGER_IS_BETTER):
        return f"{name} is larger for a better model; the gate compares losses, give it one"
    if value is None:
        return f"{name} is missing"
    number = _number(value)
    if number is None:
        return f"{name} is {value!r}, not a number"
    if math.isnan(number):
        return f"{name} is NaN"
    if math.isinf(number):
        return f"{name} is infinite"
    if abs(number) >= HIGHEST_METRIC:
        return f"{name} is {number:g}, which is how a database returns infinity"
    if number < 0:
        return f"{name} is {number:g}, and a loss cannot be negative"
    if number == 0:
        return (
            f"{name} is exactly 0, which suggests that the model saw the answers (leakage); check the split"
        )
    return None if candidate.losses is None else _losses_problem(candidate.losses, candidate.row_count)


def _losses_problem(values: Losses, row_count: int) -> str | None:
    """Why the losses of the rows cannot be compared; None where they can."""
    losses = np.asarray(values, dtype=np.float64)
    if losses.shape != (row_count,):
        return f"there are losses of shape {losses.shape} for {row_count} held-out rows"
    bad = int((~np.isfinite(losses) | (np.abs(losses) >= HIGHEST_METRIC)).sum())
    if bad:
        return f"{bad} losses of its rows are not finite"
    if (losses < 0).any():
        return f"{int((losses < 0).sum())} losses of its rows are negative"
    if not losses.any():
        return "the loss of every row is 0, which suggests that the model saw the answers (leakage)"
    return None


def _ratio_interval(
    challenger: Candidate, other: Losses, other_name: str, policy: GatePolicy, found: _Findings
) -> tuple[float, float, float] | None:
    """Ratio of mean losses on the same rows, and its bootstrap interval; None where it cannot be had."""
    ours, theirs = np.asarray(challenger.losses, np.float64), np.asarray(other, np.float64)
    if ours.shape != theirs.shape or not np.isfinite(theirs).all() or (theirs < 0).any() or not theirs.any():
        found.holds.append(
            f"the {other_name}'s losses do not pair with the challenger's ({theirs.size} against {ours.size}, "
            f"or not finite, or all 0): re-evaluate the {other_name} on the current test set"
        )
        return None
    units = _units(challenger.groups, ours.size, policy.seed)
    if units is None:
        found.refusals.append(
            f"the groups of the rows do not pair with them ({ours.size} rows); evaluate again"
        )
        return None
    if int(units.max()) + 1 < MINIMUM_UNITS:
        found.holds.append(
            f"the rows are of {int(units.max()) + 1} groups, an interval needs {MINIMUM_UNITS}; hold out more groups"
        )
        return None
    our_sums = np.bincount(units, weights=ours)
    their_sums = np.bincount(units, weights=theirs)
    random = np.random.default_rng(policy.seed)
    picked = random.integers(our_sums.size, size=(BOOTSTRAP_DRAWS, our_sums.size))
    # A draw in which the other one has no loss at all has no ratio; it counts as infinitely worse.
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = our_sums[picked].sum(axis=1) / their_sums[picked].sum(axis=1)
    ratios = np.where(np.isfinite(ratios), ratios, HIGHEST_METRIC)
    ratio = float(ours.sum() / theirs.sum())
    lower, upper = np.quantile(ratios, (1 - policy.confidence_ratio, policy.confidence_ratio))
    found.record(
        ratio=ratio, ratio_lower=float(lower), ratio_upper=float(upper), bootstrap_units=our_sums.size
    )
    return ratio, float(lower), float(upper)


def _units(groups: npt.NDArray[np.int64] | None, row_count: int, seed: int) -> npt.NDArray[np.int64] | None:
    """The unit of resampling of each row: its group, its own, or one of 2,000 random blocks of these."""
    if groups is None:
        units = np.arange(row_count)
    elif np.shape(groups) != (row_count,):
        return None
    else:
        units = np.unique(np.asarray(groups), return_inverse=True)[1]
    count = int(units.max()) + 1
    if count > BOOTSTRAP_UNITS:
        units = (np.random.default_rng(seed).permutation(count) % BOOTSTRAP_UNITS)[units]
    return units.astype(np.int64)
