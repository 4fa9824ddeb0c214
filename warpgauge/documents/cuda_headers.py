r"""The documented functions of the CUDA headers, read from NVIDIA's wheels.

The headers are the one documentation of CUDA that comes versioned, with a declaration beside each text to
check it against. The wheels are read where they lie; nothing of them is kept in the project, because their
licence forbids passing the text on.

What counts as a documented function: a documentation comment that holds a describing command (`\brief`,
`\param`, `\return`, `\details`, ...) and whose next declaration, past preprocessor lines, plain comments and
comments that only group, is a function. Of two declarations under `#if ... #else` the first is taken.
A comment in plain prose before a function (`cuda_occupancy.h`, `cooperative_groups.h`) does not count: such
comments describe internals and classes as often as functions, and have no part that a check can read.

One function, one document: `<header>:<function>`, the same over versions. A header that documents one name
several times (overloads of an intrinsic, a template beside its specialisation, a version behind `#if`)
gives the plain name to the first and `<header>:<function>(<parameter types>)` to the others. Where text and
declaration are the same too, it is one document; where only the parameter types are, the later ones end in `#2`, `#3`.
"""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from warpgauge.documents.batch import DocumentBatch, document_row, documents_frame, labels_frame
from warpgauge.documents.cleaning import normalise_text, strip_tags
from warpgauge.errors import NoDataError, SourceFileError

SOURCE = "cuda-headers"

# Where the headers lie in the wheels: up to 12.x in a folder for each component, from 13 in one for all.
HEADER_MEMBER = re.compile(r"^nvidia/(?:cuda_[a-z]+|cu\d+)/include/(.+\.h)$")

# A declaration longer than this is not one: the longest in CUDA 13.5 has about 1,500 characters.
DECLARATION_LIMIT = 8_000

DESCRIBING_COMMAND = re.compile(r"[\\@](?:brief|short|details|params?|returns?|retval|result)\b")
# Comments of these commands alone belong to a group of entries, not to the declaration that follows.
GROUPING_COMMENT = re.compile(
    r"(?:\s*[\\@](?:(?:defgroup|addtogroup|ingroup|weakgroup|name|cond|endcond|if|endif|file)\b[^\n]*|[{}]))*\s*"
)
# `.` never crosses a line here except in a block comment; an unclosed one runs to the end, which keeps the
# scan linear on hostile input.
_LEXEME = re.compile(
    r"""(?P<block>/\*(?s:.*?)(?:\*/|\Z))|(?P<line>//[^\n]*)"""
    r"""|"(?:\\[^\n]|[^"\\\n])*"|(?<![0-9A-Za-z_])'(?:\\[^\n]|[^'\\\n])*'"""
)
_DEFAULT = re.compile(r"(?<!\s)\s*\b__dv\s*\(")
_BRACKET = re.compile(r"[()]")
_DIRECTIVE = re.compile(r"#(?:[^\n\\]|\\\n|\\)*")
# Tags of the tables that NVIDIA's own XML output knows; HTML's are known to `cleaning`.
_XML_TABLE_TAG = re.compile(r"</?(?:tgroup|colspec|row|entry)\b[^<>]*>")
_STAR = re.compile(r"^[ \t]*\*+(?![*/])[ \t]?", re.MULTILINE)
# What precedes a parenthesis and is no function name: attributes of compilers and of CUDA, operators of C.
_NOT_A_NAME = re.compile(
    r"__attribute__|__declspec|__dv|\w*ALIGN\w*|__align__|__launch_bounds__|alignas|decltype|noexcept|throw|explicit"
    r"|requires|sizeof|if|while|for|switch|return|defined|static_assert|_Pragma|__asm__|asm|enable_if"
    r"|\w*DEPRECATED\w*"
)
_NAME_BEFORE_PARENTHESIS = re.compile(
    r"(\boperator\s*(?:\(\s*\)|[^\s\w(]{1,3}|[\w:<>* ]{1,80}?)|(?<!\w)[A-Za-z_]\w*)\s*\("
)
_WORD_OF_A_TYPE = re.compile(
    r"const|volatile|struct|enum|union|class|unsigned|signed|long|short|int|char|float|double|void|bool|size_t"
    r"|typename|restrict|__restrict__|register"
)


@dataclass(frozen=True)
class Declaration:
    """A function declaration taken apart.

    Attributes:
        name: The function's name; for an operator with its sign.
        parameters: Names in order; None for a parameter without a name. Empty for `void`.
        types: The parameters' types in order, one blank between words; `...` for a variable argument list.
        return_type: What stands before the name, without storage words and attributes; may be empty.
        text: The declaration itself, on one line, default arguments of the `__dv` form taken out.
    """

    name: str
    parameters: tuple[str | None, ...]
    types: tuple[str, ...]
    return_type: str
    text: str


@dataclass(frozen=True)
class Entry:
    r"""The parts of a header entry's text.

    Attributes:
        parameters: Names as the `\param` commands give them, in order.
        template_parameters: Names of the `\tparam` commands.
        return_text: What follows `\return`, `\returns` and `\retval`; None without any.
        prose: The text without parameter, return and see-also parts.
        see_also: What follows `\sa` and `\see`.
        code_blocks: The contents of `\code` blocks.
    """

    parameters: tuple[str, ...]
    template_parameters: tuple[str, ...]
    return_text: str | None
    prose: str
    see_also: str
    code_blocks: tuple[str, ...]


def read_header_wheel(paths: Sequence[Path], size_limit_bytes: int) -> dict[str, str]:
    """The header files in wheels of one version.

    Args:
        paths: Wheels of `nvidia-cuda-runtime` (with `-cu11`, `-cu12` before 13) and, if wanted, of
            `nvidia-cuda-crt`.
        size_limit_bytes: Most bytes of headers, decompressed, over all wheels.

    Returns:
        Header name below the include folder (`cuda.h`, `crt/math_functions.h`) to text, sorted by name.

    Raises:
        SourceFileError: If a wheel is missing, damaged, hostile, or holds no header, or if two wheels hold
            different headers of one name.
    """
    headers: dict[str, str] = {}
    left_bytes = size_limit_bytes
    for path in paths:
        found = 0
        for member, content in _members(path, left_bytes):
            left_bytes -= len(content)
            found += 1
            text = content.decode("utf-8", errors="replace")
            if headers.setdefault(member, text) != text:
                raise SourceFileError(
                    f"{path}: {member} differs from the one in another wheel; give wheels of one version only"
                )
        if not found:
            raise SourceFileError(
                f"{path}: no CUDA header under nvidia/*/include in it; a wheel of nvidia-cuda-runtime "
                "(-cu11, -cu12, no suffix from 13) is needed"
            )
    return dict(sorted(headers.items()))


def wheel_date(paths: Sequence[Path]) -> datetime | None:
    """When the newest header in the wheels was written, as their archive says; UTC, None without any.

    It is the same on each machine and in each run, unlike a clock, so labels made from it are the same rows.

    Raises:
        SourceFileError: If a wheel cannot be opened.
    """
    stamps: list[datetime] = []
    for path in paths:
        with _opened(path) as archive:
            for member in archive.infolist():
                if HEADER_MEMBER.match(member.filename):
                    try:
                        stamps.append(datetime(*member.date_time, tzinfo=UTC))
                    except ValueError:
                        continue  # the archive holds a date that no calendar has: it says nothing
    return max(stamps, default=None)


def _opened(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except FileNotFoundError as error:
        raise SourceFileError(f"{path}: no such file; check the path") from error
    except (zipfile.BadZipFile, OSError, ValueError, NotImplementedError, EOFError) as error:
        raise SourceFileError(
            f"{path}: cannot be read as a wheel ({error}); download it again with pip"
        ) from error


def _members(path: Path, size_limit_bytes: int) -> list[tuple[str, bytes]]:
    """Headers of one wheel: name below the include folder and content."""
    found: list[tuple[str, bytes]] = []
    left_bytes = size_limit_bytes
    with _opened(path) as archive:
        for member in archive.infolist():
            match = HEADER_MEMBER.match(member.filename)
            if match is None:
                continue
            try:
                with archive.open(member) as stream:
                    content = stream.read(left_bytes + 1)
            except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, ValueError) as error:
                raise SourceFileError(
                    f"{path}: {member.filename} is damaged ({error}); download the wheel again with pip"
                ) from error
            left_bytes -= len(content)
            if left_bytes < 0:
                raise SourceFileError(
                    f"{path}: the headers hold more than {size_limit_bytes:,} bytes; real ones hold 3 to 6 MB, "
                    "so this is no wheel of the CUDA runtime"
                )
            found.append((match.group(1), content))
    return found


def parse_headers(
    files: Mapping[str, str], version: str, *, created_at: datetime | None = None
) -> DocumentBatch:
    """The documented functions of the headers of one version.

    Args:
        files: Header name to text, as `read_header_wheel` gives them.
        version: Version of the product, for example `13.5.37`; needs a digit first.
        created_at: When that version was written (`wheel_date`), null if unknown.

    Returns:
        One document a function, family `page`, in order of header and place. Counts: `headers`,
        `documents`, `overloads` (documents beyond the first of a name), `repeated` (same text twice, kept once).

    Raises:
        NoDataError: If no header documents a function.
        SourceFileError: If the version is not one.
    """
    if not re.match(r"\d+(\.\d+)*$", version):
        raise SourceFileError(
            f"{version!r} is no product version; numbers with dots are needed, as in 12.4.127"
        )
    rows: list[dict[str, object]] = []
    overload_count = repeated_count = 0
    for header, text in files.items():
        seen: dict[str, tuple[str, str]] = {}
        first_names: set[str] = set()
        for declaration, body in iterate_entries(text):
            content = (body, declaration.text)
            source_id = f"{header}:{declaration.name}"
            if declaration.name in first_names:
                if seen[source_id] == content:
                    repeated_count += 1
                    continue
                source_id = base = f"{source_id}({', '.join(declaration.types)})"
                ordinal = 1
                while source_id in seen and seen[source_id] != content:
                    ordinal += 1
                    source_id = f"{base}#{ordinal}"
                if source_id in seen:
                    repeated_count += 1
                    continue
                overload_count += 1
            first_names.add(declaration.name)
            seen[source_id] = content
            rows.append(
                document_row(
                    source=SOURCE,
                    source_id=source_id,
                    family="page",
                    title=declaration.name,
                    body=body or None,
                    code=declaration.text,
                    product_version=version,
                    created_at=created_at,
                )
            )
    if not rows:
        raise NoDataError(
            f"none of {len(files)} headers of version {version} documents a function; "
            r"comments with \brief before a declaration are needed"
        )
    counts = {
        "headers": len(files),
        "documents": len(rows),
        "overloads": overload_count,
        "repeated": repeated_count,
    }
    return DocumentBatch(documents_frame(rows), labels_frame([]), (), counts)


def iterate_entries(text: str) -> list[tuple[Declaration, str]]:
    """Each documented function of a header in order: its declaration and its cleaned text."""
    entries: list[tuple[Declaration, str]] = []
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    comments = [match for match in _LEXEME.finditer(text) if match.lastgroup is not None]
    ends = {match.start(): match.end() for match in comments}
    documenting = [comment for comment in comments if _is_documentation(comment.group())]
    # A declaration ends before the next documentation comment but one that groups, and never spans two.
    following = [comment.start() for comment in documenting[2:]] + [len(text)] * 2
    for comment, limit in zip(documenting, following, strict=False):
        content = _comment_content(comment.group())
        if not DESCRIBING_COMMAND.search(content):
            continue
        declaration = _declaration_after(text, comment.end(), limit, ends)
        if declaration is not None:
            entries.append((declaration, clean_comment(content)))
    return entries


def _is_documentation(comment: str) -> bool:
    """A block comment of the documenting form, neither a banner of stars nor a remark on the line before."""
    return comment.startswith(("/**", "/*!")) and len(comment) > 4 and comment[3] not in "*<"


def _comment_content(comment: str) -> str:
    """Text of a comment without its frame of stars."""
    return _STAR.sub("", comment[3:].removesuffix("*/"))


def _declaration_after(
    text: str, position: int, limit: int, comment_ends: Mapping[int, int]
) -> Declaration | None:
    """The function declared next, None where something else follows."""
    while True:
        while position < len(text) and text[position].isspace():
            position += 1
        if position >= len(text):
            return None
        if position in comment_ends:
            comment = text[position : comment_ends[position]]
            if _is_documentation(comment) and not GROUPING_COMMENT.fullmatch(_comment_content(comment)):
                return None
            position = comment_ends[position]
        elif text[position] == "#":
            directive = _DIRECTIVE.match(text, position)
            assert directive is not None
            position = directive.end()
        else:
            return parse_declaration(text[position : min(limit, position + DECLARATION_LIMIT)])


def parse_declaration(text: str) -> Declaration | None:
    """The function declaration that a text begins with.

    Args:
        text: Source that starts at a declaration; what follows it is ignored.

    Returns:
        None if it begins with anything else: a type, a variable, a macro, a member.
    """
    text = _LEXEME.sub(lambda match: " " if match.lastgroup else match.group(), text)
    text = re.sub(r"(?m)^[ \t]*#(?:[^\n\\]|\\\n|\\)*", " ", text)
    if re.match(r"\s*(?:typedef|using|namespace|friend)\b", text):
        return None
    open_at = 0
    while True:
        found = _NAME_BEFORE_PARENTHESIS.search(text, open_at)
        # What ends a declaration before a name and a parenthesis came: then it was none of a function.
        if found is None or re.search(
            r"[;{}]|(?<![=!<>])=(?!=)", _outside_operator(text[open_at : found.start()])
        ):
            return None
        close = _closing(text, found.end() - 1)
        if close is None:
            return None
        if not _NOT_A_NAME.fullmatch(found.group(1)):
            break
        text = text[: found.start()] + text[close + 1 :] if found.group(1) == "__dv" else text
        open_at = close + 1 if found.group(1) != "__dv" else found.start()
    name = re.sub(r"\s+", " ", found.group(1)).strip()
    inner = _without_defaults(text[found.end() : close])
    if re.match(r"\s*\*", inner):  # `void (*name)(...)`: a pointer to a function, not a function
        return None
    before = " ".join(text[: found.start()].split())
    if (
        not before
        and not name.startswith("operator")
        and not re.match(r"\s*(?:[;{:]|=\s*default)", text[close + 1 :])
    ):
        return None  # a macro used as a statement
    parameters, types = _parameters(inner)
    tail = re.match(r"\s*(?:const\b|noexcept\b)?", text[close + 1 :])
    suffix = f" {tail.group().strip()}" if tail is not None and tail.group().strip() else ""
    inner = re.sub(r"\s+", " ", inner).strip()
    return Declaration(
        name=name,
        parameters=parameters,
        types=types,
        return_type=_return_type(before),
        text=f"{before} {name}({inner}){suffix};".strip(),
    )


def _outside_operator(text: str) -> str:
    """The text without template argument lists, whose default arguments hold an equals sign."""
    return re.sub(r"<[^<>;{}]*>", " ", text)


def _closing(text: str, position: int) -> int | None:
    """Place of the parenthesis that closes the one at `position`, None if the text ends before."""
    depth = 0
    for match in _BRACKET.finditer(text, position):
        depth += 1 if match.group() == "(" else -1
        if depth == 0:
            return match.start()
    return None


def _without_defaults(inner: str) -> str:
    """The parameter list without `__dv(...)`, NVIDIA's macro for default arguments of C++."""
    pieces: list[str] = []
    position = 0
    while (found := _DEFAULT.search(inner, position)) is not None:
        pieces.append(inner[position : found.start()])
        close = _closing(inner, found.end() - 1)
        position = len(inner) if close is None else close + 1
    return "".join((*pieces, inner[position:]))


def _split_top_level(text: str) -> list[str]:
    """Parts between commas that stand in no bracket."""
    parts: list[str] = []
    depth = start = 0
    for match in re.finditer(r"[()\[\]{}<>,]", text):
        sign = match.group()
        if sign in "([{<":
            depth += 1
        elif sign in ")]}>":
            depth -= 1
        elif depth <= 0:
            parts.append(text[start : match.start()])
            start = match.end()
    parts.append(text[start:])
    return parts


def _parameters(inner: str) -> tuple[tuple[str | None, ...], tuple[str, ...]]:
    """Names and types of a parameter list."""
    names: list[str | None] = []
    types: list[str] = []
    for part in _split_top_level(inner):
        declared = re.sub(r"\s+", " ", part.split("=", 1)[0]).strip()
        if declared in ("", "void"):
            continue
        if declared == "...":
            names.append(None)
            types.append("...")
            continue
        if pointer := re.search(
            r"\(\s*(?:\w+\s+)?[*&]\s*(?:const\s+)?(\w+)\s*(?:\[[^\]]*\]\s*)*\)", declared
        ):
            names.append(pointer.group(1))
            types.append((declared[: pointer.start(1)] + declared[pointer.end(1) :]).strip())
            continue
        named = re.match(r"(.*[\s*&>.)])(\w+)\s*((?:\[[^\]]*\]\s*)*)$", declared)
        if named is None or _WORD_OF_A_TYPE.fullmatch(named.group(2)) or _is_tag(named.group(1)):
            names.append(None)
            types.append(declared)
        else:
            names.append(named.group(2))
            types.append(f"{named.group(1).strip()}{named.group(3).strip()}")
    return tuple(names), tuple(types)


def _is_tag(before: str) -> bool:
    """`struct X` or `const unsigned` without more: the word after it is a type, not a name."""
    words = before.split()
    return bool(words) and words[-1] in {"struct", "enum", "union", "class", "typename"}


def _return_type(before: str) -> str:
    """The words before a function's name without storage classes, attributes and calling conventions."""
    before = re.sub(r"\btemplate\s*<[^;{}]*>", " ", before)
    before = re.sub(r"\b\w*DEPRECATED\w*\s*(?:\([^()]*\))?|__(?:attribute__|declspec)\s*\(.*\)", " ", before)
    words = [
        word
        for word in before.split()
        if word not in {"extern", "static", "inline", "CUDAAPI", "CUDARTAPI", '"C"'}
        and not re.fullmatch(r"__\w+__|_*[A-Z][A-Z0-9_]*_*(?:DECL|API|QUALIFIER|INLINE)\w*", word)
    ]
    return " ".join(words)


def clean_comment(content: str) -> str:
    r"""The text of a documentation comment as a reader sees it, commands kept where they carry meaning.

    Args:
        content: A comment without its stars.

    Returns:
        Text with commands spelled one way (`\param name text`, `\return`), each block command at the start of a
        line; without internal parts, group membership and doubled renderings for other output formats.
    """
    text = re.sub(r"[\\@]internal\b(?s:.*?)(?:[\\@]endinternal\b|\Z)", "", content)
    text = re.sub(r"[\\@](latex|man|rtf|docbook)only\b(?s:.*?)(?:[\\@]end\1only\b|\Z)", "", text)
    text = re.sub(r"[\\@](?:end)?(?:html|xml)only\b", "", text)
    text = re.sub(r"[\\@](?:end_)?cuda_math_formula\b ?", "", text)
    text = strip_tags(_XML_TABLE_TAG.sub("\n", text))
    text = re.sub(
        r"(?m)^[ \t]*[\\@](?:ingroup|defgroup|addtogroup|weakgroup|cond|endcond|[{}])[^\n]*$", "", text
    )
    text = re.sub(
        r"@(brief|short|details|tparam|param|returns?|retval|result|note|sa|see|p|c)\b", r"\\\1", text
    )
    text = re.sub(r"\\(?:returns|result)\b", r"\\return", text)
    text = re.sub(r"\\see\b", r"\\sa", text)
    text = re.sub(r"\\(?:brief|short|details)\b[ \t]*", "", text)
    text = re.sub(r"\\(t?param)[ \t]*\[[ \t,a-z]*\]", r"\\\1", text)
    text = re.sub(r"(?<![\w:]):{2}(?=\w)", "", text)
    return normalise_text(text)


_SECTION = re.compile(
    r"^[ \t]*\\(tparam|param|return|retval|sa|note\w*|warning|deprecated|par|remarks?|attention)\b", re.M
)


def parse_entry(body: str) -> Entry:
    """Takes the cleaned text of a header entry apart again, so that checks need the table only.

    Args:
        body: What `clean_comment` gave.
    """
    code_blocks = tuple(re.findall(r"\\code\b(?:\{[^}\n]*\})?(?s:(.*?))(?:\\endcode\b|\Z)", body))
    text = re.sub(r"\\code\b(?s:.*?)(?:\\endcode\b|\Z)", "", body)
    starts = list(_SECTION.finditer(text))
    prose = [text[: starts[0].start()] if starts else text]
    parameters: list[str] = []
    template_parameters: list[str] = []
    returned: list[str] = []
    see_also: list[str] = []
    for index, start in enumerate(starts):
        end = starts[index + 1].start() if index + 1 < len(starts) else len(text)
        command, content = start.group(1), text[start.end() : end]
        if command in ("param", "tparam"):
            # `\param a, b text` documents two at once; a star or an ampersand before a name is a slip of
            # the pen that readers do not notice.
            named = re.match(
                r"\s*((?:[*&]*[A-Za-z_]\w*(?:\.{3})?)(?:\s*,\s*[*&]*[A-Za-z_]\w*(?!\s+\w+\s*,))*)", content
            )
            names = re.findall(r"[A-Za-z_]\w*", named.group(1)) if named else []
            (parameters if command == "param" else template_parameters).extend(names)
            prose.append(content[named.end() :] if named else content)
        elif command in ("return", "retval"):
            # A blank line ends a return part; what follows is prose again.
            part, _, rest = content.strip("\n").partition("\n\n")
            returned.append(part)
            prose.append(rest)
        elif command == "sa":
            see_also.append(content)
        else:
            prose.append(f"deprecated {content}" if command == "deprecated" else content)
    return Entry(
        parameters=tuple(parameters),
        template_parameters=tuple(template_parameters),
        return_text="\n".join(returned) if returned else None,
        prose="\n".join(part.strip() for part in prose if part.strip()),
        see_also="\n".join(see_also),
        code_blocks=code_blocks,
    )
