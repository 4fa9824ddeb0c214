"""What the registered model versions need, so that nothing of it is ever forgotten: table versions, runs, files.

A version says in its tags which version of each table it was trained on. The monitor and the next training read that
very version to tell the rows that it has seen from those that came since, so it must stay readable.
"""

from __future__ import annotations

import logging
import re
from collections import defaultdict
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any

from tasks import leases, registration
from tasks.attempts import training_job
from tasks.storage import Store, table_known_by
from tasks.tracking import PAGE_ROWS, connect, store_errors
from warpgauge.errors import ModelNotFoundError
from warpgauge.registry.names import MODEL_NAMES

if TYPE_CHECKING:
    from mlflow.entities.model_registry import ModelVersion

LOGGER = logging.getLogger("warpgauge")
_MODEL_ID = re.compile(r"m-[0-9a-f]{32}")
# What a latency training looked back to, as its record names it: rows that it took for old, rows that it left out.
LOOKED_BACK = ("known_version", "since_version")


@dataclass
class Needs:
    """What must stay.

    Attributes:
        since: What was replaced at this time or later may be in use by a reader or a training.
        tables: Table -> version -> the model versions that need it.
        run_ids, model_ids: Of MLflow: behind a registered version of any model.
        studies: Searches whose best settings a registered version has.
    """

    since: datetime
    tables: dict[str, dict[int, list[str]]] = field(default_factory=dict)
    run_ids: set[str] = field(default_factory=set)
    model_ids: set[str] = field(default_factory=set)
    studies: set[str] = field(default_factory=set)


def find_needs(now: datetime, grace_hours: float) -> Needs:
    """What the registered versions and the trainings at work need.

    Raises:
        ServiceUnavailableError: If the registry or the leases cannot be read: then nothing may be forgotten.
    """
    store = Store()
    # Before the registry is read: a training that registers its version meanwhile is counted at least once.
    needs = Needs(_undisturbed_since(store, now, grace_hours))
    tables: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
    for version in _all_versions():
        if version.run_id:
            needs.run_ids.add(version.run_id)
        needs.model_ids |= set(_MODEL_ID.findall(f"{version.source} {getattr(version, 'model_id', None)}"))
        if "data_versions" not in version.tags:
            continue
        trained = registration.data_versions(version.name, str(version.version))
        names = [
            name
            for name in trained
            # A table that was made anew counts its versions from 0 again, and they mean other rows.
            if "." not in name and trained.get(f"{name}.table") == store.table_id(table_known_by(name))
        ]
        who = f"{version.name} version {version.version}"
        for name in names:
            tables[name][int(trained[name])].append(who)
        try:
            facts = registration.version_facts(version.name, str(version.version))
        except ModelNotFoundError as error:
            # Its tags have said what it was trained on.
            LOGGER.warning("%s", error)
            continue
        needs.studies |= {str((facts.get("search") or {}).get("study"))} - {"None"}
        for name, looked_back in ((names[0], facts.get(back)) for back in LOOKED_BACK if names):
            if looked_back is not None:
                tables[name][int(looked_back)].append(who)
    needs.tables = {
        name: {number: sorted(set(who)) for number, who in found.items()} for name, found in tables.items()
    }
    return needs


@store_errors()
def _all_versions() -> list[ModelVersion]:
    client = connect()
    page: Any = client.search_model_versions(max_results=PAGE_ROWS)
    found = list(page)
    while page.token:
        page = client.search_model_versions(max_results=PAGE_ROWS, page_token=page.token)
        found += page
    return found


def _undisturbed_since(store: Store, now: datetime, grace_hours: float) -> datetime:
    """The grace before now, or the start of a training that still runs and began before it."""
    times = [now - timedelta(hours=grace_hours)]
    jobs = {training_job(name) for name in [*MODEL_NAMES, *registration.table_models()]}
    for job, acquired_at in store.read("leases").select("job", "acquired_at").collect().iter_rows():
        if job in jobs and leases.is_held(job):
            times.append(acquired_at)
    return min(times)
