"""The pure part of validation: typing, outcomes, verdicts, reports."""

import math
import runpy
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warpgauge.errors import CheckNotEvaluableError, DataRefusedError, NoDataError
from warpgauge.tables import GPU_SAMPLES, LAUNCHES, TABLES, TIME, Column, Table
from warpgauge.validation import (
    CheckOutcome,
    RowProblem,
    Verdict,
    build_report,
    exception_messages,
    outcome_of,
    quarantine_rows,
    require_columns,
    suite_for,
    type_columns,
    with_any_of_counts,
)

TIMINGS = Table(
    name="timings",
    row="one timing",
    key=(),
    columns=(
        Column("latency_us", pl.Float64(), "latency", unit="us", required=True, minimum=0.0),
        Column("gpu_model", pl.String(), "GPU", required=True),
        Column("num_nodes", pl.Int64(), "nodes", unit="1", minimum=1),
    ),
)


def one_column(dtype: pl.DataType) -> Table:
    return Table("ad_hoc", "a row", (), (Column("value", dtype, "a value"),))


def typed_values(values: list[Any], dtype: pl.DataType) -> tuple[list[Any], list[str]]:
    """Values typed from text (or from objects), and the reasons of those that do not fit."""
    is_text = all(value is None or isinstance(value, str) for value in values)
    series = pl.Series("value", values, dtype=pl.String if is_text else pl.Object)
    typed, problems = type_columns(series.to_frame(), one_column(dtype))
    return typed["value"].to_list(), [problem.reason for problem in problems]


def ran(**overrides: Any) -> dict[str, Any]:
    """A result as Great Expectations gives it."""
    return {
        "type": "expect_column_values_to_be_between",
        "kwargs": {"column": "latency_us", "min_value": 0.0},
        "meta": {},
        "success": True,
        "result": {"element_count": 4, "missing_count": 0, "unexpected_count": 0},
        "exception_info": {"raised_exception": False, "exception_message": None, "exception_traceback": None},
        **overrides,
    }


CRASHED = {
    "MetricConfigurationID(metric_name='column_values.between.condition')": {
        "exception_message": "'<' not supported between 'str' and 'int'",
        "exception_traceback": "Traceback ...",
        "raised_exception": True,
    }
}


def report_of(*results: dict[str, Any], rows: int = 4, limit: float = 0.5) -> Any:
    frame = pl.DataFrame(
        {
            "latency_us": [-1.0, *[2.0] * (rows - 1)],
            "gpu_model": ["A"] * rows,
            "num_nodes": pl.Series([3] * rows, dtype=pl.Int64),
        }
    )
    return build_report(TIMINGS, frame, [], results, quarantine_limit_ratio=limit)


def test_numbers_are_read_strictly() -> None:
    values, reasons = typed_values(["1.0", "2,5", "N/A", "", "1e3", "5"], pl.Float64())
    assert values == [1.0, None, None, None, 1000.0, 5.0]
    assert reasons == ["not a number", "not a number"]


@pytest.mark.parametrize("text", ["1_0", "0x10", "１２", "12us", "1.2.3", "true", "--1", "1e", "1 2"])
def test_what_only_looks_like_a_number_is_a_problem(text: str) -> None:
    assert typed_values([text], pl.Float64()) == ([None], ["not a number"])
    assert typed_values([text], pl.Int64()) == ([None], ["not a number"])


@pytest.mark.parametrize("text", ["inf", "-inf", "nan", "NaN", "Infinity", "1e400"])
def test_text_that_is_not_finite_is_a_problem(text: str) -> None:
    values, reasons = typed_values([text, "1"], pl.Float64())
    assert values == [None, 1.0]
    assert reasons == ["not a finite number"]


def test_infinite_and_nan_floats_are_problems_and_become_null() -> None:
    frame = pl.DataFrame({"value": [math.inf, -math.inf, math.nan, 1.0, None]})
    typed, problems = type_columns(frame, one_column(pl.Float64()))
    assert typed["value"].to_list() == [None, None, None, 1.0, None]
    assert [(problem.row, problem.value) for problem in problems] == [(0, "inf"), (1, "-inf"), (2, "nan")]


def test_blank_text_is_missing_and_other_text_keeps_its_blanks() -> None:
    assert typed_values(["", " ", "\t", None, " A"], pl.String()) == ([None, None, None, None, " A"], [])
    assert typed_values(["", " ", " 7 "], pl.Int64()) == ([None, None, 7], [])


def test_a_time_in_nanoseconds_keeps_its_last_digit() -> None:
    assert typed_values(["1732986000123456789"], pl.Int64()) == ([1732986000123456789], [])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("2.5", "not a whole number"),
        ("99999999999999999999", "beyond 64 bits"),
        ("1e300", "too large for an exact whole number"),
        ("inf", "not a finite number"),
    ],
)
def test_whole_numbers_that_are_none_say_why(text: str, reason: str) -> None:
    assert typed_values([text], pl.Int64()) == ([None], [reason])


def test_whole_numbers_may_be_written_as_floats() -> None:
    assert typed_values(["10.0", "+3", "-4", "1e3"], pl.Int64()) == ([10, 3, -4, 1000], [])


def test_flags_are_true_false_one_or_zero() -> None:
    values, reasons = typed_values(["true", "False", "1", "0", "", "yes"], pl.Boolean())
    assert values == [True, False, True, False, None, None]
    assert reasons == ["not true or false"]


def test_times_need_a_zone() -> None:
    values, reasons = typed_values(
        ["2026-11-30T10:00:00+02:00", "2026-11-30T08:00:00Z", "2026-11-30T08:00:00", "yesterday"], TIME
    )
    assert values[:2] == [datetime(2026, 11, 30, 8, tzinfo=UTC)] * 2
    assert values[2:] == [None, None]
    assert reasons == ["a time without its zone", "not a time in ISO 8601"]


def test_a_typed_time_without_zone_is_a_problem() -> None:
    frame = pl.DataFrame({"value": [datetime(2026, 1, 1)]})
    typed, problems = type_columns(frame, one_column(TIME))
    assert typed["value"].to_list() == [None]
    assert problems[0].reason == "a time without its zone"


def test_lists_are_read_from_json() -> None:
    values, reasons = typed_values(['["typo"]', "[]", "typo", "[1]", "[" * 5000, ""], pl.List(pl.String))
    assert values == [["typo"], [], None, None, None, None]
    assert reasons == ["not a JSON list of texts"] * 3


def test_mixed_objects_are_settled_value_by_value(cases: Path) -> None:
    module = runpy.run_path(str(cases / "11-check-could-not-run" / "object_mixed.py"))
    values = module["df"]["latency_us"].tolist()
    assert values == [1.0, "2.0", None, "N/A", 5]
    frame = pl.DataFrame({"latency_us": pl.Series(values, dtype=pl.Object), "gpu_model": ["A"] * 5})
    typed, problems = type_columns(frame, TIMINGS)
    assert typed["latency_us"].to_list() == [1.0, 2.0, None, None, 5.0]
    assert problems == [RowProblem(3, "latency_us", "'N/A'", "not a number")]


def test_a_float_in_a_text_column_is_refused_because_its_digits_are_lost() -> None:
    values, reasons = typed_values([12.10, 7, "12.10", True, Decimal("1.5")], pl.String())
    assert values == [None, "7", "12.10", None, None]
    assert len(reasons) == 3
    typed, problems = type_columns(pl.DataFrame({"value": [12.10]}), one_column(pl.String()))
    assert typed["value"].to_list() == [None]
    assert problems[0].reason == "not text"


def test_objects_that_no_column_holds_are_problems_not_crashes() -> None:
    hostile = [10**5000, "\ud800", b"1", {"a": 1}, object(), Decimal("NaN"), [1], ("a",)]
    values, reasons = typed_values(hostile, pl.Float64())
    assert values == [None] * 8
    assert len(reasons) == 8
    values, reasons = typed_values(hostile, pl.List(pl.String))
    assert values == [None] * 7 + [["a"]]
    assert len(reasons) == 7


def test_a_long_value_is_cut_in_the_message() -> None:
    _, problems = type_columns(pl.DataFrame({"value": ["x" * 10_000]}), one_column(pl.Float64()))
    assert len(problems[0].value) == 80


def test_categories_are_read_as_their_text() -> None:
    frame = pl.DataFrame({"value": pl.Series(["A", ""], dtype=pl.Categorical)})
    assert type_columns(frame, one_column(pl.String()))[0]["value"].to_list() == ["A", None]


@given(
    st.lists(
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.binary(), st.datetimes(),
            st.lists(st.text(), max_size=2), st.dates(), st.timedeltas(),
        ),
        min_size=1,
        max_size=5,
    )
)  # fmt: skip
def test_any_object_becomes_a_value_or_a_problem_never_a_crash(values: list[Any]) -> None:
    dtypes = (pl.Float64(), pl.Int64(), pl.String(), pl.Boolean(), TIME, pl.List(pl.String()))
    for dtype in dtypes:
        frame = pl.DataFrame({"value": pl.Series(values, dtype=pl.Object)})
        typed, problems = type_columns(frame, one_column(dtype))
        assert typed["value"].dtype == dtype
        null = [row for row, value in enumerate(typed["value"].to_list()) if value is None]
        assert {problem.row for problem in problems} <= set(null)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_written_float_reads_back_as_itself(value: float) -> None:
    assert typed_values([repr(value)], pl.Float64()) == ([value], [])


@given(st.integers(min_value=-(2**63), max_value=2**63 - 1))
def test_a_written_whole_number_reads_back_as_itself(value: int) -> None:
    assert typed_values([str(value)], pl.Int64()) == ([value], [])


def test_every_pair_of_stored_type_and_table_type_is_settled() -> None:
    series = [
        pl.Series("value", [1]),
        pl.Series("value", [2**64 - 1], dtype=pl.UInt64),
        pl.Series("value", [1.5]),
        pl.Series("value", [Decimal("1.5")]),
        pl.Series("value", [True]),
        pl.Series("value", ["a"]),
        pl.Series("value", [None]),
        pl.Series("value", [datetime(2026, 1, 1)]).cast(pl.Date),
        pl.Series("value", [timedelta(1)]),
        pl.Series("value", [b"1"]),
        pl.Series("value", [[1]]),
        pl.Series("value", [{"a": 1}]),
        pl.Series("value", [[]], dtype=pl.List(pl.Null)),
    ]
    for raw in series:
        for dtype in (pl.Float64(), pl.Int64(), pl.String(), pl.Boolean(), TIME, pl.List(pl.String())):
            typed, problems = type_columns(raw.to_frame(), one_column(dtype))
            assert typed["value"].dtype == dtype
            assert len(problems) == (typed["value"].null_count() if raw.null_count() == 0 else 0)


def test_no_rows_is_no_data_and_names_where_they_should_have_come_from() -> None:
    with pytest.raises(NoDataError, match=r"no data: 0 rows from collect launches, 10:00 to 11:00 UTC"):
        type_columns(
            pl.DataFrame(schema={"latency_us": pl.String, "gpu_model": pl.String}),
            TIMINGS,
            origin="collect launches, 10:00 to 11:00 UTC",
        )


def test_a_missing_column_names_its_near_one() -> None:
    with pytest.raises(CheckNotEvaluableError, match=r"column latency_us is missing; found latency;"):
        require_columns(["latency", "gpu_model"], TIMINGS)


def test_a_missing_column_without_a_near_one_lists_what_is_there() -> None:
    with pytest.raises(
        CheckNotEvaluableError, match=r"column latency_us is missing; found a, ' b', gpu_model;"
    ):
        require_columns(["a", " b", "gpu_model"], TIMINGS)


def test_an_absent_optional_column_is_null_but_a_renamed_one_is_not_evaluable() -> None:
    frame = pl.DataFrame({"latency_us": ["1"], "gpu_model": ["A"]})
    assert type_columns(frame, TIMINGS)[0]["num_nodes"].to_list() == [None]
    with pytest.raises(CheckNotEvaluableError, match=r"column num_nodes is missing; found num_node;"):
        type_columns(frame.with_columns(num_node=pl.lit("3")), TIMINGS)


def test_an_absent_any_of_group_is_not_evaluable() -> None:
    found = [name for name in LAUNCHES.column_names if not name.endswith("_us")]
    with pytest.raises(
        CheckNotEvaluableError, match=r"each of the columns first_launch_api_us, .* is missing"
    ):
        require_columns(found, LAUNCHES)


def test_ten_thousand_unknown_columns_still_get_an_answer() -> None:
    with pytest.raises(CheckNotEvaluableError, match=r"and 9988 more"):
        require_columns([f"c{place}" for place in range(10_000)], TIMINGS)


def test_any_of_counts_say_how_many_of_a_group_have_a_value() -> None:
    row = {"first_launch_api_us": [1.0, None], "launch_api_us": [2.0, None]}
    counted = with_any_of_counts(LAUNCHES.conform(pl.DataFrame(row)), LAUNCHES)
    assert counted["any_of_1_count"].to_list() == [2, 0]


def test_both_shapes_of_exception_info_are_read() -> None:
    assert exception_messages({"raised_exception": False, "exception_message": None}) == ()
    assert exception_messages({"raised_exception": True, "exception_message": "broken"}) == ("broken",)
    assert exception_messages(CRASHED) == ("'<' not supported between 'str' and 'int'",)
    assert exception_messages({}) == ()
    assert exception_messages(None) == ()
    assert exception_messages({"unheard of": "shape"}) == ("shape",)


def test_a_crashed_check_is_not_a_violation() -> None:
    assert outcome_of(ran(success=False)) is CheckOutcome.VIOLATED
    assert outcome_of(ran(success=False, result={}, exception_info=CRASHED)) is CheckOutcome.NOT_EVALUABLE
    assert outcome_of(ran()) is CheckOutcome.PASSED


def test_a_check_that_could_not_run_counts_no_rows_and_stops_with_its_own_text() -> None:
    report = report_of(ran(), ran(success=False, result={}, exception_info=CRASHED))
    assert report.verdict is Verdict.NOT_EVALUABLE
    assert report.failed_row_ratio == 0
    assert report.checks[-1].unexpected_count is None
    with pytest.raises(CheckNotEvaluableError, match="not supported between 'str' and 'int'"):
        report.raise_for_verdict()


def test_the_verdict_follows_the_share_of_failing_rows() -> None:
    violated = ran(
        success=False,
        result={"element_count": 4, "missing_count": 0, "unexpected_count": 1, "unexpected_index_list": [0]},
    )
    assert report_of(ran()).verdict is Verdict.PASSED
    at_limit = report_of(violated, limit=0.25)
    assert at_limit.verdict is Verdict.ROWS_REFUSED
    at_limit.raise_for_verdict()
    above = report_of(violated, limit=0.24)
    assert above.verdict is Verdict.REFUSED
    with pytest.raises(DataRefusedError, match=r"1 of 4 rows \(25.0 %\) fail, above the limit of 24 %"):
        above.raise_for_verdict()
    assert above.failed_rows["reason"].to_list() == ["latency_us is -1.0, at least 0"]


def test_a_row_that_fails_twice_is_one_failing_row() -> None:
    violated = ran(
        success=False,
        result={"element_count": 4, "missing_count": 0, "unexpected_count": 1, "unexpected_index_list": [0]},
    )
    other = ran(**{**violated, "type": "expect_something_of_their_own"})
    report = report_of(violated, other)
    assert report.failed_rows.height == 2
    assert report.failed_row_ratio == 0.25


def test_a_violated_check_of_the_whole_batch_refuses_it() -> None:
    count = ran(
        type="expect_table_row_count_to_be_between",
        kwargs={"min_value": 10},
        success=False,
        result={"observed_value": 4},
    )
    report = report_of(count)
    assert report.verdict is Verdict.REFUSED
    assert "found 4, needed min_value 10" in report.refusal()


def test_a_pass_on_no_values_is_visible() -> None:
    vacuous = ran(
        kwargs={"column": "num_nodes", "min_value": 1},
        result={"element_count": 4, "missing_count": 4, "unexpected_count": 0},
    )
    report = report_of(ran(), vacuous)
    assert [check.is_vacuous for check in report.checks[-2:]] == [False, True]
    assert report.to_dict()["checks"][-1]["element_count"] == 4
    assert report.to_dict()["checks"][-1]["missing_count"] == 4
    assert "passed on no values (every row is null): num_nodes" in report.to_text()
    assert "passed on no values" in report.to_text(every_check=True)


def test_quarantine_rows_carry_key_checks_reasons_and_time() -> None:
    now = datetime(2026, 11, 30, tzinfo=UTC)
    frame = GPU_SAMPLES.conform(
        pl.DataFrame({"gpu_uuid": ["GPU-1", "GPU-2"], "sampled_at": [now, now], "power_w": [5.0, -5.0]})
    )
    result = {"element_count": 2, "missing_count": 0, "unexpected_count": 1, "unexpected_index_list": [1]}
    between = ran(
        kwargs={"column": "power_w", "min_value": 0.0, "max_value": 1e4}, success=False, result=result
    )
    null = ran(
        type="expect_column_values_to_not_be_null",
        kwargs={"column": "source_name"},
        success=False,
        result={"element_count": 2, "unexpected_count": 1, "unexpected_index_list": [1]},
    )
    report = build_report(GPU_SAMPLES, frame, [], [between, null], quarantine_limit_ratio=1.0)
    rows = TABLES["quarantine"].conform(quarantine_rows(report, frame, GPU_SAMPLES, now))
    assert rows.height == 1
    row = rows.row(0, named=True)
    assert row["table_name"] == "gpu_samples"
    assert row["row_key"] == '{"gpu_uuid":"GPU-2","sampled_at":"2026-11-30T00:00:00+00:00"}'
    assert row["row_sha256"] == GPU_SAMPLES.key_hashes(frame)[1]
    assert row["reason"] == "power_w is -5.0, allowed 0 to 10,000; source_name is missing"
    assert row["check_name"] == (
        "expect_column_values_to_be_between(power_w), expect_column_values_to_not_be_null(source_name)"
    )
    assert row["quarantined_at"] == now


def test_a_suite_closes_both_ends_of_every_number() -> None:
    for table in TABLES.values():
        ranges = {
            expectation["kwargs"]["column"]: expectation["kwargs"]
            for expectation in suite_for(table)["expectations"]
            if expectation["type"] == "expect_column_values_to_be_between"
        }
        for column in table.columns:
            if column.dtype == pl.Float64():
                assert ranges[column.name]["min_value"] is not None
                assert ranges[column.name]["max_value"] is not None
