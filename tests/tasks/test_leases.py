"""One holder a job: a living one keeps it, a dead one loses it, and of two that race exactly one wins."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import polars as pl
import pytest

from tasks import leases
from tasks.leases import hold, is_held
from tasks.processes import process_name
from tasks.storage import Store
from warpgauge.errors import ServiceUnavailableError
from warpgauge.tables import LEASES, Table

ROOT = Path(__file__).parents[2]
JOB = "train launch-latency"
# Takes the lease in each folder that it is told, says what came of it, and lets go at the next line.
HOLDER = """
import os, sys
from tasks.leases import hold
from tasks.storage import Store
from warpgauge.errors import ServiceUnavailableError

Store("warm-up").version("leases")
print("ready", flush=True)
while line := sys.stdin.readline():
    os.environ["WARPGAUGE_DATA_DIR"] = line.strip()
    try:
        with hold(sys.argv[1]):
            print("held", flush=True)
            sys.stdin.readline()
    except ServiceUnavailableError as error:
        print(error, flush=True)
        sys.stdin.readline()
"""


class Holder:
    """Another process that takes the lease and lets it go when told."""

    def __init__(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", HOLDER, JOB],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def tell(self, line: object) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def answer(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()


@pytest.fixture
def holders(project: Path) -> Iterator[list[Holder]]:
    """Three other processes, ready to take a lease."""
    made = [Holder() for _ in range(3)]
    assert [holder.answer() for holder in made] == ["ready"] * 3
    yield made
    for holder in made:
        holder.process.kill()
        holder.process.communicate()


def write_lease(holder: str | None, *, age: timedelta = timedelta(0), job: str = JOB) -> None:
    then = datetime.now(UTC) - age
    row = {"job": [job], "holder": [holder], "acquired_at": [then], "heartbeat_at": [then]}
    store = Store()
    store.append("leases", LEASES.empty())
    assert store.replace("leases", LEASES.conform(pl.DataFrame(row)), store.version("leases"))


def test_second_holder_is_refused_by_name_until_the_first_lets_go(project: Path) -> None:
    assert not is_held(JOB)
    with hold(JOB), hold("another job"):
        assert is_held(JOB)
        with (
            pytest.raises(
                ServiceUnavailableError, match=f"{JOB}.* already running .*{os.getpid()}/"
            ) as caught,
            hold(JOB),
        ):
            pytest.fail("two holders")
        assert caught.value.exit_code == 3
        assert is_held(JOB)
    assert not is_held(JOB)
    with hold(JOB):
        assert is_held(JOB)


def test_lease_is_released_when_the_work_fails(project: Path) -> None:
    with pytest.raises(RuntimeError, match="the work"), hold(JOB):
        raise RuntimeError("the work")
    assert not is_held(JOB)


def test_process_that_was_killed_loses_its_lease_at_once(project: Path, holders: list[Holder]) -> None:
    doomed = holders[0]
    doomed.tell(project / "data")
    assert doomed.answer() == "held"
    assert is_held(JOB)
    with pytest.raises(ServiceUnavailableError, match=f"/{doomed.process.pid}/"), hold(JOB):
        pytest.fail("two holders")
    doomed.process.kill()
    doomed.process.wait()
    assert not is_held(JOB)
    with hold(JOB):
        assert is_held(JOB)


def test_lease_that_this_process_could_not_let_go_is_free(project: Path) -> None:
    write_lease(f"{process_name()}/0badcafe")
    assert not is_held(JOB)
    with hold(JOB):
        assert is_held(JOB)


def test_process_that_has_the_number_of_a_dead_holder_by_now_is_not_the_holder(project: Path) -> None:
    machine, process, started = process_name().split("/")
    write_lease(f"{machine}/{process}/{int(started) - 1}/0badcafe")
    assert not is_held(JOB)


def test_holder_in_a_container_beside_this_one_is_not_looked_for_among_our_processes(project: Path) -> None:
    write_lease(f"{socket.gethostname()}:1/{2**22 + 1}/77/0badcafe")
    assert is_held(JOB)


def test_dead_holders_are_listed_and_freed_and_living_ones_are_not(project: Path) -> None:
    write_lease("other-host/1/2/0badcafe", age=timedelta(hours=1))
    with hold("another job"):
        listed = {lease.job: lease for lease in leases.list_leases()}
        assert {job: lease.is_alive for job, lease in listed.items()} == {JOB: False, "another job": True}
        assert leases.held_here("another job") == listed["another job"].holder
        assert leases.free(listed[JOB])
        assert [lease.job for lease in leases.list_leases()] == ["another job"]
        # It is somebody else's by now.
        with hold(JOB):
            assert not leases.free(listed[JOB])
            assert is_held(JOB)
    assert leases.held_here("another job") is None


def test_store_of_an_older_version_is_read_and_written(project: Path) -> None:
    from deltalake import write_deltalake

    then = datetime.now(UTC) - timedelta(hours=1)
    old = {"job": [JOB], "holder": ["host/1/0badcafe"], "acquired_at": [then], "heartbeat_at": [then]}
    (project / "data" / "leases").mkdir(parents=True)
    write_deltalake(str(project / "data" / "leases"), pl.DataFrame(old).to_arrow())
    assert not is_held(JOB)
    with hold(JOB):
        assert is_held(JOB)


@pytest.mark.parametrize("minutes", [29, -29])
def test_holder_elsewhere_is_alive_while_its_sign_of_life_is_recent(project: Path, minutes: int) -> None:
    write_lease("other-host/1/0badcafe", age=timedelta(minutes=minutes))
    assert is_held(JOB)
    with pytest.raises(ServiceUnavailableError, match="other-host"), hold(JOB):
        pytest.fail("two holders")


@pytest.mark.parametrize("minutes", [31, -31, 10**6])
@pytest.mark.parametrize("holder", ["other-host/1/0badcafe", "no holder at all", "/", "a/b/c/d"])
def test_holder_without_a_sign_of_life_is_taken_over(project: Path, holder: str, minutes: int) -> None:
    write_lease(holder, age=timedelta(minutes=minutes))
    assert not is_held(JOB)
    with hold(JOB):
        assert is_held(JOB)


def test_time_that_counts_as_dead_is_a_setting(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_lease("other-host/1/0badcafe", age=timedelta(minutes=29))
    monkeypatch.setenv("WARPGAUGE_MONITOR_LEASE_MINUTES", "28")
    assert not is_held(JOB)


@pytest.mark.parametrize("holder", ["", None])
def test_free_lease_is_nobodys(project: Path, holder: str | None) -> None:
    write_lease(holder)
    assert not is_held(JOB)
    with hold(JOB):
        assert is_held(JOB)


def test_holder_gives_signs_of_life_and_keeps_when_it_began(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    with hold(JOB):
        first = Store().read("leases").collect().row(0, named=True)
        wait_until(lambda: Store().read("leases").collect()["heartbeat_at"][0] > first["heartbeat_at"])
        assert Store().read("leases").collect()["acquired_at"][0] == first["acquired_at"]


def test_store_that_is_away_for_a_moment_stops_neither_the_heart_nor_the_work(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(leases, "HEARTBEAT_SECONDS", 0.01)
    write = leases._write

    def work() -> None:
        with hold(JOB):
            monkeypatch.setattr(leases, "_write", away)
            wait_until(lambda: "disk full" in caplog.text)
            monkeypatch.setattr(leases, "_write", write)
            first = Store().read("leases").collect()["heartbeat_at"][0]
            wait_until(lambda: Store().read("leases").collect()["heartbeat_at"][0] > first)
            monkeypatch.setattr(leases, "_write", away)
            raise RuntimeError("the work itself")

    with pytest.raises(RuntimeError, match="the work itself"):
        work()


def away(*_: object, **__: object) -> bool:
    raise ServiceUnavailableError("disk full")


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(2000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("did not come about in 20 s")


def test_lease_that_was_taken_over_is_not_released_by_the_one_that_lost_it(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with hold(JOB):
        write_lease("other-host/1/0badcafe")
    assert "was taken over" in caplog.text
    assert Store().read("leases").collect()["holder"].to_list() == ["other-host/1/0badcafe"]


@pytest.mark.parametrize("before", ["no table yet", "free", "dead"])
def test_of_processes_that_race_exactly_one_wins(
    project: Path, holders: list[Holder], monkeypatch: pytest.MonkeyPatch, before: str
) -> None:
    for number in range(5):
        data_dir = project / f"data-{number}"
        monkeypatch.setenv("WARPGAUGE_DATA_DIR", str(data_dir))
        if before != "no table yet":
            write_lease("" if before == "free" else "other-host/1/0badcafe", age=timedelta(days=1))
        for holder in holders:
            holder.tell(data_dir)
        said = sorted(holder.answer() for holder in holders)
        assert [line == "held" for line in said].count(True) == 1, said
        assert sum("already running" in line or "same moment" in line for line in said) == 2, said
        for holder in holders:
            holder.tell("let go")


def test_one_that_came_first_while_the_table_was_made_keeps_the_lease(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    create = Store._create

    def be_overtaken(store: Store, spec: Table) -> object:
        monkeypatch.setattr(Store, "_create", create)
        write_lease("other-host/1/0badcafe")
        return create(store, spec)

    monkeypatch.setattr(Store, "_create", be_overtaken)
    with pytest.raises(ServiceUnavailableError, match="same moment"), hold(JOB):
        pytest.fail("two holders")
    assert Store().read("leases").collect()["holder"].to_list() == ["other-host/1/0badcafe"]
