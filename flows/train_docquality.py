"""Documents and labels -> registered doc-quality version -> verdict of the gate."""

from typing import Any

from prefect import flow, task

from tasks import attempts, leases, registration, summary, training, validation
from warpgauge.registry.names import DOC_QUALITY

validate = task(name="validate tables")(validation.validate_tables)
plan = task(name="plan docquality training")(training.plan_training)
train = task(name="train docquality")(training.train_docquality)
register = task(name="register docquality")(registration.register)
gate = task(name="gate docquality")(registration.apply_gate)
add_figures = task(name="add figures")(summary.with_evaluation)


@flow(name="train-docquality")
def train_docquality(
    force: bool = False, reason: str = "asked for by hand", attempt_id: str | None = None
) -> dict[str, Any]:
    """Train, register and judge one doc-quality version, unless these data were already trained on.

    Args:
        force: Train even if a version of these data and settings exists.
        reason: Why, for the version's record.
        attempt_id: Of the monitor's decision that asked for it.
    """
    name = DOC_QUALITY
    with leases.hold(attempts.training_job(name)), attempts.attempt(name, attempt_id) as attempt:
        validate(training.LEARNS_FROM[name])
        planned = plan(name, force)
        if planned["skip"]:
            attempt.end("refused", planned["why"])
            return add_figures(name, planned)
        bundle = train(planned, reason)
        verdict = gate(bundle, register(bundle))
        attempt.end(attempts.OUTCOMES[verdict["outcome"]], "; ".join(verdict["reasons"]))
        return add_figures(name, verdict)
