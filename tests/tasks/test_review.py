"""The human queue from drift to labels: what is queued, what goes out, what comes back, and that it arms the monitor."""

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import answers, deployment, review
from tasks.presentation import exit_code, render
from tasks.storage import Store
from tasks.training import plan_training
from warpgauge.errors import NoDataError, ServiceUnavailableError
from warpgauge.registry.names import DOC_QUALITY

OTHER_TOPIC = (("tensor", "matrix", "gradient", "layer"), ("weights", "batch", "epoch", "loss"))
TRIPPED = {"signal": "embedding_shift", "value": 2.0, "limit": 1.0, "reason": "squared MMD 2 on 60 documents"}


@pytest.fixture(autouse=True)
def no_prefect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deployment, "server_url", lambda: None)


@pytest.fixture
def drifted(world: Path, make: Any) -> Path:
    """A world in which 20 of 80 new reports are about something else."""
    store = Store()
    now = datetime.now(UTC)
    store.append("documents", make.reports(60, seed=5, fetched_at=now))
    store.append("documents", make.reports(20, seed=6, fetched_at=now, words=OTHER_TOPIC))
    return world


def queue() -> pl.DataFrame:
    return Store().read("review_queue").collect()


def exported(path: Path, limit: int | None = None) -> list[dict[str, Any]]:
    review.export_queue(str(path), limit)
    return list(json.loads(path.read_text()))


def answered(tasks: list[dict[str, Any]], path: Path, verdict: str = "ok", by: int = 1) -> str:
    for task in tasks:
        task["annotations"] = [
            {
                "completed_by": by,
                "created_at": (datetime.now(UTC) + timedelta(seconds=1)).isoformat(),
                "result": [{"from_name": "verdict", "value": {"choices": [verdict]}}],
            }
        ]
    path.write_text(json.dumps(tasks))
    return str(path)


def test_what_changed_most_is_queued_with_its_reason_and_once(drifted: Path) -> None:
    review.queue_documents([TRIPPED])
    first = queue()
    assert 0 < first.height <= review.QUEUED_DOCUMENTS
    # The made-up words of the other topic: a third of the queue's room is theirs alone.
    most = first.sort("priority", descending=True).head(8)["document_id"]
    assert most.str.contains("weights").mean() > 0.7
    assert "embedding shift: squared MMD" in first["why"][0]
    review.queue_documents([TRIPPED])
    assert queue().sort("document_id").equals(first.sort("document_id"))


def test_round_without_drift_of_documents_queues_nothing(drifted: Path) -> None:
    review.queue_documents([{**TRIPPED, "value": 0.5}, {**TRIPPED, "signal": "residuals"}])
    assert queue().is_empty()


def test_tasks_name_the_champion_and_are_the_same_each_time(drifted: Path, tmp_path: Path) -> None:
    review.queue_documents([TRIPPED])
    tasks = exported(tmp_path / "out" / "tasks.json")
    assert len(tasks) == queue().height
    assert tasks[0]["predictions"][0]["model_version"] == "doc-quality 1"
    assert (tmp_path / "out" / review.CONFIG_FILE).exists()
    assert exported(tmp_path / "again.json") == tasks
    assert len(exported(tmp_path / "few.json", 2)) == 2


def test_answers_come_back_as_labels_leave_the_queue_and_arm_the_monitor(
    drifted: Path, tmp_path: Path
) -> None:
    review.queue_documents([TRIPPED])
    assert answers.answered_reviews() == {}
    tasks = exported(tmp_path / "tasks.json")
    before = plan_training(DOC_QUALITY)["data_versions"]
    file = answered(tasks[:5], tmp_path / "answers.json", "defect")
    told = review.import_labels([file])
    assert told["files"] == [{"source": file, "answers": 5, "added": 5, "skipped": 0, "refused": 0}]
    assert told["waiting"] == len(tasks) - 5
    assert exit_code(told) == 0
    labels = Store().read("labels").filter(pl.col("annotator").str.starts_with("person-")).collect()
    assert labels["is_defect"].to_list() == [True] * 5
    assert set(answers.answered_reviews()) == {DOC_QUALITY}
    assert plan_training(DOC_QUALITY)["data_versions"] != before
    again = review.import_labels([file])
    assert again["files"][0]["added"] == 0
    # The room of those that were answered is filled with others.
    review.queue_documents([TRIPPED])
    assert queue()["document_id"].is_unique().all()
    assert queue().height == len(tasks) + 5


def test_csv_answered_without_a_time_is_stamped_once(drifted: Path, tmp_path: Path) -> None:
    review.queue_documents([TRIPPED])
    path = tmp_path / "queue.csv"
    review.export_queue(str(path), 3)
    frame = pl.read_csv(path, infer_schema=False).with_columns(pl.lit("ok").alias("verdict"))
    frame.write_csv(path)
    assert review.import_labels([str(path)])["files"][0]["added"] == 3
    assert review.import_labels([str(path)])["files"][0]["added"] == 0


def test_stranger_is_refused_and_the_rest_taken(drifted: Path, tmp_path: Path) -> None:
    review.queue_documents([TRIPPED])
    tasks = exported(tmp_path / "tasks.json")[:2]
    tasks[0]["data"]["document_id"] = "nobody"
    told = review.import_labels([answered(tasks, tmp_path / "a.json")])
    assert told["files"][0]["added"] == 1
    assert "nobody" in told["refused"][0]
    assert exit_code(told) == 3


def test_files_without_an_answer_are_refused_and_say_why(drifted: Path, tmp_path: Path) -> None:
    (tmp_path / "cut.json").write_text('[{"data"')
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    for name, said in (("cut.json", "cut"), ("binary.json", "UTF-8"), ("absent.json", "cannot be read")):
        with pytest.raises(NoDataError, match=said):
            review.import_labels([str(tmp_path / name)])


def test_empty_queue_is_said_and_no_failure(world: Path, tmp_path: Path) -> None:
    told = review.export_queue(str(tmp_path / "t.json"))
    assert (told["documents"], exit_code(told)) == (0, 0)
    assert render("review", told) == "no document waits for a person"


def test_place_that_cannot_be_written_is_said(world: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ServiceUnavailableError, match="cannot be written"):
        review.export_queue(str(tmp_path / "file" / "t.json"))
