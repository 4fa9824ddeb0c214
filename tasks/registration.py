"""MLflow: one store whatever the working directory, versions with aliases, the gate, rollback.

A trained model arrives as a bundle, a folder that `tasks/training.py` wrote. Nothing here is pickled:
the model's own files go in as they are, beside a Python file that serves them.
"""

from __future__ import annotations

import json
import math
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.storage import mlruns_dir
from warpgauge.errors import ModelNotFoundError, ServiceUnavailableError, SettingsError
from warpgauge.settings import load_settings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from warpgauge.registry.gate import Verdict

LAUNCH_LATENCY = "launch-latency"
DOC_QUALITY = "doc-quality"
MODEL_NAMES = (LAUNCH_LATENCY, DOC_QUALITY)
CHAMPION = "champion"
CHALLENGER = "challenger"
EXPERIMENT = "warpgauge"
# How the monitor names what the gate says.
OUTCOMES = {"promote": "promoted", "hold": "held", "refuse": "refused"}
SERVING_SCRIPTS = {
    LAUNCH_LATENCY: Path(__file__).parent / "pyfunc" / "launch_latency.py",
    DOC_QUALITY: Path(__file__).parent / "pyfunc" / "doc_quality.py",
}
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
        SettingsError: If the setting names a file store, which MLflow no longer opens.
    """
    uri = load_settings().resolved_mlflow_uri()
    if uri.startswith("file:") or "://" not in uri:
        raise SettingsError(
            f"WARPGAUGE_MLFLOW_URI is {uri!r}: a file store, which MLflow 3 refuses; use sqlite:////absolute/path/mlflow.db "
            f"or a server's http address (old runs move over with `mlflow migrate-filestore --source {uri} --target sqlite:///...`)"
        )
    if uri.startswith("sqlite:///") and not uri.startswith("sqlite:////"):
        raise SettingsError(
            f"WARPGAUGE_MLFLOW_URI is {uri!r}: relative, so it would be another store in each working directory; "
            "use sqlite:////absolute/path/mlflow.db"
        )
    return uri


def ui_command() -> str:
    """The command that opens this store in the MLflow UI."""
    uri = tracking_uri()
    if uri.startswith("http"):
        return f"open {uri}"
    return f"mlflow ui --backend-store-uri {uri} --workers 1"


def old_file_store() -> str | None:
    """One line about runs of an older MLflow's file store in the artifact root; None where there are none."""
    found = sorted(str(meta.parent) for meta in mlruns_dir().glob("*/meta.yaml"))
    if not found:
        return None
    return (
        f"old file store found in {mlruns_dir()} ({len(found)} experiments); its runs are not shown: migrate with "
        f"`mlflow migrate-filestore --source {mlruns_dir()} --target {tracking_uri()}` or move them away"
    )


def connect() -> MlflowClient:
    """A client of the project's store, with the experiment made and moved artifacts found again.

    Raises:
        ServiceUnavailableError: If the store does not answer.
    """
    import logging

    import mlflow
    from mlflow import MlflowClient
    from mlflow.exceptions import MlflowException

    # Importing MLflow sets these to INFO; a new store's migrations are nobody's news.
    for chatty in ("alembic", "mlflow"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    uri = tracking_uri()
    root = mlruns_dir()
    is_local = uri.startswith("sqlite:///")
    try:
        if is_local:
            root.mkdir(parents=True, exist_ok=True)
            _reroot_artifacts(Path(uri.removeprefix("sqlite:///")), root)
        mlflow.set_tracking_uri(uri)
        mlflow.set_registry_uri(uri)
        client = MlflowClient()
        if client.get_experiment_by_name(EXPERIMENT) is None:
            _create_experiment(client, str(root / "artifacts") if is_local else None)
    except (MlflowException, OSError, sqlite3.Error, _sqlalchemy_error()) as error:
        raise ServiceUnavailableError(
            f"MLflow store {uri} did not answer: {error}; start it, free the disk or set WARPGAUGE_MLFLOW_URI"
        ) from error
    return client


def _sqlalchemy_error() -> type[Exception]:
    from sqlalchemy.exc import SQLAlchemyError

    return SQLAlchemyError


def _create_experiment(client: MlflowClient, artifact_location: str | None) -> None:
    from mlflow.exceptions import MlflowException

    try:
        client.create_experiment(EXPERIMENT, artifact_location=artifact_location)
    except MlflowException:
        # Two first runs at once: the other one made it.
        if client.get_experiment_by_name(EXPERIMENT) is None:
            raise


def _reroot_artifacts(database: Path, root: Path) -> None:
    """Point a moved store's artifact addresses at where they lie now.

    MLflow keeps absolute artifact addresses in its database, so a project folder that was moved or copied
    would load no model. An address whose old root is gone, or is not this store's, is rewritten.
    """
    if not database.exists():
        return
    artifacts = str(root / "artifacts")
    with sqlite3.connect(database, timeout=30) as connection:
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


def already_trained(model_name: str, data_versions: dict[str, int], settings_sha256: str) -> str | None:
    """The version trained on exactly these data and settings, None if there is none."""
    client = connect()
    wanted = json.dumps(data_versions, sort_keys=True)
    for version in _versions(client, model_name):
        if (
            version.tags.get("data_versions") == wanted
            and version.tags.get("settings_sha256") == settings_sha256
        ):
            return str(version.version)
    return None


def register(bundle: str) -> Registered:
    """Log a bundle as one run and one version, and give it the alias `challenger`.

    The version is made last, so a failure before it leaves a failed run and no version.

    Args:
        bundle: Folder that `tasks.training` wrote.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    folder = Path(bundle)
    facts = json.loads((folder / "bundle.json").read_text())
    name = facts["model_name"]
    client = connect()
    try:
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
        with_model = _make_version(client, name, model_uri, model_id, run.info.run_id, facts)
    except (MlflowException, OSError) as error:
        raise ServiceUnavailableError(
            f"{name}: MLflow did not take the run: {error}; nothing was registered, run the training again"
        ) from error
    return with_model


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
    facts = json.loads((folder / "bundle.json").read_text())
    client = connect()
    name = registered.model_name
    champion = alias_version(name, CHAMPION)
    verdict = judge_bundle(folder, registered.version, champion, allow_simulated)
    reasons = "; ".join(verdict.reasons)
    _tag(client, registered, "gate", verdict.outcome)
    _tag(client, registered, "gate_reasons", reasons[:5000])
    if verdict.outcome == "hold":
        _tag(client, registered, "review", "pending")
    card = model_card(_card_facts(facts, registered.version, verdict))
    client.log_text(registered.run_id, card, "model_card.md")
    client.update_model_version(
        name, registered.version, description=f"{facts['headline']}\n\nGate: {verdict.outcome}: {reasons}"
    )
    if verdict.outcome == "promote":
        _promote(client, name, registered.version)
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

    def end(self, outcome: str, why: str) -> None:
        """Keep the outcome: promoted, held, refused or failed."""
        if self._run_id is None:
            return
        client = connect()
        client.set_tag(self._run_id, "outcome", outcome)
        client.set_tag(self._run_id, "why", why[:5000])
        client.set_terminated(self._run_id, "FAILED" if outcome == "failed" else "FINISHED")


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
        made.end("failed", f"{type(error).__name__}: {error}")
        raise


def _begin_attempt(model_name: str, attempt_id: str) -> str:
    client = connect()
    tags = {"model_name": model_name, "attempt_id": attempt_id, "outcome": "running"}
    name = f"retraining of {model_name}"
    return str(client.create_run(_experiment_id(client), run_name=name, tags=tags).info.run_id)


def list_attempts() -> list[dict[str, Any]]:
    """Retrainings that the monitor asked for, newest first: `model_name`, `attempt_id`, `started_at`, `outcome`.

    One that says `running` while nobody holds the model's lease was killed: it is `failed`.
    """
    from tasks import leases

    client = connect()
    runs = client.search_runs(
        [_experiment_id(client)],
        "tags.attempt_id != ''",
        max_results=1000,
        order_by=["attributes.start_time DESC"],
    )
    found = []
    for run in runs:
        tags = run.data.tags
        outcome = tags["outcome"]
        if outcome == "running" and not leases.is_held(training_job(tags["model_name"])):
            outcome = "failed"
        started_at = datetime.fromtimestamp(run.info.start_time / 1000, UTC)
        found.append(
            {
                "model_name": tags["model_name"],
                "attempt_id": tags["attempt_id"],
                "started_at": started_at,
                "outcome": outcome,
            }
        )
    return found


def training_job(model_name: str) -> str:
    """Name of the lease under which a model is trained."""
    return f"train {model_name}"


def _experiment_id(client: MlflowClient) -> str:
    experiment = client.get_experiment_by_name(EXPERIMENT)
    assert experiment is not None, "connect() makes it"
    return str(experiment.experiment_id)


def data_version(model_name: str, version: str, table: str) -> int | None:
    """The version of a table that a model version was trained on."""
    found = _get_version(connect(), model_name, version)
    value = json.loads(found.tags.get("data_versions", "{}")).get(table)
    return None if value is None else int(value)


def log_monitor_metrics(values: dict[str, float]) -> None:
    """Add measured values to the monitor's one run."""
    client = connect()
    found = client.search_runs([_experiment_id(client)], "tags.role = 'monitor'", max_results=1)
    run_id = (
        found[0].info.run_id
        if found
        else client.create_run(
            _experiment_id(client), run_name="monitor", tags={"role": "monitor"}
        ).info.run_id
    )
    for name, value in values.items():
        client.log_metric(run_id, name, value, step=int(datetime.now(UTC).timestamp()))


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
            why = versions[0]["reasons"] if versions else "nothing was trained yet: run `warpgauge run`"
        answer.append(
            {"model_name": name, "champion": champion, "no_champion_because": why, "versions": versions}
        )
    return {"models": answer}


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


def promote(model_name: str, version: str) -> dict[str, Any]:
    """Make a version champion by a person's decision, and say so in its tags."""
    client = connect()
    found = _get_version(client, model_name, version)
    registered = Registered(model_name, str(found.version), str(found.run_id))
    _promote(client, model_name, registered.version)
    _tag(client, registered, "promoted_by", "person")
    return {"model_name": model_name, "champion": registered.version, "gate": found.tags.get("gate")}


def rollback(model_name: str) -> dict[str, Any]:
    """Give the alias champion back to the version that held it before.

    Raises:
        ModelNotFoundError: If there is no champion or no earlier one.
    """
    client = connect()
    current = _aliases(client, model_name).get(CHAMPION)
    if current is None:
        raise ModelNotFoundError(f"{model_name} has no champion, so there is nothing to roll back from")
    earlier = client.get_model_version(model_name, current).tags.get("replaced_version")
    if not earlier:
        raise ModelNotFoundError(
            f"{model_name} version {current} is the first champion; there is none to go back to"
        )
    client.set_registered_model_alias(model_name, CHAMPION, earlier)
    client.set_model_version_tag(model_name, current, "rolled_back_at", datetime.now(UTC).isoformat())
    return {"model_name": model_name, "champion": earlier, "rolled_back": current}


def alias_version(model_name: str, alias: str) -> str | None:
    """The version that an alias names, None if it names none."""
    return _aliases(connect(), model_name).get(alias)


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


def model_files(model_name: str, version: str) -> dict[str, bytes]:
    """The files of a registered version, by name.

    Raises:
        ModelNotFoundError: If the version or its artifacts are gone.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    client = connect()
    found = _get_version(client, model_name, version)
    try:
        folder = Path(mlflow.artifacts.download_artifacts(f"models:/{model_name}/{found.version}"))
    except (MlflowException, OSError) as error:
        raise ModelNotFoundError(
            f"{model_name} version {version}: its artifacts cannot be read: {error}; restore them or train again"
        ) from error
    roots = (
        [path for path in (folder / "artifacts").iterdir() if path.is_dir()]
        if (folder / "artifacts").is_dir()
        else []
    )
    if not roots:
        raise ModelNotFoundError(
            f"{model_name} version {version}: {folder} holds no model files; train again"
        )
    return {path.name: path.read_bytes() for path in sorted(roots[0].iterdir())}


def version_facts(model_name: str, version: str) -> dict[str, Any]:
    """What the training wrote about a version (its `training.json`)."""
    import mlflow

    client = connect()
    found = _get_version(client, model_name, version)
    return dict(mlflow.artifacts.load_dict(f"runs:/{found.run_id}/training.json"))


def _promote(client: MlflowClient, name: str, version: str) -> None:
    current = _aliases(client, name).get(CHAMPION)
    if current == version:
        return
    client.set_model_version_tag(name, version, "promoted_at", datetime.now(UTC).isoformat())
    if current is not None:
        client.set_model_version_tag(name, version, "replaced_version", current)
    client.delete_model_version_tag(name, version, "review")
    client.set_registered_model_alias(name, CHAMPION, version)


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
        mlflow.set_tag("nonfinite_metrics", ", ".join(omitted)[:5000])


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
    found = client.search_model_versions(f"name = '{name}'", max_results=1000)
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
        raise ServiceUnavailableError(f"MLflow did not answer about {name}: {error}") from error


def _get_version(client: MlflowClient, name: str, version: str) -> ModelVersion:
    from mlflow.exceptions import MlflowException

    try:
        if version.isdigit():
            return client.get_model_version(name, version)
        return client.get_model_version_by_alias(name, version)
    except MlflowException as error:
        known = ", ".join(str(found.version) for found in _versions(client, name)) or "none"
        raise ModelNotFoundError(f"{name} has no version {version}; known versions: {known}") from error
