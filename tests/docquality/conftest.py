"""Small synthetic documents: the vector of a report says whether it is defective, the check of a page does."""

from dataclasses import dataclass
from datetime import UTC, datetime
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

from warpgauge.docquality.encoder import Encoder
from warpgauge.tables import LABELS

DIMENSIONS = 8


@dataclass(frozen=True)
class Corpus:
    """Inputs of a training."""

    documents: pl.DataFrame
    labels: pl.DataFrame
    checks: pl.DataFrame
    embeddings: np.ndarray


def _label_rows(document_ids: list[str], verdicts: list[bool], **fields: object) -> pl.DataFrame:
    row = {"annotator": "rule", "labelled_at": datetime(2026, 1, 1, tzinfo=UTC), "label_source": "history"}
    return LABELS.conform(
        pl.DataFrame(
            [
                {"document_id": name, "is_defect": verdict} | row | fields
                for name, verdict in zip(document_ids, verdicts, strict=True)
            ],
            schema={name: LABELS.schema[name] for name in ("document_id", "is_defect", *row)}
            | {name: LABELS.schema[name] for name in fields},
        )
    )


def _documents(names: list[str], family: str, source: str, version: str | None) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "document_id": pl.Series([f"{name}@{version}" for name in names], dtype=pl.String),
            "source": pl.Series([source] * len(names), dtype=pl.String),
            "source_id": pl.Series(names, dtype=pl.String),
            "family": pl.Series([family] * len(names), dtype=pl.String),
            "title": pl.Series(names, dtype=pl.String),
            "body": pl.Series(["It returns what it was given."] * len(names), dtype=pl.String),
            "product_version": pl.Series([version] * len(names), dtype=pl.String),
        }
    )


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


def _corpus(
    report_count: int = 300, page_count: int = 200, defect_ratio: float = 0.2, seed: int = 0
) -> Corpus:
    """Reports whose first axis tells; pages with random vectors, two versions each, whose check tells."""
    generator = np.random.default_rng(seed)
    reports = _documents([f"issue-{at}" for at in range(report_count)], "report", "tracker", None)
    report_truth = generator.random(report_count) < defect_ratio
    report_vectors = generator.normal(size=(report_count, DIMENSIONS))
    report_vectors[:, 0] += np.where(report_truth, 2.5, -1.0)
    names = [f"call{at}" for at in range(page_count)]
    pages = pl.concat([_documents(names, "page", "headers", version) for version in ("12.4", "13.5")])
    page_truth = np.tile(generator.random(page_count) < defect_ratio, 2)
    found = generator.poisson(np.where(page_truth, 1.5, 0.1))
    documents = pl.concat([reports, pages]) if page_count else reports
    return Corpus(
        documents=documents,
        labels=_label_rows(
            documents["document_id"].to_list(), np.concatenate([report_truth, page_truth]).tolist()
        ),
        checks=pl.DataFrame(
            {"document_id": pages["document_id"], "check_missing_parameter_count": found},
            schema_overrides={"document_id": pl.String, "check_missing_parameter_count": pl.Int64},
        ),
        embeddings=np.concatenate(
            [_unit(report_vectors), _unit(generator.normal(size=(2 * page_count, DIMENSIONS)))]
        ),
    )


@pytest.fixture(scope="session")
def make() -> SimpleNamespace:
    """Builders of synthetic inputs."""
    return SimpleNamespace(corpus=_corpus, labels=_label_rows, documents=_documents)


@pytest.fixture(scope="session")
def encoder() -> Encoder:
    """The real default encoder."""
    return Encoder.load()
