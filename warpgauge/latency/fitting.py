"""One fit: a baseline and the trees that learn the log ratio to it, on chosen folds of some rows.

A fit may correct another one: then the older fit's baseline and trees are kept, and new trees learn what the new
rows say otherwise. Both stay one text with one table of inputs, so a corrected model is stored, checked and
compiled like any other.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import polars as pl

from warpgauge.accelerate import CPU, DeviceChoice
from warpgauge.errors import TrainingError
from warpgauge.latency.baseline import Baseline, group_rows
from warpgauge.latency.booster import CategoricalBooster
from warpgauge.latency.evaluation import FLOOR_TRIALS
from warpgauge.latency.folds import FOLD_COUNT, GATE_FOLD, LEAST_TRAINING_FOLDS, IntArray, fold_numbers
from warpgauge.latency.scheme import FloatArray, RowScheme

Objective = Literal["l2", "l1"]
LIGHTGBM_OBJECTIVES: Mapping[Objective, str] = {"l2": "regression", "l1": "regression_l1"}
LIGHTGBM_METRICS: Mapping[Objective, str] = {"l2": "rmse", "l1": "l1"}

# The text of the trees; with model.json it stays below the 1.2 MB that a model file may have.
TEXT_LIMIT_BYTES = 1_000_000
# A correction of 100 trees with 15 leaves takes 140 to 150 kB.
BASE_TEXT_LIMIT_BYTES = 840_000
# One rule for any number of new rows: on the public GEMM tables it was within 0.15 points of the best of six
# others at 200 to 80,000 rows, and trees on the ratio to the older prediction were no better (5.98 against 5.95 % at 500).
CORRECTION = {
    "trees": 100,
    "leaves": 15,
    "learning_rate": 0.1,
    "min_data_in_leaf": 10,
    "lambda_l2": 10.0,
}
# A correction leaves out a fold and another one that says when to stop: the older model needs a third.
LEAST_CORRECTED_FOLDS = 3
# No row counts more than 25 times another one: a group of equal trials would otherwise outweigh all.
LARGEST_WEIGHT_RATIO = 25.0
# Noise depends on size within a group; a bin of 100 rows knows its variance to about 15 %.
NOISE_BIN_COUNT = 20
ROWS_A_NOISE_BIN = 100


@dataclass(frozen=True)
class Boosting:
    """What can be chosen about the trees.

    Attributes:
        trees: Most boosting rounds; early stopping chooses.
        leaves: Leaves a tree.
        learning_rate: Shrinkage a round.
        max_bin: Histogram bins.
        early_stopping_rounds: Rounds without a better held-out error before boosting stops.
        min_data_in_leaf: Fewest rows a leaf; None leaves it to the scheme.
        lambda_l2: L2 penalty of a leaf's value.
        feature_fraction: Share of the features that a tree may use.
        objective: `l2` aims at the mean of the log ratio, `l1` at its median: better where noise is one-sided.
    """

    trees: int = 600
    leaves: int = 31
    learning_rate: float = 0.05
    max_bin: int = 255
    early_stopping_rounds: int = 50
    min_data_in_leaf: int | None = None
    lambda_l2: float = 10.0
    feature_fraction: float = 1.0
    objective: Objective = "l2"

    def changed(self, changes: Mapping[str, Any]) -> Boosting:
        """The same with some values changed."""
        return replace(self, **changes)

    def lightgbm_params(
        self, scheme: RowScheme, row_count: int, *, seed: int, device: DeviceChoice, threads: int
    ) -> dict[str, Any]:
        """LightGBM's parameters for a training on that many rows."""
        return {
            "objective": LIGHTGBM_OBJECTIVES[self.objective],
            "metric": LIGHTGBM_METRICS[self.objective],
            "num_leaves": self.leaves,
            "learning_rate": self.learning_rate,
            "max_bin": self.max_bin,
            "min_data_in_leaf": self.min_data_in_leaf or scheme.least_leaf_rows(row_count),
            "lambda_l2": self.lambda_l2,
            "feature_fraction": self.feature_fraction,
            "seed": seed,
            "num_threads": threads,
            **device.parameters,
        }


@dataclass(frozen=True)
class Fit:
    """A baseline and trees that belong together, without intervals."""

    baseline: Baseline
    booster: CategoricalBooster


@dataclass(frozen=True, eq=False)
class Recipe:
    """Everything about a fit that does not change from fold to fold.

    Attributes:
        scheme: How the rows are read.
        rows: Rows with a label, in an order that does not depend on how they arrived.
        features: Their features in use.
        latency_us: Their labels.
        fold: Their folds.
        boosting: What was chosen about the trees.
        params: LightGBM's parameters.
        monotone: Feature -> 1 or -1 where the ratio may only rise or fall.
        text_limit_bytes: Longest text of the trees.
        corrects: Recipe of older rows whose fits these ones correct; None where they start afresh.
    """

    scheme: RowScheme
    rows: pl.DataFrame
    features: pl.DataFrame
    latency_us: FloatArray
    fold: IntArray
    boosting: Boosting
    params: Mapping[str, Any]
    monotone: Mapping[str, int] = field(default_factory=dict)
    text_limit_bytes: int = TEXT_LIMIT_BYTES
    corrects: Recipe | None = None
    _fits: dict[tuple[Any, ...], Fit] = field(default_factory=dict, repr=False)

    @property
    def training_folds(self) -> list[int]:
        """Folds that hold rows, but for the gate's."""
        return sorted(set(self.fold.tolist()) - {GATE_FOLD})

    def places(self, *without: int) -> IntArray:
        """Rows of all folds but these."""
        return np.flatnonzero(~np.isin(self.fold, without))

    def fit(self, *without: int, rounds: int | None = None, stop_by: int | None = None) -> Fit:
        """Fit on all folds but these.

        Args:
            without: Folds that it must not see.
            rounds: Boosting rounds; None takes the most allowed.
            stop_by: Fold whose held-out error stops the boosting; it is not fitted on.
        """
        unseen = tuple(sorted({*without, *([] if stop_by is None else [stop_by])}))
        held_out = None if stop_by is None else np.flatnonzero(self.fold == stop_by)
        start = None
        if self.corrects is not None:
            start = self.corrects.fit_once(*unseen)
        return self.fit_rows(self.places(*unseen), rounds or self.boosting.trees, held_out, start)

    def fit_once(self, *without: int) -> Fit:
        """`fit` of as many rounds as suit, kept: many corrections start from the same one."""
        if without not in self._fits:
            self._fits[without] = self.fit(*without, rounds=self.rounds_without(*without))
        return self._fits[without]

    def rounds_without(self, *without: int) -> int:
        """Boosting rounds that suit a fit without these folds: one of the others says when to stop."""
        others = [number for number in sorted(set(self.fold.tolist())) if number not in without]
        if len(others) < LEAST_TRAINING_FOLDS:
            return 1
        first = without[0] if without else GATE_FOLD
        stop_by = min(others, key=lambda other: (other - first) % FOLD_COUNT)
        return self._tree_count(self.fit(*without, stop_by=stop_by), (*without, stop_by))

    def _tree_count(self, fit: Fit, unseen: tuple[int, ...]) -> int:
        """Trees that a fit added, at least 1."""
        older = 0
        if self.corrects is not None:
            older = self.corrects.fit_once(*sorted(set(unseen))).booster.tree_count
        return max(1, fit.booster.tree_count - older)

    def median_rounds(self) -> int:
        """Boosting rounds of the final fit: the median of what each training fold says when it is held out."""
        stops = [
            self._tree_count(self.fit(GATE_FOLD, stop_by=number), (GATE_FOLD, number))
            for number in self.training_folds
        ]
        return max(1, int(np.median(stops)))

    def heldout_errors(self, number: int) -> FloatArray:
        """|log(actual / predicted)| of a fold's rows by a fit that saw neither it nor the gate's fold.

        Choices between models are made on these, whatever the table.
        """
        places = np.flatnonzero(self.fold == number)
        fit = self.fit_once(GATE_FOLD, number)
        return np.abs(np.log(self.latency_us[places] / self.predict_us(fit, places)))

    def fit_rows(
        self, places: IntArray, rounds: int, held_out: IntArray | None = None, start: Fit | None = None
    ) -> Fit:
        """Baseline and trees on these rows; with held-out rows boosting stops early."""
        if start is None:
            baseline = Baseline.fit(self.scheme, self.rows[places], self.latency_us[places])
        else:
            predicted = self.predict_us(start, places)
            baseline = start.baseline.rescaled(np.log(self.latency_us[places] / predicted))
        numeric, categorical = self.input_names(places)
        names = [*numeric, *categorical] if start is None else list(start.booster.table.names)
        validation = None
        target, weight = self._ratio_and_weight(places, baseline)
        if held_out is not None:
            validation = (
                self.features[held_out].select(names),
                *self._ratio_and_weight(held_out, baseline),
            )
        booster = CategoricalBooster.fit(
            self.features[places].select(names),
            target,
            numeric,
            [name for name in names if name not in numeric],
            self.params,
            rounds=rounds,
            weight=weight,
            validation=validation,
            early_stopping_rounds=self.boosting.early_stopping_rounds,
            text_limit_bytes=self.text_limit_bytes,
            monotone=self.monotone,
            start=None if start is None else start.booster,
        )
        return Fit(baseline, booster)

    def predict_us(self, fit: Fit, places: IntArray) -> FloatArray:
        """What a fit says of some rows, microseconds."""
        curve = fit.baseline.predict(self.rows[places]).latency_us
        return curve * np.exp(fit.booster.predict(self.features[places].select(fit.booster.table.names)))

    def input_names(self, places: IntArray) -> tuple[list[str], list[str]]:
        """Numbers and categories among the features, but for categories that none of these rows has."""
        kinds = [name for name in self.features.columns if name in self.scheme.categorical_names]
        numeric = [name for name in self.features.columns if name not in kinds]
        return numeric, [name for name in kinds if self.features.get_column(name)[places].drop_nulls().len()]

    def _ratio_and_weight(self, places: IntArray, baseline: Baseline) -> tuple[FloatArray, FloatArray | None]:
        """log(latency / baseline), and the weight of each row: one over the noise variance at its size.

        With it held-out RMSE over floor was 1.059 and 1.047 on the public trials, with equal weights 1.061
        and 1.050, with weights by squared latency 1.062 and 1.050. The noise of a row is that of its
        repeated trials; where trials are not repeated, its distance from the baseline stands in.
        """
        rows = self.rows[places]
        ratio = np.log(self.latency_us[places] / baseline.predict(rows).latency_us)
        if not self.scheme.has_trials:
            return ratio, None
        frame = pl.DataFrame(
            {
                "group": self.scheme.groups(rows),
                "kind": _group_numbers(rows.select(self.scheme.noise_columns)),
                "size": self.scheme.sizes(rows),
                "ratio": ratio,
            }
        )
        frame = frame.with_columns(
            pl.when(pl.len().over("group") >= FLOOR_TRIALS)
            .then(pl.col("ratio") - pl.col("ratio").median().over("group"))
            .otherwise(pl.col("ratio"))
            .alias("noise"),
            (
                (pl.col("size").rank("ordinal").over("kind") - 1)
                * (pl.len().over("kind") / ROWS_A_NOISE_BIN).floor().clip(1, NOISE_BIN_COUNT)
                // pl.len().over("kind")
            ).alias("bin"),
        )
        # Capped at the 99th percentile: one launch that met an interrupt says nothing of its neighbours.
        capped = pl.min_horizontal(pl.col("noise") ** 2, (pl.col("noise") ** 2).quantile(0.99))
        variance = frame.select(capped.mean().over("kind", "bin")).to_series().to_numpy()
        weight = 1.0 / np.maximum(variance, 1e-12)
        middle, reach = float(np.median(weight)), LARGEST_WEIGHT_RATIO**0.5
        weight = np.clip(weight, middle / reach, middle * reach)
        return ratio, weight / weight.mean()


def make_recipe(
    scheme: RowScheme,
    rows: pl.DataFrame,
    boosting: Boosting,
    *,
    seed: int = 0,
    device: DeviceChoice = CPU,
    threads: int = 0,
    corrects: Recipe | None = None,
) -> tuple[Recipe, dict[str, str]]:
    """Everything that a fit needs of some rows, and the features that cannot tell them apart, with why.

    Args:
        scheme: How the rows are read.
        rows: Rows with a label.
        boosting: What was chosen about the trees.
        seed: Of everything random.
        device: LightGBM's device.
        threads: 0 is one for each core.
        corrects: Recipe of older rows whose fits these ones correct; the features are its.

    Raises:
        TrainingError: If the rows have too few shapes, or features that are all equal.
    """
    rows = rows.sort(scheme.id_column)
    fold = fold_numbers(scheme, rows)
    train = np.flatnonzero(fold != GATE_FOLD)
    if len(set(fold[train].tolist())) < LEAST_TRAINING_FOLDS:
        raise TrainingError(
            f"{rows.height} labelled {scheme.row_noun} have {scheme.shapes(rows).n_unique()} shapes "
            f"in {len(set(fold.tolist()))} of {FOLD_COUNT} folds; training needs shapes in at least "
            f"{LEAST_TRAINING_FOLDS} folds besides the gate's: collect {scheme.row_noun} of more different shapes"
        )
    if corrects is not None and len(corrects.training_folds) < LEAST_CORRECTED_FOLDS:
        raise TrainingError(
            f"the {corrects.rows.height} older {scheme.row_noun} have shapes in {len(corrects.training_folds)} folds "
            f"besides the gate's; a model that is corrected needs {LEAST_CORRECTED_FOLDS}: train on all rows instead"
        )
    features = scheme.features(rows)
    if corrects is None:
        used, dropped = _varying_features(features[train])
    else:
        used, dropped = corrects.features.columns, {}
    recipe = Recipe(
        scheme=scheme,
        rows=rows,
        features=features.select(used),
        latency_us=scheme.latency_us(rows),
        fold=fold,
        boosting=boosting,
        params=boosting.lightgbm_params(scheme, len(train), seed=seed, device=device, threads=threads),
        corrects=corrects,
    )
    return recipe, dropped


def base_recipe(scheme: RowScheme, rows: pl.DataFrame, boosting: Boosting, **options: Any) -> Recipe:
    """Recipe of the older rows that newer ones will correct: its text leaves room for the correction.

    Args:
        scheme: How the rows are read.
        rows: Older rows with a label.
        boosting: What was chosen about the trees.
        options: As `make_recipe` takes them.
    """
    recipe, _ = make_recipe(scheme, rows, boosting, **options)
    return replace(recipe, text_limit_bytes=BASE_TEXT_LIMIT_BYTES)


def correcting(boosting: Boosting) -> Boosting:
    """How new rows correct an older model: few and small trees."""
    return boosting.changed(CORRECTION)


def _varying_features(features: pl.DataFrame) -> tuple[list[str], dict[str, str]]:
    """Features that can tell training rows apart, and why the others cannot."""
    used, dropped = [], {}
    for name in features.columns:
        column = features.get_column(name)
        if column.null_count() == len(column):
            dropped[name] = "no source filled it"
        elif column.n_unique() == 1:
            dropped[name] = f"always {column[0]}"
        else:
            used.append(name)
    if not used:
        raise TrainingError(
            f"all {features.height} training rows have equal features, so there is nothing to learn; "
            f"collect rows of different shapes"
        )
    return used, dropped


def _group_numbers(keys: pl.DataFrame) -> IntArray:
    numbers = np.zeros(keys.height, dtype=np.int64)
    for number, places in enumerate(group_rows(keys).values()):
        numbers[places] = number
    return numbers
