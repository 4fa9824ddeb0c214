"""A reference as two files that belong together: safetensors for the arrays, JSON with their hash for the rest.

Both references that a model version carries are written and checked this way, before anything reads an array.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from warpgauge.errors import ModelFileError

HASH_FACT = "tensors_sha256"


def reference_files(
    tensors_file: str, tensors: bytes, facts_file: str, facts: Mapping[str, Any]
) -> dict[str, bytes]:
    """File name -> content, with the arrays' SHA-256 among the facts."""
    sealed = {**facts, HASH_FACT: hashlib.sha256(tensors).hexdigest()}
    return {tensors_file: tensors, facts_file: json.dumps(sealed, indent=2, sort_keys=True).encode()}


def checked_files(
    files: Mapping[str, bytes], tensors_file: str, facts_file: str, expected_format: str
) -> tuple[bytes, dict[str, Any]]:
    """The arrays' bytes and the facts of a reference.

    Raises:
        ModelFileError: If a file is missing, truncated, altered or of another format.
    """
    for name in (tensors_file, facts_file):
        if name not in files:
            raise ModelFileError(f"{name} is missing; the reference needs {tensors_file} and {facts_file}")
    try:
        facts = json.loads(files[facts_file])
    except ValueError as error:
        raise ModelFileError(f"{facts_file}: not JSON, so cut or altered: {error}") from error
    if not isinstance(facts, dict) or facts.get("format") != expected_format:
        found = facts.get("format") if isinstance(facts, dict) else type(facts).__name__
        raise ModelFileError(
            f"{facts_file}: format is {found!r}, this version reads {expected_format!r}; train a new version"
        )
    sha256 = hashlib.sha256(files[tensors_file]).hexdigest()
    if sha256 != facts.get(HASH_FACT):
        raise ModelFileError(
            f"{tensors_file}: SHA-256 is {sha256}, {facts_file} states {facts.get(HASH_FACT)}; "
            "it was cut or altered, fetch the model's files again"
        )
    return files[tensors_file], facts
