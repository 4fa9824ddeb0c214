"""Documents for a person, and his answers: Label Studio's task JSON, or a plain CSV for whoever has no Label Studio.

Label Studio imports a list of tasks `{"data": {...}}` and exports the same tasks with `annotations`, each a list of
results that name the control they come from. Its shorter export, JSON-MIN, leaves out who answered and whether the
answer was cancelled, so it is refused.
"""

from __future__ import annotations

import csv
import hashlib
import hmac
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from xml.sax.saxutils import escape

import numpy as np
import numpy.typing as npt
import polars as pl

from warpgauge.errors import SourceFileError
from warpgauge.tables import KINDS, LABELS, NATURES

VERDICTS = {"defect": True, "ok": False}
CSV_COLUMNS = (
    "document_id",
    "why",
    "title",
    "text",
    "verdict",
    "kinds",
    "nature",
    "annotator",
    "answered_at",
)
# Two texts this alike (cosine of their embeddings) are one question to a person.
LIKE_COSINE = 0.95

Floats = npt.NDArray[np.floating[Any]]


@dataclass(frozen=True)
class Answers:
    """What people answered.

    Attributes:
        labels: Rows of `tables.LABELS`, all `human`.
        problems: One sentence for each record that was refused.
        skipped_count: Tasks that nobody answered, or whose answer was cancelled.
    """

    labels: pl.DataFrame
    problems: tuple[str, ...]
    skipped_count: int


def labelling_config() -> str:
    """The labelling interface for Label Studio, XML."""

    def choices(name: str, title: str, values: Sequence[str], kind: str, extra: str = "") -> str:
        options = "".join(f'<Choice value="{escape(value)}"/>' for value in values)
        return f'<Header value="{title}"/><Choices name="{name}" toName="text" choice="{kind}" {extra}>{options}</Choices>'

    return (
        '<View><Header value="$title"/><Text name="text" value="$text"/>'
        + choices("verdict", "Is the documentation at fault?", list(VERDICTS), "single", 'required="true"')
        + choices("kinds", "In which way?", KINDS, "multiple")
        + choices("nature", "Wrong in itself, or for a version?", NATURES, "single")
        + '<TextArea name="comment" toName="text" rows="2"/></View>'
    )


def review_tasks(queue: pl.DataFrame) -> list[dict[str, Any]]:
    """Label Studio tasks, one a document; the same queue gives the same tasks.

    Args:
        queue: document_id, why, title, text, and where a model answered defect_probability, kinds, model_version.
    """
    tasks = []
    for row in queue.iter_rows(named=True):
        task: dict[str, Any] = {
            "data": {name: row[name] or "" for name in ("document_id", "why", "title", "text")}
        }
        if row.get("defect_probability") is not None:
            probability = float(row["defect_probability"])
            verdict = "defect" if probability >= 0.5 else "ok"
            results = [_result("verdict", [verdict])]
            if row.get("kinds"):
                results.append(_result("kinds", list(row["kinds"])))
            task["predictions"] = [
                {"model_version": str(row["model_version"]), "score": probability, "result": results}
            ]
        tasks.append(task)
    return tasks


def _result(name: str, values: list[str]) -> dict[str, Any]:
    return {"from_name": name, "to_name": "text", "type": "choices", "value": {"choices": values}}


def review_csv(queue: pl.DataFrame) -> str:
    """The same as CSV, with empty columns to fill in: verdict (defect or ok), kinds (split by ;), nature, annotator."""
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=CSV_COLUMNS)
    writer.writeheader()
    for row in queue.iter_rows(named=True):
        writer.writerow({name: row.get(name) or "" for name in ("document_id", "why", "title", "text")})
    return text.getvalue()


def choose_most_changed(change: Floats, vectors: Floats, count: int) -> npt.NDArray[np.int64]:
    """Rows that changed most and are not alike, most changed first.

    Args:
        change: How much each document changed, larger is more, shape (documents,).
        vectors: Their embeddings, shape (documents, dimensions); unit length is not needed.
        count: Most rows to choose.
    """
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.where(norms > 0, norms, 1.0)
    chosen: list[int] = []
    for row in np.argsort(-change, kind="stable"):
        if len(chosen) == count:
            break
        if not chosen or float((unit[chosen] @ unit[row]).max()) < LIKE_COSINE:
            chosen.append(int(row))
    return np.asarray(chosen, dtype=np.int64)


def annotator_name(who: object, key: str | None) -> str:
    """A person under a name that tells nobody who he is, the same each time: a hash, keyed where a key is set."""
    text = json.dumps(who, sort_keys=True, default=str).encode()
    digest = hmac.new(key.encode(), text, hashlib.sha256) if key else hashlib.sha256(text)
    return f"person-{digest.hexdigest()[:12]}"


def read_answers(text: str, name: str, key: str | None = None) -> Answers:
    """The answers in a Label Studio export (JSON) or in a CSV that `review_csv` began.

    Args:
        text: Content of the file.
        name: The file, for messages; `.csv` is read as CSV, everything else as JSON.
        key: Secret of the annotators' names.

    Raises:
        SourceFileError: If the file is no such thing, or cut.
    """
    records = _csv_records(text, name) if name.lower().endswith(".csv") else _json_records(text, name)
    rows: list[dict[str, Any]] = []
    problems: list[str] = []
    skipped = 0
    for where, record in records:
        if record is None:
            skipped += 1
            continue
        fault = _fault(record)
        if fault is not None:
            problems.append(f"{name}: {where}: {fault}")
            continue
        verdict = VERDICTS[record["verdict"]]
        rows.append(
            {
                "document_id": record["document_id"],
                "annotator": annotator_name(record["annotator"], key),
                "labelled_at": record["answered_at"],
                "label_source": "human",
                "is_defect": verdict,
                "kinds": record["kinds"] if verdict else [],
                "nature": record["nature"] if verdict else None,
            }
        )
    frame = pl.DataFrame(rows, schema=LABELS.schema, orient="row") if rows else LABELS.empty()
    return Answers(LABELS.conform(frame), tuple(problems), skipped)


def _fault(record: Mapping[str, Any]) -> str | None:
    """Why an answer cannot be taken; None where it can."""
    if not record["document_id"]:
        return "no document_id; export the tasks that `warpgauge review export` wrote, with their data"
    if record["verdict"] not in VERDICTS:
        return f"verdict is {record['verdict']!r}; one of {', '.join(VERDICTS)}"
    if unknown := sorted(set(record["kinds"]) - set(KINDS)):
        return f"unknown kind {', '.join(unknown)}; known ones: {', '.join(KINDS)}"
    if record["nature"] is not None and record["nature"] not in NATURES:
        return f"nature is {record['nature']!r}; one of {', '.join(NATURES)}"
    # An answer without a time is stamped by whoever takes it.
    if record["answered_at"] is not None and not isinstance(record["answered_at"], datetime):
        return f"time of the answer is {record['answered_at']!r}; ISO 8601 with a zone is needed"
    return None


def _json_records(text: str, name: str) -> list[tuple[str, dict[str, Any] | None]]:
    try:
        tasks = json.loads(text)
    except ValueError as error:
        raise SourceFileError(f"{name}: not JSON, so cut or another file: {error}; export again") from error
    if not isinstance(tasks, list) or not all(isinstance(task, dict) for task in tasks):
        raise SourceFileError(f"{name}: needs a list of tasks, as Label Studio exports them as JSON")
    if tasks and not any("annotations" in task for task in tasks):
        raise SourceFileError(
            f"{name}: no task has annotations; export as JSON (not JSON-MIN), after somebody has answered"
        )
    found: list[tuple[str, dict[str, Any] | None]] = []
    for number, task in enumerate(tasks, start=1):
        annotations = task.get("annotations")
        data = task.get("data") if isinstance(task.get("data"), dict) else {}
        if not isinstance(annotations, list) or not annotations:
            found.append((f"task {number}", None))
            continue
        for annotation in annotations:
            is_answer = isinstance(annotation, dict) and not annotation.get("was_cancelled")
            record = _from_annotation(data, annotation) if is_answer and annotation.get("result") else None
            found.append((f"task {number}", record))
    return found


def _from_annotation(data: Mapping[str, Any], annotation: Mapping[str, Any]) -> dict[str, Any]:
    choices: dict[str, list[str]] = {}
    results = annotation["result"]
    for result in results if isinstance(results, list) else []:
        if isinstance(result, dict) and isinstance(result.get("value"), dict):
            value = result["value"].get("choices")
            if isinstance(value, list):
                choices[str(result.get("from_name"))] = [str(one) for one in value]
    who = annotation.get("completed_by")
    return {
        "document_id": str(data.get("document_id") or ""),
        "verdict": next(iter(choices.get("verdict", [])), None),
        "kinds": choices.get("kinds", []),
        "nature": next(iter(choices.get("nature", [])), None),
        # Label Studio names a person by a number, or by a record of his with its number in it.
        "annotator": who.get("id", who) if isinstance(who, dict) else who,
        "answered_at": _time(annotation.get("updated_at") or annotation.get("created_at")),
    }


def _csv_records(text: str, name: str) -> list[tuple[str, dict[str, Any] | None]]:
    reader = csv.DictReader(io.StringIO(text))
    missing = [column for column in ("document_id", "verdict") if column not in (reader.fieldnames or [])]
    if missing:
        raise SourceFileError(
            f"{name}: column {', '.join(missing)} is absent; fill in the file that `warpgauge review export` wrote"
        )
    found: list[tuple[str, dict[str, Any] | None]] = []
    try:
        for number, row in enumerate(reader, start=2):
            verdict = (row.get("verdict") or "").strip().lower()
            if not verdict:
                found.append((f"line {number}", None))
                continue
            kinds = [kind.strip() for kind in (row.get("kinds") or "").split(";") if kind.strip()]
            record = {
                "document_id": (row["document_id"] or "").strip(),
                "verdict": verdict,
                "kinds": kinds,
                "nature": (row.get("nature") or "").strip() or None,
                "annotator": (row.get("annotator") or "").strip() or "unnamed",
                "answered_at": _time(row.get("answered_at")) if row.get("answered_at") else None,
            }
            found.append((f"line {number}", record))
    except csv.Error as error:
        raise SourceFileError(f"{name}: not CSV: {error}; save it as CSV again") from error
    return found


def _time(text: object) -> datetime | object:
    """A time with zone; the text itself where it is none, for the message."""
    try:
        moment = datetime.fromisoformat(str(text))
    except ValueError:
        return text
    return moment.astimezone(UTC) if moment.tzinfo is not None else text
