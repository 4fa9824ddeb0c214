"""Prefect server side: deployments, schedules, automations, and whether anybody listens to an event."""

from __future__ import annotations

import re
import subprocess
import sys
from typing import Any

from warpgauge.errors import ServiceUnavailableError
from warpgauge.settings import PROJECT_ROOT

WORK_POOL = "warpgauge"
AUTOMATION_PREFIX = "warpgauge "


def server_url() -> str | None:
    """Address of the Prefect server in use, None where flows run on a server of their own process."""
    from prefect.settings import get_current_settings

    return get_current_settings().api.url


def deploy() -> dict[str, Any]:
    """Apply `prefect.yaml` to the server: work pool, deployments, schedules, automations.

    Applying it again changes what differs and doubles nothing.

    Raises:
        ServiceUnavailableError: If no server is set or it refuses.
    """
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
        "next": f"start a worker in this checkout: prefect worker start --pool {WORK_POOL}",
    }


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
        except (OSError, _http_error()) as error:
            raise unreachable(error) from error


def _listed() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Deployments and our automations, as the server has them."""
    from prefect.client.orchestration import get_client

    with get_client(sync_client=True) as client:
        try:
            deployments = client.read_deployments()
            automations = client.read_automations()
        except (OSError, _http_error()) as error:
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
        if automation.name.startswith(AUTOMATION_PREFIX)
    ]
    return named, waiting


def _http_error() -> type[Exception]:
    from httpx import HTTPError

    return HTTPError
