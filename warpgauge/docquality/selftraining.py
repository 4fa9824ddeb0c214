"""May the model teach itself from unlabelled documents? Only while held-out labels say that it helps.

The plain recipe (three rounds, pseudo-labels above 0.95) reports high coverage while a class disappears or
most new labels are wrong, so each round has to earn its place:

- confidence is calibrated on rows the teacher never saw;
- no class takes more pseudo-labels than its expected share of the pool;
- the whole round is rehearsed by cross-fitting: for each fold of the labelled rows a teacher that never saw
  the fold labels the pool (without the fold's own groups), a student learns from it, and the fold judges;
- a round that does not beat the supervised teacher there is discarded, and the run says why.

Judged by log loss: it is proper, works for any number of classes, and sees over-confidence, which average
precision does not.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from warpgauge.docquality.calibration import Floats, GroupCalibration, Integers, fit_group_calibration
from warpgauge.docquality.head import (
    FOLD_COUNT,
    LinearHead,
    assign_folds,
    choose_strength,
    cross_calibrated,
    fit_head,
    fold_calibration,
    one_thread,
    row_log_losses,
)

# Coverage bought with pseudo-labels of which more than 5 % are wrong is a failed round.
PRECISION_FLOOR = 0.95

# A class with less than a tenth of its expected share among the pseudo-labels is as good as gone: one lone
# document of a class must not open the door. Below half of its share the run warns.
_SHARE_FLOOR = 0.1
_SHARE_WARNING = 0.5


@dataclass(frozen=True)
class Round:
    """What one round did and whether it was kept. Tuples hold one value a class.

    Attributes:
        number: Counted from 1.
        pool_count: Unlabelled documents.
        selected_counts: Pseudo-labels taken.
        candidate_counts: Documents above the confidence, before the cap of the expected share.
        coverage_ratio: Pseudo-labels over pool.
        expected_shares: Shares among the labelled rows.
        selected_shares: Shares among the pseudo-labels, None where none was taken.
        audited_count: Held-out labelled rows that the same rule would have taken.
        audited_precision: Share of them that it would have labelled rightly, None where there are none.
        audited_precision_by_class: The same for each class that the rule says.
        recall_by_class: Held-out recall of the student.
        log_loss: Held-out, of the student, in nats.
        is_accepted: Whether the student became the model.
        reason: Why, or why not.
    """

    number: int
    pool_count: int
    selected_counts: tuple[int, ...]
    candidate_counts: tuple[int, ...]
    coverage_ratio: float
    expected_shares: tuple[float, ...]
    selected_shares: tuple[float, ...] | None
    audited_count: int
    audited_precision: float | None
    audited_precision_by_class: tuple[float | None, ...]
    recall_by_class: tuple[float, ...] | None
    log_loss: float | None
    is_accepted: bool
    reason: str


@dataclass(frozen=True)
class SelfTraining:
    """The model that came out, and the rounds on the way.

    Attributes:
        head: The last kept head, the supervised one where no round was kept.
        calibration: Fitted on the head's out-of-fold scores.
        strength: Of the ridge penalty.
        folds: Fold of each labelled row.
        probabilities: Out-of-fold, cross-calibrated, shape (labelled rows, classes).
        teacher_log_loss, teacher_recall_by_class: The supervised teacher's, on the same held-out rows.
        rounds: Of all rounds that were tried.
        accepted_count: Rounds kept.
        conclusion: One sentence.
        warnings: What a reader should know, for example a class without pseudo-labels.
    """

    head: LinearHead
    calibration: GroupCalibration
    strength: float
    folds: Integers
    probabilities: Floats
    teacher_log_loss: float
    teacher_recall_by_class: tuple[float, ...]
    rounds: tuple[Round, ...]
    accepted_count: int
    conclusion: str
    warnings: tuple[str, ...]


@dataclass(frozen=True)
class _State:
    """A head with its fold heads and what held-out rows say of it."""

    head: LinearHead
    fold_heads: dict[int, LinearHead]
    logits: Floats
    probabilities: Floats


@dataclass(frozen=True)
class _Data:
    """What stays the same over all rounds."""

    matrix: Floats
    labels: Integers
    folds: Integers
    base_rate_groups: NDArray[np.str_]
    pool: Floats
    pool_folds: Integers
    pool_base_rate_groups: NDArray[np.str_]
    class_names: tuple[str, ...]
    strength: float

    @property
    def class_count(self) -> int:
        return len(self.class_names)

    @property
    def expected_shares(self) -> Floats:
        return np.bincount(self.labels, minlength=self.class_count) / len(self.labels)


def select_pseudo_labels(
    probabilities: Floats, expected_shares: Floats, confidence_ratio: float
) -> tuple[Integers, Integers]:
    """Rows whose class is sure enough, the surest first, no class beyond its expected share of all rows.

    Args:
        probabilities: Calibrated, shape (rows, classes).
        expected_shares: Shape (classes,), sums to 1.
        confidence_ratio: Least probability of the likeliest class.

    Returns:
        Chosen row numbers, ascending, and the class of each.
    """
    likeliest = probabilities.argmax(axis=1)
    confidence = probabilities.max(axis=1)
    chosen: list[int] = []
    for label, share in enumerate(expected_shares):
        rows = np.flatnonzero((likeliest == label) & (confidence >= confidence_ratio))
        limit = int(np.ceil(share * len(probabilities)))
        chosen.extend(rows[np.argsort(-confidence[rows], kind="stable")][:limit].tolist())
    rows = np.array(sorted(chosen), dtype=np.int64)
    return rows, likeliest[rows].astype(np.int64)


@one_thread()
def self_train(
    matrix: Floats,
    labels: Integers,
    groups: Sequence[str],
    pool: Floats,
    pool_groups: Sequence[str],
    *,
    class_names: tuple[str, ...],
    rounds: int = 3,
    confidence_ratio: float = 0.95,
    recall_drop_limit_ratio: float = 0.02,
    base_rate_groups: NDArray[np.str_] | None = None,
    pool_base_rate_groups: NDArray[np.str_] | None = None,
) -> SelfTraining:
    """A calibrated linear head, improved by unlabelled rows only as far as held-out labels agree.

    Nothing here is random: folds follow a hash of the groups.

    Args:
        matrix: Features of labelled rows, shape (rows, columns).
        labels: Class of each, 0 to classes - 1.
        groups: Rows of one group never stand on both sides of a split.
        pool: Features of unlabelled rows, same columns; may be empty.
        pool_groups: Group of each; one that is also labelled is kept from the fold that judges it.
        class_names: For the reasons in the report.
        rounds: Most rounds.
        confidence_ratio: Least calibrated confidence of a pseudo-label.
        recall_drop_limit_ratio: Largest fall of a class's held-out recall in one round.
        base_rate_groups: Name for each labelled row (its family); calibrated apart where labels suffice.
        pool_base_rate_groups: The same for the pool.

    Raises:
        TrainingError: If a class is missing or lies in one group only.
    """
    everyone = np.array(["all"])
    folds = assign_folds(labels, groups, len(class_names), FOLD_COUNT)
    fold_of = dict(zip(groups, folds.tolist(), strict=True))
    names = base_rate_groups if base_rate_groups is not None else np.repeat(everyone, len(labels))
    strength = choose_strength(matrix, labels, folds, len(class_names), names)
    data = _Data(
        matrix=matrix,
        labels=labels,
        folds=folds,
        base_rate_groups=names,
        pool=pool,
        pool_folds=np.array([fold_of.get(group, -1) for group in pool_groups], dtype=np.int64),
        pool_base_rate_groups=pool_base_rate_groups
        if pool_base_rate_groups is not None
        else np.repeat(everyone, len(pool)),
        class_names=class_names,
        strength=strength,
    )
    teacher = _fit_state(data, None)
    teacher_losses = row_log_losses(teacher.probabilities, labels)
    current = teacher
    tried: list[Round] = []
    warnings: list[str] = []
    if len(pool) == 0:
        conclusion = "no unlabelled documents, so no self-training: the supervised model is used"
    elif rounds == 0:
        conclusion = "self-training is off (0 rounds): the supervised model is used"
    else:
        for number in range(1, rounds + 1):
            record, student = _try_round(
                data, current, teacher_losses, number, confidence_ratio, recall_drop_limit_ratio
            )
            tried.append(record)
            warnings.extend(_share_warnings(record, class_names))
            if student is None:
                break
            current = student
        conclusion = _conclude(tried)
    return SelfTraining(
        head=current.head,
        calibration=fit_group_calibration(current.logits, labels, names),
        strength=strength,
        folds=folds,
        probabilities=current.probabilities,
        teacher_log_loss=float(teacher_losses.mean()),
        teacher_recall_by_class=_recalls(teacher.probabilities, labels, len(class_names)),
        rounds=tuple(tried),
        accepted_count=sum(record.is_accepted for record in tried),
        conclusion=conclusion,
        warnings=tuple(warnings),
    )


def _fit_state(data: _Data, previous: _State | None, confidence_ratio: float = 1.0) -> _State:
    """Heads on the labelled rows alone, or with the pseudo-labels of the previous state."""
    fold_heads: dict[int, LinearHead] = {}
    logits = np.empty((len(data.labels), data.class_count))
    for fold in np.unique(data.folds).tolist():
        held = data.folds == fold
        fold_heads[fold] = _fit_with_pool(data, ~held, previous, fold, confidence_ratio)
        logits[held] = fold_heads[fold].logits(data.matrix[held])
    return _State(
        head=_fit_with_pool(data, np.ones(len(data.labels), dtype=bool), previous, None, confidence_ratio),
        fold_heads=fold_heads,
        logits=logits,
        probabilities=cross_calibrated(logits, data.labels, data.folds, data.base_rate_groups),
    )


def _fit_with_pool(
    data: _Data, rows: NDArray[np.bool_], previous: _State | None, fold: int | None, confidence_ratio: float
) -> LinearHead:
    matrix, labels = data.matrix[rows], data.labels[rows]
    if previous is not None:
        pool_rows, pool_labels = _pseudo_labels(data, previous, fold, confidence_ratio)
        matrix = np.concatenate([matrix, data.pool[pool_rows]])
        labels = np.concatenate([labels, pool_labels])
    return fit_head(matrix, labels, data.class_count, data.strength)


def _pool_probabilities(data: _Data, state: _State, fold: int | None) -> Floats:
    if fold is None:
        calibration = fit_group_calibration(state.logits, data.labels, data.base_rate_groups)
        logits = state.head.logits(data.pool)
    else:
        calibration = fold_calibration(state.logits, data.labels, data.folds, fold, data.base_rate_groups)
        logits = state.fold_heads[fold].logits(data.pool)
    return calibration.probabilities(logits, data.pool_base_rate_groups)


def _pseudo_labels(
    data: _Data, state: _State, fold: int | None, confidence_ratio: float
) -> tuple[Integers, Integers]:
    """Pseudo-labels by the whole teacher, or by the one of a fold without the fold's own groups."""
    allowed = np.flatnonzero(data.pool_folds != fold) if fold is not None else np.arange(len(data.pool))
    probabilities = _pool_probabilities(data, state, fold)[allowed]
    rows, labels = select_pseudo_labels(probabilities, data.expected_shares, confidence_ratio)
    return allowed[rows], labels


def _try_round(
    data: _Data,
    current: _State,
    teacher_losses: Floats,
    number: int,
    confidence_ratio: float,
    recall_drop_limit_ratio: float,
) -> tuple[Round, _State | None]:
    """One round: its record, and the student where it is kept."""
    rows, pseudo = _pseudo_labels(data, current, None, confidence_ratio)
    counts = np.bincount(pseudo, minlength=data.class_count)
    everyone = _pool_probabilities(data, current, None)
    sure = everyone.max(axis=1) >= confidence_ratio
    candidates = np.bincount(everyone.argmax(axis=1)[sure], minlength=data.class_count)
    audited, said = select_pseudo_labels(current.probabilities, data.expected_shares, confidence_ratio)
    right = said == data.labels[audited]
    fields: dict[str, Any] = {
        "number": number,
        "pool_count": len(data.pool),
        "selected_counts": tuple(counts.tolist()),
        "candidate_counts": tuple(candidates.tolist()),
        "coverage_ratio": len(rows) / len(data.pool),
        "expected_shares": tuple(data.expected_shares.tolist()),
        "selected_shares": tuple((counts / len(rows)).tolist()) if len(rows) else None,
        "audited_count": len(audited),
        "audited_precision": float(right.mean()) if len(audited) else None,
        "audited_precision_by_class": tuple(
            float(right[said == label].mean()) if (said == label).any() else None
            for label in range(data.class_count)
        ),
    }
    refusal = _refuse_shares(data, counts, confidence_ratio) or _refuse_precision(data, counts, said, right)
    if refusal:
        return Round(**fields, recall_by_class=None, log_loss=None, is_accepted=False, reason=refusal), None
    student = _fit_state(data, current, confidence_ratio)
    refusal = _refuse_student(data, current, student, teacher_losses, recall_drop_limit_ratio)
    losses = row_log_losses(student.probabilities, data.labels)
    record = Round(
        **fields,
        recall_by_class=_recalls(student.probabilities, data.labels, data.class_count),
        log_loss=float(losses.mean()),
        is_accepted=refusal is None,
        reason=refusal
        or f"held-out log loss {losses.mean():.4f} beats the supervised teacher's {teacher_losses.mean():.4f}",
    )
    return record, student if refusal is None else None


def _refuse_shares(data: _Data, counts: Integers, confidence_ratio: float) -> str | None:
    """Why pseudo-labels of these classes must not be learned from; None when they may."""
    if counts.sum() == 0:
        return f"no unlabelled document reached a calibrated confidence of {confidence_ratio}"
    for label, name in enumerate(data.class_names):
        expected = data.expected_shares[label]
        if counts[label] < _SHARE_FLOOR * expected * counts.sum():
            got = f"{counts[label] / counts.sum():.1%}" if counts[label] else "none"
            return (
                f"class {name!r} got {got} of the pseudo-labels, expected {expected:.1%}: learning from the "
                f"others would make it disappear"
            )
    return None


def _refuse_precision(data: _Data, counts: Integers, said: Integers, right: NDArray[np.bool_]) -> str | None:
    """Why these pseudo-labels are too often wrong to learn from; None when they may be used."""
    if len(said) == 0:
        return "no held-out labelled document is as sure as the pseudo-labels, so they cannot be audited"
    if right.mean() < PRECISION_FLOOR:
        return f"audited precision {right.mean():.3f} of the pseudo-labels is below {PRECISION_FLOOR}"
    for label, name in enumerate(data.class_names):
        of_class = right[said == label]
        if counts[label] and len(of_class) == 0:
            return (
                f"no held-out labelled document is as surely {name!r} as its {counts[label]} pseudo-labels, "
                f"so they cannot be audited"
            )
        if len(of_class) and _wilson_upper(int(of_class.sum()), len(of_class)) < PRECISION_FLOOR:
            return (
                f"audited precision {of_class.mean():.3f} of the pseudo-labels {name!r} ({len(of_class)} audited) "
                f"is below {PRECISION_FLOOR} beyond chance"
            )
    return None


def _refuse_student(
    data: _Data,
    current: _State,
    student: _State,
    teacher_losses: Floats,
    recall_drop_limit_ratio: float,
) -> str | None:
    """Why the student must not replace the current model; None when it may."""
    losses = row_log_losses(student.probabilities, data.labels)
    before = _recalls(current.probabilities, data.labels, data.class_count)
    after = _recalls(student.probabilities, data.labels, data.class_count)
    for name, old, new in zip(data.class_names, before, after, strict=True):
        if old - new > recall_drop_limit_ratio:
            return (
                f"held-out recall of class {name!r} fell from {old:.3f} to {new:.3f}, "
                f"more than {recall_drop_limit_ratio}"
            )
    gains = teacher_losses - losses
    gain, error = float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))
    if gain <= 0:
        return (
            f"held-out log loss {losses.mean():.4f} does not beat the supervised teacher's "
            f"{teacher_losses.mean():.4f}"
        )
    # Three rounds of coin flips would keep one most of the time; one standard error is the least proof.
    if gain <= error:
        return (
            f"held-out log loss {losses.mean():.4f} beats the supervised teacher's {teacher_losses.mean():.4f} "
            f"by {gain:.4f}, within its standard error of {error:.4f}"
        )
    if losses.mean() >= row_log_losses(current.probabilities, data.labels).mean():
        return f"held-out log loss {losses.mean():.4f} is no better than the last kept round's"
    return None


def _recalls(probabilities: Floats, labels: Integers, class_count: int) -> tuple[float, ...]:
    said = probabilities.argmax(axis=1)
    return tuple(float((said[labels == label] == label).mean()) for label in range(class_count))


def _wilson_upper(right_count: int, count: int) -> float:
    """Upper end of the 95 % Wilson interval of a share."""
    z = 1.96
    share = right_count / count
    centre = share + z * z / (2 * count)
    spread = z * np.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return float((centre + spread) / (1 + z * z / count))


def _share_warnings(record: Round, class_names: tuple[str, ...]) -> list[str]:
    if record.selected_shares is None:
        return []
    return [
        f"round {record.number}: class {name!r} makes up {share:.1%} of the pseudo-labels, expected {expected:.1%}"
        for name, share, expected in zip(
            class_names, record.selected_shares, record.expected_shares, strict=True
        )
        if share < _SHARE_WARNING * expected
    ]


def _conclude(rounds: Sequence[Round]) -> str:
    kept = [record for record in rounds if record.is_accepted]
    last = rounds[-1]
    model = f"the model of round {kept[-1].number}" if kept else "the supervised model"
    if last.is_accepted:
        return f"{len(kept)} of {len(rounds)} rounds kept: {model} is used"
    return f"round {last.number} was discarded ({last.reason}): {model} is used"
