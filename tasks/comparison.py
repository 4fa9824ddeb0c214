"""Champion and challenger on the same rows, as the gate wants them.

A bundle holds the rows that its model never saw. Because the split is a hash that never changes, the
champion never saw them either, whenever it was trained.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from tasks.bundles import GATE_BASELINE, GATE_CHECKS, GATE_EMBEDDINGS, GATE_ROWS, bundle_facts
from tasks.compiled import compile_for
from warpgauge.errors import ModelFileError, SchemaError, TrainingError
from warpgauge.latency.scheme import RowScheme
from warpgauge.latency.table_scheme import TableScheme
from warpgauge.registry.gate import Candidate, GatePolicy, Verdict, judge
from warpgauge.registry.names import DOC_QUALITY
from warpgauge.settings import load_settings

BYTES_PER_MB = 1_000_000
# Keeps a logarithm finite where a probability is rounded to 0 or 1.
CLIP = 1e-15


@dataclass(frozen=True)
class Yardstick:
    """The champion, as it was registered.

    Attributes:
        version: Its number.
        files: Of its model, by name.
        is_simulated: It was trained on rows of the simulator.
        trouble: Why its files could not be read; None where they were.
    """

    version: str
    files: Mapping[str, bytes] = field(default_factory=dict)
    is_simulated: bool = False
    trouble: str | None = None


def judge_bundle(folder: Path, version: str, champion: Yardstick | None, allow_simulated: bool) -> Verdict:
    """The gate's verdict on a bundle, against the champion's own answers to the bundle's rows.

    Returns:
        The verdict; its figures hold `test_set_sha256` too, the hash of the rows.
    """
    settings = load_settings()
    facts = bundle_facts(folder)
    name = facts["model_name"]
    files = _bundle_files(folder)
    candidate = _candidate(folder, files, version, bool(facts["is_simulated"]))
    other, trouble = None, None
    if champion is not None:
        other, trouble = _champion_candidate(folder, champion)
    if champion is not None and other is None:
        # A champion that cannot answer today's rows is no yardstick: the gate asks for a reviewer.
        other = Candidate(name, champion.version, candidate.metric_name, None, 0, None)
    policy = GatePolicy(
        minimum_rows=settings.gate_minimum_rows,
        confidence_ratio=settings.gate_confidence_ratio,
        tolerance_ratio=settings.gate_tolerance_ratio,
        slice_tolerance_ratio=settings.gate_slice_tolerance_ratio,
        size_limit_mb=settings.gate_model_size_limit_mb,
    )
    verdict = judge(candidate, other, policy, allow_simulated=allow_simulated)
    reasons = verdict.reasons if trouble is None else (*verdict.reasons, trouble)
    rows = {"test_set_sha256": candidate.test_set_sha256} if candidate.test_set_sha256 else {}
    return replace(verdict, reasons=reasons, figures=verdict.figures | rows)


def _champion_candidate(folder: Path, champion: Yardstick) -> tuple[Candidate | None, str | None]:
    """The champion on the bundle's rows, or why it has no answer to them."""
    trouble = champion.trouble
    if trouble is None:
        try:
            made = _candidate(folder, champion.files, champion.version, champion.is_simulated)
        except (ModelFileError, SchemaError, TrainingError) as error:
            trouble = str(error)
        else:
            return made, None
    return None, f"champion {champion.version} cannot be evaluated on these rows: {trouble}"


def _latency_candidate(
    folder: Path, files: Mapping[str, bytes], version: str, is_simulated: bool
) -> Candidate:
    """Errors on the gate's rows: squared, in microseconds, for launches; relative for other tables."""
    from warpgauge.latency.evaluation import GROUP_ID, ROW_ID, losses, metric_value, score_rows
    from warpgauge.latency.model import LatencyModel
    from warpgauge.latency.sealed_files import DOCUMENT_FILE, TEXT_FILE

    model = LatencyModel.from_files(files)
    target = bundle_facts(folder)["target"]
    rule = _split_rule(LatencyModel.from_files(_bundle_files(folder)).scheme)
    if _split_rule(model.scheme) != rule:
        raise SchemaError(
            f"version {version} was trained on another split (by {_split_rule(model.scheme)}, now by {rule}), so it may "
            f"know these rows"
        )
    if model.target != target:
        raise SchemaError(f"version {version} predicts {model.target}, the rows are judged by {target}")
    gate = folder / "gate"
    name, metric_name = bundle_facts(folder)["model_name"], model.scheme.gate_metric
    gate_rows = pl.read_parquet(gate / GATE_ROWS)
    # A champion whose spec had fewer columns is asked about those.
    gate_rows = gate_rows.select(
        column for column in gate_rows.columns if column in model.scheme.table.schema
    )
    if gate_rows.is_empty():
        return Candidate(name, version, metric_name, None, 0, None, is_simulated=is_simulated)
    compile_for(model, gate_rows.height)
    scored = score_rows(model, gate_rows)
    baseline = pl.read_parquet(gate / GATE_BASELINE).rename({"actual_us": "label_us"})
    rows = scored.join(baseline, on=ROW_ID, how="inner", maintain_order="left")
    # The bundle's own labels: a champion whose spec had another unit would read other ones from the same rows.
    actual = rows["label_us"].to_numpy()
    own = losses(metric_name, actual, rows["predicted_us"].to_numpy())
    line = losses(metric_name, actual, rows["baseline_us"].to_numpy())
    metric = partial(metric_value, metric_name)
    is_ratio = metric_name == "mape_ratio"
    tail = own if is_ratio else np.sqrt(own)
    return Candidate(
        name=name,
        version=version,
        metric_name=metric_name,
        metric_value=metric(own),
        losses=own,
        groups=_group_numbers(rows[GROUP_ID]),
        baseline_losses=line,
        baseline_value=metric(line),
        row_count=rows.height,
        test_set_sha256=_rows_sha256([model.target, *rows[ROW_ID]]),
        slices=_slices(rows, _gate_slices(model.scheme), own, metric),
        tail_name="p99_abs_error_ratio" if is_ratio else "p99_abs_error_us",
        tail_value=float(np.quantile(tail, 0.99)) if len(tail) else None,
        size_mb=sum(len(files[file]) for file in (TEXT_FILE, DOCUMENT_FILE)) / BYTES_PER_MB,
        is_simulated=is_simulated,
    )


def _docquality_candidate(
    folder: Path, files: Mapping[str, bytes], version: str, is_simulated: bool
) -> Candidate:
    """Logarithmic losses on the gate's documents."""
    from safetensors.numpy import load

    from warpgauge.docquality.model import DocQualityModel

    model = DocQualityModel.from_files(files)
    gate = folder / "gate"
    documents = pl.read_parquet(gate / GATE_ROWS)
    vectors = load((gate / GATE_EMBEDDINGS).read_bytes())["embeddings"]
    # The rows' embeddings are the challenger's; a champion of another encoder refuses them by name.
    encoder_id = str(bundle_facts(folder)["encoder_id"])
    scores = model.score(documents, vectors, pl.read_parquet(gate / GATE_CHECKS), encoder_id=encoder_id)
    truth = pl.read_parquet(gate / GATE_BASELINE).select(
        "document_id", "source_id", "family", "is_defect", "baseline_probability"
    )
    rows = scores.join(truth, on="document_id", how="inner", maintain_order="left")
    is_defect = rows["is_defect"].to_numpy()
    losses = _log_losses(is_defect, rows["defect_probability"].to_numpy())
    baseline = _log_losses(is_defect, rows["baseline_probability"].to_numpy())
    return Candidate(
        name=DOC_QUALITY,
        version=version,
        metric_name="log_loss",
        metric_value=_mean(losses),
        losses=losses,
        groups=_group_numbers(rows["source_id"]),
        baseline_losses=baseline,
        baseline_value=_mean(baseline),
        row_count=rows.height,
        test_set_sha256=_rows_sha256(rows["document_id"].to_list()),
        slices=_slices(rows, ("family",), losses, _mean),
        is_simulated=is_simulated,
    )


def _candidate(folder: Path, files: Mapping[str, bytes], version: str, is_simulated: bool) -> Candidate:
    """A version on the bundle's rows, by the kind of its model."""
    is_document = bundle_facts(folder)["model_name"] == DOC_QUALITY
    make = _docquality_candidate if is_document else _latency_candidate
    return make(folder, files, version, is_simulated)


def _bundle_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "model").iterdir()}


def _split_rule(scheme: RowScheme) -> str:
    """What rows stay on one side of a split by, in words."""
    return ", ".join(scheme.shape) if isinstance(scheme, TableScheme) else "the launches' own rule"


def _gate_slices(scheme: RowScheme) -> tuple[str, ...]:
    """What no version may do much worse in: where rows are, not how they were taken."""
    return (*(name for name in scheme.slice_columns if not name.startswith("is_")), "size_band")


def _slices(
    rows: pl.DataFrame, columns: tuple[str, ...], losses: NDArray[Any], metric: Any
) -> dict[str, tuple[float, int]]:
    """Metric and row count of each value of each column."""
    found = {}
    for column in columns:
        values = rows[column].cast(pl.String).fill_null("unknown")
        for value in values.unique().sort():
            chosen = losses[(values == value).to_numpy()]
            found[f"{column}={value}"] = (metric(chosen), len(chosen))
    return found


def _group_numbers(names: pl.Series) -> NDArray[np.int64]:
    """A number for each name: rows of one graph or document are drawn together in the bootstrap."""
    return names.rank("dense").cast(pl.Int64).to_numpy()


def _log_losses(is_defect: NDArray[Any], probability: NDArray[Any]) -> NDArray[Any]:
    clipped = np.clip(probability, CLIP, 1 - CLIP)
    losses: NDArray[Any] = np.where(is_defect, -np.log(clipped), -np.log1p(-clipped))
    return losses


def _mean(losses: NDArray[Any]) -> float | None:
    return float(losses.mean()) if len(losses) else None


def _rows_sha256(names: list[str]) -> str:
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
