"""Appends are atomic and idempotent, whatever happens beside or during them."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from tasks.storage import STALE_AFTER_S, Store, cache_dir, remove_stale
from warpgauge.errors import SchemaError, ServiceUnavailableError, SettingsError
from warpgauge.tables import TABLES

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def samples(first: int, count: int, gpu: str = "GPU-a") -> pl.DataFrame:
    """GPU samples one second apart, from second `first`."""
    return pl.DataFrame(
        {
            "gpu_uuid": [gpu] * count,
            "sampled_at": [NOW + timedelta(seconds=first + second) for second in range(count)],
            "source_kind": ["nvml"] * count,
            "source_name": ["test"] * count,
            "collected_at": [NOW] * count,
            "utilization_percent": [50.0] * count,
        }
    )


def test_absent_table_reads_as_no_rows(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert store.version("gpu_samples") is None
    assert store.read("gpu_samples").collect().height == 0


def test_second_append_of_the_same_rows_adds_nothing_and_makes_no_version(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    first = store.append("gpu_samples", samples(0, 10))
    again = store.append("gpu_samples", samples(0, 10))
    assert (first.added, again.added) == (10, 0)
    assert again.version == first.version == store.version("gpu_samples")


def test_overlapping_append_adds_only_what_is_new(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.append("gpu_samples", samples(0, 10))
    assert store.append("gpu_samples", samples(5, 10)).added == 5
    rows = store.read("gpu_samples").collect()
    assert rows.height == 15
    assert rows["sampled_at"].n_unique() == 15


def test_repeated_key_inside_one_batch_is_one_row(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert store.append("gpu_samples", pl.concat([samples(0, 3), samples(0, 3)])).added == 3


def test_unknown_column_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="utilisation"):
        Store(str(tmp_path)).append("gpu_samples", samples(0, 1).with_columns(utilisation=pl.lit(1.0)))


def test_text_in_a_number_column_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="gpu_samples"):
        Store(str(tmp_path)).append("gpu_samples", samples(0, 1).with_columns(power_w=pl.lit("hot")))


def test_older_version_can_be_read_again(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    first = store.append("gpu_samples", samples(0, 3))
    store.append("gpu_samples", samples(10, 3))
    assert store.read("gpu_samples", first.version).collect().height == 3


def test_table_written_before_a_column_existed_reads_as_null_there(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    write_deltalake(str(tmp_path / "gpu_samples"), samples(0, 2).drop("utilization_percent").to_arrow())
    store = Store(str(tmp_path))
    assert store.read("gpu_samples").collect()["utilization_percent"].null_count() == 2
    assert store.append("gpu_samples", samples(0, 3)).added == 1
    assert store.read("gpu_samples").collect()["utilization_percent"].null_count() == 2


def _append_in_steps(address: str, first: int) -> None:
    store = Store(address)
    for step in range(5):
        # Each writer's steps overlap the other's by half, so both race for the same keys.
        store.append("gpu_samples", samples(first + 10 * step, 20))


def test_two_writers_at_once_lose_nothing_and_double_nothing(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=_append_in_steps, args=(str(tmp_path), first)) for first in (0, 5)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(timeout=120)
    assert [writer.exitcode for writer in writers] == [0, 0]
    rows = Store(str(tmp_path)).read("gpu_samples").collect()
    assert rows.height == rows["sampled_at"].n_unique() == 65


def test_kill_in_the_middle_of_appends_leaves_whole_commits(tmp_path: Path) -> None:
    program = (
        "import sys; sys.path.insert(0, sys.argv[2]);"
        "from tests.tasks.test_storage import samples; from tasks.storage import Store\n"
        "store = Store(sys.argv[1])\n"
        "for step in range(10_000):\n"
        "    store.append('gpu_samples', samples(100 * step, 100)); print(step, flush=True)\n"
    )
    root = str(Path(__file__).resolve().parents[2])
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path), root], stdout=subprocess.PIPE, text=True
    ) as writer:
        assert writer.stdout is not None
        for line in writer.stdout:
            if int(line) == 3:
                time.sleep(0.003)  # land inside the next append, not between two
                os.kill(writer.pid, signal.SIGKILL)
                break
    store = Store(str(tmp_path))
    interrupted = store.read("gpu_samples").collect().height
    assert interrupted >= 400
    assert interrupted % 100 == 0
    for step in range(8):
        store.append("gpu_samples", samples(100 * step, 100))
    rows = store.read("gpu_samples").collect()
    assert rows["sampled_at"].n_unique() == rows.height
    assert rows.filter(pl.col("sampled_at") < NOW + timedelta(seconds=800)).height == 800


def test_appends_leave_few_files_and_every_row(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tasks.storage.MOST_SMALL_FILES", 5)
    monkeypatch.setattr(Store.merge_small_files, "__defaults__", (5,))
    store = Store(str(tmp_path))
    for step in range(14):
        assert store.append("gpu_samples", samples(10 * step, 10)).added == 10
        assert len(store.read("gpu_samples").collect()) == 10 * (step + 1)
        live = pl.Series(store._open("gpu_samples").file_uris())
        assert len(live) <= 6
    assert store.append("gpu_samples", samples(0, 140)).added == 0
    assert store.append("gpu_samples", samples(5, 140)).added == 5


def test_merging_files_makes_no_other_data_version(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    assert store.data_version("gpu_samples") is None
    for step in range(3):
        last = store.append("gpu_samples", samples(10 * step, 10)).version
        assert store.data_version("gpu_samples") == last
    assert store.merge_small_files("gpu_samples", 3) == 0
    assert store.merge_small_files("gpu_samples", 1) == 3
    assert store.version("gpu_samples") == last + 1
    assert store.data_version("gpu_samples") == last
    assert store.merge_small_files("gpu_samples", 0) == 0
    assert store.append("gpu_samples", samples(30, 10)).version == last + 2
    assert store.data_version("gpu_samples") == last + 2
    # A merge of a merged file still names the version that the rows are of.
    assert store.merge_small_files("gpu_samples", 1) == 2
    assert store.data_version("gpu_samples") == last + 2
    assert store.delete_rows("gpu_samples", f"sampled_at < '{NOW.isoformat()}'") == 0
    assert store.delete_rows("gpu_samples", "utilization_percent > 0") == 40
    assert store.data_version("gpu_samples") == store.version("gpu_samples")


def test_rows_that_come_while_files_are_merged_are_another_data_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path))
    for step in range(3):
        store.append("gpu_samples", samples(10 * step, 10))
    opened = store._open("gpu_samples")
    newest = store.append("gpu_samples", samples(30, 10)).version
    with monkeypatch.context() as patch:
        patch.setattr(Store, "_open", lambda *_: opened)
        store.merge_small_files("gpu_samples", 1)
    assert store.read("gpu_samples").collect().height == 40
    assert store.data_version("gpu_samples") == store.version("gpu_samples") > newest


def test_merge_that_fails_costs_the_append_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full(*_: object) -> int:
        raise ServiceUnavailableError("No space left on device")

    monkeypatch.setattr("tasks.storage.MOST_SMALL_FILES", 1)
    monkeypatch.setattr(Store, "merge_small_files", full)
    store = Store(str(tmp_path))
    for step in range(3):
        assert store.append("gpu_samples", samples(10 * step, 10)).added == 10
    assert "small files are not merged: No space left on device" in caplog.text


@pytest.mark.parametrize("hours", [0, 1, 24 * 40])
def test_late_and_early_rows_are_told_from_those_that_are_there(tmp_path: Path, hours: int) -> None:
    store = Store(str(tmp_path))
    store.append("gpu_samples", samples(0, 10))
    moved = samples(0, 10).with_columns(pl.col("sampled_at") + timedelta(hours=hours))
    assert store.append("gpu_samples", pl.concat([moved, samples(0, 3)])).added == (10 if hours else 0)
    assert store.append("gpu_samples", pl.concat([samples(0, 3), moved])).added == 0


def test_old_version_that_was_forgotten_is_an_error_and_never_no_rows(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for step in range(4):
        store.append("gpu_samples", samples(10 * step, 10))
    store.forget_versions("gpu_samples", [], datetime.now(UTC) + timedelta(days=1))
    for version in (1, 3, 99):
        with pytest.raises(ServiceUnavailableError, match="gpu_samples"):
            store.read("gpu_samples", version)
    assert store.read("gpu_samples").collect().height == 40


def test_table_that_was_looked_at_is_seen_as_it_is_now(tmp_path: Path) -> None:
    from deltalake import write_deltalake

    place = tmp_path / "gpu_samples"
    write_deltalake(str(place), samples(0, 2).drop("utilization_percent").to_arrow())
    store, other = Store(str(tmp_path)), Store(str(tmp_path))
    assert store.read("gpu_samples").collect()["utilization_percent"].to_list() == [None, None]
    other.append("gpu_samples", samples(2, 1))
    assert store.read("gpu_samples").collect()["utilization_percent"].to_list() == [50.0, None, None]
    first = store.table_id("gpu_samples")
    version = store.version("gpu_samples")
    for step in range(5):
        other.append("gpu_samples", samples(10 + step, 1))
    other.merge_small_files("gpu_samples", 1)
    other.forget_versions("gpu_samples", [version], datetime.now(UTC) + timedelta(days=1))
    assert store.read("gpu_samples").collect().height == 8
    assert store.version("gpu_samples") == version + 6
    assert store.data_version("gpu_samples") == version + 5
    shutil.rmtree(place)
    assert store.version("gpu_samples") is None
    assert store.read("gpu_samples").collect().is_empty()
    other.append("gpu_samples", samples(0, 3))
    assert store.read("gpu_samples").collect().height == 3
    assert store.table_id("gpu_samples") != first
    shutil.rmtree(place)
    for step in range(9):
        other.append("gpu_samples", samples(step, 1))
    assert store.version("gpu_samples") == 9
    assert store.read("gpu_samples").collect().height == 9


def test_library_forgets_no_version_by_itself(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    for step in range(3):
        store.append("gpu_samples", samples(10 * step, 10))
    store._open("gpu_samples").alter.set_table_properties({"delta.checkpointInterval": "5"})
    store._open("gpu_samples").create_checkpoint()
    log = tmp_path / "gpu_samples" / "_delta_log"
    long_ago = time.time() - 100 * 24 * 3600
    for file in log.iterdir():
        os.utime(file, (long_ago, long_ago))
    for step in range(3, 9):
        store.append("gpu_samples", samples(10 * step, 10))
    assert len(list(log.glob("*.checkpoint.parquet"))) == 2
    assert store.read("gpu_samples", 2).collect().height == 20


@pytest.mark.parametrize("is_named", [True, False])
def test_rows_in_quarantine_are_left_out_by_their_key_or_its_hash(tmp_path: Path, is_named: bool) -> None:
    store = Store(str(tmp_path))
    rows = pl.concat([samples(0, 10), samples(0, 10, 'GPU-"ü"')])
    store.append("gpu_samples", rows)
    bad = store.read("gpu_samples").filter(pl.col("sampled_at") >= NOW + timedelta(seconds=7)).collect()
    keys = bad.select(pl.struct("gpu_uuid", "sampled_at").struct.json_encode()).to_series()
    refused = {
        "table_name": ["gpu_samples"] * 6,
        "row_sha256": TABLES["gpu_samples"].key_hashes(bad),
        "row_key": keys if is_named else ["{}"] * 6,
        "check_name": ["range"] * 6,
        "reason": ["too hot"] * 6,
        "quarantined_at": [NOW] * 6,
    }
    store.append("quarantine", pl.DataFrame(refused))
    late = pl.col("sampled_at") >= NOW + timedelta(seconds=5)
    assert store.read_valid("gpu_samples").collect().height == 14
    assert store.read_valid("gpu_samples", where=late).collect().height == 4
    assert store.read_valid("gpu_samples").filter(~late).collect().height == 10


def test_replace_loses_against_a_writer_who_came_first(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    lease = pl.DataFrame({"job": ["a"], "holder": ["me"], "acquired_at": [NOW], "heartbeat_at": [NOW]})
    assert store.replace("leases", lease, None)
    version = store.version("leases")
    assert store.replace("leases", lease.with_columns(holder=pl.lit("you")), version)
    assert not store.replace("leases", lease, version)
    assert store.read("leases").collect()["holder"].to_list() == ["you"]


def test_damaged_log_is_a_service_error_with_the_address(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    store.append("gpu_samples", samples(0, 1))
    log = tmp_path / "gpu_samples" / "_delta_log" / "00000000000000000001.json"
    log.write_text("{not json")
    with pytest.raises(ServiceUnavailableError, match="gpu_samples"):
        store.append("gpu_samples", samples(5, 1))


@pytest.mark.parametrize("folder", ["with blank", "größe"])
def test_store_under_a_folder_with_unusual_letters_reads_what_it_wrote(tmp_path: Path, folder: str) -> None:
    store = Store(str(tmp_path / folder))
    store.append("gpu_samples", samples(0, 3))
    assert store.append("gpu_samples", samples(0, 4)).added == 1
    assert store.read("gpu_samples").collect().height == 4


def test_folder_that_the_table_format_cannot_address_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="#"):
        Store(str(tmp_path / "a#b"))


@pytest.mark.parametrize("damage", ["gone", "cut"])
def test_damaged_part_of_a_table_is_named(tmp_path: Path, damage: str) -> None:
    store = Store(str(tmp_path))
    store.append("gpu_samples", samples(0, 3))
    part = next((tmp_path / "gpu_samples").glob("*.parquet"))
    if damage == "gone":
        part.unlink()
    else:
        part.write_bytes(part.read_bytes()[:-20])
    with pytest.raises(ServiceUnavailableError, match=part.name):
        store.read("gpu_samples")
    with pytest.raises(ServiceUnavailableError, match=part.name):
        store.append("gpu_samples", samples(5, 1))


def test_part_that_is_damaged_while_it_is_read_is_a_service_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = Store(str(tmp_path))
    store.append("gpu_samples", samples(0, 3))
    part = next((tmp_path / "gpu_samples").glob("*.parquet"))
    # The look at the file's end found it whole; it is damaged after that.
    monkeypatch.setattr("tasks.storage._require_whole", lambda _: part.write_bytes(b"PAR1"))
    with pytest.raises(ServiceUnavailableError, match=r"gpu_samples at .* cannot be read or written"):
        store.append("gpu_samples", samples(5, 1))


def test_cache_that_cannot_be_made_is_a_service_error_with_its_place(project: Path) -> None:
    (project / "data").mkdir()
    (project / "data" / "cache").write_text("a file where the folder should be")
    with pytest.raises(ServiceUnavailableError, match=r"the cache .*/data/cache/wheels cannot be written"):
        cache_dir("wheels")


def test_unfinished_work_of_a_day_ago_is_removed_and_any_other_stays(tmp_path: Path) -> None:
    (tmp_path / ".12.4.127-old").mkdir()
    (tmp_path / ".12.4.127-old" / "half.whl").write_bytes(b"PK")
    for name in (".old.partial", ".new.partial", "old.parquet"):
        (tmp_path / name).write_bytes(b"x")
    (tmp_path / ".12.4.127-new").mkdir()
    for name in (".12.4.127-old", ".old.partial", "old.parquet"):
        long_ago = time.time() - STALE_AFTER_S - 60
        os.utime(tmp_path / name, (long_ago, long_ago))
    remove_stale(tmp_path)
    assert {left.name for left in tmp_path.iterdir()} == {".12.4.127-new", ".new.partial", "old.parquet"}
