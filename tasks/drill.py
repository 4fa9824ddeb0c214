"""Rehearsals of drift: a store of its own, data that change, and a timeline of what the product did about it."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import polars as pl

from tasks import deployment, registration
from tasks.storage import Store, cache_dir
from warpgauge.drift import rehearsal
from warpgauge.drift.rehearsal import Moment
from warpgauge.drift.verdict import nearness
from warpgauge.errors import ServiceUnavailableError, SettingsError
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY

MODELS = {"latency": LAUNCH_LATENCY, "docquality": DOC_QUALITY}
PICTURE = "timeline.png"
# Before the monitor's window begins to matter: rows of the first training are no news to it.
FIRST, UNCHANGED, SHIFTED, AFTER = range(1, 5)


@contextmanager
def own_store(folder: str | None = None) -> Iterator[Path]:
    """A store that only the rehearsal uses, for as long as the block runs.

    Tables, registry, Prefect server and everything that would tell somebody are its own: a rehearsal must not page
    anybody, nor start a deployment of the real server.

    Args:
        folder: Where it lies; None makes a new one in the cache. It must be empty or not be there.

    Raises:
        SettingsError: If something lies in the folder, or Prefect was set up with a server before.
    """
    if "prefect" in sys.modules and deployment.server_url() is not None:
        raise SettingsError(
            "a rehearsal needs a process without a Prefect server: unset PREFECT_API_URL, or use `warpgauge drill`"
        )
    place = _place(folder)
    mine = {
        "WARPGAUGE_DATA_DIR": str(place / "data"),
        "WARPGAUGE_MLFLOW_URI": f"sqlite:///{place / 'mlruns' / 'mlflow.db'}",
        "PREFECT_HOME": str(place / "prefect"),
        "WARPGAUGE_MONITOR_REARM_MINUTES": "0",
    }
    silent = ("PREFECT_API_URL", "PREFECT_PROFILE", "WARPGAUGE_ALERT_WEBHOOK_URL")
    before = {name: os.environ.get(name) for name in (*mine, *silent)}
    os.environ.update(mine)
    for name in silent:
        os.environ.pop(name, None)
    try:
        yield place
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _place(folder: str | None) -> Path:
    if folder is None:
        place = cache_dir("drills") / f"{datetime.now(UTC):%Y%m%dT%H%M%S}-{os.getpid()}"
    else:
        place = Path(folder).expanduser().resolve()
        if place.exists() and (not place.is_dir() or any(place.iterdir())):
            raise SettingsError(f"{place} is not empty; a rehearsal needs a folder of its own")
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ServiceUnavailableError(f"{place} cannot be made: {error}; choose another folder") from error
    return place


class Timeline:
    """What happened in a rehearsal, and when."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.model_name = MODELS[kind]
        self._start = time.monotonic()
        self.moments: list[Moment] = []

    def tell(self, what: str, said: str, readings: Mapping[str, float] | None = None) -> None:
        """Add a line."""
        self.moments.append(Moment(time.monotonic() - self._start, what, said, dict(readings or {})))

    def trained(self, verdict: Mapping[str, Any]) -> None:
        """Add what a training ended with."""
        self.tell(
            f"version {verdict.get('version')}: {verdict.get('outcome', 'not trained')}",
            verdict.get("headline") or verdict.get("why") or "; ".join(verdict.get("reasons", [])),
        )

    def monitored(self, result: Mapping[str, Any]) -> None:
        """Add a round of the monitor, and the retrainings that it ended with."""
        mine = [row for row in result["decisions"] if row["model_name"] == self.model_name]
        tripped = [row["signal"] for row in mine if nearness(row) > 1]
        ordered = [row for row in mine if row["action"] in ("retrain", "review")]
        said = "; ".join(row["reason"] for row in (ordered or mine))
        # A retraining runs inside the round, so the round is told as of its begin where one was ordered.
        what = f"monitor: {', '.join(tripped)} tripped" if tripped else "monitor: quiet"
        readings = {row["signal"]: nearness(row) for row in mine if _has_limit(row)}
        self.tell(what, said, readings)
        for order in result["retrained"]:
            self.tell(
                f"retrained: {order['outcome'].split(':')[0]}", f"{order['reason']}; {order['outcome']}"
            )


def _has_limit(row: Mapping[str, Any]) -> bool:
    """Whether there is a number and what to compare it with."""
    return row["value"] is not None and bool(row["limit"])


def add_rows(kind: str, stage: int) -> str:
    """Put the rows of a stage into the tables, as their collectors would; say what they are."""
    store = Store()
    now = pl.lit(datetime.now(UTC))
    is_shifted = stage >= SHIFTED
    if kind == "latency":
        rows = rehearsal.rehearsed_launches(stage, is_shifted=is_shifted)
        store.append("launches", rows.with_columns(now.alias("collected_at")))
        how = (
            f", {rehearsal.SLOWED_GPU} now with CUDA {rehearsal.OTHER_CUDA_VERSION} and a quarter slower"
            if is_shifted
            else ""
        )
        return f"{rows.height} simulated launches of 2 GPUs{how}"
    count = rehearsal.FIRST_REPORTS if stage == FIRST else rehearsal.MORE_REPORTS
    # All of the new ones are about the other area; those after them come as training then knew them.
    ratio = {SHIFTED: 1.0, AFTER: 0.25}.get(stage, 0.0)
    batch = rehearsal.rehearsed_reports(stage, count, ratio)
    store.append("documents", batch.documents.with_columns(now.alias("fetched_at")))
    if stage == FIRST:
        store.append("labels", batch.labels.with_columns(now.alias("labelled_at")))
    how = f", {ratio:.0%} of them about another product area" if ratio else ""
    return f"{batch.documents.height} simulated reports{how}"


def answer_review() -> str:
    """Answer every queued report as its maker labelled it, through the files that people use; say how many."""
    from tasks import review

    folder = Path(Store().address).parent
    exported = review.export_queue(str(folder / "review.csv"))
    if not exported["documents"]:
        return "no report waits for a person"
    known = rehearsal.rehearsed_reports(SHIFTED, rehearsal.MORE_REPORTS, 1.0).labels
    queue = pl.read_csv(folder / "review.csv", infer_schema=False).join(
        known.select("document_id", "is_defect", kind=pl.col("kinds").list.first()),
        on="document_id",
        how="left",
        maintain_order="left",
    )
    queue.with_columns(
        pl.when("is_defect")
        .then(pl.lit("defect"))
        .when(~pl.col("is_defect"))
        .then(pl.lit("ok"))
        .alias("verdict"),
        pl.col("kind").alias("kinds"),
        pl.lit("rehearsal").alias("annotator"),
    ).drop("is_defect", "kind").write_csv(folder / "answers.csv")
    imported = review.import_labels([str(folder / "answers.csv")])
    return f"{imported['files'][0]['added']} of {exported['documents']} queued reports answered"


def summarize(timeline: Timeline, last_round: Mapping[str, Any]) -> dict[str, Any]:
    """The rehearsal's result, its picture drawn beside its store.

    Returns:
        `moments`; `champion`, the version that holds the alias now; `is_quiet`; `picture`, `store`; and in `refused`
        what a rehearsal should end with and this one did not.
    """
    champion = registration.alias_version(timeline.model_name, registration.CHAMPION)
    mine = [row for row in last_round["decisions"] if row["model_name"] == timeline.model_name]
    tripped = [row["signal"] for row in mine if nearness(row) > 1]
    measured = [row["signal"] for row in mine if _has_limit(row)]
    refused = []
    if champion in (None, "1"):
        refused.append(
            f"no new version of {timeline.model_name} was promoted: champion is {champion or 'none'}"
        )
    if tripped or not measured:
        refused.append(
            f"the monitor is not quiet at the end: {', '.join(tripped) + ' tripped' if tripped else 'nothing was measured'}"
        )
    picture = Path(Store().address).parent / PICTURE
    figure = rehearsal.draw_timeline(f"Rehearsal of {timeline.model_name}", timeline.moments)
    try:
        figure.savefig(picture, dpi=110)
    except OSError as error:
        raise ServiceUnavailableError(f"{picture} cannot be written: {error}; free the disk") from error
    return {
        "kind": timeline.kind,
        "model_name": timeline.model_name,
        "moments": [vars(moment) for moment in timeline.moments],
        "champion": champion,
        "is_quiet": not tripped and bool(measured),
        "picture": str(picture),
        "store": Store().address,
        "refused": refused,
    }
