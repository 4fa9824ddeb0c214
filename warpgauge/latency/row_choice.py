"""Which rows a retraining learns from: all, the new ones alone, or an older model that the new ones correct.

After a change the older rows teach what is no longer true; but few new rows teach little. Which of the three is best
depends on how many new rows there are and on what changed, so it is measured: each way is trained on part
of the new rows' shapes and judged on the rest of them, whose older measurements it has not seen either. All rows
are kept unless another way is better beyond chance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars as pl

from warpgauge.errors import TrainingError
from warpgauge.latency.fitting import Boosting, base_recipe, correcting, make_recipe
from warpgauge.latency.folds import IntArray
from warpgauge.latency.scheme import FloatArray, RowScheme

Way = Literal["all", "new", "corrected"]
# Fewer new rows than this are judged on some ten of them, and they cannot outvote the old ones either.
LEAST_NEW_ROWS = 100
# With as many as this one fold of the new rows says enough; below, all four do.
ROWS_OF_ONE_FOLD = 10_000
# More older rows than these only make the choice slow; the training itself takes all. As many times the new ones are
# kept, because a share of the old rows would make learning from both look better than it is: with half of them
# "all" came within 1 % of the new matrix products alone, with all of them it was 18 % worse.
LARGEST_OLD_COUNT = 40_000
OLD_FOR_EACH_NEW = 4
# A way other than all rows must be better by this share: below it, more rows are worth more than the difference.
LEAST_GAIN_RATIO = 0.02
# Rows of one shape are alike, so shapes are drawn; of fewer than these an interval would be far too narrow.
LEAST_SHAPES = 10
DRAWS = 1_000
CONFIDENCE_RATIO = 0.95


@dataclass(frozen=True)
class RowChoice:
    """Which rows to learn from, and what was measured to say so.

    Attributes:
        way: `all`, `new` or `corrected`.
        errors: Way -> mean |log(actual / predicted)| on held-out new rows; empty where nothing was compared.
        old_count, new_count: Rows with a label before and after the change.
        judged_count: Held-out new rows that the errors are of.
        reason: In words.
    """

    way: Way
    errors: dict[str, float]
    old_count: int
    new_count: int
    judged_count: int
    reason: str

    def to_document(self) -> dict[str, Any]:
        """As JSON values."""
        return dict(vars(self))


def choose_rows(
    scheme: RowScheme,
    old: pl.DataFrame,
    new: pl.DataFrame,
    boosting: Boosting,
    *,
    minimum_rows: int = LEAST_NEW_ROWS,
    seed: int = 0,
    **options: Any,
) -> RowChoice:
    """Which rows to learn from.

    Args:
        scheme: How the rows are read.
        old: Labelled rows that the model in use learned from.
        new: Labelled rows that came since; a row that is in both counts as new.
        boosting: What was chosen about the trees.
        minimum_rows: Fewer rows train no model of their own.
        seed: Of everything random.
        options: `device` and `threads` of `make_recipe`.
    """

    def keep_all(reason: str) -> RowChoice:
        return RowChoice("all", {}, old.height, new.height, 0, reason)

    ids = new.get_column(scheme.id_column).implode()
    old = old.filter(~pl.col(scheme.id_column).is_in(ids))
    if not old.height:
        return keep_all("no older row: all rows are new")
    needed = max(LEAST_NEW_ROWS, minimum_rows)
    if min(new.height, old.height) < needed:
        return keep_all(
            f"{new.height} new and {old.height} older {scheme.row_noun} are too few to compare, {needed} of each are "
            f"needed"
        )
    sample = old.sort(scheme.id_column).sample(
        min(old.height, max(LARGEST_OLD_COUNT, OLD_FOR_EACH_NEW * new.height)), seed=seed
    )
    options = {**options, "seed": seed}
    try:
        base = base_recipe(scheme, sample, boosting, **options)
        corrected, _ = make_recipe(scheme, new, correcting(boosting), corrects=base, **options)
        alone, _ = make_recipe(scheme, new, boosting, **options)
    except TrainingError as error:
        return keep_all(f"new and old {scheme.row_noun} cannot be compared: {error}")
    mixed, _ = make_recipe(scheme, pl.concat([sample, new], how="diagonal_relaxed"), boosting, **options)
    is_new = mixed.rows.get_column(scheme.id_column).is_in(ids).to_numpy()
    folds = alone.training_folds
    if new.height >= ROWS_OF_ONE_FOLD:
        folds = folds[:1]
    errors = {
        "all": np.concatenate(
            [mixed.heldout_errors(number)[is_new[mixed.fold == number]] for number in folds]
        ),
        "new": np.concatenate([alone.heldout_errors(number) for number in folds]),
        "corrected": np.concatenate([corrected.heldout_errors(number) for number in folds]),
    }
    means = {way: float(values.mean()) for way, values in errors.items()}
    judged = len(errors["all"])
    best: Way = min(("new", "corrected"), key=lambda way: means[way])
    shapes = scheme.shapes(alone.rows)
    judged_shapes = pl.concat([shapes.filter(pl.Series(alone.fold == number)) for number in folds])
    if judged_shapes.n_unique() < LEAST_SHAPES:
        return keep_all(
            f"{judged_shapes.n_unique()} held-out new shapes are too few to compare, {LEAST_SHAPES} are needed"
        )
    units = judged_shapes.rank("dense").cast(pl.Int64).to_numpy() - 1
    upper = _upper_ratio(errors[best], errors["all"], units, seed)
    said = ", ".join(f"{way} {mean:.2%}" for way, mean in sorted(means.items(), key=lambda pair: pair[1]))
    text = f"mean log error on {judged} held-out new {scheme.row_noun}: {said}"
    if upper < 1 - LEAST_GAIN_RATIO:
        return RowChoice(best, means, old.height, new.height, judged, f"{WAYS[best]}: {text}")
    return RowChoice(
        "all", means, old.height, new.height, judged, f"{WAYS['all']}: no other way is surely better: {text}"
    )


WAYS: dict[Way, str] = {
    "all": "old and new rows together",
    "new": "new rows alone",
    "corrected": "the older model corrected by the new rows",
}


def _upper_ratio(errors: FloatArray, others: FloatArray, units: IntArray, seed: int) -> float:
    """Upper end of the interval of (mean of errors / mean of others), whole shapes drawn in pairs."""
    random = np.random.default_rng(seed)
    own, other = np.bincount(units, weights=errors), np.bincount(units, weights=others)
    ratios = np.empty(DRAWS)
    for draw in range(DRAWS):
        picked = random.integers(len(own), size=len(own))
        ratios[draw] = own[picked].sum() / max(float(other[picked].sum()), 1e-12)
    return float(np.quantile(ratios, CONFIDENCE_RATIO))
