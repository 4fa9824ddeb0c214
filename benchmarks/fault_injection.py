"""What a fault in each task leaves behind, and whether the next run recovers: makes the table of docs/faults.md.

    python benchmarks/fault_injection.py [--flow NAME] [--task NAME] [--fault NAME] [--write docs/faults.md]

For every task of the flows in turn: its work is done and then it raises, or its process is killed (SIGKILL); or the
disk is full, MLflow away or Prefect's server away from the moment it begins. Afterwards the tables must hold each row
at most once and nothing torn, and the registry no version that nobody judged as champion. Then the fault is gone and
the same flow runs again: it must end as a run without a fault ends, with no lease held and no run left open.

Each run is a process of its own, forked from one that has the libraries loaded; small sources, an encoder without
weights. The full disk is a tmpfs of its own, so that part needs root; without it, it is said and the exit code is 1.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
FAULTS = ("exception", "kill", "disk full", "MLflow down", "Prefect down")
DEAD_MLFLOW = "http://127.0.0.1:9"
RUN_LIMIT_S = 240
RECOVERY_ROUNDS = 4
TMPFS_SPARE_MB = 96

# Flow -> (module, name of the task in it, what the table calls it).
TASKS: dict[str, tuple[tuple[str, str], ...]] = {
    "collect": (
        ("flows.collect_sources", "choose_launch_sources"),
        ("flows.collect_sources", "collect_launches"),
        ("flows.collect_sources", "collect_documents"),
        ("flows.collect_sources", "collect_telemetry"),
        ("flows.collect_sources", "collect_known_tables"),
        ("flows.collect_sources", "validate_tables"),
    ),
    "train-latency": tuple(
        ("flows.train_latency", name)
        for name in ("validate", "plan", "train", "register", "gate", "add_figures")
    ),
    "train-docquality": tuple(
        ("flows.train_docquality", name)
        for name in ("validate", "plan", "train", "register", "gate", "add_figures")
    ),
    "monitor": (
        ("flows.monitor_drift", "measure"),
        ("flows.monitor_drift", "decide"),
        ("flows.monitor_drift", "announce"),
        # The retraining that the monitor starts in its own process.
        ("flows.train_latency", "train"),
        ("flows.train_latency", "register"),
        ("flows.train_latency", "gate"),
    ),
}
TABLES = ("launches", "documents", "labels", "gpu_samples", "quarantine")


@dataclass(frozen=True)
class Fault:
    """One fault in one task."""

    kind: str
    module: str
    task: str


@dataclass
class World:
    """A store on a disk of its own, and the address of Prefect's server."""

    root: Path
    sources: Path

    def enter(self) -> None:
        """Point this process at the store; quick and small trainings."""
        from tasks import embedding
        from tests.fakes import FakeEncoder

        os.environ.update(
            {
                "WARPGAUGE_DATA_DIR": str(self.root / "data"),
                "WARPGAUGE_MLFLOW_URI": f"sqlite:///{self.root / 'mlruns' / 'mlflow.db'}",
                "WARPGAUGE_THREADS": "1",
                "WARPGAUGE_LATENCY_TREES": "40",
                "WARPGAUGE_LATENCY_LEARNING_RATE": "0.2",
                "WARPGAUGE_DOCQUALITY_ROUNDS": "0",
                # A second is enough to tell the dead from the living, and nothing waits between attempts.
                "WARPGAUGE_MONITOR_LEASE_MINUTES": "0.02",
                "WARPGAUGE_MONITOR_COOLDOWN_MINUTES": "0",
                "WARPGAUGE_MONITOR_DAILY_BUDGET": "20",
            }
        )
        embedding.load_encoder = FakeEncoder
        (self.root / "mlruns").mkdir(parents=True, exist_ok=True)


def run_flow(world: World, flow: str) -> Any:
    """Run a flow and give its final state."""
    from flows.collect_sources import collect_sources
    from flows.monitor_drift import monitor_drift
    from flows.train_docquality import train_docquality
    from flows.train_latency import train_latency

    if flow == "collect":
        return collect_sources(
            launches=[str(next(world.sources.glob("*.csv")))],
            documents=[f"jsonl:{next(world.sources.glob('*.jsonl'))}"],
            return_state=True,
        )
    flows: dict[str, Callable[..., Any]] = {
        "train-latency": train_latency,
        "train-docquality": train_docquality,
        "monitor": monitor_drift,
    }
    return flows[flow](return_state=True)


def inject(world: World, fault: Fault, forwarder: int) -> None:
    """Change the task in this process so that the fault happens there."""
    import importlib

    task = getattr(importlib.import_module(fault.module), fault.task)
    whole = task.fn
    task.retries = 0

    def faulty(*args: Any, **kwargs: Any) -> Any:
        if fault.kind == "disk full":
            fill(world.root)
        elif fault.kind == "MLflow down":
            os.environ["WARPGAUGE_MLFLOW_URI"] = DEAD_MLFLOW
        elif fault.kind == "Prefect down":
            os.kill(forwarder, signal.SIGKILL)
        answer = whole(*args, **kwargs)
        if fault.kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if fault.kind == "exception":
            raise RuntimeError("injected")
        return answer

    task.fn = faulty


def fill(folder: Path) -> None:
    """Leave no byte free on the disk of the folder."""
    with (folder / "filler").open("wb", buffering=0) as filler:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while True:
                    filler.write(b"\0" * size)
            except OSError:
                continue


def in_process(work: Callable[[], dict[str, Any]], log: Path) -> dict[str, Any]:
    """What the work answers in a forked process; `{"killed": true}` where it was killed."""
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "answer.json"

        def run() -> None:
            descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            answer.write_text(json.dumps(work(), default=str))

        process = multiprocessing.get_context("fork").Process(target=run)
        process.start()
        process.join(RUN_LIMIT_S)
        if process.is_alive():
            process.kill()
            process.join()
            return {"state": f"no end within {RUN_LIMIT_S} s"}
        if process.exitcode == -signal.SIGKILL:
            return {"state": "killed"}
        if not answer.exists():
            return {"state": f"exit code {process.exitcode}"}
        return dict(json.loads(answer.read_text()))


def once(world: World, flow: str, fault: Fault | None, forwarder: int) -> dict[str, Any]:
    """One run of the flow, with the fault or without."""
    from tasks.presentation import exit_code

    world.enter()
    if fault is not None:
        inject(world, fault, forwarder)
    try:
        state = run_flow(world, flow)
    except Exception as error:  # noqa: BLE001 - whatever a flow raises is what this program is about
        return {"state": f"raised {type(error).__name__}", "message": str(error)[:300]}
    answer = {"state": state.name, "message": str(state.message)[:300]}
    if state.is_completed():
        result = state.result()
        answer["exit"] = exit_code(result)
        answer["named"] = [*(result.get("refused") or []), result.get("unavailable")]
    return answer


def look(world: World) -> dict[str, Any]:
    """What the store holds now: hashes of the keys of each table, champions, versions, what was left open."""
    import polars as pl

    from tasks import leases
    from tasks.registration import list_versions
    from tasks.storage import Store
    from tasks.tracking import connect, experiment_id
    from warpgauge.registry.names import MODEL_NAMES
    from warpgauge.tables import TABLES as DEFINED

    world.enter()
    store = Store()
    tables = {}
    for name in TABLES:
        keys = store.read(name).select(DEFINED[name].key).collect()
        if keys.is_duplicated().any():
            return {"problem": f"table {name} holds a row twice"}
        # A label is stamped when it is first seen, which differs from run to run.
        keys = keys.select(pl.exclude(pl.Datetime))
        lines = sorted(json.dumps(row, default=str) for row in keys.iter_rows())
        tables[name] = [len(lines), hashlib.sha256("\n".join(lines).encode()).hexdigest()[:12]]
    listed = list_versions()["models"]
    unjudged_champion = [
        model["model_name"]
        for model in listed
        for version in model["versions"]
        if version["version"] == model["champion"] and version["gate"] is None
    ]
    client = connect()
    running = client.search_runs([experiment_id(client)], "attributes.status = 'RUNNING'")
    decisions = (
        store.read("decisions").filter(pl.col("action") == "retrain").select(pl.len()).collect().item()
    )
    return {
        "tables": tables,
        "champions": {model["model_name"]: model["champion"] for model in listed},
        "judged": {
            model["model_name"]: sum(version["gate"] is not None for version in model["versions"])
            for model in listed
        },
        "unjudged_champion": unjudged_champion,
        "open_runs": len(running),
        "held": [name for name in MODEL_NAMES if leases.is_held(f"train {name}")],
        "orders": decisions,
    }


def make_base(world: World, flow: str) -> dict[str, Any]:
    """Bring a fresh store to where the flow begins."""
    from datetime import UTC, datetime

    import polars as pl

    from tasks.storage import Store
    from tests.fakes import write_launches
    from warpgauge.launches.perfscaling import read_perfscaling

    world.enter()
    if flow != "collect":
        run_flow(world, "collect")
    if flow == "monitor":
        for trained in ("train-latency", "train-docquality"):
            assert run_flow(world, trained).result()["outcome"] == "promote"
        slower = write_launches(world.root, range(1, 101), trials=4, seed=5, us_per_node=0.6)
        frame = read_perfscaling(str(slower)).frame.with_columns(
            pl.lit(datetime.now(UTC)).alias("collected_at")
        )
        Store().append("launches", frame)
    return {}


def is_done(flow: str, seen: dict[str, Any], wanted: dict[str, Any]) -> bool:
    """Whether the store is where a run without a fault leaves it."""
    same = seen.get("tables") == wanted["tables"] and seen.get("champions") is not None
    if flow == "monitor":
        return bool(same and seen["champions"]["launch-latency"] not in (None, "1"))
    return bool(
        same
        and {k: v is None for k, v in seen["champions"].items()}
        == {k: v is None for k, v in wanted["champions"].items()}
    )


def verdict(
    flow: str,
    broken: dict[str, Any],
    after: dict[str, Any],
    rounds: int,
    recovered: dict[str, Any],
    seen: dict[str, Any],
    wanted: dict[str, Any],
) -> str:
    """One cell of the table; it begins with `WRONG` where something is."""
    wrong = []
    for name, found in (("after the fault", after), ("after the recovery", seen)):
        if "problem" in found:
            wrong.append(f"{name}: {found['problem']}")
        elif found.get("unjudged_champion"):
            wrong.append(f"{name}: champion that nobody judged")
        elif "tables" not in found:
            wrong.append(f"{name}: the store cannot be read: {found.get('state')} {found.get('message', '')}")
    if not wrong:
        if not is_done(flow, seen, wanted):
            wrong.append(f"not recovered: {recovered.get('state')} {recovered.get('message', '')}")
        if seen["held"]:
            wrong.append(f"lease held: {seen['held']}")
        if seen["open_runs"]:
            wrong.append(f"{seen['open_runs']} runs left open")
    said = str(broken["state"])
    if said == "Completed":
        said += f", exit {broken.get('exit')}" + (", named" if any(broken.get("named") or []) else "")
    kept = "nothing was done yet" if after.get("tables") == {} else said
    text = f"{kept}; whole again after {rounds} run{'s' if rounds > 1 else ''}"
    return f"WRONG: {'; '.join(wrong)} ({said})" if wrong else text


@contextmanager
def disk(is_small: bool, folder: Path) -> Iterator[Path]:
    """A folder on a disk of its own where it must be possible to fill it."""
    if not is_small:
        yield folder
        return
    size = (
        sum(path.stat().st_size for path in folder.rglob("*") if path.is_file()) // (1 << 20) + TMPFS_SPARE_MB
    )
    place = folder.with_name(folder.name + "-disk")
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}m", "none", str(place)], check=True)
    try:
        shutil.copytree(folder, place, dirs_exist_ok=True)
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


class Forwarder:
    """A process between the flows and Prefect's server, which can be killed and started again."""

    def __init__(self, port: int, target: int) -> None:
        self._command = [sys.executable, __file__, "--forward", str(port), str(target)]
        self.port = port
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> int:
        """The process id of a running one."""
        if self._process is None or self._process.poll() is not None:
            self._process = subprocess.Popen(self._command)
            wait_for(self.port)
        return self._process.pid

    def stop(self) -> None:
        """End it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()


def forward(port: int, target: int) -> None:
    """Pass bytes between a port and another until killed."""
    import asyncio

    async def pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
                await writer.drain()
        except OSError:
            pass  # either side may leave at any time: that is what this process is for
        finally:
            writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, back = await asyncio.open_connection("127.0.0.1", target)
        await asyncio.gather(pump(reader, back), pump(there, writer))

    async def run() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", port)
        await server.serve_forever()

    asyncio.run(run())


def free_port() -> int:
    """A port that nobody uses now."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return int(one.getsockname()[1])


def wait_for(port: int, limit_s: float = 90) -> None:
    """Until somebody listens."""
    end = time.monotonic() + limit_s
    while time.monotonic() < end:
        with socket.socket() as one:
            if one.connect_ex(("127.0.0.1", port)) == 0:
                return
        time.sleep(0.2)
    raise SystemExit(f"nothing listens on port {port}")


def one_case(
    world: World, flow: str, fault: Fault, forwarder: Forwarder, wanted: dict[str, Any], log: Path
) -> str:
    """One fault, what it leaves, and the runs after it."""
    pid = forwarder.start()
    broken = in_process(lambda: once(world, flow, fault, pid), log)
    (world.root / "filler").unlink(missing_ok=True)
    forwarder.start()
    after = in_process(lambda: look(world), log)
    recovered: dict[str, Any] = {}
    seen: dict[str, Any] = {}
    rounds = 0
    while rounds < RECOVERY_ROUNDS:
        rounds += 1
        recovered = in_process(lambda: once(world, flow, None, 0), log)
        seen = in_process(lambda: look(world), log)
        if is_done(flow, seen, wanted) and not seen["open_runs"]:
            break
        time.sleep(1.5)
    return verdict(flow, broken, after, rounds, recovered, seen, wanted)


def main() -> int:
    """Print the table, write it where asked; exit 1 if a cell is wrong or could not be made."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--flow", choices=TASKS)
    parser.add_argument("--task")
    parser.add_argument("--fault", choices=FAULTS)
    parser.add_argument("--write", type=Path, help="Markdown file whose table is replaced")
    parser.add_argument("--forward", nargs=2, type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.forward:
        forward(*options.forward)
        return 0
    folder = Path(tempfile.mkdtemp(prefix="warpgauge-faults-"))
    server_port, port = free_port(), free_port()
    os.environ |= {
        "PREFECT_HOME": str(folder / "prefect"),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_CLIENT_MAX_RETRIES": "1",
        "DO_NOT_TRACK": "1",
        "OMP_NUM_THREADS": "1",
    }
    server = subprocess.Popen(
        [sys.executable, "-m", "prefect", "server", "start", "--port", str(server_port)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    forwarder = Forwarder(port, server_port)
    cells: dict[tuple[str, str], dict[str, str]] = {}
    try:
        wait_for(server_port)
        forwarder.start()
        load_libraries()
        sources = folder / "sources"
        sources.mkdir()
        in_process(lambda: write_sources(sources), folder / "log.txt")
        for flow, tasks in TASKS.items():
            if options.flow in (None, flow):
                make_rows(folder, flow, tasks, options, forwarder, cells)
    finally:
        forwarder.stop()
        os.killpg(server.pid, signal.SIGTERM)
    print(f"\nlog: {folder / 'log.txt'}")
    if options.write:
        write_table(options.write, cells)
    return (
        1
        if any(text.startswith(("WRONG", "not made")) for row in cells.values() for text in row.values())
        else 0
    )


def load_libraries() -> None:
    """Import what the forked processes need, and run nothing: threads do not survive a fork."""


def write_sources(sources: Path) -> dict[str, Any]:
    """Small files that the flows collect."""
    from tests.fakes import write_launches, write_reports

    write_launches(sources, range(1, 101), trials=4)
    write_reports(sources)
    return {}


def make_rows(folder: Path, flow: str, tasks: Any, options: Any, forwarder: Forwarder, cells: Any) -> None:
    """The rows of one flow."""
    log = folder / "log.txt"
    base = World(folder / flow, folder / "sources")
    base.root.mkdir()
    in_process(lambda: make_base(base, flow), log)
    clean = copy_of(base, "clean")
    done = in_process(lambda: once(clean, flow, None, 0), log)
    wanted = in_process(lambda: look(clean), log)
    if not str(done["state"]).startswith("Completed") or "tables" not in wanted:
        raise SystemExit(f"{flow} without a fault: {done}, {wanted}; see {log}")
    for module, task in tasks:
        if options.task not in (None, task):
            continue
        row = cells.setdefault(
            (
                flow,
                f"{task}{'' if module.endswith(flow.replace('-', '_')) or flow == 'collect' else ' (retraining)'}"
                if flow == "monitor"
                else task,
            ),
            {},
        )
        for kind in FAULTS:
            if options.fault not in (None, kind):
                continue
            world = copy_of(base, f"{task}-{kind.replace(' ', '-')}-{module.rpartition('.')[2]}")
            start = time.monotonic()
            try:
                with disk(kind == "disk full", world.root) as root:
                    row[kind] = one_case(
                        World(root, world.sources), flow, Fault(kind, module, task), forwarder, wanted, log
                    )
            except subprocess.CalledProcessError as error:
                row[kind] = f"not made: {error}"
            print(f"{flow:17} {task:22} {kind:13} {time.monotonic() - start:5.1f} s  {row[kind]}", flush=True)
            shutil.rmtree(world.root, ignore_errors=True)


def copy_of(base: World, name: str) -> World:
    """A copy of the store under another name; its registry finds its files by itself."""
    place = base.root.with_name(f"{base.root.name}-{name}")
    shutil.copytree(base.root, place)
    return World(place, base.sources)


def write_table(path: Path, cells: dict[tuple[str, str], dict[str, str]]) -> None:
    """Replace the table between the marks of the file."""
    lines = ["| flow | task | " + " | ".join(FAULTS) + " |", "|---" * (len(FAULTS) + 2) + "|"]
    lines += [
        f"| {flow} | {task.replace('_', ' ')} | " + " | ".join(row.get(fault, "-") for fault in FAULTS) + " |"
        for (flow, task), row in cells.items()
    ]
    begin, end = "<!-- table -->", "<!-- end of table -->"
    text = path.read_text()
    head, _, rest = text.partition(begin)
    tail = rest.partition(end)[2]
    path.write_text(f"{head}{begin}\n" + "\n".join(lines) + f"\n{end}{tail}")


if __name__ == "__main__":
    sys.exit(main())
