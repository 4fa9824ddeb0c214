"""Prefect server side: deployments, schedules, automations, and whether anybody listens to an event."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from warpgauge.automations import NAME_PREFIX, Emitted, FlowFacts, find_problems
from warpgauge.drift.decision import ALERT_CAUSES
from warpgauge.errors import ServiceUnavailableError, SettingsError
from warpgauge.registry.names import DOC_QUALITY
from warpgauge.settings import PROJECT_ROOT

WORK_POOL = "warpgauge"
DEPLOYMENTS_FILE = PROJECT_ROOT / "prefect.yaml"
DOCQUALITY_EVENT, LATENCY_EVENT = "warpgauge.drift.docquality", "warpgauge.drift.latency"
ALERT_EVENT_PREFIX = "warpgauge.alert."
# What the payloads of the events hold: those of an order, and of an alert.
ORDER_FIELDS = ("model_name", "attempt_id", "reason", "signal", "table", "folder")
ALERT_FIELDS = (
    "alert_id",
    "cause",
    "signal",
    "subject",
    "model_name",
    "reason",
    "episode_id",
    "decided_at",
)


def server_url() -> str | None:
    """Address of the Prefect server in use, None where flows run on a server of their own process."""
    from prefect.settings import get_current_settings

    return get_current_settings().api.url


def deploy() -> dict[str, Any]:
    """Apply `prefect.yaml` to the server: work pool, deployments, schedules, automations.

    Applying it again changes what differs and doubles nothing. What is ours on the server and not in the file, by
    hand or by an earlier version of it, stays and is named in `not_in_file`.

    Raises:
        SettingsError: If the file holds what would harm, before anything is applied.
        ServiceUnavailableError: If no server is set or it refuses.
    """
    check_deployments(DEPLOYMENTS_FILE)
    url = server_url()
    if url is None:
        raise ServiceUnavailableError(
            "no Prefect server: PREFECT_API_URL is not set; start one with `prefect server start`, "
            "set PREFECT_API_URL=http://127.0.0.1:4200/api and run this again"
        )
    _create_work_pool()
    command = [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--all"]
    done = subprocess.run(command, cwd=PROJECT_ROOT, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ServiceUnavailableError(
            f"Prefect at {_shown(url)} refused prefect.yaml: {(done.stdout + done.stderr)[-1500:]}"
        )
    deployments, automations = _listed()
    return {
        "server": _shown(url),
        "work_pool": WORK_POOL,
        "deployments": deployments,
        "automations": automations,
        "not_in_file": _not_in_file(DEPLOYMENTS_FILE, deployments, automations),
        "next": f"start a worker in this checkout: prefect worker start --pool {WORK_POOL}",
    }


def check_deployments(path: Path) -> None:
    """Refuse a `prefect.yaml` with an automation that would fire on everything, never, or without end.

    Raises:
        SettingsError: Naming everything that is wrong.
    """
    problems = find_problems(_parsed(path), read_flows(path.parent), emitted_events())
    if problems:
        said = "; ".join(problems)
        raise SettingsError(f"{path.name} was not applied: {said}")


def emitted_events() -> dict[str, Emitted]:
    """Every event that our flows emit, by its name."""
    orders = frozenset(ORDER_FIELDS)
    alert = frozenset(ALERT_FIELDS)
    emitted = [
        # Those of latency tables have the name of their model too.
        Emitted(LATENCY_EVENT, orders, "warpgauge.model.*"),
        Emitted(DOCQUALITY_EVENT, orders, f"warpgauge.model.{DOC_QUALITY}"),
        *(Emitted(ALERT_EVENT_PREFIX + cause, alert, "warpgauge.signal.*") for cause in ALERT_CAUSES),
    ]
    return {event.name: event for event in emitted}


def read_flows(root: Path) -> dict[str, FlowFacts]:
    """The flows under `flows/` by entrypoint, read and not imported: what each takes, runs, emits and trains."""
    found: dict[str, tuple[str, frozenset[str], set[str]]] = {}
    for file in sorted((root / "flows").glob("[!_]*.py")):
        module = ast.parse(file.read_text())
        used = {
            name
            for node in module.body
            if isinstance(node, ast.ImportFrom)
            for alias in node.names
            for name in (
                [alias.name] if node.module in ("flows", "tasks") else [str(node.module).rpartition(".")[2]]
            )
        }
        for node in module.body:
            if isinstance(node, ast.FunctionDef) and (name := _flow_name(node)) is not None:
                taken = frozenset(one.arg for one in [*node.args.args, *node.args.kwonlyargs])
                found[file.stem] = (name, taken, used)
    events = frozenset(emitted_events())
    facts = {}
    for stem, (_, parameters, _) in found.items():
        below = _with_subflows(stem, {name: used & set(found) for name, (_, _, used) in found.items()})
        facts[f"flows/{stem}.py:{stem}"] = FlowFacts(
            parameters=parameters,
            runs=frozenset(found[name][0] for name in below),
            emits=events if any("announcement" in found[name][2] for name in below) else frozenset(),
            is_training="leases" in found[stem][2],
        )
    return facts


def _flow_name(function: ast.FunctionDef) -> str | None:
    """The name under which a function is a flow; None where it is none."""
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "flow":
            for keyword in decorator.keywords:
                if keyword.arg == "name" and isinstance(keyword.value, ast.Constant):
                    return str(keyword.value.value)
    return None


def _with_subflows(first: str, uses: dict[str, set[str]]) -> set[str]:
    """A flow's file and those of the flows that it runs."""
    reached: set[str] = set()
    ahead = [first]
    while ahead:
        if (one := ahead.pop()) not in reached:
            reached.add(one)
            ahead += uses[one]
    return reached


def _parsed(path: Path) -> Any:
    import yaml

    try:
        return yaml.safe_load(path.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SettingsError(f"{path} cannot be read: {' '.join(str(error).split())}; mend it") from error


def _named_in_file(path: Path) -> tuple[set[str], set[str]]:
    """Names of the deployments and of the automations in the file."""
    entries = _parsed(path)["deployments"]
    return {one["name"] for one in entries}, {
        trigger["name"] for one in entries for trigger in one.get("triggers") or []
    }


def _not_in_file(
    path: Path, deployments: list[dict[str, Any]], automations: list[dict[str, Any]]
) -> list[str]:
    """What is ours on the server and not in the file. Whether a person made it or an earlier file did, nothing says."""
    deployed, automated = _named_in_file(path)
    return [
        *(f"deployment {one['name']}" for one in deployments if one["name"] not in deployed),
        *(f"automation {one['name']}" for one in automations if one["name"] not in automated),
    ]


def has_automation(event: str) -> bool:
    """Whether a server is in use on which an enabled automation waits for the event."""
    if server_url() is None:
        return False
    return any(event in automation["expects"] and automation["is_enabled"] for automation in _listed()[1])


def unreachable(error: BaseException) -> ServiceUnavailableError:
    """What to tell of an error that Prefect raised because its server did not answer."""
    # Prefect's own words leave out why; the error behind them says it. A timeout says nothing but its name.
    why = error.__cause__ or error
    said = _shown(str(why)) or type(why).__name__
    url = server_url()
    if url is None:
        return ServiceUnavailableError(f"Prefect's server of this process did not start: {said}; run again")
    return ServiceUnavailableError(
        f"Prefect server {_shown(url)} cannot be used: {said}; start it, mend PREFECT_API_URL, or unset it "
        "to run without a server"
    )


def _shown(text: str) -> str:
    """An address, or a text that names it, without the login in it."""
    return re.sub(r"://[^/@\s]*@", "://***@", text)


def _create_work_pool() -> None:
    from prefect.client.orchestration import get_client
    from prefect.client.schemas.actions import WorkPoolCreate
    from prefect.exceptions import ObjectAlreadyExists

    with get_client(sync_client=True) as client:
        try:
            client.create_work_pool(WorkPoolCreate(name=WORK_POOL, type="process"))
        except ObjectAlreadyExists:
            return
        except (OSError, http_error()) as error:
            raise unreachable(error) from error


def _listed() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Deployments and our automations, as the server has them."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        try:
            deployments = client.read_deployments()
            automations = client.read_automations()
        except (OSError, http_error()) as error:
            raise unreachable(error) from error
    named = [
        {
            "name": deployment.name,
            "schedules": [
                str(getattr(entry.schedule, "cron", entry.schedule)) for entry in deployment.schedules
            ],
        }
        for deployment in deployments
        if deployment.work_pool_name == WORK_POOL
    ]
    waiting = [
        {
            "name": automation.name,
            "is_enabled": automation.enabled,
            "expects": sorted(getattr(automation.trigger, "expect", [])),
        }
        for automation in automations
        if automation.name.startswith(NAME_PREFIX)
    ]
    return named, waiting


def http_error() -> type[Exception]:
    from httpx import HTTPError

    return HTTPError
