"""Read launches from whatever file they are in: its content decides how, never its name."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from warpgauge.errors import SourceFileError
from warpgauge.launches.batch import LaunchBatch
from warpgauge.launches.kineto import read_kineto
from warpgauge.launches.perfscaling import has_perfscaling_header, read_perfscaling
from warpgauge.source_file import DEFAULT_SIZE_LIMIT_BYTES, describe_content, read_head

FORMS = (
    "a CSV of NVIDIA's sample cudaGraphsPerfScaling, or a PyTorch profiler trace (JSON), each plain or gzip"
)


def detect_launch_format(path: Path | str) -> Literal["perfscaling", "kineto"]:
    """Which reader a file needs, by its first bytes.

    Raises:
        SourceFileError: If it is missing, unreadable or of neither form: what was found is named.
    """
    head = read_head(path, what="file of launches")
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] in (b"{", b"["):
        return "kineto"
    first_line = start.partition(b"\n")[0].decode("utf-8", "replace")
    if has_perfscaling_header(first_line):
        return "perfscaling"
    found = describe_content(head)
    if found.startswith("text ") and "," in first_line:
        found = f"a table with the columns {first_line.strip()[:120]!r}"
    raise SourceFileError(f"{path}: found {found}; launches are read from {FORMS}")


def read_launches(
    path: Path | str,
    *,
    source_name: str | None = None,
    gpu_name: str | None = None,
    cuda_version: str | None = None,
    keep_whole: bool = False,
    size_limit_bytes: int = DEFAULT_SIZE_LIMIT_BYTES,
) -> LaunchBatch:
    """All launches of a file, whichever of the known forms it has.

    Args:
        path: A regular file, plain or gzip.
        source_name: Name to record instead of the path's base name (a download has a temporary path).
        gpu_name, cuda_version: Where a cudaGraphsPerfScaling file was measured, if its name does not say;
            a trace says itself.
        keep_whole: Keep what is whole of a damaged file, and name the rest in `problems`.
        size_limit_bytes: Most decompressed bytes.

    Raises:
        SourceFileError: If the file is damaged or of no known form.
        NoDataError: If it is whole and holds no launch.
    """
    if detect_launch_format(path) == "kineto":
        return read_kineto(
            path, source_name=source_name, keep_whole=keep_whole, size_limit_bytes=size_limit_bytes
        )
    return read_perfscaling(
        path,
        gpu_name=gpu_name,
        cuda_version=cuda_version,
        source_name=source_name,
        keep_whole=keep_whole,
        size_limit_bytes=size_limit_bytes,
    )
