"""Versions of the models in MLflow: their files, their aliases, the gate, rollback.

A trained model arrives as a bundle, a folder that `tasks/bundles.py` wrote. Nothing here is pickled:
the model's own files go in as they are, beside a Python file that serves them.
"""

from __future__ import annotations

import dataclasses
import json
import logging
import math
import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.bundles import bundle_facts
from tasks.comparison import Yardstick, judge_bundle
from tasks.tracking import PAGE_ROWS, connect, experiment_id, shorten, store_errors, without_passwords
from warpgauge.errors import ModelNotFoundError, SettingsError
from warpgauge.registry.names import (
    DOC_QUALITY,
    LAUNCH_LATENCY,
    MODEL_NAMES,
    TABLE_PREFIX,
    is_table_model,
    table_model_name,
)

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities.model_registry import ModelVersion

    from warpgauge.latency.table_spec import TableSpec
    from warpgauge.registry.gate import Verdict

LOGGER = logging.getLogger("warpgauge")
CHAMPION = "champion"
CHALLENGER = "challenger"
LONGEST_NUMBER = 19
COST_FIGURES = ("wall_s", "cpu_s", "gpu_energy_j")
RESTORE = "restore them or train again with --force"
# MLflow's error codes for a version or alias that is not there or cannot be one.
GONE = "RESOURCE_DOES_NOT_EXIST"
ABSENT = (GONE, "INVALID_PARAMETER_VALUE")
LATENCY_SCRIPT = Path(__file__).parent / "pyfunc" / "latency.py"
DOCQUALITY_SCRIPT = Path(__file__).parent / "pyfunc" / "doc_quality.py"


@dataclass(frozen=True)
class Registered:
    """One model version as the registry knows it."""

    model_name: str
    version: str
    run_id: str


@store_errors()
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
    with store_errors(f"; {name} was not registered"):
        with mlflow.start_run(
            experiment_id=experiment_id(client), run_name=f"{name} {datetime.now(UTC):%Y-%m-%d %H:%M}"
        ) as run:
            mlflow.log_params(facts["settings"])
            cost = {name: facts.get("cost", {}).get(name) for name in COST_FIGURES}
            # Energy that nobody counts is no metric gone wrong.
            known = {f"cost/{name}": value for name, value in cost.items() if value is not None}
            _log_metrics(facts["metrics"] | known)
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
            python_model=str(DOCQUALITY_SCRIPT if name == DOC_QUALITY else LATENCY_SCRIPT),
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
        "headline": shorten(facts["headline"]),
        "cost": json.dumps({**facts.get("cost", {}), "reason": facts["reason"]}),
    }
    if facts.get("table_spec"):
        # Where the monitor finds the spec again, to collect what came since.
        for key, value in facts["table_spec"].items():
            client.set_registered_model_tag(name, f"spec_{key}", value or "")
    version = client.create_model_version(
        name, source=model_uri, run_id=run_id, model_id=model_id, tags=tags, description=tags["headline"]
    )
    client.set_registered_model_alias(name, CHALLENGER, version.version)
    return Registered(name, str(version.version), run_id)


def apply_gate(bundle: str, registered: Registered, allow_simulated: bool = False) -> dict[str, Any]:
    """Compare the version with the champion on the same rows, and promote, hold or refuse it.

    Returns:
        `model_name`, `version`, `outcome` (promote, hold, refuse), `reasons`, `figures`.
    """
    from warpgauge.registry.card import model_card

    folder = Path(bundle)
    facts = bundle_facts(folder)
    name = registered.model_name
    verdict = judge_bundle(folder, registered.version, yardstick(name), allow_simulated)
    reasons = "; ".join(verdict.reasons)
    card = model_card(_card_facts(facts, registered.version, verdict))
    with store_errors(f"; {name} version {registered.version} was not judged"):
        client = connect()
        client.log_text(registered.run_id, card, "model_card.md")
        client.log_dict(registered.run_id, dataclasses.asdict(verdict), "gate.json")
        said = f"{facts['headline']}\n\nGate: {verdict.outcome}: {reasons}"
        client.update_model_version(name, registered.version, description=shorten(said))
        _tag(client, registered, "gate_reasons", shorten(reasons))
        _tag(client, registered, "gain", json.dumps(_gain(verdict)))
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


def _gain(verdict: Verdict) -> dict[str, Any]:
    """The error of the champion and of the version on the same rows."""
    figures = verdict.figures
    return {
        "metric": figures.get("metric_name"),
        "error_before": figures.get("champion_metric"),
        "error_after": figures.get("challenger_metric"),
    }


def yardstick(model_name: str) -> Yardstick | None:
    """The champion as a challenger is measured against it, None where there is none."""
    champion = alias_version(model_name, CHAMPION)
    if champion is None:
        return None
    try:
        is_simulated = bool(version_facts(model_name, champion)["is_simulated"])
        return Yardstick(champion, model_files(model_name, champion), is_simulated)
    except ModelNotFoundError as error:
        return Yardstick(champion, trouble=str(error))


# What a version is for, as its card says it.
CARD_USE = {
    "latency": {
        "intended_use": "Before a kernel of the kind that the table holds is run: how long it will take, and how sure that is.",
        "not_for": "Devices, shapes or kinds named in `never_seen`, other than as a wide guess.",
        "baseline_name": "line a + b x roofline",
    },
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


def _card_facts(facts: dict[str, Any], version: str, verdict: Verdict) -> dict[str, Any]:
    """The facts of a bundle under the names that the card uses."""
    name = facts["model_name"]
    prefix = "baseline_" if name == DOC_QUALITY else "line_"
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
        **CARD_USE[TABLE_PREFIX.rstrip("-") if is_table_model(name) else name],
        "name": name,
        "version": version,
        "predicts": facts["description"],
        "unit": facts["unit"],
        "created_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "is_simulated": facts["is_simulated"],
        "label_provenance": facts["provenance"],
        "data_versions": facts["data_versions"],
        "row_counts": facts["counts"],
        "test_set_sha256": verdict.figures.get("test_set_sha256"),
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


@store_errors()
def data_versions(model_name: str, version: str) -> dict[str, Any]:
    """What a version was trained on: table -> its version, `<table>.table` -> its identity."""
    found = _get_version(connect(), model_name, version)
    return dict(json.loads(found.tags.get("data_versions", "{}")))


@store_errors()
def list_versions() -> dict[str, Any]:
    """Each registered model with its versions, aliases and why there is no champion where there is none."""
    client = connect()
    answer: list[dict[str, Any]] = []
    for name in [*MODEL_NAMES, *_table_models(client)]:
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
                "created_at": datetime.fromtimestamp(version.creation_timestamp / 1000, UTC),
                "cost": json.loads(version.tags.get("cost", "{}")),
                "gain": json.loads(version.tags.get("gain", "{}")),
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


@store_errors()
def compare_versions(model_name: str, first: str, second: str) -> dict[str, Any]:
    """Two versions side by side.

    Returns:
        `model_name`; `versions`, as they were asked for; `metrics`, one record each; `sides`, for each version
        its number, the gate's word, `judged_rows` and `test_set_sha256` of the rows that it was judged on (null
        where the gate did not keep them), and its `data_versions`.

    Raises:
        ModelNotFoundError: If there is no such version.
    """
    client = connect()
    found = [_get_version(client, model_name, version) for version in (first, second)]
    metrics = [client.get_run(side.run_id).data.metrics if side.run_id else {} for side in found]
    return {
        "model_name": model_name,
        "versions": [first, second],
        "metrics": [
            {"metric": metric, first: metrics[0].get(metric), second: metrics[1].get(metric)}
            for metric in sorted({*metrics[0], *metrics[1]})
        ],
        "sides": [_side(client, side) for side in found],
    }


def _side(client: MlflowClient, version: ModelVersion) -> dict[str, Any]:
    figures = _gate_figures(client, version)
    return {
        "version": str(version.version),
        "gate": version.tags.get("gate"),
        "judged_rows": figures.get("challenger_rows"),
        "test_set_sha256": figures.get("test_set_sha256"),
        "data_versions": json.loads(version.tags.get("data_versions", "{}")),
    }


def _gate_figures(client: MlflowClient, version: ModelVersion) -> dict[str, Any]:
    """Figures of the verdict, none where the version was not judged or its `gate.json` is gone."""
    if "gate" not in version.tags:
        return {}
    try:
        return dict(_run_document(client, version, "gate.json")["figures"])
    except ModelNotFoundError as error:
        LOGGER.warning("%s", error)
        return {}


@store_errors()
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


@store_errors()
def rollback(model_name: str) -> dict[str, Any]:
    """Give the alias champion back to the version that held it before; again, to the one before that.

    A version that was rolled back is not gone back to.

    Raises:
        ModelNotFoundError: If there is no champion or no earlier one.
    """
    client = connect()
    _check_name(client, model_name)
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


@store_errors()
def alias_version(model_name: str, alias: str) -> str | None:
    """The version that an alias names, None if it names none."""
    return _aliases(connect(), model_name).get(alias)


@store_errors()
def serving_version(model_name: str) -> tuple[str, bool]:
    """The version that answers: the champion, or without one the challenger.

    Returns:
        The version and whether it was promoted.

    Raises:
        ModelNotFoundError: If there is neither.
    """
    client = connect()
    _check_name(client, model_name)
    aliases = _aliases(client, model_name)
    if CHAMPION in aliases:
        return aliases[CHAMPION], True
    if CHALLENGER in aliases:
        return aliases[CHALLENGER], False
    raise ModelNotFoundError(f"no {model_name} model is registered; train one with `warpgauge run`")


@store_errors()
def model_files(model_name: str, version: str) -> dict[str, bytes]:
    """The files of a registered version, by name.

    Raises:
        ModelNotFoundError: If the version or its artifacts are gone.
        ServiceUnavailableError: If they cannot be fetched now.
    """
    found = _get_version(connect(), model_name, version)
    with _fetched(f"models:/{model_name}/{found.version}/artifacts", found, "artifacts") as folder:
        files = {path.name: path.read_bytes() for path in folder.glob("*/*") if path.is_file()}
    if not files:
        raise ModelNotFoundError(
            f"{model_name} version {version}: its artifacts hold no model file; {RESTORE}"
        )
    return files


@store_errors()
def version_facts(model_name: str, version: str) -> dict[str, Any]:
    """What the training wrote about a version (its `training.json`).

    Raises:
        ModelNotFoundError: If the version or what was written about it is gone or damaged.
        ServiceUnavailableError: If it cannot be fetched now.
    """
    client = connect()
    return _run_document(client, _get_version(client, model_name, version), "training.json")


def _run_document(client: MlflowClient, version: ModelVersion, file: str) -> dict[str, Any]:
    """A JSON document of the run that made a version."""
    from mlflow.exceptions import MlflowException

    # Not by `runs:/`: for that MLflow calls whatever went wrong, a store that is away too, a wrong path.
    try:
        root = client.get_run(str(version.run_id)).info.artifact_uri
    except MlflowException as error:
        if error.error_code not in ABSENT:
            raise
        raise _lost(version, file, error) from error
    with _fetched(f"{root}/{file}", version, file) as path:
        text = path.read_bytes()
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError) as error:
        raise _lost(version, file, error) from error


@contextmanager
def _fetched(address: str, version: ModelVersion, what: str) -> Iterator[Path]:
    """A copy of a version's artifacts while the block runs: MLflow leaves its own copies lying about.

    Raises:
        ModelNotFoundError: If they are not there. A store that is away is another error: they may come back.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    with tempfile.TemporaryDirectory(prefix="warpgauge-model-") as copy:
        try:
            path = Path(mlflow.artifacts.download_artifacts(address, dst_path=copy))
        except FileNotFoundError as error:
            raise _lost(version, what, error) from error
        except MlflowException as error:
            # A server's "not found" comes without a code of its own, so the store is asked once more.
            if error.error_code != GONE and _is_listed(address):
                raise
            raise _lost(version, what, error) from error
        yield path


def _is_listed(address: str) -> bool:
    import mlflow

    folder, _, name = address.rpartition("/")
    listed = mlflow.artifacts.list_artifacts(artifact_uri=folder)
    return name in {Path(file.path).name for file in listed}


def _lost(version: ModelVersion, what: str, error: Exception) -> ModelNotFoundError:
    said = without_passwords(str(error))
    return ModelNotFoundError(
        f"{version.name} version {version.version}: its {what} cannot be read: {said}; {RESTORE}"
    )


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
        mlflow.set_tag("nonfinite_metrics", shorten(", ".join(omitted)))


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
        if error.error_code == GONE:
            return {}
        raise


def _check_name(client: MlflowClient, name: str) -> None:
    if name not in MODEL_NAMES and name not in (tables := _table_models(client)):
        raise ModelNotFoundError(
            f"there is no model {name!r}; the models are {', '.join([*MODEL_NAMES, *tables])}"
        )


def _table_models(client: MlflowClient) -> list[str]:
    """Models of latency tables, in the order of their names."""
    found = client.search_registered_models(f"name LIKE '{TABLE_PREFIX}%'", max_results=PAGE_ROWS)
    return sorted(model.name for model in found)


@store_errors()
def table_models() -> dict[str, dict[str, str]]:
    """Models of latency tables -> their spec: `table`, its path, and `folder` of its files, empty for its own."""
    client = connect()
    found = {}
    for name in _table_models(client):
        tags = client.get_registered_model(name).tags
        if "spec_path" in tags:
            found[name] = {"table": tags["spec_path"], "folder": tags.get("spec_folder", "")}
    return found


def model_spec(model_name: str, table: str, folder: str | None = None) -> TableSpec:
    """The spec of a model's latency table.

    Args:
        model_name: Whose table it must describe.
        table: The spec file.
        folder: Where the files of the spec lie; empty for the spec's own folder.

    Raises:
        SourceFileError, SettingsError: If it is gone or wrong, or describes the table of another model.
    """
    from warpgauge.latency.table_spec import read_table_spec

    spec = read_table_spec(table, folder or None)
    if table_model_name(spec.scheme.name) != model_name:
        raise SettingsError(
            f"{spec.path} describes the table {spec.scheme.name}, which is not the one of {model_name}; "
            f"put that spec back, or train the other one by `warpgauge train latency --table {shlex.quote(table)}`"
        )
    return spec


def _get_version(client: MlflowClient, name: str, version: str) -> ModelVersion:
    """A version by number or alias."""
    from mlflow.exceptions import MlflowException

    _check_name(client, name)
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
