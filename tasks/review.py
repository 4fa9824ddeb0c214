"""The human queue: documents that a person should judge, and why."""

from __future__ import annotations

import logging
from datetime import UTC, datetime

import polars as pl

from tasks import registration
from tasks.monitoring import new_rows
from tasks.registration import CHAMPION
from tasks.storage import Store
from warpgauge.registry.names import DOC_QUALITY
from warpgauge.settings import load_settings

LOGGER = logging.getLogger("warpgauge")
QUEUED_DOCUMENTS = 30
REVIEW_REASON = "embedding drift: does the documentation model still hold here?"


def queue_documents() -> None:
    """Put the newest documents that lie farthest from the champion's reference before a person."""
    import numpy as np

    from tasks.embedding import embed, load_encoder
    from warpgauge.drift.components import Reference, distances

    settings = load_settings()
    store = Store()
    now = datetime.now(UTC)
    champion = registration.alias_version(DOC_QUALITY, CHAMPION)
    if champion is None:
        LOGGER.warning("no document queued for review: %s has no champion any more", DOC_QUALITY)
        return
    documents = new_rows(store, "documents", "fetched_at", DOC_QUALITY, champion, settings, now)
    if documents.is_empty():
        return
    reference = Reference.from_files(registration.model_files(DOC_QUALITY, champion))
    away = distances(reference, embed(documents, load_encoder()))
    farthest = np.argsort(-away)[:QUEUED_DOCUMENTS]
    queue = pl.DataFrame(
        {
            "document_id": documents["document_id"].gather(farthest),
            "why": [REVIEW_REASON] * len(farthest),
            "queued_at": [now] * len(farthest),
            "priority": away[farthest],
        }
    )
    store.append("review_queue", queue)
