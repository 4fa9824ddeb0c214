"""How busy was each GPU: the 95th percentile of its utilization over the window.

Blank sentinels and impossible percentages are null in `gpu_samples`, with their reason; here they are
counted, and a GPU whose readings are mostly such is "cannot say", never idle and never hot. Readings of
neighbouring seconds are alike, so the interval, which takes them as independent, is the narrowest honest one.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Mapping
from datetime import datetime, timedelta
from statistics import NormalDist

import numpy as np
import polars as pl

from warpgauge import tables
from warpgauge.drift.measurement import Cause, Measurement
from warpgauge.errors import SchemaError, WindowError

SIGNAL = "utilization_p95"
PERCENTILE = 95.0
INTERVAL_RATIO = 0.95
# No GPU is busy for more than all of the time: the end of the interval where no reading is above it.
HIGHEST_PERCENT = 100.0
# Prometheus itself takes a series for ended after five minutes without a scrape.
STALE_S = 300.0
NEEDED_COLUMNS = ("gpu_uuid", "sampled_at", "utilization_percent")
MEASURED_COLUMNS = (*NEEDED_COLUMNS, "null_reasons")


def measure_utilization(
    samples: pl.DataFrame,
    *,
    now: datetime,
    window_hours: float,
    limit_percent: float,
    minimum_samples: int,
    minimum_coverage_ratio: float,
    expected_step_s: float | None = None,
) -> list[Measurement]:
    """The 95th percentile of utilization of each GPU (by UUID) in the window that ends now.

    Args:
        samples: Rows of `tables.GPU_SAMPLES`; at least gpu_uuid, sampled_at (with time zone) and
            utilization_percent; null_reasons tells refused readings from absent ones.
        now: End of the window, with time zone; later readings (a clock ahead) are left out and counted.
        window_hours: Length of the window.
        limit_percent: Strictly above it the signal is tripped, 0 to 100.
        minimum_samples: Fewest valid readings for a 95th percentile.
        minimum_coverage_ratio: Least share of valid readings among all, 0 to 1.
        expected_step_s: Where the source reads at a fixed step, slots without a row count as missing too.

    Returns:
        One measurement a GPU, sorted by UUID, in percent; empty for a table without rows. Two readings of
        one time count once, the first valid one.

    Raises:
        SchemaError: If a needed column is absent or of the wrong type.
        WindowError: If now has no time zone or the window no length.
    """
    _refuse_bad_arguments(samples, now, window_hours, expected_step_s)
    start = now - timedelta(hours=window_hours)
    frame = samples.select(
        pl.col("gpu_uuid").cast(pl.String),
        pl.col("sampled_at").cast(tables.TIME),
        pl.col("utilization_percent").cast(pl.Float64),
        (pl.col("null_reasons") if "null_reasons" in samples.columns else pl.lit(None, pl.String)).alias(
            "null_reasons"
        ),
    )
    nameless_count = frame.filter(pl.col("gpu_uuid").is_null() | pl.col("sampled_at").is_null()).height
    if nameless_count:
        raise SchemaError(
            f"gpu_samples: {nameless_count} rows have no gpu_uuid or no sampled_at; validate the table first"
        )
    value = pl.col("utilization_percent")
    frame = frame.with_columns(
        (value.is_not_null() & value.is_finite() & value.is_between(0.0, HIGHEST_PERCENT)).alias("valid")
    )
    # Once apart, not filtered for each GPU: a day of readings is a million rows.
    by_gpu = {str(uuid): rows for (uuid,), rows in frame.partition_by("gpu_uuid", as_dict=True).items()}
    return [
        _measure_gpu(
            uuid,
            by_gpu[uuid],
            start,
            now,
            limit_percent,
            minimum_samples,
            minimum_coverage_ratio,
            expected_step_s,
        )
        for uuid in sorted(by_gpu)
    ]


def interval_quantiles(count: int) -> dict[str, float]:
    """The quantiles to ask a server for: p95, and the ends of its interval by the normal form of the binomial ranks.

    Args:
        count: Readings in the window, at least 1.
    """
    half = NormalDist().inv_cdf((1 + INTERVAL_RATIO) / 2) * math.sqrt(0.95 * 0.05 / count)
    return {"p95": 0.95, "lower": max(0.0, 0.95 - half), "upper": min(1.0, 0.95 + half)}


def measure_quantiles(
    uuid: str,
    percent: Mapping[str, float],
    *,
    count: int,
    newest_s: float | None,
    now: datetime,
    window_hours: float,
    limit_percent: float,
    minimum_samples: int,
    minimum_coverage_ratio: float,
    scrape_s: float,
    source: str,
) -> Measurement | None:
    """The same measurement from quantiles that a server computed; None where its readings must be looked at one by one.

    Args:
        uuid: The GPU.
        percent: `p95`, `lower`, `upper`, `sum`, `smallest`, `largest` in percent; absent where the server gave none.
        count: Readings in the window.
        newest_s: Unix time of the newest reading; None where the series has ended.
        now: End of the window.
        window_hours, limit_percent, minimum_samples, minimum_coverage_ratio: As `measure_utilization`.
        scrape_s: How often a reading is expected.
        source: Where it comes from, for the details.
    """
    expected = max(1, math.floor(window_hours * 3600 / scrape_s))
    coverage_ratio = min(1.0, count / expected)
    details = {
        "source": source,
        "valid_count": count,
        "coverage_ratio": round(coverage_ratio, 6),
        "smallest_percent": percent.get("smallest"),
        "largest_percent": percent.get("largest"),
    }
    details = {
        name: value for name, value in details.items() if not isinstance(value, float) or math.isfinite(value)
    }

    def silent(cause: Cause, explanation: str) -> Measurement:
        return Measurement.cannot_say(
            SIGNAL, uuid, cause, explanation, sample_count=count, limit=limit_percent, details=details
        )

    if count == 0:
        return silent("no samples", f"no reading in the window ({source})")
    if newest_s is None or now.timestamp() - newest_s > max(STALE_S, 4 * scrape_s):
        return silent("stale", f"the series has ended: no reading of late ({source}); is the exporter up?")
    needed = ("p95", "lower", "upper", "sum", "smallest", "largest")
    is_clean = (
        all(math.isfinite(percent.get(name, math.nan)) for name in needed)
        and percent["smallest"] >= 0
        and percent["largest"] <= HIGHEST_PERCENT
    )
    if not is_clean:
        return None
    if count < minimum_samples:
        return silent(
            "too few", f"{count} readings, a 95th percentile needs {minimum_samples}; widen the window"
        )
    if coverage_ratio < minimum_coverage_ratio:
        return silent(
            "low coverage",
            f"{coverage_ratio:.1%} of the readings of one each {scrape_s:g} s are there, {minimum_coverage_ratio:.1%} are "
            "needed",
        )
    p95 = percent["p95"]
    return Measurement.measured(
        SIGNAL,
        uuid,
        p95,
        lower=min(percent["lower"], p95),
        upper=max(percent["upper"], p95),
        limit=limit_percent,
        sample_count=count,
        reason=f"p95 {p95:.1f} % of {count} readings against {limit_percent:g} % ({source})",
        details=details,
    )


def _refuse_bad_arguments(
    samples: pl.DataFrame, now: datetime, window_hours: float, expected_step_s: float | None
) -> None:
    missing = [name for name in NEEDED_COLUMNS if name not in samples.columns]
    if missing:
        raise SchemaError(
            f"gpu_samples: column {', '.join(missing)} is absent; it has {', '.join(samples.columns)}"
        )
    if samples.height and not isinstance(samples.schema["sampled_at"], pl.Datetime):
        raise SchemaError(
            f"gpu_samples: sampled_at is {samples.schema['sampled_at']}, needs a time with zone"
        )
    utilization = samples["utilization_percent"]
    if not utilization.dtype.is_numeric() and utilization.null_count() < samples.height:
        raise SchemaError(f"gpu_samples: utilization_percent is {utilization.dtype}, needs numbers")
    if now.tzinfo is None:
        raise WindowError(f"now is {now.isoformat()} without a time zone; give it one, for example UTC")
    if not (math.isfinite(window_hours) and window_hours > 0):
        raise WindowError(f"the window is {window_hours} hours long; it needs a positive length")
    if expected_step_s is not None and not expected_step_s > 0:
        raise WindowError(f"the expected step is {expected_step_s} s; it needs to be positive")


def _measure_gpu(
    uuid: str,
    rows: pl.DataFrame,
    start: datetime,
    now: datetime,
    limit_percent: float,
    minimum_samples: int,
    minimum_coverage_ratio: float,
    expected_step_s: float | None,
) -> Measurement:
    future_count = rows.filter(pl.col("sampled_at") > now).height
    inside = rows.filter(pl.col("sampled_at").is_between(start, now))
    unique = inside
    if not (np.diff(inside["sampled_at"].to_physical().to_numpy()) > 0).all():
        # A valid reading comes before a null one of the same time; then the first row wins.
        unique = inside.sort(["sampled_at", "valid"], descending=[False, True], maintain_order=True).unique(
            "sampled_at", keep="first", maintain_order=True
        )
    valid = unique.filter("valid")
    reasons = _null_reasons(unique)
    rejected_count = sum(reasons.values())
    gaps_s = np.diff(valid["sampled_at"].dt.timestamp("us").to_numpy()) / 1e6
    slot_count = unique.height
    if expected_step_s is not None:
        slot_count = max(slot_count, math.floor((now - start).total_seconds() / expected_step_s))
    missing_count = slot_count - valid.height - rejected_count
    coverage_ratio = valid.height / slot_count if slot_count else 0.0
    details = {
        "valid_count": valid.height,
        "rejected_count": rejected_count,
        "missing_count": missing_count,
        "rejected_ratio": round(rejected_count / slot_count, 6) if slot_count else None,
        "null_reasons": dict(reasons),
        "duplicate_count": inside.height - unique.height,
        "future_count": future_count,
        "coverage_ratio": round(coverage_ratio, 6),
        "longest_gap_s": float(gaps_s.max()) if gaps_s.size else None,
        "window_start": start.isoformat(),
        "window_end": now.isoformat(),
    }
    counts = f"{valid.height} valid, {rejected_count} rejected, {missing_count} missing"
    if not inside.height:
        newest = rows["sampled_at"].max()
        where = "after the window's end: check the clock" if future_count else "before the window"
        return Measurement.cannot_say(
            SIGNAL,
            uuid,
            "stale",
            f"no reading in the window of {(now - start).total_seconds() / 3600:g} hours; "
            f"the newest is of {newest!s}, {where}",
            limit=limit_percent,
            details=details,
        )
    if not valid.height:
        return Measurement.cannot_say(
            SIGNAL,
            uuid,
            "no samples",
            f"no valid data ({counts}): neither idle nor busy is known",
            limit=limit_percent,
            details=details,
        )
    if valid.height < minimum_samples:
        return Measurement.cannot_say(
            SIGNAL,
            uuid,
            "too few",
            f"{valid.height} valid readings ({counts}), a 95th percentile needs {minimum_samples}; "
            "widen the window or sample more often",
            sample_count=valid.height,
            limit=limit_percent,
            details=details,
        )
    if coverage_ratio < minimum_coverage_ratio:
        return Measurement.cannot_say(
            SIGNAL,
            uuid,
            "low coverage",
            f"{coverage_ratio:.1%} of the readings are valid ({counts}), {minimum_coverage_ratio:.1%} are needed",
            sample_count=valid.height,
            limit=limit_percent,
            details=details,
        )
    values = np.sort(valid["utilization_percent"].to_numpy())
    p95 = float(np.percentile(values, PERCENTILE))
    lower, upper = _percentile_interval(values)
    return Measurement.measured(
        SIGNAL,
        uuid,
        p95,
        lower=lower,
        upper=upper,
        limit=limit_percent,
        sample_count=valid.height,
        reason=f"p95 {p95:.1f} % of {counts} readings against {limit_percent:g} %",
        details=details,
    )


def _null_reasons(rows: pl.DataFrame) -> Counter[str]:
    """Why readings are unusable: the reader's reason, or the range where the number itself is impossible.

    A null without a reason is not counted here: the source simply gave nothing.
    """
    reasons: Counter[str] = Counter()
    for number, text in (
        rows.filter(~pl.col("valid")).select("utilization_percent", "null_reasons").iter_rows()
    ):
        if number is not None:
            reasons["outside 0 to 100"] += 1
        elif text:
            try:
                named = json.loads(text)
            except ValueError:
                named = {"utilization_percent": str(text)[:80]}
            if isinstance(named, dict) and named.get("utilization_percent"):
                reasons[str(named["utilization_percent"])[:80]] += 1
    return reasons


def _percentile_interval(ordered: np.ndarray) -> tuple[float, float]:
    """Distribution-free 95 % interval of the 95th percentile from order statistics (ranks are binomial)."""
    count = ordered.size
    log_p, log_q = math.log(PERCENTILE / 100), math.log1p(-PERCENTILE / 100)
    k = np.arange(count + 1)
    log_factorials = np.concatenate(([0.0], np.cumsum(np.log(np.arange(1, count + 1)))))
    log_pmf = log_factorials[-1] - log_factorials - log_factorials[::-1] + k * log_p + (count - k) * log_q
    below = np.cumsum(np.exp(log_pmf))
    tail = (1 - INTERVAL_RATIO) / 2
    lower_rank = int(np.searchsorted(below, tail))
    upper_rank = int(np.searchsorted(below, 1 - tail)) + 1
    lower = float(ordered[lower_rank - 1]) if lower_rank >= 1 else 0.0
    upper = float(ordered[upper_rank - 1]) if upper_rank <= count else HIGHEST_PERCENT
    return lower, upper
