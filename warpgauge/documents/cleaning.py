"""Text as a reader sees it, without losing what CUDA writes between angle brackets and underscores.

Tags go first and entities are decoded once, after them: the other order takes `<<<grid, block>>>` and
`std::vector<float>` for tags. Only names that HTML knows are tags. No Markdown emphasis is interpreted,
because `__syncthreads__`-like words are identifiers here, not bold print.

Every function is linear in the length of the text, whatever it holds.
"""

from __future__ import annotations

import html
import re
from dataclasses import dataclass

_BLOCK_TAGS = (
    "address|article|aside|blockquote|body|br|center|dd|details|div|dl|dt|figure|footer|form|h[1-6]|head|header"
    "|hr|html|li|main|nav|ol|p|picture|pre|section|summary|table|tbody|td|tfoot|th|thead|tr|ul"
)
_INLINE_TAGS = "abbr|code|del|em|font|img|ins|kbd|mark|small|source|span|strike|strong|sub|sup|tt"
# Also names of types and variables, so no tag right after a word or another bracket.
_SHORT_TAGS = "a|b|i|q|s|u"

_TAG = re.compile(
    rf"</?(?P<block>{_BLOCK_TAGS})(?:\s[^<>]*)?/?>"
    rf"|</?(?:{_INLINE_TAGS})(?:\s[^<>]*)?/?>"
    rf"|(?<![\w<])<(?:{_SHORT_TAGS})(?:\s[^<>]*)?/?>(?!>)"
    rf"|</(?:{_SHORT_TAGS})>(?!>)",
    re.IGNORECASE,
)
_ENTITY = re.compile(r"&(?:#[0-9]{1,7}|#[xX][0-9a-fA-F]{1,6}|[A-Za-z][A-Za-z0-9]{1,31});")
_SURROGATE = re.compile("[\ud800-\udfff]")
_FENCE = re.compile(r"[ \t>]{0,40}(?P<sign>`{3,}|~{3,})(?P<info>[^\n]*)")
_CODE_SPAN = re.compile(r"(?<!`)(`{1,3})(?!`)([^`\n]+)\1(?!`)")
_PRE = re.compile(r"<pre(?P<attributes>\s[^<>]*)?>|</pre\s*>", re.IGNORECASE)
_LANGUAGE = re.compile(r"(?:lang|language|highlight-source)-([\w+#-]+)")


@dataclass(frozen=True)
class CodeBlock:
    """One fenced block.

    Attributes:
        language: First word after the fence, lower case; empty without one.
        code: What stands between the fences.
        is_closed: False if the text ends inside the block.
    """

    language: str
    code: str
    is_closed: bool


def mend_text(text: str) -> tuple[str, int, int]:
    """Text that every store can keep.

    Returns:
        The text with lone surrogate halves replaced by U+FFFD and NUL removed, how many halves, how many NULs.
    """
    mended, surrogate_count = _SURROGATE.subn("\ufffd", text)
    nul_count = mended.count("\0")
    return mended.replace("\0", ""), surrogate_count, nul_count


def normalise_text(text: str) -> str:
    """The same words with one kind of line end, no blanks at line ends and at most one blank line in a row."""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\u00a0", " ")
    lines = [line.rstrip() for line in text.split("\n")]
    kept = [line for index, line in enumerate(lines) if line or (index and lines[index - 1])]
    return "\n".join(kept).strip("\n")


def clean_markdown(text: str) -> str:
    """Markdown as prose and fenced code: comments and HTML tags outside code go, entities are decoded once."""
    pieces: list[str] = []
    for is_code, piece in fenced_pieces(text):
        pieces.append(piece if is_code else _clean_outside_fences(piece))
    return normalise_text("".join(pieces))


def clean_html(text: str) -> str:
    """HTML as Markdown-like text: `<pre>` becomes a fenced block, other known tags go, entities are decoded once."""
    text = _without_comments(text)
    pieces: list[str] = []
    position = 0
    while (opening := _PRE.search(text, position)) is not None:
        pieces.append(_decode(strip_tags(text[position : opening.start()])))
        closing = _PRE.search(text, opening.end())
        end = len(text) if closing is None else closing.start()
        code = text[opening.end() : end]
        language = _LANGUAGE.search(opening.group() + code[:200])
        code = _decode(re.sub(r"</?(?:code|span|pre)(?:\s[^<>]*)?>", "", code, flags=re.IGNORECASE)).strip(
            "\n"
        )
        fence = "`" * max(3, 1 + max((len(run) for run in re.findall(r"`+", code)), default=0))
        if not opening.group().startswith("</"):
            pieces.append(f"\n\n{fence}{language.group(1) if language else ''}\n{code}\n{fence}\n\n")
            position = len(text) if closing is None else closing.end()
        else:
            position = opening.end()
    pieces.append(_decode(strip_tags(text[position:])))
    return normalise_text("".join(pieces))


def split_code(text: str) -> tuple[str, str]:
    """Cleaned text apart: prose without its fenced blocks, and the fenced blocks with their fences.

    Either may be empty. A block that is never closed runs to the end of the text.
    """
    prose: list[str] = []
    code: list[str] = []
    for is_code, piece in fenced_pieces(text):
        (code if is_code else prose).append(piece)
    return normalise_text("\n".join(prose)), "\n".join(piece.rstrip("\n") for piece in code)


def code_blocks(text: str) -> list[CodeBlock]:
    """The fenced blocks of a text, in order."""
    blocks: list[CodeBlock] = []
    for is_code, piece in fenced_pieces(text):
        if not is_code:
            continue
        lines = piece.rstrip("\n").split("\n")
        opening = _FENCE.match(lines[0])
        assert opening is not None
        words = opening.group("info").strip().lstrip("{.").split()
        language = re.split(r"[,{}\s]", words[0])[0].lower() if words else ""
        is_closed = len(lines) > 1 and _closes(lines[-1], opening.group("sign"))
        blocks.append(CodeBlock(language, "\n".join(lines[1:-1] if is_closed else lines[1:]), is_closed))
    return blocks


def _closes(line: str, sign: str) -> bool:
    closing = _FENCE.fullmatch(line)
    return (
        closing is not None and closing.group("sign").startswith(sign) and not closing.group("info").strip()
    )


def fenced_pieces(text: str) -> list[tuple[bool, str]]:
    """Alternating pieces, in order and without loss: whether the piece is a fenced block, and its text."""
    pieces: list[tuple[bool, list[str]]] = []
    sign: str | None = None
    for line in re.findall(r"[^\n]*\n|[^\n]+\Z", text.replace("\r\n", "\n")):
        bare = line.rstrip("\n")
        if sign is None:
            opening = _FENCE.fullmatch(bare)
            # A backtick in what follows makes it a code span in the line, not a fence.
            if opening is not None and not (opening["sign"][0] == "`" and "`" in opening["info"]):
                sign = opening["sign"]
                pieces.append((True, [line]))
            elif pieces and not pieces[-1][0]:
                pieces[-1][1].append(line)
            else:
                pieces.append((False, [line]))
        else:
            pieces[-1][1].append(line)
            if _closes(bare, sign):
                sign = None
                pieces.append((False, []))
    return [(is_code, "".join(lines)) for is_code, lines in pieces if lines]


def _clean_outside_fences(text: str) -> str:
    """Prose of Markdown: code spans stay as they are, the rest loses tags and decodes entities."""
    text = _without_comments(text)
    pieces: list[str] = []
    position = 0
    for span in _CODE_SPAN.finditer(text):
        pieces.append(_decode(strip_tags(text[position : span.start()])))
        pieces.append(span.group())
        position = span.end()
    pieces.append(_decode(strip_tags(text[position:])))
    return "".join(pieces)


def _without_comments(text: str) -> str:
    """The text without `<!-- ... -->`; an opening without an end stays, as it hides nothing for sure."""
    pieces: list[str] = []
    position = 0
    while (start := text.find("<!--", position)) >= 0 and (end := text.find("-->", start + 4)) >= 0:
        pieces.append(text[position:start])
        position = end + 3
    pieces.append(text[position:])
    return "".join(pieces)


def strip_tags(text: str) -> str:
    """The text without HTML tags; a tag that begins a block becomes a line end, any other nothing."""
    return _TAG.sub(lambda match: "\n" if match["block"] else "", text)


def _decode(text: str) -> str:
    return _ENTITY.sub(lambda match: html.unescape(match.group()), text)
