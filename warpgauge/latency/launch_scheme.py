"""How the launches table is read by the latency model."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import polars as pl

from warpgauge.errors import SchemaError, SettingsError
from warpgauge.latency.catalogue import CATALOGUE, CATEGORICAL_NAMES, SOURCE_COLUMNS, feature
from warpgauge.latency.features import build_features, check_launch_columns, node_count_expression
from warpgauge.latency.scheme import FloatArray, GateMetric, RowScheme
from warpgauge.tables import LAUNCH_LABELS, LAUNCHES, Table

KIND = "launches"
DEFAULT_TARGET = "first_launch_api_us"
KEY_COLUMNS = ("gpu_name", "cuda_version", "driver_version", "topology", "is_profiled", "is_simulated")
# From the finest group to all rows. Topology and version outlive the GPU, because they change the launch
# more: repeat launches of straight lines cost 0.24 us a node on a P100 and 0.2 on an RTX 3060, but 200 times
# less on the same RTX 3060 under CUDA 12.6 (the published figures that the simulator meets).
LEVELS: tuple[tuple[str, ...], ...] = (
    KEY_COLUMNS,
    ("gpu_name", "cuda_version", "topology", "is_profiled", "is_simulated"),
    ("gpu_name", "topology", "is_profiled", "is_simulated"),
    ("topology", "cuda_version", "is_profiled", "is_simulated"),
    ("topology", "is_profiled", "is_simulated"),
    ("gpu_name", "is_profiled", "is_simulated"),
    ("gpu_name", "topology"),
    ("is_profiled", "is_simulated"),
    ("topology",),
    (),
)
# The first levels, which hold rows of the same GPU, topology and profiling state.
OWN_LEVEL_COUNT = 3
INTERVAL_LEVELS = (("topology", "gpu_name", "is_profiled"), ("topology",))
NOISE_COLUMNS = ("gpu_name", "topology", "is_profiled", "is_simulated")
TRIAL_COLUMNS = ("graph_id", "gpu_name", "is_profiled", "is_simulated")
SLICE_COLUMNS = ("gpu_name", "topology", "is_profiled", "is_simulated")
# Where no value could be left out, a factor on the latency for a value never seen:
# GPUs: V100 and A100 need 17 to 19 us for a first launch of 20 nodes (the published figures that the
# simulator meets), the P100 of the public trials 8, so 3.
# Topology: 4 parallel lines cost 2.6 to 3.1 times a straight line of the same length on that P100, so 3.
# Profiled: 2.75 us per node against 0.35 us, so 10. Versions: constant-time lines in CUDA 12.6 show that
# no factor is safe; 3 covers all but those.
STATED_FACTORS: Mapping[str, float] = {
    "gpu_name": 3.0,
    "topology": 3.0,
    "is_profiled": 10.0,
    "cuda_version": 3.0,
    "driver_version": 3.0,
}
# The promise of the whole product: "this launch will take 43.2 us +- 2.1". 5 us of a 2 ms launch is below
# the noise floor, hence 5 % there.
PROMISE_US = 5.0
PROMISE_RATIO = 0.05
SIZE_BANDS = (10, 100, 1_000, 10_000)
LENGTHS_A_BLOCK = 10
# Against a baseline of the same number of nodes: copies and sets are slower to launch than kernels, and a profiler
# adds work to each node. Sizes are not here: the ratio to a fitted curve need not rise with them, and asking for
# it cost accuracy on straight lines and on simulated launches.
MONOTONE: Mapping[str, int] = {"memory_node_share_ratio": 1, "is_profiled": 1}
ROWS_OVER_LEAF = 160
PREDICTION_COLUMNS = tuple(dict.fromkeys((*SOURCE_COLUMNS, *KEY_COLUMNS)))
TRAINING_COLUMNS = tuple(
    dict.fromkeys((*PREDICTION_COLUMNS, "launch_id", "source_kind", "graph_id", "graph_signature"))
)


@dataclass(frozen=True, kw_only=True)
class LaunchScheme(RowScheme):
    """Rows of the launches table, one label of them.

    Attributes:
        lengths_a_block: Consecutive lengths of lines that stay on one side of a split; 10 but where the
            benchmarks ask how far the model carries.
    """

    target: str = DEFAULT_TARGET
    row_noun: str = "launches"
    id_column: str = "launch_id"
    levels: tuple[tuple[str, ...], ...] = LEVELS
    own_level_count: int = OWN_LEVEL_COUNT
    interval_levels: tuple[tuple[str, ...], ...] = INTERVAL_LEVELS
    noise_columns: tuple[str, ...] = NOISE_COLUMNS
    slice_columns: tuple[str, ...] = SLICE_COLUMNS
    stated_factors: Mapping[str, float] = field(default_factory=lambda: STATED_FACTORS)
    categorical_names: tuple[str, ...] = CATEGORICAL_NAMES
    size_name: str = "node_count"
    promise_us: float = PROMISE_US
    promise_ratio: float = PROMISE_RATIO
    gate_metric: GateMetric = "rmse_us"
    has_trials: bool = True
    monotone: Mapping[str, int] = field(default_factory=lambda: MONOTONE)
    lengths_a_block: int = LENGTHS_A_BLOCK

    def __post_init__(self) -> None:
        if self.target not in LAUNCH_LABELS:
            raise SettingsError(
                f"target {self.target!r} is not a label of launches; known: {', '.join(LAUNCH_LABELS)}"
            )

    @property
    def table(self) -> Table:
        """See `RowScheme`."""
        return LAUNCHES

    @property
    def input_kinds(self) -> dict[str, Literal["string", "double"]]:
        """See `RowScheme`."""
        return {
            name: "string" if LAUNCHES.schema[name] == pl.String() else "double"
            for name in PREDICTION_COLUMNS
        }

    def check(self, rows: pl.DataFrame, *, is_training: bool) -> None:
        """See `RowScheme`."""
        check_launch_columns(rows, [*TRAINING_COLUMNS, self.target] if is_training else PREDICTION_COLUMNS)

    def conform(self, rows: pl.DataFrame) -> pl.DataFrame:
        """See `RowScheme`."""
        return LAUNCHES.conform(rows)

    def assume_ordinary(self, rows: pl.DataFrame, *, is_simulated: bool) -> pl.DataFrame:
        """An ordinary, unprofiled launch: null `is_profiled` is no, null `is_simulated` is the model's own."""
        return rows.with_columns(
            pl.col("is_profiled").fill_null(False), pl.col("is_simulated").fill_null(is_simulated)
        )

    def usable(self, rows: pl.DataFrame) -> pl.DataFrame:
        """See `RowScheme`; a node count is the size."""
        return _usable(rows, self.target)

    def label_hint(self, rows: pl.DataFrame) -> str:
        """See `RowScheme`."""
        own = _usable(rows, self.target).height
        counts = {name: _usable(rows, name).height for name in LAUNCH_LABELS if name in rows.columns}
        others = ", ".join(f"{name} {count}" for name, count in counts.items() if count > own)
        said = "collect more, or choose a label that is there by latency_target"
        return f"{said}; other labels: {others}" if others else said

    def latency_us(self, rows: pl.DataFrame) -> FloatArray:
        """See `RowScheme`."""
        return rows.get_column(self.target).cast(pl.Float64).to_numpy().astype(np.float64)

    def sizes(self, rows: pl.DataFrame) -> FloatArray:
        """Nodes of each graph, at least 1; see `RowScheme`."""
        values = rows.select(node_count_expression().alias("node_count")).get_column("node_count")
        bad = (values.is_null() | ~(values >= 1).fill_null(False)).arg_true()
        if len(bad):
            raise SchemaError(
                f"launches: {len(bad)} of {len(values)} rows have no node count of at least 1 (first: row {bad[0]}); "
                f"give node_count, or line_length and line_count"
            )
        return values.to_numpy().astype(np.float64)

    def features(self, rows: pl.DataFrame) -> pl.DataFrame:
        """See `RowScheme`."""
        return build_features(rows)

    def unknown_features(self, names: tuple[str, ...]) -> list[str]:
        """See `RowScheme`."""
        known = {entry.name for entry in CATALOGUE}
        return [name for name in names if name not in known]

    def is_copied(self, feature_name: str) -> bool:
        """See `RowScheme`."""
        return not feature(feature_name).is_derived

    def shapes(self, rows: pl.DataFrame) -> pl.Series:
        """Lines by blocks of consecutive lengths, other graphs by signature."""
        block = (pl.col("line_length").cast(pl.Int64) - 1) // self.lengths_a_block
        lines = pl.concat_str(
            [pl.col("topology").cast(pl.String), pl.col("line_count").cast(pl.String), block.cast(pl.String)],
            separator=":",
        )
        other = pl.concat_str([pl.lit("signature"), pl.col("graph_signature").cast(pl.String)], separator=":")
        # A null part makes the first null: graphs that are not lines go by signature.
        return rows.select(pl.coalesce(lines, other, pl.lit("")).alias("shape")).get_column("shape")

    def groups(self, rows: pl.DataFrame) -> pl.Series:
        """See `RowScheme`; the same graph on the same GPU."""
        named = [pl.col(name).cast(pl.String).fill_null("") for name in TRIAL_COLUMNS]
        return rows.select(pl.concat_str(named, separator="|").alias("group")).get_column("group")

    def size_bands(self, rows: pl.DataFrame) -> pl.Series:
        """Band of each node count, for example `11 to 100 nodes`."""
        return size_bands(self.sizes(rows))

    def least_leaf_rows(self, row_count: int) -> int:
        """See `RowScheme`.

        Enough rows that a disturbed block of sizes cannot have a leaf of its own: on 40,000 public trials 200
        rows a leaf gave RMSE over floor 1.059 and 1.047, 20 rows 1.061 and 1.051.
        """
        return int(np.clip(row_count // ROWS_OVER_LEAF, 5, 200))

    def times(self, rows: pl.DataFrame) -> pl.Series:
        """See `RowScheme`; a trace's own clock says nothing of another trace."""
        is_known = pl.col("clock") == "unix"
        if not {"clock", "started_ns"} <= set(rows.columns):
            return pl.Series("time", [None], dtype=pl.Float64).new_from_index(0, rows.height)
        started = pl.when(is_known).then(pl.col("started_ns").cast(pl.Float64))
        return rows.select(started.alias("time")).get_column("time")

    def is_simulated(self, rows: pl.DataFrame) -> pl.Series:
        """See `RowScheme`."""
        return rows.get_column("is_simulated").fill_null(False)

    def summary(self, rows: pl.DataFrame) -> dict[str, Any]:
        """See `RowScheme`."""
        nodes = self.sizes(rows)

        def values(name: str) -> list[str]:
            found: list[str] = rows.get_column(name).cast(pl.String).drop_nulls().unique().sort().to_list()
            return found

        return {
            "row_count": rows.height,
            "graph_count": rows.get_column("graph_id").n_unique(),
            "signature_count": rows.get_column("graph_signature").n_unique(),
            **{name: values(name) for name in KEY_COLUMNS[:-1]},
            "source_kind": values("source_kind"),
            "smallest_node_count": float(nodes.min()),
            "largest_node_count": float(nodes.max()),
        }

    def to_document(self) -> dict[str, Any]:
        """See `RowScheme`."""
        return {"kind": KIND, "target": self.target}


def size_bands(node_count: FloatArray) -> pl.Series:
    """Band of each node count, for example `11 to 100 nodes`."""
    labels = [f"1 to {SIZE_BANDS[0]} nodes"]
    labels += [f"{low + 1} to {high} nodes" for low, high in itertools.pairwise(SIZE_BANDS)]
    labels += [f"over {SIZE_BANDS[-1]} nodes"]
    place = np.searchsorted(np.asarray(SIZE_BANDS), node_count, side="left")
    return pl.Series("size_band", [labels[int(index)] for index in place], dtype=pl.String)


def _usable(rows: pl.DataFrame, target: str) -> pl.DataFrame:
    if target not in rows.columns:
        raise SchemaError(f"launches: column {target} is missing; it is the label to predict")
    label = pl.col(target).cast(pl.Float64)
    has_nodes = (pl.col("node_count") >= 1) | (
        pl.col("node_count").is_null() & (pl.col("line_length") * pl.col("line_count") >= 1)
    )
    return rows.filter(label.is_finite() & (label > 0) & has_nodes)


LAUNCH_SCHEME = LaunchScheme()
