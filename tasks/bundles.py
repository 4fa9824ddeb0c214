"""Bundles: one folder with everything about one trained model, before it is registered.

A bundle holds the model's files, the rows to judge it on, figures, and `bundle.json`. It is written beside its
place and moved there whole, so a bundle that exists is complete.
"""

from __future__ import annotations

import json
import logging
import math
import os
import shutil
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tasks.storage import cache_dir
from warpgauge.errors import NoDataError, ServiceUnavailableError

if TYPE_CHECKING:
    from matplotlib.figure import Figure

LOGGER = logging.getLogger("warpgauge")
# What the gate judges by, in the bundle's folder `gate`.
GATE_ROWS = "rows.parquet"
GATE_CHECKS = "checks.parquet"
GATE_EMBEDDINGS = "embeddings.safetensors"
GATE_BASELINE = "baseline.parquet"
KEPT_BUNDLES = 6


def write_bundle(
    facts: Mapping[str, Any],
    files: Mapping[str, bytes],
    frames: Mapping[str, pl.DataFrame],
    arrays: Mapping[str, bytes],
    figures: Mapping[str, Figure],
) -> str:
    """Write a bundle beside its place, then move it there; old bundles go.

    Args:
        facts: For `bundle.json`; `model_name` is among them.
        files: Of the model, by name.
        frames: Rows to judge it on: Parquet file to frame.
        arrays: The same as bytes of safetensors.
        figures: Title to figure.

    Returns:
        The bundle's folder.

    Raises:
        ServiceUnavailableError: If the disk does not take it.
    """
    root = cache_dir("bundles")
    name = f"{facts['model_name']}-{uuid.uuid4().hex[:12]}"
    partial = root / f".{name}.partial"
    try:
        for part in ("model", "gate", "figures"):
            (partial / part).mkdir(parents=True)
        for file, content in files.items():
            (partial / "model" / file).write_bytes(content)
        for file, frame in frames.items():
            frame.write_parquet(partial / "gate" / file)
        for file, content in arrays.items():
            (partial / "gate" / file).write_bytes(content)
        for title, figure in figures.items():
            figure.savefig(partial / "figures" / f"{title}.png", dpi=110)
        text = json.dumps(_finite(facts), indent=1, allow_nan=False, default=str)
        (partial / "bundle.json").write_text(text)
        place = root / name
        os.replace(partial, place)
    except OSError as error:
        raise ServiceUnavailableError(
            f"{root}: the trained model could not be written: {error}; free the disk and train again"
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    _prune(root)
    LOGGER.info("bundle written: %s", place)
    return str(place)


def bundle_facts(folder: Path) -> dict[str, Any]:
    """What the training wrote about a bundle.

    Raises:
        NoDataError: If the folder holds no whole bundle.
    """
    try:
        return dict(json.loads((folder / "bundle.json").read_text()))
    except (OSError, ValueError) as error:
        raise NoDataError(f"{folder} holds no whole trained model: {error}; train again") from error


def _finite(value: Any) -> Any:
    """The same with null for every number that is none: JSON has no word for it, and MLflow turns it into 1.8e308."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


def _prune(root: Path) -> None:
    """Keep the newest bundles; the registry has its own copy of every registered one.

    What a killed training left half-written counts too, so it goes in its turn.
    """
    found = sorted(root.iterdir(), key=lambda path: path.stat().st_mtime, reverse=True)
    for old in found[KEPT_BUNDLES:]:
        shutil.rmtree(old, ignore_errors=True)
