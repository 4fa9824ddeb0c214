"""From documents and labels to a model with an honest account of itself.

A fifth of the documents, by a hash of what they describe, is never trained on: the gate compares champion
and challenger on rows that neither saw, whenever they were trained. Everything else that needs held-out
rows (strength, calibration, whether a self-training round is kept) is cross-fitted inside the other four.
"""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from warpgauge.docquality.calibration import Floats, Integers, fit_group_calibration
from warpgauge.docquality.evaluation import HELDOUT_SCHEMA, Metrics, evaluate_slices
from warpgauge.docquality.features import (
    FeatureSpace,
    check_inputs,
    default_check_kinds,
    fit_feature_space,
    keyword_scores,
)
from warpgauge.docquality.head import assign_folds, fit_head, heldout_loss, one_thread, out_of_fold_logits
from warpgauge.docquality.labels import HUMAN, LabelSet, aggregate_labels, require_both_classes
from warpgauge.docquality.model import BinaryHead, DocQualityModel
from warpgauge.docquality.selftraining import SelfTraining, self_train
from warpgauge.errors import NoDataError
from warpgauge.tables import KINDS, NATURES

CLASS_NAMES = ("no defect", "defect")
SPLIT_COUNT = 5
GATE_SPLIT = 0

# Documents with a kind (or nature) below which its own head would be learned from anecdotes.
KIND_MINIMUM_LABELS = 20

# How loud a family's text columns may be, and the penalties tried with each.
TEXT_VOLUMES = (0.0, 0.1, 0.3, 1.0)
TEXT_STRENGTHS = (0.0003, 0.003, 0.03, 0.1)

# Independent documents of each class below which a family's volume is not tuned: chance would choose.
TEXT_MINIMUM_GROUPS = 10

# Held-out rows compared with all training rows at once; bounds the memory of the comparison.
_SIMILARITY_ROWS = 1024

# Held-out documents of each class that people must have labelled before they alone are the judge.
HUMAN_MINIMUM_ROWS = 10


@dataclass(frozen=True)
class DocQualityTraining:
    """A trained model and all that is known about it.

    Attributes:
        model: Calibrated, trained without the gate's rows.
        heldout: The gate's rows with answer and baselines, columns of HELDOUT_SCHEMA.
        metrics: Figures of the held-out rows by slice, see evaluation.evaluate_slices.
        self_training: Rounds, reasons and conclusion.
        label_provenance: `human` where people labelled the held-out rows, else `proxy`.
        counts: Documents, labels, splits and pool.
        notes: What a reader must know beside the figures.
    """

    model: DocQualityModel
    heldout: pl.DataFrame
    metrics: dict[str, Metrics]
    self_training: SelfTraining
    label_provenance: str
    counts: dict[str, int]
    notes: tuple[str, ...]


def split_of(source_id: str) -> int:
    """The split of a document, 0 to 4, the same for all versions of it, on every machine and for ever.

    >>> split_of("cudaGraphLaunch") == split_of("cudaGraphLaunch")
    True
    """
    return int.from_bytes(hashlib.sha256(source_id.encode()).digest()[:8], "big") % SPLIT_COUNT


@one_thread()
def train_docquality(
    documents: pl.DataFrame,
    labels: pl.DataFrame,
    check_features: pl.DataFrame,
    embeddings: NDArray[np.floating[Any]],
    encoder_id: str,
    *,
    rounds: int = 3,
    confidence_ratio: float = 0.95,
    recall_drop_limit_ratio: float = 0.02,
    minimum_labels: int = 40,
    seed: int = 0,
    check_kinds: Mapping[str, str] | None = None,
) -> DocQualityTraining:
    """Train, calibrate, self-train under guard, and judge on the gate's rows.

    Args:
        documents: Rows of the documents table, labelled or not.
        labels: Rows of the labels table; those of source check are never used.
        check_features: document_id and a numeric column for each check and density.
        embeddings: Unit vectors of the documents, rows in the same order.
        encoder_id: Of the encoder that made them.
        rounds: Most self-training rounds.
        confidence_ratio: Least calibrated confidence of a pseudo-label.
        recall_drop_limit_ratio: Largest fall of a class's held-out recall in one round.
        minimum_labels: Fewest labelled documents.
        seed: Of the bootstrap intervals; nothing else is random.
        check_kinds: Check column to the kind it is evidence of; None: the kind whose name the column holds.

    Raises:
        NoDataError: If there are no documents.
        SchemaError: If the inputs do not fit each other.
        TrainingError: If the labels are too few, of one class, or all about one document.
    """
    check_inputs(documents, embeddings)
    if documents.is_empty():
        raise NoDataError("no documents to train on; run warpgauge collect documents first")
    label_set = aggregate_labels(labels)
    table = documents.select("document_id", "source_id", "family", "source", "product_version").join(
        label_set.frame, on="document_id", how="left", maintain_order="left"
    )
    is_labelled = table["is_defect"].is_not_null().to_numpy()
    splits = np.array([split_of(source_id) for source_id in table["source_id"]])
    is_gate = splits == GATE_SPLIT
    require_both_classes(
        table["is_defect"].drop_nulls(), minimum_labels=minimum_labels, where="labels of these documents"
    )
    train_rows = np.flatnonzero(is_labelled & ~is_gate)
    pool_rows = np.flatnonzero(~is_labelled & ~is_gate)
    require_both_classes(
        table["is_defect"].gather(train_rows), minimum_labels=1, where="labels outside the gate's rows"
    )

    # The columns follow the labelled rows: an unlabelled version or source cannot teach its own weight.
    space = fit_feature_space(documents[train_rows], embeddings[train_rows], check_features)
    matrix = space.transform(documents, embeddings, check_features).matrix
    family = table["family"].to_numpy().astype(str)
    truth = table["is_defect"].fill_null(value=False).to_numpy()
    groups = table["source_id"].to_list()
    groups_of_train = [groups[row] for row in train_rows]
    space = _tune_text(space, matrix[train_rows], truth[train_rows], groups_of_train, family[train_rows])
    matrix = space.transform(documents, embeddings, check_features).matrix
    trained = self_train(
        matrix[train_rows],
        truth[train_rows].astype(np.int64),
        groups_of_train,
        matrix[pool_rows],
        [groups[row] for row in pool_rows],
        class_names=CLASS_NAMES,
        rounds=rounds,
        confidence_ratio=confidence_ratio,
        recall_drop_limit_ratio=recall_drop_limit_ratio,
        base_rate_groups=family[train_rows],
        pool_base_rate_groups=family[pool_rows],
    )
    gate_rows, label_provenance = _gate_rows(table, is_labelled & is_gate)
    part = table[train_rows]
    model = DocQualityModel(
        space=space,
        defect=BinaryHead(trained.head, trained.calibration),
        kinds=_kind_heads(part, matrix[train_rows], trained.strength),
        version_nature=_nature_head(part, matrix[train_rows], trained.strength),
        encoder_id=encoder_id,
        label_provenance=label_provenance,
        check_kinds=dict(check_kinds) if check_kinds is not None else default_check_kinds(space.checks),
    )
    probability = model.defect.probability(matrix[gate_rows], family[gate_rows])
    similarity = _nearest_similarity(
        embeddings[gate_rows], family[gate_rows], embeddings[train_rows], family[train_rows]
    )
    versionless = matrix[gate_rows].copy()
    versionless[:, space.version_columns] = 0.0
    heldout = _heldout(
        documents[gate_rows],
        table[gate_rows],
        part,
        defect_probability=probability,
        versionless_probability=model.defect.probability(versionless, family[gate_rows]),
        nearest_training_similarity=similarity,
    )
    metrics = evaluate_slices(heldout, seed=seed) if heldout.height else {}
    return DocQualityTraining(
        model=model,
        heldout=heldout,
        metrics=metrics,
        self_training=trained,
        label_provenance=label_provenance,
        counts={
            "document_count": documents.height,
            "labelled_count": int(is_labelled.sum()),
            "defect_count": int(truth[is_labelled].sum()),
            "human_labelled_count": int((table["label_source"] == HUMAN).sum()),
            "train_count": len(train_rows),
            "train_defect_count": int(truth[train_rows].sum()),
            "heldout_count": len(gate_rows),
            "heldout_defect_count": int(truth[gate_rows].sum()),
            "pool_count": len(pool_rows),
            "tied_count": len(label_set.tied),
            "check_label_count": label_set.check_label_count,
            "label_without_document_count": label_set.frame.height - int(is_labelled.sum()),
            "feature_count": len(space.names),
        },
        notes=(
            *_notes(table, heldout, label_set, label_provenance, trained),
            *_family_notes(space.families, metrics),
        ),
    )


def _tune_text(
    space: FeatureSpace,
    matrix: Floats,
    is_defect: NDArray[np.bool_],
    groups: list[str],
    family: NDArray[np.str_],
) -> FeatureSpace:
    """The space with each family's text as loud as held-out rows of that family want it.

    One ridge penalty over all columns would follow the reports, whose text says almost everything, and on
    the pages drown a few telling checks in 384 columns of noise (on synthetic pages with random text it cost
    all of the checks' signal). So each family chooses its own volume, from silent to full, and penalty; the penalties
    are made one by folding their ratio into the volume: weight variance is strength times volume squared.
    """
    chosen: dict[str, tuple[float, float]] = {}
    for name in space.families:
        rows = np.flatnonzero(family == name)
        labels = is_defect[rows].astype(np.int64)
        own_groups = [groups[row] for row in rows]
        if min(_group_counts(labels, own_groups)) < TEXT_MINIMUM_GROUPS:
            continue
        folds = assign_folds(labels, own_groups, 2)
        own = matrix[rows]
        text = np.zeros(own.shape[1], dtype=bool)
        text[space.text_columns(name)] = True
        trials: dict[tuple[float, float], float] = {}
        for volume in TEXT_VOLUMES:
            # Columns that are zero in this family (the other's text) only cost time.
            scaled = np.where(text, own * volume, own)
            scaled = scaled[:, scaled.any(axis=0)]
            for strength in TEXT_STRENGTHS:
                trials[volume, strength] = heldout_loss(scaled, labels, folds, 2, family[rows], strength)
        chosen[name] = min(trials, key=lambda trial: trials[trial])
    if not chosen:
        return space
    strongest = max(strength for _, strength in chosen.values())
    scales = {
        name: volume * float(np.sqrt(strength / strongest)) for name, (volume, strength) in chosen.items()
    }
    return dataclasses.replace(space, text_scales={**space.text_scales, **scales})


def _group_counts(labels: Integers, groups: list[str]) -> tuple[int, int]:
    """Independent documents among the rows of each class."""
    sets: tuple[set[str], set[str]] = (set(), set())
    for label, group in zip(labels.tolist(), groups, strict=True):
        sets[label].add(group)
    return len(sets[0]), len(sets[1])


def _gate_rows(table: pl.DataFrame, is_gate_labelled: NDArray[np.bool_]) -> tuple[NDArray[np.int64], str]:
    """Held-out rows that judge: those of people where there are enough of both classes, else all."""
    is_human = (table["label_source"] == HUMAN).fill_null(value=False).to_numpy() & is_gate_labelled
    truth = table["is_defect"].fill_null(value=False).to_numpy()
    if min(int((truth & is_human).sum()), int((~truth & is_human).sum())) >= HUMAN_MINIMUM_ROWS:
        return np.flatnonzero(is_human), "human"
    is_all_human = bool(is_gate_labelled.any()) and bool((is_human == is_gate_labelled).all())
    return np.flatnonzero(is_gate_labelled), "human" if is_all_human else "proxy"


def _nearest_similarity(
    vectors: NDArray[np.floating[Any]],
    family: NDArray[np.str_],
    training_vectors: NDArray[np.floating[Any]],
    training_family: NDArray[np.str_],
) -> Floats:
    """Cosine of each row to the nearest training row of its family, NaN without one; shape (rows,)."""
    nearest = np.full(len(vectors), np.nan)
    for name in np.unique(family):
        known = training_vectors[training_family == name]
        rows = np.flatnonzero(family == name)
        for start in range(0, len(rows) if len(known) else 0, _SIMILARITY_ROWS):
            part = rows[start : start + _SIMILARITY_ROWS]
            nearest[part] = (vectors[part] @ known.T).max(axis=1)
    return nearest


def _heldout(
    documents: pl.DataFrame,
    table: pl.DataFrame,
    train: pl.DataFrame,
    *,
    defect_probability: Floats,
    versionless_probability: Floats,
    nearest_training_similarity: Floats,
) -> pl.DataFrame:
    """The gate's rows with the answer and two baselines: the family's share of defects, counted words."""
    overall = float(train["is_defect"].cast(pl.Float64).mean() or 0.0)  # type: ignore[arg-type]
    shares = dict(train.group_by("family").agg(pl.col("is_defect").mean()).iter_rows())
    return table.select(
        "document_id",
        "source_id",
        "family",
        "source",
        "product_version",
        "label_source",
        "is_defect",
        pl.Series("defect_probability", defect_probability),
        pl.Series("versionless_probability", versionless_probability),
        pl.Series(
            "baseline_probability", [shares.get(family, overall) for family in table["family"]], pl.Float64
        ),
        pl.Series("keyword_score", keyword_scores(documents)),
        pl.Series("nearest_training_similarity", nearest_training_similarity).fill_nan(None),
    ).cast(HELDOUT_SCHEMA)


def _kind_heads(train: pl.DataFrame, matrix: Floats, strength: float) -> dict[str, BinaryHead]:
    """A head for each kind with labels enough; a sound document and a defect of other kinds say no.

    Defects whose kind no one named teach nothing about kinds.
    """
    is_known = (~train["is_defect"] | train["kinds"].is_not_null()).to_numpy()
    kinds = train["kinds"].to_list()
    is_defect = train["is_defect"].to_numpy()
    heads: dict[str, BinaryHead] = {}
    for kind in KINDS:
        has = np.array([bool(d) and kind in (named or ()) for d, named in zip(is_defect, kinds, strict=True)])
        if head := _binary_head(train, matrix, has, is_known, strength):
            heads[kind] = head
    return heads


def _nature_head(train: pl.DataFrame, matrix: Floats, strength: float) -> BinaryHead | None:
    """Version against concept, learned from defects whose nature was named."""
    is_known = (train["is_defect"] & train["nature"].is_not_null()).to_numpy()
    is_version = (train["nature"] == NATURES[1]).fill_null(value=False).to_numpy()
    return _binary_head(train, matrix, is_version, is_known, strength, both=True)


def _binary_head(
    train: pl.DataFrame,
    matrix: Floats,
    answer: NDArray[np.bool_],
    is_known: NDArray[np.bool_],
    strength: float,
    *,
    both: bool = False,
) -> BinaryHead | None:
    """A calibrated head of yes or no; None where the labels do not suffice for it."""
    rows = np.flatnonzero(is_known)
    labels: Integers = answer[rows].astype(np.int64)
    counts = np.bincount(labels, minlength=2)
    if counts[1] < KIND_MINIMUM_LABELS or counts[0] < (KIND_MINIMUM_LABELS if both else 1):
        return None
    groups = train["source_id"].gather(rows).to_list()
    if min(_group_counts(labels, groups)) < 2:
        return None  # all about one document: nothing could be held out, so nothing is claimed
    folds = assign_folds(labels, groups, 2)
    logits = out_of_fold_logits(matrix[rows], labels, folds, 2, strength)
    family = train["family"].gather(rows).to_numpy().astype(str)
    return BinaryHead(
        head=fit_head(matrix[rows], labels, 2, strength),
        calibration=fit_group_calibration(logits, labels, family),
    )


def _notes(
    table: pl.DataFrame,
    heldout: pl.DataFrame,
    label_set: LabelSet,
    label_provenance: str,
    trained: SelfTraining,
) -> tuple[str, ...]:
    notes = [trained.conclusion, *trained.warnings]
    if label_provenance == "proxy":
        notes.append(
            "the held-out labels are a proxy: they come from the documents' history, not from people"
        )
    if heldout["is_defect"].n_unique() < 2:
        notes.append(
            f"the {heldout.height} held-out documents are of one class: there is no AUC, and no gate can pass; "
            f"label more documents"
        )
    labelled = table.filter(pl.col("is_defect").is_not_null())
    for family in sorted(table["family"].unique()):
        verdicts = labelled.filter(pl.col("family") == family)["is_defect"]
        if verdicts.is_empty():
            notes.append(
                f"no {family} is labelled: answers for that family rest on nothing that was measured"
            )
        elif verdicts.n_unique() == 1:
            notes.append(
                f"all {len(verdicts)} labelled documents of family {family} are of one class: within it the "
                f"model cannot tell documents apart, and figures over both families flatter it"
            )
    if label_set.tied:
        notes.append(
            f"{len(label_set.tied)} documents have as many annotators for as against a defect and were left out: "
            f"{', '.join(label_set.tied[:5])}{' ...' if len(label_set.tied) > 5 else ''}"
        )
    if label_set.check_label_count:
        notes.append(
            f"{label_set.check_label_count} labels made by checks were not used: the model sees the checks"
        )
    return tuple(notes)


def _family_notes(families: tuple[str, ...], metrics: Mapping[str, Metrics]) -> list[str]:
    """What a family's AUC rests on: on siblings among the training texts, on knowing the document, on the fault."""
    notes = []
    for family in families:
        everyone = metrics.get(f"family={family}", {})
        unlike = metrics.get(f"unlike_training={family}", {})
        if (over_all := everyone.get("auc")) is not None and (alone := unlike.get("auc")) is not None:
            notes.append(
                f"family {family}: AUC {over_all:.3f} on {everyone['row_count']:.0f} held-out documents, {alone:.3f} "
                f"on the {unlike['row_count']:.0f} of them whose text resembles no training text"
            )
        if (paired := everyone.get("same_document_auc")) is not None:
            notes.append(
                f"family {family}: of {everyone['same_document_pair_count']:.0f} held-out pairs of a faulty and a sound "
                f"version of one document, the faulty one scores higher in {paired:.0%} (50% is chance)"
            )
    return notes
