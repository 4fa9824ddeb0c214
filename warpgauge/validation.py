"""Is a batch of rows good, bad, or not even checkable?

Three answers that must never be mixed up: a check *passed*, a check was *violated*, or a check *could not
run*. A batch without rows is a fourth thing, no data. Great Expectations gives all four the same shape
(`success`), passes nearly everything on an empty or all-null batch and lets +inf and text through, so the
text is typed here first, and what its results mean is decided here. The run itself is an effect and lives
in `tasks/validation.py`.
"""

from __future__ import annotations

import difflib
import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Any

import polars as pl

from warpgauge.column_types import SHOWN_VALUE_CHARACTERS, shown, type_series, type_text
from warpgauge.errors import CheckNotEvaluableError, DataRefusedError, NoDataError
from warpgauge.tables import TIME, Column, Table

SHOWN_NAMES = 12
# At 0.6 difflib still pairs latency with latency_us (0.82). An optional column that is absent is normal,
# so calling an unknown column its new name needs a closer match.
NEAR_NAME_SIMILARITY = 0.6
RENAMED_SIMILARITY = 0.85
# Comparing names takes about 20 us a pair; a file of ten thousand columns is not worth a minute.
COMPARED_NAMES = 200

# The name under which the committed suites leave the floor open: it is a setting, not a fact of a table.
FLOOR_PARAMETER = "completeness_floor_ratio"

ROW_COUNT = "expect_table_row_count_to_be_between"
COLUMN_SET = "expect_table_columns_to_match_set"
COMPLETENESS = "expect_column_proportion_of_non_null_values_to_be_between"
NOT_NULL = "expect_column_values_to_not_be_null"
BETWEEN = "expect_column_values_to_be_between"
IN_SET = "expect_column_values_to_be_in_set"
MATCH = "expect_column_values_to_match_regex"
UNIQUE = "expect_column_values_to_be_unique"
COMPOUND_UNIQUE = "expect_compound_columns_to_be_unique"
# The typing check is ours, not one of Great Expectations, hence the other form of name.
TYPED = "typed"


class CheckOutcome(StrEnum):
    """What one check found."""

    PASSED = "passed"
    VIOLATED = "violated"
    NOT_EVALUABLE = "not evaluable"


class Verdict(StrEnum):
    """What becomes of the batch: all of it used, all but some rows, none, or nothing is known about it."""

    PASSED = "passed"
    ROWS_REFUSED = "rows refused"
    REFUSED = "refused"
    NOT_EVALUABLE = "not evaluable"


@dataclass(frozen=True, slots=True)
class RowProblem:
    """A value that does not fit its column's type.

    Attributes:
        row: Place of the row in the batch, from 0.
        column: Name of the column.
        value: What was found, as text, cut to 80 characters.
        reason: Why it does not fit, for example "not a number".
    """

    row: int
    column: str
    value: str
    reason: str


@dataclass(frozen=True)
class Check:
    """One check and what it saw: a pass on no values is visible as `element_count == missing_count`.

    Attributes:
        name: Expectation and column, for example `expect_column_values_to_be_between(launch_api_us)`.
        column: The column or columns, None for a check of the whole batch.
        outcome: Passed, violated or not evaluable.
        element_count: Rows looked at; None where the check does not count rows or could not run.
        missing_count: Of these, rows without a value (a value that could not be read is not missing).
        unexpected_count: Rows that violate the check.
        message: What was found, in words; for a check that could not run, why.
    """

    name: str
    column: str | None
    outcome: CheckOutcome
    element_count: int | None
    missing_count: int | None
    unexpected_count: int | None
    message: str

    @property
    def is_vacuous(self) -> bool:
        """It passed, and there was no value to look at."""
        return (
            self.outcome is CheckOutcome.PASSED
            and self.element_count is not None
            and self.element_count == self.missing_count
        )


@dataclass(frozen=True)
class ValidationReport:
    """What the checks of one batch found.

    Attributes:
        table: Name of the table whose suite ran.
        row_count: Rows checked.
        checks: Every check, in the suite's order.
        failed_rows: Columns `row` (from 0), `check_name`, `reason`: one line for each row and check.
        verdict: What becomes of the batch.
        quarantine_limit_ratio: Share of failing rows above which the batch is refused whole.
        excluded_count: Rows of the table not checked because they were in quarantine before.
        quarantined_count: Rows that this validation put into quarantine.
        origin: File, or collector and time window, that brought the rows.
        data_docs_path: Index page of the Data Docs, None where none were built.
    """

    table: str
    row_count: int
    checks: tuple[Check, ...]
    failed_rows: pl.DataFrame
    verdict: Verdict
    quarantine_limit_ratio: float
    excluded_count: int = 0
    quarantined_count: int = 0
    origin: str | None = None
    data_docs_path: str | None = None

    @property
    def failed_row_count(self) -> int:
        """Rows that violate at least one check."""
        return self.failed_rows["row"].n_unique() if self.failed_rows.height else 0

    @property
    def failed_row_ratio(self) -> float:
        """Share of the rows checked that violate at least one check, 0 to 1."""
        return self.failed_row_count / self.row_count if self.row_count else 0.0

    def outcomes(self, outcome: CheckOutcome) -> tuple[Check, ...]:
        """The checks with that outcome."""
        return tuple(check for check in self.checks if check.outcome is outcome)

    def to_dict(self) -> dict[str, Any]:
        """The report as one JSON document; `failed_rows` is left out because it can be as long as the table."""
        return {
            "table": self.table,
            "origin": self.origin,
            "verdict": str(self.verdict),
            "row_count": self.row_count,
            "failed_row_count": self.failed_row_count,
            "failed_row_ratio": self.failed_row_ratio,
            "quarantine_limit_ratio": self.quarantine_limit_ratio,
            "excluded": self.excluded_count,
            "quarantined": self.quarantined_count,
            "data_docs_path": self.data_docs_path,
            "checks": [
                {
                    "name": check.name,
                    "column": check.column,
                    "outcome": str(check.outcome),
                    "element_count": check.element_count,
                    "missing_count": check.missing_count,
                    "unexpected_count": check.unexpected_count,
                    "is_vacuous": check.is_vacuous,
                    "message": check.message,
                }
                for check in self.checks
            ],
        }

    def to_text(self, *, every_check: bool = False) -> str:
        """The report for people: a headline, then a table of checks with the counts behind them.

        Args:
            every_check: Also list the checks that passed; else only the others, and the names of the
                columns whose checks passed on no values at all.
        """
        subject = f"{self.table} ({self.origin})" if self.origin else self.table
        passed = len(self.outcomes(CheckOutcome.PASSED))
        lines = [
            f"{subject}: {self.verdict}; {self.row_count:,} rows, {self.failed_row_count:,} fail "
            f"({100 * self.failed_row_ratio:.2f} %, limit {100 * self.quarantine_limit_ratio:g} %); "
            f"{passed} of {len(self.checks)} checks passed"
        ]
        if self.excluded_count:
            lines.append(f"  {self.excluded_count:,} rows were in quarantine before and were not checked")
        listed = [check for check in self.checks if every_check or check.outcome is not CheckOutcome.PASSED]
        if listed:
            rows = [("outcome", "rows", "missing", "unexpected", "check", "message")]
            rows += [
                (
                    "passed on no values" if check.is_vacuous else str(check.outcome),
                    _count_text(check.element_count),
                    _count_text(check.missing_count),
                    _count_text(check.unexpected_count),
                    check.name,
                    check.message,
                )
                for check in listed
            ]
            widths = [max(len(row[place]) for row in rows) for place in range(5)]
            lines += [
                "  "
                + "  ".join(
                    [
                        row[0].ljust(widths[0]),
                        *(row[place].rjust(widths[place]) for place in (1, 2, 3)),
                        row[4].ljust(widths[4]),
                        row[5],
                    ]
                ).rstrip()
                for row in rows
            ]
        vacuous = list(dict.fromkeys(check.column or check.name for check in self.checks if check.is_vacuous))
        if vacuous and not every_check:
            lines.append(
                f"  passed on no values (every row is null): {names_text(vacuous, limit=len(vacuous))}"
            )
        if self.data_docs_path:
            lines.append(f"  data docs: {self.data_docs_path}")
        return "\n".join(lines)

    def refusal(self) -> str:
        """Why the batch is refused or some rows are: shares, the batch's own faults, the commonest reasons."""
        parts = []
        if self.failed_row_count:
            comparison = "above" if self.failed_row_ratio > self.quarantine_limit_ratio else "within"
            parts.append(
                f"{self.failed_row_count:,} of {self.row_count:,} rows ({100 * self.failed_row_ratio:.1f} %) "
                f"fail, {comparison} the limit of {100 * self.quarantine_limit_ratio:g} %"
            )
        row_checks = set(self.failed_rows["check_name"].unique())
        parts += [
            f"{check.name}: {check.message}"
            for check in self.outcomes(CheckOutcome.VIOLATED)
            if check.name not in row_checks
        ]
        for name, count in Counter(self.failed_rows["check_name"]).most_common(3):
            first = self.failed_rows.filter(pl.col("check_name") == name).row(0, named=True)
            parts.append(f"{name} {count:,} rows, first row {first['row']}: {first['reason']}")
        return "; ".join(parts)

    def raise_for_verdict(self) -> None:
        """Nothing, if the rows that pass may be used.

        Raises:
            CheckNotEvaluableError: If a check could not run.
            DataRefusedError: If the batch as a whole is bad.
        """
        if self.verdict is Verdict.NOT_EVALUABLE:
            reasons = "; ".join(
                f"{check.name}: {check.message}" for check in self.outcomes(CheckOutcome.NOT_EVALUABLE)
            )
            raise CheckNotEvaluableError(
                f"table {self.table}: a check could not run, so nothing is known about the data: {reasons}; "
                "mend the suite or the columns and validate again"
            )
        if self.verdict is Verdict.REFUSED:
            raise DataRefusedError(f"table {self.table}: bad data: {self.refusal()}")


def type_columns(
    frame: pl.DataFrame, table: Table, *, origin: str | None = None
) -> tuple[pl.DataFrame, list[RowProblem]]:
    """The same rows with the table's types, and every value that does not fit.

    Blank text is missing. Numbers are read strictly: `1e3` is one, `2,5`, `1_0` and `N/A` are not; inf and
    nan are problems, not numbers. A value with a problem becomes null in the typed frame. Optional columns
    that are absent become null; columns that the table does not have stay, at the end, as they are.

    Args:
        frame: Rows of text (a CSV), of mixed Python objects, or typed already.
        table: The types to give them.
        origin: Collector and time window that brought the rows, for the message when there are none.

    Raises:
        NoDataError: If there are no rows.
        CheckNotEvaluableError: If a column that the checks need is absent or renamed.
    """
    require_rows(frame.height, table, origin=origin)
    require_columns(frame.columns, table)
    typed: list[pl.Series] = []
    problems: list[RowProblem] = []
    for column in table.columns:
        if column.name not in frame.columns:
            typed.append(pl.Series(column.name, [None] * frame.height, dtype=column.dtype))
            continue
        raw = frame[column.name]
        values, reasons = type_series(raw, column)
        typed.append(values.alias(column.name))
        problems += [
            RowProblem(row, column.name, shown(raw[row]), reason)
            for row, reason in zip(
                reasons.is_not_null().arg_true().to_list(), reasons.drop_nulls().to_list(), strict=True
            )
        ]
    extra = [frame[name] for name in frame.columns if name not in table.schema]
    return pl.DataFrame([*typed, *extra]), problems


def require_rows(row_count: int, table: Table, *, origin: str | None = None) -> None:
    """Nothing, if there is a row.

    Raises:
        NoDataError: If there is none: an empty batch passes nearly every check, so it must not get that far.
    """
    if row_count == 0:
        source = f" from {origin}" if origin else ""
        raise NoDataError(
            f"table {table.name}: no data: 0 rows{source}; nothing was checked, so this says nothing about "
            "whether the data are good; look at the collector, then collect and validate again"
        )


def require_columns(found: Sequence[str], table: Table) -> None:
    """Nothing, if every column that a check needs is there.

    Raises:
        CheckNotEvaluableError: If a required or key column is absent, if a whole any-of group is, or if an
            optional column is absent while an unknown one has nearly its name.
    """
    present = set(found)
    unknown = [name for name in found if name not in table.schema]
    faults: list[str] = []
    for column in table.columns:
        if column.name in present:
            continue
        if column.required or column.name in table.key:
            near = _near_names(column.name, unknown, NEAR_NAME_SIMILARITY)
            faults.append(f"column {column.name} is missing; found {names_text(near or found)}")
        elif renamed := _near_names(column.name, unknown, RENAMED_SIMILARITY):
            faults.append(f"column {column.name} is missing; found {names_text(renamed)}")
    for group in table.any_of:
        if not present.intersection(group):
            near = sorted({near for name in group for near in _near_names(name, unknown, RENAMED_SIMILARITY)})
            faults.append(
                f"each of the columns {names_text(group)} is missing; found {names_text(near or found)}"
            )
    if faults:
        raise CheckNotEvaluableError(
            f"table {table.name}: {'; '.join(faults)}; nothing was checked: "
            "bring the column under its own name and validate again"
        )


def any_of_column(place: int) -> str:
    """Name of the derived column that counts the values of a table's any-of group, counted from 1."""
    return f"any_of_{place}_count"


def with_any_of_counts(typed: pl.DataFrame, table: Table) -> pl.DataFrame:
    """The rows with one more column for each any-of group: how many of its columns have a value.

    No expectation of Great Expectations for data frames says "at least one of these columns", so the
    suites check that this count is at least 1.
    """
    return typed.with_columns(
        pl.sum_horizontal(pl.col(name).is_not_null().cast(pl.Int64) for name in group).alias(
            any_of_column(place)
        )
        for place, group in enumerate(table.any_of, start=1)
    )


def suite_for(table: Table) -> dict[str, Any]:
    """The expectation suite that a table's definition implies, in the JSON form of Great Expectations.

    At least one row, exactly these columns, a floor of non-null values in required and key columns (an
    all-null batch passes every check of single values), no null there, finite numbers within their
    range, allowed sets, a key that tells rows apart, a value in each any-of group.
    """
    derived = [any_of_column(place) for place in range(1, len(table.any_of) + 1)]
    expectations = [
        _expectation(ROW_COUNT, min_value=1),
        _expectation(COLUMN_SET, column_set=[*table.column_names, *derived], exact_match=True),
    ]
    for column in table.columns:
        if column.required or column.name in table.key:
            expectations.append(
                _expectation(
                    COMPLETENESS,
                    column=column.name,
                    min_value={"$PARAMETER": FLOOR_PARAMETER},
                    max_value=1.0,
                )
            )
            expectations.append(_expectation(NOT_NULL, column=column.name))
        expectations += _value_expectations(column)
    if len(table.key) == 1:
        expectations.append(_expectation(UNIQUE, column=table.key[0]))
    elif table.key:
        expectations.append(_expectation(COMPOUND_UNIQUE, column_list=list(table.key)))
    for place, group in enumerate(table.any_of, start=1):
        expectations.append(
            _expectation(
                BETWEEN,
                meta={"any_of": list(group)},
                column=any_of_column(place),
                min_value=1,
                max_value=len(group),
            )
        )
    return {
        "name": table.name,
        "expectations": expectations,
        "meta": {"row": table.row, "made_from": "warpgauge/tables.py"},
    }


def render_suite(table: Table) -> str:
    """The text of a table's suite file under `expectations/suites/`."""
    return json.dumps(suite_for(table), indent=2) + "\n"


def exception_messages(exception_info: Mapping[str, Any] | None) -> tuple[str, ...]:
    """Why an expectation could not run; empty if it ran.

    Great Expectations has two shapes: one record with `raised_exception`, or, when a metric failed, a
    dictionary of such records keyed by metric. The second has no `raised_exception` at the top, and its
    result looks like a violation.
    """
    if not exception_info:
        return ()
    records: Iterable[Any] = (
        [exception_info] if "raised_exception" in exception_info else exception_info.values()
    )
    messages = []
    for record in records:
        if not isinstance(record, Mapping):
            # A third shape, should a later version bring one, must not read as a pass or a violation.
            messages.append(str(record))
        elif record.get("raised_exception", True):
            messages.append(str(record.get("exception_message") or "no message"))
    return tuple(dict.fromkeys(messages))


def outcome_of(result: Mapping[str, Any]) -> CheckOutcome:
    """What one result means (keys `success`, `exception_info`)."""
    if exception_messages(result.get("exception_info")):
        return CheckOutcome.NOT_EVALUABLE
    return CheckOutcome.PASSED if result["success"] else CheckOutcome.VIOLATED


def build_report(
    table: Table,
    typed: pl.DataFrame,
    problems: Sequence[RowProblem],
    results: Sequence[Mapping[str, Any]],
    *,
    quarantine_limit_ratio: float,
) -> ValidationReport:
    """One report from the typing problems and the results of the expectations.

    Args:
        table: The table whose suite ran.
        typed: The rows that were checked, as `type_columns` and `with_any_of_counts` gave them.
        problems: What `type_columns` found.
        results: One record an expectation with keys `type`, `kwargs`, `meta`, `success`, `result` and
            `exception_info`, the last two as Great Expectations gives them; a violated check of single
            rows carries `unexpected_index_list`.
        quarantine_limit_ratio: Share of failing rows above which the batch is refused whole, 0 to 1.
    """
    problem_rows: dict[str, set[int]] = {}
    for problem in problems:
        problem_rows.setdefault(problem.column, set()).add(problem.row)
    failed = [
        (problem.row, f"{TYPED}({problem.column})", f"{problem.column} is {problem.value}: {problem.reason}")
        for problem in problems
    ]
    checks = [_typed_check(column, typed, problem_rows) for column in table.columns]
    is_batch_bad = False
    for result in results:
        check, rows = _check_of(result, typed, problem_rows)
        checks.append(check)
        failed += [(row, check.name, reason) for row, reason in rows]
        is_batch_bad |= check.outcome is CheckOutcome.VIOLATED and not rows
    failed_rows = pl.DataFrame(
        failed, schema={"row": pl.Int64, "check_name": pl.String, "reason": pl.String}, orient="row"
    ).sort("row", maintain_order=True)
    failed_ratio = failed_rows["row"].n_unique() / typed.height if failed else 0.0
    if any(check.outcome is CheckOutcome.NOT_EVALUABLE for check in checks):
        verdict = Verdict.NOT_EVALUABLE
    elif is_batch_bad or failed_ratio > quarantine_limit_ratio:
        verdict = Verdict.REFUSED
    else:
        verdict = Verdict.ROWS_REFUSED if failed else Verdict.PASSED
    return ValidationReport(
        table.name, typed.height, tuple(checks), failed_rows, verdict, quarantine_limit_ratio
    )


def quarantine_rows(
    report: ValidationReport, frame: pl.DataFrame, table: Table, quarantined_at: datetime
) -> pl.DataFrame:
    """The rows for the quarantine table: one for each failing row, with all its checks and reasons.

    Args:
        report: What the checks found in `frame`.
        frame: The rows that were checked, in the same order.
        table: Their table.
        quarantined_at: The time to record.
    """
    grouped = report.failed_rows.group_by("row", maintain_order=True).agg(
        pl.col("check_name").unique(maintain_order=True).str.join(", "),
        pl.col("reason").unique(maintain_order=True).str.join("; "),
    )
    rows = frame[grouped["row"].to_list()]
    return grouped.select(
        pl.lit(table.name).alias("table_name"),
        table.key_hashes(rows),
        rows.select(pl.struct(table.key).struct.json_encode().alias("row_key")).to_series(),
        "check_name",
        "reason",
        pl.lit(quarantined_at).cast(TIME).alias("quarantined_at"),
    )


def _expectation(kind: str, meta: dict[str, Any] | None = None, **kwargs: Any) -> dict[str, Any]:
    return {"type": kind, "kwargs": kwargs, "meta": meta or {}, "severity": "critical"}


def _value_expectations(column: Column) -> list[dict[str, Any]]:
    """The checks of single values: range or finiteness of numbers, allowed strings."""
    expectations = []
    minimum, maximum = column.minimum, column.maximum
    if column.dtype == pl.Float64():
        # Without both ends +inf or -inf would pass.
        minimum = -sys.float_info.max if minimum is None else float(minimum)
        maximum = sys.float_info.max if maximum is None else float(maximum)
    if minimum is not None or maximum is not None:
        expectations.append(_expectation(BETWEEN, column=column.name, min_value=minimum, max_value=maximum))
    if column.allowed is not None and column.dtype == pl.String():
        expectations.append(_expectation(IN_SET, column=column.name, value_set=list(column.allowed)))
    elif column.allowed is not None:
        # A list reaches Great Expectations as its values joined by commas.
        word = f"(?:{'|'.join(map(re.escape, column.allowed))})"
        expectations.append(_expectation(MATCH, column=column.name, regex=f"^(?:{word}(?:,{word})*)?$"))
    return expectations


def _typed_check(column: Column, typed: pl.DataFrame, problem_rows: Mapping[str, set[int]]) -> Check:
    bad = len(problem_rows.get(column.name, ()))
    return Check(
        f"{TYPED}({column.name})",
        column.name,
        CheckOutcome.VIOLATED if bad else CheckOutcome.PASSED,
        typed.height,
        typed[column.name].null_count() - bad,
        bad,
        f"{bad} values cannot be read as {type_text(column.dtype)}" if bad else "",
    )


def _check_of(
    result: Mapping[str, Any], typed: pl.DataFrame, problem_rows: Mapping[str, set[int]]
) -> tuple[Check, list[tuple[int, str]]]:
    """The check that a result stands for, and the rows that violate it with a reason each."""
    kwargs, found = result["kwargs"], result["result"]
    columns = [kwargs["column"]] if "column" in kwargs else list(kwargs.get("column_list", []))
    column = ", ".join(columns) or None
    name = f"{result['type']}({column or ''})"
    outcome = outcome_of(result)
    if outcome is CheckOutcome.NOT_EVALUABLE:
        message = "; ".join(exception_messages(result["exception_info"]))
        return Check(name, column, outcome, None, None, None, message), []
    unread = problem_rows.get(column, set()) if column else set()
    if "unexpected_count" not in found:
        return _batch_check(result, name, column, typed, len(unread)), []
    indices = [int(row) for row in found.get("unexpected_index_list") or ()]
    unexpected_count = int(found["unexpected_count"])
    missing_count = int(found.get("missing_count", unexpected_count)) - len(unread)
    if result["type"] == NOT_NULL:
        # A value that could not be read is null by now; the typing check reports it, once.
        indices = [row for row in indices if row not in unread]
        unexpected_count -= len(unread)
        if outcome is CheckOutcome.VIOLATED and unexpected_count <= 0:
            outcome = CheckOutcome.PASSED
    if outcome is CheckOutcome.PASSED:
        indices = []
    reasons = _reasons(result, columns, typed, indices)
    message = (
        f"{unexpected_count:,} rows, first row {indices[0]}: {reasons[0]}"
        if indices
        else (f"{unexpected_count:,} rows" if outcome is CheckOutcome.VIOLATED else "")
    )
    check = Check(
        name, column, outcome, int(found["element_count"]), missing_count, unexpected_count, message
    )
    return check, list(zip(indices, reasons, strict=True))


def _batch_check(
    result: Mapping[str, Any], name: str, column: str | None, typed: pl.DataFrame, unread_count: int
) -> Check:
    """A check of the whole batch: it has no failing rows of its own."""
    kwargs, found = result["kwargs"], result["result"]
    outcome = outcome_of(result)
    observed = found.get("observed_value")
    message = ""
    missing_count = unexpected_count = None
    if column is not None and column in typed.columns:
        missing_count, unexpected_count = typed[column].null_count() - unread_count, unread_count
    if outcome is CheckOutcome.VIOLATED:
        limits = ", ".join(
            f"{key} {value}" for key, value in kwargs.items() if key in ("min_value", "max_value")
        )
        message = f"found {observed}, needed {limits}"
        if result["type"] == COMPLETENESS:
            message = (
                f"{100 * float(observed or 0):.1f} % of the rows have a value, "
                f"needed {100 * float(kwargs['min_value']):g} %"
            )
        elif result["type"] == COLUMN_SET:
            wanted, have = set(kwargs["column_set"]), set(typed.columns)
            parts = {"unknown column": sorted(have - wanted), "missing column": sorted(wanted - have)}
            message = "; ".join(f"{what} {names_text(names)}" for what, names in parts.items() if names)
    return Check(
        name,
        column,
        outcome,
        None if result["type"] == COLUMN_SET else typed.height,
        missing_count,
        unexpected_count,
        message,
    )


def _reasons(
    result: Mapping[str, Any], columns: Sequence[str], typed: pl.DataFrame, rows: Sequence[int]
) -> list[str]:
    """Why each of the rows violates the check, with the value found."""
    kind, kwargs = result["type"], result["kwargs"]
    column = ", ".join(columns)
    if not rows:
        return []
    if kind == NOT_NULL:
        return [f"{column} is missing"] * len(rows)
    if group := result.get("meta", {}).get("any_of"):
        return [f"none of {names_text(group)} has a value"] * len(rows)
    refusal = _refusal_text(kind, kwargs)
    found = typed[list(rows)].select(columns)
    values = [", ".join(shown(value) for value in row) for row in found.iter_rows()]
    if kind in (UNIQUE, COMPOUND_UNIQUE):
        return [f"key {column} = {value} occurs more than once" for value in values]
    return [f"{column} is {value}, {refusal}" for value in values]


def _refusal_text(kind: str, kwargs: Mapping[str, Any]) -> str:
    """What a check of single values allows, in words."""
    if kind == IN_SET:
        return f"allowed {', '.join(map(str, kwargs['value_set']))}"
    if kind == MATCH:
        return f"which does not match {kwargs['regex']}"
    if kind != BETWEEN:
        return f"refused by {kind}"
    low, high = (_limit_text(kwargs.get(end)) for end in ("min_value", "max_value"))
    if low and high:
        return f"allowed {low} to {high}"
    if low or high:
        return f"at least {low}" if low else f"at most {high}"
    return "allowed any finite number"


def _limit_text(limit: float | None) -> str:
    if limit is None or abs(limit) == sys.float_info.max:
        return ""
    return f"{limit:,.15g}"


def _near_names(name: str, candidates: Sequence[str], similarity: float) -> list[str]:
    plain = {candidate.strip().lower(): candidate for candidate in candidates[:COMPARED_NAMES]}
    return [plain[match] for match in difflib.get_close_matches(name.lower(), plain, 3, similarity)]


def names_text(names: Sequence[str], limit: int = SHOWN_NAMES) -> str:
    """Column names for a message: the first ones, printable, and how many more there are."""
    shown = ", ".join(_plain(name) for name in names[:limit])
    if len(names) > limit:
        return f"{shown} and {len(names) - limit} more"
    return shown or "no columns"


def _plain(name: str) -> str:
    """A column name from outside, short and printable; quoted where a blank would not be seen."""
    text = name if name == name.strip() and name.isprintable() and name else repr(name)
    text = text.encode("utf-8", "backslashreplace").decode()
    return text if len(text) <= SHOWN_VALUE_CHARACTERS else text[: SHOWN_VALUE_CHARACTERS - 3] + "..."


def _count_text(count: int | None) -> str:
    return "-" if count is None else f"{count:,}"
