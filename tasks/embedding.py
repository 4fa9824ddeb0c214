"""Embeddings of documents, made once for each text and kept beside the tables.

A document is encoded in batches, and each batch is kept before the next one starts, so a run that is
killed goes on where it was. Files of the cache are replaced whole, never written in place.
"""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tasks.storage import cache_dir, cache_unavailable, remove_stale
from warpgauge.settings import load_settings

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from warpgauge.docquality.encoder import Encoder
    from warpgauge.docquality.model import DocQualityModel

LOGGER = logging.getLogger("warpgauge")
DOCUMENTS_PER_BATCH = 512


def load_encoder() -> Encoder:
    """The encoder of the settings."""
    from warpgauge.docquality.encoder import Encoder

    settings = load_settings()
    return Encoder.load(
        tokens=settings.docquality_encoder_tokens, batch_size=settings.docquality_encoder_batch_size
    )


def embed(documents: pl.DataFrame, encoder: Encoder) -> NDArray[np.float32]:
    """Unit vectors of the documents, shape (documents, dimensions), from the cache where it has them.

    Raises:
        ServiceUnavailableError: If the cache cannot be written; batches kept before stay.
    """
    import numpy as np
    from tqdm import tqdm

    from warpgauge.docquality.embeddings import embed_documents

    folder = cache_dir(f"embeddings/{encoder.encoder_id[:16]}")
    cache = _read_cache(folder)
    parts = []
    encoded = damaged = 0
    starts = range(0, documents.height, DOCUMENTS_PER_BATCH)
    for start in tqdm(starts, desc="embedding", unit="batch", disable=None, leave=False):
        done = embed_documents(documents.slice(start, DOCUMENTS_PER_BATCH), encoder, cache)
        if done.encoded_count:
            _write_cache(folder, done.new_rows)
            cache = done.new_rows if cache is None else pl.concat([cache, done.new_rows])
            encoded += done.encoded_count
            if not sys.stderr.isatty():
                done_count = min(start + DOCUMENTS_PER_BATCH, documents.height)
                LOGGER.info("embedded %d of %d documents", done_count, documents.height)
        damaged += done.damaged_count
        parts.append(done.vectors)
    if damaged:
        LOGGER.warning("%s: %d damaged vectors in the cache were not used", folder, damaged)
    LOGGER.info("embeddings of %d documents: %d texts encoded now", documents.height, encoded)
    return np.concatenate(parts) if parts else np.empty((0, encoder.dimensions), dtype=np.float32)


def score_frame(model: DocQualityModel, frame: pl.DataFrame) -> pl.DataFrame:
    """Scores of documents that are in no table: title, body, code, family and source are enough."""
    from warpgauge.documents.checks import check_features
    from warpgauge.tables import DOCUMENTS

    documents = DOCUMENTS.conform(frame)
    # Rows need an id only to be told apart here.
    place = pl.int_range(pl.len()).cast(pl.String)
    documents = documents.with_columns(
        pl.coalesce("document_id", place).alias("document_id"),
        pl.coalesce("source_id", place).alias("source_id"),
        pl.col("family").fill_null("report"),
        pl.col("source").fill_null("given"),
    )
    encoder = load_encoder()
    vectors = encoder.encode([_text(row) for row in documents.select("title", "body").iter_rows(named=True)])
    return model.score(documents, vectors, check_features(documents), encoder_id=encoder.encoder_id)


def _text(row: dict[str, Any]) -> str:
    from warpgauge.docquality.encoder import document_text

    return document_text(row["title"], row["body"])


def _read_cache(folder: Path) -> pl.DataFrame | None:
    frames = []
    try:
        remove_stale(folder)
        for file in sorted(folder.glob("*.parquet")):
            try:
                frames.append(pl.read_parquet(file))
            except (pl.exceptions.PolarsError, OSError) as error:
                LOGGER.warning("%s: damaged cache file, its texts are encoded again (%s)", file, error)
                # Another run may have found it damaged too.
                file.unlink(missing_ok=True)
    except OSError as error:
        raise cache_unavailable(folder, error) from error
    return pl.concat(frames) if frames else None


def _write_cache(folder: Path, rows: pl.DataFrame) -> None:
    partial = folder / f".{uuid.uuid4().hex}.partial"
    try:
        rows.write_parquet(partial)
        os.replace(partial, folder / f"{uuid.uuid4().hex}.parquet")
    except (OSError, pl.exceptions.PolarsError) as error:
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        raise cache_unavailable(folder, error) from error
