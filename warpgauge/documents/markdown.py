"""Pages that a user has at hand: a Markdown or RST file, a CUDA header, or JSON lines of title and body.

A page is cut at its headings, because a section is what a reader looks up and what a fix touches; the documents of
`score documents PATH` are its sections. Which kind a file is, its name tells, else its first line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

from warpgauge.documents.batch import DocumentBatch, document_row, documents_frame, labels_frame
from warpgauge.documents.cleaning import clean_markdown, fenced_pieces, mend_text, split_code
from warpgauge.documents.cuda_headers import iterate_entries
from warpgauge.documents.redaction import RedactionRules, redact_fields, redact_identifier
from warpgauge.errors import NoDataError, SourceFileError
from warpgauge.source_file import describe_content, read_source_file

PAGE_SIZE_LIMIT_BYTES = 64_000_000
HEADER_SUFFIXES = frozenset({".h", ".hpp", ".hh", ".hxx", ".cuh"})
JSON_LINES_SUFFIXES = frozenset({".jsonl", ".ndjson"})
RST_SUFFIXES = frozenset({".rst", ".rest", ".txt"})
MARKDOWN_SUFFIXES = frozenset({".md", ".markdown", ".mdx", ".mdown"})
FAMILIES = ("page", "report")

_HEADING = re.compile(r" {0,3}(#{1,6})(?:[ \t]+(.*?))?(?:[ \t]+#+)?[ \t]*")
_UNDERLINE = re.compile(r"([=\-~^\"'`:.*+#_<>!$%&(),/;?@\[\\\]{|}])\1{2,}[ \t]*")
_SETEXT = re.compile(r" {0,3}(?:={3,}|-{3,})[ \t]*")
_RST_CODE = re.compile(r"(\s*)\.\. (?:code-block|code|sourcecode)::[ \t]*(\S*)[ \t]*")


def read_page(
    path: Path,
    *,
    size_limit_bytes: int = PAGE_SIZE_LIMIT_BYTES,
    source: str = "file",
    rules: RedactionRules | None = None,
) -> DocumentBatch:
    """The documents of one file.

    Args:
        path: Markdown, RST, a C or C++ header, or JSON lines `{title, body, code?, family?}`; plain or gzip.
        size_limit_bytes: Largest decompressed file.
        source: Name of the source that the documents get.
        rules: What is secret; None for what is secret everywhere.

    Returns:
        Documents: family `page`, for JSON lines `report` unless the line says otherwise; `source_id` is the file's
        base name with the section's heading, the function or the line. No labels. Counts: `documents`,
        `redactions`, `surrogates_replaced`, `nuls_removed`.

    Raises:
        SourceFileError: If the file cannot be read, is no text, or a JSON line is none (file and line are named).
        NoDataError: If nothing in it is a document.
    """
    rules = rules or RedactionRules()
    file = read_source_file(path, what="page", size_limit_bytes=size_limit_bytes)
    try:
        text = file.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceFileError(
            f"{path}: byte {error.start} is not UTF-8 ({describe_content(file.data[:65_536])}); a Markdown, RST or "
            "header file, or JSON lines, in UTF-8 is needed"
        ) from error
    text, surrogate_count, nul_count = mend_text(text)
    if nul_count > len(text) // 100:
        raise SourceFileError(
            f"{path}: holds {nul_count} NUL bytes, so it is no text ({describe_content(file.data[:65_536])}); "
            "a Markdown, RST or header file, or JSON lines, is needed"
        )
    suffix = next((s.lower() for s in reversed(Path(path).suffixes) if s.lower() != ".gz"), "")
    if suffix in HEADER_SUFFIXES:
        parts = _header_parts(text)
    elif suffix in JSON_LINES_SUFFIXES or (suffix not in MARKDOWN_SUFFIXES and _looks_like_json_lines(text)):
        parts = _json_parts(path, text)
    elif suffix in RST_SUFFIXES:
        parts = _section_parts(_rst_sections(text))
    else:
        parts = _section_parts(_markdown_sections(text))
    name, found_in_name = redact_identifier("file", Path(path).name, rules)
    rows: list[dict[str, object]] = []
    seen: dict[str, int] = {}
    redaction_count = 0
    for key, *texts, family in parts:
        (title, body, code), found = redact_fields(texts, rules)
        if not (title or body or code):
            continue
        # The heading is the title too and was counted there.
        shown_key = redact_identifier("heading", key, rules)[0]
        row_count = sum(found.values()) + sum(found_in_name.values())
        redaction_count += row_count
        # Two sections may have one heading ("Parameters"): the second is `#2`, in order of the file.
        seen[key] = seen.get(key, 0) + 1
        ordinal = f"#{seen[key]}" if seen[key] > 1 else ""
        rows.append(
            document_row(
                source=source,
                source_id=f"{name}:{shown_key}{ordinal}",
                family=family,
                title=title or None,
                body=body or None,
                code=code or None,
                redaction_count=row_count,
            )
        )
    if not rows:
        raise NoDataError(
            f"{path}: holds no document ({describe_content(file.data[:65_536])}); a page with text, a header with "
            r"\brief comments or JSON lines {title, body} is needed"
        )
    counts = {
        "documents": len(rows),
        "redactions": redaction_count,
        "surrogates_replaced": surrogate_count,
        "nuls_removed": nul_count,
    }
    return DocumentBatch(documents_frame(rows), labels_frame([]), (), counts)


_Part = tuple[str, str | None, str | None, str | None, str]


def _header_parts(text: str) -> Iterator[_Part]:
    for declaration, body in iterate_entries(text):
        yield declaration.name, declaration.name, body, declaration.text, "page"


def _section_parts(sections: Iterator[tuple[str | None, str]]) -> Iterator[_Part]:
    for heading, content in sections:
        body, code = split_code(clean_markdown(content))
        # A heading whose section holds only smaller headings is no document.
        if body or code:
            yield heading or "", heading, body, code, "page"


def _looks_like_json_lines(text: str) -> bool:
    first = text.lstrip().split("\n", 1)[0]
    if not first.startswith("{"):
        return False
    try:
        record = json.loads(first)
    except (ValueError, RecursionError):
        return False
    return isinstance(record, dict) and ("body" in record or "title" in record)


def _json_parts(path: Path, text: str) -> Iterator[_Part]:
    for number, line in enumerate(text.rstrip().split("\n"), start=1):
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceFileError(
                f"{path}: line {number} is not JSON; one object {{title, body}} a line is needed"
            ) from error
        if not isinstance(record, dict):
            raise SourceFileError(f"{path}: line {number} is no object; {{title, body}} is needed")
        values: list[str | None] = []
        for field in ("title", "body", "code"):
            value = record.get(field)
            if value is not None and not isinstance(value, str):
                raise SourceFileError(f"{path}: line {number}: {field} is no text; text or null is needed")
            values.append(None if value is None else mend_text(value)[0])
        title, body, code = values
        family = record.get("family") or "report"
        if family not in FAMILIES:
            raise SourceFileError(
                f"{path}: line {number}: unknown family {ascii(family)[:60]}; {' or '.join(FAMILIES)} is needed"
            )
        if not any(value and value.strip() for value in values):
            raise SourceFileError(
                f"{path}: line {number} has neither title nor body; it has {', '.join(map(repr, list(record)[:20]))}"
            )
        prose, fenced = split_code(clean_markdown(body)) if body else ("", "")
        yield str(number), title, prose, "\n".join(part for part in (code, fenced) if part), family


def _markdown_sections(text: str) -> Iterator[tuple[str | None, str]]:
    """Heading and content of each section; what stands before the first heading has none."""
    heading: str | None = None
    content: list[str] = []
    for is_code, piece in fenced_pieces(text):
        if is_code:
            content.append(piece)
            continue
        lines = piece.splitlines(keepends=True)
        for line in lines:
            bare = line.rstrip("\r\n")
            match = _HEADING.fullmatch(bare)
            if match is not None:
                yield heading, "".join(content)
                heading, content = (match.group(2) or "").strip() or None, []
            elif _SETEXT.fullmatch(bare) and content and _can_be_title(content):
                title = content.pop().strip()
                yield heading, "".join(content)
                heading, content = title, []
            else:
                content.append(line)
    yield heading, "".join(content)


def _can_be_title(content: list[str]) -> bool:
    """Whether the line before an underline is a heading: one line of text after a blank one or a start."""
    return bool(
        content[-1].strip()
        and not content[-1].lstrip().startswith(("|", "-", "*", "+", ">", "`"))
        and (len(content) == 1 or not content[-2].strip())
    )


def _rst_sections(text: str) -> Iterator[tuple[str | None, str]]:
    """The same for RST, code directives turned into fenced blocks."""
    lines = text.replace("\r\n", "\n").split("\n")
    heading: str | None = None
    content: list[str] = []
    index = 0
    while index < len(lines):
        line = lines[index]
        code = _RST_CODE.fullmatch(line)
        following = lines[index + 1] if index + 1 < len(lines) else ""
        if code is not None:
            index, block = _indented_block(lines, index + 1, len(code.group(1)))
            content.append(f"```{code.group(2)}\n{block}\n```")
        elif (
            line.strip()
            and not line[0].isspace()
            and _UNDERLINE.fullmatch(following)
            and len(following.rstrip()) >= len(line.rstrip())
            and not _UNDERLINE.fullmatch(line)
        ):
            if content and _UNDERLINE.fullmatch(content[-1]):  # a line over the title
                content.pop()
            yield heading, "\n".join(content)
            heading, content = line.strip(), []
            index += 2
        elif line.rstrip().endswith("::") and not line.lstrip().startswith(".."):
            content.append(line.rstrip()[:-1])
            start = index + 1
            index, block = _indented_block(lines, start, len(line) - len(line.lstrip()))
            if block:
                content.append(f"```\n{block}\n```")
        else:
            content.append(line)
            index += 1
    yield heading, "\n".join(content)


def _indented_block(lines: list[str], index: int, indent: int) -> tuple[int, str]:
    """The lines further in than `indent` from `index` on, options of the directive left out; and what comes after."""
    while index < len(lines) and re.fullmatch(r"\s+:[\w-]+:.*", lines[index]):
        index += 1
    block: list[str] = []
    while index < len(lines) and (
        not lines[index].strip() or len(lines[index]) - len(lines[index].lstrip()) > indent
    ):
        block.append(lines[index])
        index += 1
    while block and not block[0].strip():
        block.pop(0)
    while block and not block[-1].strip():
        block.pop()
    margin = min((len(line) - len(line.lstrip()) for line in block if line.strip()), default=0)
    return index, "\n".join(line[margin:] for line in block)
