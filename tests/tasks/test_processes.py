"""Which processes are gone, and the servers that killed commands left behind."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from tasks import processes
from tasks.processes import SERVER_WORDS, STARTED_BY, end_orphaned_servers, is_running, process_name

pytestmark = pytest.mark.skipif(
    not processes.PROC.exists(), reason="processes are looked up in Linux's /proc"
)
NAMER = "import sys, time; from tasks.processes import process_name; print(process_name(), flush=True); time.sleep(60)"


def test_this_process_runs_and_has_one_name() -> None:
    assert process_name() == process_name()
    assert is_running(process_name()) is True


def test_process_that_was_killed_is_gone_also_before_its_parent_has_looked() -> None:
    with subprocess.Popen([sys.executable, "-c", NAMER], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None
        name = child.stdout.readline().strip()
        assert is_running(name) is True
        child.kill()
        wait_until(lambda: is_running(name) is False)  # a zombie
        child.wait()
        assert is_running(name) is False


def test_number_that_another_process_has_by_now_is_not_the_one_that_died() -> None:
    machine, process, started = process_name().split("/")
    assert is_running(f"{machine}/{process}/{int(started) - 1}") is False


@pytest.mark.parametrize(
    "name",
    [
        "",
        "/",
        "x",
        "other:1/2/3",
        "a/b/c/d",
        f"{socket.gethostname()}:1/{os.getpid()}/1",
        f"{process_name().split('/')[0]}/x/1",
        f"{process_name().split('/')[0]}/{10**30}/1",
        f"{process_name().split('/')[0]}/1",
    ],
    ids=range(9),
)
def test_process_of_another_machine_or_no_process_at_all_cannot_be_told(name: str) -> None:
    assert is_running(name) is None


# Orphaned servers


@pytest.fixture
def server() -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Start a stand-in that looks to others as Prefect's own server of a process does."""
    started: list[subprocess.Popen[bytes]] = []

    def start(by: str | None, **more: str) -> subprocess.Popen[bytes]:
        mark = {} if by is None else {STARTED_BY: by}
        environment = {"PATH": os.environ["PATH"], "PREFECT__SERVER_EPHEMERAL": "1"} | mark | more
        command = [sys.executable, "-c", "import time; time.sleep(60)", *SERVER_WORDS]
        process = subprocess.Popen(command, env=environment)
        started.append(process)
        wait_until(lambda: SERVER_WORDS[0] in (processes.PROC / str(process.pid) / "cmdline").read_text())
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def dead() -> str:
    machine, process, started = process_name().split("/")
    return f"{machine}/{process}/{int(started) - 1}"


def test_server_of_a_killed_command_is_ended(server: Callable[..., subprocess.Popen[bytes]]) -> None:
    orphan = server(dead())
    assert end_orphaned_servers() >= 1
    assert orphan.wait(10) != 0


def test_server_of_a_living_command_of_another_machine_or_of_nobody_we_know_stays(
    server: Callable[..., subprocess.Popen[bytes]],
) -> None:
    kept = [
        server(process_name()),
        server("other:1/2/3"),
        server(None),
        server(""),
        server(dead(), PREFECT__SERVER_EPHEMERAL="0"),
    ]
    end_orphaned_servers()
    time.sleep(0.2)
    assert all(process.poll() is None for process in kept)


def test_process_that_is_no_server_stays_whatever_its_environment_says() -> None:
    environment = os.environ | {STARTED_BY: dead(), "PREFECT__SERVER_EPHEMERAL": "1"}
    with subprocess.Popen([sys.executable, "-c", "input()"], env=environment, stdin=subprocess.PIPE) as other:
        end_orphaned_servers()
        time.sleep(0.2)
        assert other.poll() is None
        other.kill()


def wait_until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        time.sleep(0.01)
    pytest.fail("did not come about in 10 s")
