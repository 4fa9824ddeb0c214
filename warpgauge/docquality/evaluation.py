"""How good is the answer on documents the model never saw? Per slice, with intervals, beside the baselines.

A figure that the rows cannot give (an AUC of one class) is None, never 0.5 or 0. Families are slices of
their own: over both together a model can score well by knowing which family is worse, and no page better.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from warpgauge.docquality.calibration import Floats
from warpgauge.errors import NoDataError, SchemaError

Booleans = NDArray[np.bool_]
Metrics = dict[str, float | None]

THRESHOLD = 0.5
CALIBRATION_BINS = 10
BOOTSTRAP_COUNT = 500
_CLIP = 1e-15

HELDOUT_SCHEMA = pl.Schema(
    {
        "document_id": pl.String(),
        "source_id": pl.String(),
        "family": pl.String(),
        "source": pl.String(),
        "product_version": pl.String(),
        "label_source": pl.String(),
        "is_defect": pl.Boolean(),
        "defect_probability": pl.Float64(),
        "versionless_probability": pl.Float64(),
        "baseline_probability": pl.Float64(),
        "keyword_score": pl.Float64(),
        "nearest_training_similarity": pl.Float64(),
    }
)

# Cosine to the nearest training text of the family below which a held-out document counts as unlike all of
# them. Header entries come as siblings (one function for two types, runtime and driver twins) that are amended
# together: on real headers the AUC fell from 0.86 to 0.74 where texts above this were kept on one side.
UNLIKE_SIMILARITY = 0.9

# Slices smaller than this are counted, not judged: an AUC of ten rows is a coin.
SLICE_MINIMUM_ROWS = 20


def evaluate(
    is_defect: Booleans, probability: Floats, groups: Sequence[str] | None = None, *, seed: int = 0
) -> Metrics:
    """All figures of one set of rows.

    Args:
        is_defect: Truth, shape (rows,).
        probability: Answered probability of a defect, 0 to 1.
        groups: Rows of one group are drawn together in the bootstrap; None: each row is its own.
        seed: Of the bootstrap.

    Returns:
        row_count, defect_count, auc, auc_lower, auc_upper (95 % by bootstrap over groups), average_precision,
        brier, log_loss (nats), calibration_error, and precision, recall, f1 at 0.5; None where it is undefined.

    Raises:
        SchemaError: If a probability is not in 0 to 1 or the lengths differ.
    """
    if len(is_defect) != len(probability):
        raise SchemaError(f"{len(is_defect)} labels and {len(probability)} probabilities; give one each")
    if not np.all((probability >= 0) & (probability <= 1)):
        raise SchemaError("a probability is not in 0 to 1; score the rows again")
    count, defect_count = len(is_defect), int(is_defect.sum())
    said = probability >= THRESHOLD
    hits = int((said & is_defect).sum())
    precision = hits / int(said.sum()) if said.any() else None
    recall = hits / defect_count if defect_count else None
    clipped = np.clip(probability, _CLIP, 1 - _CLIP)
    lower, upper = auc_interval(is_defect, probability, groups, seed=seed)
    losses = np.where(is_defect, -np.log(clipped), -np.log1p(-clipped))
    return {
        "row_count": float(count),
        "defect_count": float(defect_count),
        "auc": auc(is_defect, probability),
        "auc_lower": lower,
        "auc_upper": upper,
        "average_precision": average_precision(is_defect, probability),
        "brier": float(np.mean((probability - is_defect) ** 2)) if count else None,
        "log_loss": float(losses.mean()) if count else None,
        "calibration_error": calibration_error(is_defect, probability),
        "precision": precision,
        "recall": recall,
        "f1": 2 * hits / (int(said.sum()) + defect_count) if said.any() or defect_count else None,
    }


def evaluate_slices(heldout: pl.DataFrame, *, seed: int = 0) -> dict[str, Metrics]:
    """Figures over all rows and for each family, source, version and label source with rows enough.

    Keys are `overall`, `family=page`, `source=cuda-headers`, `version=12.4.127`, `labels=history` and
    `unlike_training=page`: the family's rows whose text resembles no training text. Every slice
    also has baseline_log_loss and baseline_brier (the family's share of defects, answered for each),
    keyword_auc and keyword_average_precision (count of words about documentation), and same_document_auc with
    same_document_pair_count: how often the faulty version of a document scores above its sound version, with
    the version itself kept from the model, since of such a pair the older one is always the faulty one. It
    asks whether the model sees the fault; the AUC alone may only know which documents tend to be amended.

    Raises:
        NoDataError: If there are no rows.
        SchemaError: If a column of HELDOUT_SCHEMA is missing.
    """
    if missing := [name for name in HELDOUT_SCHEMA if name not in heldout.columns]:
        raise SchemaError(f"held-out rows lack column {', '.join(missing)}")
    if heldout.is_empty():
        raise NoDataError("no held-out rows to judge by; label more documents")
    slices: dict[str, Metrics] = {"overall": _slice_metrics(heldout, seed)}
    for column, prefix in (
        ("family", "family"),
        ("source", "source"),
        ("product_version", "version"),
        ("label_source", "labels"),
    ):
        for value in sorted(heldout[column].drop_nulls().unique()):
            rows = heldout.filter(pl.col(column) == value)
            if rows.height >= SLICE_MINIMUM_ROWS or column == "family":
                slices[f"{prefix}={value}"] = _slice_metrics(rows, seed)
    unlike = heldout.filter(pl.col("nearest_training_similarity") < UNLIKE_SIMILARITY)
    for family in sorted(unlike["family"].unique()):
        rows = unlike.filter(pl.col("family") == family)
        if rows.height >= SLICE_MINIMUM_ROWS:
            slices[f"unlike_training={family}"] = _slice_metrics(rows, seed)
    return slices


def flat_metrics(slices: Mapping[str, Metrics]) -> dict[str, float]:
    """One level of names for a tracking store: `auc` for overall, `family=page/auc` for a slice; no None.

    Every value is finite; characters that stores refuse in names become "_".
    """
    flat: dict[str, float] = {}
    for slice_name, metrics in slices.items():
        safe = "".join(c if c.isalnum() or c in "_-.=" else "_" for c in slice_name)
        prefix = "" if slice_name == "overall" else f"{safe}/".replace("=", "_")
        flat |= {prefix + name: value for name, value in metrics.items() if value is not None}
    return {name: value for name, value in flat.items() if np.isfinite(value)}


def auc(is_defect: Booleans, score: Floats) -> float | None:
    """Chance that a defective document scores above a sound one, ties half; None with one class."""
    return _weighted_auc(is_defect, score, np.ones((1, len(score))))[0]


def auc_interval(
    is_defect: Booleans, score: Floats, groups: Sequence[str] | None = None, *, seed: int = 0
) -> tuple[float | None, float | None]:
    """95 % interval of the AUC by a bootstrap over groups; None with one class or a single group a class."""
    if is_defect.all() or not is_defect.any():
        return None, None
    names = np.arange(len(score)) if groups is None else np.unique(np.asarray(groups), return_inverse=True)[1]
    group_count = int(names.max()) + 1
    generator = np.random.default_rng(seed)
    weights = generator.multinomial(group_count, np.full(group_count, 1 / group_count), size=BOOTSTRAP_COUNT)
    drawn = [
        value
        for value in _weighted_auc(is_defect, score, weights[:, names].astype(float))
        if value is not None
    ]
    # Draws without one class say nothing; with fewer than half left there is no interval.
    if 2 * len(drawn) < BOOTSTRAP_COUNT:
        return None, None
    return float(np.quantile(drawn, 0.025)), float(np.quantile(drawn, 0.975))


def average_precision(is_defect: Booleans, score: Floats) -> float | None:
    """Precision averaged over the defects, ties counted together; None without a defect."""
    if not is_defect.any():
        return None
    order = np.argsort(-score, kind="stable")
    hits = np.cumsum(is_defect[order])
    last = np.append(np.diff(score[order]) != 0, True)  # the last row of each run of equal scores
    hits, ranks = hits[last], np.flatnonzero(last) + 1
    gained = np.diff(np.append(0, hits))
    return float((gained * hits / ranks).sum() / hits[-1])


def calibration_error(is_defect: Booleans, probability: Floats) -> float | None:
    """Mean distance between answered and true share over ten bins with equally many rows; 0 is perfect.

    Bins of equal width would hold nearly all rows of a rare class in the first one.
    """
    bins = calibration_bins(is_defect, probability)
    if bins.is_empty():
        return None
    gaps = np.abs(bins["defect_share"].to_numpy() - bins["mean_probability"].to_numpy())
    return float(np.average(gaps, weights=bins["row_count"].to_numpy()))


def calibration_bins(is_defect: Booleans, probability: Floats) -> pl.DataFrame:
    """Ten bins by rank of the probability: mean_probability, defect_share, row_count."""
    order = np.argsort(probability, kind="stable")
    parts = [rows for rows in np.array_split(order, CALIBRATION_BINS) if len(rows)]
    return pl.DataFrame(
        {
            "mean_probability": [float(probability[rows].mean()) for rows in parts],
            "defect_share": [float(is_defect[rows].mean()) for rows in parts],
            "row_count": [len(rows) for rows in parts],
        },
        schema={"mean_probability": pl.Float64, "defect_share": pl.Float64, "row_count": pl.Int64},
    )


def precision_recall_curve(is_defect: Booleans, score: Floats) -> pl.DataFrame:
    """threshold, precision and recall for each distinct score, highest first."""
    order = np.argsort(-score, kind="stable")
    last = np.append(np.diff(score[order]) != 0, True)[: len(score)]
    hits, ranks = np.cumsum(is_defect[order])[last], np.flatnonzero(last) + 1
    return pl.DataFrame(
        {
            "threshold": score[order][last],
            "precision": hits / ranks,
            "recall": hits / max(int(is_defect.sum()), 1),
        }
    )


def _slice_metrics(rows: pl.DataFrame, seed: int) -> Metrics:
    truth = rows["is_defect"].to_numpy()
    prior = evaluate(truth, rows["baseline_probability"].to_numpy(), seed=seed)
    keywords = rows["keyword_score"].to_numpy()
    metrics = evaluate(truth, rows["defect_probability"].to_numpy(), rows["source_id"].to_list(), seed=seed)
    return metrics | {
        "baseline_log_loss": prior["log_loss"],
        "baseline_brier": prior["brier"],
        "keyword_auc": auc(truth, keywords),
        "keyword_average_precision": average_precision(truth, keywords),
        **_same_document_metrics(rows),
    }


def _same_document_metrics(rows: pl.DataFrame) -> Metrics:
    scores = rows.select("source_id", "source", "is_defect", "versionless_probability")
    pairs = scores.filter("is_defect").join(scores.filter(~pl.col("is_defect")), on=["source", "source_id"])
    difference = (pairs["versionless_probability"] - pairs["versionless_probability_right"]).to_numpy()
    wins = (difference > 0) + 0.5 * (difference == 0)
    return {
        "same_document_pair_count": float(len(wins)),
        "same_document_auc": float(wins.mean()) if len(wins) else None,
    }


def _weighted_auc(is_defect: Booleans, score: Floats, weights: NDArray[Any]) -> list[float | None]:
    """AUC under each row of weights, shape (draws, rows); None where a class has no weight."""
    order = np.argsort(score, kind="stable")
    starts = np.flatnonzero(np.append(True, np.diff(score[order]) != 0)[: len(score)])
    if len(score) == 0:
        return [None] * len(weights)
    ordered = weights[:, order]
    defects = np.add.reduceat(ordered * is_defect[order], starts, axis=1)
    sound = np.add.reduceat(ordered * ~is_defect[order], starts, axis=1)
    below = np.cumsum(sound, axis=1) - sound
    wins = (defects * (below + sound / 2)).sum(axis=1)
    pairs = defects.sum(axis=1) * sound.sum(axis=1)
    return [float(win / pair) if pair else None for win, pair in zip(wins, pairs, strict=True)]
