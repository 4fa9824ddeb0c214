"""Answers from the registry: the champion's, or without one the challenger's, and that is said."""

from __future__ import annotations

import difflib
import math
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tasks.compiled import compile_for
from tasks.registration import model_files, serving_version
from warpgauge.errors import NoDataError, SchemaError, SettingsError, SourceFileError, WarpgaugeError
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY
from warpgauge.settings import load_settings
from warpgauge.tables import LAUNCHES, Column, Table

if TYPE_CHECKING:
    from warpgauge.docquality.model import DocQualityModel
    from warpgauge.latency.model import LatencyModel

STANDARD_INPUT = "-"


def load_latency_model(model_name: str = LAUNCH_LATENCY) -> tuple[LatencyModel, str, bool]:
    """The latency model that answers, its version, and whether it was promoted."""
    from warpgauge.latency.model import LatencyModel

    if model_name == DOC_QUALITY:
        raise SettingsError(
            f"{model_name} scores documents and predicts no latency; `warpgauge score documents`"
        )
    version, promoted = serving_version(model_name)
    return LatencyModel.from_files(model_files(model_name, version)), version, promoted


def load_docquality_model() -> tuple[DocQualityModel, str, bool]:
    """The model that answers, its version, and whether it was promoted."""
    from warpgauge.docquality.model import DocQualityModel

    version, promoted = serving_version(DOC_QUALITY)
    return DocQualityModel.from_files(model_files(DOC_QUALITY, version)), version, promoted


def predict_graph(
    path: str, gpu_name: str | None, cuda_version: str | None, explain: bool = False
) -> dict[str, Any]:
    """Predict one graph, given as JSON or as the DOT text of cudaGraphDebugDotPrint.

    Args:
        path: A file, or `-` for standard input.
        gpu_name: GPU that will launch it.
        cuda_version: CUDA version that will launch it.
        explain: Say what each feature contributed.

    Returns:
        `predicted_latency_us`, `lower_us`, `upper_us`, `model_name`, `model_version`, `promoted`, `never_seen`,
        `is_simulated`, `target`, and `explanation` where it was asked for.
    """
    from warpgauge.launches.graph import describe_graph

    name = "standard input" if path == STANDARD_INPUT else path
    row = describe_graph(_read_text(path), source_name=name)
    return _predict_launches(LAUNCHES.conform(row), gpu_name, cuda_version, explain)[0]


def predict_rows(
    path: str,
    gpu_name: str | None = None,
    cuda_version: str | None = None,
    explain: bool = False,
    model_name: str | None = None,
) -> dict[str, Any]:
    """Predict each row of a CSV, Parquet or JSON lines file with columns of the model's table.

    Args:
        path: The file.
        explain: Say what each feature contributed.
        model_name: Of a latency table; None is the one of the launches.
        gpu_name: GPU of the rows that name none.
        cuda_version: CUDA version of the rows that name none.

    Returns:
        `predictions`, in the order of the rows, each as `predict_graph` answers.

    Raises:
        SchemaError: If the file has an unknown column, a value that is none of its column, or a row that does
            not say how large its graph is: row (from 1) and column are named.
        NoDataError: If it has no row.
        SettingsError: If a GPU or CUDA version is given for rows of another table.
    """
    from warpgauge.latency.features import node_count_expression

    if model_name is not None and model_name != LAUNCH_LATENCY:
        if gpu_name or cuda_version:
            raise SettingsError(
                f"--gpu and --cuda complete launches; {model_name} predicts rows of another table, "
                "whose own columns say where they ran"
            )
        loaded = load_latency_model(model_name)
        frame = _read_table_rows(path, loaded[0])
        return {"predictions": _answers(model_name, loaded, frame, explain)}
    rows = _read_launch_rows(path)
    sizeless = rows.select(node_count_expression().is_null().arg_true()).to_series()
    if len(sizeless):
        raise SchemaError(
            f"{path}: row {sizeless[0] + 1} does not say how many nodes its graph has ({len(sizeless)} of "
            f"{rows.height} rows); give node_count, or line_length and line_count"
        )
    return {"predictions": _predict_launches(rows, gpu_name, cuda_version, explain)}


def _read_table_rows(path: str, model: LatencyModel) -> pl.DataFrame:
    """Rows of a user's file for the model of a table: columns that it does not read are left out, as in training.

    Raises:
        SchemaError: If a column that training never lacked is absent, or one may be another under a wrong name.
    """
    from tasks.validation import read_rows

    scheme, baseline = model.scheme, model.baseline
    given = read_rows(Path(path), load_settings().fetch_size_limit_bytes)
    inputs = list(scheme.input_kinds)
    table = model.booster.table
    needed = {one.name for one in table.numeric if not one.has_missing}
    needed |= {one.name for one in table.categorical if not one.has_missing}
    # A column with one value in training need not be given: that value is meant.
    needed |= {
        name
        for name in scheme.key_columns
        if not baseline.has_missing[name] and len(baseline.known[name]) > 1
    }
    absent = [name for name in inputs if name not in given.columns]
    extra = [name for name in given.columns if name not in inputs]
    for name in absent:
        near = difflib.get_close_matches(name, extra, n=1, cutoff=0.8)
        if name in needed or near:
            hint = f" ({near[0]} is there)" if near else ""
            raise SchemaError(
                f"{path}: column {name} is absent{hint}; columns that the model reads: {', '.join(inputs)}"
            )
    return _typed_rows(path, given.select(name for name in inputs if name in given.columns), scheme.table)


def _read_launch_rows(path: str) -> pl.DataFrame:
    """Rows of a user's file with columns of the launches table.

    Raises:
        SchemaError: If a column is none of that table.
    """
    from tasks.validation import read_rows

    given = read_rows(Path(path), load_settings().fetch_size_limit_bytes)
    unknown = [name for name in given.columns if name not in LAUNCHES.schema]
    if unknown:
        raise SchemaError(
            f"{path}: unknown column {', '.join(unknown)}; columns of the table {LAUNCHES.name}: "
            f"{', '.join(LAUNCHES.column_names)}"
        )
    return _typed_rows(path, given, LAUNCHES)


def _typed_rows(path: str, given: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The rows with the table's types and columns, each value within its range."""
    from warpgauge.validation import type_columns

    if given.is_empty():
        raise NoDataError(f"{path}: no row to predict")
    present = replace(
        table,
        key=(),
        any_of=(),
        columns=tuple(column for column in table.columns if column.name in given.columns),
    )
    frame, problems = type_columns(given, present, origin=path)
    if problems:
        first = problems[0]
        raise SchemaError(
            f"{path}: row {first.row + 1}, column {first.column}: {first.value} is {first.reason}"
        )
    for column in present.columns:
        _require_range(frame[column.name], column, path)
    return table.conform(frame)


def _require_range(values: pl.Series, column: Column, path: str) -> None:
    if not values.dtype.is_numeric():
        return
    least = -math.inf if column.minimum is None else column.minimum
    most = math.inf if column.maximum is None else column.maximum
    beyond = (~values.is_between(least, most)).arg_true()
    if len(beyond):
        raise SchemaError(
            f"{path}: row {beyond[0] + 1}, column {column.name}: found {values[int(beyond[0])]:,}, "
            f"{least:,} to {most:,} is needed"
        )


def _predict_launches(
    rows: pl.DataFrame, gpu_name: str | None, cuda_version: str | None, explain: bool
) -> list[dict[str, Any]]:
    loaded = load_latency_model()
    rows = rows.with_columns(
        pl.col("gpu_name").fill_null(pl.lit(gpu_name, dtype=pl.String)),
        pl.col("cuda_version").fill_null(pl.lit(cuda_version, dtype=pl.String)),
    )
    return _answers(LAUNCH_LATENCY, loaded, rows, explain)


def _answers(
    model_name: str, loaded: tuple[LatencyModel, str, bool], rows: pl.DataFrame, explain: bool
) -> list[dict[str, Any]]:
    model, version, promoted = loaded
    compile_for(model, rows.height)
    rows = model.assume_ordinary(rows)
    said = {"model_name": model_name, "model_version": version, "promoted": promoted, "target": model.target}
    answers = [{**answer, **said} for answer in model.predict(rows).iter_rows(named=True)]
    if explain:
        for answer, lines in zip(answers, model.explain(rows), strict=True):
            answer["explanation"] = lines
    return answers


def score_documents(paths: list[str]) -> dict[str, Any]:
    """Score each document of the files; a file that cannot be read is refused and the next one is tried.

    Raises:
        NoDataError: If no file could be read.
    """
    from tasks.embedding import score_frame
    from warpgauge.documents.markdown import read_page

    limit = load_settings().fetch_size_limit_bytes
    frames, refused = [], []
    for path in paths:
        try:
            frames.append(read_page(Path(path), size_limit_bytes=limit).documents)
        except WarpgaugeError as error:
            refused.append(str(error))
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

    limit = load_settings().fetch_size_limit_bytes
    if path != STANDARD_INPUT:
        source = read_source_file(Path(path), what="graph", size_limit_bytes=limit)
        return decode_text(source, what="graph")
    content = sys.stdin.buffer.read(limit + 1)
    if len(content) > limit:
        raise SourceFileError(
            f"standard input: more than {limit:,} bytes; raise WARPGAUGE_FETCH_SIZE_LIMIT_MB if it is meant"
        )
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceFileError(
            f"standard input: byte {error.start:,} is not UTF-8; a graph as JSON or DOT text is needed"
        ) from error
