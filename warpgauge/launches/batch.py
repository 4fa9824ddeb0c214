"""What a reader of launches hands back, and how a launch is named.

A launch is named by what was read, never by where it lay: the same trace as `.json`, as `.json.gz` or under
another path gives the same ids, so collecting it again adds nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field

import polars as pl


@dataclass(frozen=True)
class LaunchBatch:
    """The launches of one source.

    Attributes:
        frame: Exactly the columns of `tables.LAUNCHES`; `collected_at` is null, the task stamps it.
        problems: What inside the file was refused or salvaged, one sentence each; empty for a whole file.
        counts: What was seen, by name: rows kept, records refused by reason, launches without a device record.
    """

    frame: pl.DataFrame
    problems: tuple[str, ...] = ()
    counts: dict[str, int] = field(default_factory=dict)


def launch_id(source_kind: str, sha256: str, ordinal: int) -> str:
    """SHA-256, in hex, of source kind, hash of the decompressed file and ordinal of the record (from 0)."""
    return hashlib.sha256(f"{source_kind}\x00{sha256}\x00{ordinal}".encode()).hexdigest()


def launch_ids(source_kind: str, sha256: str, ordinals: Iterable[int]) -> list[str]:
    """`launch_id` of many records of one source."""
    return [launch_id(source_kind, sha256, ordinal) for ordinal in ordinals]


def lines_signature(length: int, width: int, pattern: int) -> str:
    """Signature of parallel lines of empty kernels, the same in every source that can hold them.

    Args:
        length: Nodes in each line, at least 1.
        width: Number of lines, at least 1; 1 is a straight line.
        pattern: 0 for lines alone, 1 for one extra root before the fork (as cudaGraphsPerfScaling counts them).
    """
    return f"lines:length={length}:width={width}:pattern={pattern}"


def graph_id(gpu: str, cuda_version: str | None, signature: str) -> str:
    """Identity of a graph on a GPU: trials that share it measure the same thing.

    The CUDA version belongs to it: straight lines became constant time in 12.6, so trials under two
    versions are not trials of one quantity.
    """
    return hashlib.sha256(f"{gpu}\x00{cuda_version or ''}\x00{signature}".encode()).hexdigest()[:32]
