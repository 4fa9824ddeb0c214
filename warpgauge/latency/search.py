"""Which settings of the trees suit some rows: what may be chosen, and what one choice is worth.

A trial is judged fold by fold on rows that its fits had not seen, the gate's fold never among them, and may be
given up after each fold. The search itself, which remembers trials, is an effect: `tasks/search.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from warpgauge.latency.evaluation import losses, metric_value
from warpgauge.latency.fitting import Boosting, make_recipe
from warpgauge.latency.folds import GATE_FOLD
from warpgauge.latency.scheme import RowScheme

if TYPE_CHECKING:
    from optuna import Trial

MAX_BINS = (63, 127, 255)


def suggested(trial: Trial, default: Boosting) -> Boosting:
    """The settings that a trial asks for; what is not searched stays as it is."""
    return default.changed(
        {
            "leaves": trial.suggest_int("leaves", 7, 127, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 0.02, 0.3, log=True),
            "min_data_in_leaf": trial.suggest_int("min_data_in_leaf", 5, 400, log=True),
            "lambda_l2": trial.suggest_float("lambda_l2", 0.1, 50.0, log=True),
            "feature_fraction": trial.suggest_float("feature_fraction", 0.5, 1.0),
            "max_bin": trial.suggest_categorical("max_bin", MAX_BINS),
        }
    )


def first_guess(default: Boosting, scheme: RowScheme, row_count: int) -> dict[str, Any]:
    """The settings in use as a trial's values, so that the search starts from what it must beat."""
    least = default.min_data_in_leaf or scheme.least_leaf_rows(row_count)
    return {
        "leaves": int(np.clip(default.leaves, 7, 127)),
        "learning_rate": float(np.clip(default.learning_rate, 0.02, 0.3)),
        "min_data_in_leaf": int(np.clip(least, 5, 400)),
        "lambda_l2": float(np.clip(default.lambda_l2, 0.1, 50.0)),
        "feature_fraction": float(np.clip(default.feature_fraction, 0.5, 1.0)),
        "max_bin": min(MAX_BINS, key=lambda bins: abs(bins - default.max_bin)),
    }


def fold_metrics(
    scheme: RowScheme, rows: pl.DataFrame, boosting: Boosting, **options: Any
) -> Iterator[float]:
    """The gate's metric on the training folds so far, after each of them; the last one is the trial's value.

    Args:
        scheme: How the rows are read.
        rows: Rows with a label.
        boosting: Settings under trial.
        options: As `make_recipe` takes them.

    Raises:
        TrainingError: If the rows have too few shapes.
    """
    recipe, _ = make_recipe(scheme, rows, boosting, **options)
    found: list[Any] = []
    for number in recipe.training_folds:
        places = np.flatnonzero(recipe.fold == number)
        predicted = recipe.predict_us(recipe.fit_once(GATE_FOLD, number), places)
        found.append(losses(scheme.gate_metric, recipe.latency_us[places], predicted))
        yield metric_value(scheme.gate_metric, np.concatenate(found)) or 0.0
