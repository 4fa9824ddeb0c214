"""The search for settings of the trees: trials that outlive the process, each a run in MLflow.

The same data, settings and seed give the same trials, also where a search was killed and goes on: each trial's
sampler is seeded by its place, and what a killed process left half-done is tried again.
"""

from __future__ import annotations

import hashlib
import json
import logging
from functools import partial
from typing import TYPE_CHECKING, Any

import polars as pl

from tasks.storage import cache_dir
from tasks.tracking import connect, experiment_id, store_errors
from warpgauge.errors import ServiceUnavailableError
from warpgauge.latency.fitting import Boosting
from warpgauge.latency.scheme import RowScheme
from warpgauge.latency.search import first_guess, fold_metrics, suggested

if TYPE_CHECKING:
    from optuna import Study, Trial
    from optuna.trial import FrozenTrial

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
    name = _study_name(scheme, rows, {**about, "seed": seed, "default": vars(default)})
    place = cache_dir("searches") / f"{name}.db"
    log = partial(_log_trial, about["model_name"], name, scheme.gate_metric)
    try:
        study = optuna.create_study(
            storage=f"sqlite:///{place}",
            study_name=name,
            load_if_exists=True,
            pruner=optuna.pruners.MedianPruner(n_startup_trials=UNPRUNED_TRIALS),
        )
        for left in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            study.tell(left.number, state=TrialState.FAIL)
        if ended := _ended(study):
            # A process that was killed just after its trial ended did not log it.
            log(len(ended) - 1, _tried(default, len(ended) - 1, ended[-1]), ended[-1])
        while (done := len(_ended(study))) < trial_count:
            study.sampler = optuna.samplers.TPESampler(seed=seed + done, n_startup_trials=UNPRUNED_TRIALS)
            if done == 0 and not study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
                study.enqueue_trial(first_guess(default, scheme, rows.height))
            trial = study.ask()
            suggested(trial, default)
            boosting = _tried(default, done, trial)
            value, state = 0.0, TrialState.COMPLETE
            for step, value in enumerate(fold_metrics(scheme, rows, boosting, seed=seed, **options)):
                trial.report(value, step)
                if trial.should_prune():
                    state = TrialState.PRUNED
                    break
            log(done, boosting, study.tell(trial, None if state is TrialState.PRUNED else value, state=state))
            LOGGER.info(
                "trial %d of %d: %s %.4g%s",
                done + 1,
                trial_count,
                scheme.gate_metric,
                value,
                ", given up" if state is TrialState.PRUNED else "",
            )
        finished = _ended(study)[:trial_count]
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError, OSError) as error:
        said = " ".join(str(error.__cause__ or error).split())
        raise ServiceUnavailableError(
            f"{place}: the trials of the search cannot be kept: {said}; free the disk, or train with --trials 0"
        ) from error
    complete = [trial for trial in finished if trial.state is TrialState.COMPLETE]
    best = min(complete, key=lambda trial: (trial.value, trial.number))
    return _tried(default, finished.index(best), best), {
        "study": name,
        "trial_count": len(finished),
        "pruned_count": len(finished) - len(complete),
        "metric": scheme.gate_metric,
        "default_value": complete[0].value,
        "best_value": best.value,
        "best_trial": finished.index(best),
    }


def _study_name(scheme: RowScheme, rows: pl.DataFrame, about: dict[str, Any]) -> str:
    """One name for one search: the same rows, however they were chosen, and the same settings."""
    ids = rows.get_column(scheme.id_column).sort().to_list()
    taught = hashlib.sha256("\n".join(ids).encode()).hexdigest()
    key = json.dumps({**about, "rows": taught}, sort_keys=True, default=str)
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _tried(default: Boosting, number: int, trial: Trial | FrozenTrial) -> Boosting:
    """The settings of a trial; the first is the settings in use themselves, even where no search would go so far."""
    return default.changed(trial.params) if number else default


def _ended(study: Study) -> list[FrozenTrial]:
    """Trials that ended by themselves, in their order; a killed process's count as never begun."""
    from optuna.trial import TrialState

    return study.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.PRUNED))


@store_errors("; the trial was not logged")
def _log_trial(
    model_name: str, study: str, metric: str, number: int, boosting: Boosting, trial: FrozenTrial
) -> None:
    """Keep an ended trial as a run, once: what a killed process left of its run is completed."""
    from mlflow.entities import Param

    client = connect()
    experiment = experiment_id(client)
    which = {"role": "trial", "study": study, "trial": str(number)}
    wanted = " and ".join(f"tags.{key} = '{value}'" for key, value in which.items())
    found = client.search_runs([experiment], wanted, max_results=1)
    if found and found[0].info.status == "FINISHED":
        return
    tags = {**which, "model_name": model_name, "state": trial.state.name.lower()}
    run = (
        found[0]
        if found
        else client.create_run(experiment, run_name=f"{model_name} trial {number}", tags=tags)
    )
    params = [Param(key, str(setting)) for key, setting in vars(boosting).items()]
    client.log_batch(run.info.run_id, params=params)
    # A trial that was given up has no value of its own: the folds so far say what it was worth.
    client.log_metric(run.info.run_id, metric, trial.intermediate_values[max(trial.intermediate_values)])
    client.set_terminated(run.info.run_id)
