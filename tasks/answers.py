"""What people have answered about documents: the labels that count as a person's word."""

from __future__ import annotations

from datetime import datetime

import polars as pl

from tasks.storage import Store
from warpgauge.registry.names import DOC_QUALITY


def answered_documents(store: Store) -> pl.DataFrame:
    """document_id and the time of the newest human label of each document that has one."""
    return (
        store.read("labels")
        .filter(pl.col("label_source") == "human")
        .group_by("document_id")
        .agg(pl.col("labelled_at").max())
        .collect()
    )


def answered_reviews() -> dict[str, datetime]:
    """Model -> time of the newest human label that answered one of its queued documents."""
    store = Store()
    newest = (
        store.read("review_queue")
        .join(answered_documents(store).lazy(), on="document_id", how="inner")
        .filter(pl.col("labelled_at") >= pl.col("queued_at"))
        .select(pl.col("labelled_at").max())
        .collect()
        .item()
    )
    return {} if newest is None else {DOC_QUALITY: newest}
