"""Train a latency model and say, on rows it never saw, how good it is.

Every figure reported comes from models that had not seen the row's fold, nor used it to decide when to stop;
see `folds.py` for the folds. Choices (which rows to learn from, a search of settings, monotone constraints) are made on
folds 1 to 4, so figures of all folds are a little kind to what was chosen; those of the gate's fold, `gate_...`, are not.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import polars as pl

from warpgauge.accelerate import CPU, DeviceChoice
from warpgauge.errors import TrainingError
from warpgauge.latency.baseline import Baseline
from warpgauge.latency.booster import CategoricalBooster
from warpgauge.latency.evaluation import GROUP_ID, ROW_ID, flat_metrics, metric_table, scored_rows
from warpgauge.latency.explanations import (
    DEPENDENCE_SCHEMA,
    EFFECT_SCHEMA,
    conditional_effects,
    partial_dependence,
    set_node_count,
)
from warpgauge.latency.fitting import Boosting, Fit, Recipe, base_recipe, correcting, make_recipe
from warpgauge.latency.folds import FOLD_COUNT, FOLD_RULE, GATE_FOLD, IntArray
from warpgauge.latency.hidden_state import hidden_state_notes
from warpgauge.latency.intervals import conformal_quantile, fit_intervals
from warpgauge.latency.launch_scheme import LaunchScheme
from warpgauge.latency.model import LatencyModel
from warpgauge.latency.scheme import FloatArray, RowScheme

# Rows and values used to learn how wrong a left-out GPU or topology gets: an order of magnitude is enough.
LEFT_OUT_ROWS = 8_000
LEFT_OUT_VALUES = 8
LEFT_OUT_LEAST_ROWS = 5
# Constraints are kept unless they cost more than this; two folds tell it.
MONOTONE_FOLDS = 2
MONOTONE_COST_RATIO = 0.002
# A "newest fifth" needs times that tell rows apart.
LEAST_TIMES = 5
LEFT_OUT_SCHEMA = {
    "column": pl.String,
    "value": pl.String,
    "row_count": pl.Int64,
    "rmse_us": pl.Float64,
    "mape_ratio": pl.Float64,
    "share_within_promise_ratio": pl.Float64,
    "log_error": pl.Float64,
}


@dataclass(frozen=True, eq=False)
class LatencyTraining:
    """A trained model and all that is known about it.

    Attributes:
        model: The model, trained on folds 1 to 4.
        heldout: One row a scored row, each predicted by a model that had not seen its fold; see
            `evaluation.scored_rows`, and `fold`.
        metrics: Overall figures, flat; `line_...` is the linear baseline, `plain_...` LightGBM on the raw
            label, `gate_...` fold 0 alone, whose rows the final model itself predicted.
        slices: The same figures for every slice and predictor in one table.
        residuals_log: log(actual / predicted) of the held-out rows, the monitor's reference.
        gate_rows: Rows of fold 0; may be empty where there are few shapes.
        left_out: For each value of a key column that could be left out: the error of a model that never saw it.
        dependence: Predicted latency by size, see `explanations.partial_dependence`; empty but for launches.
        effects: What each flag does where it is on, see `explanations.conditional_effects`.
        importance: Gain of each feature in use.
        row_count: Labelled rows used, all folds.
        training_row_count: Rows of folds 1 to 4.
        unusable_row_count: Rows without a positive label or size.
        dropped_features: Feature -> why it was not used.
        fold_rule: How rows were split.
        tree_count: Trees of the model.
        notes: What a reader of the report should know.
    """

    model: LatencyModel
    heldout: pl.DataFrame
    metrics: dict[str, float]
    slices: pl.DataFrame
    residuals_log: FloatArray
    gate_rows: pl.DataFrame
    left_out: pl.DataFrame
    dependence: pl.DataFrame
    effects: pl.DataFrame
    importance: dict[str, float]
    row_count: int
    training_row_count: int
    unusable_row_count: int
    dropped_features: dict[str, str]
    fold_rule: str
    tree_count: int
    notes: tuple[str, ...]


def train_latency(
    scheme: RowScheme,
    rows: pl.DataFrame,
    boosting: Boosting | None = None,
    *,
    older: pl.DataFrame | None = None,
    seed: int = 0,
    coverage_ratio: float = 0.90,
    minimum_rows: int = 50,
    device: DeviceChoice = CPU,
    threads: int = 0,
) -> LatencyTraining:
    """Train on the rows of a latency table that have the label.

    The result depends on the set of rows, not on their order.

    Args:
        scheme: How the rows are read.
        rows: Its columns in any order; label columns other than the target may be absent.
        boosting: What was chosen about the trees; None is what the scheme says, and the defaults.
        older: Rows of which a model is made first; `rows` then only correct it, and it is judged on them alone.
        seed: Of everything random.
        coverage_ratio: Share of rows that the interval should hold.
        minimum_rows: Fewer labelled rows than this train nothing.
        device: LightGBM's device.
        threads: 0 is one for each core.

    Raises:
        SchemaError: If a column is missing, unknown or renamed.
        TrainingError: If the rows cannot teach a model: too few, too few different shapes, no label.
    """
    boosting = boosting or Boosting().changed(scheme.parameters)
    labelled = labelled_rows(scheme, rows, minimum_rows)
    options: dict[str, Any] = {"seed": seed, "device": device, "threads": threads}
    base = None
    if older is not None:
        base = base_recipe(scheme, labelled_rows(scheme, older, minimum_rows), boosting, **options)
        boosting = correcting(boosting)
    recipe, dropped = make_recipe(scheme, labelled, boosting, corrects=base, **options)
    recipe, monotone_note = _with_monotone(recipe)
    fold = recipe.fold
    train = recipe.places(GATE_FOLD)
    final, train_predicted_us = _fit_final(recipe)
    fits = {number: _fit_without(recipe, number) for number in recipe.training_folds}
    fits[GATE_FOLD] = final
    rounds = (final if base is None else base.fit_once(GATE_FOLD)).booster.tree_count
    left_out = _leave_one_out(base or recipe, rounds, coverage_ratio)
    left_out_error = {
        column: left_out.filter(pl.col("column") == column).get_column("log_error").to_list()
        for column in scheme.stated_factors
    }

    def model_of(fit: Fit, places: IntArray, predicted_us: FloatArray) -> LatencyModel:
        """The fit with intervals calibrated on held-out predictions of these rows."""
        residual = np.log(recipe.latency_us[places] / predicted_us[places])
        intervals = fit_intervals(
            residual,
            predicted_us[places],
            recipe.rows[places],
            coverage_ratio,
            levels=scheme.interval_levels,
            stated_factors=scheme.stated_factors,
            left_out_log_error=left_out_error,
        )
        return LatencyModel(fit.baseline, fit.booster, intervals, summary)

    taught = recipe.rows[train]
    if base is not None:
        taught = pl.concat([base.rows[base.places(GATE_FOLD)], taught], how="diagonal_relaxed")
    is_simulated = scheme.is_simulated(taught)
    summary = {
        **scheme.summary(taught),
        "is_simulated": bool(is_simulated.any()),
        "simulated_ratio": float(is_simulated.mean() or 0.0),  # type: ignore[arg-type]
        "corrected_row_count": 0 if base is None else len(train),
        "fold_rule": FOLD_RULE,
        "coverage_ratio": coverage_ratio,
        "tree_count": final.booster.tree_count,
        "params": {name: value for name, value in recipe.params.items() if name != "num_threads"},
    }
    model = model_of(final, train, train_predicted_us)
    heldout = _score_folds(recipe, fits, model, model_of)
    table = metric_table(heldout, (*scheme.slice_columns, "size_band"))
    metrics = flat_metrics(table)
    gate = heldout.filter(pl.col("fold") == GATE_FOLD)
    if gate.height:
        metrics |= {f"gate_{name}": value for name, value in flat_metrics(metric_table(gate)).items()}
    metrics |= _newest_metrics(recipe, final.booster.tree_count)
    importance = model.booster.importance()
    effects = _effects(recipe, heldout, importance)
    unusable = rows.height - labelled.height
    return LatencyTraining(
        model=model,
        heldout=heldout,
        metrics=metrics,
        slices=table,
        residuals_log=np.log(heldout["actual_us"].to_numpy() / heldout["predicted_us"].to_numpy()),
        gate_rows=recipe.rows.filter(pl.Series(fold == GATE_FOLD)),
        left_out=left_out,
        dependence=_dependence(model, recipe.rows[train]),
        effects=effects,
        importance=importance,
        row_count=labelled.height,
        training_row_count=len(train),
        unusable_row_count=unusable,
        dropped_features=dropped,
        fold_rule=FOLD_RULE,
        tree_count=final.booster.tree_count,
        notes=(
            *_unseen_notes(left_out, metrics),
            *monotone_note,
            *_notes(recipe, unusable, model),
            *_flag_notes(effects),
        ),
    )


def labelled_rows(scheme: RowScheme, rows: pl.DataFrame, minimum_rows: int) -> pl.DataFrame:
    """Rows that can teach.

    Raises:
        SchemaError: If a column is missing, unknown or renamed.
        TrainingError: If there are fewer than `minimum_rows`.
    """
    scheme.check(rows, is_training=True)
    labelled = scheme.usable(rows)
    if labelled.height < minimum_rows:
        raise TrainingError(
            f"{labelled.height} of {rows.height} {scheme.row_noun} have a positive {scheme.target} and a "
            f"{scheme.size_name}, needed are at least {minimum_rows}; {scheme.label_hint(rows)}"
        )
    return labelled


def _fit_final(recipe: Recipe) -> tuple[Fit, FloatArray]:
    """The fit on all folds but the gate's, and predictions of those folds by fits that had not seen them.

    Returns:
        The fit, and one prediction a row, NaN in the gate's fold.
    """
    rounds = recipe.median_rounds()
    predicted = np.full(len(recipe.fold), np.nan)
    for number in recipe.training_folds:
        held_out = np.flatnonzero(recipe.fold == number)
        predicted[held_out] = recipe.predict_us(recipe.fit(GATE_FOLD, number, rounds=rounds), held_out)
    return recipe.fit(GATE_FOLD, rounds=rounds), predicted


def _fit_without(recipe: Recipe, number: int) -> Fit:
    """A fit that never saw one fold: another fold says when to stop, then all the rest is fitted."""
    return recipe.fit(number, rounds=recipe.rounds_without(number))


def _score_folds(
    recipe: Recipe,
    fits: Mapping[int, Fit],
    final: LatencyModel,
    model_of: Callable[[Fit, IntArray, FloatArray], LatencyModel],
) -> pl.DataFrame:
    """Every row, predicted once by a model that had not seen its fold."""
    fold = recipe.fold
    places = {number: np.flatnonzero(fold == number) for number in sorted(set(fold.tolist()))}
    predicted = np.empty(len(fold))
    for number, test in places.items():
        predicted[test] = recipe.predict_us(fits[number], test)
    plain_rounds = _plain_rounds(recipe)
    parts = []
    for number, test in places.items():
        rest = recipe.places(number)
        rows = recipe.rows[test]
        # Fold 0 is judged by the final model as it is; another fold by intervals that rest on the held-out
        # residuals of all rows but its own.
        model = final if number == GATE_FOLD else model_of(fits[number], rest, predicted)
        line = Baseline.fit(recipe.scheme, recipe.rows[rest], recipe.latency_us[rest], kind="line")
        plain = _fit_plain(recipe, rest, plain_rounds)
        parts.append(
            scored_rows(
                recipe.scheme,
                rows,
                recipe.latency_us[test],
                model.predict(rows),
                plain_us=plain.predict(recipe.features[test].select(plain.table.names)),
                curve_us=model.baseline.predict(rows).latency_us,
                baseline_us=line.predict(rows).latency_us,
            ).with_columns(pl.lit(number, dtype=pl.Int64).alias("fold"))
        )
    return pl.concat(parts)


def _plain_rounds(recipe: Recipe) -> int:
    """Boosting rounds that suit plain LightGBM: one fold says when to stop."""
    folds = recipe.training_folds
    if len(folds) < 2:
        return 1
    return _fit_plain(recipe, recipe.places(GATE_FOLD, folds[0]), recipe.boosting.trees, folds[0]).tree_count


def _fit_plain(
    recipe: Recipe, places: IntArray, rounds: int, stop_by: int | None = None
) -> CategoricalBooster:
    """LightGBM that learns microseconds straight from the same features: the second yardstick."""
    numeric, categorical = recipe.input_names(places)
    inputs = recipe.features.select(*numeric, *categorical)
    held_out = np.flatnonzero(recipe.fold == stop_by) if stop_by is not None else None
    return CategoricalBooster.fit(
        inputs[places],
        recipe.latency_us[places],
        numeric,
        categorical,
        {**recipe.params, "objective": "regression", "metric": "rmse"},
        rounds=rounds,
        validation=None if held_out is None else (inputs[held_out], recipe.latency_us[held_out], None),
        early_stopping_rounds=recipe.boosting.early_stopping_rounds,
    )


def _with_monotone(recipe: Recipe) -> tuple[Recipe, tuple[str, ...]]:
    """The recipe with its scheme's monotone constraints, where they do not cost accuracy, and what was found."""
    wanted = {name: sign for name, sign in recipe.scheme.monotone.items() if name in recipe.features.columns}
    if not wanted or recipe.corrects is not None:
        return recipe, ()
    constrained = replace(recipe, monotone=wanted, _fits={})
    folds = recipe.training_folds[:MONOTONE_FOLDS]
    free = float(np.concatenate([recipe.heldout_errors(number) for number in folds]).mean())
    held = float(np.concatenate([constrained.heldout_errors(number) for number in folds]).mean())
    named = ", ".join(wanted)
    said = f"mean held-out log error {held:.4f} with it, {free:.4f} without"
    if held <= free * (1 + MONOTONE_COST_RATIO):
        return constrained, (f"latency over its baseline only rises or falls with {named}: {said}",)
    return recipe, (f"not held to rise or fall with {named}, which cost accuracy: {said}",)


def _newest_metrics(recipe: Recipe, rounds: int) -> dict[str, float]:
    """Error on the newest fifth of the rows, by a model of the older ones; nothing where times are not known.

    A split by shape says nothing of a machine that changes: this does.
    """
    places = recipe.places(GATE_FOLD)
    times = recipe.scheme.times(recipe.rows[places])
    if recipe.corrects is not None or times.null_count() or times.n_unique() < LEAST_TIMES:
        return {}
    order = places[np.argsort(times.to_numpy(), kind="stable")]
    older, newest = np.split(order, [len(order) - len(order) // 5])
    predicted, actual = recipe.predict_us(recipe.fit_rows(older, rounds), newest), recipe.latency_us[newest]
    error = np.abs(predicted - actual)
    return {
        "newest_fifth_rmse_us": float(np.sqrt(np.mean(error**2))),
        "newest_fifth_mape_ratio": float(np.mean(error / actual)),
    }


def _dependence(model: LatencyModel, rows: pl.DataFrame) -> pl.DataFrame:
    if isinstance(model.scheme, LaunchScheme):
        return partial_dependence(model.predict_us, rows, set_node_count)
    return pl.DataFrame(schema=DEPENDENCE_SCHEMA)


def _effects(recipe: Recipe, heldout: pl.DataFrame, importance: Mapping[str, float]) -> pl.DataFrame:
    """Conditional effects of every feature that is only on or off, on held-out rows of the same kind and size."""
    numbers = [name for name, kind in recipe.features.schema.items() if kind == pl.Float64]
    is_flag = [recipe.features.get_column(name).drop_nulls().is_in([0.0, 1.0]).all() for name in numbers]
    flags = [name for name, found in zip(numbers, is_flag, strict=True) if found]
    if not flags:
        return pl.DataFrame(schema=EFFECT_SCHEMA)
    ids = recipe.rows.select(pl.col(recipe.scheme.id_column).alias(ROW_ID))
    aligned = heldout.select(ROW_ID).join(
        ids.with_columns(recipe.features.select(flags).get_columns()), on=ROW_ID, maintain_order="left"
    )
    return conditional_effects(
        aligned.select(flags),
        heldout["actual_us"].to_numpy(),
        heldout["curve_us"].to_numpy(),
        heldout.select("size_band", *recipe.scheme.slice_columns),
        predicted_us=heldout["predicted_us"].to_numpy(),
        graphs=heldout[GROUP_ID] if recipe.scheme.has_trials else None,
        importance=importance,
    )


def _unseen_notes(left_out: pl.DataFrame, metrics: Mapping[str, float]) -> list[str]:
    """How wrong a model is that never saw a value, and on the newest rows: what a split by shape does not show."""
    notes = []
    for (column,), part in left_out.group_by("column", maintain_order=True):
        ordered = part.sort("mape_ratio")
        best, worst = ordered.row(0, named=True), ordered.row(-1, named=True)
        notes.append(
            f"left out of training, a {column} is answered with {best['mape_ratio']:.0%} to "
            f"{worst['mape_ratio']:.0%} error (worst: {worst['value']})"
        )
    if "newest_fifth_mape_ratio" in metrics:
        notes.append(
            f"the newest fifth, by a model of the older rows: {metrics['newest_fifth_mape_ratio']:.1%} error"
        )
    return notes


def _flag_notes(effects: pl.DataFrame) -> list[str]:
    """What each flag does where it is on, whatever its importance: a rare flag gains little and matters much."""
    return [
        f"where {row['flag']} is on ({row['on_ratio']:.1%} of the rows) latency over its baseline is "
        f"{row['effect_percent']:+.1f} % ({row['lower_percent']:+.1f} to {row['upper_percent']:+.1f} %); by gain it is "
        f"feature {row['gain_rank']}"
        for row in effects.filter(pl.col("finding").is_in(["slower", "faster"])).iter_rows(named=True)
    ]


def _leave_one_out(recipe: Recipe, rounds: int, coverage_ratio: float) -> pl.DataFrame:
    """For each value of a key column: the error on its rows of a fit that saw all the other values.

    Rows are in the order of a hash, so the first ones are a fair sample.
    """
    scheme = recipe.scheme
    sample = recipe.places(GATE_FOLD)[:LEFT_OUT_ROWS]
    rows = recipe.rows[sample]
    table = []
    for column in scheme.stated_factors:
        values = rows.get_column(column).cast(pl.String)
        counts = values.drop_nulls().value_counts(sort=True).filter(pl.col("count") >= LEFT_OUT_LEAST_ROWS)
        if counts.height < 2:
            continue
        for value in counts.sort(["count", column], descending=[True, False])[column][:LEFT_OUT_VALUES]:
            is_left = (values == value).fill_null(False).to_numpy()
            fit = recipe.fit_rows(sample[~is_left], rounds)
            places = sample[is_left]
            actual, predicted = recipe.latency_us[places], recipe.predict_us(fit, places)
            error = np.abs(actual - predicted)
            table.append(
                {
                    "column": column,
                    "value": value,
                    "row_count": len(places),
                    "rmse_us": float(np.sqrt(np.mean(error**2))),
                    "mape_ratio": float(np.mean(error / actual)),
                    "share_within_promise_ratio": float(
                        np.mean(error <= np.maximum(scheme.promise_us, scheme.promise_ratio * actual))
                    ),
                    "log_error": conformal_quantile(np.abs(np.log(actual / predicted)), coverage_ratio),
                }
            )
    return pl.DataFrame(table, schema=LEFT_OUT_SCHEMA)


def _notes(recipe: Recipe, unusable_count: int, model: LatencyModel) -> tuple[str, ...]:
    scheme, fold = recipe.scheme, recipe.fold
    notes = []
    if unusable_count:
        notes.append(
            f"{unusable_count} {scheme.row_noun} have no positive {scheme.target} or no {scheme.size_name}: not used"
        )
    empty = sorted(set(range(FOLD_COUNT)) - set(fold.tolist()))
    if GATE_FOLD in empty:
        notes.append("the gate's fold holds no shape, so a later version cannot be compared on unseen rows")
    if len(set(empty) - {GATE_FOLD}):
        notes.append(f"few shapes: {len(set(empty) - {GATE_FOLD})} of the other folds hold none")
    if model.is_simulated:
        share = float(np.mean(scheme.is_simulated(recipe.rows).to_numpy()))
        notes.append(f"{share:.0%} of the {scheme.row_noun} are simulated")
    for column, factor in scheme.stated_factors.items():
        is_told = column in scheme.slice_columns and recipe.rows.schema[column] == pl.String
        if is_told and model.intervals.unseen_evidence[column] == "stated":
            notes.append(
                f"one {column} alone: how wrong the model is for another one could not be measured, its "
                f"interval is widened {factor:g}-fold each way"
            )
    if scheme.has_trials:
        notes += hidden_state_notes(recipe.rows, recipe.latency_us)
    return tuple(notes)
