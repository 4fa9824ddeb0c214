"""Open an input file, plain or gzip, so that a broken one is a sentence and not a traceback.

Whether a file is compressed is told by its first bytes, not its name. The size limit counts decompressed
bytes and is checked while reading, so a gzip bomb is refused before it is in memory.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import stat
import zlib
from dataclasses import dataclass
from pathlib import Path

from warpgauge.errors import SourceFileError

# The default of the setting fetch_size_limit_mb; tasks pass the setting's own value.
DEFAULT_SIZE_LIMIT_BYTES = 2_048_000_000
HEAD_BYTES = 65_536
_CHUNK_BYTES = 1 << 20
_GZIP_MAGIC = b"\x1f\x8b"
# First bytes of what people hand over by mistake, with the name they would know it by.
_MAGIC = (
    (b"\x89PNG", "a PNG image"),
    (b"\xff\xd8\xff", "a JPEG image"),
    (b"GIF8", "a GIF image"),
    (b"%PDF", "a PDF document"),
    (b"PK\x03\x04", "a zip archive"),
    (_GZIP_MAGIC, "gzip inside gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd-compressed data"),
    (b"\xfd7zXZ", "xz-compressed data"),
    (b"BZh", "bzip2-compressed data"),
    (b"\x7fELF", "a program or library (ELF)"),
    (b"MZ", "a Windows program"),
    (b"PAR1", "a Parquet file"),
    (b"SQLite format 3", "an SQLite database"),
    (b"\xff\xfe", "UTF-16 text"),
    (b"\xfe\xff", "UTF-16 text"),
    (b"\x00\x00\xfe\xff", "UTF-32 text"),
)


# For readers that can keep the intact part; others leave it out of the message.
KEEP_WHOLE_HINT = ", or keep what precedes the damage with --keep-whole"


@dataclass(frozen=True)
class SourceFile:
    """One input file in memory.

    Attributes:
        path: Where it was read from, for messages.
        name: Its base name, or the name that the caller knows it by.
        data: Its decompressed bytes, at least one.
        sha256: SHA-256 of `data`, in hex.
        problem: What is missing of it; only ever set with `keep_whole`.
    """

    path: Path
    name: str
    data: bytes
    sha256: str
    problem: str | None


def describe_content(head: bytes) -> str:
    """In words, what the first bytes of a file look like."""
    if not head.strip():
        return "nothing but white space" if head else "an empty file"
    for magic, name in _MAGIC:
        if head.startswith(magic):
            return name
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")[:200]
    if start[:1] == b"<":
        is_html = start[:14].lower() == b"<!doctype html" or start[:5].lower() == b"<html"
        return "an HTML page" if is_html else "markup (XML or HTML)"
    if b"\x00" in head:
        return "binary data or UTF-16 text"
    try:
        head.decode("utf-8")
    except UnicodeDecodeError as error:
        # A head is cut at a fixed length, so its last character may be cut too.
        if error.start < len(head) - 4:
            return "binary data"
    first_line = start.splitlines()[0][:80].decode("utf-8", "replace")
    return f"text that starts with {first_line!r}"


def read_source_file(
    path: Path | str,
    *,
    what: str = "file",
    source_name: str | None = None,
    size_limit_bytes: int = DEFAULT_SIZE_LIMIT_BYTES,
    keep_whole: bool = False,
) -> SourceFile:
    """Read a plain or gzip file whole.

    Args:
        path: A regular file.
        what: What the file should be, for messages: `trace`, `table`, `log`.
        source_name: Name to record instead of the path's base name (a download has a temporary path).
        size_limit_bytes: Most decompressed bytes.
        keep_whole: Return what precedes the damage of a cut gzip stream, and set `problem`.

    Raises:
        SourceFileError: If it is missing, not a regular file, unreadable, empty, larger than the limit, or
            its compression is damaged or cut.
    """
    path = Path(path)
    chunks: list[bytes] = []
    total = 0
    problem: str | None = None
    with _open(path, what) as file:
        is_gzip = _is_gzip(file, path, what)
        if not is_gzip:
            _refuse_size(os.fstat(file.fileno()).st_size, size_limit_bytes, path, what)
        stream: gzip.GzipFile | io.BufferedReader = (
            gzip.GzipFile(fileobj=file, mode="rb") if is_gzip else file
        )
        try:
            # read1 hands over what was decompressed before the damage; read would lose it.
            while chunk := stream.read1(_CHUNK_BYTES):
                chunks.append(chunk)
                total += len(chunk)
                _refuse_size(total, size_limit_bytes, path, what)
        except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
            problem = _damage(error, file, path, what, total)
            if not keep_whole or not total:
                raise SourceFileError(f"{problem}; fetch or record it again{KEEP_WHOLE_HINT}") from error
    if not total:
        raise SourceFileError(
            f"{path}: empty, 0 bytes{' after decompression' if is_gzip else ''}; a {what} was needed"
        )
    data = b"".join(chunks)
    return SourceFile(path, source_name or path.name, data, hashlib.sha256(data).hexdigest(), problem)


def read_head(path: Path | str, *, what: str = "file") -> bytes:
    """The first decompressed bytes of a plain or gzip file, at most `HEAD_BYTES`.

    Raises:
        SourceFileError: As `read_source_file`, as far as the head shows it.
    """
    path = Path(path)
    head = b""
    with _open(path, what) as file:
        is_gzip = _is_gzip(file, path, what)
        stream: gzip.GzipFile | io.BufferedReader = (
            gzip.GzipFile(fileobj=file, mode="rb") if is_gzip else file
        )
        try:
            while len(head) < HEAD_BYTES and (chunk := stream.read1(HEAD_BYTES)):
                head += chunk
        except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
            if not head:
                raise SourceFileError(
                    f"{_damage(error, file, path, what, 0)}; fetch or record it again"
                ) from error
    return head[:HEAD_BYTES]


def decode_text(source: SourceFile, *, what: str, keep_whole: bool = False) -> str:
    """The file's text.

    Raises:
        SourceFileError: If it is not UTF-8 (a byte order mark is allowed); with `keep_whole` the bytes that
            do not decode become U+FFFD, so that only the records that hold them are lost.
    """
    if source.data.startswith((b"\xff\xfe", b"\xfe\xff")):
        raise SourceFileError(
            f"{source.path}: found {describe_content(source.data)}, a {what} is UTF-8; convert it first"
        )
    try:
        return source.data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        if keep_whole:
            return source.data.decode("utf-8-sig", "replace")
        raise SourceFileError(
            f"{source.path}: byte {error.start} is not UTF-8 ({describe_content(source.data[:HEAD_BYTES])}); "
            f"a UTF-8 {what} is needed, or keep its readable records with --keep-whole"
        ) from error


def _open(path: Path, what: str) -> io.BufferedReader:
    try:
        mode = path.stat().st_mode
        if stat.S_ISDIR(mode):
            raise SourceFileError(f"{path}: found a directory, a {what} was needed; name a file in it")
        if not stat.S_ISREG(mode):
            raise SourceFileError(
                f"{path}: found a device, pipe or socket, a {what} was needed; save it to a regular file first"
            )
        return path.open("rb")
    except FileNotFoundError as error:
        raise SourceFileError(f"{path}: no such file; check the path") from error
    except (OSError, ValueError) as error:
        raise SourceFileError(f"{path}: cannot be opened: {error}") from error


def _is_gzip(file: io.BufferedReader, path: Path, what: str) -> bool:
    try:
        magic = file.read(2)
        file.seek(0)
    except OSError as error:
        raise SourceFileError(f"{path}: the {what} cannot be read: {error}") from error
    return magic == _GZIP_MAGIC


def _refuse_size(size_bytes: int, limit_bytes: int, path: Path, what: str) -> None:
    if size_bytes > limit_bytes:
        raise SourceFileError(
            f"{path}: the {what} holds more than {limit_bytes:,} bytes after decompression, the limit; "
            f"split it, or raise WARPGAUGE_FETCH_SIZE_LIMIT_MB if it is meant to be that large"
        )


def _damage(error: Exception, file: io.BufferedReader, path: Path, what: str, total: int) -> str:
    position = file.tell()
    if isinstance(error, EOFError):
        return (
            f"{path}: {what} incomplete: the gzip stream stops at byte {position:,} of the compressed file "
            f"({total:,} bytes decompressed) without its end mark"
        )
    return f"{path}: the {what} is damaged near byte {position:,} ({total:,} bytes decompressed): {error}"
