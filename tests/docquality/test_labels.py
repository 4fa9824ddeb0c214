from datetime import UTC, datetime

import polars as pl
import pytest

from warpgauge.docquality.labels import aggregate_labels, require_both_classes
from warpgauge.errors import SchemaError, TrainingError
from warpgauge.tables import LABELS


def label(document, annotator, verdict, source="human", day=1, kinds=None, nature=None):
    return {
        "document_id": document,
        "annotator": annotator,
        "labelled_at": datetime(2026, 1, day, tzinfo=UTC),
        "label_source": source,
        "is_defect": verdict,
        "kinds": kinds,
        "nature": nature,
    }


def table(*rows):
    return pl.DataFrame(list(rows), schema=LABELS.schema)


def test_a_person_beats_history():
    labels = aggregate_labels(table(label("d", "rule", True, "history"), label("d", "ann", False)))
    assert labels.frame["is_defect"].to_list() == [False]
    assert labels.frame["label_source"].to_list() == ["human"]
    assert (labels.human_count, labels.history_count) == (1, 0)


def test_majority_of_three_decides():
    rows = [label("d", "ann", True), label("d", "bob", True), label("d", "cho", False)]
    row = aggregate_labels(table(*rows)).frame.row(0, named=True)
    assert row["is_defect"] is True
    assert row["annotator_count"] == 3
    assert row["agreement_ratio"] == pytest.approx(2 / 3)


def test_a_tie_is_named_and_left_out_and_history_does_not_break_it():
    labels = aggregate_labels(
        table(label("d", "ann", True), label("d", "bob", False), label("d", "rule", True, "history"))
    )
    assert labels.tied == ("d",)
    assert labels.frame.is_empty()


def test_the_latest_label_of_an_annotator_counts():
    rows = [label("d", "ann", True, day=1), label("d", "ann", False, day=2)]
    assert aggregate_labels(table(*rows[::-1])).frame["is_defect"].to_list() == [False]


def test_labels_made_by_checks_are_counted_and_never_used():
    labels = aggregate_labels(table(label("d", "check", True, "check"), label("e", "rule", False, "history")))
    assert labels.frame["document_id"].to_list() == ["e"]
    assert labels.check_label_count == 1


def test_kinds_and_nature_come_from_the_winning_side():
    rows = [
        label("d", "ann", True, kinds=["typo", "unclear"], nature="concept"),
        label("d", "bob", True, kinds=["typo"], nature="concept"),
        label("d", "cho", True, nature="version"),
        label("d", "eve", False, kinds=["rendering"]),
    ]
    row = aggregate_labels(table(*rows)).frame.row(0, named=True)
    assert row["kinds"] == ["typo", "unclear"]  # half of the two who named any
    assert row["nature"] == "concept"


def test_nature_is_null_on_a_tie_and_kinds_null_where_no_one_named_any():
    rows = [label("d", "ann", True, nature="concept"), label("d", "bob", True, nature="version", kinds=[])]
    row = aggregate_labels(table(*rows)).frame.row(0, named=True)
    assert row["nature"] is None
    assert row["kinds"] is None


def test_order_of_rows_does_not_matter():
    rows = [label(f"d{at}", who, (at + len(who)) % 3 == 0) for at in range(9) for who in ("ann", "bo", "c")]
    assert aggregate_labels(table(*rows)).frame.equals(aggregate_labels(table(*rows[::-1])).frame)


def test_no_labels_give_an_empty_set():
    assert aggregate_labels(table()).frame.is_empty()


def test_a_missing_column_and_a_missing_verdict_are_refused():
    with pytest.raises(SchemaError, match="is_defect"):
        aggregate_labels(table(label("d", "ann", True)).drop("is_defect"))
    with pytest.raises(SchemaError, match="1 of 1 rows have no is_defect"):
        aggregate_labels(table(label("d", "ann", None)))
    with pytest.raises(SchemaError, match="oracle"):
        aggregate_labels(table(label("d", "ann", True, "oracle")))


def test_what_to_do_about_labels_can_be_done():
    with pytest.raises(TrainingError, match=r"`jsonl:` reports with a `label` field"):
        require_both_classes(pl.Series([True]), minimum_labels=40, where="labels")
    with pytest.raises(TrainingError, match=r"`jsonl:` reports with a `label` field"):
        require_both_classes(pl.Series([True] * 50), minimum_labels=40, where="labels")


def test_too_few_labels_and_one_class_say_what_to_do():
    with pytest.raises(TrainingError, match="3 labelled documents, training needs 40"):
        require_both_classes(pl.Series([True, False, True]), minimum_labels=40, where="labels")
    with pytest.raises(TrainingError, match="none is labelled 'no defect'"):
        require_both_classes(pl.Series([True] * 50), minimum_labels=40, where="labels")
    with pytest.raises(TrainingError, match="none is labelled 'defect'"):
        require_both_classes(pl.Series([False] * 50), minimum_labels=40, where="labels")
