"""Samples of the GPUs as the monitor and the training read them."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

import polars as pl

from warpgauge.settings import Settings

if TYPE_CHECKING:
    from tasks.storage import Store
    from warpgauge.drift.measurement import Measurement

# Subject of what is said of no GPU in particular.
ALL_GPUS = "all GPUs"


def utilization_rule(settings: Settings) -> dict[str, Any]:
    """Window, limit and least readings of the utilization signal, whatever it is measured from."""
    return {
        "window_hours": settings.monitor_window_hours,
        "limit_percent": settings.monitor_utilization_limit_percent,
        "minimum_samples": settings.monitor_minimum_samples,
        "minimum_coverage_ratio": settings.monitor_minimum_coverage_ratio,
    }


def measure_window(store: Store, settings: Settings, now: datetime) -> list[Measurement]:
    """Utilization of each GPU in the monitor's window before `now`; empty where there is no sample."""
    from warpgauge.drift.utilization import MEASURED_COLUMNS, measure_utilization

    start = now - timedelta(hours=settings.monitor_window_hours)
    return measure_utilization(
        store.read_valid("gpu_samples", where=pl.col("sampled_at") >= start)
        .select(MEASURED_COLUMNS)
        .collect(),
        now=now,
        **utilization_rule(settings),
    )
