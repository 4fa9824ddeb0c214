"""Processes of this machine: which one wrote a name, whether it is gone, and servers that killed ones left behind.

What cannot be told is None: a process of another machine or container is never called gone.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
from pathlib import Path

LOGGER = logging.getLogger("warpgauge")
PROC = Path("/proc")
# Which command started a process, for its children to inherit. No setting, hence the sign before the prefix.
STARTED_BY = "_WARPGAUGE_STARTED_BY"
# How Prefect starts a server for a process that has none.
SERVER_WORDS = ("uvicorn", "prefect.server.api.server:create_app")
SERVER_VARIABLE = "PREFECT__SERVER_EPHEMERAL=1"
# Of /proc/PID/stat, counted after the name in brackets: what it does, and its start in clock ticks since boot.
STATE, STARTED = 0, 19


def process_name() -> str:
    """Name of this process, `machine/process/start`, that no other one has or will have."""
    facts = _facts(os.getpid())
    return f"{_machine()}/{os.getpid()}/{facts[STARTED] if facts else 0}"


def is_running(name: str) -> bool | None:
    """Whether the process of that name runs; None where that cannot be told: it was another machine's, for one."""
    machine, _, rest = name.partition("/")
    process, _, started = rest.partition("/")
    if machine != _machine() or not (process.isdecimal() and started.isdecimal()):
        return None
    try:
        os.kill(int(process), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    except OverflowError:
        return None
    facts = _facts(int(process))
    # The number may be another process's by now; one whose parent has not looked yet runs no more.
    return None if facts is None else facts[STARTED] == started and facts[STATE] not in ("Z", "X")


def end_orphaned_servers() -> int:
    """End the Prefect servers, some 200 MB each, that commands of ours left behind when they were killed.

    One is ended where its environment names the command of ours that started it and that command is gone.

    Returns:
        How many were told to end.
    """
    ended = 0
    for folder in PROC.glob("[0-9]*"):
        try:
            words = _texts(folder / "cmdline")
            if not all(word in words for word in SERVER_WORDS) or folder.stat().st_uid != os.getuid():
                continue
            variables = dict(one.partition("=")[::2] for one in _texts(folder / "environ"))
            # In a container beside us process numbers mean others.
            is_here = (folder / "ns" / "pid").stat().st_ino == _number_space()
        except OSError:  # it ended just now, or is not to be looked at
            continue
        name, _, value = SERVER_VARIABLE.partition("=")
        if is_here and variables.get(name) == value and is_running(variables.get(STARTED_BY, "")) is False:
            LOGGER.info("ending the Prefect server (process %s) of a command that was killed", folder.name)
            try:
                os.kill(int(folder.name), signal.SIGTERM)
            except (ProcessLookupError, PermissionError):
                continue
            ended += 1
    return ended


def _machine() -> str:
    """This machine, as far as process numbers mean the same: containers may share a host's name."""
    space = _number_space()
    host = socket.gethostname().replace("/", "-")
    return host if space is None else f"{host}:{space}"


def _number_space() -> int | None:
    """The kernel's number of the space that process numbers are counted in; None where there is no such thing."""
    try:
        return (PROC / "self" / "ns" / "pid").stat().st_ino
    except OSError:
        return None


def _facts(process: int) -> list[str] | None:
    """What the kernel says of a process after its name, which may hold blanks and brackets; None if nothing."""
    try:
        text = (PROC / str(process) / "stat").read_text(errors="replace")
    except OSError:
        return None
    facts = text.rpartition(")")[2].split()
    return facts if len(facts) > STARTED else None


def _texts(path: Path) -> list[str]:
    return path.read_bytes().decode(errors="replace").split("\0")
