"""What each tripped signal asks for, and how patient the monitor is."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from warpgauge.errors import SettingsError
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY


@dataclass(frozen=True)
class Rule:
    """What a tripped signal asks for.

    Attributes:
        model_name: The model it concerns; None for signals of data, and for residuals, whose subject is the model.
        first: What is done once an episode.
        also_review: Documents go to the human queue beside the retraining.
        is_relative: Measured against the champion's own reference, which a promotion renews.
        priority: Smaller comes first where several signals ask for the same model at once.
    """

    model_name: str | None
    first: Literal["retrain", "review", "alert"]
    also_review: bool = False
    is_relative: bool = False
    priority: int = 9


RULES: Mapping[str, Rule] = {
    "residuals": Rule(None, "retrain", is_relative=True, priority=1),
    "utilization_p95": Rule(LAUNCH_LATENCY, "retrain", priority=2),
    "embedding_shift": Rule(DOC_QUALITY, "retrain", also_review=True, is_relative=True, priority=1),
    "embedding_mean": Rule(DOC_QUALITY, "retrain", also_review=True, is_relative=True, priority=2),
    "embedding_variance": Rule(DOC_QUALITY, "retrain", also_review=True, is_relative=True, priority=3),
    "label_shift": Rule(DOC_QUALITY, "review"),
    "data_quality": Rule(None, "alert"),
}


def model_of(signal: str, subject: str) -> str | None:
    """The model that a signal concerns; None for signals of data."""
    return subject if signal == "residuals" else RULES[signal].model_name


@dataclass(frozen=True)
class Policy:
    """How patient the monitor is; there is no reminder: an open episode is not acted on twice.

    Attributes:
        for_minutes: How long a signal stays tripped before its episode opens.
        rearm_minutes: How long it stays quiet before its episode closes.
        cooldown_minutes: Least time between two retrainings of one model.
        daily_budget: Most retrainings of one model in any 24 hours.
        failure_limit: Failed attempts of one episode before a person is asked.
        lease_minutes: An attempt that nobody has seen for this long after its decision never started.
        gap_minutes: Two readings further apart than this say nothing of the time between: the clocks of `for` and
            re-arm gain at most so much from one reading to the next.
        future_minutes: A measurement stamped later than this after now is a wrong clock's.
        blind_minutes: How long a signal that should say something may be unable to before a person hears of it.

    Raises:
        SettingsError: If a duration is negative or not finite, or a count out of range.
    """

    for_minutes: float = 0.0
    rearm_minutes: float = 30.0
    cooldown_minutes: float = 60.0
    daily_budget: int = 4
    failure_limit: int = 3
    lease_minutes: float = 30.0
    gap_minutes: float = 90.0
    future_minutes: float = 5.0
    blind_minutes: float = 60.0

    def __post_init__(self) -> None:
        for name in vars(self):
            if not name.endswith("_minutes"):
                continue
            minutes = getattr(self, name)
            if not (math.isfinite(minutes) and minutes >= 0):
                raise SettingsError(f"monitor policy: {name} is {minutes}; needs 0 or more")
        if self.daily_budget < 0 or self.failure_limit < 1:
            raise SettingsError(
                f"monitor policy: daily_budget is {self.daily_budget} (at least 0), "
                f"failure_limit {self.failure_limit} (at least 1)"
            )
