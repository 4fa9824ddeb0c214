"""warpgauge/latency/catalogue.py and features.py."""

import polars as pl
import pytest

from warpgauge.errors import SchemaError
from warpgauge.latency.catalogue import CATALOGUE, FEATURE_NAMES, SOURCE_COLUMNS, feature
from warpgauge.latency.features import build_features, feature_expressions
from warpgauge.tables import LAUNCH_LABELS, LAUNCHES


def row(**values: object) -> pl.DataFrame:
    return LAUNCHES.conform(pl.DataFrame({name: [value] for name, value in values.items()}))


def test_every_feature_has_a_reason_and_columns_of_the_table():
    assert len(set(FEATURE_NAMES)) == len(FEATURE_NAMES)
    for entry in CATALOGUE:
        assert entry.reason
        assert (entry.unit is None) == (entry.kind == "categorical"), entry.name
        assert set(entry.columns) <= set(LAUNCHES.column_names), entry.name


def test_no_label_and_no_ordinal_is_a_feature():
    forbidden = {*LAUNCH_LABELS, "trial", "record_ordinal", "launch_id", "graph_id", "started_ns"}
    assert not forbidden & {*FEATURE_NAMES, *SOURCE_COLUMNS}


def test_features_come_in_catalogue_order_whatever_the_column_order(launches):
    built = build_features(launches)
    assert tuple(built.columns) == FEATURE_NAMES
    assert built.equals(build_features(launches.select(reversed(launches.columns))))


def test_types_are_numbers_or_text(launches):
    for name, dtype in build_features(launches).schema.items():
        assert dtype == (pl.String if feature(name).kind == "categorical" else pl.Float64), name


def test_plan_stays_lazy(launches):
    lazy = launches.lazy().select(feature_expressions())
    assert lazy.collect_schema().names() == list(FEATURE_NAMES)


def test_known_values_of_one_graph():
    built = build_features(
        row(
            node_count=20,
            line_count=4,
            kernel_count=2,
            memset_count=18,
            memcpy_count=0,
            edge_count=16,
            depth=5,
            memcpy_bytes=0,
            block_count_maximum=216.0,
            sm_count=108,
            is_straight_line=False,
            cuda_version="12.9",
            driver_version="570.86.10",
        )
    ).row(0, named=True)
    assert built["nodes_per_line"] == 5.0
    assert built["kernel_share_ratio"] == 0.1
    assert built["memory_node_share_ratio"] == 0.9
    assert built["edges_per_node"] == 0.8
    assert built["depth_share_ratio"] == 0.25
    assert built["blocks_per_sm"] == 2.0
    assert built["cuda_version_ordinal"] == 1209.0
    assert built["driver_version_ordinal"] == 570.0
    assert built["is_constant_time_line"] == 0.0
    assert built["bytes_per_memcpy"] is None


@pytest.mark.parametrize(("version", "expected"), [("12.5", 0.0), ("12.6", 1.0), ("13.0", 1.0), (None, None)])
def test_straight_lines_are_constant_time_from_12_6(version, expected):
    built = build_features(row(node_count=5, is_straight_line=True, cuda_version=version))
    assert built["is_constant_time_line"][0] == expected


def test_node_count_of_lines_is_length_times_lines():
    assert build_features(row(line_length=50, line_count=4))["node_count"][0] == 200.0


def test_missing_stays_missing():
    built = build_features(row(node_count=5)).row(0, named=True)
    present = {name for name, value in built.items() if value is not None}
    assert present == {"node_count", "node_count_log"}


def test_infinite_value_is_missing():
    assert build_features(row(node_count=5, block_count_total=float("inf")))["block_count_total"][0] is None


def test_strange_version_is_missing_not_a_number():
    built = build_features(row(node_count=5, cuda_version="v12", driver_version="unknown"))
    assert built["cuda_version_ordinal"][0] is None
    assert built["driver_version_ordinal"][0] is None


def test_missing_column_is_named(launches):
    with pytest.raises(SchemaError, match="missing kernel_count"):
        build_features(launches.drop("kernel_count"))


def test_renamed_column_is_named(launches):
    with pytest.raises(SchemaError, match=r"kernel_count \(renamed to kernels_count\?\)"):
        build_features(launches.rename({"kernel_count": "kernels_count"}))


def test_column_of_another_type_is_named(launches):
    with pytest.raises(SchemaError, match="kernel_count is String, needed is Int64"):
        build_features(launches.with_columns(pl.col("kernel_count").cast(pl.String)))


def test_unknown_feature_is_named():
    with pytest.raises(SchemaError, match="no feature is named clock"):
        feature("clock")
