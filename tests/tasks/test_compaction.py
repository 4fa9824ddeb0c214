"""The store stays small, and no registered version loses what it needs, whatever happens meanwhile."""

import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import attempts, compaction, leases, monitoring, needs, old_runs, registration, tracking
from tasks.needs import Needs
from tasks.registration import CHAMPION
from tasks.storage import Store, cache_dir
from warpgauge.errors import ServiceUnavailableError, SettingsError
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY, MODEL_NAMES
from warpgauge.tables import DECISIONS, LABELS, QUARANTINE, REVIEW_QUEUE, TABLES

ROOT = Path(__file__).resolve().parents[2]
NOW = datetime(2026, 6, 1, tzinfo=UTC)
# Everything that was written until now is old, whatever the clock says.
LATER = datetime.now(UTC) + timedelta(days=2)
NOTHING = Needs(LATER)


@pytest.fixture(autouse=True)
def _no_grace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPGAUGE_RETENTION_GRACE_HOURS", "0")


def samples(first_day: float, count: int = 10, gpu: str = "GPU-a") -> pl.DataFrame:
    """Samples a minute apart, from so many days before NOW."""
    return pl.DataFrame(
        {
            "gpu_uuid": [gpu] * count,
            "sampled_at": [NOW - timedelta(days=first_day) + timedelta(minutes=m) for m in range(count)],
            "source_kind": ["nvml"] * count,
            "source_name": ["test"] * count,
            "collected_at": [NOW] * count,
            "utilization_percent": [50.0] * count,
        }
    )


def digest(store: Store, name: str, version: int | None = None) -> str:
    """One hash of the rows of a table, in any order."""
    rows = store.read(name, version).collect().select(pl.all().cast(pl.String, strict=False).fill_null("-"))
    return hashlib.sha256("\n".join(sorted(map(str, rows.iter_rows()))).encode()).hexdigest()


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def compact(dry_run: bool = False, now: datetime | None = None) -> dict[str, Any]:
    """As the flow does it, without Prefect."""
    copies = compaction.shrink_copies(dry_run, now)
    with compaction.alone(dry_run):
        needed = compaction.list_needs(now)
        tables = compaction.compact_tables(needed, dry_run, now)
        runs = old_runs.compact_runs(needed, dry_run, now)
    return compaction.summarize(dry_run, copies, tables, runs)


def removed(answer: dict[str, Any], what: str) -> str:
    return "; ".join(next(item["removed"] for item in answer["items"] if item["what"] == what))


# What a version of a table needs


def grown(store: Store, commits: int = 12) -> dict[int, str]:
    """A table of so many commits; version -> the rows it has."""
    found = {}
    for place in range(commits):
        version = store.append("gpu_samples", samples(place)).version
        found[version] = digest(store, "gpu_samples", version)
    return found


def test_needed_versions_read_the_same_rows_and_the_others_are_gone(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    before = grown(store)
    assert store.merge_small_files("gpu_samples", 1) == 12
    newest = digest(store, "gpu_samples")
    forgotten = store.forget_versions("gpu_samples", [2, 7], LATER)
    assert forgotten.unreadable == ()
    assert forgotten.file_count > 12
    assert {version: digest(store, "gpu_samples", version) for version in (2, 7)} == {
        version: before[version] for version in (2, 7)
    }
    assert digest(store, "gpu_samples") == newest == before[12]
    with pytest.raises(ServiceUnavailableError, match="gpu_samples"):
        store.read("gpu_samples", 5)
    # The files of version 7, the merged one, and nothing else.
    assert len(list((tmp_path / "gpu_samples").glob("*.parquet"))) == 7 + 1


def test_table_goes_on_after_its_old_versions_are_forgotten(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    before = grown(store)
    table_id = store.table_id("gpu_samples")
    for _ in range(3):
        store.merge_small_files("gpu_samples", 1)
        store.forget_versions("gpu_samples", [2, 7], LATER)
        assert store.append("gpu_samples", samples(3)).added == 0
        assert store.append("gpu_samples", samples(100 + store.version("gpu_samples"))).added == 10
    (tmp_path / "gpu_samples" / "_delta_log" / "_last_checkpoint").unlink()
    assert store.read("gpu_samples").collect().height == 150
    assert digest(store, "gpu_samples", 2) == before[2]
    assert digest(store, "gpu_samples", 7) == before[7]
    assert store.table_id("gpu_samples") == table_id


def test_versions_of_the_grace_stay_with_all_they_read(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    before = grown(store)
    log = tmp_path / "gpu_samples" / "_delta_log"
    long_ago = time.time() - 10 * 24 * 3600
    for version in range(6):
        os.utime(log / f"{version:020}.json", (long_ago, long_ago))
    store.merge_small_files("gpu_samples", 1)
    forgotten = store.forget_versions("gpu_samples", [], datetime.now(UTC) - timedelta(days=1))
    assert forgotten.file_count == 5
    assert forgotten.waiting_bytes > 0
    assert all(digest(store, "gpu_samples", version) == before[version] for version in range(5, 13))
    with pytest.raises(ServiceUnavailableError, match="gpu_samples"):
        store.read("gpu_samples", 4)


def test_version_that_is_lost_already_is_named_and_stops_nothing(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    before = grown(store)
    store.forget_versions("gpu_samples", [7], LATER)
    assert store.forget_versions("gpu_samples", [3, 7], LATER).unreadable == (3,)
    assert digest(store, "gpu_samples", 7) == before[7]


@pytest.mark.parametrize("deletions", [0, 1, 2, 5, 9, 14])
def test_process_that_is_killed_while_it_forgets_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, deletions: int
) -> None:
    from pyarrow.fs import PyFileSystem

    store = Store(str(tmp_path))
    before = grown(store)
    store.merge_small_files("gpu_samples", 1)
    whole = storage_files_delete(monkeypatch, deletions)
    with pytest.raises(KeyboardInterrupt):
        store.forget_versions("gpu_samples", [2, 7], LATER)
    monkeypatch.setattr("tasks.storage._file_system", whole)
    assert isinstance(whole(str(tmp_path / "gpu_samples")), PyFileSystem)
    for _ in range(2):
        assert digest(store, "gpu_samples", 2) == before[2]
        assert digest(store, "gpu_samples", 7) == before[7]
        assert digest(store, "gpu_samples") == before[12]
        store.forget_versions("gpu_samples", [2, 7], LATER)
    assert len(list((tmp_path / "gpu_samples").glob("*.parquet"))) == 7 + 1


def storage_files_delete(monkeypatch: pytest.MonkeyPatch, allowed: int) -> Callable[[str], Any]:
    """Let so many files be deleted, then end as a killed process does; the file system as it was."""
    from tasks import storage

    whole = storage._file_system

    class Doomed:
        def __init__(self, uri: str) -> None:
            self.files = whole(uri)
            self.get_file_info = self.files.get_file_info
            self.left = allowed

        def delete_file(self, path: str) -> None:
            if not self.left:
                raise KeyboardInterrupt
            self.left -= 1
            self.files.delete_file(path)

    monkeypatch.setattr(storage, "_file_system", Doomed)
    return whole


def test_file_of_a_writer_that_was_killed_goes_once_it_is_old(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    grown(store, 2)
    old, young = (tmp_path / "gpu_samples" / f"part-{age}.parquet" for age in ("old", "young"))
    for orphan in (old, young):
        orphan.write_bytes(b"PAR1")
    long_ago = time.time() - 3 * 24 * 3600
    os.utime(old, (long_ago, long_ago))
    store.forget_versions("gpu_samples", [], datetime.now(UTC) - timedelta(days=1))
    assert young.exists()
    assert not old.exists()
    assert store.read("gpu_samples").collect().height == 20


# What is dropped


@pytest.mark.parametrize(
    ("setting", "value", "other", "needed"),
    [("SAMPLES_DAYS", "7", "WINDOW_HOURS", "168"), ("HISTORY_DAYS", "31", "COOLDOWN_MINUTES", "50000")],
)
def test_retention_shorter_than_what_the_monitor_reads_is_refused_by_name(
    project: Path, monkeypatch: pytest.MonkeyPatch, setting: str, value: str, other: str, needed: str
) -> None:
    monkeypatch.setenv(f"WARPGAUGE_RETENTION_{setting}", value)
    monkeypatch.setenv(f"WARPGAUGE_MONITOR_{other}", needed)
    Store().append("gpu_samples", samples(100))
    with pytest.raises(SettingsError, match=f"RETENTION_{setting} is {value}"):
        compaction.compact_tables(NOTHING, now=NOW)
    with pytest.raises(SettingsError, match=setting):
        compaction.shrink_copies(now=NOW)
    assert Store().read("gpu_samples").collect().height == 10


def test_old_samples_go_and_a_version_that_holds_them_still_reads(project: Path) -> None:
    store = Store()
    store.append("gpu_samples", samples(8))
    held = store.append("gpu_samples", samples(6)).version
    store.append("gpu_samples", samples(0.5))
    before = digest(store, "gpu_samples", held)
    need = Needs(LATER, {"gpu_samples": {held: ["someone"]}})
    answer = compaction.compact_tables(need, now=NOW)
    assert answer["items"][0]["removed"][0] == "10 rows older than 7 days"
    left = store.read("gpu_samples").collect()
    assert left.height == 20
    assert left["sampled_at"].min() > NOW - timedelta(days=7)
    assert digest(store, "gpu_samples", held) == before
    assert answer["items"][0]["kept"][-1] == f"versions that models were trained on: {held}"
    again = compaction.compact_tables(need, now=NOW)
    assert again["items"][0]["removed"] == []


def decision(age_days: float, subject: str, episode: str | None = None) -> dict[str, Any]:
    return {
        "decision_id": f"{subject}-{age_days}",
        "monitor_run_id": "run",
        "decided_at": NOW - timedelta(days=age_days),
        "signal": "residuals",
        "subject": subject,
        "status": "measured",
        "sample_count": 1,
        "action": "none",
        "reason": "it's so",
        "episode_id": episode,
        "state": "{}",
    }


def test_decisions_of_open_episodes_and_the_last_on_each_signal_stay(project: Path) -> None:
    store = Store()
    rows = [
        *(decision(age, "quiet") for age in (200, 100, 89, 1)),
        *(decision(age, "gone") for age in (300, 200)),
        *(decision(age, "open's", "e'1") for age in (200, 100, 1)),
        *(decision(age, "closed", "e2") for age in (200, 150)),
        decision(1, "closed"),
    ]
    store.append("decisions", DECISIONS.conform(pl.DataFrame(rows, infer_schema_length=None)))
    answer = compaction.compact_tables(NOTHING, now=NOW)
    left = set(store.read("decisions").collect()["decision_id"])
    assert left == {
        *("quiet-89", "quiet-1", "gone-200", "closed-1"),
        *("open's-200", "open's-100", "open's-1"),
    }
    assert answer["items"][0]["removed"][0] == "5 decisions older than 90 days"


def test_quarantine_forgets_samples_that_are_gone_and_keeps_the_others_out(project: Path) -> None:
    store = Store()
    store.append("gpu_samples", pl.concat([samples(8), samples(6)]))
    rows = store.read("gpu_samples").collect()
    named = TABLES["gpu_samples"]
    refused = pl.DataFrame(
        {
            "table_name": "gpu_samples",
            "row_sha256": named.key_hashes(rows),
            "row_key": rows.select(pl.struct(named.key).struct.json_encode()).to_series(),
            "check_name": "range",
            "reason": "too hot",
            "quarantined_at": NOW - timedelta(days=5),
        }
    )
    other = refused.head(1).with_columns(
        pl.lit("launches").alias("table_name"), pl.lit("{}").alias("row_key")
    )
    store.append("quarantine", QUARANTINE.conform(pl.concat([refused, other])))
    compaction.compact_tables(NOTHING, now=NOW)
    assert store.read("quarantine").collect()["table_name"].value_counts().sort("count").rows() == [
        ("launches", 1),
        ("gpu_samples", 10),
    ]
    assert store.read("gpu_samples").collect().height == 10
    assert store.read_valid("gpu_samples").collect().is_empty()


def test_answered_questions_of_long_ago_go_and_open_ones_stay(project: Path) -> None:
    store = Store()
    ages = {"answered": (200, 180), "answered lately": (200, 10), "labelled before": (100, 150)}
    queue = [
        {"document_id": name, "why": "drift", "queued_at": NOW - timedelta(days=queued), "priority": 1.0}
        for name, (queued, _) in ages.items()
    ]
    queue.append(
        {"document_id": "open", "why": "drift", "queued_at": NOW - timedelta(days=300), "priority": 1.0}
    )
    store.append("review_queue", REVIEW_QUEUE.conform(pl.DataFrame(queue)))
    given = [
        {
            "document_id": name,
            "annotator": "person",
            "labelled_at": NOW - timedelta(days=labelled),
            "label_source": "human",
            "is_defect": True,
        }
        for name, (_, labelled) in ages.items()
    ]
    store.append("labels", LABELS.conform(pl.DataFrame(given)))
    compaction.compact_tables(NOTHING, now=NOW)
    assert set(store.read("review_queue").collect()["document_id"]) == {
        "answered lately",
        "labelled before",
        "open",
    }


def test_alerts_of_long_ago_go_unless_they_wait(project: Path) -> None:
    store = Store()
    rows = [
        {
            "alert_id": f"{outcome} {age}",
            "decided_at": NOW - timedelta(days=age),
            "cause": "drift",
            "signal": "residuals",
            "subject": "launch-latency",
            "reason": "so",
            "outcome": outcome,
            "refusal_count": 0,
        }
        for outcome in ("waiting", "delivered")
        for age in (100, 80)
    ]
    store.append("alerts", pl.DataFrame(rows))
    compaction.compact_tables(NOTHING, now=NOW)
    left = store.read("alerts").collect()["alert_id"].to_list()
    assert left == ["waiting 100", "waiting 80", "delivered 80"]


def test_leases_are_not_touched(project: Path) -> None:
    with leases.hold("train launch-latency"):
        before = Store().read("leases").collect()
        compaction.compact_tables(NOTHING, now=NOW)
        assert Store().read("leases").collect().equals(before)
        assert leases.is_held("train launch-latency")


# Caches and reports


def write(path: Path, size: int, age_days: float, now: datetime = NOW) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * size)
    then = (now - timedelta(days=age_days)).timestamp()
    os.utime(path, (then, then))
    return path


def test_oldest_entries_of_the_caches_go_until_the_rest_fits(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_RETENTION_CACHE_MB", "0.25")
    monkeypatch.setenv("WARPGAUGE_RETENTION_GRACE_HOURS", "24")
    wheels, searches = cache_dir("wheels"), cache_dir("searches")
    old = [write(searches / f"{age}.db", 100_000, age) for age in (30, 20, 10)]
    folder = wheels / "12.9.79"
    write(folder / "a.whl", 100_000, 5)
    os.utime(folder, ((NOW - timedelta(days=5)).timestamp(),) * 2)
    state = write(cache_dir("validation") / "launches.json", 100, 400)
    answer = compaction.shrink_copies(now=NOW)
    assert [path.exists() for path in old] == [False, False, True]
    assert (folder / "a.whl").exists()
    assert state.exists()
    assert answer["items"][0]["removed"] == ["2 oldest entries (0.2 MB)"]


def test_entry_that_may_be_in_use_stays_whatever_the_limit(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_RETENTION_CACHE_MB", "0")
    monkeypatch.setenv("WARPGAUGE_RETENTION_GRACE_HOURS", "24")
    young = write(cache_dir("searches") / "young.db", 2_000_000, 0.5)
    answer = compaction.shrink_copies(now=NOW)
    assert young.exists()
    assert answer["items"][0]["kept"] == ["2 MB that are in use or too young to go"]


def test_many_small_files_of_embeddings_become_one_with_the_same_vectors(
    project: Path, monkeypatch: pytest.MonkeyPatch, make: Any
) -> None:
    from tasks import embedding
    from tests.fakes import FakeEncoder

    monkeypatch.setattr(compaction, "MOST_EMBEDDING_FILES", 3)
    documents = make.reports(20)
    before = [embedding.embed(documents[place : place + 4], FakeEncoder()) for place in range(0, 20, 4)]
    folder = cache_dir(f"embeddings/{FakeEncoder.encoder_id[:16]}")
    assert len(list(folder.glob("*.parquet"))) == 5
    compaction.shrink_copies()
    assert len(list(folder.glob("*.parquet"))) == 1
    cached = pl.read_parquet(next(folder.glob("*.parquet")))
    assert cached["text_sha256"].n_unique() == cached.height == 20
    assert sorted(row.tolist() for part in before for row in part) == sorted(cached["embedding"].to_list())


def test_newest_pages_and_those_of_the_last_days_stay(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPGAUGE_RETENTION_REPORTS_COUNT", "2")
    monkeypatch.setenv("WARPGAUGE_RETENTION_REPORTS_DAYS", "2")
    folder = project / "data" / "reports" / "monitor"
    for age in (1, 1.5, 1.9, 3, 9):
        write(folder / f"{age}.html", 10, age)
    others = {write(folder / name, 10, 400).name for name in ("latest.html", "metrics.prom")}
    compaction.shrink_copies(now=NOW)
    assert {page.name for page in folder.iterdir()} == {"1.html", "1.5.html", "1.9.html", *others}
    compaction.shrink_copies(now=NOW + timedelta(days=30))
    assert {page.name for page in folder.iterdir()} == {"1.html", "1.5.html", *others}


# With a registry


def test_month_of_work_keeps_every_version_readable_and_the_store_small(
    world: Path, make: Any, latency_bundle: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    store = Store()
    trained: dict[int, str] = {}
    sizes = []
    measured = make.launches(seed=1)
    for day in range(4):
        now = datetime.now(UTC) - timedelta(days=4 - day)
        for part in range(4):
            moment = now + timedelta(hours=part)
            store.append("launches", measured[20 * (4 * day + part) :].head(20))
            rows = samples(0, 50).with_columns(pl.col("sampled_at") - NOW + moment)
            store.append("gpu_samples", rows)
        version = store.data_version("launches")
        assert version is not None
        facts = {"launches": version, "launches.table": store.table_id("launches")}
        bundle = make.bundle(latency_bundle, tmp_path_factory.mktemp("day"), data_versions=facts)
        registration.register(bundle)
        trained[version] = digest(store, "launches", version)
        compact(now=now + timedelta(days=9))
        sizes.append(sum(len(content) for content in contents(world / "data" / "gpu_samples").values()))
    assert {version: digest(store, "launches", version) for version in trained} == trained
    assert store.read("launches").collect().height == 480 + 4 * 4 * 20
    champion = registration.alias_version(LAUNCH_LATENCY, CHAMPION)
    assert registration.data_versions(LAUNCH_LATENCY, champion)["launches"] in store_versions(
        world, "launches"
    )
    assert max(sizes) < 2 * sizes[0]


def store_versions(root: Path, name: str) -> set[int]:
    log = root / "data" / name / "_delta_log"
    return {int(file.name[:20]) for file in log.iterdir() if file.name[:20].isdecimal()}


def test_monitor_measures_the_same_before_and_after(world: Path, make: Any) -> None:
    store = Store()
    now = datetime.now(UTC)
    for seed in range(5):
        store.append("launches", make.launches(seed=seed + 1, collected_at=now).head(60))
        store.append("documents", make.reports(20, seed=seed + 1, fetched_at=now))

    def measured() -> list[Any]:
        return [(one.signal, one.subject, one.value, one.sample_count) for one in monitoring.measure()]

    before = measured()
    assert sum(count for *_, count in before) > 100
    store.merge_small_files("launches", 1)
    compact(now=LATER)
    assert measured() == before
    compact(now=LATER)
    assert measured() == before


def test_version_of_a_training_that_still_runs_stays(world: Path, make: Any) -> None:
    store = Store()
    version = store.append("launches", make.launches(seed=3).head(20)).version
    before = digest(store, "launches", version)
    with leases.hold(attempts.training_job(LAUNCH_LATENCY)):
        planned = store.append("launches", make.launches(seed=4).head(20)).version
        store.append("launches", make.launches(seed=5).head(20))
        store.merge_small_files("launches", 1)
        needed = needs.find_needs(LATER, 1)
        compaction.compact_tables(needed, now=LATER)
        assert digest(store, "launches", version) == before
        assert store.read("launches", planned).collect().height == 520
    needed = needs.find_needs(LATER, 1)
    compaction.compact_tables(needed, now=LATER)
    with pytest.raises(ServiceUnavailableError, match="launches"):
        store.read("launches", planned)


def test_table_that_was_made_anew_is_not_what_its_number_says(world: Path, make: Any) -> None:
    shutil.rmtree(world / "data" / "launches")
    for seed in range(3):
        Store().append("launches", make.launches(seed=seed).head(5))
    assert "launches" not in compaction.list_needs().tables


def test_what_a_training_looked_back_to_is_needed_too(
    world: Path, make: Any, latency_bundle: str, tmp_path: Path
) -> None:
    store = Store()
    numbers = [store.append("launches", make.launches(seed=seed).head(9)).version for seed in (7, 8, 9)]
    facts = {"launches": numbers[2], "launches.table": store.table_id("launches")}
    bundle = make.bundle(
        latency_bundle, tmp_path, data_versions=facts, known_version=numbers[1], since_version=numbers[0]
    )
    version = registration.register(bundle).version
    found = compaction.list_needs().tables["launches"]
    assert {number for number, who in found.items() if f"{LAUNCH_LATENCY} version {version}" in who} == set(
        numbers
    )


def aged(run_id: str, days: float) -> None:
    """Let a run have begun and ended so many days ago."""
    import sqlite3

    database = tracking.tracking_uri().removeprefix("sqlite:///")
    then = int((datetime.now(UTC) - timedelta(days=days)).timestamp() * 1000)
    with sqlite3.connect(database) as connection:
        connection.execute(
            "UPDATE runs SET start_time = ?, end_time = ? WHERE run_uuid = ?", (then, then, run_id)
        )


def test_runs_that_no_version_refers_to_go_with_their_artifacts_and_no_others(world: Path) -> None:
    client = tracking.connect()
    experiment = tracking.experiment_id(client)
    versions = {run.info.run_id for run in client.search_runs([experiment])}
    for run_id in versions:
        aged(run_id, 400)
    failed = client.create_run(experiment, run_name="a registration that failed").info.run_id
    client.log_text(failed, "x" * 1000, "big.txt")
    client.set_terminated(failed, "FAILED")
    aged(failed, 100)
    young = client.create_run(experiment).info.run_id
    client.set_terminated(young)
    aged(young, 10)
    binned = client.create_run(experiment).info.run_id
    client.delete_run(binned)
    aged(binned, 400)
    tracking.log_monitor_metrics({"residuals/launch-latency": 0.1})
    (monitor,) = (run.info.run_id for run in client.search_runs([experiment], "tags.role = 'monitor'"))
    aged(monitor, 400)
    artifacts = world / "mlruns" / "artifacts"
    assert (artifacts / failed).is_dir()
    answer = compact()
    assert "1 runs and 0 models older than 90 days" in removed(answer, answer["items"][-1]["what"])
    assert {run.info.run_id for run in client.search_runs([experiment])} == {*versions, young, monitor}
    assert not (artifacts / failed).exists()
    assert client.get_run(binned).info.lifecycle_stage == "deleted"
    with pytest.raises(Exception, match=failed):
        client.get_run(failed)
    for name in MODEL_NAMES:
        champion = registration.alias_version(name, CHAMPION)
        assert champion == "1"
        assert registration.model_files(name, champion)
        assert registration.version_facts(name, champion)["model_name"] == name


def test_model_whose_registration_failed_goes_and_one_that_is_registered_stays(
    world: Path, latency_bundle: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise ServiceUnavailableError("the registry is away")

    with monkeypatch.context() as patch:
        patch.setattr(registration, "_make_version", fail)
        with pytest.raises(ServiceUnavailableError):
            registration.register(latency_bundle)
    models = world / "mlruns" / "artifacts" / "models"
    assert len(list(models.iterdir())) == 3
    compact()
    assert len(list(models.iterdir())) == 3
    compact(now=datetime.now(UTC) + timedelta(days=100))
    assert len(list(models.iterdir())) == 2
    assert registration.model_files(LAUNCH_LATENCY, "1")


def test_monitors_old_metrics_keep_the_last_value_of_each_day(registry: Path) -> None:
    from mlflow.entities import Metric

    tracking.log_monitor_metrics({"a": 0.0})
    client = tracking.connect()
    (run,) = client.search_runs([tracking.experiment_id(client)], "tags.role = 'monitor'")
    other = client.create_run(tracking.experiment_id(client)).info.run_id
    midnight = datetime.now(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    for days in (3, 20, 21):
        for hour in range(5):
            moment = int((midnight - timedelta(days=days) + timedelta(hours=hour)).timestamp() * 1000)
            for run_id in (run.info.run_id, other):
                client.log_batch(run_id, [Metric("a", float(hour), moment, 0)])
    dry = old_runs.compact_runs(NOTHING, dry_run=True)
    answer = old_runs.compact_runs(NOTHING)
    assert dry["items"][0]["removed"] == answer["items"][0]["removed"]
    assert answer["items"][0]["removed"][-1].startswith("8 values of the monitor")
    values = [metric.value for metric in client.get_metric_history(run.info.run_id, "a")]
    assert sorted(values) == sorted([0.0, 4.0, 4.0, 0.0, 1.0, 2.0, 3.0, 4.0])
    assert len(client.get_metric_history(other, "a")) == 15
    assert old_runs.compact_runs(NOTHING)["items"][0]["removed"] == []


def test_trials_of_a_registered_search_stay(registry: Path) -> None:
    client = tracking.connect()
    experiment = tracking.experiment_id(client)
    for study in ("mine", "nobody's"):
        run_id = client.create_run(experiment, tags={"role": "trial", "study": study}).info.run_id
        client.set_terminated(run_id)
        aged(run_id, 400)
    old_runs.compact_runs(Needs(LATER, studies={"mine"}))
    assert [run.data.tags["study"] for run in client.search_runs([experiment])] == ["mine"]


# Beside others


def test_dry_run_changes_no_file_and_says_what_would_go(world: Path) -> None:
    store = Store()
    store.append("gpu_samples", pl.concat([samples(400), samples(300)]))
    before = contents(world / "data") | contents(world / "mlruns" / "artifacts")
    answer = compact(dry_run=True)
    assert contents(world / "data") | contents(world / "mlruns" / "artifacts") == before
    assert removed(answer, "table gpu_samples").startswith("20 rows older than 7 days")
    assert answer["dry_run"]


def test_second_compaction_at_the_same_time_is_refused(project: Path) -> None:
    with (
        compaction.alone(),
        pytest.raises(ServiceUnavailableError, match=r"compact.* already running"),
        compaction.alone(),
    ):
        pytest.fail("two at once")


def test_table_that_cannot_be_written_costs_the_others_nothing(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store()
    store.append("gpu_samples", samples(400))
    store.append("predictions", TABLES["predictions"].empty())
    before = digest(store, "gpu_samples")

    def full(*_: object, **__: object) -> None:
        raise ServiceUnavailableError("table gpu_samples: No space left on device")

    monkeypatch.setattr(Store, "delete_rows", full)
    answer = compaction.compact_tables(NOTHING, now=NOW)
    assert answer["refused"] == ["table gpu_samples: No space left on device"]
    assert [item["what"] for item in answer["items"]] == ["table gpu_samples", "table predictions"]
    assert digest(store, "gpu_samples") == before


WRITER = """
import sys
from tests.tasks.test_compaction import samples
from tasks.storage import Store
store = Store()
print("ready", flush=True)
for step in range(40):
    store.append("gpu_samples", samples(step / 100 + 0.001))
    print(step, flush=True)
"""
COMPACTOR = """
from datetime import UTC, datetime, timedelta
from tests.tasks.test_compaction import NOW
from tasks import compaction
from tasks.needs import Needs
print("ready", flush=True)
while True:
    compaction.compact_tables(Needs(datetime.now(UTC) - timedelta(hours=1)), now=NOW)
    print("done", flush=True)
"""


def test_writer_loses_no_row_to_a_compaction_beside_it_that_is_killed(project: Path) -> None:
    store = Store()
    store.append("gpu_samples", samples(100))

    def start(program: str) -> "subprocess.Popen[str]":
        return subprocess.Popen([sys.executable, "-c", program], cwd=ROOT, stdout=subprocess.PIPE, text=True)

    with start(COMPACTOR) as compactor, start(WRITER) as writer:
        assert compactor.stdout is not None
        assert writer.stdout is not None
        for process in (compactor, writer):
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        for _ in range(2):
            compactor.stdout.readline()
        for line in writer.stdout:
            if int(line) == 20:
                os.kill(compactor.pid, signal.SIGKILL)
        assert writer.wait() == 0
    rows = store.read("gpu_samples").collect()
    assert rows.filter(pl.col("sampled_at") > NOW - timedelta(days=7)).height == 40 * 10
    assert rows["sampled_at"].n_unique() == rows.height
    compaction.compact_tables(NOTHING, now=NOW)
    assert store.read("gpu_samples").collect().height == 400
    assert len(list((project / "data" / "gpu_samples").glob("*.parquet"))) < 12


def test_doc_quality_version_needs_documents_and_labels(world: Path) -> None:
    found = compaction.list_needs().tables
    assert found["documents"] == {1: [f"{DOC_QUALITY} version 1"]}
    assert found["labels"] == {1: [f"{DOC_QUALITY} version 1"]}
    assert found["launches"] == {1: [f"{LAUNCH_LATENCY} version 1"]}
