"""Answers from the registry: the champion's, or without one the challenger's, and that is said."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tasks.registration import DOC_QUALITY, LAUNCH_LATENCY, model_files, serving_version
from warpgauge.errors import NoDataError, SchemaError, WarpgaugeError
from warpgauge.settings import load_settings
from warpgauge.tables import LAUNCHES

if TYPE_CHECKING:
    from warpgauge.docquality.model import DocQualityModel
    from warpgauge.latency.model import LatencyModel

BYTES_PER_MB = 1_000_000
STANDARD_INPUT = "-"


def load_latency_model() -> tuple[LatencyModel, str, bool]:
    """The model that answers, its version, and whether it was promoted."""
    from warpgauge.latency.model import LatencyModel

    version, promoted = serving_version(LAUNCH_LATENCY)
    return LatencyModel.from_files(model_files(LAUNCH_LATENCY, version)), version, promoted


def load_docquality_model() -> tuple[DocQualityModel, str, bool]:
    """The model that answers, its version, and whether it was promoted."""
    from warpgauge.docquality.model import DocQualityModel

    version, promoted = serving_version(DOC_QUALITY)
    return DocQualityModel.from_files(model_files(DOC_QUALITY, version)), version, promoted


def predict_graph(path: str, gpu_name: str | None, cuda_version: str | None) -> dict[str, Any]:
    """Predict one graph, given as JSON or as the DOT text of cudaGraphDebugDotPrint.

    Args:
        path: A file, or `-` for standard input.
        gpu_name: GPU that will launch it.
        cuda_version: CUDA version that will launch it.

    Returns:
        `predicted_latency_us`, `lower_us`, `upper_us`, `model_version`, `promoted`, `never_seen`,
        `is_simulated`, `target`.
    """
    from warpgauge.launches.graph import describe_graph

    row = describe_graph(_read_text(path), source_name=path)
    known = pl.lit(gpu_name, dtype=pl.String), pl.lit(cuda_version, dtype=pl.String)
    row = row.with_columns(known[0].alias("gpu_name"), known[1].alias("cuda_version"))
    answers = _predict(LAUNCHES.conform(row))
    return answers[0]


def predict_rows(path: str) -> dict[str, Any]:
    """Predict each row of a CSV, Parquet or JSON lines file with columns of the launches table.

    Raises:
        SchemaError: If the file has no column that says how large a graph is, or an unknown one.
        NoDataError: If it has no row.
    """
    from tasks.validation import read_rows
    from warpgauge.validation import type_columns

    limit = int(load_settings().fetch_size_limit_mb * BYTES_PER_MB)
    given = read_rows(Path(path), limit)
    if given.is_empty():
        raise NoDataError(f"{path}: no row to predict")
    unknown = [name for name in given.columns if name not in LAUNCHES.schema]
    if unknown:
        raise SchemaError(
            f"{path}: unknown column {', '.join(unknown)}; columns of the launches table: "
            f"{', '.join(LAUNCHES.column_names)}"
        )
    present = replace(
        LAUNCHES,
        key=(),
        any_of=(),
        columns=tuple(column for column in LAUNCHES.columns if column.name in given.columns),
    )
    frame, problems = type_columns(given, present, origin=path)
    if problems:
        first = problems[0]
        raise SchemaError(
            f"{path}: row {first.row}, column {first.column}: {first.value!r} is {first.reason}"
        )
    return {"predictions": _predict(LAUNCHES.conform(frame))}


def _predict(rows: pl.DataFrame) -> list[dict[str, Any]]:
    model, version, promoted = load_latency_model()
    # What the caller leaves open and the model takes as given: an ordinary, unprofiled, real launch.
    rows = rows.with_columns(
        pl.col("is_profiled").fill_null(False), pl.col("is_simulated").fill_null(model.is_simulated)
    )
    answers = model.predict(rows)
    return [
        {**answer, "model_version": version, "promoted": promoted, "target": model.target}
        for answer in answers.iter_rows(named=True)
    ]


def score_documents(paths: list[str]) -> dict[str, Any]:
    """Score each document of the files; a file that cannot be read is refused and the next one is tried.

    Raises:
        NoDataError: If no file could be read.
    """
    from tasks.embedding import score_frame
    from warpgauge.documents.markdown import read_page

    frames, refused = [], []
    for path in paths:
        try:
            frames.append(read_page(Path(path)).documents)
        except WarpgaugeError as error:
            refused.append(f"{path}: {error}")
    if not frames:
        raise NoDataError("no document could be read: " + "; ".join(refused))
    documents = pl.concat(frames)
    model, version, promoted = load_docquality_model()
    scores = score_frame(model, documents)
    answers = [
        {"source_id": source_id, "title": title, **score}
        for (source_id, title), score in zip(
            documents.select("source_id", "title").iter_rows(), scores.iter_rows(named=True), strict=True
        )
    ]
    return {
        "documents": answers,
        "model_version": version,
        "promoted": promoted,
        "provenance": model.label_provenance,
        "refused": refused,
    }


def _read_text(path: str) -> str:
    from warpgauge.source_file import decode_text, read_source_file

    if path == STANDARD_INPUT:
        return sys.stdin.read()
    limit = int(load_settings().fetch_size_limit_mb * BYTES_PER_MB)
    source = read_source_file(Path(path), what="graph", size_limit_bytes=limit)
    return decode_text(source, what="graph")
