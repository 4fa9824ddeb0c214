"""Tasks out, answers in: what people answer is what comes back, and nothing else."""

import csv
import io
import json
from datetime import UTC, datetime
from typing import Any
from xml.etree import ElementTree

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from warpgauge.docquality.review_tasks import (
    CSV_COLUMNS,
    annotator_name,
    choose_most_changed,
    labelling_config,
    read_answers,
    review_csv,
    review_tasks,
)
from warpgauge.errors import SourceFileError
from warpgauge.tables import KINDS, LABELS, NATURES


def queue(count: int = 3) -> pl.DataFrame:
    return pl.DataFrame(
        {
            "document_id": [f"d{number}" for number in range(count)],
            "why": ["drift"] * count,
            "title": ["<b>Title</b> \x00 \U0001f600"] * count,
            "text": ['a, "b"\nc'] * count,
            "defect_probability": [0.9, 0.2, None][:count],
            "kinds": [["typo"], None, None][:count],
            "model_version": ["doc-quality 1"] * count,
        }
    )


def answer(task: dict[str, Any], verdict: str | None, **more: Any) -> dict[str, Any]:
    """The task as Label Studio exports it after an answer."""
    results = []
    if verdict is not None:
        results.append({"from_name": "verdict", "type": "choices", "value": {"choices": [verdict]}})
    for name in ("kinds", "nature"):
        if more.get(name):
            results.append({"from_name": name, "type": "choices", "value": {"choices": list(more[name])}})
    annotation = {
        "completed_by": more.get("by", 7),
        "created_at": "2026-02-03T04:05:06.000000Z",
        "was_cancelled": more.get("was_cancelled", False),
        "result": results,
    }
    return {**task, "id": 1, "annotations": [annotation]}


def test_tasks_hold_the_document_and_the_champions_answer_as_a_prediction() -> None:
    first, second, third = review_tasks(queue())
    assert first["data"]["document_id"] == "d0"
    (prediction,) = first["predictions"]
    assert prediction["model_version"] == "doc-quality 1"
    assert [(r["from_name"], r["value"]["choices"]) for r in prediction["result"]] == [
        ("verdict", ["defect"]),
        ("kinds", ["typo"]),
    ]
    assert second["predictions"][0]["result"][0]["value"]["choices"] == ["ok"]
    assert "predictions" not in third
    assert review_tasks(queue()) == [first, second, third]


def test_labelling_interface_is_xml_with_every_kind() -> None:
    found = {choice.get("value") for choice in ElementTree.fromstring(labelling_config()).iter("Choice")}
    assert found == {"defect", "ok", *KINDS, *NATURES}


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from(["defect", "ok", None]),
            st.lists(st.sampled_from(KINDS), unique=True, max_size=3),
            st.sampled_from([None, *NATURES]),
            st.integers(1, 5),
        ),
        min_size=1,
        max_size=8,
    )
)
def test_answers_come_back_as_they_were_given(given_answers: list[Any]) -> None:
    count = len(given_answers)
    rows = pl.DataFrame(
        {"document_id": [f"d{n}" for n in range(count)], "why": "w", "title": "t", "text": "x"}
    )
    exported = [
        answer(task, verdict, kinds=kinds, nature=[nature] if nature else None, by=by)
        for task, (verdict, kinds, nature, by) in zip(review_tasks(rows), given_answers, strict=True)
    ]
    answers = read_answers(json.dumps(exported), "export.json")
    wanted = [
        (f"d{n}", annotator_name(by, None), verdict == "defect")
        for n, (verdict, _, _, by) in enumerate(given_answers)
        if verdict is not None
    ]
    refused = sum(verdict is None and bool(kinds or nature) for verdict, kinds, nature, _ in given_answers)
    assert answers.labels.select("document_id", "annotator", "is_defect").rows() == wanted
    assert len(answers.problems) == refused
    assert answers.skipped_count == count - len(wanted) - refused
    assert answers.labels.schema == LABELS.schema
    assert set(answers.labels["labelled_at"]) <= {datetime(2026, 2, 3, 4, 5, 6, tzinfo=UTC)}


def test_csv_is_filled_in_and_read_back() -> None:
    rows = list(csv.DictReader(io.StringIO(review_csv(queue()))))
    assert tuple(rows[0]) == CSV_COLUMNS
    assert rows[0]["text"] == 'a, "b"\nc'
    rows[0] |= {"verdict": "Defect", "kinds": "typo; broken_link", "nature": "concept", "annotator": "me"}
    rows[1] |= {"verdict": "ok"}
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=CSV_COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    answers = read_answers(text.getvalue(), "queue.csv")
    assert answers.labels.select("document_id", "is_defect", "kinds", "nature").rows() == [
        ("d0", True, ["typo", "broken_link"], "concept"),
        ("d1", False, [], None),
    ]
    assert answers.skipped_count == 1
    assert answers.labels["labelled_at"].to_list() == [None, None]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[{"data": {"document_id": "d"', "cut or another file"),
        ('{"tasks": []}', "list of tasks"),
        ('["a"]', "list of tasks"),
        ('[{"document_id": "d", "verdict": "ok", "annotator": 1}]', "JSON-MIN"),
    ],
)
def test_file_that_is_no_export_is_refused_by_name(text: str, said: str) -> None:
    with pytest.raises(SourceFileError, match=said) as refused:
        read_answers(text, "export.json")
    assert "export.json" in str(refused.value)


def test_csv_without_its_columns_is_refused() -> None:
    with pytest.raises(SourceFileError, match="verdict"):
        read_answers("document_id,answer\nd,ok\n", "q.csv")


def test_wrong_answers_are_named_with_their_place_and_cancelled_ones_counted() -> None:
    tasks = review_tasks(queue())
    exported = [
        answer(tasks[0], "maybe"),
        answer(tasks[1], "defect", kinds=["rudeness"]),
        answer(tasks[2], "ok", was_cancelled=True),
        {**answer(tasks[2], "ok"), "data": {}},
        {**tasks[0], "annotations": []},
        {**tasks[0], "annotations": [17, {"result": "x", "completed_by": 1}]},
    ]
    answers = read_answers(json.dumps(exported), "e.json")
    assert answers.labels.is_empty()
    assert [problem.split(": ")[1] for problem in answers.problems] == [
        "task 1",
        "task 2",
        "task 4",
        "task 6",
    ]
    assert "rudeness" in answers.problems[1]
    assert answers.skipped_count == 3


def test_person_is_the_same_name_each_time_and_never_his_own() -> None:
    mail = {"id": 7, "email": "someone@example.org"}
    task = review_tasks(queue())[0]
    (name,) = read_answers(json.dumps([answer(task, "ok", by=mail)]), "e.json").labels["annotator"]
    assert name == annotator_name(7, None)
    assert "example" not in name
    assert annotator_name(7, "a" * 16) != annotator_name(7, "b" * 16) != annotator_name(7, None)


def test_most_changed_come_first_and_like_texts_once() -> None:
    vectors = np.array([[1.0, 0.0], [1.0, 0.01], [0.0, 1.0], [0.7, 0.7]])
    change = np.array([0.9, 1.0, 0.1, 0.5])
    assert choose_most_changed(change, vectors, 3).tolist() == [1, 3, 2]
    assert choose_most_changed(change, vectors, 1).tolist() == [1]
    assert choose_most_changed(change[:0], vectors[:0], 3).tolist() == []
