"""Stand-ins for what is slow or absent: an encoder without a network of 22 million weights, small sources."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

DIMENSIONS = 32


class FakeEncoder:
    """Hashed bag of words: the same text, the same vector; like texts, like vectors."""

    encoder_id = hashlib.sha256(b"fake encoder").hexdigest()
    dimensions = DIMENSIONS

    def encode(self, texts: Sequence[str | None]) -> NDArray[np.float32]:
        """Unit vectors, shape (texts, 32)."""
        vectors = np.zeros((len(texts), DIMENSIONS), dtype=np.float32)
        for row, text in enumerate(texts):
            for word in (text or "nothing").lower().split():
                digest = hashlib.sha256(word.encode()).digest()
                vectors[row, digest[0] % DIMENSIONS] += 1.0 if digest[1] % 2 else -1.0
            vectors[row, 0] += 1e-3
        return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


HEADER = (
    "length, width, pattern, capture, instantiation, first_launch_api, first_launch_total, repeat_launch_api, "
    "repeat_launch_total, first_launch_device, blockingKernelTimeoutDetected, repeat_launch_device, "
    "blockingKernelTimeoutDetected, upload_api_time, upload_device_time, blockingKernelTimeoutDetected,"
)


def write_launches(
    folder: Path, lengths: Sequence[int], *, trials: int = 5, us_per_node: float = 0.35, seed: int = 0
) -> Path:
    """A CSV as cudaGraphsPerfScaling writes it: lines whose slope doubles at 50 nodes, so that no line fits them."""
    random = np.random.default_rng(seed)
    lines = [HEADER]
    for length in lengths:
        for _ in range(trials):
            first = (2.0 + us_per_node * (length + 2 * max(0, length - 50))) * random.normal(1.0, 0.02)
            numbers = [
                3.0,
                8.0,
                first,
                first * 2,
                first * 0.6,
                first * 1.5,
                first,
                0.0,
                first,
                0.0,
                first,
                1.0,
                0.0,
            ]
            lines.append(f"{length}, 1, 0, " + ", ".join(f"{number:.3f}" for number in numbers) + ",")
    path = folder / f"NVIDIA-Test-GPU-16GB-cuda-12.9_straight-line-{seed}-{us_per_node}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


DEFECT_WORDS = [
    "documentation",
    "page",
    "link",
    "broken",
    "example",
    "outdated",
    "parameter",
    "described",
    "wrongly",
    "manual",
]
OTHER_WORDS = [
    "kernel",
    "crash",
    "stream",
    "allocation",
    "race",
    "memory",
    "segfault",
    "build",
    "compiler",
    "linker",
]


def write_reports(folder: Path, count: int = 160, *, seed: int = 0, name: str = "reports") -> Path:
    """JSON lines of labelled reports; a third of them tell of a defect in the documentation."""
    random = np.random.default_rng(seed)
    lines = []
    for number in range(count):
        is_defect = number % 3 == 0
        words = random.choice(DEFECT_WORDS if is_defect else OTHER_WORDS, 12)
        mixed = random.choice(OTHER_WORDS + DEFECT_WORDS, 6)
        record = {
            "source": "made/up",
            "source_id": f"{name}-{seed}-{number}",
            "title": " ".join(words[:4]),
            "body": " ".join([*words[4:], *mixed]),
            "label": "defect" if is_defect else "ok",
            "created_at": "2026-01-01T00:00:00Z",
        }
        lines.append(json.dumps(record))
    path = folder / f"{name}-{seed}.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


KERNEL_SPEC = """\
name = "{name}"
files = ["kernels*.csv"]
target = "latency"
unit = "ms"
numeric = ["m", "n", "k"]
categorical = ["dtype"]
text = ["device"]
shape = ["dtype", "m", "n", "k"]

[features]
tiles = "ceil(m / 128) * ceil(n / 128)"

[devices]
column = "device"
[devices.figures."Test GPU"]
peak_tflops = 100.0

[baseline]
by = ["device"]
flops = "2 * m * n * k"
bytes = "2 * (m * k + k * n + m * n)"
peak_flops_per_s = "peak_tflops * 1e12"
peak_bytes_per_s = "1e12"
"""


def write_kernel_spec(folder: Path, *, name: str = "tiny", more: str = "") -> Path:
    """Spec of a latency table whose files `write_kernels` writes beside it; `more` is put before its sections."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{name}.toml"
    path.write_text(more + KERNEL_SPEC.format(name=name))
    return path


def write_kernels(
    folder: Path, count: int = 600, *, seed: int = 0, few_tiles: float = 1.0, slower: float = 1.0
) -> Path:
    """A CSV of matrix products on one device: 4 us and twice the roofline, half as much again in float32.

    Args:
        folder: Where it is written.
        count: Rows, each of another shape.
        seed: Of shapes and noise.
        few_tiles: Factor on products of fewer than 64 tiles: a law that no size alone tells.
        slower: Power of all over 4 us: another law, which no single factor on the old one is.
    """
    random = np.random.default_rng(seed)
    lines = ["device,dtype,m,n,k,latency"]
    for m, n, k in 16 * random.integers(2, 256, (count, 3)):
        dtype = str(random.choice(["float16", "float32"]))
        roofline_us = max(2.0 * m * n * k / 100e12, 2.0 * (m * k + k * n + m * n) / 1e12) * 1e6
        tiles = -(-m // 128) * -(-n // 128)
        latency_us = (4.0 + 2.0 * roofline_us) * (1.5 if dtype == "float32" else 1.0)
        latency_us = 4.0 * (latency_us / 4.0) ** slower
        latency_us *= (few_tiles if tiles < 64 else 1.0) * random.normal(1.0, 0.02)
        lines.append(f"Test GPU,{dtype},{m},{n},{k},{latency_us / 1e3:.8f}")
    path = folder / f"kernels-{seed}-{few_tiles}-{slower}.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


ROUNDS_BEGIN = datetime(2026, 3, 1, tzinfo=UTC)


def decision_row(
    minutes: float = 0,
    value: float | None = 50.0,
    *,
    signal: str = "utilization_p95",
    subject: str = "GPU-1",
    phase: str = "quiet",
    state: Mapping[str, Any] | None = None,
    **columns: Any,
) -> dict[str, Any]:
    """A row of `tables.DECISIONS`, so many minutes after `ROUNDS_BEGIN`; one without a value cannot say."""
    decided_at = ROUNDS_BEGIN + timedelta(minutes=minutes)
    row = {
        "decision_id": f"{signal}/{subject}/{minutes}",
        "monitor_run_id": f"run-{minutes:g}",
        "decided_at": decided_at,
        "signal": signal,
        "subject": subject,
        "model_name": "launch-latency",
        "model_version": "3",
        "status": "cannot_say" if value is None else "measured",
        "value": value,
        "lower": None if value is None else value - 2,
        "upper": None if value is None else value + 1,
        "limit": 92.0,
        "sample_count": 12 if value is None else 1234,
        "action": "wait" if value is None else "none",
        "reason": "cannot say, too few: 12 of 50" if value is None else f"within its limit: p95 {value:g} %",
        "episode_id": None,
        "alert_cause": None,
        "state": json.dumps({"phase": phase, "decided_at": decided_at.isoformat(), **(state or {})}),
        "details": None,
    }
    return {**row, **columns}
