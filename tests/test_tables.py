"""Suites, data dictionary and stored keys all follow `warpgauge/tables.py`."""

import json
import re
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from warpgauge.tables import (
    GPU_SAMPLES,
    KINDS,
    LAUNCH_LABELS,
    LAUNCHES,
    TABLES,
    TIME,
    Table,
    render_data_dictionary,
)
from warpgauge.validation import any_of_column, render_suite, suite_for

PROJECT_ROOT = Path(__file__).resolve().parents[1]
SUITES = PROJECT_ROOT / "expectations" / "suites"
WRITE_AGAIN = (
    "run: python -c 'from tasks.validation import write_contract_files; write_contract_files()' and commit"
)


def committed(table: Table) -> list[dict[str, Any]]:
    content = json.loads((SUITES / f"{table.name}.json").read_text(encoding="utf-8"))
    assert content["name"] == table.name
    return list(content["expectations"])


def of_column(expectations: list[dict[str, Any]], kind: str, column: str) -> list[dict[str, Any]]:
    return [
        each["kwargs"]
        for each in expectations
        if each["type"] == kind and each["kwargs"].get("column") == column
    ]


def test_every_table_has_a_suite_and_no_suite_is_left_over() -> None:
    assert {path.stem for path in SUITES.glob("*.json")} == set(TABLES)


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_the_committed_suite_is_the_one_that_the_table_implies(table: Table) -> None:
    assert committed(table) == suite_for(table)["expectations"], WRITE_AGAIN
    assert (SUITES / f"{table.name}.json").read_text(encoding="utf-8") == render_suite(table), WRITE_AGAIN


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_the_committed_suite_holds_every_rule_of_every_column(table: Table) -> None:
    # Compared with the columns themselves, so a fault in `suite_for` shows too.
    found = committed(table)
    for column in table.columns:
        is_needed = column.required or column.name in table.key
        assert bool(of_column(found, "expect_column_values_to_not_be_null", column.name)) == is_needed
        floors = of_column(found, "expect_column_proportion_of_non_null_values_to_be_between", column.name)
        assert [each["min_value"] for each in floors] == (
            [{"$PARAMETER": "completeness_floor_ratio"}] if is_needed else []
        )
        ranges = of_column(found, "expect_column_values_to_be_between", column.name)
        if column.dtype == pl.Float64():
            low = -sys.float_info.max if column.minimum is None else column.minimum
            high = sys.float_info.max if column.maximum is None else column.maximum
            assert [(each["min_value"], each["max_value"]) for each in ranges] == [(low, high)]
        elif column.minimum is not None or column.maximum is not None:
            assert [(each["min_value"], each["max_value"]) for each in ranges] == [
                (column.minimum, column.maximum)
            ]
        else:
            assert ranges == []
        sets = of_column(found, "expect_column_values_to_be_in_set", column.name)
        is_set = column.allowed is not None and column.dtype == pl.String()
        assert [tuple(each["value_set"]) for each in sets] == ([column.allowed] if is_set else [])


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_the_committed_suite_holds_the_rules_of_the_whole_batch(table: Table) -> None:
    found = {each["type"]: each["kwargs"] for each in committed(table)}
    assert found["expect_table_row_count_to_be_between"] == {"min_value": 1}
    names = [*table.column_names, *(any_of_column(place) for place in range(1, len(table.any_of) + 1))]
    assert found["expect_table_columns_to_match_set"] == {"column_set": names, "exact_match": True}
    if len(table.key) == 1:
        assert found["expect_column_values_to_be_unique"] == {"column": table.key[0]}
    else:
        assert found["expect_compound_columns_to_be_unique"] == {"column_list": list(table.key)}
    for place in range(1, len(table.any_of) + 1):
        (counted,) = of_column(committed(table), "expect_column_values_to_be_between", any_of_column(place))
        assert counted["min_value"] == 1


def test_a_list_column_allows_each_of_its_words_and_no_other() -> None:
    (rule,) = of_column(committed(TABLES["labels"]), "expect_column_values_to_match_regex", "kinds")
    allowed = re.compile(rule["regex"])
    for text in ("", *KINDS, ",".join(KINDS)):
        assert allowed.search(text)
    for text in ("typos", "typo,", ",typo", "typo,invented", "typo typo"):
        assert not allowed.search(text)


def test_the_data_dictionary_is_the_rendering_of_the_tables() -> None:
    path = PROJECT_ROOT / "docs" / "data_dictionary.md"
    assert path.read_text(encoding="utf-8") == render_data_dictionary(), WRITE_AGAIN


def test_the_data_dictionary_says_unit_range_set_and_key() -> None:
    lines = render_data_dictionary().splitlines()
    assert (
        "| `utilization_percent` | number | % |  | 0 to 100 | share of time with a kernel running |" in lines
    )
    assert any(line.startswith("| `topology` | text |  | yes | `straight_line`, ") for line in lines)
    assert any(line.endswith("Key: `document_id`, `annotator`, `labelled_at`.") for line in lines)
    assert sum(line.startswith("## ") for line in lines) == len(TABLES)


@pytest.mark.parametrize("table", TABLES.values(), ids=list(TABLES))
def test_a_table_is_consistent_in_itself(table: Table) -> None:
    names = table.column_names
    assert len(set(names)) == len(names)
    assert table.key
    assert set(table.key) <= set(names)
    assert {name for group in table.any_of for name in group} <= set(names)
    assert all(table.column(name).required for name in table.key)
    for column in table.columns:
        assert column.description
        if column.minimum is not None and column.maximum is not None:
            assert column.minimum < column.maximum
        if column.unit is not None or column.minimum is not None:
            assert column.dtype.is_numeric()


@pytest.mark.parametrize(
    ("unit", "suffix"),
    [("us", "_us"), ("ns", "_ns"), ("B", "_bytes"), ("%", "_percent"), ("MHz", "_mhz"), ("W", "_w")],
)
def test_a_quantity_ends_in_its_unit(unit: str, suffix: str) -> None:
    with_unit = [column.name for table in TABLES.values() for column in table.columns if column.unit == unit]
    assert with_unit
    # A statistic may follow the unit: shared_memory_bytes_maximum.
    assert all(suffix in name for name in with_unit)


def test_each_launch_label_is_a_duration_of_the_launches_table() -> None:
    assert all(LAUNCHES.column(name).unit == "us" for name in LAUNCH_LABELS)
    assert LAUNCHES.any_of == (LAUNCH_LABELS,)


def test_the_hash_of_a_key_does_not_change_between_versions() -> None:
    # Stored in quarantine: another text for the same key would bring quarantined rows back.
    frame = pl.DataFrame(
        {
            "gpu_uuid": ["GPU-1"],
            "sampled_at": pl.Series([datetime(2026, 11, 30, 8, 0, 0, 250_000, UTC)], dtype=TIME),
        }
    )
    text = frame.select(pl.struct(GPU_SAMPLES.key).struct.json_encode()).item()
    assert text == '{"gpu_uuid":"GPU-1","sampled_at":"2026-11-30T08:00:00.250+00:00"}'
    assert GPU_SAMPLES.key_hashes(frame).to_list() == [
        "76f22d94a5a5a4d9882d0ed3ff053081225d9ffe7a49ac345112174afb454e17"
    ]
