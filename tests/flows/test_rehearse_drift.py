"""A whole rehearsal by the command that people use."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from warpgauge.settings import PROJECT_ROOT


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["latency", "docquality"])
def test_rehearsal_ends_with_a_promoted_version_and_a_quiet_monitor(tmp_path: Path, kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "flows", "drill", kind, "--store", str(tmp_path / "store"), "--json"],
        cwd=PROJECT_ROOT,
        env=os.environ | {"WARPGAUGE_THREADS": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:] + done.stdout[-2000:]
    told = json.loads(done.stdout)
    assert (told["champion"], told["is_quiet"], told["refused"]) == ("2", True, [])
    assert Path(told["picture"]).stat().st_size > 10_000
    said = [moment["what"] for moment in told["moments"]]
    assert next(what for what in said if what.startswith("monitor")) == "monitor: quiet"
    assert "retrained: promote" in said
    assert said[-1] == "monitor: quiet"
