"""The monitor's effects: read what is measured, keep what is decided.

The measurements are made in `warpgauge/drift/`, and the decision is a pure function there; its state is the
`decisions` table, so a restart or a second monitor changes nothing.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import polars as pl

from tasks import attempts, flow_runs, prometheus, registration, reporting
from tasks.answers import answered_reviews
from tasks.attempts import list_attempts
from tasks.compiled import compile_for
from tasks.registration import CHAMPION
from tasks.storage import Store, TableName, table_named
from tasks.telemetry import ALL_GPUS, measure_window
from tasks.training import LEARNED_FROM
from tasks.validation import refused_row_count
from warpgauge.drift.decision import Champion, Context, Decision, Retraining
from warpgauge.drift.decision import decide as decide_purely
from warpgauge.drift.measurement import Measurement
from warpgauge.drift.policy import Policy
from warpgauge.drift.signal_state import SignalState, latest_states
from warpgauge.errors import ModelFileError, ModelNotFoundError, WarpgaugeError
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY, MODEL_NAMES
from warpgauge.settings import Settings, load_settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

LOGGER = logging.getLogger("warpgauge")
# A champion whose files are gone or damaged blinds its own signals, not the others.
UNREADABLE = (ModelNotFoundError, ModelFileError)
# How the reason of a decision begins whose source did not answer.
UNAVAILABLE = "cannot say, unavailable:"
# States older than this are not read: an episode of which nothing was
# heard for this long is forgotten, and the signal is armed again. A longer cool-down or re-arm time counts.
STATE_DAYS = 30


def measure() -> list[Measurement]:
    """Every signal, each a number with its sample size or a named "cannot say"."""
    settings = load_settings()
    store = Store()
    now = datetime.now(UTC)
    measurements = [
        *_utilization(store, settings, now),
        _residuals(LAUNCH_LATENCY, store, settings, now),
        *(_residuals(name, store, settings, now) for name in registration.table_models()),
        *_embeddings(store, settings, now),
        *_data_quality(store, settings),
    ]
    # Decided later, perhaps twice where a step is tried again: the same measurement counts once.
    return [replace(measurement, measured_at=now) for measurement in measurements]


def decide(measurements: list[Measurement]) -> dict[str, Any]:
    """Decide on the measurements and keep every decision as a row.

    Returns:
        `decisions`: one record each; `orders`: retrainings that are due; `review`: models whose documents a
        person should see; `alerts`: what a person should hear of.
    """
    settings = load_settings()
    store = Store()
    policy = Policy(
        for_minutes=settings.monitor_for_minutes,
        rearm_minutes=settings.monitor_rearm_minutes,
        cooldown_minutes=settings.monitor_cooldown_minutes,
        daily_budget=settings.monitor_daily_budget,
        failure_limit=settings.monitor_failure_limit,
        lease_minutes=settings.monitor_lease_minutes,
    )
    run_id = uuid.uuid4().hex
    while True:
        now = datetime.now(UTC)
        version = store.version("decisions")
        made = decide_purely(measurements, _states(store, version, policy, now), policy, now, _context())
        rows = [decision.row(run_id, now) for decision in made]
        # Another monitor that decided meanwhile may have ordered what this one would: look again.
        if store.append_after("decisions", pl.DataFrame(rows, infer_schema_length=None), version):
            break
    return {
        "decisions": rows,
        "orders": [_order(decision) for decision in made if decision.action == "retrain"],
        "review": sorted({str(d.model_name) for d in made if d.also_review or d.action == "review"}),
        "alerts": [
            {
                "cause": decision.alert_cause,
                "signal": decision.signal,
                "subject": decision.subject,
                "model_name": decision.model_name,
                "reason": decision.reason,
                "episode_id": decision.episode_id,
            }
            for decision in made
            if decision.alert_cause is not None
        ],
    }


def _states(
    store: Store, version: int | None, policy: Policy, now: datetime
) -> dict[tuple[str, str], SignalState]:
    """Where every signal stands, from the decisions as of that version of their table."""
    longest = max(policy.cooldown_minutes, policy.rearm_minutes, policy.for_minutes)
    start = now - max(timedelta(days=STATE_DAYS), timedelta(minutes=longest))
    recent = store.read("decisions", version).filter(pl.col("decided_at") >= start)
    latest = now + timedelta(minutes=policy.future_minutes)
    return latest_states(
        recent.select("signal", "subject", "decided_at", "state").collect(), not_after=latest
    )


def record_outcome(order: Mapping[str, Any], state: Any) -> dict[str, Any]:
    """What came of a retraining that ran here, from its flow's final state."""
    if state.is_completed():
        verdict = state.result()
        outcome = (
            f"not retrained: {verdict['why']}"
            if verdict.get("skip")
            else "; ".join(
                [
                    f"{verdict['outcome']}: {'; '.join(verdict['reasons'])}",
                    # Which rows were chosen is half of what a retraining decided.
                    *(note for note in verdict.get("notes", []) if note.startswith(LEARNED_FROM)),
                ]
            )
        )
        return {**order, "outcome": outcome, "is_failed": False}
    # One that failed before its attempt began is known at once, not only when nobody has seen it for a while.
    attempts.keep_failure(order["model_name"], order["attempt_id"], str(state.message))
    return {**order, "outcome": f"failed: {state.message}", "is_failed": True}


def summarize(decided: Mapping[str, Any], retrained: list[dict[str, Any]]) -> dict[str, Any]:
    """The monitor's result; a retraining that failed and a source that is away are named in `refused`."""
    failed = [
        f"retraining of {order['model_name']}: {order['outcome']}"
        for order in retrained
        if order["is_failed"]
    ]
    away = [
        f"{row['signal']} of {row['subject']}: {row['reason']}"
        for row in decided["decisions"]
        if row["reason"].startswith(UNAVAILABLE)
    ]
    return {
        **decided,
        "retrained": retrained,
        "report": reporting.page_of(decided),
        "refused": [*failed, *away],
    }


def _order(decision: Decision) -> dict[str, Any]:
    return {
        "model_name": decision.model_name,
        "attempt_id": decision.attempt_id,
        "reason": decision.reason,
        "signal": decision.signal,
        # Empty for the two models of every project: the templates of an automation must find the names.
        **(registration.table_models().get(str(decision.model_name)) or {"table": "", "folder": ""}),
    }


def _utilization(store: Store, settings: Settings, now: datetime) -> list[Measurement]:
    """By Prometheus where one is set, else from the table."""
    if settings.prometheus_url is not None:
        return prometheus.measure_live(settings.prometheus_url.get_secret_value(), settings, now)
    measured = measure_window(store, settings, now)
    if measured:
        return measured
    said = f"no GPU sample in the last {settings.monitor_window_hours:g} hours; collect telemetry"
    return [Measurement.cannot_say("utilization_p95", ALL_GPUS, "no samples", said)]


def _residuals(model_name: str, store: Store, settings: Settings, now: datetime) -> Measurement:
    """Residuals of a latency model on rows that came after its champion's training data."""
    import numpy as np

    from warpgauge.drift.residuals import (
        FACTS_FILE,
        ResidualReference,
        ResidualRows,
        measure_residuals,
        unix_seconds,
    )
    from warpgauge.latency.evaluation import GROUP_ID, ROW_ID, score_rows
    from warpgauge.latency.model import LatencyModel

    champion = registration.alias_version(model_name, CHAMPION)
    if champion is None:
        return measure_residuals(None, ResidualRows([]), subject=model_name)
    try:
        files = registration.model_files(model_name, champion)
        if FACTS_FILE not in files:
            said = f"version {champion} was registered without a residual reference"
            return Measurement.cannot_say("residuals", model_name, "degenerate", said)
        model, reference = LatencyModel.from_files(files), ResidualReference.from_files(files)
    except UNREADABLE as error:
        return Measurement.cannot_say("residuals", model_name, "degenerate", f"champion: {error}")
    if others := store.other_kinds(model.scheme.table):
        said = f"the table was made anew: {', '.join(others)} as version {champion} reads it; train a new version"
        return Measurement.cannot_say("residuals", model_name, "degenerate", said)
    rows = new_rows(store, model.scheme.table, "collected_at", model_name, champion, settings, now)
    rows = model.scheme.usable(rows)
    if not model.is_simulated:
        rows = rows.filter(~model.scheme.is_simulated(rows))
    if rows.is_empty():
        return measure_residuals(reference, ResidualRows([]), subject=model_name)
    compile_for(model, rows.height)
    scored = score_rows(model, rows)
    predicted_us = scored["predicted_us"].to_numpy()
    recent = ResidualRows(
        np.log(scored["actual_us"].to_numpy() / predicted_us),
        noise_scale=model.intervals.half_width(predicted_us, rows),
        graph_id=scored[GROUP_ID].to_list(),
        shape_id=model.scheme.shapes(rows).to_list(),
        slices=rows.select(reference.slice_columns),
        time_s=unix_seconds(model.scheme.times(rows), rows["collected_at"]),
        row_id=scored[ROW_ID].to_list(),
    )
    return measure_residuals(
        reference,
        recent,
        now_s=now.timestamp(),
        minimum=settings.monitor_minimum_launches,
        false_alarm_ratio=settings.monitor_false_alarm_ratio,
        subject=model_name,
    )


def _embeddings(store: Store, settings: Settings, now: datetime) -> list[Measurement]:
    """Variance along axis 3, mean and distribution of the documents that came after the champion's training data."""
    import numpy as np

    from tasks.embedding import embed, load_encoder
    from warpgauge.drift.components import FACTS_FILE, SIGNALS, Reference, measure_embeddings

    champion = registration.alias_version(DOC_QUALITY, CHAMPION)
    reference = None
    encoder_id = ""
    vectors: NDArray[np.float32] = np.empty((0, 0), dtype=np.float32)
    if champion is not None:
        try:
            files = registration.model_files(DOC_QUALITY, champion)
            said = f"version {champion} was registered without an embedding reference"
            reference = Reference.from_files(files) if FACTS_FILE in files else None
        except UNREADABLE as error:
            said = f"champion: {error}"
        if reference is None:
            return [Measurement.cannot_say(signal, DOC_QUALITY, "degenerate", said) for signal in SIGNALS]
        encoder_id = reference.encoder_id
        documents = new_rows(store, "documents", "fetched_at", DOC_QUALITY, champion, settings, now)
        vectors = np.empty((0, reference.dimension_count), dtype=np.float32)
        if not documents.is_empty():
            encoder = load_encoder()
            encoder_id = encoder.encoder_id
            vectors = embed(documents, encoder)
    return measure_embeddings(
        reference,
        vectors,
        encoder_id,
        variance_limit=settings.monitor_variance_change_limit_ratio,
        minimum=settings.monitor_minimum_documents,
        false_alarm_ratio=settings.monitor_false_alarm_ratio,
    )


def _data_quality(store: Store, settings: Settings) -> list[Measurement]:
    """Share of each table's rows that nobody may use: in quarantine, or refused as a whole batch."""
    quarantined = dict(store.read("quarantine").group_by("table_name").len().collect().iter_rows())
    found = []
    tables: list[TableName] = ["launches", "documents", "gpu_samples"]
    for model_name, spec in registration.table_models().items():
        try:
            tables.append(registration.model_spec(model_name, **spec).scheme.table)
        except WarpgaugeError as error:
            found.append(
                Measurement.cannot_say("data_quality", model_name, "no samples", f"its spec: {error}")
            )
    for table in tables:
        name = table_named(table).name
        count = store.read(table).select(pl.len()).collect().item()
        if not count:
            found.append(Measurement.cannot_say("data_quality", name, "no samples", f"table {name} is empty"))
            continue
        in_quarantine = quarantined.get(name, 0)
        refused_whole = refused_row_count(name)
        found.append(
            Measurement.measured(
                "data_quality",
                name,
                min(1.0, (in_quarantine + refused_whole) / count),
                limit=settings.validation_quarantine_limit_ratio,
                sample_count=count,
                reason=f"{in_quarantine} of {count} rows are in quarantine, {refused_whole} were refused as a whole batch",
            )
        )
    return found


def new_rows(
    store: Store,
    table: TableName,
    time_column: str,
    model_name: str,
    version: str,
    settings: Settings,
    now: datetime,
) -> pl.DataFrame:
    """Valid rows of the window that the version was not trained on."""
    is_recent = pl.col(time_column) >= now - timedelta(hours=settings.monitor_window_hours)
    window = store.read_valid(table, where=is_recent)
    trained = registration.data_versions(model_name, version)
    name = table_named(table).name
    if trained.get(f"{name}.table") != store.table_id(table):
        # The table was made anew since: its version numbers mean other rows.
        return window.collect()
    known = store.read(table, trained[name]).filter(is_recent)
    key = table_named(table).key
    return window.join(known.select(key), on=key, how="anti").collect()


def _context() -> Context:
    champions = {}
    for name in [*MODEL_NAMES, *registration.table_models()]:
        version = registration.alias_version(name, CHAMPION)
        if version is not None:
            champions[name] = Champion(version, _trained_utilization(name, version))
    retrainings = tuple(
        Retraining(one["model_name"], one["attempt_id"], one["started_at"], one["outcome"])
        for one in [*list_attempts(), *flow_runs.waiting_orders()]
    )
    return Context(champions=champions, retrainings=retrainings, answered_reviews=answered_reviews())


def _trained_utilization(model_name: str, version: str) -> float | None:
    try:
        facts = registration.version_facts(model_name, version)
    except ModelNotFoundError as error:
        LOGGER.warning("%s", error)
        return None
    found: float | None = facts.get("trained_utilization_p95_percent")
    return found
