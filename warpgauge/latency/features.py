"""The features of each launch, computed from columns of the launches table alone.

Every feature is one Polars expression over one row: the same plan runs lazily, on the CPU or the GPU
engine, in training and in prediction. Missing stays null: a ratio without its parts is null, not 0.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable

import polars as pl

from warpgauge.errors import SchemaError
from warpgauge.latency.catalogue import CATALOGUE, SOURCE_COLUMNS
from warpgauge.tables import LAUNCHES

# Straight lines launch in constant time from CUDA 12.6 on (2.5 us + 1 ns per node on an RTX 3060, against
# 2 us + 0.2 us per node in 11.8: NVIDIA's article on constant-time launch, 2024).
CONSTANT_TIME_CUDA_ORDINAL = 1206.0


def node_count_expression() -> pl.Expr:
    """Nodes in the graph, Float64: as stated, else length x lines; null if neither is known."""
    return pl.coalesce(
        pl.col("node_count").cast(pl.Float64),
        pl.col("line_length").cast(pl.Float64) * pl.col("line_count").cast(pl.Float64),
    )


def feature_expressions() -> list[pl.Expr]:
    """One expression a feature, in the catalogue's order: the stored order of every feature frame."""
    derived = _derived()
    return [
        (derived[entry.name] if entry.is_derived else _copied(entry.name, entry.kind)).alias(entry.name)
        for entry in CATALOGUE
    ]


def build_features(launches: pl.DataFrame) -> pl.DataFrame:
    """The features of each launch, same rows in the same order.

    Args:
        launches: Columns of the launches table, in any order; label and identity columns may be absent or
            present, they are not read.

    Returns:
        One column a feature in the catalogue's order: Float64 for numbers and flags, String for
        categoricals; null where a source did not say.

    Raises:
        SchemaError: If a column that a feature needs is absent, renamed or of another type, or if a column
            is not one of the launches table.
    """
    check_launch_columns(launches, SOURCE_COLUMNS)
    try:
        return launches.lazy().select(feature_expressions()).collect()
    except pl.exceptions.PolarsError as error:
        raise SchemaError(f"the features cannot be computed from these launches: {error}") from error


def check_launch_columns(launches: pl.DataFrame, needed: Iterable[str]) -> None:
    """Stop on a column that is absent, unknown to the launches table, or of a type that does not fit it.

    Raises:
        SchemaError: Naming the columns, and the likely new name of a renamed one.
    """
    known = LAUNCHES.schema
    unknown = [name for name in launches.columns if name not in known]
    missing = [name for name in needed if name not in launches.columns]
    if missing or unknown:
        raise SchemaError(column_mismatch("launches", missing, unknown))
    for name in needed:
        found, wanted = launches.schema[name], known[name]
        if found in (pl.Null, wanted) or (found.is_numeric() and wanted.is_numeric()):
            continue
        if wanted == pl.String and isinstance(found, pl.Categorical | pl.Enum):
            continue
        raise SchemaError(f"launches: column {name} is {found}, needed is {wanted}")


def column_mismatch(what: str, missing: list[str], unknown: list[str]) -> str:
    """Words for columns that are absent, unknown, or the one under the name of the other."""
    parts = []
    if missing:
        hints = {name: difflib.get_close_matches(name, unknown, n=1, cutoff=0.5) for name in missing}
        named = [f"{name} (renamed to {hint[0]}?)" if hint else name for name, hint in hints.items()]
        parts.append(f"missing {', '.join(named)}")
    if unknown:
        parts.append(f"unknown {', '.join(unknown)}")
    return (
        f"{what}: columns do not fit: {'; '.join(parts)}; give every column under its own name, "
        f"null where a value is not known"
    )


def _copied(name: str, kind: str) -> pl.Expr:
    if kind == "categorical":
        return pl.col(name).cast(pl.String)
    return _finite(pl.col(name).cast(pl.Float64))


def _finite(value: pl.Expr) -> pl.Expr:
    """Null instead of NaN or infinity, which a tree would take for an ordinary large number."""
    return pl.when(value.is_finite()).then(value)


def _ratio(over: pl.Expr, under: pl.Expr) -> pl.Expr:
    return pl.when(under > 0).then(over / under)


def _cuda_ordinal() -> pl.Expr:
    """`12.9` as 1209; null for anything that does not start with two numbers."""
    parts = pl.col("cuda_version").cast(pl.String).str.extract_groups(r"^(\d{1,3})\.(\d{1,2})")
    return parts.struct.field("1").cast(pl.Float64) * 100.0 + parts.struct.field("2").cast(pl.Float64)


def _derived() -> dict[str, pl.Expr]:
    def number(name: str) -> pl.Expr:
        return _finite(pl.col(name).cast(pl.Float64))

    nodes = node_count_expression()
    lines = pl.coalesce(number("line_count"), number("graph_width"))
    cuda = _cuda_ordinal()
    straight = pl.col("is_straight_line").cast(pl.Boolean)
    return {
        "node_count": nodes,
        "node_count_log": pl.when(nodes > 0).then(nodes.log()),
        "nodes_per_line": _ratio(nodes, lines),
        "kernel_share_ratio": _ratio(number("kernel_count"), nodes),
        "memory_node_share_ratio": _ratio(number("memcpy_count") + number("memset_count"), nodes),
        "edges_per_node": _ratio(number("edge_count"), nodes),
        "depth_share_ratio": _ratio(number("depth"), nodes),
        "is_constant_time_line": (straight & (cuda >= CONSTANT_TIME_CUDA_ORDINAL)).cast(pl.Float64),
        "bytes_per_memcpy": _ratio(number("memcpy_bytes"), number("memcpy_count")),
        "blocks_per_sm": _ratio(number("block_count_maximum"), number("sm_count")),
        "cuda_version_ordinal": cuda,
        "driver_version_ordinal": pl.col("driver_version")
        .cast(pl.String)
        .str.extract(r"^(\d{2,4})", 1)
        .cast(pl.Float64),
    }
