"""Documents and labels -> registered doc-quality version -> verdict of the gate."""

from typing import Any

from prefect import flow, task

from tasks import leases, registration, summary, training

plan = task(training.plan_training, name="plan docquality training")
train = task(training.train_docquality, name="train docquality")
register = task(registration.register, name="register docquality")
gate = task(registration.apply_gate, name="gate docquality")
note_skipped = task(registration.note_skipped, name="note skipped training")
add_figures = task(summary.with_evaluation, name="add figures")


@flow(name="train-docquality", on_failure=[registration.note_failed], on_crashed=[registration.note_failed])
def train_docquality(
    force: bool = False, reason: str = "asked for by hand", attempt_id: str | None = None
) -> dict[str, Any]:
    """Train, register and judge one doc-quality version, unless these data were already trained on.

    Args:
        force: Train even if a version of these data and settings exists.
        reason: Why, for the version's record.
        attempt_id: Of the monitor's decision that asked for it.
    """
    with leases.hold(f"train {registration.DOC_QUALITY}"):
        planned = plan(registration.DOC_QUALITY, force)
        if planned["skip"]:
            note_skipped(planned, attempt_id)
            return add_figures(registration.DOC_QUALITY, planned)
        bundle = train(planned, reason)
        verdict = gate(bundle, register(bundle, attempt_id))
        return add_figures(registration.DOC_QUALITY, verdict)
