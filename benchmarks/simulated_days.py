"""Days of work in a store of its own, for the figures on cost and size: GPU samples, decisions, models, documents."""

from __future__ import annotations

import os
import shutil
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
GPU_COUNT = 10
ROUNDS_A_DAY = 288
ROUND_MINUTES = 5
ROUND_SECONDS = 60 * ROUND_MINUTES
# What one round decides on 10 GPUs: each GPU's utilization, residuals, variance, shift, and three tables' quality.
DECISIONS_A_ROUND = GPU_COUNT + 6


def enter_store(root: Path) -> None:
    """Point this process and its children at a store of its own; trainings are small and quick.

    Stores side by side share the Prefect home of the folder that they lie in.
    """
    (root / "mlruns").mkdir(parents=True, exist_ok=True)
    os.environ.update(
        {
            "WARPGAUGE_DATA_DIR": str(root / "data"),
            "WARPGAUGE_MLFLOW_URI": f"sqlite:///{root / 'mlruns' / 'mlflow.db'}",
            "WARPGAUGE_THREADS": "1",
            "WARPGAUGE_LATENCY_TREES": "40",
            "WARPGAUGE_LATENCY_LEARNING_RATE": "0.2",
            "WARPGAUGE_DOCQUALITY_ROUNDS": "0",
            "PREFECT_HOME": str(root.parent / "prefect"),
            "PREFECT_LOGGING_LEVEL": "WARNING",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "300",
            "DO_NOT_TRACK": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
    )


def gpu_samples(start: datetime, seconds: int, *, seed: int = 0) -> pl.DataFrame:
    """A reading a second of each GPU from `start` on, as DCGM gives it."""
    from warpgauge.tables import GPU_SAMPLES

    random = np.random.default_rng(seed)
    count = seconds * GPU_COUNT
    first = np.datetime64(int(start.timestamp() * 1e6), "us")
    times = first + np.repeat(np.arange(seconds), GPU_COUNT).astype("timedelta64[s]")
    frame = pl.DataFrame(
        {
            "gpu_uuid": [f"GPU-{gpu:08x}-5f3a-4c1e-9d2b-{gpu:012x}" for gpu in range(GPU_COUNT)] * seconds,
            "sampled_at": pl.Series(times).dt.replace_time_zone("UTC"),
            "source_kind": "dcgm",
            "source_name": "host-1",
            "gpu_name": "NVIDIA H100 80GB HBM3",
            "utilization_percent": random.integers(0, 90, count).astype(float),
            "memory_utilization_percent": random.integers(0, 101, count).astype(float),
            "memory_used_bytes": random.integers(1_000, 80_000, count) * 1_048_576,
            "memory_total_bytes": 85_520_809_984,
            "sm_clock_mhz": random.choice([345.0, 1155.0, 1980.0], count),
            "memory_clock_mhz": 2619.0,
            "temperature_celsius": random.integers(30, 80, count).astype(float),
            "power_w": random.normal(400, 100, count).clip(60).round(2),
            "pcie_rx_kb_per_s": random.integers(0, 200_000, count).astype(float),
            "pcie_tx_kb_per_s": random.integers(0, 200_000, count).astype(float),
            "pcie_link_generation": 5,
            "pcie_link_width": 16,
        }
    )
    collected_at = start + timedelta(seconds=seconds)
    return GPU_SAMPLES.conform(frame.with_columns(pl.lit(collected_at).alias("collected_at")))


def launches(start: datetime, *, seed: int = 0, trials: int = 3) -> pl.DataFrame:
    """Measured-looking launches of lines on two GPUs, 160 a trial."""
    from warpgauge.launches.simulator import SYSTEMS, simulate_launches
    from warpgauge.tables import TIME

    made = simulate_launches(seed, lengths=range(1, 120, 3), trials=trials, systems=SYSTEMS[:2]).frame
    made = made.filter(pl.col("topology").is_in(["straight_line", "parallel_lines"]))
    return made.with_columns(
        pl.concat_str(pl.lit(f"measured-{seed}-"), "launch_id").alias("launch_id"),
        pl.lit("probe").alias("source_kind"),
        pl.lit("probe").alias("source_name"),
        pl.lit(False).alias("is_simulated"),
        pl.lit(start, dtype=TIME).alias("collected_at"),
        pl.col("first_launch_api_us") * pl.when(pl.col("node_count") > 60).then(1.8).otherwise(1.0),
    )


def reports(count: int, fetched_at: datetime, *, seed: int = 0) -> pl.DataFrame:
    """Reports of some 60 words, of which every third is of a defect in the documentation."""
    from tests.fakes import DEFECT_WORDS, OTHER_WORDS
    from warpgauge.tables import DOCUMENTS

    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        words = random.choice(DEFECT_WORDS if number % 3 == 0 else OTHER_WORDS, 40)
        mixed = random.choice([*OTHER_WORDS, *DEFECT_WORDS], 20)
        name = f"report-{seed}-{number}"
        rows.append(
            {
                "document_id": name,
                "source": "made/up",
                "source_id": name,
                "family": "report",
                "title": " ".join(words[:5]),
                "body": " ".join([*words[5:], *mixed]),
                "fetched_at": fetched_at,
                "content_sha256": name,
                "redaction_count": 0,
            }
        )
    return DOCUMENTS.conform(pl.DataFrame(rows))


def labels(documents: pl.DataFrame, labelled_at: datetime) -> pl.DataFrame:
    """A person's label of each report."""
    from warpgauge.tables import LABELS

    return LABELS.conform(
        pl.DataFrame(
            {
                "document_id": documents["document_id"],
                "annotator": "person",
                "labelled_at": labelled_at,
                "label_source": "human",
                "is_defect": [number % 3 == 0 for number in range(documents.height)],
            }
        )
    )


def decisions(decided_at: datetime) -> pl.DataFrame:
    """One quiet round of the monitor, as its rows are."""
    from warpgauge.drift.decision import SignalState
    from warpgauge.tables import DECISIONS

    subjects = [("utilization_p95", f"GPU-{gpu:08x}-5f3a-4c1e-9d2b-{gpu:012x}") for gpu in range(GPU_COUNT)]
    subjects += [("residuals", "launch-latency"), ("embedding_variance", "doc-quality")]
    subjects += [("embedding_shift", "doc-quality")]
    subjects += [("data_quality", name) for name in ("launches", "documents", "gpu_samples")]
    run = os.urandom(16).hex()
    state = SignalState(last_reading="quiet", quiet_minutes=1440.0, decided_at=decided_at).to_json()
    rows = [
        {
            "decision_id": os.urandom(32).hex(),
            "monitor_run_id": run,
            "decided_at": decided_at,
            "signal": signal,
            "subject": subject,
            "status": "measured",
            "value": float(np.random.default_rng().normal(50, 10)),
            "lower": 40.0,
            "upper": 60.0,
            "limit": 92.0,
            "sample_count": 86_400,
            "action": "none",
            "reason": "p95 84.2 % of 86400 valid, 0 rejected, 0 missing readings against 92 %: below its limit, quiet",
            "state": state,
        }
        for signal, subject in subjects
    ]
    return DECISIONS.conform(pl.DataFrame(rows))


def train_champions(*, force: bool = False) -> list[str]:
    """Train both models on what the tables hold and register them; the gate's word on each."""
    from tasks import registration, training
    from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY

    said = []
    for name, train in ((LAUNCH_LATENCY, training.train_latency), (DOC_QUALITY, training.train_docquality)):
        plan: dict[str, Any] = training.plan_training(name, force=force)
        bundle = train(plan, "simulated day")
        said.append(str(registration.apply_gate(bundle, registration.register(bundle))["outcome"]))
        shutil.rmtree(bundle)
    return said


def folder_bytes(folder: Path) -> int:
    """Bytes of all files under a folder."""
    return sum(file.lstat().st_size for file in folder.rglob("*") if file.is_file())


def midnight_before(days: float) -> datetime:
    """So many days ago, to the second."""
    return datetime.now(UTC).replace(microsecond=0) - timedelta(days=days)
