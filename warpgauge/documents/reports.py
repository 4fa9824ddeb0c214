"""Texts about documentation from JSON lines: issues, pull requests, questions, tickets, with their labels.

One object a line: `source`, `source_id`, `title`, `body`, and if there `url`, `code`, `label`, `kinds`, `nature`, `annotator`,
`labelled_at`, `created_at`, `updated_at`, `product_version`. A file with other names is read by a map.

A file with one bad line is refused whole, because a cut or mixed-up file that is half read looks like a small one; with
`keep_whole` the bad lines are counted and named instead. What a store cannot keep (lone surrogate halves,
NUL) is mended and counted, what is secret is taken out, both before the frame leaves here.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from warpgauge.documents.batch import DocumentBatch, document_row, documents_frame, labels_frame
from warpgauge.documents.cleaning import clean_markdown, mend_text, split_code
from warpgauge.documents.redaction import RedactionRules, redact_fields, redact_identifier
from warpgauge.errors import NoDataError, SettingsError, SourceFileError
from warpgauge.source_file import read_source_file
from warpgauge.tables import KINDS, NATURES

REQUIRED_FIELDS = ("source", "source_id", "title", "body")
OPTIONAL_FIELDS = (
    "url",
    "code",
    "label",
    "kinds",
    "nature",
    "annotator",
    "labelled_at",
    "created_at",
    "updated_at",
    "product_version",
)
FIELDS = REQUIRED_FIELDS + OPTIONAL_FIELDS
# What files are known to call the fields; only for the suggestion in a refusal, never used unasked.
FIELD_ALIASES: Mapping[str, tuple[str, ...]] = {
    "source": ("repo", "repository", "site", "project", "origin"),
    "source_id": ("id", "number", "commit", "key", "issue", "question_id", "sha", "url", "html_url"),
    "title": ("subject", "summary", "name", "headline", "message"),
    "body": ("text", "description", "content", "question", "message"),
    "created_at": ("date", "created", "creation_date", "timestamp"),
    "url": ("html_url", "link", "web_url"),
    "product_version": ("version",),
    "annotator": ("labeler", "rater", "user"),
}
# Label: is it a defect, and who says so. `doc_only` and `code_fix` say which files a commit touched.
LABELS: Mapping[object, tuple[bool, str]] = {
    "defect": (True, "human"),
    "true": (True, "human"),
    True: (True, "human"),
    "ok": (False, "human"),
    "false": (False, "human"),
    False: (False, "human"),
    "doc_only": (True, "history"),
    "code_fix": (False, "history"),
}
HISTORY_ANNOTATOR = "history:files-touched"
UNNAMED_ANNOTATOR = "unnamed"
# Problems named in the batch; the rest is in the count.
PROBLEM_LIMIT = 20
# Numbers of seconds since 1970 beyond these are not the time of a document.
YEAR_LIMITS = (1970, 2200)


class _LineError(Exception):
    """Why one line is no report."""


def parse_map(text: str) -> dict[str, str]:
    """A map of field names as the command line takes it.

    Args:
        text: `field=name in the file`, separated by commas; empty for none.

    Returns:
        Field of this product to name in the file.

    Raises:
        SettingsError: If a part has no equals sign, a field is unknown or is given twice, or a name is empty.

    >>> parse_map("body=text,source=repo")
    {'body': 'text', 'source': 'repo'}
    """
    mapping: dict[str, str] = {}
    for part in text.split(",") if text.strip() else []:
        field, sign, name = (piece.strip() for piece in part.partition("="))
        if not sign or not field or not name:
            raise SettingsError(f"--map {text!r}: {part!r} is not FIELD=NAME, as in body=text,source=repo")
        if field not in FIELDS:
            raise SettingsError(f"--map {text!r}: unknown field {field!r}; fields are {', '.join(FIELDS)}")
        if field in mapping:
            raise SettingsError(f"--map {text!r}: {field} is given twice")
        mapping[field] = name
    return mapping


def read_reports(
    path: Path,
    mapping: Mapping[str, str],
    *,
    size_limit_bytes: int,
    keep_whole: bool = False,
    rules: RedactionRules | None = None,
) -> DocumentBatch:
    """Reports and their labels from a JSON lines file, plain or gzip.

    Args:
        path: The file.
        mapping: Field of this product to name in the file (`parse_map`); fields not named keep their names.
        size_limit_bytes: Largest decompressed file.
        keep_whole: Keep the good lines of a file with bad ones.
        rules: What is secret; None for what is secret everywhere.

    Returns:
        Documents of family `report`. Label `defect`, `doc_only` or true is a defect; `ok`, `code_fix` or
        false is none; null is unlabelled. A person's label says who by a hash of the name, `labelled_at` null if
        the file does not say; a label from history has the document's own time. The same text labelled by several
        annotators is one document with several labels. Counts: `lines`, `documents`, `labelled`, `positive`,
        `bad_lines`, `null_bodies`, `surrogates_replaced`, `nuls_removed`, `redactions`.

    Raises:
        SourceFileError: If the file cannot be read, is not JSON lines, needs another map, or has a bad line (file,
            line and reason are named).
        NoDataError: If `keep_whole` kept nothing.
    """
    rules = rules or RedactionRules()
    source = read_source_file(
        path, what="report file", size_limit_bytes=size_limit_bytes, keep_whole=keep_whole
    )
    content = source.data
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        bad_line = content.count(b"\n", 0, error.start) + 1
        if not keep_whole:
            raise SourceFileError(
                f"{path}: line {bad_line} is not UTF-8 ({error.reason} at byte {error.start}); "
                "save the file as UTF-8, or read the other lines with --keep-whole"
            ) from error
        # Lines are told apart below; a line with such a byte is dropped there.
        text = content.decode("utf-8-sig", errors="surrogateescape")
    # Only a line feed ends a line: JSON may hold other characters that `splitlines` would break at.
    lines = text.rstrip("\r\n \t").split("\n")
    reader = _ReportReader(mapping, rules)
    problems = [source.problem] if source.problem else []
    bad_count = 0
    for number, line in enumerate(lines, start=1):
        try:
            reader.add(line, number)
        except _LineError as error:
            if number == 1:
                _refuse_foreign_file(path, line, mapping, error)
            if not keep_whole:
                last = " (the last line: the file may be cut)" if number == len(lines) > 1 else ""
                raise SourceFileError(
                    f"{path}: line {number}{last}: {error}; repair the line, or read the others with --keep-whole"
                ) from error
            bad_count += 1
            if bad_count <= PROBLEM_LIMIT:
                problems.append(f"{path}: line {number} dropped: {error}")
    if bad_count > PROBLEM_LIMIT:
        problems.append(f"{path}: {bad_count - PROBLEM_LIMIT} more lines dropped")
    if not reader.documents:
        raise NoDataError(
            f"{path}: none of {len(lines)} lines is a report; {problems[0] if problems else ''}"
        )
    counts = {
        "lines": len(lines),
        "documents": len(reader.documents),
        "labelled": len({label["document_id"] for label in reader.labels}),
        "positive": len({label["document_id"] for label in reader.labels if label["is_defect"]}),
        "bad_lines": bad_count,
        "null_bodies": reader.counts["null_bodies"],
        "surrogates_replaced": reader.counts["surrogates_replaced"],
        "nuls_removed": reader.counts["nuls_removed"],
        "redactions": reader.counts["redactions"],
    }
    return DocumentBatch(
        documents_frame(list(reader.documents.values())), labels_frame(reader.labels), tuple(problems), counts
    )


def _refuse_foreign_file(path: Path, line: str, mapping: Mapping[str, str], error: Exception) -> None:
    """Refuse a file whose first line shows that it is of another kind, or calls its fields otherwise."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        start = line[:60].strip()
        raise SourceFileError(
            f"{path}: line 1 is not JSON (it begins with {start!r}); one JSON object a line is needed"
        ) from error
    if not isinstance(record, dict):
        raise SourceFileError(
            f"{path}: line 1 holds a JSON {type(record).__name__}, one object a line is needed "
            "(`jq -c '.[]'` makes lines of a list)"
        ) from error
    missing = [field for field in REQUIRED_FIELDS if mapping.get(field, field) not in record]
    if missing:
        raise SourceFileError(
            f"{path}: line 1 has no {', '.join(mapping.get(field, field) for field in missing)}; it has "
            f"{', '.join(repr(str(name)) for name in list(record)[:30]) or 'no fields'}; {_suggestion(record, mapping, missing)}"
        ) from error


def _suggestion(record: Mapping[str, object], mapping: Mapping[str, str], missing: list[str]) -> str:
    """A map that would read the record, as far as its names tell."""
    suggested = {field: name for field, name in mapping.items() if name in record}
    taken = set(suggested.values()) | {field for field in FIELDS if field in record and field not in mapping}
    wanted = [*missing, *(field for field in ("created_at", "url", "product_version") if field not in record)]
    for field in wanted:
        if field in suggested:
            continue
        name = next(
            (alias for alias in FIELD_ALIASES.get(field, ()) if alias in record and alias not in taken), None
        )
        if name is not None:
            suggested[field] = name
            taken.add(name)
    left = [field for field in missing if field not in suggested]
    parts = [f"{field}={name}" for field, name in suggested.items()] + [f"{field}=..." for field in left]
    return f"name them with --map {','.join(parts)}"


class _ReportReader:
    """Documents and labels of the lines so far."""

    def __init__(self, mapping: Mapping[str, str], rules: RedactionRules) -> None:
        self.names = {field: mapping.get(field, field) for field in FIELDS}
        self.rules = rules
        self.documents: dict[str, dict[str, object]] = {}
        self.labels: list[dict[str, object]] = []
        self.counts: Counter[str] = Counter()
        self._seen: dict[tuple[str, str | None], int] = {}

    def add(self, line: str, number: int) -> None:
        """Take one line, or nothing of it.

        Raises:
            _LineError: If the line is no report.
        """
        record = _record(line)
        values = {field: record.get(name) for field, name in self.names.items()}
        for field in REQUIRED_FIELDS:
            if self.names[field] not in record:
                raise _LineError(f"no field {self.names[field]}")
        counts: Counter[str] = Counter()
        source = self._identifier(values, "source", counts)
        source_id = self._identifier(values, "source_id", counts)
        texts = [
            self._text(values, field, counts) for field in ("title", "body", "code", "url", "product_version")
        ]
        title, body, code, url, product_version = texts
        if not (title and title.strip()) and not (body and body.strip()) and not (code and code.strip()):
            raise _LineError(f"{self.names['title']} and {self.names['body']} are both empty")
        body, fenced = split_code(clean_markdown(body)) if body else (body, "")
        code = "\n".join(part for part in (code, fenced) if part) or None
        title = " ".join(title.split()) if title else None
        source, found_in_source = redact_identifier("source", source, self.rules)
        source_id, found_in_source_id = redact_identifier("source_id", source_id, self.rules)
        (title, body, code, url, product_version), found = redact_fields(
            [title, body or None, code, url, product_version], self.rules
        )
        redaction_count = sum(sum(each.values()) for each in (found_in_source, found_in_source_id, found))
        label = self._label(values)
        row = document_row(
            source=source,
            source_id=source_id,
            family="report",
            title=title or None,
            body=body or None,
            code=code,
            product_version=product_version or None,
            url=url or None,
            created_at=self._time(values, "created_at"),
            updated_at=self._time(values, "updated_at"),
            redaction_count=redaction_count,
        )
        identity = (str(row["document_id"]), None if label is None else str(label["annotator"]))
        if identity in self._seen:
            raise _LineError(
                f"repeats line {self._seen[identity]}: {source} {source_id} with the same text"
                + ("" if label is None else " and the same annotator")
            )
        self._seen[identity] = number
        if str(row["document_id"]) not in self.documents:
            self.documents[str(row["document_id"])] = row
            counts["redactions"] = redaction_count
            counts["null_bodies"] = row["body"] is None and code is None
            self.counts += counts
        if label is not None:
            labelled_at = label["labelled_at"]
            if label["label_source"] == "history" and labelled_at is None:
                # The commit that touched the files is the label, and the document's own time is its time.
                labelled_at = row["created_at"]
            self.labels.append(label | {"document_id": row["document_id"], "labelled_at": labelled_at})

    def _identifier(self, values: Mapping[str, Any], field: str, counts: Counter[str]) -> str:
        value = values[field]
        if isinstance(value, int) and not isinstance(value, bool):
            value = str(value) if abs(value) < 10**18 else None
        if not isinstance(value, str) or not value.strip():
            raise _LineError(f"{self.names[field]} is {_shown(value)}, a name or a whole number is needed")
        return self._mended(value.strip(), counts)

    def _text(self, values: Mapping[str, Any], field: str, counts: Counter[str]) -> str | None:
        value = values[field]
        if value is None:
            return None
        if not isinstance(value, str):
            raise _LineError(f"{self.names[field]} is {_shown(value)}, text is needed")
        return self._mended(value, counts)

    @staticmethod
    def _mended(text: str, counts: Counter[str]) -> str:
        mended, surrogate_count, nul_count = mend_text(text)
        counts["surrogates_replaced"] += surrogate_count
        counts["nuls_removed"] += nul_count
        return mended

    def _time(self, values: Mapping[str, Any], field: str) -> datetime | None:
        value = values[field]
        if value is None:
            return None
        try:
            if isinstance(value, str):
                moment = datetime.fromisoformat(value.strip())
                moment = moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment.astimezone(UTC)
            elif isinstance(value, int | float) and not isinstance(value, bool):
                moment = datetime.fromtimestamp(value, UTC)
            else:
                raise ValueError("neither text nor seconds since 1970")
        except (ValueError, OverflowError, OSError) as error:
            raise _LineError(
                f"{self.names[field]} is {_shown(value)}, a time like 2026-01-31T12:00:00Z is needed"
            ) from error
        if not YEAR_LIMITS[0] <= moment.year < YEAR_LIMITS[1]:
            raise _LineError(f"{self.names[field]} is {_shown(value)}, a year from 1970 to 2199 is needed")
        return moment

    def _label(self, values: Mapping[str, Any]) -> dict[str, object] | None:
        value = values["label"]
        kinds = self._kinds(values["kinds"])
        nature = values["nature"]
        if nature is not None and nature not in NATURES:
            raise _LineError(f"unknown nature {_shown(nature)}; natures are {', '.join(NATURES)}")
        annotator = values["annotator"]
        if annotator is not None and (not isinstance(annotator, str) or not annotator.strip()):
            raise _LineError(f"{self.names['annotator']} is {_shown(annotator)}, a name is needed")
        if value is None:
            return None
        known = value.strip().lower() if isinstance(value, str) else value
        if not isinstance(known, str | bool) or known not in LABELS:
            raise _LineError(
                f"unknown label {_shown(value)}; labels are defect, doc_only or true, and ok, code_fix or false"
            )
        is_defect, label_source = LABELS[known]
        if label_source == "history":
            named = HISTORY_ANNOTATOR
        else:
            named = self.rules.hashed("annotator", mend_text((annotator or UNNAMED_ANNOTATOR).strip())[0])
        return {
            "annotator": named,
            "labelled_at": self._time(values, "labelled_at"),
            "label_source": label_source,
            "is_defect": is_defect,
            "kinds": kinds if is_defect else [],
            "nature": nature if is_defect else None,
        }

    def _kinds(self, value: object) -> list[str] | None:
        if value is None:
            return None
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        if not isinstance(value, list) or not all(isinstance(kind, str) for kind in value):
            raise _LineError(f"{self.names['kinds']} is {_shown(value)}, a list of kinds is needed")
        unknown = [kind for kind in value if kind not in KINDS]
        if unknown:
            raise _LineError(f"unknown kind {_shown(unknown[0])}; kinds are {', '.join(KINDS)}")
        return [kind for kind in KINDS if kind in value]


def _record(line: str) -> dict[str, Any]:
    if not line.strip():
        raise _LineError("the line is empty")
    if re.search("[\udc80-\udcff]", line):
        raise _LineError("it is not UTF-8")
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        reason = (
            error.msg if isinstance(error, json.JSONDecodeError) else "a number too long or nested too deeply"
        )
        raise _LineError(f"not JSON ({reason})") from error
    if not isinstance(record, dict):
        raise _LineError(f"a JSON {type(record).__name__}, an object is needed")
    return record


def _shown(value: object) -> str:
    """A value for a message: short, whatever it is, and without what a terminal or a log cannot show."""
    text = mend_text(ascii(value))[0]
    return text if len(text) <= 60 else f"{text[:57]}..."
