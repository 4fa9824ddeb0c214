"""Which documents count as defective, and who says so?

One answer a document from many labels: people come before history, several people decide by majority, and
a tie is no label at all, it goes back to the queue. A label that a check made never gets in here: the
model sees that check, so it would learn and be scored on its own input.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass
from typing import Any

import polars as pl

from warpgauge.errors import SchemaError, TrainingError
from warpgauge.tables import LABELS

HUMAN = "human"
HISTORY = "history"
CHECK = "check"

LABEL_SET_SCHEMA = pl.Schema(
    {
        "document_id": pl.String(),
        "is_defect": pl.Boolean(),
        "kinds": pl.List(pl.String()),
        "nature": pl.String(),
        "label_source": pl.String(),
        "annotator_count": pl.Int64(),
        "agreement_ratio": pl.Float64(),
    }
)


@dataclass(frozen=True)
class LabelSet:
    """One label a document.

    Attributes:
        frame: One row a labelled document, sorted by document_id: is_defect, kinds (null where no one named
            any), nature, label_source (human or history), annotator_count, agreement_ratio (share of the
            annotators on the winning side, above 0.5).
        tied: Documents whose annotators were split evenly, left out.
        check_label_count: Labels of source check, never used.
    """

    frame: pl.DataFrame
    tied: tuple[str, ...]
    check_label_count: int

    @property
    def human_count(self) -> int:
        """Documents labelled by people."""
        return self.frame.filter(pl.col("label_source") == HUMAN).height

    @property
    def history_count(self) -> int:
        """Documents labelled by their history alone."""
        return self.frame.height - self.human_count


def aggregate_labels(labels: pl.DataFrame) -> LabelSet:
    """One label a document from rows of the labels table.

    Of one annotator the latest label of a document counts. Where a person labelled a document, its labels
    from history do not count, also when the people are tied. Kinds: those that at least half of the winning
    annotators name, of those who name any. Nature: the one most of them name; null on a tie.

    Raises:
        SchemaError: If a column is missing, or a row has no document, annotator, source or verdict.
    """
    if missing := [name for name in LABELS.column_names if name not in labels.columns]:
        raise SchemaError(f"labels lack column {', '.join(missing)}; give rows of the labels table")
    labels = LABELS.conform(labels.select(LABELS.column_names))
    for column in LABELS.columns:
        if column.required and (null_count := labels[column.name].null_count()):
            raise SchemaError(
                f"labels: {null_count} of {labels.height} rows have no {column.name}; validate the table first"
            )
    known = (HUMAN, HISTORY, CHECK)
    if unknown := sorted(set(labels["label_source"].unique()) - set(known)):
        raise SchemaError(
            f"labels: label_source {', '.join(unknown)} is unknown; it is one of {', '.join(known)}"
        )
    usable = labels.filter(pl.col("label_source") != CHECK)
    # A person's word replaces history; the latest of one annotator replaces the earlier ones.
    usable = usable.with_columns(
        (pl.col("label_source") == HUMAN).any().over("document_id").alias("has_human")
    )
    usable = (
        usable.filter(~pl.col("has_human") | (pl.col("label_source") == HUMAN))
        .sort("document_id", "annotator", "labelled_at", "is_defect")
        .unique(["document_id", "annotator"], keep="last", maintain_order=True)
    )
    rows: list[dict[str, Any]] = []
    tied: list[str] = []
    by_document = itertools.groupby(usable.iter_rows(named=True), key=lambda row: str(row["document_id"]))
    for document_id, votes in by_document:
        verdict = _majority(list(votes))
        if verdict is None:
            tied.append(document_id)
        else:
            rows.append({"document_id": document_id} | verdict)
    return LabelSet(
        frame=pl.DataFrame(rows, schema=LABEL_SET_SCHEMA),
        tied=tuple(tied),
        check_label_count=labels.height - labels.filter(pl.col("label_source") != CHECK).height,
    )


def require_both_classes(is_defect: pl.Series, *, minimum_labels: int, where: str) -> None:
    """Labels that can teach a model: enough of them, and both verdicts among them.

    Args:
        is_defect: One verdict a document.
        minimum_labels: Fewest documents.
        where: What was looked at, for the message.

    Raises:
        TrainingError: Says which class is missing, or how many labels are, and what to do.
    """
    if len(is_defect) < minimum_labels:
        raise TrainingError(
            f"{where}: {len(is_defect)} labelled documents, training needs {minimum_labels}; collect more "
            f"(`jsonl:` reports with a `label` field), or a second version of the headers (its changes label the "
            f"first), or lower WARPGAUGE_DOCQUALITY_MINIMUM_LABELS"
        )
    defect_count = int(is_defect.sum())
    for count, name in ((defect_count, "defect"), (len(is_defect) - defect_count, "no defect")):
        if count == 0:
            raise TrainingError(
                f"{where}: all {len(is_defect)} labelled documents are of one class, none is labelled "
                f"{name!r}; collect documents of that class (`jsonl:` reports with a `label` field), "
                f"a model of one class can only repeat it"
            )


def _majority(votes: list[dict[str, Any]]) -> dict[str, Any] | None:
    """The verdict of one document's annotators; None for a tie."""
    defect_count = sum(vote["is_defect"] for vote in votes)
    if 2 * defect_count == len(votes):
        return None
    is_defect = 2 * defect_count > len(votes)
    winners = [vote for vote in votes if vote["is_defect"] == is_defect]
    named = [vote["kinds"] for vote in winners if vote["kinds"]]
    kind_counts = Counter(kind for kinds in named for kind in set(kinds))
    natures = Counter(vote["nature"] for vote in winners if vote["nature"]).most_common(2)
    is_clear = natures and (len(natures) == 1 or natures[0][1] > natures[1][1])
    return {
        "is_defect": is_defect,
        "kinds": sorted(kind for kind, count in kind_counts.items() if 2 * count >= len(named)) or None,
        "nature": natures[0][0] if is_clear else None,
        "label_source": votes[0]["label_source"],
        "annotator_count": len(votes),
        "agreement_ratio": len(winners) / len(votes),
    }
