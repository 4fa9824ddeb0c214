"""The bytes of a source file that a user named, plain or gzip: whole or refused."""

from __future__ import annotations

from pathlib import Path

from warpgauge.launches.source_file import read_source_file


def read_source_bytes(path: Path, size_limit_bytes: int) -> bytes:
    """The decompressed content of a file, at least one byte and at most `size_limit_bytes`.

    Raises:
        SourceFileError: If the file is missing, no regular file, unreadable, empty, larger than the limit, or a
            gzip file that is cut or damaged.
    """
    return read_source_file(path, size_limit_bytes=size_limit_bytes).data
