"""MLflow: one store whatever the working directory, versions with aliases, the gate, rollback.

A trained model arrives as a bundle, a folder that `tasks/training.py` wrote. Nothing here is pickled:
the model's own files go in as they are, beside a Python file that serves them.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import os
import re
import shlex
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.storage import mlruns_dir
from warpgauge.errors import (
    ModelNotFoundError,
    NoDataError,
    ServiceUnavailableError,
    SettingsError,
    WarpgaugeError,
)
from warpgauge.settings import load_settings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import Run
    from mlflow.entities.model_registry import ModelVersion

    from warpgauge.registry.gate import Verdict

LOGGER = logging.getLogger("warpgauge")
LAUNCH_LATENCY = "launch-latency"
DOC_QUALITY = "doc-quality"
MODEL_NAMES = (LAUNCH_LATENCY, DOC_QUALITY)
CHAMPION = "champion"
CHALLENGER = "challenger"
EXPERIMENT = "warpgauge"
# Longer reasons are cut: tags and descriptions of some stores hold no more.
TEXT_LIMIT = 5000
PAGE_ROWS = 1000
LONGEST_NUMBER = 19
# MLflow's error codes for a version or alias that is not there or cannot be one.
ABSENT = ("RESOURCE_DOES_NOT_EXIST", "INVALID_PARAMETER_VALUE")
# How the monitor names what the gate says.
OUTCOMES = {"promote": "promoted", "hold": "held", "refuse": "refused"}
SERVING_SCRIPTS = {
    LAUNCH_LATENCY: Path(__file__).parent / "pyfunc" / "launch_latency.py",
    DOC_QUALITY: Path(__file__).parent / "pyfunc" / "doc_quality.py",
}
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


@dataclass(frozen=True)
class Registered:
    """One model version as the registry knows it."""

    model_name: str
    version: str
    run_id: str


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
    return re.sub(r"(://[^/@:]*):[^@]*@", r"\1:***@", tracking_uri())


def ui_command() -> str:
    """The command that opens this store in the MLflow UI, from any working directory."""
    uri = shown_uri()
    if uri.startswith("http"):
        return f"open {uri}"
    return f"mlflow ui --backend-store-uri {shlex.quote(uri)} --workers 1"


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
    with _store_errors():
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


@contextmanager
def _store_errors(consequence: str = "") -> Iterator[None]:
    """What MLflow raises when its store is away, full, locked or damaged, as our error; also a decorator.

    Args:
        consequence: What did not happen because of it, for the message.
    """
    from mlflow.exceptions import MlflowException
    from sqlalchemy.exc import SQLAlchemyError

    try:
        yield
    except (MlflowException, SQLAlchemyError, sqlite3.Error, OSError) as error:
        raise ServiceUnavailableError(
            f"MLflow store {shown_uri()} did not answer: {error}{consequence}; start it, free the disk or set "
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
    would load no model. An address whose old root is gone, or is not this store's, is rewritten.
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
        if row is None or row[0] == artifacts:
            return
        old = row[0]
        for table, column in _ADDRESS_COLUMNS:
            if table in tables:
                connection.execute(
                    f"UPDATE {table} SET {column} = ? || substr({column}, ?) "
                    f"WHERE {column} = ? OR substr({column}, 1, ?) = ?",
                    (artifacts, len(old) + 1, old, len(old) + 1, old + "/"),
                )


@_store_errors()
def already_trained(
    model_name: str, data_versions: dict[str, Any], settings_sha256: str, allow_simulated: bool = False
) -> str | None:
    """The version trained on exactly these data and settings, None if there is none.

    A version that the gate has not judged (its process was killed in between) does not count: nothing would
    ever judge it. Nor does one that was withheld for being simulated, once that is allowed.
    """
    client = connect()
    wanted = json.dumps(data_versions, sort_keys=True)
    for version in _versions(client, model_name):
        if (
            version.tags.get("data_versions") == wanted
            and version.tags.get("settings_sha256") == settings_sha256
            and "gate" in version.tags
            and not (allow_simulated and _is_withheld(version))
        ):
            return str(version.version)
    return None


def _is_withheld(version: ModelVersion) -> bool:
    return version.tags.get("is_simulated") == "true" and version.tags["gate"] == "refuse"


def register(bundle: str) -> Registered:
    """Log a bundle as one run and one version, and give it the alias `challenger`.

    The version is made last, so a failure before it leaves a failed run and no version.

    Args:
        bundle: Folder that `tasks.training` wrote.

    Raises:
        NoDataError: If the bundle is gone.
        ServiceUnavailableError: If MLflow does not take it.
    """
    import mlflow

    folder = Path(bundle)
    facts = bundle_facts(folder)
    name = facts["model_name"]
    client = connect()
    with _store_errors(f"; {name} was not registered"):
        with mlflow.start_run(
            experiment_id=_experiment_id(client), run_name=f"{name} {datetime.now(UTC):%Y-%m-%d %H:%M}"
        ) as run:
            mlflow.log_params(facts["settings"])
            _log_metrics(facts["metrics"])
            mlflow.set_tags(
                {"model_name": name, "data_versions": json.dumps(facts["data_versions"], sort_keys=True)}
            )
            mlflow.log_dict(facts, "training.json")
            mlflow.log_text(_rows_as_csv(facts["evaluation"]), "evaluation.csv")
            mlflow.log_dict(_environment(), "environment.json")
            for figure in sorted((folder / "figures").glob("*.png")):
                mlflow.log_artifact(str(figure), "figures")
            model_uri, model_id = _log_model(name, folder / "model", facts)
        return _make_version(client, name, model_uri, model_id, run.info.run_id, facts)


def bundle_facts(folder: Path) -> dict[str, Any]:
    """What the training wrote about a bundle.

    Raises:
        NoDataError: If the folder holds no whole bundle.
    """
    try:
        return dict(json.loads((folder / "bundle.json").read_text()))
    except (OSError, ValueError) as error:
        raise NoDataError(f"{folder} holds no whole trained model: {error}; train again") from error


def _log_model(name: str, files: Path, facts: dict[str, Any]) -> tuple[str, str]:
    import contextlib
    import sys
    import warnings

    import mlflow
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema

    signature = ModelSignature(
        inputs=Schema(
            [ColSpec(kind, column, required=False) for column, kind in facts["signature"]["inputs"]]
        ),
        outputs=Schema([ColSpec(kind, column) for column, kind in facts["signature"]["outputs"]]),
    )
    # MLflow urges an input example; the explicit signature says the same. Its chatter must not reach
    # standard output, which belongs to --json.
    with warnings.catch_warnings(), contextlib.redirect_stdout(sys.stderr):
        warnings.simplefilter("ignore", UserWarning)
        info = mlflow.pyfunc.log_model(
            name="model",
            python_model=str(SERVING_SCRIPTS[name]),
            artifacts={"files": str(files)},
            signature=signature,
            pip_requirements=facts["requirements"],
        )
    assert info.model_id is not None
    return info.model_uri, info.model_id


def _make_version(
    client: MlflowClient, name: str, model_uri: str, model_id: str, run_id: str, facts: dict[str, Any]
) -> Registered:
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(name, description=facts["description"])
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    tags = {
        "data_versions": json.dumps(facts["data_versions"], sort_keys=True),
        "settings_sha256": facts["settings_sha256"],
        "provenance": facts["provenance"],
        "is_simulated": str(facts["is_simulated"]).lower(),
        "headline": facts["headline"],
    }
    version = client.create_model_version(
        name, source=model_uri, run_id=run_id, model_id=model_id, tags=tags, description=facts["headline"]
    )
    client.set_registered_model_alias(name, CHALLENGER, version.version)
    return Registered(name, str(version.version), run_id)


def apply_gate(bundle: str, registered: Registered, allow_simulated: bool = False) -> dict[str, Any]:
    """Compare the version with the champion on the same rows, and promote, hold or refuse it.

    Returns:
        `model_name`, `version`, `outcome` (promote, hold, refuse), `reasons`, `figures`.
    """
    from tasks.comparison import judge_bundle
    from warpgauge.registry.card import model_card

    folder = Path(bundle)
    facts = bundle_facts(folder)
    name = registered.model_name
    verdict = judge_bundle(folder, registered.version, alias_version(name, CHAMPION), allow_simulated)
    reasons = "; ".join(verdict.reasons)
    card = model_card(_card_facts(facts, registered.version, verdict))
    with _store_errors(f"; {name} version {registered.version} was not judged"):
        client = connect()
        client.log_text(registered.run_id, card, "model_card.md")
        client.log_dict(registered.run_id, dataclasses.asdict(verdict), "gate.json")
        said = f"{facts['headline']}\n\nGate: {verdict.outcome}: {reasons}"
        client.update_model_version(name, registered.version, description=said[:TEXT_LIMIT])
        _tag(client, registered, "gate_reasons", reasons[:TEXT_LIMIT])
        if verdict.outcome == "hold":
            _tag(client, registered, "review", "pending")
        if verdict.outcome == "promote":
            _promote(client, name, registered.version)
        # Last, because a version with this tag is not trained again: see `already_trained`.
        _tag(client, registered, "gate", verdict.outcome)
    return {
        "model_name": name,
        "version": registered.version,
        "run_id": registered.run_id,
        "outcome": verdict.outcome,
        "reasons": list(verdict.reasons),
        "figures": dict(verdict.figures),
        # A simulated version that nobody asked to promote is withheld, as it should be; nothing went wrong.
        "refused": [f"gate: {name} version {registered.version}: {reasons}"]
        if verdict.outcome == "refuse" and (allow_simulated or not facts["is_simulated"])
        else [],
    }


# What a version is for, as its card says it.
CARD_USE = {
    LAUNCH_LATENCY: {
        "intended_use": "Before a CUDA Graph is launched: how long the launch call will take on a GPU, and how sure that is.",
        "not_for": "GPUs, CUDA versions or shapes named in `never_seen`, other than as a wide guess; device time.",
        "baseline_name": "line a + b x nodes",
    },
    DOC_QUALITY: {
        "intended_use": "Order documentation and reports about it by how likely a defect is, and show the evidence.",
        "not_for": "Closing or rejecting anything without a person; text in languages other than English.",
        "baseline_name": "share of defects in the family",
    },
}
BASELINE_PREFIX = {LAUNCH_LATENCY: "line_", DOC_QUALITY: "baseline_"}


def _card_facts(facts: dict[str, Any], version: str, verdict: Verdict) -> dict[str, Any]:
    """The facts of a bundle under the names that the card uses."""
    name = facts["model_name"]
    prefix = BASELINE_PREFIX[name]
    metrics = facts["metrics"]
    baseline = {key.removeprefix(prefix): value for key, value in metrics.items() if key.startswith(prefix)}
    slices = {}
    for row in facts["evaluation"]:
        figures = {key: value for key, value in row.items() if isinstance(value, int | float)}
        label = " = ".join(
            str(row[key]) for key in ("slice", "value", "predictor") if row.get(key) is not None
        )
        slices[label] = figures
    return {
        **CARD_USE[name],
        "name": name,
        "version": version,
        "predicts": facts["description"],
        "unit": facts["unit"],
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "is_simulated": facts["is_simulated"],
        "label_provenance": facts["provenance"],
        "data_versions": facts["data_versions"],
        "row_counts": facts["counts"],
        "metrics": {
            key: value for key, value in metrics.items() if "/" not in key and not key.startswith(prefix)
        },
        "baseline_metrics": baseline,
        "slices": slices,
        "limits": facts["notes"],
        "verdict": {"outcome": verdict.outcome, "reasons": list(verdict.reasons)},
        "settings": facts["settings"],
        "environment": _environment(),
    }


class Attempt:
    """One retraining that the monitor asked for, as a run of its own that says how it ended."""

    def __init__(self, model_name: str, attempt_id: str | None) -> None:
        self.attempt_id = attempt_id
        self._run_id = None if attempt_id is None else _begin_attempt(model_name, attempt_id)
        self.is_ended = False

    @_store_errors("; the retraining's outcome was not kept")
    def end(self, outcome: str, why: str) -> None:
        """Keep the outcome: promoted, held, refused or failed. The first one counts."""
        if self._run_id is not None and not self.is_ended:
            _end_attempt(connect(), self._run_id, outcome, why)
            self.is_ended = True


@contextmanager
def attempt(model_name: str, attempt_id: str | None) -> Iterator[Attempt]:
    """Keep what becomes of a retraining; a block that raises has failed. Without an id nothing is kept.

    A process that is killed leaves the outcome `running`, and `list_attempts` tells from the lease that
    nobody works on it any more.
    """
    made = Attempt(model_name, attempt_id)
    try:
        yield made
    except BaseException as error:
        try:
            made.end("failed", f"{type(error).__name__}: {error}")
        except WarpgaugeError as second:
            # The first error is the one to see; without its end the attempt counts as killed, so as failed.
            LOGGER.warning("%s", second)
        raise


@_store_errors()
def _begin_attempt(model_name: str, attempt_id: str) -> str:
    client = connect()
    tags = {"model_name": model_name, "attempt_id": attempt_id, "outcome": "running"}
    name = f"retraining of {model_name}"
    return str(client.create_run(_experiment_id(client), run_name=name, tags=tags).info.run_id)


def _end_attempt(client: MlflowClient, run_id: str, outcome: str, why: str) -> None:
    client.set_tag(run_id, "why", why[:TEXT_LIMIT])
    client.set_tag(run_id, "outcome", outcome)
    client.set_terminated(run_id, "FAILED" if outcome == "failed" else "FINISHED")


@_store_errors()
def list_attempts() -> list[dict[str, Any]]:
    """The newest retrainings that the monitor asked for: `model_name`, `attempt_id`, `started_at`, `outcome`.

    One that says `running` while nobody holds the model's lease was killed: it is ended as `failed`.
    """
    client = connect()
    runs = client.search_runs(
        [_experiment_id(client)],
        "tags.attempt_id != ''",
        max_results=PAGE_ROWS,
        order_by=["attributes.start_time DESC"],
    )
    return [
        {
            "model_name": run.data.tags["model_name"],
            "attempt_id": run.data.tags["attempt_id"],
            "started_at": datetime.fromtimestamp(run.info.start_time / 1000, UTC),
            "outcome": _attempt_outcome(client, run),
        }
        for run in runs
        if "model_name" in run.data.tags
    ]


def _attempt_outcome(client: MlflowClient, run: Run) -> str:
    from tasks import leases

    outcome = run.data.tags.get("outcome")
    if outcome in OUTCOMES.values():
        return str(outcome)
    if outcome != "running":
        return "failed"
    if leases.is_held(training_job(run.data.tags["model_name"])):
        return "running"
    # An attempt ends before its lease does, so one that still runs after the lease was seen free is dead.
    outcome = client.get_run(run.info.run_id).data.tags["outcome"]
    if outcome == "running":
        outcome = "failed"
        _end_attempt(client, run.info.run_id, outcome, "killed: nobody holds the model's lease any more")
    return str(outcome)


def training_job(model_name: str) -> str:
    """Name of the lease under which a model is trained."""
    return f"train {model_name}"


def _experiment_id(client: MlflowClient) -> str:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None, "connect() makes it"
    return str(experiment.experiment_id)


@_store_errors()
def data_versions(model_name: str, version: str) -> dict[str, Any]:
    """What a version was trained on: table -> its version, `<table>.table` -> its identity."""
    found = _get_version(connect(), model_name, version)
    return dict(json.loads(found.tags.get("data_versions", "{}")))


@_store_errors()
def log_monitor_metrics(values: dict[str, float]) -> None:
    """Add measured values to the monitor's one run.

    Args:
        values: Metric name to finite value; names hold letters, digits and `_-./ ` only.
    """
    from mlflow.entities import Metric

    client = connect()
    # The oldest, where two first monitors made one each.
    found = client.search_runs(
        [_experiment_id(client)],
        "tags.role = 'monitor'",
        max_results=1,
        order_by=["attributes.start_time ASC"],
    )
    run = (
        found[0]
        if found
        else client.create_run(_experiment_id(client), run_name="monitor", tags={"role": "monitor"})
    )
    now = datetime.now(UTC).timestamp()
    metrics = [Metric(name, value, int(now * 1000), int(now)) for name, value in values.items()]
    for start in range(0, len(metrics), PAGE_ROWS):
        client.log_batch(run.info.run_id, metrics=metrics[start : start + PAGE_ROWS])


@_store_errors()
def list_versions() -> dict[str, Any]:
    """Each registered model with its versions, aliases and why there is no champion where there is none."""
    client = connect()
    answer: list[dict[str, Any]] = []
    for name in MODEL_NAMES:
        aliases = _aliases(client, name)
        versions = [
            {
                "version": str(version.version),
                "aliases": sorted(
                    alias for alias, number in aliases.items() if number == str(version.version)
                ),
                "gate": version.tags.get("gate"),
                "reasons": version.tags.get("gate_reasons"),
                "review": version.tags.get("review"),
                "provenance": version.tags.get("provenance"),
                "data_versions": json.loads(version.tags.get("data_versions", "{}")),
                "headline": version.tags.get("headline"),
                "run_id": version.run_id,
            }
            for version in _versions(client, name)
        ]
        champion = aliases.get(CHAMPION)
        why = None
        if champion is None:
            why = "nothing was trained yet: run `warpgauge run`"
            if versions:
                why = (
                    versions[0]["reasons"] or f"version {versions[0]['version']} was not judged: train again"
                )
        answer.append(
            {"model_name": name, "champion": champion, "no_champion_because": why, "versions": versions}
        )
    return {"models": answer}


@_store_errors()
def compare_versions(model_name: str, first: str, second: str) -> dict[str, Any]:
    """Metrics of two versions side by side, with the rows each was judged on."""
    client = connect()
    sides: list[dict[str, Any]] = []
    for version in (first, second):
        found = _get_version(client, model_name, version)
        metrics = client.get_run(found.run_id).data.metrics if found.run_id else {}
        sides.append({"version": str(found.version), "metrics": metrics, "tags": dict(found.tags)})
    names = sorted(set(sides[0]["metrics"]) | set(sides[1]["metrics"]))
    return {
        "model_name": model_name,
        "versions": [first, second],
        "metrics": [
            {
                "metric": metric,
                first: sides[0]["metrics"].get(metric),
                second: sides[1]["metrics"].get(metric),
            }
            for metric in names
        ],
        "data_versions": [json.loads(side["tags"].get("data_versions", "{}")) for side in sides],
    }


@_store_errors()
def promote(model_name: str, version: str) -> dict[str, Any]:
    """Make a version champion by a person's decision, and say so in its tags.

    Raises:
        ModelNotFoundError: If there is no such version.
    """
    client = connect()
    found = _get_version(client, model_name, version)
    registered = Registered(model_name, str(found.version), str(found.run_id))
    _promote(client, model_name, registered.version)
    _tag(client, registered, "promoted_by", "person")
    return {"model_name": model_name, "champion": registered.version, "gate": found.tags.get("gate")}


@_store_errors()
def rollback(model_name: str) -> dict[str, Any]:
    """Give the alias champion back to the version that held it before; again, to the one before that.

    A version that was rolled back is not gone back to.

    Raises:
        ModelNotFoundError: If there is no champion or no earlier one.
    """
    client = connect()
    _check_name(model_name)
    current = _aliases(client, model_name).get(CHAMPION)
    if current is None:
        raise ModelNotFoundError(f"{model_name} has no champion, so there is nothing to roll back from")
    earlier = [
        version
        for version in _versions(client, model_name)
        if str(version.version) != current
        and "promoted_at" in version.tags
        and "rolled_back_at" not in version.tags
    ]
    if not earlier:
        raise ModelNotFoundError(
            f"{model_name} version {current} has no champion before it to go back to; "
            "`warpgauge models promote` takes any version"
        )
    chosen = str(max(earlier, key=lambda version: version.tags["promoted_at"]).version)
    client.set_model_version_tag(model_name, current, "rolled_back_at", _now())
    client.set_registered_model_alias(model_name, CHAMPION, chosen)
    return {"model_name": model_name, "champion": chosen, "rolled_back": current}


@_store_errors()
def alias_version(model_name: str, alias: str) -> str | None:
    """The version that an alias names, None if it names none."""
    return _aliases(connect(), model_name).get(alias)


@_store_errors()
def serving_version(model_name: str) -> tuple[str, bool]:
    """The version that answers: the champion, or without one the challenger.

    Returns:
        The version and whether it was promoted.

    Raises:
        ModelNotFoundError: If there is neither.
    """
    aliases = _aliases(connect(), model_name)
    if CHAMPION in aliases:
        return aliases[CHAMPION], True
    if CHALLENGER in aliases:
        return aliases[CHALLENGER], False
    raise ModelNotFoundError(f"no {model_name} model is registered; train one with `warpgauge run`")


@_store_errors()
def model_files(model_name: str, version: str) -> dict[str, bytes]:
    """The files of a registered version, by name.

    Raises:
        ModelNotFoundError: If the version or its artifacts are gone.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    found = _get_version(connect(), model_name, version)
    # In a folder that goes away again: what MLflow fetches from a server it leaves in one that stays.
    with tempfile.TemporaryDirectory(prefix="warpgauge-model-") as copy:
        try:
            folder = mlflow.artifacts.download_artifacts(
                f"models:/{model_name}/{found.version}/artifacts", dst_path=copy
            )
            files = {path.name: path.read_bytes() for path in Path(folder).glob("*/*") if path.is_file()}
        except (MlflowException, OSError) as error:
            raise ModelNotFoundError(
                f"{model_name} version {version}: its artifacts cannot be read: {error}; "
                "restore them or train again with --force"
            ) from error
    if not files:
        raise ModelNotFoundError(
            f"{model_name} version {version}: its artifacts hold no model file; "
            "restore them or train again with --force"
        )
    return files


@_store_errors()
def version_facts(model_name: str, version: str) -> dict[str, Any]:
    """What the training wrote about a version (its `training.json`).

    Raises:
        ModelNotFoundError: If the version or what was written about it is gone.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    found = _get_version(connect(), model_name, version)
    try:
        return dict(mlflow.artifacts.load_dict(f"runs:/{found.run_id}/training.json"))
    except (MlflowException, OSError) as error:
        raise ModelNotFoundError(
            f"{model_name} version {version}: its training.json cannot be read: {error}; "
            "restore it or train again with --force"
        ) from error


def _promote(client: MlflowClient, name: str, version: str) -> None:
    """Move the alias champion, and keep when: `rollback` follows these times."""
    current = _aliases(client, name).get(CHAMPION)
    if current == version:
        return
    if current is not None and "promoted_at" not in client.get_model_version(name, current).tags:
        # A reviewer set the alias in the MLflow UI, which keeps no time.
        client.set_model_version_tag(name, current, "promoted_at", _now())
    client.set_model_version_tag(name, version, "promoted_at", _now())
    client.delete_model_version_tag(name, version, "rolled_back_at")
    client.delete_model_version_tag(name, version, "review")
    client.set_registered_model_alias(name, CHAMPION, version)


def _now() -> str:
    return datetime.now(UTC).isoformat()


def _tag(client: MlflowClient, registered: Registered, key: str, value: str) -> None:
    client.set_model_version_tag(registered.model_name, registered.version, key, value)


def _log_metrics(metrics: dict[str, float | None]) -> None:
    """Finite metrics go in; the others are named in a tag, because the store turns infinity into 1.8e308."""
    import mlflow

    finite = {
        name: float(value) for name, value in metrics.items() if value is not None and math.isfinite(value)
    }
    mlflow.log_metrics(finite)
    omitted = sorted(set(metrics) - set(finite))
    if omitted:
        mlflow.set_tag("nonfinite_metrics", ", ".join(omitted)[:TEXT_LIMIT])


def _rows_as_csv(rows: list[dict[str, Any]]) -> str:
    import csv
    import io

    columns = list(dict.fromkeys(column for row in rows for column in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=columns)
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _environment() -> dict[str, str]:
    import platform
    from importlib.metadata import version

    packages = (
        "lightgbm",
        "scikit-learn",
        "numpy",
        "polars",
        "torch",
        "transformers",
        "mlflow",
        "prefect",
        "deltalake",
    )
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        **{name: version(name) for name in packages},
    }


def _versions(client: MlflowClient, name: str) -> list[ModelVersion]:
    """All versions of a model, newest first."""
    wanted = f"name = '{name}'"
    page = client.search_model_versions(wanted, max_results=PAGE_ROWS)
    found = list(page)
    while page.token:
        page = client.search_model_versions(wanted, max_results=PAGE_ROWS, page_token=page.token)
        found += page
    return sorted(found, key=lambda version: int(version.version), reverse=True)


def _aliases(client: MlflowClient, name: str) -> dict[str, str]:
    from mlflow.exceptions import MlflowException

    try:
        return {
            alias: str(version) for alias, version in dict(client.get_registered_model(name).aliases).items()
        }
    except MlflowException as error:
        if error.error_code == "RESOURCE_DOES_NOT_EXIST":
            return {}
        raise


def _check_name(name: str) -> None:
    if name not in MODEL_NAMES:
        raise ModelNotFoundError(f"there is no model {name!r}; the models are {', '.join(MODEL_NAMES)}")


def _get_version(client: MlflowClient, name: str, version: str) -> ModelVersion:
    """A version by number or alias."""
    from mlflow.exceptions import MlflowException

    _check_name(name)
    try:
        # An alias that is all digits is none, and a number beyond 64 bits is no version.
        if version.isdecimal() and len(version) < LONGEST_NUMBER:
            return client.get_model_version(name, version)
        return client.get_model_version_by_alias(name, version)
    except MlflowException as error:
        if error.error_code not in ABSENT:
            raise
        known = ", ".join(str(found.version) for found in _versions(client, name)) or "none"
        raise ModelNotFoundError(f"{name} has no version {version}; known versions: {known}") from error
