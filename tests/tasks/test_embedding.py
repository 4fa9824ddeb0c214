"""The cache of embeddings: what a run leaves in it, and what a damaged or unwritable one does."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from tasks.embedding import embed
from tasks.storage import STALE_AFTER_S, cache_dir
from tests.fakes import FakeEncoder
from warpgauge.documents.batch import document_row, documents_frame
from warpgauge.errors import ServiceUnavailableError


@pytest.fixture
def documents() -> pl.DataFrame:
    rows = [
        document_row(source="made/up", source_id=word, family="report", title=word, body=word, code=None)
        for word in ("stream", "event", "graph")
    ]
    return documents_frame(rows)


def folder() -> Path:
    return cache_dir("embeddings") / FakeEncoder.encoder_id[:16]


def test_second_run_encodes_nothing(
    project: Path, documents: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = embed(documents, FakeEncoder())
    assert len(list(folder().iterdir())) == 1
    encoded: list[str] = []
    whole = FakeEncoder.encode

    def encode(self: FakeEncoder, texts: Sequence[str | None]) -> NDArray[np.float32]:
        encoded.extend(text or "" for text in texts)
        return whole(self, texts)

    monkeypatch.setattr(FakeEncoder, "encode", encode)
    assert np.array_equal(embed(documents, FakeEncoder()), first)
    assert encoded == []


def test_damaged_and_unfinished_files_go_and_their_texts_are_encoded_again(
    project: Path, documents: pl.DataFrame
) -> None:
    first = embed(documents, FakeEncoder())
    damaged = next(folder().iterdir())
    damaged.write_bytes(damaged.read_bytes()[:-20])
    unfinished = folder() / ".a.partial"
    unfinished.write_bytes(b"x")
    long_ago = time.time() - STALE_AFTER_S - 60
    os.utime(unfinished, (long_ago, long_ago))
    assert np.array_equal(embed(documents, FakeEncoder()), first)
    left = list(folder().iterdir())
    assert len(left) == 1
    assert damaged not in left


def test_cache_in_whose_place_a_file_lies_is_a_service_error(project: Path, documents: pl.DataFrame) -> None:
    folder().parent.mkdir(parents=True, exist_ok=True)
    folder().write_text("a file")
    with pytest.raises(ServiceUnavailableError, match=r"the cache .*/embeddings/\w+ cannot be written"):
        embed(documents, FakeEncoder())


def test_full_disk_is_a_service_error_and_leaves_no_half_file(
    project: Path, documents: pl.DataFrame, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(ServiceUnavailableError, match="No space left on device") as caught:
        embed(documents, FakeEncoder())
    assert caught.value.exit_code == 3
    assert list(folder().iterdir()) == []


def test_damaged_vectors_in_a_whole_file_are_said_and_not_used(
    project: Path, documents: pl.DataFrame, caplog: pytest.LogCaptureFixture
) -> None:
    first = embed(documents, FakeEncoder())
    file = next(folder().iterdir())
    rows = pl.read_parquet(file)
    rows.with_columns(pl.lit([0.0] * 32, dtype=rows.schema["embedding"]).alias("embedding")).write_parquet(
        file
    )
    with caplog.at_level("WARNING", logger="warpgauge"):
        assert np.array_equal(embed(documents, FakeEncoder()), first)
    assert "3 damaged vectors in the cache were not used" in caplog.text
