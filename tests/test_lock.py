"""The lock names what is installed: a package that slipped past it would be another one on the next machine."""

import re
from importlib.metadata import distributions
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
# What every virtual environment brings, and the product itself.
NOT_LOCKED = {"pip", "setuptools", "wheel", "warpgauge"}


def normalised(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def locked() -> dict[str, str]:
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    return {normalised(line.split("==")[0]): line.split("==")[1] for line in lines if "==" in line}


def test_every_installed_package_has_the_version_of_the_lock() -> None:
    wanted = locked()
    installed = {normalised(found.metadata["Name"]): found.version.split("+")[0] for found in distributions()}
    differing = {
        name: (version, wanted.get(name))
        for name, version in installed.items()
        if name not in NOT_LOCKED and wanted.get(name) != version
    }
    assert differing == {}


def test_lock_holds_no_hash_and_no_local_version() -> None:
    text = (ROOT / "requirements.lock").read_text()
    assert "--hash" not in text
    assert all("+" not in version for version in locked().values())
