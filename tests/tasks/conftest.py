"""A small world with both champions, trained once a session; each test works on a copy of it."""

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest

from tests.fakes import FakeEncoder, write_kernel_spec, write_kernels
from warpgauge.registry.names import MODEL_NAMES
from warpgauge.tables import DOCUMENTS, LABELS, LAUNCHES

DEFECT_WORDS = ("documentation", "page", "link", "example", "outdated", "parameter", "manual", "wrongly")
CODE_WORDS = ("kernel", "crash", "stream", "allocation", "race", "memory", "segfault", "compiler")
# Before the window of the monitor, and never so long ago that a longer window would not reach it.
TRAINED_AT = datetime.now(UTC) - timedelta(days=2)


def _measured_launches(
    *, seed: int = 0, collected_at: datetime = TRAINED_AT, slower: float = 1.0
) -> pl.DataFrame:
    """Measured-looking launches of lines on two GPUs, 480 rows; `slower` makes another population.

    The simulator's law with a leap at 60 nodes, which no line fits.
    """
    from warpgauge.launches.simulator import SYSTEMS, simulate_launches

    made = simulate_launches(seed, lengths=range(1, 120, 3), trials=3, systems=SYSTEMS[:2]).frame
    made = made.filter(pl.col("topology").is_in(["straight_line", "parallel_lines"]))
    return made.with_columns(
        pl.concat_str(pl.lit(f"measured-{seed}-{slower}-"), "launch_id").alias("launch_id"),
        pl.lit("probe").alias("source_kind"),
        pl.lit("probe").alias("source_name"),
        pl.lit(False).alias("is_simulated"),
        pl.lit(collected_at, dtype=LAUNCHES.schema["collected_at"]).alias("collected_at"),
        pl.col("first_launch_api_us") * pl.when(pl.col("node_count") > 60).then(1.8).otherwise(1.0) * slower,
    )


def _reports(
    count: int,
    *,
    seed: int = 0,
    fetched_at: datetime = TRAINED_AT,
    words: tuple[tuple[str, ...], tuple[str, ...]] = (DEFECT_WORDS, CODE_WORDS),
) -> pl.DataFrame:
    """Reports, of which every third speaks in the first set of words and is a defect."""
    random = np.random.default_rng(seed)
    rows = []
    for number in range(count):
        text = random.choice(words[0] if number % 3 == 0 else words[1], 10)
        mixed = random.choice([*words[0], *words[1]], 6)
        name = f"report-{seed}-{words[1][0]}-{number}"
        rows.append(
            {
                "document_id": name,
                "source": "made/up",
                "source_id": name,
                "family": "report",
                "title": " ".join(text[:4]),
                "body": " ".join([*text[4:], *mixed]),
                "fetched_at": fetched_at,
                "content_sha256": name,
                "redaction_count": 0,
            }
        )
    return DOCUMENTS.conform(pl.DataFrame(rows))


def _labels(documents: pl.DataFrame) -> pl.DataFrame:
    return LABELS.conform(
        pl.DataFrame(
            {
                "document_id": documents["document_id"],
                "annotator": "person",
                "labelled_at": TRAINED_AT,
                "label_source": "human",
                "is_defect": [number % 3 == 0 for number in range(documents.height)],
            }
        )
    )


def _bundle(bundle: str, folder: Path, files: Mapping[str, bytes] | None = None, **facts: Any) -> str:
    """A copy of a bundle in the folder, with other facts and, where given, another model in it."""
    copy = folder / f"bundle-{len(list(folder.glob('bundle-*')))}"
    shutil.copytree(bundle, copy)
    known = json.loads((copy / "bundle.json").read_text())
    (copy / "bundle.json").write_text(json.dumps(known | facts))
    if files is not None:
        shutil.rmtree(copy / "model")
        (copy / "model").mkdir()
        for name, content in files.items():
            (copy / "model" / name).write_bytes(content)
    return str(copy)


def _model_files(bundle: str) -> dict[str, bytes]:
    """The model's files in a bundle."""
    return {path.name: path.read_bytes() for path in (Path(bundle) / "model").iterdir()}


@dataclass(frozen=True)
class Make:
    """Builders of rows and bundles."""

    bundle = staticmethod(_bundle)
    model_files = staticmethod(_model_files)

    launches = staticmethod(_measured_launches)
    reports = staticmethod(_reports)
    labels = staticmethod(_labels)


@pytest.fixture(scope="session")
def make() -> Make:
    """Builders of rows and bundles."""
    return Make()


@pytest.fixture(scope="session")
def bundles(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Folder of a store whose tables two models were trained on; nothing is registered yet."""
    from tasks import embedding, training
    from tasks.storage import Store

    root = tmp_path_factory.mktemp("trained")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARPGAUGE_DATA_DIR", str(root / "data"))
        patch.setenv("WARPGAUGE_MLFLOW_URI", f"sqlite:///{root / 'mlruns' / 'mlflow.db'}")
        _small_and_quick(patch)
        patch.setattr(embedding, "load_encoder", FakeEncoder)
        store = Store()
        store.append("launches", _measured_launches())
        documents = _reports(160)
        store.append("documents", documents)
        store.append("labels", _labels(documents))
        for name, train in TRAININGS.items():
            made = getattr(training, train)(training.plan_training(name, force=True), "test")
            shutil.move(made, root / name)
        yield root


TRAININGS = {"launch-latency": "train_latency", "doc-quality": "train_docquality"}


def _small_and_quick(patch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "THREADS": "1",
        "LATENCY_TREES": "40",
        "LATENCY_LEARNING_RATE": "0.2",
        "DOCQUALITY_ROUNDS": "0",
    }.items():
        patch.setenv(f"WARPGAUGE_{name}", value)


@pytest.fixture(scope="session")
def latency_bundle(bundles: Path) -> str:
    """A trained launch-latency model, not registered."""
    return str(bundles / "launch-latency")


@pytest.fixture(scope="session")
def docquality_bundle(bundles: Path) -> str:
    """A trained doc-quality model of an encoder without weights, not registered."""
    return str(bundles / "doc-quality")


@pytest.fixture(scope="session")
def wrong_bundle(latency_bundle: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The same held-out launches with a model that learned from launches half as fast again."""
    from warpgauge.latency.fitting import Boosting
    from warpgauge.latency.launch_scheme import LAUNCH_SCHEME
    from warpgauge.latency.training import train_latency

    boosting = Boosting(trees=40, learning_rate=0.2, early_stopping_rounds=10)
    trained = train_latency(LAUNCH_SCHEME, _measured_launches(slower=1.5), boosting, threads=1)
    return _bundle(latency_bundle, tmp_path_factory.mktemp("wrong"), trained.model.to_files())


@pytest.fixture(scope="session")
def champions(bundles: Path, empty_tracking_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store where both models are version 1 and champion. Not to be changed: `world` is a copy."""
    from tasks import registration

    root = tmp_path_factory.mktemp("champions")
    shutil.copytree(bundles / "data", root / "data")
    (root / "mlruns").mkdir()
    shutil.copy(empty_tracking_store, root / "mlruns" / "mlflow.db")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARPGAUGE_DATA_DIR", str(root / "data"))
        patch.setenv("WARPGAUGE_MLFLOW_URI", f"sqlite:///{root / 'mlruns' / 'mlflow.db'}")
        for name in MODEL_NAMES:
            bundle = str(bundles / name)
            verdict = registration.apply_gate(bundle, registration.register(bundle))
            assert verdict["outcome"] == "promote", verdict["reasons"]
    return root


@pytest.fixture
def world(champions: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own with both champions, its tables, quick settings and the encoder without weights."""
    from tasks import embedding

    shutil.copytree(champions, project, dirs_exist_ok=True)
    _small_and_quick(monkeypatch)
    monkeypatch.setattr(embedding, "load_encoder", FakeEncoder)
    return project


@pytest.fixture(scope="session")
def table_champion(empty_tracking_store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store where the model of a latency table is version 1 and champion. Not to be changed: `tiny` is a copy."""
    from tasks import registration, training
    from tasks.collection import collect_table

    root = tmp_path_factory.mktemp("table")
    (root / "mlruns").mkdir()
    shutil.copy(empty_tracking_store, root / "mlruns" / "mlflow.db")
    spec = write_kernel_spec(root / "specs")
    write_kernels(root / "specs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("WARPGAUGE_DATA_DIR", str(root / "data"))
        patch.setenv("WARPGAUGE_MLFLOW_URI", f"sqlite:///{root / 'mlruns' / 'mlflow.db'}")
        _small_and_quick(patch)
        _few_trees_and_no_figures(patch)
        collect_table(str(spec))
        bundle = training.train_latency(training.plan_training("latency-tiny", table=str(spec)), "test")
        shutil.copytree(bundle, root / "bundle")
        verdict = registration.apply_gate(bundle, registration.register(bundle))
        assert verdict["outcome"] == "promote", verdict["reasons"]
    return root


@pytest.fixture
def tiny(table_champion: Path, project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Spec of a table whose model has a champion, in a store of its own; quick settings, no pictures."""
    from tasks import tracking

    shutil.copytree(table_champion, project, dirs_exist_ok=True)
    _small_and_quick(monkeypatch)
    _few_trees_and_no_figures(monkeypatch)
    spec = project / "specs" / "tiny.toml"
    tracking.connect().set_registered_model_tag("latency-tiny", "spec_path", str(spec))
    return spec


def _few_trees_and_no_figures(patch: pytest.MonkeyPatch) -> None:
    from warpgauge.latency import explanation_plots, plots

    patch.setenv("WARPGAUGE_LATENCY_TREES", "20")
    patch.setenv("WARPGAUGE_LATENCY_LEARNING_RATE", "0.3")
    patch.setattr(plots, "draw_training", lambda *_: {})
    patch.setattr(explanation_plots, "draw_explanations", lambda *_: {})
