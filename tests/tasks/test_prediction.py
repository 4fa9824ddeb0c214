"""Answers of the registered model, whatever form the question comes in; a bad question is a sentence."""

import gzip
import io
import json
import math
import os
import statistics
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from tasks import registration, tracking
from tasks.prediction import predict_graph, predict_rows, score_documents
from tasks.presentation import as_json, exit_code, render
from warpgauge.errors import ModelNotFoundError, NoDataError, SchemaError, SourceFileError
from warpgauge.registry.names import LAUNCH_LATENCY
from warpgauge.tables import LAUNCHES

ROOT = Path(__file__).parents[2]
DOT = ROOT / "tests" / "data" / "launches" / "plain.dot"
ANSWER_KEYS = {
    "predicted_latency_us",
    "lower_us",
    "upper_us",
    "model_name",
    "model_version",
    "promoted",
    "never_seen",
    "is_simulated",
    "target",
}


@pytest.fixture
def measured(make: Any) -> pl.DataFrame:
    """Twelve launches like those that the model learned from, without the columns that hold nothing."""
    frame: pl.DataFrame = make.launches(seed=3)
    return frame.gather_every(40).drop(
        name for name in frame.columns if frame[name].null_count() == frame.height
    )


def straight_line(length: int) -> str:
    nodes = [{"id": number, "type": "kernel", "name": "k"} for number in range(length)]
    edges = [[number, number + 1] for number in range(length - 1)]
    return json.dumps({"nodes": nodes, "edges": edges})


def refusal(question: Any, *arguments: Any) -> str:
    with pytest.raises((SourceFileError, SchemaError, NoDataError)) as caught:
        question(*arguments)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_graph_is_answered_in_microseconds_with_interval_and_provenance(
    world: Path, measured: pl.DataFrame
) -> None:
    gpu, cuda = measured.select("gpu_name", "cuda_version").row(0)
    (world / "g.json").write_text(straight_line(10))
    answer = predict_graph(str(world / "g.json"), gpu, cuda)
    assert set(answer) == ANSWER_KEYS
    assert 0 < answer["lower_us"] < answer["predicted_latency_us"] < answer["upper_us"] < 1000
    assert (answer["model_version"], answer["promoted"], answer["is_simulated"]) == ("1", True, False)
    assert not any(
        name.startswith(("gpu_name", "cuda_version", "node_count")) for name in answer["never_seen"]
    )

    (world / "long.json.gz").write_bytes(gzip.compress(straight_line(100).encode()))
    longer = predict_graph(str(world / "long.json.gz"), gpu, cuda)
    assert longer["predicted_latency_us"] > 2 * answer["predicted_latency_us"]
    (world / "longest.json").write_text(straight_line(2000))
    beyond = predict_graph(str(world / "longest.json"), "Some GPU", "99.1")
    assert {"gpu_name=Some GPU", "cuda_version=99.1", "node_count=2000"} <= set(beyond["never_seen"])
    spread = beyond["upper_us"] / beyond["lower_us"]
    assert spread > longer["upper_us"] / longer["lower_us"]
    assert "never seen: " in render("predict", beyond)


def test_graph_may_be_dot_text_or_come_from_standard_input(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from_file = predict_graph(str(DOT), None, None)
    assert "gpu_name=missing" in from_file["never_seen"]
    say(monkeypatch, DOT.read_bytes())
    assert predict_graph("-", None, None) == from_file


def say(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(content)))


def test_what_is_no_graph_is_refused_by_name(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPGAUGE_FETCH_SIZE_LIMIT_MB", "1")
    contents = {
        b"": "empty",
        b" \n": "no text",
        b"\x7fELF\x00\xff\xfe": "ELF",
        b"hello": "'hello'",
        b'{"nodes": []}': "without nodes",
        b'{"nodes": [{"id": 1}], "edges": [[1, 1]]}': "cycle",
        b"[" * 100_000: "not a JSON graph",
        straight_line(3).encode()[:-20]: "not a JSON graph",
        DOT.read_bytes()[:-30]: "as DOT",
        b" " * 1_000_001: "more than 1,000,000 bytes",
    }
    for number, (content, reason) in enumerate(contents.items()):
        path = world / f"{number}.graph"
        path.write_bytes(content)
        said = refusal(predict_graph, str(path), None, None)
        assert str(path) in said
        assert reason in said
        say(monkeypatch, content)
        said = refusal(predict_graph, "-", None, None)
        assert "standard input: " in said
    assert "no such file" in refusal(predict_graph, str(world / "absent"), None, None)
    assert "directory" in refusal(predict_graph, str(world), None, None)
    assert "directory" in refusal(predict_graph, "", None, None)


def test_rows_have_the_same_answers_in_every_form_and_order_of_columns(
    world: Path, measured: pl.DataFrame
) -> None:
    forms = {
        "rows.csv": measured.write_csv,
        "rows.parquet": measured.write_parquet,
        "rows.jsonl": measured.write_ndjson,
        "turned.csv": measured.select(reversed(measured.columns)).write_csv,
    }
    answers = []
    for name, write in forms.items():
        write(world / name)
        answers.append(predict_rows(str(world / name))["predictions"])
    (world / "rows.txt.gz").write_bytes(gzip.compress((world / "rows.csv").read_bytes()))
    answers.append(predict_rows(str(world / "rows.txt.gz"))["predictions"])
    assert len(answers[0]) == measured.height == 12
    assert all(set(answer) == ANSWER_KEYS for answer in answers[0])
    assert all(other == answers[0] for other in answers[1:])
    actual = measured["first_launch_api_us"].to_list()
    ratios = [answer["predicted_latency_us"] / us for answer, us in zip(answers[0], actual, strict=True)]
    assert 0.8 < statistics.median(ratios) < 1.25
    # One row's answer does not depend on the rows beside it.
    measured.slice(5, 1).write_csv(world / "one.csv")
    assert predict_rows(str(world / "one.csv"))["predictions"] == answers[0][5:6]


def test_gpu_and_cuda_of_the_command_line_serve_the_rows_that_name_none(
    world: Path, measured: pl.DataFrame
) -> None:
    gpu, cuda = measured.select("gpu_name", "cuda_version").row(0)
    path = world / "rows.csv"
    path.write_text(f"node_count,gpu_name\n5,\n5,{gpu}\n5,Some GPU\n")
    bare, own, other = (answer["never_seen"] for answer in predict_rows(str(path), gpu, cuda)["predictions"])
    assert bare == own
    assert set(other) - set(own) == {"gpu_name=Some GPU"}
    assert "gpu_name=missing" in predict_rows(str(path))["predictions"][0]["never_seen"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "empty"),
        ("node_count\n", "no row to predict"),
        ("node_count,colour\n5,red\n", "unknown column colour; columns of the table launches: launch_id"),
        ("gpu_name\nTesla T4\n", "row 1 does not say how many nodes its graph has"),
        ("node_count,gpu_name\n5,a\n,b\n", "row 2 does not say how many nodes its graph has (1 of 2 rows)"),
        ("node_count\n5\nmany\n", "row 2, column node_count: 'many' is not a number"),
        ("node_count\n5\n1e400\n", "row 2, column node_count: '1e400' is not a finite number"),
        ("node_count\n2.5\n", "row 1, column node_count: '2.5' is not a whole number"),
        ("node_count\n5\n0\n", "row 2, column node_count: found 0, 1 to 10,000,000 is needed"),
        ("node_count,depth\n5,-7\n", "row 1, column depth: found -7, 0 to 10,000,000 is needed"),
        ("node_count,memset_bytes\n5,-7\n", "row 1, column memset_bytes: found -7, 0 to inf is needed"),
        ("node_count,is_profiled\n5,maybe\n", "row 1, column is_profiled: 'maybe' is not true or false"),
        ("node_count,depth\n5\n", "row 1 (line 2) has 1 of 2 fields"),
        ("node_count,node_count\n5,5\n", "node_count"),
        ("\x89PNG\r\n", "not UTF-8 text"),
    ],
)
def test_rows_that_cannot_be_answered_are_named(world: Path, text: str, reason: str) -> None:
    path = world / "rows.csv"
    path.write_bytes(text.encode("latin-1"))
    said = refusal(predict_rows, str(path))
    assert reason in said
    assert str(path) in said


def test_lines_say_their_size_by_length_and_count(world: Path) -> None:
    (world / "rows.csv").write_text("line_length,line_count\n10,4\n")
    assert len(predict_rows(str(world / "rows.csv"))["predictions"]) == 1


def test_wide_file_of_many_rows_is_answered_in_one_go(world: Path, measured: pl.DataFrame) -> None:
    rows = pl.concat([LAUNCHES.conform(measured)] * 834).head(10_000)
    rows.write_csv(world / "wide.csv")
    answers = predict_rows(str(world / "wide.csv"))["predictions"]
    assert len(answers) == 10_000
    assert all(math.isfinite(answer["upper_us"]) for answer in answers)


def test_without_a_champion_the_challenger_answers_and_says_so(world: Path) -> None:
    tracking.connect().delete_registered_model_alias(LAUNCH_LATENCY, registration.CHAMPION)
    answer = predict_graph(str(DOT), None, None)
    assert answer["promoted"] is False
    assert "NOT PROMOTED" in render("predict", answer)


def test_without_any_model_the_answer_is_what_to_do(registry: Path) -> None:
    (registry / "rows.csv").write_text("node_count\n5\n")
    (registry / "page.md").write_text("# Title\n\nText.\n")
    for question in (
        lambda: predict_graph(str(DOT), None, None),
        lambda: predict_rows(str(registry / "rows.csv")),
        lambda: score_documents([str(registry / "page.md")]),
    ):
        with pytest.raises(ModelNotFoundError, match="train one with `warpgauge run`") as caught:
            question()
        assert caught.value.exit_code == 2


def test_documents_are_scored_and_a_bad_file_beside_them_is_refused(world: Path) -> None:
    (world / "page.md").write_text("# Streams\n\nA broken link.\n\n# Graphs\n\nA launch.\n")
    (world / "reports.jsonl").write_text('{"title": "t", "body": "documentation page link outdated"}\n')
    (world / "image.md").write_bytes(b"\x89PNG\r\n\x1a\n\x00\xff")
    result = score_documents(
        [str(world / name) for name in ("page.md", "image.md", "absent.md", "reports.jsonl")]
    )
    assert [row["source_id"] for row in result["documents"]] == [
        "page.md:Streams",
        "page.md:Graphs",
        "reports.jsonl:1",
    ]
    assert all(0 <= row["defect_probability"] <= 1 for row in result["documents"])
    assert (result["model_version"], result["promoted"]) == ("1", True)
    assert [text.count(str(world)) for text in result["refused"]] == [1, 1]
    assert exit_code(result) == 3
    assert json.loads(as_json(result))["documents"][0]["title"] == "Streams"
    shown = render("score", result)
    assert "page.md:Streams" in shown
    assert "REFUSED: " in shown
    assert "no document could be read" in refusal(score_documents, [str(world / "image.md")])


def test_page_larger_than_the_setting_is_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPGAUGE_FETCH_SIZE_LIMIT_MB", "1")
    (project / "page.md").write_text("# Title\n\n" + "word " * 300_000)
    assert "more than 1,000,000 bytes" in refusal(score_documents, [str(project / "page.md")])


def test_prediction_loads_no_library_that_it_does_not_need(world: Path) -> None:
    code = (
        "import json, sys\n"
        "from tasks.prediction import predict_graph\n"
        f"answer = predict_graph({str(DOT)!r}, None, None)\n"
        "heavy = ('prefect', 'torch', 'transformers', 'great_expectations', 'matplotlib')\n"
        "print(json.dumps([name for name in heavy if name in sys.modules]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, env=os.environ, capture_output=True, text=True, check=True
    )
    assert json.loads(done.stdout) == []
