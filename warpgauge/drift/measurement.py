"""What was measured, on how much, and how sure: or why there is no number.

A comparison with NaN is False, so a monitor that compares bare numbers reads a broken measurement as "no
drift". Here a measurement either carries a finite number or says, by a named cause, that it cannot say.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, get_args

from warpgauge import tables
from warpgauge.errors import WindowError

Cause = Literal[
    "too few",
    "low coverage",
    "degenerate",
    "encoder changed",
    "no champion",
    "no samples",
    "stale",
    "not applicable",
    "unavailable",
]
CAUSES: tuple[str, ...] = get_args(Cause)
# Of what is kept with each decision: 288 rounds a day of some signals.
SLICES_KEPT = 20
DETAILS_LENGTH = 6000


@dataclass(frozen=True)
class Measurement:
    """One signal on one subject over one window; the columns of `tables.DECISIONS` that speak of the number.

    Attributes:
        signal: One of `tables.SIGNALS`.
        subject: GPU (UUID), model or table that was measured.
        status: `measured`, or `cannot_say`, which is neither "no drift" nor "drift".
        value: The statistic, finite; None when it cannot say.
        lower, upper: Ends of its interval where there is one.
        limit: Strictly above it the signal is tripped; None where the signal only informs.
        sample_count: Observations behind the value, or those found where they were too few.
        reason: A sentence; when it cannot say it starts with the cause, for example `too few: 3 of 50 ...`.
        details: JSON-ready figures beside the value.
        measured_at: End of the window that was measured, with time zone; None is the time of the decision.

    Raises:
        WindowError: On a measured NaN or infinity, a `cannot_say` with a value or without a named cause, an
            unknown signal, a negative count, or details that are not finite JSON.
    """

    signal: str
    subject: str
    status: Literal["measured", "cannot_say"]
    value: float | None
    lower: float | None
    upper: float | None
    limit: float | None
    sample_count: int
    reason: str
    details: dict[str, Any] = field(default_factory=dict)
    measured_at: datetime | None = None

    def __post_init__(self) -> None:
        name = f"measurement {self.signal} of {self.subject}"
        if self.signal not in tables.SIGNALS:
            raise WindowError(f"{name}: unknown signal; known ones: {', '.join(tables.SIGNALS)}")
        if not self.subject or not self.reason:
            raise WindowError(f"{name}: needs a subject, for example a GPU's UUID, and a reason")
        if self.sample_count < 0:
            raise WindowError(f"{name}: sample_count is {self.sample_count}, a count is at least 0")
        if self.status not in ("measured", "cannot_say"):
            raise WindowError(f"{name}: status is {self.status!r}, one of measured, cannot_say")
        if self.measured_at is not None and self.measured_at.tzinfo is None:
            raise WindowError(f"{name}: measured_at {self.measured_at} has no time zone")
        self._refuse_unfit_numbers(name)
        if self.status == "cannot_say" and self.cause is None:
            raise WindowError(
                f"{name}: reason {self.reason!r} names no cause; it starts with one of {', '.join(CAUSES)}"
            )
        try:
            json.dumps(self.details, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise WindowError(f"{name}: details are not finite JSON: {error}") from error

    def _refuse_unfit_numbers(self, name: str) -> None:
        for part in ("value", "lower", "upper", "limit"):
            number = getattr(self, part)
            if number is not None and not math.isfinite(number):
                raise WindowError(
                    f"{name}: {part} is {number}, which compares as 'fine' with every limit; "
                    "use Measurement.cannot_say with its cause"
                )
        if self.status == "measured" and self.value is None:
            raise WindowError(f"{name}: status measured without a value; use Measurement.cannot_say")
        if self.status == "cannot_say" and any(
            part is not None for part in (self.value, self.lower, self.upper)
        ):
            raise WindowError(f"{name}: status cannot_say with a value; a number is either measured or null")

    @classmethod
    def measured(
        cls,
        signal: str,
        subject: str,
        value: float,
        *,
        limit: float | None,
        sample_count: int,
        reason: str,
        lower: float | None = None,
        upper: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Measurement:
        """A measurement that has a number; raises `WindowError` where the number is not finite."""
        return cls(
            signal,
            subject,
            "measured",
            float(value),
            None if lower is None else float(lower),
            None if upper is None else float(upper),
            None if limit is None else float(limit),
            int(sample_count),
            reason,
            dict(details or {}),
        )

    @classmethod
    def cannot_say(
        cls,
        signal: str,
        subject: str,
        cause: Cause,
        explanation: str,
        *,
        sample_count: int = 0,
        limit: float | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> Measurement:
        """A measurement without a number, and the named cause."""
        return cls(
            signal,
            subject,
            "cannot_say",
            None,
            None,
            None,
            limit,
            int(sample_count),
            f"{cause}: {explanation}",
            dict(details or {}),
        )

    def details_json(self) -> str | None:
        """The details as kept in `tables.DECISIONS`, bounded; None where there are none.

        Of many slices the first, which is all rows, and those nearest their limits stay; their reasons go, and of the
        rest the largest, until it fits.
        """
        kept = dict(self.details)
        slices = kept.get("slices")
        if isinstance(slices, list) and all(isinstance(one, dict) for one in slices):
            nearest = sorted(slices[1:], key=_nearness, reverse=True)[: SLICES_KEPT - 1]
            kept["slices"] = [
                {name: value for name, value in one.items() if name != "reason"}
                for one in [*slices[:1], *nearest]
            ]
        while kept and len(text := json.dumps(kept, separators=(",", ":"))) > DETAILS_LENGTH:
            largest = max(kept, key=lambda name: len(json.dumps(kept[name])))
            if isinstance(kept[largest], list) and len(kept[largest]) > 1:
                kept[largest] = kept[largest][: len(kept[largest]) // 2]
            else:
                del kept[largest]
        return text if kept else None

    @property
    def is_tripped(self) -> bool:
        """Measured and strictly above its limit; what cannot be said never trips."""
        return self.value is not None and self.limit is not None and self.value > self.limit

    @property
    def cause(self) -> str | None:
        """Why it cannot say; None for a measured value."""
        if self.status == "measured":
            return None
        return next((cause for cause in CAUSES if self.reason.startswith(f"{cause}:")), None)


def _nearness(one: Mapping[str, Any]) -> tuple[float, bool]:
    """How near a slice is to its limit; those without a number come last, never-seen ones first among them."""
    value, limit = one.get("value"), one.get("limit")
    ratio = -math.inf
    if isinstance(value, int | float) and isinstance(limit, int | float) and limit > 0:
        ratio = value / limit
    return ratio, bool(one.get("is_never_seen"))
