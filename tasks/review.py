"""The human queue: documents that a person should judge, out to where people answer and the answers back."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from tasks import registration
from tasks.answers import answered_documents
from tasks.monitoring import new_rows
from tasks.registration import CHAMPION
from tasks.storage import Store, replace_text
from warpgauge.drift.verdict import nearness
from warpgauge.errors import (
    ModelFileError,
    ModelNotFoundError,
    NoDataError,
    ServiceUnavailableError,
    SourceFileError,
    WarpgaugeError,
)
from warpgauge.registry.names import DOC_QUALITY
from warpgauge.settings import load_settings

LOGGER = logging.getLogger("warpgauge")
# So many wait for a person at most: a longer queue is answered no sooner.
QUEUED_DOCUMENTS = 30
CONFIG_FILE = "label_studio.xml"
QUEUED = ("document_id", "why", "queued_at", "priority")


def queue_documents(decisions: Sequence[Mapping[str, Any]]) -> None:
    """Put the newest documents that make the drift before a person: those that changed most, none twice.

    Args:
        decisions: Rows of the round; the embedding signals above their limit say in which way.
    """
    import numpy as np

    from tasks.embedding import embed, load_encoder
    from warpgauge.docquality.review_tasks import choose_most_changed
    from warpgauge.drift.components import Reference, document_changes

    tripped = {
        str(row["signal"]): str(row["reason"])
        for row in decisions
        if str(row["signal"]).startswith("embedding_") and nearness(row) > 1
    }
    settings = load_settings()
    store = Store()
    now = datetime.now(UTC)
    champion = registration.alias_version(DOC_QUALITY, CHAMPION)
    if champion is None or not tripped:
        LOGGER.warning(
            "no document queued for review: no champion of %s, or no drift of documents", DOC_QUALITY
        )
        return
    waiting = _waiting(store)
    room = QUEUED_DOCUMENTS - waiting.height
    if room <= 0:
        LOGGER.info("%d documents wait for a person already; no more are queued", waiting.height)
        return
    documents = new_rows(store, "documents", "fetched_at", DOC_QUALITY, champion, settings, now)
    known = pl.concat([waiting.select("document_id"), answered_documents(store).select("document_id")])
    documents = documents.join(known, on="document_id", how="anti", maintain_order="left")
    # Of a document that was edited meanwhile only the newest version is worth a person's time.
    documents = documents.sort("fetched_at", maintain_order=True).unique(
        ["source", "source_id", "product_version"], keep="last", maintain_order=True
    )
    if documents.is_empty():
        return
    reference = Reference.from_files(registration.model_files(DOC_QUALITY, champion))
    vectors = np.asarray(embed(documents, load_encoder()), dtype=np.float64)
    change = document_changes(reference, vectors, list(tripped))
    chosen = choose_most_changed(change, vectors, room)
    said = "; ".join(f"{signal.replace('_', ' ')}: {reason}" for signal, reason in tripped.items())
    queue = pl.DataFrame(
        {
            "document_id": documents["document_id"].gather(chosen),
            "why": [f"drift since {DOC_QUALITY} version {champion}: {said}"] * len(chosen),
            "queued_at": [now] * len(chosen),
            "priority": change[chosen],
        }
    )
    added = store.append("review_queue", queue).added
    LOGGER.info("%d documents queued for review", added)


def _waiting(store: Store) -> pl.DataFrame:
    """Entries of the queue that no person has answered since they were queued, most urgent first, one a document."""
    answered = answered_documents(store).lazy()
    return (
        store.read("review_queue")
        .join(answered, on="document_id", how="left")
        .filter(pl.col("labelled_at").is_null() | (pl.col("labelled_at") < pl.col("queued_at")))
        .select(QUEUED)
        .sort(["priority", "document_id"], descending=[True, False])
        .unique("document_id", keep="first", maintain_order=True)
        .collect()
    )


def export_queue(path: str, limit: int | None = None) -> dict[str, Any]:
    """Write the waiting documents for people: Label Studio's tasks, or CSV where the name ends so.

    The queue stays as it is; exporting again writes the same tasks.

    Args:
        path: File to write; the labelling interface for Label Studio is written beside it.
        limit: Most documents; None is all.

    Raises:
        ServiceUnavailableError: If the file cannot be written.
    """
    from warpgauge.docquality.review_tasks import labelling_config, review_csv, review_tasks

    store = Store()
    waiting = _waiting(store).head(limit) if limit is not None else _waiting(store)
    documents = store.read("documents").join(
        waiting.lazy().select("document_id"), on="document_id", how="semi"
    )
    queue = waiting.join(documents.collect(), on="document_id", how="inner", maintain_order="left")
    queue = _with_answers(queue.with_columns(_text().alias("text")))
    target = Path(path).expanduser()
    is_csv = target.suffix.lower() == ".csv"
    content = review_csv(queue) if is_csv else json.dumps(review_tasks(queue), indent=1)
    written = [str(target)]
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServiceUnavailableError(f"{target} cannot be written: {error}; choose another place") from error
    replace_text(target, content)
    if not is_csv:
        replace_text(target.with_name(CONFIG_FILE), labelling_config())
        written.append(str(target.with_name(CONFIG_FILE)))
    lost = waiting.height - queue.height
    return {
        "documents": queue.height,
        "written": written,
        "refused": [f"{lost} queued documents are no longer in the table"] if lost else [],
    }


def _text() -> pl.Expr:
    """Body and code of a document as a person reads them."""
    return pl.concat_str(["body", "code"], separator="\n\n", ignore_nulls=True)


def _with_answers(queue: pl.DataFrame) -> pl.DataFrame:
    """The queue with the champion's answer to each document, where there is one that can answer."""
    champion = registration.alias_version(DOC_QUALITY, CHAMPION)
    if champion is None or queue.is_empty():
        return queue
    from tasks.embedding import embed, load_encoder
    from warpgauge.docquality.model import DocQualityModel
    from warpgauge.documents.checks import check_features

    try:
        model = DocQualityModel.from_files(registration.model_files(DOC_QUALITY, champion))
        encoder = load_encoder()
        vectors = embed(queue, encoder)
        scores = model.score(queue, vectors, check_features(queue), encoder_id=encoder.encoder_id)
    except (ModelFileError, ModelNotFoundError) as error:
        LOGGER.warning("tasks are written without the champion's answers: %s", error)
        return queue
    return queue.with_columns(
        scores["defect_probability"],
        scores["kinds"],
        pl.lit(f"{DOC_QUALITY} {champion}").alias("model_version"),
    )


def import_labels(paths: list[str]) -> dict[str, Any]:
    """Take people's answers back into the labels table; the same file twice adds nothing.

    Args:
        paths: Exports of Label Studio (JSON), or CSV files that `export_queue` began.

    Raises:
        NoDataError: If no answer could be taken.
    """
    from warpgauge.docquality.review_tasks import read_answers

    settings = load_settings()
    secret = settings.redaction_key
    key = None if secret is None else secret.get_secret_value()
    store = Store()
    known = store.read("documents").select("document_id").unique().collect()["document_id"]
    reports: list[dict[str, Any]] = []
    refused: list[str] = []
    for path in paths:
        try:
            answers = read_answers(_content(path, settings.fetch_size_limit_bytes), Path(path).name, key)
        except WarpgaugeError as error:
            refused.append(str(error))
            continue
        is_known = answers.labels["document_id"].is_in(known.implode())
        labels = _stamped(store, answers.labels.filter(is_known))
        strangers = answers.labels.filter(~is_known)["document_id"].to_list()
        refused += [*answers.problems, *(f"{path}: document {one} is not in the table" for one in strangers)]
        added = store.append("labels", labels).added if labels.height else 0
        reports.append(
            {
                "source": path,
                "answers": labels.height,
                "added": added,
                "skipped": answers.skipped_count,
                "refused": len(answers.problems) + len(strangers),
            }
        )
    if not any(report["answers"] for report in reports):
        raise NoDataError(
            f"no answer could be taken from {', '.join(paths)}: {'; '.join(refused) or 'nobody has answered'}"
        )
    return {"files": reports, "waiting": _waiting(store).height, "refused": refused}


def _stamped(store: Store, labels: pl.DataFrame) -> pl.DataFrame:
    """Answers without a time get now, or the time they have already: read twice, they are the same rows."""
    who = ["document_id", "annotator"]
    same = [*who, "is_defect"]
    known = (
        store.read("labels")
        .filter(pl.col("label_source") == "human")
        .group_by(same)
        .agg(pl.col("labelled_at").max().alias("known_at"))
        .collect()
    )
    now = pl.lit(datetime.now(UTC), dtype=labels.schema["labelled_at"])
    return labels.join(known, on=same, how="left", maintain_order="left").select(
        pl.coalesce("labelled_at", "known_at", now).alias("labelled_at")
        if name == "labelled_at"
        else pl.col(name)
        for name in labels.columns
    )


def _content(path: str, limit_bytes: int) -> str:
    try:
        if Path(path).stat().st_size > limit_bytes:
            raise SourceFileError(f"{path}: larger than {limit_bytes} bytes; split it")
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise SourceFileError(f"{path}: cannot be read as UTF-8 text: {error}") from error
