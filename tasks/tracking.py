"""MLflow's tracking store: one whatever the working directory, found again where a project was moved.

Every word of MLflow's own that reaches a person passes `store_errors`, which hides passwords.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sqlite3
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlencode, urlsplit

from tasks.storage import mlruns_dir
from warpgauge.errors import ServiceUnavailableError, SettingsError
from warpgauge.settings import load_settings

if TYPE_CHECKING:
    from mlflow import MlflowClient

EXPERIMENT = "warpgauge"
PAGE_ROWS = 1000
# Descriptions and tags of a version hold 5,000 characters in MLflow's databases, tags of a run 8,000.
TEXT_LIMIT = 5000
# Greedy up to the last @ before a slash or blank, so that a password with an @ in it is hidden whole; the
# second form is for one with a slash in it.
_PASSWORD = re.compile(r"(://[^\s/@:]*):(?:[^\s/]*@|[^\s@]*@)")
# Set here where the environment does not, before MLflow is imported. It asks a server that is away 8 times, with
# 2 minutes for each answer and growing pauses, up to a quarter of an hour; with these 6 s for a refused
# connection, a minute for one that nobody answers. It draws progress bars into logs, writes addresses to
# standard output, which belongs to --json, and reports its use to its makers.
for _name, _value in {
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "2",
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "15",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_DISABLE_TELEMETRY": "true",
}.items():
    os.environ.setdefault(_name, _value)
# Where MLflow's tables hold an absolute artifact address.
_ADDRESS_COLUMNS = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
    ("model_versions", "source"),
)


def tracking_uri() -> str:
    """Address of the tracking store: the one that flows, tests and the documented `mlflow ui` use.

    Raises:
        SettingsError: If the setting names a file store, which MLflow no longer opens, or a store that would
            be another one in each working directory or process.
    """
    uri = load_settings().resolved_mlflow_uri()
    if uri.startswith("file:") or "://" not in uri:
        raise SettingsError(
            f"WARPGAUGE_MLFLOW_URI is {uri!r}: a file store, which MLflow 3 refuses; use sqlite:////absolute/path/mlflow.db "
            f"or a server's http address (old runs move over with `mlflow migrate-filestore --source {uri} --target sqlite:///...`)"
        )
    if uri.startswith("sqlite:") and not uri.startswith("sqlite:////"):
        raise SettingsError(
            f"WARPGAUGE_MLFLOW_URI is {uri!r}: relative or in memory, so it would be another store in each working "
            "directory or process; use sqlite:////absolute/path/mlflow.db"
        )
    return uri


def shown_uri() -> str:
    """The tracking store's address for people and logs: a password in it is left out."""
    return without_passwords(tracking_uri())


def without_passwords(text: str) -> str:
    """The text with the password of each `scheme://user:password@` in it left out.

    >>> without_passwords("API request to http://user:s3cret@host:5000/api failed")
    'API request to http://user:***@host:5000/api failed'
    """
    return _PASSWORD.sub(r"\1:***@", text)


def shorten(text: str) -> str:
    """The text as a tag or description holds it: a longer one is cut, which an ellipsis shows."""
    return text if len(text) <= TEXT_LIMIT else f"{text[: TEXT_LIMIT - 1]}…"


def ui_command() -> str:
    """The command that opens this store in the MLflow UI, from any working directory."""
    uri = shown_uri()
    if uri.startswith("http"):
        return f"open {uri}"
    # The environment of this process need not be the reader's, so the program is named in full.
    program = Path(sys.executable).parent / "mlflow"
    return f"{shlex.quote(str(program))} ui --backend-store-uri {shlex.quote(uri)} --workers 1"


def old_file_store() -> str | None:
    """One line about runs of an older MLflow's file store in the artifact root; None where there are none."""
    found = sorted(str(meta.parent) for meta in mlruns_dir().glob("*/meta.yaml"))
    if not found:
        return None
    return (
        f"old file store found in {mlruns_dir()} ({len(found)} experiments); its runs are not shown: migrate with "
        f"`mlflow migrate-filestore --source {mlruns_dir()} --target {shown_uri()}` or move them away"
    )


def connect() -> MlflowClient:
    """A client of the project's store, with the experiment made and moved artifacts found again.

    Raises:
        ServiceUnavailableError: If the store does not answer.
    """
    uri = tracking_uri()
    with store_errors():
        import mlflow
        from mlflow import MlflowClient

        # Importing MLflow sets these to INFO; a new store's migrations are nobody's news.
        for chatty in ("alembic", "mlflow"):
            logging.getLogger(chatty).setLevel(logging.WARNING)
        artifacts = None
        if uri.startswith("sqlite:///"):
            artifacts = str(mlruns_dir() / "artifacts")
            database = Path(uri.removeprefix("sqlite:///"))
            _make_database(database, artifacts)
            _reroot_artifacts(database, artifacts)
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        client = MlflowClient()
        experiment = client.get_experiment_by_name(EXPERIMENT)
        if experiment is None:
            _create_experiment(client, artifacts)
        elif experiment.name != EXPERIMENT:
            raise ServiceUnavailableError(
                f"{shown_uri()} answers, but not as MLflow does; set WARPGAUGE_MLFLOW_URI to an MLflow server"
            )
    return client


def _is_former_root(location: str, database: Path, artifacts: Path) -> bool:
    """Whether an experiment's artifacts were beside this database before it was moved or copied here.

    Another store's address (`s3://`, a server's, a shared folder) is somebody's choice and stays.
    """
    parsed = urlsplit(location)
    if parsed.scheme not in ("", "file") or parsed.netloc not in ("", "localhost"):
        return False
    former = Path(unquote(parsed.path) if parsed.scheme else location)
    if former == artifacts or former.name != artifacts.name:
        return False
    is_copied = (former.parent / database.name).exists()
    is_moved = artifacts.exists() and not former.exists()
    return is_copied or is_moved


@contextmanager
def store_errors(consequence: str = "") -> Iterator[None]:
    """What MLflow raises when its store is away, full, locked or damaged, as our error; also a decorator.

    Args:
        consequence: What did not happen because of it, for the message.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
        said = without_passwords(str(error))
        raise ServiceUnavailableError(
            f"MLflow store {shown_uri()} did not answer: {said}{consequence}; start it, free the disk or set "
            "WARPGAUGE_MLFLOW_URI, and run again"
        ) from error


def _create_experiment(client: MlflowClient, artifact_location: str | None) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_experiment(EXPERIMENT, artifact_location=artifact_location)
    except MlflowException:
        # Two first runs at once: the other one made it.
        if client.get_experiment_by_name(EXPERIMENT) is None:
            raise


def _make_database(database: Path, artifacts: str) -> None:
    """Make a store's database beside its place and move it there whole.

    MLflow makes it in place, by some fifty migrations: a first run that is killed, or two at once, would leave
    one that no later run can mend.
    """
    import fcntl

    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    if database.exists():
        return
    database.parent.mkdir(parents=True, exist_ok=True)
    folder = os.open(database.parent, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        if not database.exists():
            partial = database.with_name(f".{database.name}.partial")
            partial.unlink(missing_ok=True)
            store = SqlAlchemyStore(f"sqlite:///{partial}", artifacts)  # type: ignore[no-untyped-call]
            store.engine.dispose()
            os.replace(partial, database)
    finally:
        os.close(folder)


def _reroot_artifacts(database: Path, artifacts: str) -> None:
    """Point a moved store's artifact addresses at where they lie now.

    MLflow keeps absolute artifact addresses in its database, so a project folder that was moved or copied
    would load no model. Only those under the root of such a store are rewritten: see `_is_former_root`.
    """
    with closing(sqlite3.connect(database, timeout=30)) as connection, connection:
        tables = {
            name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")
        }
        if "experiments" not in tables:
            return
        row = connection.execute(
            "SELECT artifact_location FROM experiments WHERE name = ?", (EXPERIMENT,)
        ).fetchone()
        if row is None or not _is_former_root(row[0], database, Path(artifacts)):
            return
        old = row[0]
        for table, column in _ADDRESS_COLUMNS:
            if table in tables:
                connection.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    (artifacts, len(old) + 1, old, len(old) + 1, old + "/"),
                )


def experiment_id(client: MlflowClient) -> str:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None, "connect() makes it"
    return str(experiment.experiment_id)


@store_errors()
def log_monitor_metrics(values: dict[str, float]) -> None:
    """Add measured values to the monitor's one run.

    Args:
        values: Metric name to finite value; names hold letters, digits and `_-./ ` only.
    """
    from mlflow.entities import Metric

    client = connect()
    run_id = _monitor_run_id(client)
    now = datetime.now(UTC).timestamp()
    metrics = [Metric(name, value, int(now * 1000), int(now)) for name, value in values.items()]
    for start in range(0, len(metrics), PAGE_ROWS):
        client.log_batch(run_id, metrics=metrics[start : start + PAGE_ROWS])


@store_errors()
def log_monitor_files(files: dict[str, str]) -> str:
    """Put texts (pages, SVG) among the artifacts of the monitor's one run, in the place of those before them.

    Args:
        files: Path among the artifacts to text. The same few paths every time, or the run would grow for ever.

    Returns:
        The run's id.
    """
    client = connect()
    run_id = _monitor_run_id(client)
    for path, text in files.items():
        client.log_text(run_id, text, path)
    return run_id


def artifact_address(run_id: str, path: str) -> str | None:
    """Where a browser finds an artifact; None where no server gives it, or only to a login."""
    uri = tracking_uri().rstrip("/")
    if not uri.startswith("http") or "@" in uri:
        return None
    return f"{uri}/get-artifact?{urlencode({'run_uuid': run_id, 'path': path})}"


def _monitor_run_id(client: MlflowClient) -> str:
    """The monitor's one long-lived run; made where there is none."""
    # The oldest, where two first monitors made one each.
    found = client.search_runs(
        [experiment_id(client)],
        "tags.role = 'monitor'",
        max_results=1,
        order_by=["attributes.start_time ASC"],
    )
    run = (
        found[0]
        if found
        else client.create_run(experiment_id(client), run_name="monitor", tags={"role": "monitor"})
    )
    if run.info.status == "RUNNING":
        # Metrics and files may be added to an ended run; a running one would look like a process that died.
        client.set_terminated(run.info.run_id)
    return str(run.info.run_id)
