"""The main job's result: rows, figures, verdicts, decisions, and where to look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from tasks.registration import list_versions, version_facts
from tasks.storage import Store
from tasks.tracking import old_file_store, ui_command
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY

EVALUATION_SLICES = ("overall", "topology", "family", "unlike_training")


def summarize_run(
    collected: Mapping[str, Any], verdicts: Mapping[str, Mapping[str, Any]], monitored: Mapping[str, Any]
) -> dict[str, Any]:
    """Put one run's results together.

    Args:
        collected: Result of the collect flow.
        verdicts: Model name to the gate's verdict or to the plan that skipped it.
        monitored: Result of the monitor flow.
    """
    store = Store()
    reports = {name: report for name, report in collected["collected"].items() if report}
    quarantined = dict(store.read("quarantine").group_by("table_name").len().collect().iter_rows())
    tables = [
        {
            "table": name,
            "rows": store.read(name).select(pl.len()).collect().item(),
            "added": reports[name]["added"]
            if name in reports
            else (reports["documents"]["labels_added"] if name == "labels" else 0),
            "quarantined": quarantined.get(name, 0),
            "version": store.version(name),
        }
        for name in ("launches", "documents", "labels", "gpu_samples")
    ]
    refused = [item for report in reports.values() for item in report["refused"]]
    refused += [item for report in collected["known_tables"] for item in report["refused"]]
    refused += collected["validated"].get("refused", [])
    models = [with_evaluation(name, verdict) for name, verdict in verdicts.items()]
    refused += [item for model in models for item in model.get("refused", [])]
    refused += monitored.get("refused", [])
    where = {
        "MLflow UI": ui_command(),
        "data docs": collected["validated"].get("data_docs") or "not built",
        "tables": store.address,
        "versions": "warpgauge models list",
    }
    if warning := old_file_store():
        where["warning"] = warning
    return {
        "launch_source": collected["launch_source"],
        "telemetry": reports["gpu_samples"].get("unavailable"),
        "tables": tables,
        "models": models,
        "monitor": dict(monitored),
        "champions": {model["model_name"]: model["champion"] for model in list_versions()["models"]},
        "where": where,
        "refused": refused,
        "salvaged": [
            item for report in (*reports.values(), *collected["known_tables"]) for item in report["salvaged"]
        ],
    }


def with_evaluation(
    name: str, verdict: Mapping[str, Any], collected: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    """A verdict with the version's figures beside it: the model and its baseline in one table.

    Args:
        name: Of the model.
        verdict: Of the gate, or the plan that skipped the training.
        collected: Report of the table that was collected before; what it refused or salvaged is kept.
    """
    facts = version_facts(name, verdict["version"])
    shown_slices = (*EVALUATION_SLICES, *(facts.get("shown_slices") or ()))
    rows = [row for row in facts["evaluation"] if str(row["slice"]).split("=")[0] in shown_slices]
    columns = EVALUATION_COLUMNS.get(name, TABLE_COLUMNS)
    shown = [{column: row.get(column) for column in columns} for row in rows]
    kept = {
        kind: [*verdict.get(kind, []), *(collected or {}).get(kind, [])] for kind in ("refused", "salvaged")
    }
    return {
        **verdict,
        **kept,
        "model_name": name,
        "headline": facts["headline"],
        "evaluation": shown,
        "notes": facts["notes"],
    }


TABLE_COLUMNS = (
    "slice",
    "value",
    "predictor",
    "row_count",
    "mape_ratio",
    "p95_abs_us",
    "share_within_promise_ratio",
    "coverage_ratio",
)
EVALUATION_COLUMNS = {
    LAUNCH_LATENCY: (
        "slice",
        "value",
        "predictor",
        "row_count",
        "rmse_us",
        "rmse_over_floor",
        "share_within_promise_ratio",
        "coverage_ratio",
        "noise_floor_us",
    ),
    DOC_QUALITY: (
        "slice",
        "row_count",
        "defect_count",
        "auc",
        "auc_lower",
        "auc_upper",
        "average_precision",
        "log_loss",
        "baseline_log_loss",
        "keyword_auc",
    ),
}
