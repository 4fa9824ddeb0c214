"""Launches table -> registered launch-latency version -> verdict of the gate."""

from typing import Any

from prefect import flow, task

from tasks import leases, registration, summary, training

plan = task(name="plan latency training")(training.plan_training)
train = task(name="train latency")(training.train_latency)
register = task(name="register latency")(registration.register)
gate = task(name="gate latency")(registration.apply_gate)
note_skipped = task(name="note skipped training")(registration.note_skipped)
add_figures = task(name="add figures")(summary.with_evaluation)


@flow(name="train-latency", on_failure=[registration.note_failed], on_crashed=[registration.note_failed])
def train_latency(
    allow_simulated: bool = False,
    force: bool = False,
    reason: str = "asked for by hand",
    attempt_id: str | None = None,
) -> dict[str, Any]:
    """Train, register and judge one launch-latency version, unless these data were already trained on.

    Args:
        allow_simulated: A version trained on simulated launches may become champion.
        force: Train even if a version of these data and settings exists.
        reason: Why, for the version's record.
        attempt_id: Of the monitor's decision that asked for it.
    """
    with leases.hold(f"train {registration.LAUNCH_LATENCY}"):
        planned = plan(registration.LAUNCH_LATENCY, force)
        if planned["skip"]:
            note_skipped(planned, attempt_id)
            return add_figures(registration.LAUNCH_LATENCY, planned)
        bundle = train(planned, reason)
        verdict = gate(bundle, register(bundle, attempt_id), allow_simulated)
        return add_figures(registration.LAUNCH_LATENCY, verdict)
