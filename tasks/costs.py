"""What each training cost and gained: time, energy where NVML counts it, the error before and after."""

from __future__ import annotations

from typing import Any

from tasks import attempts, registration


def retraining_costs() -> dict[str, Any]:
    """What each training cost and gained, and the sum for each model.

    The gain compares the new version with the champion of that time on the same held-out rows, as the gate did:
    `gain_ratio` is 1 - error after / error before, so 0.2 is a fifth less error. A first version has no before.

    Returns:
        `trainings`, newest first within a model, failed ones that the monitor asked for too; `totals` by model.
    """
    trainings = [
        _training(model["model_name"], version)
        for model in registration.list_versions()["models"]
        for version in model["versions"]
    ]
    trainings += [
        {
            "model_name": attempt["model_name"],
            "version": None,
            "outcome": "failed",
            "started_at": attempt["started_at"],
            "wall_s": attempt["wall_s"],
            "reason": attempt["why"],
        }
        for attempt in attempts.list_attempts()
        if attempt["outcome"] == "failed"
    ]
    totals = []
    for name in dict.fromkeys(training["model_name"] for training in trainings):
        mine = [training for training in trainings if training["model_name"] == name]
        joules = [t["gpu_energy_j"] for t in mine if t.get("gpu_energy_j") is not None]
        totals.append(
            {
                "model_name": name,
                "trainings": len(mine),
                "failed": sum(training["outcome"] == "failed" for training in mine),
                "promoted": sum(training["outcome"] == "promote" for training in mine),
                "wall_s": sum(training.get("wall_s") or 0.0 for training in mine),
                "cpu_s": sum(training.get("cpu_s") or 0.0 for training in mine),
                "gpu_energy_j": sum(joules) if joules else None,
            }
        )
    return {"trainings": trainings, "totals": totals}


def _training(model_name: str, version: dict[str, Any]) -> dict[str, Any]:
    cost, gain = version["cost"], version["gain"]
    before, after = gain.get("error_before"), gain.get("error_after")
    return {
        "model_name": model_name,
        "version": version["version"],
        "outcome": version["gate"],
        "started_at": version["created_at"],
        **{
            name: cost.get(name)
            for name in ("wall_s", "cpu_s", "gpu_energy_j", "no_energy_because", "reason")
        },
        "metric": gain.get("metric"),
        "error_before": before,
        "error_after": after,
        "gain_ratio": 1 - after / before if before and after is not None else None,
    }
