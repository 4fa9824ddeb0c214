"""A model as two small files, checked before anything that cannot survive damage reads them.

`model.txt` is LightGBM's own text, `model.json` all that gives it meaning: feature order and types, category
tables, baseline, intervals. LightGBM ends the whole process on a truncated text, so the text's hash and outline are
checked first. The hashes prove that the two files are whole and belong together; they do not prove who
made them.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from warpgauge.errors import ModelFileError

TEXT_FILE = "model.txt"
DOCUMENT_FILE = "model.json"
# Far above any model of this project (1.2 MB); below what would exhaust memory while it is parsed.
LARGEST_FILE_BYTES = 256 * 1024 * 1024
LARGEST_NUMBER = 1e300
_REMEDY = "fetch the model's files again, or train a new version"


def seal(document: Mapping[str, Any], text: str) -> dict[str, bytes]:
    """The two files of a model.

    Args:
        document: JSON values only, finite numbers only; must name its `format`.
        text: LightGBM's model text.

    Returns:
        File name -> content; the same model gives the same bytes.
    """
    encoded = text.encode()
    body = {**document, "text_sha256": hashlib.sha256(encoded).hexdigest()}
    body["document_sha256"] = _document_sha256(body)
    content = json.dumps(body, indent=1, sort_keys=True, ensure_ascii=False, allow_nan=False)
    return {TEXT_FILE: encoded, DOCUMENT_FILE: (content + "\n").encode()}


def unseal(files: Mapping[str, bytes], expected_format: str) -> tuple[dict[str, Any], str]:
    """The document and the text of a model, after every check that does not need LightGBM.

    Raises:
        ModelFileError: If a file is absent, truncated, altered, not from the same model, or of another
            format.
    """
    for name in (TEXT_FILE, DOCUMENT_FILE):
        if name not in files:
            what = "its category table and feature order" if name == DOCUMENT_FILE else "its trees"
            raise ModelFileError(f"the model has no {name}, so {what} are absent; {_REMEDY}")
        if len(files[name]) > LARGEST_FILE_BYTES:
            raise ModelFileError(
                f"{name} has {len(files[name])} bytes, at most {LARGEST_FILE_BYTES} are read"
            )
    try:
        document = json.loads(files[DOCUMENT_FILE].decode(), parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{DOCUMENT_FILE} is not whole JSON: {error}; {_REMEDY}") from error
    if not isinstance(document, dict):
        raise ModelFileError(
            f"{DOCUMENT_FILE} holds a {type(document).__name__}, needed is an object; {_REMEDY}"
        )
    if document.get("format") != expected_format:
        raise ModelFileError(
            f"{DOCUMENT_FILE} has the format {document.get('format')!r}, this version reads "
            f"{expected_format!r}; train a new version"
        )
    if document.get("document_sha256") != _document_sha256(document):
        raise ModelFileError(f"{DOCUMENT_FILE} was altered: its SHA-256 does not fit; {_REMEDY}")
    found = hashlib.sha256(files[TEXT_FILE]).hexdigest()
    if document.get("text_sha256") != found:
        raise ModelFileError(
            f"{TEXT_FILE} ({len(files[TEXT_FILE])} bytes) is truncated, altered or of another model: SHA-256 "
            f"{found[:12]}..., needed is {str(document.get('text_sha256'))[:12]}...; {_REMEDY}"
        )
    try:
        return document, files[TEXT_FILE].decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{TEXT_FILE} is not text: {error}; {_REMEDY}") from error


def check_text_outline(text: str, feature_names: Sequence[str]) -> None:
    """Stop on a text that LightGBM would not survive, or whose inputs are not the stored ones.

    Raises:
        ModelFileError: If an end marker is absent or the features differ in name, number or order.
    """
    if not text.startswith("tree\n") or "\nend of trees\n" not in text or "\nend of parameters" not in text:
        raise ModelFileError(f"{TEXT_FILE} is not a whole LightGBM text model; {_REMEDY}")
    named = re.search(r"^feature_names=(.*)$", text, flags=re.MULTILINE)
    found = named.group(1).split(" ") if named else []
    if found != list(feature_names):
        raise ModelFileError(
            f"{TEXT_FILE} has the features {found}, {DOCUMENT_FILE} has {list(feature_names)}; {_REMEDY}"
        )


def take(document: Mapping[str, Any], name: str, kind: type | tuple[type, ...]) -> Any:
    """The value of that name, of that kind.

    Raises:
        ModelFileError: If it is absent or of another kind.
    """
    if not isinstance(document, Mapping):
        raise ModelFileError(
            f"{DOCUMENT_FILE}: a {type(document).__name__} stands where {name} should be named; {_REMEDY}"
        )
    if name not in document:
        raise ModelFileError(f"{DOCUMENT_FILE} lacks {name}; {_REMEDY}")
    value = document[name]
    if not isinstance(value, kind) or (isinstance(value, bool) and kind in (int, float, (int, float))):
        raise ModelFileError(f"{DOCUMENT_FILE}: {name} is a {type(value).__name__}; {_REMEDY}")
    return value


def take_number(document: Mapping[str, Any], name: str) -> float:
    """The finite number of that name.

    Raises:
        ModelFileError: If it is absent or anything else.
    """
    value = take(document, name, (int, float))
    if not abs(value) <= LARGEST_NUMBER:
        raise ModelFileError(f"{DOCUMENT_FILE}: {name} is no finite number; {_REMEDY}")
    return float(value)


def take_names(document: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """The list of texts of that name.

    Raises:
        ModelFileError: If it is absent or holds anything else.
    """
    values = take(document, name, list)
    if not all(isinstance(value, str) for value in values):
        raise ModelFileError(f"{DOCUMENT_FILE}: {name} holds something that is not text; {_REMEDY}")
    return tuple(values)


def take_key(document: Mapping[str, Any], length: int | None = None) -> tuple[str | None, ...]:
    """The `key` of a group: texts, null where rows had none.

    Args:
        document: What holds it.
        length: How many there have to be, None for any number.

    Raises:
        ModelFileError: If it is absent or anything else.
    """
    values = take(document, "key", list)
    if not all(value is None or isinstance(value, str) for value in values) or (
        length is not None and len(values) != length
    ):
        raise ModelFileError(f"{DOCUMENT_FILE}: {values!r:.80} is no key of a group; {_REMEDY}")
    return tuple(values)


def take_numbers(document: Mapping[str, Any], name: str) -> tuple[float, ...]:
    """The list of numbers of that name.

    Raises:
        ModelFileError: If it is absent or holds anything else.
    """
    values = take(document, name, list)
    if any(
        isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) <= LARGEST_NUMBER
        for value in values
    ):
        raise ModelFileError(
            f"{DOCUMENT_FILE}: {name} holds something that is not a finite number; {_REMEDY}"
        )
    return tuple(float(value) for value in values)


def _document_sha256(document: Mapping[str, Any]) -> str:
    """Hash of everything but the hash itself, independent of layout."""
    body = {key: value for key, value in document.items() if key != "document_sha256"}
    return hashlib.sha256(json.dumps(body, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a number")
