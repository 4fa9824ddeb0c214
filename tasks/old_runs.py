"""What MLflow may forget: runs that no model version refers to, models that were never registered, old metrics.

A failed registration leaves a run and its artifacts, each retraining that the monitor asked for leaves a run, and the
monitor's one run grows by a value a signal every few minutes. A run behind a registered version of any model stays,
and so do the trials of the search that it took its settings from.
"""

from __future__ import annotations

import logging
import shutil
import sqlite3
from contextlib import closing
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tasks.compaction import BYTES_PER_MB, Item, check_retention, folder_bytes
from tasks.needs import Needs
from tasks.storage import mlruns_dir
from tasks.tracking import PAGE_ROWS, connect, experiment_id, shown_uri, store_errors, tracking_uri
from warpgauge.settings import load_settings

if TYPE_CHECKING:
    from mlflow import MlflowClient
    from mlflow.entities import LoggedModel, Run

LOGGER = logging.getLogger("warpgauge")
SQLITE = "sqlite:///"
# Marks what was given up here, so that what a person deleted in the MLflow UI stays in its bin.
MARK = "warpgauge.compacted"
DAY_MS = 24 * 3600 * 1000
# Rewriting the database costs as much disk again as it holds, so it must be worth it.
LEAST_FREE_RATIO, LEAST_FREE_BYTES = 0.2, 1_000_000


def compact_runs(needs: Needs, dry_run: bool = False, now: datetime | None = None) -> dict[str, Any]:
    """Forget runs, models and metrics that are old and that no registered version refers to.

    Of a server's store they are only moved to its bin: `mlflow gc` on the server empties it.

    Args:
        needs: Of `tasks.needs.find_needs`.
        dry_run: Change nothing, only count.
        now: Default is the clock's.

    Returns:
        `items` and `refused`, as `tasks.compaction.summarize` takes them.

    Raises:
        ServiceUnavailableError: If MLflow's store is away, full or locked.
    """
    settings = load_settings()
    check_retention(settings)
    now = now or datetime.now(UTC)
    is_local = tracking_uri().startswith(SQLITE)
    artifacts = mlruns_dir() / "artifacts"
    database = Path(tracking_uri().removeprefix(SQLITE))
    size = folder_bytes(artifacts) + folder_bytes(database) if is_local else 0
    item = Item(f"MLflow {shown_uri()}", size, size)
    refused: list[str] = []
    cutoff_ms = _milliseconds(now - timedelta(days=settings.retention_history_days))
    with store_errors("; old runs are still there"):
        client = connect()
        runs = [run for run in _runs(client) if _is_old(run, cutoff_ms, needs)]
        models = [
            model
            for model in _logged_models(client)
            if model.model_id not in needs.model_ids and model.creation_timestamp < cutoff_ms
        ]
        if not dry_run:
            _give_up(client, runs, models)
            if is_local:
                _remove_for_good(client, artifacts)
    if runs or models:
        item.removed.append(
            f"{len(runs)} runs and {len(models)} models older than {settings.retention_history_days:g} days"
            + ("" if is_local else ", to the server's bin; `mlflow gc` there empties it")
        )
    if needs.run_ids:
        item.kept.append(f"{len(needs.run_ids)} runs of registered versions, with their artifacts")
    if is_local:
        metrics_before_ms = _milliseconds(now - timedelta(days=settings.retention_samples_days))
        thinned, busy = _thin_metrics(database, metrics_before_ms, dry_run)
        if thinned:
            item.removed.append(
                f"{thinned} values of the monitor older than {settings.retention_samples_days:g} days, all but the "
                "last of each day"
            )
        item.kept += busy
        item.after_bytes = size if dry_run else folder_bytes(artifacts) + folder_bytes(database)
    return {"items": [asdict(item)], "refused": refused}


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)


def _runs(client: MlflowClient) -> list[Run]:
    """The project's active runs, oldest first."""
    found: list[Run] = []
    page: Any = None
    while page is None or page.token:
        page = client.search_runs(
            [experiment_id(client)],
            max_results=PAGE_ROWS,
            order_by=["attributes.start_time ASC"],
            page_token=None if page is None else page.token,
        )
        found += page
    return found


def _is_old(run: Run, cutoff_ms: int, needs: Needs) -> bool:
    """Whether a run ended, or began and never ended, before that time and nothing refers to it."""
    tags = run.data.tags
    return (
        (run.info.end_time or run.info.start_time) < cutoff_ms
        and run.info.run_id not in needs.run_ids
        and tags.get("role") != "monitor"
        and tags.get("study") not in needs.studies
    )


def _logged_models(client: MlflowClient) -> list[LoggedModel]:
    found: list[LoggedModel] = []
    page: Any = None
    while page is None or page.token:
        page = client.search_logged_models(
            [experiment_id(client)], page_token=None if page is None else page.token
        )
        found += page
    return found


def _give_up(client: MlflowClient, runs: list[Run], models: list[LoggedModel]) -> None:
    """Move runs and models to MLflow's bin, marked as ours."""
    for run in runs:
        client.set_tag(run.info.run_id, MARK, "true")
        client.delete_run(run.info.run_id)
    for model in models:
        client.set_logged_model_tags(model.model_id, {MARK: "true"})
        client.delete_logged_model(model.model_id)


def _remove_for_good(client: MlflowClient, root: Path) -> None:
    """Empty the bin of what was given up here: artifacts first, so that a killed process leaves no orphan of them."""
    from mlflow.entities import ViewType
    from mlflow.tracking._tracking_service.utils import _get_store

    # What `mlflow gc` does, which would also remove what a person deleted.
    store: Any = _get_store()  # type: ignore[no-untyped-call]
    ours = ([experiment_id(client)], f"tags.`{MARK}` = 'true'", ViewType.DELETED_ONLY, PAGE_ROWS)
    while deleted := store.search_runs(*ours):
        for run in deleted:
            _remove_artifacts(run.info.artifact_uri, root)
            store._hard_delete_run(run.info.run_id)
    for model_id in store._get_deleted_logged_models():
        model = store.get_logged_model(model_id, allow_deleted=True)
        if model.tags.get(MARK) == "true":
            _remove_artifacts(model.artifact_location, root)
            store._hard_delete_logged_model(model_id)


def _remove_artifacts(address: str, root: Path) -> None:
    """Remove a folder of artifacts that lies under the project's own root; elsewhere is somebody else's."""
    place = Path(address.removeprefix("file://"))
    # A run's artifacts lie in a folder of its id.
    if place.name == "artifacts":
        place = place.parent
    if place.is_relative_to(root) and place != root:
        shutil.rmtree(place, ignore_errors=True)
    else:
        LOGGER.warning("artifacts in %s lie outside of %s and were left there", address, root)


def _thin_metrics(database: Path, before_ms: int, dry_run: bool) -> tuple[int, list[str]]:
    """Of the monitor's old values keep the last of each signal and day; how many went, and what could not be done."""
    old = (
        "FROM metrics WHERE timestamp < :before AND run_uuid IN "
        "(SELECT run_uuid FROM tags WHERE key = 'role' AND value = 'monitor') AND rowid NOT IN "
        "(SELECT rowid FROM (SELECT rowid, row_number() OVER (PARTITION BY run_uuid, key, timestamp / :day "
        "ORDER BY timestamp DESC, rowid DESC) AS place FROM metrics) WHERE place = 1)"
    )
    values = {"before": before_ms, "day": DAY_MS}
    busy: list[str] = []
    with store_errors(), closing(sqlite3.connect(database, timeout=30)) as connection:
        if dry_run:
            return int(connection.execute(f"SELECT count(*) {old}", values).fetchone()[0]), busy
        with connection:
            thinned = connection.execute(f"DELETE {old}", values).rowcount
        (pages,), (free,), (page_bytes,) = (
            connection.execute(f"PRAGMA {name}").fetchone()
            for name in ("page_count", "freelist_count", "page_size")
        )
        if free >= LEAST_FREE_RATIO * pages and free * page_bytes >= LEAST_FREE_BYTES:
            try:
                connection.execute("VACUUM")
            except sqlite3.OperationalError as error:
                # The space is used again by what comes next; only the file does not shrink now.
                busy.append(
                    f"{free * page_bytes / BYTES_PER_MB:.1f} MB free inside the database, which could not be rewritten "
                    f"now ({error})"
                )
    return thinned, busy
