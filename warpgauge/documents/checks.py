r"""Checks that judge a piece of documentation and say on what evidence.

Text embeddings alone cannot tell a faulty page from its repaired version (area under the curve 0.51 on 900 real
pairs), because the difference is a parameter, a return code or a missing line. These checks look for exactly that. A
check answers with findings, never with a verdict: the model weighs them.

Header entries (a page whose code declares the function that the title names) are checked against their declaration;
everything with fenced code is checked for code that cannot run as shown.
"""

from __future__ import annotations

import ast
import re
import textwrap
import warnings
from collections.abc import Callable
from dataclasses import dataclass

import polars as pl

from warpgauge.documents.cleaning import CodeBlock, code_blocks
from warpgauge.documents.cuda_headers import Declaration, Entry, parse_declaration, parse_entry

# Longer examples are not parsed: none of the pages and reports measured has one, and a parser's time is
# not ours to promise.
PYTHON_LIMIT_CHARS = 100_000
PYTHON_LANGUAGES = frozenset({"python", "python3", "py", "py3", "pycon", "ipython", "ipython3"})
CUDA_LANGUAGES = frozenset({"", "cuda", "cu", "c++", "cpp", "cxx", "cc", "c"})

RETURN_CODE = re.compile(r"\b(?:cudaSuccess|cudaError[A-Z]\w*|CUDA_SUCCESS|CUDA_ERROR_[A-Z0-9_]+)\b")
STATUS_TYPES = frozenset({"cudaError_t", "CUresult"})
API_CALL = re.compile(r"\b(?:cuda[A-Z]\w*|cu[A-Z][a-z]\w*)\s*\(")
# These calls read an error or describe one; they are the handling, not what needs it.
_ERROR_CALL = re.compile(r"\b(?:cudaGetLastError|cudaPeekAtLastError|cudaGetError\w+|cuGetError\w+)\s*\(")
_HANDLED = re.compile(
    r"(?<![=!<>])=(?!=)\s*(?:\(\w+\)\s*)?cu|\bif\s*\(|\breturn\b|cudaSuccess|CUDA_SUCCESS"
    r"|\b\w{0,40}(?:check|assert|safe|try|err)\w{0,40}\s*\((?=.*\bcu)",
    re.IGNORECASE,
)
LAUNCH = re.compile(r"<<<[^;{}<]{1,500}?>>>")
SYNCTHREADS = re.compile(r"\b__syncthreads(?:_count|_and|_or)?\b")
WARP_INTRINSIC = re.compile(
    r"\b(?:__shfl(?:_up|_down|_xor)?(?:_sync)?|__ballot(?:_sync)?|__any(?:_sync)?|__all(?:_sync)?|__activemask"
    r"|__match_(?:any|all)_sync|__reduce_\w{2,4}_sync|__syncwarp)\b"
)
_SHARED = re.compile(r"(\bextern\s+)?\b__shared__\s+([^;{}()=]{1,300})(?=[;=({])")
_CONSTANT = re.compile(
    r"#[ \t]*define[ \t]+(\w+)[ \t]+\(?(\d{1,9})\)?[ \t]*$"
    r"|\b(?:constexpr|const)\b[ \t\w]{0,60}\s(\w{1,80})\s{0,4}=\s{0,4}(\d{1,9})\s{0,4};",
    re.MULTILINE,
)
# Sizes of CUDA C++ on the 64-bit platforms that CUDA supports (Programming Guide, built-in vector types);
# `long` is left out because it has 4 bytes on Windows and 8 elsewhere.
TYPE_BYTES = {
    **dict.fromkeys(("char", "signed char", "unsigned char", "bool", "int8_t", "uint8_t", "uchar"), 1),
    **dict.fromkeys(("short", "unsigned short", "int16_t", "uint16_t", "half", "__half", "__nv_bfloat16"), 2),
    **dict.fromkeys(("nv_bfloat16", "ushort", "char2", "uchar2"), 2),
    **dict.fromkeys(("int", "unsigned", "unsigned int", "uint", "float", "int32_t", "uint32_t", "half2"), 4),
    **dict.fromkeys(("__half2", "short2", "ushort2", "char4", "uchar4", "__nv_bfloat162"), 4),
    **dict.fromkeys(("double", "long long", "unsigned long long", "int64_t", "uint64_t", "size_t"), 8),
    **dict.fromkeys(("float2", "int2", "uint2", "short4", "ushort4"), 8),
    **dict.fromkeys(("float3", "int3", "uint3"), 12),
    **dict.fromkeys(("float4", "int4", "uint4", "double2", "longlong2", "ulonglong2"), 16),
}
# No GPU has more shared memory than this in all; a larger sum is nonsense in the text, not a measure of it.
SHARED_LIMIT_BYTES = 1 << 40
# Twice the same word is right English for these.
DOUBLED_WORDS_OF_ENGLISH = frozenset({"that", "had", "is", "long", "no"})


@dataclass(frozen=True)
class Finding:
    """What one check found at one place.

    Attributes:
        check_id: Which check.
        kind: One of `tables.KINDS`.
        nature: One of `tables.NATURES`.
        evidence: A sentence that a person can verify.
    """

    check_id: str
    kind: str
    nature: str
    evidence: str


@dataclass(frozen=True)
class Subject:
    """A document as the checks see it.

    Attributes:
        title, body, code, family: As in the documents table; null became the empty string.
        declaration: Set for a header entry: what its code declares.
        entry: Set for a header entry: the parts of its body.
        blocks: Example code: `\\code` blocks of a header entry, fenced blocks of anything else.
    """

    title: str
    body: str
    code: str
    family: str
    declaration: Declaration | None
    entry: Entry | None
    blocks: tuple[CodeBlock, ...]


@dataclass(frozen=True)
class Check:
    """A named check.

    Attributes:
        check_id: Stable name, the kind first; the model's feature is called after it.
        kind, nature: What a finding of it stands for.
        applies: Whether the check can say anything about a subject at all.
        find: The evidence for each finding in a subject.
    """

    check_id: str
    kind: str
    nature: str
    applies: Callable[[Subject], bool]
    find: Callable[[Subject], list[str]]


def subject_of(title: str | None, body: str | None, code: str | None, family: str) -> Subject:
    """The document taken apart for the checks."""
    declaration = entry = None
    if family == "page" and title and code and code.endswith(";") and "\n" not in code:
        declaration = parse_declaration(code)
        if declaration is not None and declaration.name != title:
            declaration = None
    if declaration is not None:
        entry = parse_entry(body or "")
        blocks = tuple(CodeBlock("", block, True) for block in entry.code_blocks)
    else:
        blocks = tuple(code_blocks(code or "")) + tuple(code_blocks(body or ""))
    return Subject(title or "", body or "", code or "", family, declaration, entry, blocks)


def _parameter_not_declared(subject: Subject) -> list[str]:
    if subject.declaration is None or subject.entry is None or None in subject.declaration.parameters:
        return []
    declared = set(subject.declaration.parameters)
    return [
        f"{subject.title}: the text describes parameter {name}, the declaration has "
        f"{', '.join(other for other in subject.declaration.parameters if other) or 'none'}"
        for name in dict.fromkeys(subject.entry.parameters)
        if name not in declared
    ]


def _parameter_not_documented(subject: Subject) -> list[str]:
    if subject.declaration is None or subject.entry is None or not subject.entry.parameters:
        return []
    documented = set(subject.entry.parameters)
    return [
        f"{subject.title}: parameter {name} is declared, the text describes {', '.join(subject.entry.parameters)}"
        for name in subject.declaration.parameters
        if name is not None and name not in documented
    ]


def _no_parameter_documented(subject: Subject) -> list[str]:
    if subject.declaration is None or subject.entry is None or subject.entry.parameters:
        return []
    declared = [name for name in subject.declaration.parameters if name is not None]
    return [f"{subject.title}: none of {', '.join(declared)} is described"] if declared else []


def _return_code_not_listed(subject: Subject) -> list[str]:
    if subject.entry is None or subject.entry.return_text is None:
        return []
    listed = set(RETURN_CODE.findall(subject.entry.return_text))
    if not listed:
        return []
    used = dict.fromkeys(RETURN_CODE.findall(subject.entry.prose))
    return [
        f"{subject.title}: {code} is in the text and not among the return codes"
        for code in used
        if code not in listed
    ]


def _no_return_list(subject: Subject) -> list[str]:
    if subject.declaration is None or subject.entry is None or subject.entry.return_text is not None:
        return []
    words = subject.declaration.return_type.split()
    if not words or words[-1] not in STATUS_TYPES:
        return []
    return [f"{subject.title}: returns {words[-1]} and the text does not say which codes"]


def _deprecation_not_mentioned(subject: Subject) -> list[str]:
    if subject.declaration is None or not re.search(r"DEPRECATED|\bdeprecated\b", subject.declaration.text):
        return []
    if "deprecat" in subject.body.lower():
        return []
    return [f"{subject.title}: declared as deprecated and the text does not say so"]


def _repeated_word(subject: Subject) -> list[str]:
    prose = re.sub(r"\\code\b(?s:.*?)(?:\\endcode\b|\Z)", " ", subject.body)
    return [
        f"the word {match.group(1)!r} stands twice: {prose[max(0, match.start() - 20) : match.end() + 20]!r}"
        for match in re.finditer(r"(?<![\w\\.-])([a-z]{2,20})\s\1(?![\w-])", prose)
        if match.group(1) not in DOUBLED_WORDS_OF_ENGLISH
    ]


def _python_does_not_parse(subject: Subject) -> list[str]:
    found: list[str] = []
    for block in subject.blocks:
        if block.language in PYTHON_LANGUAGES and len(block.code) <= PYTHON_LIMIT_CHARS:
            error = _python_error(block.code)
            if error is not None:
                found.append(f"a {block.language} example does not parse: {error}")
    return found


def _python_error(code: str) -> str | None:
    """Why code is not Python, None if it is."""
    lines = textwrap.dedent(code).split("\n")
    if any(line.lstrip().startswith(">>>") for line in lines):
        prompts = (re.match(r"\s*(?:>>>|\.\.\.)(?: (.*)|)$", line) for line in lines)
        lines = [match.group(1) or "" for match in prompts if match is not None]
    # Shell escapes and magics of notebooks are right where they stand.
    lines = [re.sub(r"^(\s*)[%!].*", r"\1pass", line) for line in lines]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            ast.parse("\n".join(lines))
    except (SyntaxError, ValueError) as error:
        return str(error)
    except (RecursionError, MemoryError):
        return "it is nested too deeply"
    return None


def _no_error_handling(subject: Subject) -> list[str]:
    found: list[str] = []
    for block in subject.blocks:
        if block.language not in CUDA_LANGUAGES:
            continue
        call_count, handled_count = error_handling(block.code)
        if call_count and not handled_count:
            found.append(f"an example makes {call_count} CUDA calls or launches and looks at no result")
    return found


def _code_not_closed(subject: Subject) -> list[str]:
    return ["a code fence is opened and never closed" for block in subject.blocks if not block.is_closed]


def _is_header_entry(subject: Subject) -> bool:
    return subject.declaration is not None


def _is_page(subject: Subject) -> bool:
    """Not a report: its examples are often output or cut, and its slips of the pen are nobody's documentation."""
    return subject.family == "page"


CHECKS: tuple[Check, ...] = (
    Check(
        "wrong_parameter_not_declared",
        "wrong_parameter",
        "concept",
        _is_header_entry,
        _parameter_not_declared,
    ),
    Check(
        "missing_parameter_some", "missing_parameter", "concept", _is_header_entry, _parameter_not_documented
    ),
    Check(
        "missing_parameter_all", "missing_parameter", "concept", _is_header_entry, _no_parameter_documented
    ),
    Check(
        "missing_content_return_code", "missing_content", "concept", _is_header_entry, _return_code_not_listed
    ),
    Check("missing_content_return_list", "missing_content", "concept", _is_header_entry, _no_return_list),
    Check(
        "outdated_api_deprecation", "outdated_api", "version", _is_header_entry, _deprecation_not_mentioned
    ),
    Check("typo_repeated_word", "typo", "concept", _is_page, _repeated_word),
    Check("broken_example_python", "broken_example", "concept", _is_page, _python_does_not_parse),
    Check(
        "missing_error_handling_example", "missing_error_handling", "concept", _is_page, _no_error_handling
    ),
    Check("rendering_open_fence", "rendering", "concept", _is_page, _code_not_closed),
)

FEATURES: dict[str, pl.DataType] = {
    "document_id": pl.String(),
    **{f"check_{check.check_id}_count": pl.Int64() for check in CHECKS},
    "syncthreads_per_100_words": pl.Float64(),
    "warp_intrinsics_per_100_words": pl.Float64(),
    "shared_memory_static_bytes": pl.Int64(),
    "launch_configuration_count": pl.Int64(),
    "error_handling_ratio": pl.Float64(),
    "word_count": pl.Int64(),
    "code_line_count": pl.Int64(),
    "is_header_entry": pl.Boolean(),
}


def check_document(title: str | None, body: str | None, code: str | None, family: str) -> list[Finding]:
    """What the checks find in one document, in the order of `CHECKS`.

    Args:
        title, body, code: As in the documents table.
        family: `page` or `report`.
    """
    return _findings(subject_of(title, body, code, family))


def _findings(subject: Subject) -> list[Finding]:
    return [
        Finding(check.check_id, check.kind, check.nature, evidence)
        for check in CHECKS
        if check.applies(subject)
        for evidence in check.find(subject)
    ]


def check_features(documents: pl.DataFrame) -> pl.DataFrame:
    """Numbers for the model, one row a document, in the order given.

    Args:
        documents: At least `document_id`, `title`, `body`, `code`, `family`.

    Returns:
        The columns of `FEATURES`: a count of findings for each check, null where the check does not apply (that is
        not the same as no finding); `__syncthreads` and warp intrinsics for each
        100 words of title, body and code; bytes of static shared memory that the examples declare (null if
        one of the sizes is not a number, as for a template parameter); launches `<<<...>>>` in examples; share
        of CUDA calls and launches in examples whose result is looked at (null without any); words; lines of
        example code that are not blank.
    """
    rows: list[dict[str, object]] = []
    for row in documents.select("document_id", "title", "body", "code", "family").iter_rows(named=True):
        subject = subject_of(row["title"], row["body"], row["code"], row["family"])
        rows.append({"document_id": row["document_id"], **_features(subject)})
    return pl.DataFrame(rows, schema=FEATURES, orient="row")


def _features(subject: Subject) -> dict[str, object]:
    counts = {
        check.check_id: len(check.find(subject)) if check.applies(subject) else None for check in CHECKS
    }
    text = "\n".join((subject.title, subject.body, subject.code))
    word_count = len(text.split())
    call_count = handled_count = launch_count = code_line_count = 0
    for block in subject.blocks:
        calls, handled = error_handling(block.code)
        call_count += calls
        handled_count += handled
        launch_count += len(LAUNCH.findall(block.code))
        code_line_count += sum(1 for line in block.code.split("\n") if line.strip())
    return {
        **{f"check_{check_id}_count": count for check_id, count in counts.items()},
        "syncthreads_per_100_words": _per_100(len(SYNCTHREADS.findall(text)), word_count),
        "warp_intrinsics_per_100_words": _per_100(len(WARP_INTRINSIC.findall(text)), word_count),
        "shared_memory_static_bytes": static_shared_memory_bytes("\n".join(b.code for b in subject.blocks)),
        "launch_configuration_count": launch_count,
        "error_handling_ratio": handled_count / call_count if call_count else None,
        "word_count": word_count,
        "code_line_count": code_line_count,
        "is_header_entry": subject.declaration is not None,
    }


def _per_100(count: int, word_count: int) -> float | None:
    return 100.0 * count / word_count if word_count else None


def error_handling(code: str) -> tuple[int, int]:
    """How many CUDA calls and launches example code makes, and the results of how many it looks at.

    A launch counts as looked at if one of the three statements after it reads an error or a checked call.
    """
    code = re.sub(r"//[^\n]*|/\*(?s:.*?)(?:\*/|\Z)", " ", code)
    statements = [" ".join(statement.split())[:2000] for statement in re.split(r"[;{}]", code)]
    call_count = handled_count = 0
    for index, statement in enumerate(statements):
        is_launch = LAUNCH.search(statement) is not None
        is_call = API_CALL.search(_ERROR_CALL.sub("", statement)) is not None
        # A declaration (`cudaError_t cudaX(...)` with nothing before) is not told from a call here; examples
        # hardly hold any.
        if not is_launch and not is_call:
            continue
        call_count += 1
        if is_launch:
            handled = any(
                _ERROR_CALL.search(after) or _handles(after) for after in statements[index : index + 4]
            )
        else:
            handled = _handles(statement) or (
                index + 1 < len(statements) and bool(_ERROR_CALL.search(statements[index + 1]))
            )
        handled_count += handled
    return call_count, handled_count


def _handles(statement: str) -> bool:
    return API_CALL.search(statement) is not None and _HANDLED.search(statement) is not None


def static_shared_memory_bytes(code: str) -> int | None:
    """Bytes of static shared memory that code declares; 0 without a declaration, None if a size is unknown."""
    constants: dict[str, int] = {}
    for match in _CONSTANT.finditer(code):
        constants[match.group(1) or match.group(3)] = int(match.group(2) or match.group(4))
    total_bytes = 0
    for match in _SHARED.finditer(code):
        if match.group(1):  # `extern`: dynamic, its size is the launch's affair
            continue
        size_bytes = _declared_bytes(match.group(2), constants)
        if size_bytes is None or total_bytes + size_bytes > SHARED_LIMIT_BYTES:
            return None
        total_bytes += size_bytes
    return total_bytes


def _declared_bytes(declared: str, constants: dict[str, int]) -> int | None:
    """Bytes of `type name[n][m], other`, None if the type or a size is unknown."""
    declared = re.sub(r"\b(?:volatile|const|static)\b", " ", declared)
    first, *others = declared.split(",")
    head = re.match(r"\s*([\w: ]*[\w])\s+(\w+\s*(?:\[[^\[\]]*\]\s*)*)$", first)
    if head is None:
        return None
    element_bytes = TYPE_BYTES.get(" ".join(head.group(1).split()).removeprefix("std::"))
    if element_bytes is None:
        return None
    total = 0
    for name in (head.group(2), *others):
        count = 1
        for size in re.findall(r"\[([^\[\]]*)\]", name):
            value = _constant_value(size, constants)
            if value is None:
                return None
            count = min(count * value, SHARED_LIMIT_BYTES + 1)
        total += count * element_bytes
    return total


def _constant_value(expression: str, constants: dict[str, int]) -> int | None:
    """Value of a sum of products of numbers and known constants, None for anything else."""
    if not re.fullmatch(r"\s*\w+(?:\s*[*+]\s*\w+){0,8}\s*", expression):
        return None
    total = 0
    for term in expression.split("+"):
        product = 1
        for factor in term.split("*"):
            name = factor.strip()
            value = int(name) if re.fullmatch(r"[0-9]{1,9}", name) else constants.get(name)
            if value is None:
                return None
            product *= value
        total += product
    return total
