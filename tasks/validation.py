"""Runs the committed expectation suites on batches of rows: a frame, a table of the store, a user's file.

Great Expectations takes pandas, so this is the one place where rows become pandas. It runs twice at most:
once with counts only, then, for the checks that were violated, again for the rows behind them. What its
answers mean is decided in `warpgauge/validation.py`. Everything it writes lies under
`expectations/uncommitted/`, and of each suite only the newest results are kept.
"""

from __future__ import annotations

import csv
import io
import json
import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import polars as pl

from tasks.storage import cache_dir, expectations_dir
from warpgauge.column_types import shown
from warpgauge.errors import (
    CheckNotEvaluableError,
    DataRefusedError,
    NoDataError,
    SchemaError,
    ServiceUnavailableError,
    SettingsError,
    SourceFileError,
)
from warpgauge.settings import PROJECT_ROOT, load_settings
from warpgauge.source_file import KEEP_WHOLE_HINT, read_source_file
from warpgauge.tables import TABLES, Table, render_data_dictionary
from warpgauge.validation import (
    FLOOR_PARAMETER,
    ValidationReport,
    Verdict,
    build_report,
    exception_messages,
    names_text,
    quarantine_rows,
    render_suite,
    require_rows,
    suite_for,
    type_columns,
    with_any_of_counts,
)

if TYPE_CHECKING:
    import pandas as pd
    from great_expectations.core.expectation_validation_result import ExpectationSuiteValidationResult
    from great_expectations.data_context.data_context.file_data_context import FileDataContext

    from tasks.storage import Store, TableName

LOGGER = logging.getLogger("warpgauge")
COLLECTED_TABLES = ("launches", "documents", "labels", "gpu_samples")
KEPT_RESULTS = 10
# A page of the docs quotes a few violating values, never whole documents.
QUOTED_VALUES = 20
EDGE_TEXT_CHARACTERS = 200
# Wider than any table; a file with more columns is of another kind, or hostile.
COLUMN_LIMIT = 10_000
PARQUET_MAGIC = b"PAR1"
PLACE = "place"

# Great Expectations keeps the current project in a global, so one run at a time in one process.
_running = threading.Lock()


def validate_frame(
    frame: pl.DataFrame,
    table: Table,
    *,
    suite: Mapping[str, Any] | None = None,
    quarantine_limit_ratio: float | None = None,
    completeness_floor_ratio: float | None = None,
    build_docs: bool = True,
    origin: str | None = None,
    folder: Path | None = None,
) -> ValidationReport:
    """Check rows against a table's suite; nothing is written but results and Data Docs.

    Args:
        frame: Rows, typed or as text.
        table: Their table; a table without a committed suite gets the one that its definition implies.
        suite: Another suite for these rows, in the JSON form of Great Expectations.
        quarantine_limit_ratio: Share of failing rows above which the batch is refused whole; default is
            the setting `validation_quarantine_limit_ratio`.
        completeness_floor_ratio: Least share of values in required columns; default is the setting
            `validation_completeness_floor_ratio`.
        build_docs: Keep the result and render it.
        origin: Collector and time window that brought the rows, for messages.
        folder: Root of the Great Expectations project; default is the one in the checkout.

    Returns:
        The report; its verdict may be a refusal (`ValidationReport.raise_for_verdict` raises it).

    Raises:
        NoDataError: If there are no rows.
        CheckNotEvaluableError: If a column that a check needs is absent, or a check could not run.
        ServiceUnavailableError: If results cannot be written.
    """
    settings = load_settings(
        validation_quarantine_limit_ratio=quarantine_limit_ratio,
        validation_completeness_floor_ratio=completeness_floor_ratio,
    )
    typed, problems = type_columns(frame, table, origin=origin)
    counted = with_any_of_counts(typed, table)
    folder = folder or expectations_dir()
    try:
        with _running:
            results, docs_path = _run_suite(
                _to_pandas(counted, table),
                table,
                suite,
                folder,
                floor_ratio=settings.validation_completeness_floor_ratio,
                build_docs=build_docs,
            )
    except OSError as error:
        raise ServiceUnavailableError(
            f"{folder}: validation results cannot be read or written ({error}); free space or mend the "
            "permissions and validate again"
        ) from error
    report = replace(
        build_report(
            table,
            counted,
            problems,
            results,
            quarantine_limit_ratio=settings.validation_quarantine_limit_ratio,
        ),
        origin=origin,
        data_docs_path=docs_path,
    )
    if report.verdict is Verdict.NOT_EVALUABLE:
        report.raise_for_verdict()
    return report


def validate_table(
    store: Store,
    name: TableName,
    *,
    quarantine_limit_ratio: float | None = None,
    completeness_floor_ratio: float | None = None,
    build_docs: bool = True,
    origin: str | None = None,
    folder: Path | None = None,
    now: datetime | None = None,
) -> ValidationReport:
    """Check the rows of a stored table that are not in quarantine yet; failing rows go there.

    A batch refused as a whole leaves the quarantine as it was: when too much is wrong, the fault is in
    the source or the suite, and thousands of quarantined rows would hide it.

    Args:
        store: The tables.
        name: A name in `warpgauge.tables.TABLES`, or a table's definition.
        quarantine_limit_ratio, completeness_floor_ratio, build_docs, origin, folder: As in `validate_frame`.
        now: The time to record in quarantine; default is the clock's.

    Returns:
        The report, with the rows added to quarantine and those that were there before.

    Raises:
        NoDataError: If the table holds no rows outside quarantine.
        DataRefusedError: If too many rows fail, or the batch as a whole does.
        CheckNotEvaluableError: If a check could not run: nothing is known about the data.
    """
    table = _table_named(name) if isinstance(name, str) else name
    table_name = table.name
    rows = store.read(table).collect()
    require_rows(rows.height, table, origin=origin or "a table that nothing was added to yet")
    refused = store.read("quarantine").filter(pl.col("table_name") == table_name).collect()["row_sha256"]
    unchecked = rows
    if not refused.is_empty():
        unchecked = rows.filter(~table.key_hashes(rows).is_in(refused.implode()))
    excluded_count = rows.height - unchecked.height
    if unchecked.is_empty():
        raise NoDataError(
            f"table {table_name}: no data: each of its {rows.height:,} rows is in quarantine; "
            "look at the reasons there and collect sound rows"
        )
    report = validate_frame(
        unchecked,
        table,
        quarantine_limit_ratio=quarantine_limit_ratio,
        completeness_floor_ratio=completeness_floor_ratio,
        build_docs=build_docs,
        origin=origin or f"{table_name} at version {store.version(table)}",
        folder=folder,
    )
    is_refused = report.verdict is Verdict.REFUSED
    _keep_refusal(table_name, unchecked.height if is_refused else 0)
    if is_refused:
        docs = f"; see {report.data_docs_path}" if report.data_docs_path else ""
        # A table that a spec file describes is validated by what knows its spec.
        again = f"validate {table_name}" if table_name in TABLES else "train latency --table SPEC.toml"
        raise DataRefusedError(
            f"table {table_name}: bad data: {report.refusal()}; the batch is refused whole and nothing was "
            f"quarantined. Mend the source; to go on with the sound rows, quarantine the others once by "
            f"WARPGAUGE_VALIDATION_QUARANTINE_LIMIT_RATIO=1 warpgauge {again}{docs}"
        )
    added = 0
    if report.failed_row_count:
        failing = quarantine_rows(report, unchecked, table, now or datetime.now(UTC))
        added = store.append("quarantine", failing).added
    return replace(report, excluded_count=excluded_count, quarantined_count=added)


def refused_row_count(table_name: str) -> int:
    """Rows of the table that its last validation refused as a whole; 0 where it refused none or never ran."""
    file = cache_dir("validation") / f"{table_name}.json"
    if not file.exists():
        return 0
    return int(json.loads(file.read_text())["refused_row_count"])


def _keep_refusal(table_name: str, row_count: int) -> None:
    """Keep how many rows were refused as a whole, which no quarantine shows, for the monitor."""
    file = cache_dir("validation") / f"{table_name}.json"
    partial = file.with_suffix(f".{secrets.token_hex(4)}.partial")
    partial.write_text(json.dumps({"refused_row_count": row_count}))
    os.replace(partial, file)


def validate_tables(
    table_names: Sequence[TableName] = COLLECTED_TABLES,
    store: Store | None = None,
    *,
    build_docs: bool = True,
) -> dict[str, Any]:
    """Check several tables of the store, each to its end.

    Returns:
        `tables`: for each its report (`ValidationReport.to_dict`), with the verdict `no data` and a message
        for one without rows; `refused`: what went to quarantine and why; `data_docs`: the index page.

    Raises:
        DataRefusedError, CheckNotEvaluableError: After the last table, if one was refused or a check could
            not run; the message names each such table.
    """
    from tasks.storage import Store as OpenStore

    store = store or OpenStore()
    answer: dict[str, Any] = {"tables": [], "refused": [], "data_docs": None}
    faults: list[DataRefusedError | CheckNotEvaluableError] = []
    for table in table_names:
        name = table if isinstance(table, str) else table.name
        LOGGER.info("validate %s", name)
        try:
            report = validate_table(store, table, build_docs=build_docs)
        except NoDataError as error:
            answer["tables"].append(
                {"table": name, "verdict": "no data", "row_count": 0, "checks": [], "message": str(error)}
            )
        except (DataRefusedError, CheckNotEvaluableError) as error:
            faults.append(error)
        else:
            _add_to_answer(answer, report)
    if faults:
        raise type(faults[0])("; ".join(map(str, faults))) from faults[0]
    return answer


def validate(what: str, table_name: str | None = None) -> dict[str, Any]:
    """Check a table of the store by its name, or else a file by its path.

    Args:
        what: A table's name, or the path of a CSV, JSON-lines or Parquet file.
        table_name: Whose rules a file is checked against; default is told by its columns.

    Returns:
        As `validate_tables`; for a file that is refused, why is in `refused`, because no table is at stake.

    Raises:
        WarpgaugeError: As `validate_table` and `validate_path`.
    """
    from tasks.storage import Store as OpenStore

    if what in TABLES and table_name is None:
        report = validate_table(OpenStore(), what)
    else:
        path = Path(what).expanduser()
        if not path.exists():
            raise SourceFileError(
                f"{what}: neither a table ({', '.join(TABLES)}) nor a file; check the name or the path"
            )
        report = validate_path(path, table_name)
    answer: dict[str, Any] = {"tables": [], "refused": [], "data_docs": None}
    _add_to_answer(answer, report)
    return answer


def _add_to_answer(answer: dict[str, Any], report: ValidationReport) -> None:
    answer["tables"].append(report.to_dict())
    answer["data_docs"] = report.data_docs_path or answer["data_docs"]
    if report.verdict is not Verdict.PASSED:
        answer["refused"].append(f"{report.origin}: {report.refusal()}")


def validate_path(
    path: Path,
    table_name: str | None = None,
    *,
    quarantine_limit_ratio: float | None = None,
    completeness_floor_ratio: float | None = None,
    build_docs: bool = True,
    folder: Path | None = None,
) -> ValidationReport:
    """Check a CSV, JSON-lines or Parquet file against a table's suite; the tables are not touched.

    Args:
        path: The file; gzip is unpacked, the kind is told by the content.
        table_name: Whose suite; default is the one table whose needed columns the file has.
        quarantine_limit_ratio, completeness_floor_ratio, build_docs, folder: As in `validate_frame`.

    Raises:
        SourceFileError: If the file cannot be read whole.
        SchemaError: If there is no such table, or the file's columns fit none or several.
        NoDataError, CheckNotEvaluableError: As in `validate_frame`.
    """
    named = None if table_name is None else _table_named(table_name)
    frame = read_rows(path, load_settings().fetch_size_limit_bytes)
    return validate_frame(
        frame,
        named or _table_of_columns(frame.columns, path),
        quarantine_limit_ratio=quarantine_limit_ratio,
        completeness_floor_ratio=completeness_floor_ratio,
        build_docs=build_docs,
        origin=path.name,
        folder=folder,
    )


def read_rows(path: Path, size_limit_bytes: int) -> pl.DataFrame:
    """The rows of a user's file: a CSV as text, JSON lines and Parquet with the types they have.

    Raises:
        SourceFileError: If the file is missing, damaged, larger than the limit, or of another kind.
    """
    try:
        content = read_source_file(path, size_limit_bytes=size_limit_bytes).data
    except SourceFileError as error:
        # Rows of a table are taken whole or not at all.
        raise SourceFileError(str(error).replace(KEEP_WHOLE_HINT, "")) from error
    if content.startswith(PARQUET_MAGIC):
        return _read_parquet(path, content, size_limit_bytes)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise SourceFileError(
            f"{path}: byte {error.start:,} is not UTF-8 text, and the file is no Parquet file; "
            "give a CSV, JSON-lines or Parquet file"
        ) from error
    if text.lstrip()[:1] == "{":
        return _read_json_lines(path, text, size_limit_bytes)
    return _read_csv(path, text)


def write_contract_files(root: Path = PROJECT_ROOT) -> list[Path]:
    """Write the files that follow from `warpgauge/tables.py`: a suite for each table, the data dictionary.

    Returns:
        The files written.
    """
    suites = root / "expectations" / "suites"
    contents = {suites / f"{table.name}.json": render_suite(table) for table in TABLES.values()}
    contents[root / "docs" / "data_dictionary.md"] = render_data_dictionary()
    for path, content in contents.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")
    return list(contents)


def _table_named(name: str) -> Table:
    if name not in TABLES:
        raise SchemaError(f"there is no table {name}; the tables are {', '.join(TABLES)}")
    return TABLES[name]


def _table_of_columns(found: Sequence[str], path: Path) -> Table:
    """The one table whose required and key columns are all in a file; of several the one it fills most."""
    needed = {
        table.name: {column.name for column in table.columns if column.required} | set(table.key)
        for table in TABLES.values()
    }
    shared = {table.name: len(set(found) & set(table.column_names)) for table in TABLES.values()}
    fitting = sorted(
        (name for name in TABLES if needed[name] <= set(found)), key=lambda name: shared[name], reverse=True
    )
    if fitting and (len(fitting) == 1 or shared[fitting[0]] > shared[fitting[1]]):
        return TABLES[fitting[0]]
    if fitting:
        raise SchemaError(f"{path}: its columns fit the tables {', '.join(fitting)}; name the table")
    nearest = max(TABLES, key=lambda name: shared[name])
    near = (
        f"the nearest is {nearest}, which also needs {', '.join(sorted(needed[nearest] - set(found)))}; "
        if shared[nearest]
        else ""
    )
    raise SchemaError(
        f"{path}: its columns fit no table; found {names_text(found)}; {near}name the table or mend the header"
    )


def _read_csv(path: Path, text: str) -> pl.DataFrame:
    """All columns as text. A row shorter than the header is refused: Polars would fill it with nulls."""
    text = text.rstrip("\r\n") + "\n"
    reader = csv.reader(io.StringIO(text, newline=""), strict=True)
    row_count = 0
    try:
        header = next(reader)
        for fields in reader:
            row_count += 1
            if len(fields) != len(header) and (fields or len(header) > 1):
                raise SourceFileError(
                    f"{path}: row {row_count:,} (line {reader.line_num:,}) has {len(fields)} of "
                    f"{len(header)} fields, so the file is cut or not a comma-separated one; write it again"
                )
    except csv.Error as error:
        raise SourceFileError(
            f"{path}: line {reader.line_num:,}: not a comma-separated file ({error}); write it again"
        ) from error
    _require_names(path, header)
    try:
        frame = pl.read_csv(io.BytesIO(text.encode()), infer_schema=False)
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException) as error:
        raise SourceFileError(f"{path}: not a comma-separated file ({error}); write it again") from error
    if frame.columns != header or frame.height != row_count:
        raise SourceFileError(
            f"{path}: its {row_count:,} rows can be read in two ways, so its quoting or its line ends are "
            "unsound; write it again"
        )
    return frame


def _read_json_lines(path: Path, text: str, size_limit_bytes: int) -> pl.DataFrame:
    """One object a line; a field that is absent is missing."""
    records: list[dict[str, Any]] = []
    for line_number, line in enumerate(text.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise SourceFileError(
                f"{path}: line {line_number:,} is not JSON ({error}), so the file is cut or not JSON lines; "
                "write it again"
            ) from error
        if not isinstance(record, dict):
            raise SourceFileError(
                f"{path}: line {line_number:,} holds a {type(record).__name__}, an object is needed; mend it"
            )
        records.append(record)
    names = list(dict.fromkeys(name for record in records for name in record))
    _require_names(path, names)
    _require_memory(path, 8 * len(records) * len(names), size_limit_bytes)
    return pl.DataFrame([_series(name, [record.get(name) for record in records]) for name in names])


def _series(name: str, values: list[Any]) -> pl.Series:
    """Values of one type in that type, others as the objects they are; the typing rules settle them."""
    try:
        return pl.Series(name, values, strict=True)
    except (TypeError, ValueError, OverflowError, pl.exceptions.PolarsError):
        return pl.Series(name, values, dtype=pl.Object)


def _read_parquet(path: Path, content: bytes, size_limit_bytes: int) -> pl.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        file = pq.ParquetFile(io.BytesIO(content))
        footer = file.metadata
        stored = sum(footer.row_group(place).total_byte_size for place in range(footer.num_row_groups))
        # A constant column packs a billion rows into a few bytes, so the cells count too.
        needed = max(stored, 8 * footer.num_rows * footer.num_columns)
        _require_names(path, file.schema_arrow.names)
        _require_memory(path, needed, size_limit_bytes)
        # Arrow reads it, because on a damaged file Polars writes its own backtrace to the terminal.
        rows = file.read()
        rows.validate(full=True)
        # From the columns alone: the file's own notes beside them may be damaged text.
        frame = pl.DataFrame(pl.from_arrow(pa.table(rows.columns, names=rows.column_names)))
    except (
        pa.ArrowException,
        OSError,
        ValueError,
        pl.exceptions.PolarsError,
        pl.exceptions.PanicException,
    ) as error:
        raise SourceFileError(
            f"{path}: begins like Parquet and cannot be read ({error}); copy or write it again"
        ) from error
    return frame


def _require_names(path: Path, names: Sequence[str]) -> None:
    """Nothing, if these can be the columns of a table."""
    if not names or len(names) > COLUMN_LIMIT:
        raise SourceFileError(
            f"{path}: has {len(names):,} columns, 1 to {COLUMN_LIMIT:,} are needed; give the rows of a table"
        )
    if not "".join(names).isprintable():
        name = next(name for name in names if not name.isprintable())
        raise SourceFileError(f"{path}: the column name {shown(name)} is not printable text; mend it")
    if len(set(names)) < len(names):
        name = next(name for name, count in Counter(names).items() if count > 1)
        raise SourceFileError(
            f"{path}: the column name {shown(name)} occurs more than once; give each column its own name"
        )


def _require_memory(path: Path, needed_bytes: int, size_limit_bytes: int) -> None:
    """Nothing, if the cells fit: few bytes of a sparse or repetitive file can stand for very many."""
    if needed_bytes > size_limit_bytes:
        raise SourceFileError(
            f"{path}: its cells need {needed_bytes:,} bytes of memory, the limit is {size_limit_bytes:,}; "
            "raise WARPGAUGE_FETCH_SIZE_LIMIT_MB only if you trust the file"
        )


def _to_pandas(counted: pl.DataFrame, table: Table) -> pd.DataFrame:
    """The frame that Great Expectations sees: the table's columns, the any-of counts, and unknown names.

    Lists become their values joined by commas, long texts are cut unless they are keys, and of a column
    that the table does not have only the name counts.
    """
    edges = []
    for name, dtype in counted.schema.items():
        if name in table.schema and isinstance(dtype, pl.List):
            edges.append(pl.col(name).list.join(","))
        elif name in table.schema and isinstance(dtype, pl.String) and name not in table.key:
            edges.append(pl.col(name).str.slice(0, EDGE_TEXT_CHARACTERS))
        elif name in table.schema or dtype == pl.Int64:
            edges.append(pl.col(name))
        else:
            edges.append(pl.lit(None, dtype=pl.String).alias(name))
    return counted.select(edges).to_pandas()


def _run_suite(
    rows: pd.DataFrame,
    table: Table,
    suite: Mapping[str, Any] | None,
    folder: Path,
    *,
    floor_ratio: float,
    build_docs: bool,
) -> tuple[list[dict[str, Any]], str | None]:
    """Results as plain records in the suite's order, and the path of the Data Docs if they were built."""
    import great_expectations as gx

    if not (folder / "great_expectations.yml").is_file():
        raise SettingsError(
            f"{folder}: no great_expectations.yml there; restore expectations/ from the repository"
        )
    context = gx.get_context(mode="file", context_root_dir=folder)
    batch = (
        context.data_sources.get("warpgauge")
        .get_asset("rows")
        .get_batch_definition("whole")
        .get_batch({"dataframe": rows})
    )
    content = suite or _committed_suite(table, folder) or suite_for(table)
    expectations = content["expectations"]
    found: dict[int, Any] = {}

    def run(places: Iterable[int], name: str, result_format: dict[str, Any]) -> Any:
        # Results come back in another order than the suite's; the place in `meta` tells them apart.
        placed = [
            {**expectations[place], "meta": {**(expectations[place].get("meta") or {}), PLACE: place}}
            for place in places
        ]
        try:
            runnable = gx.ExpectationSuite(name=name, expectations=placed)
        except Exception as error:
            raise SettingsError(f"suite {name}: not an expectation suite ({error}); mend it") from error
        if len(runnable.expectations) < len(placed):
            # Great Expectations leaves out what it does not know: a check that silently never runs.
            kept = {each.meta[PLACE] for each in runnable.expectations if each.meta}
            lost = next(each for each in placed if each["meta"][PLACE] not in kept)
            raise SettingsError(
                f"suite {name}: {lost['type']} with {lost['kwargs']} is no expectation that Great Expectations "
                "knows; mend it"
            )
        answer = batch.validate(
            runnable,
            result_format=result_format,
            expectation_parameters={FLOOR_PARAMETER: floor_ratio},
        )
        found.update({result.expectation_config.meta[PLACE]: result for result in answer.results})
        return answer

    counts = run(
        range(len(expectations)),
        table.name,
        {"result_format": "SUMMARY", "partial_unexpected_count": QUOTED_VALUES},
    )
    violated = [
        place
        for place, result in sorted(found.items())
        if not result.success
        and not exception_messages(result.exception_info)
        and "unexpected_count" in result.result
    ]
    if violated:
        # Only now the rows: asking for them from the start costs memory for every check.
        run(
            violated,
            f"{table.name} again",
            {"result_format": "COMPLETE", "return_unexpected_index_query": False},
        )
    records = [
        {
            "type": expectation["type"],
            "kwargs": {
                key: floor_ratio if value == {"$PARAMETER": FLOOR_PARAMETER} else value
                for key, value in expectation["kwargs"].items()
            },
            "meta": expectation.get("meta") or {},
            "success": bool(found[place].success),
            "result": found[place].result,
            "exception_info": found[place].exception_info,
        }
        for place, expectation in enumerate(expectations)
    ]
    docs_path = _publish(context, counts, table.name, batch.id, folder) if build_docs else None
    return records, docs_path


def _committed_suite(table: Table, folder: Path) -> dict[str, Any] | None:
    """The suite file of a table of the store; None for a table made elsewhere, or without one."""
    path = folder / "suites" / f"{table.name}.json"
    if TABLES.get(table.name) is not table or not path.exists():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        is_suite = isinstance(content["expectations"], list)
    except (ValueError, KeyError, TypeError) as error:
        raise SettingsError(f"{path}: not an expectation suite ({error!r}); restore the file") from error
    if not is_suite:
        raise SettingsError(f"{path}: holds no list of expectations; restore the file")
    return dict(content)


def _publish(
    context: FileDataContext,
    counts: ExpectationSuiteValidationResult,
    suite_name: str,
    batch_id: str,
    folder: Path,
) -> str:
    """Keep the result, drop the oldest ones of this suite, render; the path of the index page."""
    from great_expectations.core.run_identifier import RunIdentifier
    from great_expectations.data_context.types.resource_identifiers import (
        ExpectationSuiteIdentifier,
        ValidationResultIdentifier,
    )

    run_time = datetime.now(UTC)
    run = RunIdentifier(run_name=f"{run_time:%Y%m%dT%H%M%S}-{secrets.token_hex(4)}", run_time=run_time)
    counts.meta["run_id"] = run
    counts.meta["validation_time"] = str(run_time)
    suite_key = ExpectationSuiteIdentifier(name=suite_name)
    key = ValidationResultIdentifier(
        expectation_suite_identifier=suite_key, run_id=run, batch_identifier=batch_id
    )
    uncommitted = folder / "uncommitted"
    with _docs_lock(uncommitted):
        context.validation_results_store.store_validation_results(counts, key)
        _prune_results(uncommitted, suite_name)
        resources: list[Any] = [key]
        if (folder / "suites" / f"{suite_name}.json").exists():
            resources.append(suite_key)
        context.build_data_docs(resource_identifiers=resources)
    return str(uncommitted / "data_docs" / "index.html")


def _prune_results(uncommitted: Path, suite_name: str) -> None:
    """Of one suite keep the newest results and their pages."""
    results = uncommitted / "validations"
    pages = uncommitted / "data_docs" / "validations"
    # Run names begin with the time, so their order is that of the runs.
    for old in sorted((results / suite_name).glob("*/*/*.json"))[:-KEPT_RESULTS]:
        page = pages / old.relative_to(results).with_suffix(".html")
        for file in (old, page):
            file.unlink(missing_ok=True)
            for parent in (file.parent, file.parent.parent):
                if parent.is_dir() and not os.listdir(parent):
                    parent.rmdir()


@contextmanager
def _docs_lock(uncommitted: Path) -> Iterator[None]:
    """One process at a time writes and prunes results: the index page lists what lies there."""
    import fcntl

    uncommitted.mkdir(parents=True, exist_ok=True)
    with (uncommitted / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
