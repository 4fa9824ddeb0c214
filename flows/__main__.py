"""The command line: `warpgauge COMMAND`, the same as `python -m flows COMMAND`.

Everything heavy is imported by the command that needs it, so that help answers at once. A command's
result is one dictionary: `--json` prints it as one document, otherwise it is shown as short tables.
Exit codes: 0 done, 1 a bug, 2 wrong settings or nothing to work on, 3 something was refused or a service
was away.
"""

import argparse
import contextlib
import io
import json
import logging
import math
import os
import pathlib
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

from warpgauge.errors import ServiceUnavailableError, SettingsError, WarpgaugeError

Result = dict[str, Any]
WHICH_MODEL = "launch-latency, doc-quality, or latency-NAME for the table NAME"
OUTPUT_FAILED_EXIT_CODE = ServiceUnavailableError.exit_code
STANDARD_OUTPUT, STANDARD_ERROR = 1, 2
# What a shell answers for a command that SIGINT ended.
INTERRUPTED_EXIT_CODE = 130
# How Prefect 3 begins its RuntimeErrors about a server that is away, too old or slow to start.
PREFECT_AWAY = ("Failed to reach API", "Found incompatible versions", "Timed out while attempting to connect")


def main(arguments: list[str] | None = None) -> int:
    """Run one command.

    Args:
        arguments: Words of the command line; default is the process's own.

    Returns:
        The exit code.
    """
    options = _parse(sys.argv[1:] if arguments is None else arguments)
    _quiet_libraries()
    _show_progress()
    _end_what_killed_commands_left()
    try:
        with _stopping_at_once(), _output_kept_for_the_result():
            from warpgauge.settings import load_settings

            # A mistyped variable stops every command, also one that would not have read it.
            load_settings()
            with _prefect_errors():
                result = options.run(options)
    except WarpgaugeError as error:
        return _refuse(type(error).__name__, str(error), error.exit_code, options.json)
    except KeyboardInterrupt:
        print(
            "warpgauge: stopped; what was committed is whole, run the command again to go on", file=sys.stderr
        )
        return INTERRUPTED_EXIT_CODE
    from tasks.presentation import as_json, exit_code, render

    code = exit_code(result)
    return _print(as_json(result) if options.json else render(options.command, result), code)


def _parse(arguments: list[str]) -> argparse.Namespace:
    """The options; a wrong command line is one message, in JSON too where that was asked for."""
    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said):
            return build_parser().parse_args(arguments)
    except SystemExit as stop:
        sys.stderr.write(said.getvalue())
        if stop.code and "--json" in arguments:
            _print(json.dumps({"error": "UsageError", "message": said.getvalue().strip()}), 2)
        # Help is printed and not yet written out; its reader may have gone.
        raise SystemExit(_print("", int(stop.code or 0), end="")) from None


def _refuse(error: str, message: str, code: int, is_json: bool) -> int:
    from tasks.presentation import printable

    print(f"warpgauge: {printable(message)}", file=sys.stderr)
    return _print(json.dumps({"error": error, "message": message}), code) if is_json else code


def _print(text: str, code: int, end: str = "\n") -> int:
    """Write the answer out, and give the exit code: another one if it could not be written."""
    try:
        if isinstance(sys.stdout, io.TextIOWrapper):
            # A terminal that cannot show a sign must not cost the answer.
            sys.stdout.reconfigure(errors="backslashreplace")
        print(text, end=end, flush=True)
    except OSError as error:
        # What is left in the buffer would be tried again, with a traceback, when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        # A reader that has seen enough (head, a pager) is no failure: the work itself is done.
        if not isinstance(error, BrokenPipeError):
            print(f"warpgauge: the answer could not be written: {error}", file=sys.stderr)
            return OUTPUT_FAILED_EXIT_CODE
    return code


@contextlib.contextmanager
def _output_kept_for_the_result() -> Iterator[None]:
    """Standard output belongs to the result: what libraries and their processes print goes to standard error."""
    for number in (STANDARD_OUTPUT, STANDARD_ERROR):
        try:
            os.fstat(number)
        except OSError:  # closed by the caller: nobody wants what goes there
            os.dup2(os.open(os.devnull, os.O_WRONLY), number)
    kept = os.dup(STANDARD_OUTPUT)
    os.dup2(STANDARD_ERROR, STANDARD_OUTPUT)
    try:
        with contextlib.redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, STANDARD_OUTPUT)
        os.close(kept)


@contextlib.contextmanager
def _prefect_errors() -> Iterator[None]:
    """What Prefect raises when its server is away, as our error: its flows reach for it before our tasks start."""
    try:
        yield
    except Exception as error:
        from httpx import HTTPError

        # Prefect speaks to its server by httpx and nothing else here does; its own words are a RuntimeError.
        is_prefects = isinstance(error, RuntimeError) and str(error).startswith(PREFECT_AWAY)
        if not (isinstance(error, HTTPError) or is_prefects):
            raise
        from tasks.deployment import unreachable

        raise unreachable(error) from error


def build_parser() -> argparse.ArgumentParser:
    """The parser of every command."""
    parser = argparse.ArgumentParser(
        prog="warpgauge",
        description="Keep launch-latency and documentation-quality models true while GPUs and documents change.",
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_pipeline(commands)
    _add_models(commands)
    compact = _command(
        commands,
        "compact",
        "Bound the size of tables, MLflow runs and caches; keep all that a registered version needs",
        _compact,
    )
    compact.add_argument("--dry-run", action="store_true", help="change nothing, only show what would go")
    _command(commands, "deploy", "Create the Prefect deployments, schedules and automations", _deploy)
    doctor = _command(commands, "doctor", "Show what this machine has, and what each lack changes", _doctor)
    doctor.add_argument(
        "--gpu-constraints",
        nargs="?",
        const=True,
        metavar="NAME",
        help="show instead the limits of a GPU (bandwidth, L2, PCIe, bank conflicts), by default this machine's",
    )
    return parser


def _add_pipeline(commands: Any) -> None:
    run = _command(
        commands, "run", "Collect, validate, train both models, register, gate and monitor once", _run
    )
    _source_options(run)
    run.add_argument(
        "--telemetry",
        nargs="+",
        metavar="SOURCE",
        help="nvml, prometheus:URL, or CSV files of nvidia-smi or DCGM",
    )
    run.add_argument(
        "--allow-simulated", action="store_true", help="let a model of simulated launches become champion"
    )

    collect = commands.add_parser("collect", help="Collect one kind of source into its table")
    kinds = collect.add_subparsers(dest="kind", required=True, metavar="KIND")
    launches = _command(
        kinds, "launches", "Collect launch records of files, globs or http addresses", _collect_launches
    )
    launches.add_argument(
        "sources",
        nargs="+",
        metavar="PATH|URL",
        help="cudaGraphsPerfScaling CSV, Kineto trace, or simulator:SEED",
    )
    launches.add_argument(
        "--gpu", metavar="NAME", help="GPU that the launches ran on, where the file does not say"
    )
    launches.add_argument(
        "--keep-whole", action="store_true", help="keep the intact records of a damaged file"
    )
    table = _command(
        kinds, "table", "Collect the rows of a latency table that a spec describes", _collect_table
    )
    table.add_argument("spec", metavar="SPEC.toml", help="the spec; docs/tables.md says how to write one")
    _folder_option(table)
    documents = _command(kinds, "documents", "Collect documents and their labels", _collect_documents)
    documents.add_argument(
        "sources", nargs="+", metavar="SOURCE", help="cuda-headers:VERSION,... jsonl:PATH markdown:PATH"
    )
    documents.add_argument(
        "--map", metavar="FIELD=NAME,...", help="names of a report file's fields, body=text,source=repo"
    )
    documents.add_argument(
        "--keep-whole", action="store_true", help="keep the intact records of a damaged file"
    )
    telemetry = _command(kinds, "telemetry", "Collect GPU samples", _collect_telemetry)
    telemetry.add_argument(
        "sources",
        nargs="*",
        default=["nvml"],
        metavar="SOURCE",
        help="nvml (default), prometheus:http://host:9090, or CSV files of nvidia-smi or DCGM",
    )
    telemetry.add_argument(
        "--keep-whole", action="store_true", help="keep the intact records of a damaged file"
    )

    validate = _command(commands, "validate", "Check a table, or a file against a table's rules", _validate)
    validate.add_argument(
        "what", metavar="TABLE|PATH", help="a table's name, or a CSV, Parquet or JSON lines file"
    )
    validate.add_argument(
        "--table", metavar="TABLE", help="whose rules a file is checked against; guessed by its columns"
    )

    train = commands.add_parser("train", help="Train, register and judge one model")
    models = train.add_subparsers(dest="kind", required=True, metavar="MODEL")
    latency = _command(
        models,
        "latency",
        "Train the latency model of the launches, or of any table by its spec",
        _train_latency,
    )
    _table_options(latency)
    latency.add_argument(
        "--trials",
        type=_count,
        metavar="N",
        help="search N settings of the trees first; 0 takes the defaults (default: the setting latency_trials)",
    )
    latency.add_argument(
        "--force", action="store_true", help="train although these data were trained on already"
    )
    latency.add_argument(
        "--allow-simulated", action="store_true", help="let a model of simulated launches become champion"
    )
    docquality = _command(models, "docquality", "Train the documentation-quality model", _train_docquality)
    docquality.add_argument(
        "--force", action="store_true", help="train although these data were trained on already"
    )

    monitor = _command(commands, "monitor", "Measure drift, decide, and retrain where it is due", _monitor)
    monitor.add_argument(
        "--once", action="store_true", help="one round; without it a round every --every-minutes"
    )
    monitor.add_argument(
        "--every-minutes", type=_minutes, default=5.0, metavar="N", help="time between rounds (default 5)"
    )


def _add_models(commands: Any) -> None:
    predict = commands.add_parser("predict", help="Predict with the champion")
    targets = predict.add_subparsers(dest="kind", required=True, metavar="MODEL")
    launch = _command(
        targets,
        "latency",
        "Predict the launch latency of graphs, or the rows of any latency table",
        _predict_latency,
    )
    given = launch.add_mutually_exclusive_group(required=True)
    given.add_argument(
        "--graph",
        metavar="FILE",
        help="a graph as JSON, or the DOT text of cudaGraphDebugDotPrint; - is standard input",
    )
    given.add_argument(
        "--rows",
        metavar="FILE",
        help="CSV, Parquet or JSON lines with columns of the launches table, or of the table of --model",
    )
    launch.add_argument(
        "--model", metavar="MODEL", help="model of a latency table, for --rows; default is launch-latency"
    )
    launch.add_argument(
        "--explain", action="store_true", help="say what the baseline and each feature contributed"
    )
    launch.add_argument(
        "--gpu", metavar="NAME", help="GPU that will launch the graph, as nvidia-smi names it"
    )
    launch.add_argument(
        "--cuda", metavar="VERSION", help="CUDA version that will launch the graph, for example 12.9"
    )

    score = commands.add_parser("score", help="Score documents with the champion")
    scored = score.add_subparsers(dest="kind", required=True, metavar="WHAT")
    pages = _command(
        scored, "documents", "Score documentation files or JSON lines of {title, body}", _score_documents
    )
    pages.add_argument(
        "paths", nargs="+", metavar="PATH", help="Markdown, RST or header files, or JSON lines"
    )

    reviews = commands.add_parser("review", help="Give documents to people, and take their answers back")
    ways = reviews.add_subparsers(dest="kind", required=True, metavar="WAY")
    export = _command(
        ways, "export", "Write the waiting documents as Label Studio tasks, or as CSV", _review_export
    )
    export.add_argument(
        "path", nargs="?", default="review.json", metavar="FILE", help="default review.json; .csv writes CSV"
    )
    export.add_argument("--limit", type=_count, metavar="N", help="most documents; default is all")
    answers = _command(ways, "import", "Take people's answers into the labels", _review_import)
    answers.add_argument(
        "paths", nargs="+", metavar="FILE", help="Label Studio's JSON export, or the CSV filled in"
    )

    drill = commands.add_parser(
        "drill", help="Rehearse drift, retraining and promotion in a store of its own"
    )
    rehearsed = drill.add_subparsers(dest="kind", required=True, metavar="MODEL")
    for kind, what in (("latency", "launches become slower"), ("docquality", "reports change their topic")):
        rehearsal = _command(rehearsed, kind, f"Rehearse what happens when {what}", _drill)
        rehearsal.add_argument(
            "--store",
            metavar="DIR",
            help="empty folder for its tables and models; default is a new one in the cache",
        )

    registry = commands.add_parser("models", help="List, compare, promote, roll back and cost model versions")
    actions = registry.add_subparsers(dest="kind", required=True, metavar="ACTION")
    _command(actions, "list", "List the versions of every model and who is champion", _models_list)
    compare = _command(actions, "compare", "Show two versions side by side", _models_compare)
    compare.add_argument("model", metavar="MODEL", help=WHICH_MODEL)
    compare.add_argument("first", metavar="VERSION", help="a version number or an alias")
    compare.add_argument("second", metavar="VERSION", help="a version number or an alias")
    promote = _command(actions, "promote", "Make a version champion", _models_promote)
    promote.add_argument("model", metavar="MODEL", help=WHICH_MODEL)
    promote.add_argument("version", metavar="VERSION", help="a version number or an alias")
    rollback = _command(
        actions, "rollback", "Give the champion's place back to the version before it", _models_rollback
    )
    rollback.add_argument("model", metavar="MODEL", help=WHICH_MODEL)
    _command(actions, "cost", "Show what each training took and what it gained", _models_cost)


def _command(
    parent: Any, name: str, help_text: str, run: Callable[[argparse.Namespace], Result]
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = parent.add_parser(name, help=help_text, description=help_text + ".")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.set_defaults(run=run)
    return parser


def _table_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--table", metavar="SPEC.toml", help="spec of the latency table to learn from; docs/tables.md"
    )
    _folder_option(parser)


def _folder_option(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--folder", metavar="DIR", help="where the files of the spec lie; default is the spec's own folder"
    )


def _source_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--launches",
        nargs="+",
        metavar="PATH|URL",
        help="launch records; default is the table, or the simulator where it holds no measured ones",
    )
    parser.add_argument(
        "--gpu", metavar="NAME", help="GPU that the launches ran on, where the file does not say"
    )
    parser.add_argument(
        "--documents",
        nargs="+",
        metavar="SOURCE",
        help="cuda-headers:VERSION,... jsonl:PATH; default is the headers of three CUDA versions",
    )
    parser.add_argument(
        "--map", metavar="FIELD=NAME,...", help="names of a report file's fields, body=text,source=repo"
    )
    parser.add_argument("--keep-whole", action="store_true", help="keep the intact records of damaged files")


def _quiet_libraries() -> None:
    """Keep the flow libraries' own chatter out of a person's terminal; set the variables to have it back."""
    for name, value in {
        "PREFECT_LOGGING_LEVEL": "WARNING",
        # A failed task's traceback belongs to the flow run's log; here the one message says it.
        "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        # A cold server on a loaded machine takes longer to answer than the library's 20 seconds.
        "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "120",
        "DO_NOT_TRACK": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }.items():
        os.environ.setdefault(name, value)


@contextlib.contextmanager
def _stopping_at_once() -> Iterator[None]:
    """Ctrl-C ends the process at once while the command works; elsewhere signals stay as they were."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGINT, _stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _stop(_signal: int, _frame: object) -> None:
    """End at once on Ctrl-C.

    Commits are whole and a dead holder's lease is free, so nothing needs to be put in order. Unwinding
    would: the flow library reports each step to a server that got the same Ctrl-C and is gone, for minutes.
    """
    print("warpgauge: stopped; what was committed is whole, run the command again to go on", file=sys.stderr)
    for children in pathlib.Path("/proc/self/task").glob("*/children"):
        for child in children.read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(child), signal.SIGTERM)
    os._exit(INTERRUPTED_EXIT_CODE)


def _end_what_killed_commands_left() -> None:
    """End the Prefect servers of commands that were killed, and put a name on the one that this one may start."""
    from tasks.processes import STARTED_BY, end_orphaned_servers, process_name

    end_orphaned_servers()
    os.environ[STARTED_BY] = process_name()


def _show_progress() -> None:
    """The tasks' own lines of progress, on standard error with the time of day."""
    progress = logging.getLogger("warpgauge")
    progress.setLevel(logging.INFO)
    if not progress.handlers:
        handler = logging.StreamHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(message)s", datefmt="%H:%M:%S"))
        progress.addHandler(handler)


def _run(options: argparse.Namespace) -> Result:
    from flows.run_pipeline import run_pipeline

    return run_pipeline(
        launches=options.launches,
        documents=options.documents,
        telemetry=options.telemetry,
        field_map=options.map,
        keep_whole=options.keep_whole,
        allow_simulated=options.allow_simulated,
        gpu_name=options.gpu,
    )


def _collect_launches(options: argparse.Namespace) -> Result:
    from flows.collect_launches import collect_launches

    return collect_launches(options.sources, options.keep_whole, options.gpu)


def _collect_table(options: argparse.Namespace) -> Result:
    from flows.collect_table import collect_table

    return collect_table(options.spec, options.folder)


def _collect_documents(options: argparse.Namespace) -> Result:
    from flows.collect_documents import collect_documents

    return collect_documents(options.sources, options.map, options.keep_whole)


def _collect_telemetry(options: argparse.Namespace) -> Result:
    from flows.collect_telemetry import collect_telemetry

    return collect_telemetry(options.sources, options.keep_whole)


def _validate(options: argparse.Namespace) -> Result:
    from tasks.validation import validate

    return validate(options.what, options.table)


def _train_latency(options: argparse.Namespace) -> Result:
    from flows.train_latency import train_latency

    if options.folder and not options.table:
        raise SettingsError("--folder says where the files of a spec lie; name the spec by --table")
    return train_latency(
        allow_simulated=options.allow_simulated,
        force=options.force,
        table=options.table,
        folder=options.folder,
        trials=options.trials,
    )


def _train_docquality(options: argparse.Namespace) -> Result:
    from flows.train_docquality import train_docquality

    return train_docquality(force=options.force)


def _predict_latency(options: argparse.Namespace) -> Result:
    from tasks.prediction import predict_graph, predict_rows

    if options.rows is not None:
        return predict_rows(options.rows, options.gpu, options.cuda, options.explain, options.model)
    if options.model is not None:
        raise SettingsError("--model names the model of a table, whose rows --rows gives; a graph is none")
    return predict_graph(options.graph, options.gpu, options.cuda, options.explain)


def _score_documents(options: argparse.Namespace) -> Result:
    from tasks.prediction import score_documents

    return score_documents(options.paths)


def _monitor(options: argparse.Namespace) -> Result:
    from flows.monitor_drift import monitor_drift

    if options.once:
        return monitor_drift()
    if options.json:
        raise SettingsError("monitor --json prints one document, of one round; add --once")
    import time

    from tasks.presentation import render
    from tasks.reporting import metrics_endpoint

    with metrics_endpoint():
        while True:
            try:
                with _prefect_errors():
                    monitored = monitor_drift()
                print(render("monitor", monitored), file=sys.stderr, flush=True)
            except ServiceUnavailableError as error:
                # A monitor that a service's bad minute ends would watch nothing from then on.
                print(f"warpgauge: {error}; next round in {options.every_minutes:g} minutes", file=sys.stderr)
            time.sleep(options.every_minutes * 60)


def _minutes(text: str) -> float:
    try:
        minutes = float(text)
    except ValueError:
        minutes = math.nan
    if not (math.isfinite(minutes) and minutes > 0):
        raise argparse.ArgumentTypeError(f"{text!r} is no time between rounds; a number above 0 is needed")
    return minutes


def _count(text: str) -> int:
    if not text.isascii() or not text.isdigit():
        raise argparse.ArgumentTypeError(f"{text!r} is no count; 0 or more is needed")
    return int(text)


def _review_export(options: argparse.Namespace) -> Result:
    from flows.review_documents import review_documents

    return review_documents(os.path.abspath(options.path), options.limit)


def _review_import(options: argparse.Namespace) -> Result:
    from flows.review_documents import review_documents

    return review_documents(answers=[os.path.abspath(path) for path in options.paths])


def _drill(options: argparse.Namespace) -> Result:
    from tasks.drill import own_store

    with own_store(options.store):
        # Not before: Prefect reads where its server is when it is imported.
        from flows.rehearse_drift import rehearse_drift

        return rehearse_drift(options.kind)


def _models_list(options: argparse.Namespace) -> Result:  # noqa: ARG001 - every command takes its options
    from tasks.registration import list_versions

    return list_versions()


def _models_compare(options: argparse.Namespace) -> Result:
    from tasks.registration import compare_versions

    return compare_versions(options.model, options.first, options.second)


def _models_promote(options: argparse.Namespace) -> Result:
    from tasks.registration import promote

    return promote(options.model, options.version)


def _models_rollback(options: argparse.Namespace) -> Result:
    from tasks.registration import rollback

    return rollback(options.model)


def _models_cost(options: argparse.Namespace) -> Result:  # noqa: ARG001
    from tasks.costs import retraining_costs

    return retraining_costs()


def _compact(options: argparse.Namespace) -> Result:
    from flows.compact_store import compact_store

    return compact_store(options.dry_run)


def _deploy(options: argparse.Namespace) -> Result:  # noqa: ARG001
    from tasks.deployment import deploy

    return deploy()


def _doctor(options: argparse.Namespace) -> Result:
    from tasks.inspection import inspect_constraints, inspect_machine

    if options.gpu_constraints is None:
        return inspect_machine()
    # Without a name it is True, and an empty name is a wrong name.
    return inspect_constraints(None if options.gpu_constraints is True else options.gpu_constraints)


if __name__ == "__main__":
    sys.exit(main())
