"""Where the public data sets lie that figures are made from; docs/benchmarks.md says where each comes from."""

import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def bench_folder(name: str) -> Path | None:
    """A data set's folder under WARPGAUGE_BENCH_DATA, or ../shared/data beside the checkout; None if it is not there."""
    folder = Path(os.environ.get("WARPGAUGE_BENCH_DATA", ROOT.parent / "shared" / "data")) / name
    if folder.is_dir() and any(folder.iterdir()):
        return folder
    print(f"no data in {folder}; docs/benchmarks.md says where the data come from", file=sys.stderr)
    return None
