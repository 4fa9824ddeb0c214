"""Ctrl-C ends a command at once, and the next one goes on."""

import os
import signal
import subprocess
import sys
import time
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


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="children are found by Linux's /proc")
def test_first_interrupt_ends_the_command_and_its_server(project: Path) -> None:
    source = write_launches(project, range(1, 20))
    environment = os.environ | {"PREFECT_HOME": str(project / "prefect")}
    environment.pop("PREFECT_API_URL", None)
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(source)],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).resolve().parents[2],
        start_new_session=True,
    ) as command:
        assert command.stderr is not None
        for line in command.stderr:
            if "at work" in line:
                break
        children = {
            int(child)
            for listed in Path(f"/proc/{command.pid}/task").glob("*/children")
            for child in listed.read_text().split()
        }
        os.kill(command.pid, signal.SIGINT)
        rest = command.stderr.read()
        assert command.wait(timeout=60) == 130
    assert "warpgauge: stopped" in rest
    assert children
    assert all(_ends(child) for child in children)


def _ends(process: int) -> bool:
    """Whether the process is gone within some seconds, or waits as a zombie for whoever adopted it."""
    status = Path(f"/proc/{process}/status")
    for _ in range(100):
        if not status.exists() or "State:\tZ" in status.read_text():
            return True
        time.sleep(0.1)
    return False
