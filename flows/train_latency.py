"""Launches table, or the table of a spec -> registered latency version -> verdict of the gate."""

from typing import Any

from prefect import flow, task

from tasks import attempts, collection, leases, registration, summary, training, validation

collect = task(name="collect table")(collection.collect_table)
validate = task(name="validate tables")(validation.validate_tables)
plan = task(name="plan latency training")(training.plan_training)
train = task(name="train latency")(training.train_latency)
register = task(name="register latency")(registration.register)
gate = task(name="gate latency")(registration.apply_gate)
add_figures = task(name="add figures")(summary.with_evaluation)


@flow(name="train-latency")
def train_latency(
    allow_simulated: bool = False,
    force: bool = False,
    reason: str = "asked for by hand",
    attempt_id: str | None = None,
    table: str | None = None,
    folder: str | None = None,
    trials: int | None = None,
    model_name: str | None = None,
) -> dict[str, Any]:
    """Train, register and judge one latency version, unless these data were already trained on.

    Args:
        allow_simulated: A version trained on simulated launches may become champion.
        force: Train even if a version of these data and settings exists.
        reason: Why, for the version's record.
        attempt_id: Of the monitor's decision that asked for it.
        table: Spec file of the latency table to learn from; empty for the launches table.
        folder: Where the files of the spec lie; empty for the spec's own folder.
        trials: Settings of the trees to search first; None is the setting `latency_trials`.
        model_name: Model that the monitor asked for; empty for the one that the spec describes.
    """
    name = model_name or training.model_named(table, folder)
    with leases.hold(attempts.training_job(name)), attempts.attempt(name, attempt_id) as attempt:
        tables = training.learns_from(name, table, folder)
        collected = collect(table, folder) if table else None
        validate(tables)
        planned = plan(name, force, allow_simulated, table, folder, trials)
        if planned["skip"]:
            attempt.end("refused", planned["why"])
            return add_figures(name, planned, collected)
        bundle = train(planned, reason)
        verdict = gate(bundle, register(bundle), allow_simulated)
        attempt.end(attempts.OUTCOMES[verdict["outcome"]], "; ".join(verdict["reasons"]))
        return add_figures(name, verdict, collected)
