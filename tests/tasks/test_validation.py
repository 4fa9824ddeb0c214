"""Validation with Great Expectations: suites on frames, tables and files."""

import gzip
import json
import math
import random
import runpy
import shutil
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import validation
from tasks.storage import Store, expectations_dir
from tasks.validation import (
    read_rows,
    validate_frame,
    validate_path,
    validate_table,
    validate_tables,
    write_contract_files,
)
from warpgauge.errors import (
    CheckNotEvaluableError,
    DataRefusedError,
    NoDataError,
    SchemaError,
    ServiceUnavailableError,
    SettingsError,
    SourceFileError,
)
from warpgauge.tables import LABELS, LAUNCHES, TABLES, Column, Table
from warpgauge.validation import CheckOutcome, ValidationReport, Verdict, suite_for, with_any_of_counts

SIZE_LIMIT_BYTES = 10**8
TIMINGS = Table(
    name="timings",
    row="one timing",
    key=(),
    columns=(
        Column("latency_us", pl.Float64(), "latency", unit="us", required=True, minimum=0.0),
        Column("gpu_model", pl.String(), "GPU", required=True),
        Column("num_nodes", pl.Int64(), "nodes", unit="1", required=True, minimum=1),
    ),
)
# The files of case 11 have no num_nodes at all.
LATENCIES = replace(TIMINGS, columns=(*TIMINGS.columns[:2], replace(TIMINGS.columns[2], required=False)))
NOW = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The committed Great Expectations project, in a place of its own."""
    copy = tmp_path / "expectations"
    shutil.copytree(expectations_dir(), copy, ignore=shutil.ignore_patterns("uncommitted"))
    return copy


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store(str(tmp_path / "data"))


def launches(count: int, **overrides: Any) -> pl.DataFrame:
    """Sound rows of the launches table."""
    columns = {
        "launch_id": [f"{place:064d}" for place in range(count)],
        "source_kind": ["perfscaling"] * count,
        "source_name": ["a.csv"] * count,
        "source_sha256": ["0" * 64] * count,
        "record_ordinal": range(count),
        "collected_at": [NOW] * count,
        "graph_id": ["g"] * count,
        "graph_signature": ["s"] * count,
        "topology": ["straight_line"] * count,
        "first_launch_api_us": [10.0 + place for place in range(count)],
        "is_profiled": [False] * count,
        "is_simulated": [False] * count,
        **overrides,
    }
    return LAUNCHES.conform(pl.DataFrame(columns, strict=False))


def labels(count: int, **overrides: Any) -> pl.DataFrame:
    """Sound rows of the labels table, whose suite is small and so quick to run."""
    columns = {
        "document_id": [f"d{place}" for place in range(count)],
        "annotator": ["rule"] * count,
        "labelled_at": [NOW] * count,
        "label_source": ["check"] * count,
        "is_defect": [True] * count,
        **overrides,
    }
    return LABELS.conform(pl.DataFrame(columns))


def check(report: ValidationReport, name: str, column: str) -> Any:
    found = [each for each in report.checks if each.name == f"{name}({column})"]
    assert len(found) == 1, f"{name}({column}) is not among the checks"
    return found[0]


def files_of(folder: Path) -> dict[str, str]:
    return {
        str(file.relative_to(folder)): file.read_text()
        for file in sorted(folder.rglob("*"))
        if file.is_file() and "uncommitted" not in file.parts
    }


# Case 10: an empty or all-null batch


def test_an_empty_batch_is_no_data_and_not_bad_data(cases: Path, folder: Path) -> None:
    frame = read_rows(cases / "10-empty-batch-passes" / "empty.csv", SIZE_LIMIT_BYTES)
    assert frame.columns == ["latency_us", "gpu_model", "num_nodes"]
    with pytest.raises(NoDataError, match="no data: 0 rows from collect launches, last 24 h"):
        validate_frame(frame, TIMINGS, folder=folder, origin="collect launches, last 24 h")


def test_an_all_null_batch_fails_on_every_required_column(cases: Path, folder: Path) -> None:
    frame = read_rows(cases / "10-empty-batch-passes" / "all_null.csv", SIZE_LIMIT_BYTES)
    report = validate_frame(frame, TIMINGS, folder=folder, build_docs=False)
    assert report.row_count == 5
    assert report.verdict is Verdict.REFUSED
    for column in TIMINGS.column_names:
        floor = check(report, "expect_column_proportion_of_non_null_values_to_be_between", column)
        null = check(report, "expect_column_values_to_not_be_null", column)
        assert (floor.outcome, floor.element_count, floor.missing_count) == (CheckOutcome.VIOLATED, 5, 5)
        assert (null.outcome, null.unexpected_count) == (CheckOutcome.VIOLATED, 5)
    vacuous = check(report, "expect_column_values_to_be_between", "latency_us")
    assert (vacuous.outcome, vacuous.is_vacuous) == (CheckOutcome.PASSED, True)
    with pytest.raises(DataRefusedError, match="bad data: 5 of 5 rows"):
        report.raise_for_verdict()


def test_blank_strings_count_as_missing(cases: Path, folder: Path) -> None:
    frame = read_rows(cases / "10-empty-batch-passes" / "blank_strings.csv", SIZE_LIMIT_BYTES)
    report = validate_frame(frame, TIMINGS, folder=folder, build_docs=False)
    null = check(report, "expect_column_values_to_not_be_null", "gpu_model")
    assert (null.element_count, null.missing_count, null.unexpected_count) == (3, 2, 2)
    assert report.failed_rows["row"].to_list() == [0, 1]
    assert report.verdict is Verdict.REFUSED


# Case 11: a check that could not run


def test_a_missing_column_is_not_evaluable(cases: Path, folder: Path) -> None:
    frame = read_rows(cases / "11-check-could-not-run" / "missing_column.csv", SIZE_LIMIT_BYTES)
    with pytest.raises(CheckNotEvaluableError, match="column latency_us is missing; found latency;"):
        validate_frame(frame, LATENCIES, folder=folder, build_docs=False)


def test_text_among_numbers_is_typed_before_it_is_checked(cases: Path, folder: Path) -> None:
    frame = read_rows(cases / "11-check-could-not-run" / "mixed.csv", SIZE_LIMIT_BYTES)
    report = validate_frame(frame, LATENCIES, folder=folder, build_docs=False)
    typed = check(report, "typed", "latency_us")
    assert (typed.element_count, typed.missing_count, typed.unexpected_count) == (6, 1, 2)
    null = check(report, "expect_column_values_to_not_be_null", "latency_us")
    assert (null.element_count, null.missing_count, null.unexpected_count) == (6, 1, 1)
    between = check(report, "expect_column_values_to_be_between", "latency_us")
    assert between.outcome is CheckOutcome.PASSED
    assert report.failed_rows.rows() == [
        (1, "typed(latency_us)", "latency_us is '2,5': not a number"),
        (2, "typed(latency_us)", "latency_us is 'N/A': not a number"),
        (3, "expect_column_values_to_not_be_null(latency_us)", "latency_us is missing"),
    ]
    assert not report.outcomes(CheckOutcome.NOT_EVALUABLE)


def test_a_frame_of_mixed_objects_is_checked_like_text(cases: Path, folder: Path) -> None:
    values = runpy.run_path(str(cases / "11-check-could-not-run" / "object_mixed.py"))["df"]["latency_us"]
    frame = pl.DataFrame(
        {"latency_us": pl.Series(values.tolist(), dtype=pl.Object), "gpu_model": ["A"] * len(values)}
    )
    report = validate_frame(frame, LATENCIES, folder=folder, build_docs=False)
    typed = check(report, "typed", "latency_us")
    assert (typed.element_count, typed.missing_count, typed.unexpected_count) == (5, 1, 1)


def test_infinity_is_caught_in_both_directions(folder: Path) -> None:
    frame = pl.DataFrame({"latency_us": [1.0, math.inf, -math.inf], "gpu_model": ["A"] * 3})
    report = validate_frame(frame, LATENCIES, folder=folder, build_docs=False)
    assert report.failed_rows["reason"].to_list()[0] == "latency_us is inf: not a finite number"
    assert set(report.failed_rows["row"]) == {1, 2}


def test_the_suite_alone_catches_infinity(folder: Path) -> None:
    import great_expectations as gx

    context = gx.get_context(mode="file", context_root_dir=folder)
    rows = with_any_of_counts(launches(2, first_launch_api_us=[1.0, math.inf]), LAUNCHES).to_pandas()
    rows["compute_capability"] = [-math.inf, 8.0]
    batch = context.data_sources.get("warpgauge").get_asset("rows").get_batch_definition("whole")
    answer = batch.get_batch({"dataframe": rows}).validate(
        context.suites.get("launches"), expectation_parameters={"completeness_floor_ratio": 0.95}
    )
    failed = [result.expectation_config.kwargs["column"] for result in answer.results if not result.success]
    assert sorted(failed) == ["compute_capability", "first_launch_api_us"]


def test_a_check_that_crashes_stops_with_its_message_and_is_no_violation(folder: Path) -> None:
    frame = pl.DataFrame({"latency_us": [1.0], "gpu_model": ["A"]})
    crashing = suite_for(LATENCIES)
    crashing["expectations"].append(
        {"type": "expect_column_values_to_be_between", "kwargs": {"column": "gpu_model", "min_value": 0}}
    )
    with pytest.raises(
        CheckNotEvaluableError,
        match=r"could not run.*\(gpu_model\): Column values, min_value, and max_value must",
    ):
        validate_frame(frame, LATENCIES, suite=crashing, folder=folder, build_docs=False)


def test_a_suite_on_a_column_that_is_not_there_is_not_evaluable(folder: Path) -> None:
    frame = pl.DataFrame({"latency_us": [1.0], "gpu_model": ["A"]})
    suite = {
        "expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "latency"}}]
    }
    with pytest.raises(CheckNotEvaluableError, match="latency"):
        validate_frame(frame, LATENCIES, suite=suite, folder=folder, build_docs=False)


def test_a_suite_that_is_none_is_refused_by_name(folder: Path) -> None:
    frame = pl.DataFrame({"latency_us": [1.0], "gpu_model": ["A"]})
    suite = {"expectations": [{"type": "expect_nothing_known", "kwargs": {}}]}
    with pytest.raises(SettingsError, match="suite timings: expect_nothing_known"):
        validate_frame(frame, LATENCIES, suite=suite, folder=folder, build_docs=False)
    (folder / "suites" / "launches.json").write_text("{")
    with pytest.raises(SettingsError, match=r"launches.json: not an expectation suite"):
        validate_frame(launches(1), LAUNCHES, folder=folder, build_docs=False)
    (folder / "great_expectations.yml").unlink()
    with pytest.raises(SettingsError, match=r"no great_expectations.yml"):
        validate_frame(launches(1), LAUNCHES, folder=folder, build_docs=False)


# The committed suites


def test_every_rule_of_a_table_finds_its_row_and_names_the_value(folder: Path) -> None:
    frame = launches(
        12,
        launch_id=["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "k"],
        first_launch_api_us=[-1.0, None, math.inf, 1e9, *[5.0] * 8],
        source_kind=["perfscaling"] * 4 + ["elsewhere", ""] + ["perfscaling"] * 6,
        node_count=[1] * 6 + [0, 10_000_001] + [None] * 4,
        topology=["straight_line"] * 8 + [None] + ["straight_line"] * 3,
    )
    report = validate_frame(frame, LAUNCHES, folder=folder, build_docs=False)
    reasons = {row: reason for row, _, reason in report.failed_rows.rows()}
    key = "key launch_id = 'k' occurs more than once"
    assert reasons == {
        0: "first_launch_api_us is -1.0, allowed 0 to 100,000,000",
        1: "none of first_launch_api_us, first_launch_total_us, first_launch_device_us, "
        "repeat_launch_api_us, repeat_launch_total_us, repeat_launch_device_us, upload_api_us, "
        "upload_device_us, instantiate_us, capture_us, launch_api_us, launch_to_device_us has a value",
        2: "none of first_launch_api_us, first_launch_total_us, first_launch_device_us, "
        "repeat_launch_api_us, repeat_launch_total_us, repeat_launch_device_us, upload_api_us, "
        "upload_device_us, instantiate_us, capture_us, launch_api_us, launch_to_device_us has a value",
        3: "first_launch_api_us is 1000000000.0, allowed 0 to 100,000,000",
        4: "source_kind is 'elsewhere', allowed perfscaling, kineto, nsight, tracer, probe, simulator",
        5: "source_kind is missing",
        6: "node_count is 0, allowed 1 to 10,000,000",
        7: "node_count is 10000001, allowed 1 to 10,000,000",
        8: "topology is missing",
        10: key,
        11: key,
    }
    assert report.failed_row_count == 11


def test_the_kinds_of_a_label_are_checked_one_by_one(folder: Path) -> None:
    frame = labels(5, kinds=[["typo"], ["typo", "rendering"], ["typo", "invented"], [], None])
    report = validate_frame(frame, LABELS, folder=folder, build_docs=False)
    assert report.failed_rows["row"].to_list() == [2]
    assert "kinds is ['typo', 'invented']" in report.failed_rows["reason"][0]


def test_a_duplicate_of_a_compound_key_is_found(folder: Path) -> None:
    frame = labels(3, document_id=["d", "d", "e"])
    report = validate_frame(frame, LABELS, folder=folder, build_docs=False)
    assert report.failed_rows["row"].to_list() == [0, 1]


def test_an_unknown_column_refuses_the_batch_by_name(folder: Path) -> None:
    frame = launches(3).with_columns(surprise=pl.Series([1.0, 2.0, 3.0]), nested=pl.Series([[1]] * 3))
    report = validate_frame(frame, LAUNCHES, folder=folder, build_docs=False)
    assert report.verdict is Verdict.REFUSED
    assert "unknown column nested, surprise" in report.refusal()


def test_the_floor_is_a_setting(folder: Path) -> None:
    frame = pl.DataFrame({"latency_us": [1.0, 2.0], "gpu_model": ["A", None]})
    for floor, outcome in ((0.5, CheckOutcome.PASSED), (0.51, CheckOutcome.VIOLATED)):
        report = validate_frame(
            frame,
            LATENCIES,
            completeness_floor_ratio=floor,
            quarantine_limit_ratio=0.5,
            folder=folder,
            build_docs=False,
        )
        name = "expect_column_proportion_of_non_null_values_to_be_between"
        assert check(report, name, "gpu_model").outcome is outcome


@pytest.mark.parametrize("name", sorted(TABLES))
def test_an_all_null_table_never_passes(name: str, folder: Path) -> None:
    frame = TABLES[name].empty().clear(3)
    report = validate_frame(frame, TABLES[name], folder=folder, build_docs=False)
    assert report.verdict is Verdict.REFUSED


# What a run writes


def test_a_run_changes_nothing_but_the_uncommitted_folder_and_prints_nothing(
    folder: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = files_of(folder)
    report = validate_frame(launches(3), LAUNCHES, folder=folder)
    assert report.verdict is Verdict.PASSED
    assert files_of(folder) == before
    assert capfd.readouterr().out == ""
    assert (folder / "uncommitted" / "data_docs" / "expectations" / "launches.html").exists()


def test_data_docs_hold_the_newest_results_and_no_dead_pages(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "KEPT_RESULTS", 2)
    frame = pl.DataFrame({"latency_us": [1.0], "gpu_model": ["A"]})
    paths = {validate_frame(frame, LATENCIES, folder=folder).data_docs_path for _ in range(4)}
    assert paths == {str(folder / "uncommitted" / "data_docs" / "index.html")}
    results = list((folder / "uncommitted" / "validations").rglob("*.json"))
    pages = list((folder / "uncommitted" / "data_docs" / "validations").rglob("*.html"))
    assert (len(results), len(pages)) == (2, 2)
    index = Path(paths.pop() or "").read_text()
    for page in pages:
        assert str(page.relative_to(folder / "uncommitted" / "data_docs")) in index
    assert index.count("warpgauge-rows.html") == 2


def test_docs_that_cannot_be_written_are_a_service_that_is_away(folder: Path) -> None:
    (folder / "uncommitted").write_text("a file where a folder should be")
    with pytest.raises(ServiceUnavailableError, match="cannot be read or written"):
        validate_frame(launches(1), LAUNCHES, folder=folder)


def test_the_contract_files_are_written_whole(tmp_path: Path) -> None:
    written = write_contract_files(tmp_path)
    assert {path.name for path in written} == {f"{name}.json" for name in TABLES} | {"data_dictionary.md"}
    assert json.loads((tmp_path / "expectations" / "suites" / "launches.json").read_text()) == suite_for(
        LAUNCHES
    )


# Tables of the store


def test_failing_rows_go_to_quarantine_once_and_are_not_checked_again(store: Store, folder: Path) -> None:
    store.append("labels", labels(40, label_source=["guess", *["check"] * 39]))
    report = validate_table(store, "labels", folder=folder, build_docs=False, now=NOW)
    assert (report.verdict, report.failed_row_count, report.quarantined_count) == (Verdict.ROWS_REFUSED, 1, 1)
    row = store.read("quarantine").collect().row(0, named=True)
    assert json.loads(row["row_key"]) == {
        "document_id": "d0",
        "annotator": "rule",
        "labelled_at": "2026-11-30T00:00:00+00:00",
    }
    assert row["reason"] == "label_source is 'guess', allowed human, history, check"
    assert row["quarantined_at"] == NOW
    again = validate_table(store, "labels", folder=folder, build_docs=False)
    assert (again.verdict, again.row_count, again.excluded_count) == (Verdict.PASSED, 39, 1)
    assert store.read("quarantine").collect().height == 1
    assert store.read_valid("labels").collect().height == 39
    assert "1 rows were in quarantine before" in again.to_text()


def test_too_many_failing_rows_refuse_the_batch_and_quarantine_nothing(store: Store, folder: Path) -> None:
    store.append("labels", labels(10, label_source=["guess"] * 3 + ["check"] * 7))
    message = r"3 of 10 rows \(30.0 %\) fail, above the limit of 5 %.*nothing was quarantined"
    with pytest.raises(DataRefusedError, match=message):
        validate_table(store, "labels", folder=folder, build_docs=False)
    assert store.version("quarantine") is None
    report = validate_table(store, "labels", folder=folder, build_docs=False, quarantine_limit_ratio=0.3)
    assert report.quarantined_count == 3


def test_a_table_without_rows_is_no_data(store: Store, folder: Path) -> None:
    with pytest.raises(
        NoDataError, match="table launches: no data: 0 rows from a table that nothing was added"
    ):
        validate_table(store, "launches", folder=folder)
    with pytest.raises(NoDataError, match="0 rows from collect launches, 10:00 to 11:00 UTC"):
        validate_table(store, "launches", folder=folder, origin="collect launches, 10:00 to 11:00 UTC")


def test_a_table_whose_rows_are_all_in_quarantine_is_no_data(store: Store, folder: Path) -> None:
    store.append("labels", labels(2, label_source=["guess"] * 2))
    validate_table(store, "labels", folder=folder, build_docs=False, quarantine_limit_ratio=1.0)
    with pytest.raises(NoDataError, match="each of its 2 rows is in quarantine"):
        validate_table(store, "labels", folder=folder)


def test_an_unknown_table_is_refused_with_the_known_ones(store: Store, folder: Path) -> None:
    with pytest.raises(SchemaError, match=r"no table launch; the tables are documents, .*launches"):
        validate_table(store, "launch", folder=folder)


def test_several_tables_are_each_checked_before_one_refuses(
    store: Store, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "expectations_dir", lambda: folder)
    store.append("labels", labels(40, label_source=["guess", *["check"] * 39]))
    answer = validate_tables(("labels", "documents"), store, build_docs=False)
    assert [entry["verdict"] for entry in answer["tables"]] == ["rows refused", "no data"]
    assert answer["refused"] == [
        "labels at version 1: 1 of 40 rows (2.5 %) fail, within the limit of 5 %; "
        "expect_column_values_to_be_in_set(label_source) 1 rows, first row 0: "
        "label_source is 'guess', allowed human, history, check"
    ]
    assert json.loads(json.dumps(answer)) == answer
    queue = {"document_id": ["d"], "why": ["tie"], "queued_at": [NOW], "priority": [None]}
    store.append("review_queue", TABLES["review_queue"].conform(pl.DataFrame(queue)))
    with pytest.raises(DataRefusedError, match="table review_queue: bad data"):
        validate_tables(("review_queue", "labels"), store, build_docs=False)


# Files of a user


def test_a_file_is_checked_against_the_table_that_its_columns_fit(tmp_path: Path, folder: Path) -> None:
    frame = labels(3, label_source=["human", "check", "guess"])
    frame.write_parquet(tmp_path / "rows.parquet")
    # A CSV has no lists: an optional column that is absent is null.
    frame.drop("kinds").write_csv(tmp_path / "rows.csv")
    (tmp_path / "packed").write_bytes(gzip.compress((tmp_path / "rows.csv").read_bytes()))
    for name in ("rows.parquet", "rows.csv", "packed"):
        report = validate_path(tmp_path / name, folder=folder, build_docs=False, quarantine_limit_ratio=1.0)
        assert (report.table, report.origin, report.row_count) == ("labels", name, 3)
        assert report.failed_rows["reason"].to_list() == [
            "label_source is 'guess', allowed human, history, check"
        ]


def test_times_without_zone_in_json_lines_are_row_problems(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"document_id": "d", "why": "tie", "queued_at": "2026-11-30T10:00:00", "priority": 1}\n'
        '{"document_id": "e", "why": "tie", "queued_at": "2026-11-30T10:00:00Z", "priority": "high"}\n'
    )
    report = validate_path(path, folder=folder, build_docs=False, quarantine_limit_ratio=1.0)
    assert report.table == "review_queue"
    assert report.failed_rows["reason"].to_list() == [
        "queued_at is '2026-11-30T10:00:00': a time without its zone",
        "priority is 'high': not a number",
    ]


def test_columns_that_fit_no_table_are_listed(cases: Path, folder: Path) -> None:
    path = cases / "11-check-could-not-run" / "mixed.csv"
    with pytest.raises(SchemaError, match=r"fit no table; found latency_us, gpu_model; name the table"):
        validate_path(path, folder=folder)


def test_a_near_table_is_named_with_what_it_also_needs(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("document_id,why,queued_at\nd,tie,2026-11-30T10:00:00Z\n")
    with pytest.raises(SchemaError, match="nearest is review_queue, which also needs priority"):
        validate_path(path, folder=folder)


def test_the_command_takes_a_table_or_a_file(
    project: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(validation, "expectations_dir", lambda: folder)
    Store().append("labels", labels(3))
    answer = validation.validate("labels")
    assert [entry["verdict"] for entry in answer["tables"]] == ["passed"]
    assert answer["refused"] == []
    assert answer["data_docs"] == str(folder / "uncommitted" / "data_docs" / "index.html")
    path = project / "labels.csv"
    labels(3, label_source=["guess", "", "human"]).drop("kinds").write_csv(path)
    answer = validation.validate(str(path), "labels")
    assert [entry["verdict"] for entry in answer["tables"]] == ["refused"]
    assert answer["refused"][0].startswith("labels.csv: 2 of 3 rows (66.7 %) fail, above the limit of 5 %")
    with pytest.raises(SourceFileError, match="neither a table"):
        validation.validate("labls")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n3\n", r"row 2 \(line 3\) has 1 of 2 fields"),
        (b"a,b\n1,2\n1,2,3\n", r"row 2 \(line 3\) has 3 of 2 fields"),
        (b"a,b\n1,2\n\n1,2\n", r"row 2 \(line 3\) has 0 of 2 fields"),
        (b'a,b\n1,"2\n', r"line 2: not a comma-separated file"),
        (b'a,b\n1,"2"x\n', r"not a comma-separated file"),
        (b"a,a\n1,2\n", r"the column name 'a' occurs more than once"),
        (b"a,b\n1,\xff\n", r"byte 6 is not UTF-8"),
        (b"\x00\x01\x02\xff", r"not UTF-8"),
        (b"\n", r"has 0 columns"),
        (b"", r"empty"),
        (b"PAR1 and no footer", r"begins like Parquet and cannot be read"),
        (b'{"a": 1}\n{"a": \n', r"line 2 is not JSON"),
        (b'{"a": 1}\n[1]\n', r"line 2 holds a list"),
        (b'{"a": ' + b"[" * 100_000 + b"\n", r"line 1 is not JSON"),
        (b'{"a": ' + b"9" * 10_000 + b"}\n", r"line 1 is not JSON"),
        (b"{}\n", r"has 0 columns"),
        (b'{"\\ud800": 1}\n', r"not printable text"),
        (b",".join(b"c%d" % place for place in range(10_001)) + b"\n", r"has 10,001 columns"),
    ],
)
def test_a_file_that_is_not_whole_rows_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "rows"
    path.write_bytes(content)
    with pytest.raises(SourceFileError, match=message):
        read_rows(path, SIZE_LIMIT_BYTES)


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    for path in (tmp_path, tmp_path / "absent.csv"):
        with pytest.raises(SourceFileError):
            read_rows(path, SIZE_LIMIT_BYTES)


def test_few_bytes_that_stand_for_many_cells_are_refused(tmp_path: Path) -> None:
    constant = tmp_path / "constant.parquet"
    pl.DataFrame({"a": [0]}).select(pl.repeat(0, 10**6).alias("a")).write_parquet(constant)
    sparse = tmp_path / "sparse.jsonl"
    sparse.write_text("".join(f'{{"c{place}": 1}}\n' for place in range(2000)))
    packed = tmp_path / "packed.csv"
    packed.write_bytes(gzip.compress(b"a,b\n" + b"1,2\n" * 10**6))
    for path in (constant, sparse, packed):
        assert path.stat().st_size < 10**6
        with pytest.raises(SourceFileError, match=r"limit|more than"):
            read_rows(path, 10**6)


def test_a_truncated_parquet_file_is_refused_at_every_length(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    launches(20).write_parquet(path)
    content = path.read_bytes()
    for length in range(4, len(content), len(content) // 25):
        path.write_bytes(content[:length])
        with pytest.raises(SourceFileError):
            read_rows(path, SIZE_LIMIT_BYTES)


def test_a_damaged_parquet_file_never_crashes_the_reader(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.parquet"
    labels(3).write_parquet(path)
    content = path.read_bytes()
    chance = random.Random(0)
    refused = 0
    for _ in range(300):
        damaged = bytearray(content)
        for _ in range(chance.randint(1, 4)):
            damaged[chance.randrange(4, len(damaged))] = chance.randrange(256)
        path.write_bytes(damaged)
        try:
            read_rows(path, SIZE_LIMIT_BYTES)
        except SourceFileError:
            refused += 1
    assert refused > 150
    # Polars would tell of its panics on the terminal itself.
    assert capfd.readouterr().err == ""


def test_quoted_commas_line_breaks_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes('\ufeffa,b\r\n"1,5","two\r\nlines ""quoted"""\r\n, \r\n'.encode())
    assert read_rows(path, SIZE_LIMIT_BYTES).rows() == [("1,5", 'two\r\nlines "quoted"'), (None, " ")]


def test_json_lines_of_mixed_types_reach_the_typing_rules(tmp_path: Path, folder: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(
        '{"latency_us": 1.0, "gpu_model": "A"}\n{"latency_us": "2.0", "gpu_model": "A"}\n'
        '{"gpu_model": "\\ud800"}\n{"latency_us": NaN, "gpu_model": 7, "num_nodes": 1e400}\n'
    )
    report = validate_frame(read_rows(path, SIZE_LIMIT_BYTES), LATENCIES, folder=folder, build_docs=False)
    typed = check(report, "typed", "latency_us")
    assert (typed.element_count, typed.missing_count, typed.unexpected_count) == (4, 1, 1)
    assert check(report, "typed", "gpu_model").unexpected_count == 1
    assert check(report, "typed", "num_nodes").unexpected_count == 1
