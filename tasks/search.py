"""The search for settings of the trees: trials that outlive the process, each a run in MLflow.

The same data, settings and seed give the same trials, also where a search was killed and goes on: each trial's
sampler is seeded by its place, and what a killed process left half-done is tried again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from typing import Any

import polars as pl

from tasks.storage import cache_dir
from tasks.tracking import connect, experiment_id, store_errors
from warpgauge.errors import ServiceUnavailableError
from warpgauge.latency.fitting import Boosting
from warpgauge.latency.scheme import RowScheme
from warpgauge.latency.search import first_guess, fold_metrics, suggested

LOGGER = logging.getLogger("warpgauge")
# Trials before pruning starts: a median of fewer says little.
UNPRUNED_TRIALS = 5


def search_boosting(
    scheme: RowScheme,
    rows: pl.DataFrame,
    default: Boosting,
    trial_count: int,
    *,
    about: dict[str, Any],
    seed: int,
    **options: Any,
) -> tuple[Boosting, dict[str, Any]]:
    """The best settings of that many trials; the settings in use are the first of them.

    Args:
        scheme: How the rows are read.
        rows: Rows with a label.
        default: Settings in use.
        trial_count: Trials in all, those of an earlier process of the same search among them.
        about: What tells this search from others: model, data versions, settings.
        seed: Of everything random.
        options: `device` and `threads`, as `make_recipe` takes them.

    Returns:
        The settings, and about the search: `trial_count`, `pruned_count`, `metric`, `default_value`, `best_value`,
        `best_trial`, `study`.

    Raises:
        ServiceUnavailableError: If trials cannot be kept.
    """
    import optuna
    from optuna.trial import TrialState
    from sqlalchemy.exc import SQLAlchemyError

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    key = json.dumps({**about, "seed": seed, "default": vars(default)}, sort_keys=True, default=str)
    name = hashlib.sha256(key.encode()).hexdigest()[:16]
    place = cache_dir("searches") / f"{name}.db"
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{place}",
            study_name=name,
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED_TRIALS),
        )
        for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(left.number, state=TrialState.FAIL)
        while (done := _done(study)) < trial_count:
            study.sampler = optuna.samplers.TPESampler(seed=seed + done, n_startup_trials=UNPRUNED_TRIALS)
            if done == 0:
                study.enqueue_trial(first_guess(default, scheme, rows.height), skip_if_exists=True)
            trial = study.ask()
            boosting = suggested(trial, default)
            value, state = 0.0, TrialState.COMPLETE
            for step, value in enumerate(fold_metrics(scheme, rows, boosting, seed=seed, **options)):
                trial.report(value, step)
                if trial.should_prune():
                    state = TrialState.PRUNED
                    break
            study.tell(trial, None if state is TrialState.PRUNED else value, state=state)
            _log_trial(about["model_name"], name, done, boosting, scheme.gate_metric, value, state.name)
            LOGGER.info(
                "trial %d of %d: %s %.4g%s",
                done + 1,
                trial_count,
                scheme.gate_metric,
                value,
                ", given up" if state is TrialState.PRUNED else "",
            )
    except (SQLAlchemyError, OSError) as error:
        raise ServiceUnavailableError(
            f"{place}: the trials of the search cannot be kept: {error}; free the disk, or train with --trials 0"
        ) from error
    finished = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))
    complete = [trial for trial in finished if trial.state is TrialState.COMPLETE]
    best = min(complete, key=lambda trial: (trial.value, trial.number))
    return default.changed(best.params), {
        "study": name,
        "trial_count": len(finished),
        "pruned_count": len(finished) - len(complete),
        "metric": scheme.gate_metric,
        "default_value": complete[0].value,
        "best_value": best.value,
        "best_trial": finished.index(best),
    }


def _done(study: Any) -> int:
    """Trials that ended by themselves; a killed process's count as never begun."""
    from optuna.trial import TrialState

    return len(study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED)))


@store_errors("; the trial was not logged")
def _log_trial(
    model_name: str, study: str, number: int, boosting: Boosting, metric: str, value: float, state: str
) -> None:
    from mlflow.entities import Param

    client = connect()
    tags = {"role": "trial", "model_name": model_name, "study": study, "state": state.lower()}
    run = client.create_run(experiment_id(client), run_name=f"{model_name} trial {number}", tags=tags)
    params = [Param(key, str(setting)) for key, setting in vars(boosting).items()]
    client.log_batch(run.info.run_id, params=params)
    client.log_metric(run.info.run_id, metric, value)
    client.set_terminated(run.info.run_id)
