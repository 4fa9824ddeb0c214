"""Ctrl-C ends a command at once, and the next one goes on; what a killed one leaves, the next one ends."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import write_launches

# Collecting starts a Prefect server of its own; the stop comes while the flow waits in its task.
PROGRAM = """
import signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)
from tasks import collection
def slow(*words, **options):
    print("at work", file=sys.stderr, flush=True)
    time.sleep(600)
collection.collect_launches = slow
from flows.__main__ import main
sys.exit(main(["collect", "launches", sys.argv[1]]))
"""


ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.skipif(
    not Path("/proc/self/task").exists(), reason="children are found by Linux's /proc"
)


@pytest.fixture
def command(project: Path) -> Iterator[subprocess.Popen[str]]:
    """A command that waits in its task, with a Prefect server of its own beside it."""
    source = write_launches(project, range(1, 20))
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(source)],
        env=_environment(project),
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        start_new_session=True,
    ) as started:
        assert started.stderr is not None
        assert any("at work" in line for line in started.stderr)
        yield started
        started.kill()


def _environment(project: Path) -> dict[str, str]:
    return {
        name: value
        for name, value in (os.environ | {"PREFECT_HOME": str(project / "prefect")}).items()
        if name != "PREFECT_API_URL"
    }


def _children(process: int) -> set[int]:
    listed = Path(f"/proc/{process}/task").glob("*/children")
    return {int(child) for children in listed for child in children.read_text().split()}


def test_first_interrupt_ends_the_command_and_its_server(command: subprocess.Popen[str]) -> None:
    children = _children(command.pid)
    os.kill(command.pid, signal.SIGINT)
    assert command.stderr is not None
    rest = command.stderr.read()
    assert command.wait(timeout=60) == 130
    assert "warpgauge: stopped" in rest
    assert children
    assert all(_ends(child) for child in children)


@pytest.mark.slow
def test_server_of_a_killed_command_is_ended_by_the_next_one_and_that_of_a_living_one_is_not(
    command: subprocess.Popen[str], project: Path
) -> None:
    children = _children(command.pid)
    assert children

    def next_command() -> None:
        models = [Path(sys.executable).parent / "warpgauge", "models", "list"]
        subprocess.run(models, env=_environment(project), capture_output=True, check=True)

    next_command()
    assert not any(_is_over(child) for child in children)
    command.kill()
    command.wait()
    # The server does not notice: it would stay for ever.
    assert not any(_is_over(child) for child in children)
    next_command()
    assert all(_ends(child) for child in children)


def _ends(process: int) -> bool:
    """Whether the process is gone within some seconds, or waits as a zombie for whoever adopted it."""
    for _ in range(100):
        if _is_over(process):
            return True
        time.sleep(0.1)
    return False


def _is_over(process: int) -> bool:
    status = Path(f"/proc/{process}/status")
    return not status.exists() or "State:\tZ" in status.read_text()
