import numpy as np
import polars as pl
import pytest

from warpgauge.docquality.embeddings import CACHE_SCHEMA, embed_documents, text_sha256
from warpgauge.errors import SchemaError


class CountingEncoder:
    """Two numbers a text; remembers what it was asked."""

    dimensions = 2

    def __init__(self, encoder_id: str = "a") -> None:
        self.encoder_id = encoder_id
        self.asked: list[str] = []

    def encode(self, texts):
        self.asked += texts
        angles = np.array([int(text_sha256(text)[:4], 16) for text in texts], dtype=np.float64)
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def documents(*titles):
    return pl.DataFrame({"title": titles, "body": None}, schema={"title": pl.String, "body": pl.String})


def test_equal_texts_are_encoded_once_and_rows_follow_the_documents():
    encoder = CountingEncoder()
    embedded = embed_documents(documents("x", "y", "x"), encoder)
    assert encoder.asked == ["x", "y"]
    assert np.array_equal(embedded.vectors[0], embedded.vectors[2])
    assert np.array_equal(embedded.vectors, CountingEncoder().encode(["x", "y", "x"]))
    assert (embedded.encoded_count, embedded.cached_count, embedded.new_rows.height) == (2, 0, 2)


def test_second_run_encodes_only_what_is_new():
    first = embed_documents(documents("x", "y"), CountingEncoder())
    encoder = CountingEncoder()
    second = embed_documents(documents("z", "y", "x"), encoder, first.new_rows)
    assert encoder.asked == ["z"]
    assert (second.encoded_count, second.cached_count) == (1, 2)
    assert np.array_equal(second.vectors, CountingEncoder().encode(["z", "y", "x"]))


def test_rows_of_another_encoder_are_never_used():
    cache = embed_documents(documents("x"), CountingEncoder("a")).new_rows
    encoder = CountingEncoder("b")
    assert embed_documents(documents("x"), encoder, cache).cached_count == 0
    assert encoder.asked == ["x"]


@pytest.mark.parametrize("vector", [[1.0], [float("nan"), 1.0], [2.0, 0.0], [None, 1.0], None])
def test_damaged_rows_are_encoded_again_and_counted(vector):
    cache = pl.DataFrame(
        {"text_sha256": [text_sha256("x")], "encoder_id": ["a"], "embedding": [vector]}, schema=CACHE_SCHEMA
    )
    embedded = embed_documents(documents("x"), CountingEncoder(), cache)
    assert embedded.damaged_count == 1
    assert np.array_equal(embedded.vectors, CountingEncoder().encode(["x"]))


def test_cache_survives_parquet(tmp_path):
    first = embed_documents(documents("x", "y"), CountingEncoder())
    first.new_rows.write_parquet(tmp_path / "cache.parquet")
    again = embed_documents(
        documents("x", "y"), CountingEncoder(), pl.read_parquet(tmp_path / "cache.parquet")
    )
    assert again.encoded_count == 0
    assert np.array_equal(again.vectors, first.vectors)


def test_no_documents_need_no_vectors():
    embedded = embed_documents(documents(), CountingEncoder())
    assert embedded.vectors.shape == (0, 2)
    assert embedded.new_rows.schema == CACHE_SCHEMA


def test_cache_of_another_shape_is_refused_by_column():
    with pytest.raises(SchemaError, match="embedding"):
        embed_documents(
            documents("x"), CountingEncoder(), pl.DataFrame({"text_sha256": ["x"], "encoder_id": ["a"]})
        )
