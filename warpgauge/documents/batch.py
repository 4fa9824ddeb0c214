"""What every document reader answers: documents, the labels that came with them, and what was odd.

Identity is made here and nowhere else, so that the same text read twice, by any reader and from any path, is
the same row.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import polars as pl

from warpgauge.tables import DOCUMENTS, LABELS


@dataclass(frozen=True)
class DocumentBatch:
    """Documents and labels of one source, ready for validation.

    Attributes:
        documents: Columns of `tables.DOCUMENTS`. `fetched_at` is null: only the caller has a clock.
        labels: Columns of `tables.LABELS`. `labelled_at` is null where the source does not say when; the
            caller stamps it, and keeps the stamp of a label it has already.
        problems: One sentence for each thing that was dropped or salvaged; empty for a whole input.
        counts: How many of what, for the log and the printed table.
    """

    documents: pl.DataFrame
    labels: pl.DataFrame
    problems: tuple[str, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


def content_sha256(title: str | None, body: str | None, code: str | None) -> str:
    """SHA-256 (64 hex digits) of title, body and code; null and empty differ."""
    return _sha256([title, body, code])


def document_id(source: str, source_id: str, product_version: str | None, content: str) -> str:
    """SHA-256 (64 hex digits) of source, source id, version and content.

    Args:
        source: Where the document comes from.
        source_id: Its name there.
        product_version: Version of the product documented, None where there is none.
        content: The document's `content_sha256`.
    """
    return _sha256([source, source_id, product_version, content])


def _sha256(parts: Sequence[str | None]) -> str:
    # JSON keeps the borders between the parts; joining them would let two different documents collide.
    return hashlib.sha256(json.dumps(parts, ensure_ascii=True).encode("ascii")).hexdigest()


def document_row(
    *,
    source: str,
    source_id: str,
    family: str,
    title: str | None,
    body: str | None,
    code: str | None,
    product_version: str | None = None,
    url: str | None = None,
    created_at: object = None,
    updated_at: object = None,
    redaction_count: int = 0,
) -> dict[str, object]:
    """One row of the documents table, with its identity; `fetched_at` is left to the caller."""
    content = content_sha256(title, body, code)
    return {
        "document_id": document_id(source, source_id, product_version, content),
        "source": source,
        "source_id": source_id,
        "family": family,
        "url": url,
        "title": title,
        "body": body,
        "code": code,
        "product_version": product_version,
        "created_at": created_at,
        "updated_at": updated_at,
        "fetched_at": None,
        "content_sha256": content,
        "redaction_count": redaction_count,
    }


def documents_frame(rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Rows of `document_row` as a frame of `tables.DOCUMENTS`."""
    return DOCUMENTS.conform(pl.DataFrame(list(rows), schema=DOCUMENTS.schema, orient="row"))


def labels_frame(rows: Sequence[Mapping[str, object]]) -> pl.DataFrame:
    """Rows with the columns of `tables.LABELS` as a frame of that table."""
    return LABELS.conform(pl.DataFrame(list(rows), schema=LABELS.schema, orient="row"))
