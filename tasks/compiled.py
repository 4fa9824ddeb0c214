"""Compiled trees for answers of many rows: where the kernel is kept, and when it is worth making."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from tasks.storage import cache_dir
from warpgauge.errors import SettingsError

if TYPE_CHECKING:
    from warpgauge.latency.model import LatencyModel

LOGGER = logging.getLogger("warpgauge")
# A model's kernel takes 30 ms to load, and half a second once a machine; LightGBM takes 13 ms for 1,000 rows
# (benchmarks/prediction_speed.py).
LEAST_ROWS = 5_000


def compile_for(model: LatencyModel, row_count: int) -> None:
    """Let the model answer that many rows by compiled trees, where that saves time; the answers are the same.

    The kernel is machine code, so it is kept only in a folder that nobody else can write; elsewhere it is compiled
    for this process alone.
    """
    if row_count < LEAST_ROWS:
        return
    folder = cache_dir("compiled")
    try:
        folder.chmod(0o700)
        model.booster.compile(folder)
    except (SettingsError, OSError) as error:
        LOGGER.warning("compiled trees are not kept: %s", error)
        model.booster.compile()
