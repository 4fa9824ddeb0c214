"""Train the launch-latency model and say, on rows it never saw, how good it is.

Splits keep a graph's shape on one side: lines by blocks of 10 consecutive lengths, other graphs by
signature, into 5 folds by a hash that never changes. Fold 0 is the gate's: no final model ever trains on it, so
champion and challenger can always be compared on rows that neither has seen. Every figure reported comes
from models that had not seen the row's fold, nor used it to decide when to stop.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.errors import SettingsError, TrainingError
from warpgauge.latency.baseline import Baseline, node_counts
from warpgauge.latency.booster import CategoricalBooster
from warpgauge.latency.catalogue import CATEGORICAL_NAMES
from warpgauge.latency.evaluation import (
    FLOOR_TRIALS,
    PROMISE_RATIO,
    PROMISE_US,
    flat_metrics,
    metric_table,
    scored_rows,
    usable_rows,
)
from warpgauge.latency.features import build_features, check_launch_columns
from warpgauge.latency.intervals import GROUP_COLUMNS, STATED_FACTOR, conformal_quantile, fit_intervals
from warpgauge.latency.model import PREDICTION_COLUMNS, LatencyModel, trained_on_summary
from warpgauge.tables import LAUNCH_LABELS

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

FOLD_COUNT = 5
GATE_FOLD = 0
LENGTHS_A_BLOCK = 10
FOLD_RULE = (
    "5 folds by SHA-256 of (topology, lines, block of 10 consecutive lengths) for lines, of the graph signature "
    "otherwise; fold 0 is the gate's and is never trained on"
)
# The text of the trees; with model.json it stays below the 1.2 MB that a model file may have.
TEXT_LIMIT_BYTES = 1_000_000
# Rows and values used to learn how wrong a left-out GPU or topology gets: an order of magnitude is enough.
LEFT_OUT_ROWS = 8_000
LEFT_OUT_VALUES = 8
LEFT_OUT_LEAST_ROWS = 5
# No row counts more than 25 times another one: a group of equal trials would otherwise outweigh all.
LARGEST_WEIGHT_RATIO = 25.0
# Noise depends on size within these groups; a bin of 100 rows knows its variance to about 15 %.
NOISE_GROUP = ("gpu_name", "topology", "is_profiled", "is_simulated")
NOISE_BIN_COUNT = 20
ROWS_A_NOISE_BIN = 100
ROWS_OVER_LEAF = 160
# One fold to learn from and one to say when to stop.
LEAST_TRAINING_FOLDS = 2
TRAINING_COLUMNS = tuple(
    dict.fromkeys((*PREDICTION_COLUMNS, "launch_id", "source_kind", "graph_id", "graph_signature"))
)
LEFT_OUT_SCHEMA = {
    "column": pl.String,
    "value": pl.String,
    "row_count": pl.Int64,
    "rmse_us": pl.Float64,
    "mape_ratio": pl.Float64,
    "share_within_promise_ratio": pl.Float64,
    "log_error": pl.Float64,
}


@dataclass(frozen=True)
class LatencyTraining:
    """A trained model and everything that is known about it.

    Attributes:
        model: Trained on folds 1 to 4.
        heldout: One row a labelled launch: see `evaluation.scored_rows`, and fold, curve_us (the physics
            baseline in use), baseline_us (the line a + b x nodes), each from models without that fold.
        metrics: Overall figures, flat; `line_...` is the linear baseline, `gate_...` fold 0 alone, whose
            rows the final model itself predicted.
        slices: The same figures for every slice and predictor in one table.
        residuals_log: log(actual / predicted) of the held-out rows, the monitor's reference.
        gate_rows: Rows of fold 0; may be empty where there are few graphs.
        left_out: For each value of GPU, topology, version and profiling that could be left out: the error
            of a model that never saw it.
        importance: Gain of each feature in use.
        row_count: Labelled rows used, all folds.
        training_row_count: Rows of folds 1 to 4.
        unusable_row_count: Rows without a positive label or node count.
        dropped_features: Feature -> why it was not used.
        fold_rule: How rows were split.
        tree_count: Boosting rounds of the model.
        notes: What a reader of the report should know.
    """

    model: LatencyModel
    heldout: pl.DataFrame
    metrics: dict[str, float]
    slices: pl.DataFrame
    residuals_log: FloatArray
    gate_rows: pl.DataFrame
    left_out: pl.DataFrame
    importance: dict[str, float]
    row_count: int
    training_row_count: int
    unusable_row_count: int
    dropped_features: dict[str, str]
    fold_rule: str
    tree_count: int
    notes: tuple[str, ...]


def train_latency(
    launches: pl.DataFrame,
    *,
    target: str = "first_launch_api_us",
    seed: int = 0,
    max_bin: int = 255,
    trees: int = 600,
    leaves: int = 31,
    learning_rate: float = 0.05,
    early_stopping_rounds: int = 50,
    coverage_ratio: float = 0.90,
    minimum_rows: int = 50,
    device: str = "cpu",
    threads: int = 0,
) -> LatencyTraining:
    """Train on the rows of the launches table that have the label.

    The result depends on the set of rows, not on their order.

    Args:
        launches: Columns of the launches table in any order; label columns other than the target may be
            absent.
        target: Label column to predict, microseconds.
        seed: Of everything random.
        max_bin: Histogram bins.
        trees: Most boosting rounds; early stopping on a held-out fold chooses.
        leaves: Leaves a tree.
        learning_rate: Shrinkage a round.
        early_stopping_rounds: Rounds without a better held-out RMSE before boosting stops.
        coverage_ratio: Share of launches that the interval should hold.
        minimum_rows: Fewer labelled rows than this train nothing.
        device: LightGBM's device, `cpu` or `gpu`.
        threads: 0 is one for each core.

    Raises:
        SettingsError: If the target is not a label column.
        SchemaError: If a column is missing, unknown or renamed.
        TrainingError: If the rows cannot teach a model: too few, too few different graphs, no label.
    """
    if target not in LAUNCH_LABELS:
        raise SettingsError(
            f"target {target!r} is not a label of launches; known: {', '.join(LAUNCH_LABELS)}"
        )
    check_launch_columns(launches, [*TRAINING_COLUMNS, target])
    rows = _labelled_rows(launches, target, minimum_rows)
    fold = fold_numbers(rows)
    train = np.flatnonzero(fold != GATE_FOLD)
    if len(set(fold[train].tolist())) < LEAST_TRAINING_FOLDS:
        raise TrainingError(
            f"{rows.height} labelled rows have {rows.get_column('graph_signature').n_unique()} graph "
            f"signatures in {len(set(fold.tolist()))} of {FOLD_COUNT} folds; training needs graphs in at least "
            f"{LEAST_TRAINING_FOLDS} folds besides the gate's: collect launches of more different graphs"
        )
    features = build_features(rows)
    used, dropped = _varying_features(features[train])
    recipe = _Recipe(
        launches=rows,
        features=features.select(used),
        latency_us=rows.get_column(target).cast(pl.Float64).to_numpy().astype(np.float64),
        params={
            "num_leaves": leaves,
            "learning_rate": learning_rate,
            "max_bin": max_bin,
            # Enough rows a leaf that a disturbed block of sizes cannot have one of its own: on 40,000
            # public trials 200 rows a leaf gave RMSE over floor 1.059 and 1.047, 20 rows 1.061 and 1.051.
            "min_data_in_leaf": int(np.clip(len(train) // ROWS_OVER_LEAF, 5, 200)),
            "lambda_l2": 10.0,
            "seed": seed,
            "deterministic": True,
            # Without it LightGBM times both layouts and takes the faster one, which differs from run to run.
            **({"force_row_wise": True} if device == "cpu" else {}),
            "num_threads": threads,
            "device_type": device,
        },
        trees=trees,
        early_stopping_rounds=early_stopping_rounds,
    )
    final, train_predicted_us = _fit_final(recipe, fold)
    fits = {number: _fit_without(recipe, fold, number) for number in sorted(set(fold.tolist()) - {GATE_FOLD})}
    fits[GATE_FOLD] = final
    left_out = _leave_one_out(recipe, train, final.booster.tree_count, coverage_ratio)
    left_out_error = {
        column: left_out.filter(pl.col("column") == column).get_column("log_error").to_list()
        for column in STATED_FACTOR
    }
    groups = rows.select(GROUP_COLUMNS)

    def model_of(fit: _Fit, places: IntArray, predicted_us: FloatArray) -> LatencyModel:
        """The fit with intervals calibrated on held-out predictions of these rows."""
        residual = np.log(recipe.latency_us[places] / predicted_us[places])
        intervals = fit_intervals(
            residual, predicted_us[places], groups[places], coverage_ratio, left_out_error
        )
        return LatencyModel(fit.baseline, fit.booster, intervals, target, summary)

    summary = trained_on_summary(
        rows[train],
        fold_rule=FOLD_RULE,
        coverage_ratio=coverage_ratio,
        tree_count=final.booster.tree_count,
        params={name: value for name, value in recipe.params.items() if name != "num_threads"},
    )
    model = model_of(final, train, train_predicted_us)
    heldout = _score_folds(recipe, fold, fits, model, model_of)
    table = metric_table(heldout)
    metrics = flat_metrics(table)
    gate = heldout.filter(pl.col("fold") == GATE_FOLD)
    if gate.height:
        metrics |= {f"gate_{name}": value for name, value in flat_metrics(metric_table(gate, ())).items()}
    unusable = launches.height - rows.height
    return LatencyTraining(
        model=model,
        heldout=heldout,
        metrics=metrics,
        slices=table,
        residuals_log=np.log(heldout["actual_us"].to_numpy() / heldout["predicted_us"].to_numpy()),
        gate_rows=rows.filter(pl.Series(fold == GATE_FOLD)),
        left_out=left_out,
        importance=model.booster.importance(),
        row_count=rows.height,
        training_row_count=len(train),
        unusable_row_count=unusable,
        dropped_features=dropped,
        fold_rule=FOLD_RULE,
        tree_count=final.booster.tree_count,
        notes=_notes(rows, fold, unusable, model),
    )


def fold_numbers(launches: pl.DataFrame) -> IntArray:
    """Fold of each row, 0 to 4: the same for the same shape of graph on any GPU, today and in a year.

    Args:
        launches: topology, line_count, line_length and graph_signature.
    """
    block = (pl.col("line_length").cast(pl.Int64) - 1) // LENGTHS_A_BLOCK
    lines = pl.concat_str(
        [pl.col("topology").cast(pl.String), pl.col("line_count").cast(pl.String), block.cast(pl.String)],
        separator=":",
    )
    other = pl.concat_str([pl.lit("signature"), pl.col("graph_signature").cast(pl.String)], separator=":")
    # A null part makes the first null: graphs that are not lines go by signature.
    shapes = launches.select(pl.coalesce(lines, other).alias("shape")).get_column("shape")
    known = {shape: _hash_fold(shape) for shape in shapes.unique().to_list()}
    return np.asarray([known[shape] for shape in shapes.to_list()], dtype=np.int64)


def _hash_fold(shape: str | None) -> int:
    return int(hashlib.sha256((shape or "").encode()).hexdigest()[:8], 16) % FOLD_COUNT


@dataclass(frozen=True)
class _Recipe:
    """Everything about a fit that does not change from fold to fold."""

    launches: pl.DataFrame
    features: pl.DataFrame
    latency_us: FloatArray
    params: Mapping[str, Any]
    trees: int
    early_stopping_rounds: int


@dataclass(frozen=True)
class _Fit:
    """A baseline and trees that belong together, without intervals."""

    baseline: Baseline
    booster: CategoricalBooster

    def predict_us(self, recipe: _Recipe, rows: IntArray) -> FloatArray:
        curve = self.baseline.predict(recipe.launches[rows]).latency_us
        return curve * np.exp(self.booster.predict(recipe.features[rows]))


def _labelled_rows(launches: pl.DataFrame, target: str, minimum_rows: int) -> pl.DataFrame:
    """Rows that can teach, in an order that does not depend on how they arrived."""
    rows = usable_rows(launches, target).sort("launch_id")
    if rows.height >= minimum_rows:
        return rows
    counts = {name: usable_rows(launches, name).height for name in LAUNCH_LABELS if name in launches.columns}
    others = {name: count for name, count in counts.items() if count > rows.height}
    hint = (
        "; other labels: " + ", ".join(f"{name} {count}" for name, count in others.items()) if others else ""
    )
    raise TrainingError(
        f"{rows.height} of {launches.height} launches have a positive {target} and a node count, needed are at least "
        f"{minimum_rows}; collect more, or choose a label that is there by latency_target{hint}"
    )


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
            f"collect launches of different graphs"
        )
    return used, dropped


def _fit(recipe: _Recipe, rows: IntArray, rounds: int, validation: IntArray | None = None) -> _Fit:
    """Baseline and trees on these rows; with validation rows boosting stops early."""
    baseline = Baseline.fit(recipe.launches[rows], recipe.latency_us[rows])
    names = recipe.features.columns
    held_out = None
    target, weight = _ratio_and_weight(recipe, rows, baseline)
    if validation is not None:
        held_out = (
            recipe.features[validation],
            *_ratio_and_weight(recipe, validation, baseline),
        )
    booster = CategoricalBooster.fit(
        recipe.features[rows],
        target,
        [name for name in names if name not in CATEGORICAL_NAMES],
        [name for name in names if name in CATEGORICAL_NAMES],
        recipe.params,
        rounds=rounds,
        weight=weight,
        validation=held_out,
        early_stopping_rounds=recipe.early_stopping_rounds,
        text_limit_bytes=TEXT_LIMIT_BYTES,
    )
    return _Fit(baseline, booster)


def _ratio_and_weight(recipe: _Recipe, rows: IntArray, baseline: Baseline) -> tuple[FloatArray, FloatArray]:
    """log(latency / baseline) and the weight of each row: one over the noise variance at its size.

    With it held-out RMSE over floor was 1.059 and 1.047 on the public trials, with equal weights 1.061 and
    1.050, with weights by squared latency 1.062 and 1.050. The noise of a row is that of its repeated
    trials; where trials are not repeated, its distance from the baseline stands in.
    """
    launches = recipe.launches[rows]
    ratio = np.log(recipe.latency_us[rows] / baseline.predict(launches).latency_us)
    frame = launches.select(
        "graph_id",
        *(pl.col(name).cast(pl.String) for name in NOISE_GROUP),
        pl.Series("nodes", node_counts(launches)),
        pl.Series("ratio", ratio),
    )
    trials = ("graph_id", *NOISE_GROUP)
    frame = frame.with_columns(
        pl.when(pl.len().over(trials) >= FLOOR_TRIALS)
        .then(pl.col("ratio") - pl.col("ratio").median().over(trials))
        .otherwise(pl.col("ratio"))
        .alias("noise")
    )
    frame = frame.with_columns(
        (
            (pl.col("nodes").rank("ordinal").over(NOISE_GROUP) - 1)
            * (pl.len().over(NOISE_GROUP) / ROWS_A_NOISE_BIN).floor().clip(1, NOISE_BIN_COUNT)
            // pl.len().over(NOISE_GROUP)
        ).alias("bin")
    )
    # Capped at the 99th percentile: one launch that met an interrupt says nothing of its neighbours.
    capped = pl.min_horizontal(pl.col("noise") ** 2, (pl.col("noise") ** 2).quantile(0.99))
    variance = frame.select(capped.mean().over([*NOISE_GROUP, "bin"])).to_series().to_numpy()
    weight = 1.0 / np.maximum(variance, 1e-12)
    middle, reach = float(np.median(weight)), LARGEST_WEIGHT_RATIO**0.5
    weight = np.clip(weight, middle / reach, middle * reach)
    return ratio, weight / weight.mean()


def _fit_final(recipe: _Recipe, fold: IntArray) -> tuple[_Fit, FloatArray]:
    """The fit on all folds but the gate's, and predictions of those folds by fits that had not seen them.

    Returns:
        The fit, and one prediction a row, NaN in the gate's fold.
    """
    train = np.flatnonzero(fold != GATE_FOLD)
    inner = sorted(set(fold[train].tolist()))
    stops = []
    for number in inner:
        rest, held_out = train[fold[train] != number], train[fold[train] == number]
        stops.append(_fit(recipe, rest, recipe.trees, held_out).booster.tree_count)
    rounds = max(1, int(np.median(stops)))
    predicted = np.full(len(fold), np.nan)
    for number in inner:
        rest, held_out = train[fold[train] != number], train[fold[train] == number]
        predicted[held_out] = _fit(recipe, rest, rounds).predict_us(recipe, held_out)
    return _fit(recipe, train, rounds), predicted


def _fit_without(recipe: _Recipe, fold: IntArray, number: int) -> _Fit:
    """A fit that never saw one fold: another fold says when to stop, then all the rest is fitted."""
    rest = np.flatnonzero(fold != number)
    others = sorted(set(fold[rest].tolist()), key=lambda other: (other - number) % FOLD_COUNT)
    if len(others) < LEAST_TRAINING_FOLDS:
        return _fit(recipe, rest, 1)
    held_out = rest[fold[rest] == others[0]]
    stop = _fit(recipe, rest[fold[rest] != others[0]], recipe.trees, held_out).booster.tree_count
    return _fit(recipe, rest, stop)


def _score_folds(
    recipe: _Recipe,
    fold: IntArray,
    fits: Mapping[int, _Fit],
    final: LatencyModel,
    model_of: Callable[[_Fit, IntArray, FloatArray], LatencyModel],
) -> pl.DataFrame:
    """Every row, predicted once by a model that had not seen its fold."""
    places = {number: np.flatnonzero(fold == number) for number in sorted(set(fold.tolist()))}
    predicted = np.empty(len(fold))
    for number, test in places.items():
        predicted[test] = fits[number].predict_us(recipe, test)
    parts = []
    for number, test in places.items():
        rest = np.flatnonzero(fold != number)
        launches = recipe.launches[test]
        # Fold 0 is judged by the final model as it is; another fold by intervals that rest on the held-out
        # residuals of all rows but its own.
        model = final if number == GATE_FOLD else model_of(fits[number], rest, predicted)
        line = Baseline.fit(recipe.launches[rest], recipe.latency_us[rest], kind="line")
        parts.append(
            scored_rows(
                launches,
                recipe.latency_us[test],
                model.predict(launches),
                curve_us=model.baseline.predict(launches).latency_us,
                baseline_us=line.predict(launches).latency_us,
            ).with_columns(pl.lit(number, dtype=pl.Int64).alias("fold"))
        )
    return pl.concat(parts)


def _leave_one_out(recipe: _Recipe, train: IntArray, rounds: int, coverage_ratio: float) -> pl.DataFrame:
    """For each value of a group column: the error on its rows of a fit that saw all the other values.

    Rows are in the order of a hash, so the first ones are a fair sample.
    """
    sample = train[:LEFT_OUT_ROWS]
    launches = recipe.launches[sample]
    table = []
    for column in STATED_FACTOR:
        values = launches.get_column(column).cast(pl.String)
        counts = values.drop_nulls().value_counts(sort=True).filter(pl.col("count") >= LEFT_OUT_LEAST_ROWS)
        if counts.height < 2:
            continue
        for value in counts.sort(["count", column], descending=[True, False])[column][:LEFT_OUT_VALUES]:
            is_left = (values == value).fill_null(False).to_numpy()
            fit = _fit(recipe, sample[~is_left], rounds)
            rows = sample[is_left]
            actual, predicted = recipe.latency_us[rows], fit.predict_us(recipe, rows)
            error = np.abs(actual - predicted)
            table.append(
                {
                    "column": column,
                    "value": value,
                    "row_count": len(rows),
                    "rmse_us": float(np.sqrt(np.mean(error**2))),
                    "mape_ratio": float(np.mean(error / actual)),
                    "share_within_promise_ratio": float(
                        np.mean(error <= np.maximum(PROMISE_US, PROMISE_RATIO * actual))
                    ),
                    "log_error": conformal_quantile(np.abs(np.log(actual / predicted)), coverage_ratio),
                }
            )
    return pl.DataFrame(table, schema=LEFT_OUT_SCHEMA)


def _notes(rows: pl.DataFrame, fold: IntArray, unusable_count: int, model: LatencyModel) -> tuple[str, ...]:
    notes = []
    if unusable_count:
        notes.append(f"{unusable_count} launches have no positive {model.target} or no node count: not used")
    empty = sorted(set(range(FOLD_COUNT)) - set(fold.tolist()))
    if GATE_FOLD in empty:
        notes.append("the gate's fold holds no graph, so a later version cannot be compared on unseen rows")
    if len(set(empty) - {GATE_FOLD}):
        notes.append(f"few graphs: {len(set(empty) - {GATE_FOLD})} of the other folds hold none")
    if model.is_simulated:
        share = float(np.mean(rows.get_column("is_simulated").to_numpy()))
        notes.append(f"{share:.0%} of the launches are simulated")
    for column in ("gpu_name", "topology"):
        if model.intervals.unseen_evidence[column] == "stated":
            notes.append(
                f"one {column} alone: how wrong the model is for another one could not be measured, its "
                f"interval is widened {STATED_FACTOR[column]:g}-fold each way"
            )
    return tuple(notes)
