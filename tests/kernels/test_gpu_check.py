"""infra/gpu_check.sh from end to end, with stand-ins for the GPU's driver, nvidia-smi and the product."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "infra" / "gpu_check.sh"
MEASURED = {
    "decisions": [
        {
            "signal": "utilization_p95",
            "subject": "GPU-1",
            "status": "measured",
            "value": 12.0,
            "sample_count": 60,
            "reason": "below the limit",
        }
    ]
}


@pytest.fixture
def run(tmp_path: Path):
    """Runs the script; nvidia-smi names one GPU, `warpgauge` answers what a healthy machine would."""
    (tmp_path / "monitor.json").write_text(json.dumps(MEASURED))
    fakes = {
        "nvidia-smi": "echo 'GPU 0: Fake GPU'",
        "warpgauge": f'[ "$1" = monitor ] && cat {tmp_path}/monitor.json || echo "$@"',
    }
    for name, body in fakes.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / name).chmod(0o755)

    def run_script(library: Path) -> subprocess.CompletedProcess[str]:
        environment = os.environ | {
            "PATH": f"{tmp_path}:{os.environ['PATH']}",
            "WARPGAUGE": str(tmp_path / "warpgauge"),
            "PYTHON": sys.executable,
            "CUDA_LIBRARY": str(library),
            "KERNEL_REPORT": str(tmp_path / "report"),
            "SAMPLES": "2",
            "TIMING_ROWS": "100",
        }
        return subprocess.run(
            ["bash", str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
        )

    return run_script


def test_a_healthy_machine_passes_and_prints_the_figures(run, fake_library) -> None:
    done = run(fake_library)
    assert done.returncode == 0, done.stderr
    for name in ("scale_features", "top_k"):
        assert (
            f"{name}: 1000 cases, 0 disagree, largest difference 0 (limit 1e-05), 32 registers" in done.stdout
        )
    assert "1.500 ms for 100 rows x 142 features" in done.stdout
    assert "GPU-1: measured, p95 12.0 %" in done.stdout


def test_kernels_that_disagree_fail_it_after_telemetry_was_checked_too(run, build_fake, tmp_path) -> None:
    done = run(build_fake("-DWARPGAUGE_WRONG_TIES"))
    assert done.returncode == 1
    assert "GPU-1: measured" in done.stdout
    assert "top_k disagree with the specification" in done.stdout
    assert "telemetry is well, the kernels are not" in done.stderr
    assert (tmp_path / "report" / "top_k" / "report.json").is_file()


def test_a_driver_that_cannot_be_loaded_fails_it(run, tmp_path) -> None:
    done = run(tmp_path / "none.so")
    assert done.returncode == 2
    assert "kernels: not checked:" in done.stdout
