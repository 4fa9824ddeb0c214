r"""Labels that the history of a text gives: what a later version amended had been at fault.

The only judgement here is that whoever edits a text between two releases had a reason. It is a proxy for a human's
label, and the label says so (`label_source = history`).

Rules, for a header entry of version v, over the versions of the same `source_id` that were collected:
- A later version whose words differ makes the label True, by the first such version. Blanks, line ends, letter case,
  punctuation, version numbers, the order of return codes and the whole see-also list do not count as words: they change
  with every release without anybody having found a fault.
- If no later version differs, the label is False, by the newest version that has the entry. Comparing with the next version
  only would call one and the same text good in one version and faulty in the next.
- The newest version of an entry has no label: nobody can have amended it yet.
- An entry that a later version lacks has no label from that: removing a function says that it is gone, not that
  its text was wrong.

The rule is one annotator, `history:amended`, and dates its label by the version that it looked at. A version collected later
may find an amendment where the label said False so far: that adds a label with a later date, and the latest label of an
annotator counts. An annotator named after each version would leave both to vote against each other.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from warpgauge.documents.batch import labels_frame
from warpgauge.documents.checks import RETURN_CODE
from warpgauge.documents.cuda_headers import SOURCE, parse_declaration, parse_entry
from warpgauge.errors import SchemaError
from warpgauge.tables import KINDS

ANNOTATOR = "history:amended"
# Two words more alike than this are the same word spelled two ways ("recieve", "receive": 0.86).
TYPO_SIMILARITY = 0.8
# More words replaced than this are a new sentence, not a corrected spelling.
TYPO_WORD_LIMIT = 4
_VERSION_NUMBER = re.compile(r"\b\d+(?:\.\d+)+\b")
_WORD = re.compile(r"\w+")
# Commands that mark words up (`\p`, `\c`, `\ref`) or stand for a fixed sentence (`\note_init_rt`).
_MARKUP = re.compile(r"\\(?!deprecated\b)[A-Za-z_]+")


@dataclass(frozen=True)
class Wording:
    """What of an entry counts as its words.

    Attributes:
        words: Of the prose and of what the text says about each parameter, lower case, without numbers of versions.
        parameters: Documented parameters in order.
        codes: Return codes listed, as a set.
    """

    words: tuple[str, ...]
    parameters: tuple[str, ...]
    codes: frozenset[str]


def wording(body: str | None) -> Wording:
    """The words of a header entry that an amendment would change."""
    entry = parse_entry(body or "")
    returned = entry.return_text or ""
    rest_of_return = RETURN_CODE.sub(" ", returned)
    text = "\n".join((entry.prose, rest_of_return, *entry.code_blocks))
    return Wording(
        words=tuple(_WORD.findall(_MARKUP.sub(" ", _VERSION_NUMBER.sub(" ", text)).lower())),
        parameters=entry.parameters,
        codes=frozenset(RETURN_CODE.findall(returned)),
    )


def version_key(version: str) -> tuple[int, ...]:
    """Numbers of a version, for ordering: 12.10 comes after 12.9.

    Raises:
        SchemaError: If it is no version.
    """
    if not re.fullmatch(r"\d{1,9}(?:\.\d{1,9})*", version):
        raise SchemaError(f"product_version {version!r} is not numbers with dots, so versions have no order")
    return tuple(int(part) for part in version.split("."))


def label_amendments(documents: pl.DataFrame) -> pl.DataFrame:
    """Labels of header entries from what later versions amended.

    Args:
        documents: Rows of the documents table, any sources: `document_id`, `source`, `source_id`, `body`, `code`,
            `product_version`, `created_at` and, if there, `fetched_at`.

    Returns:
        Rows of `tables.LABELS`. `kinds` is empty for False. `nature` is `version` where the declaration changed too
        or the later text speaks of a deprecation, else `concept`, null for False. `labelled_at` is when the amending version was written (`created_at` of its
        entry, from the dates in the wheel), else when that entry was fetched, else null: never the clock, so
        the same label is the same row each time.

    Raises:
        SchemaError: If a column is missing or a version has no order.
    """
    needed = ["document_id", "source", "source_id", "body", "code", "product_version", "created_at"]
    missing = [name for name in needed if name not in documents.columns]
    if missing:
        raise SchemaError(f"documents lack {', '.join(missing)}; rows of the documents table are needed")
    optional = [name for name in ("fetched_at",) if name in documents.columns]
    entries = documents.filter(pl.col("source") == SOURCE, pl.col("product_version").is_not_null())
    histories: dict[str, list[dict[str, Any]]] = {}
    for row in entries.select(*needed, *optional).iter_rows(named=True):
        histories.setdefault(row["source_id"], []).append(row)
    labels: list[dict[str, object]] = []
    for history in histories.values():
        if len(history) < 2:
            continue
        history.sort(key=lambda row: (version_key(row["product_version"]), row["document_id"]))
        wordings = [wording(row["body"]) for row in history]
        for index, row in enumerate(history):
            own_version = version_key(row["product_version"])
            later = [
                other
                for other in range(index + 1, len(history))
                if version_key(history[other]["product_version"]) > own_version
            ]
            if not later:
                continue
            amended = next((other for other in later if wordings[other] != wordings[index]), None)
            other = later[-1] if amended is None else amended
            labels.append(_label(row, history[other], wordings[index], wordings[other]))
    return labels_frame(labels)


def _label(
    row: Mapping[str, Any], later: Mapping[str, Any], before: Wording, after: Wording
) -> dict[str, object]:
    is_defect = before != after
    is_of_version = _signature(row["code"]) != _signature(later["code"]) or _deprecates(before, after)
    return {
        "document_id": row["document_id"],
        "annotator": ANNOTATOR,
        "labelled_at": later["created_at"] or later.get("fetched_at"),
        "label_source": "history",
        "is_defect": is_defect,
        "kinds": amendment_kinds(before, after, _declared(row["code"])) if is_defect else [],
        "nature": ("version" if is_of_version else "concept") if is_defect else None,
    }


def _signature(code: str | None) -> object:
    """What a caller sees of a declaration: attributes and storage words change without it."""
    declaration = parse_declaration(code or "")
    if declaration is None:
        return code
    return declaration.return_type, declaration.types, declaration.parameters


def _deprecates(before: Wording, after: Wording) -> bool:
    """Whether the later text speaks of a deprecation that the earlier one does not know."""
    return any(word.startswith("deprecat") for word in after.words) and not any(
        word.startswith("deprecat") for word in before.words
    )


def _declared(code: str | None) -> frozenset[str]:
    declaration = parse_declaration(code or "")
    return frozenset(name for name in declaration.parameters if name) if declaration else frozenset()


def amendment_kinds(before: Wording, after: Wording, declared: frozenset[str]) -> list[str]:
    """Kinds of defect that an amendment mended, in the order of `tables.KINDS`.

    A parameter that the text names in the later version only was missing if the earlier declaration had it; one that it names in the
    earlier version only was wrong if the earlier declaration lacked it. A return code added, or words added with none taken
    away, was missing content; a deprecation that the earlier text does not know made it outdated; a few words replaced by words
    spelled almost the same were typos; words taken away or replaced otherwise were incorrect content. Words that only changed place were unclear.

    Args:
        before, after: The wordings.
        declared: Parameters that the earlier version's declaration has.
    """
    kinds: set[str] = set()
    added = set(after.parameters) - set(before.parameters)
    removed = set(before.parameters) - set(after.parameters)
    if added & declared:
        kinds.add("missing_parameter")
    if removed - declared:
        kinds.add("wrong_parameter")
    if after.codes - before.codes:
        kinds.add("missing_content")
    if before.codes - after.codes:
        kinds.add("incorrect_content")
    if _deprecates(before, after):
        kinds.add("outdated_api")
    elif before.words != after.words:
        kinds |= _word_kinds(before.words, after.words)
    if not kinds:
        kinds.add("unclear")
    return [kind for kind in KINDS if kind in kinds]


def _word_kinds(before: tuple[str, ...], after: tuple[str, ...]) -> set[str]:
    if sorted(before) == sorted(after):
        return {"unclear"}
    kinds: set[str] = set()
    # Without the shortcut for frequent words ("the"), which would make changes of long texts look larger.
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    for tag, start, end, other_start, other_end in matcher.get_opcodes():
        if tag == "insert":
            kinds.add("missing_content")
        elif tag == "delete":
            kinds.add("typo" if _repeats(before, start, end) else "incorrect_content")
        elif tag == "replace":
            old, new = before[start:end], after[other_start:other_end]
            kinds.add("typo" if _is_respelling(old, new) else "incorrect_content")
    return kinds


def _repeats(words: tuple[str, ...], start: int, end: int) -> bool:
    """One word taken away that stands beside its double."""
    return end - start == 1 and words[start] in words[max(0, start - 1) : start] + words[end : end + 1]


def _is_respelling(old: tuple[str, ...], new: tuple[str, ...]) -> bool:
    """Whether few words became other spellings of the same words; numbers and codes never are."""
    if len(old) > TYPO_WORD_LIMIT or len(new) > TYPO_WORD_LIMIT:
        return False
    joined_old, joined_new = "".join(old), "".join(new)
    if not (joined_old.isalpha() and joined_new.isalpha()):
        return False
    return difflib.SequenceMatcher(None, joined_old, joined_new).ratio() >= TYPO_SIMILARITY
