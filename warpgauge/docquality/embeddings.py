"""Which texts must be encoded now? Vectors are kept by the hash of their text and the encoder's id.

Encoding is the slow step (about 35 texts a second on one core), so a text is encoded once in its life: the
same words in two versions of a header, or on the next run, cost nothing. The cache is a frame that the
caller stores; a row of another encoder is never used, and a damaged row is encoded again and counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import polars as pl
from numpy.typing import NDArray

from warpgauge.docquality.encoder import document_texts
from warpgauge.errors import SchemaError

# A list column, not a fixed-size array: every store gives lists back.
CACHE_SCHEMA = pl.Schema(
    {"text_sha256": pl.String(), "encoder_id": pl.String(), "embedding": pl.List(pl.Float32())}
)

# fp32 rounding moves the length of a unit vector by about 1e-7; 1e-3 is damage.
_UNIT_TOLERANCE = 1e-3


class TextEncoder(Protocol):
    """What the cache needs of an encoder."""

    @property
    def encoder_id(self) -> str: ...

    @property
    def dimensions(self) -> int: ...

    def encode(self, texts: Sequence[str | None]) -> NDArray[np.float32]: ...


@dataclass(frozen=True)
class Embedded:
    """Vectors of documents and what they cost.

    Attributes:
        vectors: Unit vectors, shape (documents, dimensions), rows in the documents' order.
        new_rows: Rows to append to the cache, columns of CACHE_SCHEMA; none of them is in it yet.
        cached_count: Documents whose vector was in the cache.
        encoded_count: Texts that were encoded now (equal texts count once).
        damaged_count: Cache rows of this encoder that were unusable and not read.
    """

    vectors: NDArray[np.float32]
    new_rows: pl.DataFrame
    cached_count: int
    encoded_count: int
    damaged_count: int


def text_sha256(text: str) -> str:
    """SHA-256 of a text as it is handed to the encoder, the cache's key."""
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


def embed_documents(
    documents: pl.DataFrame, encoder: TextEncoder, cache: pl.DataFrame | None = None
) -> Embedded:
    """Vectors of all documents, from the cache where it has them.

    Args:
        documents: Rows of the documents table; title and body are read.
        encoder: Encodes what the cache lacks.
        cache: Frame with the columns of CACHE_SCHEMA, None for an empty one.

    Raises:
        SchemaError: If a column is missing from documents or cache.
    """
    texts = document_texts(documents)
    keys = [text_sha256(text) for text in texts]
    known, damaged_count = _usable(cache, encoder, set(keys))
    missing = {key: text for key, text in zip(keys, texts, strict=True) if key not in known}
    vectors = encoder.encode(list(missing.values()))
    new = dict(zip(missing, vectors, strict=True))
    cached_count = sum(key in known for key in keys)
    known |= new
    return Embedded(
        vectors=np.array([known[key] for key in keys], dtype=np.float32).reshape(-1, encoder.dimensions),
        new_rows=pl.DataFrame(
            {
                "text_sha256": list(new),
                "encoder_id": [encoder.encoder_id] * len(new),
                "embedding": [vector.tolist() for vector in new.values()],
            },
            schema=CACHE_SCHEMA,
        ),
        cached_count=cached_count,
        encoded_count=len(new),
        damaged_count=damaged_count,
    )


def _usable(
    cache: pl.DataFrame | None, encoder: TextEncoder, wanted: set[str]
) -> tuple[dict[str, NDArray[np.float32]], int]:
    """Whole vectors of this encoder among the cache's rows, and how many were damaged."""
    if cache is None:
        return {}, 0
    if missing := [name for name in CACHE_SCHEMA if name not in cache.columns]:
        raise SchemaError(
            f"embedding cache lacks column {', '.join(missing)}; it has {', '.join(cache.columns) or 'none'}; "
            f"delete it, it is made again"
        )
    rows = cache.filter(
        (pl.col("encoder_id") == encoder.encoder_id) & pl.col("text_sha256").is_in(list(wanted))
    )
    known: dict[str, NDArray[np.float32]] = {}
    damaged_count = 0
    for key, values in rows.select("text_sha256", "embedding").iter_rows():
        whole = values is not None and len(values) == encoder.dimensions and None not in values
        vector = np.asarray(values, dtype=np.float32) if whole else np.empty(0, dtype=np.float32)
        if whole and abs(float(np.linalg.norm(vector)) - 1.0) <= _UNIT_TOLERANCE:
            known[key] = vector
        else:
            damaged_count += 1
    return known, damaged_count
