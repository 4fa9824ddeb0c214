"""What a person and a program see of a result, also of one that lacks half of its values."""

import json
import math
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tasks import inspection, registration
from tasks.collection import collect_documents, collect_launches, collect_telemetry
from tasks.presentation import RENDERERS, as_json, exit_code, printable, render, table
from tasks.summary import with_evaluation
from tasks.validation import validate_table
from tests.fakes import write_launches, write_reports

NAN = math.nan


@pytest.mark.parametrize(
    ("result", "code"),
    [
        ({}, 0),
        ({"refused": [], "salvaged": []}, 0),
        ({"refused": None}, 0),
        ({"refused": ["a.csv: cut"]}, 3),
        ({"salvaged": ["a.csv: row 2 left out"]}, 3),
        ({"unavailable": "no driver"}, 0),
    ],
)
def test_exit_code_is_3_where_something_was_refused_or_salvaged(result: dict[str, Any], code: int) -> None:
    assert exit_code(result) == code


def test_table_is_aligned_and_says_what_is_missing() -> None:
    rows = [
        {"name": "a", "value": 1234.5678, "flag": True, "list": ["x", "y"]},
        {"name": "bcd", "value": None, "flag": False, "list": []},
        {"name": "two\nlines\t", "value": NAN},
    ]
    assert table(rows, ("name", "value", "flag", "list")) == [
        "name       value  flag  list",
        "---------  -----  ----  ----",
        "a          1235   yes   x, y",
        "bcd        -      no    -",
        "two lines  nan    -     -",
    ]
    assert table([], ("name", "value")) == ["name  value", "----  -----"]


def test_text_from_outside_cannot_command_the_terminal() -> None:
    assert printable("\x1b[31;1mred\x1b[0m") == "red"
    assert printable("a\x1b[2Jb\rc\nd\udcff\u202e é") == "a?[2Jb?c\nd?? é"
    result = {"predictions": [], "refused": ["\x1b]0;title\x07.csv: cut"]}
    assert render("predict", result) == "REFUSED: ?]0;title?.csv: cut"


def test_json_is_strict_and_keeps_numbers_numbers() -> None:
    result = {
        "nan": NAN,
        "infinite": [-math.inf, (math.inf, 1.5)],
        "numpy": [np.float32(0.5), np.int64(3), np.bool_(True), np.float64("nan"), np.array([1, 2])],
        "time": datetime(2026, 1, 2, tzinfo=UTC),
        "path": Path("a/b"),
        "text": "é \udcff",
        1: {2: None},
        "names": {"x"},
    }
    assert json.loads(as_json(result), parse_constant=pytest.fail) == {
        "nan": None,
        "infinite": [None, [None, 1.5]],
        "numpy": [0.5, 3, True, None, [1, 2]],
        "time": "2026-01-02T00:00:00+00:00",
        "path": "a/b",
        "text": "é \udcff",
        "1": {"2": None},
        "names": ["x"],
    }


def test_collected_sources_are_shown_with_what_was_refused(project: Path) -> None:
    result = collect_launches([str(write_launches(project, range(1, 4))), str(project / "absent.csv")])
    shown = render("collect", result)
    assert "launches: 15 rows added, version 1" in shown
    assert f"REFUSED: {project}/absent.csv: no such file; check the path" in shown
    shown = render("collect", collect_documents([f"jsonl:{write_reports(project, 10)}"]))
    assert "labels: 10 added" in shown
    shown = render("collect", collect_telemetry(["nvml"]) | {"unavailable": "no driver"})
    assert "cannot say: no driver" in shown


def test_validated_table_is_shown_with_the_checks_that_failed(project: Path) -> None:
    from tasks.storage import Store

    collect_launches([str(write_launches(project, range(1, 4)))])
    report = validate_table(Store(), "launches", build_docs=False).to_dict()
    result = {"tables": [report], "refused": [], "data_docs": None}
    assert render("validate", result) == "launches: 15 rows, passed, 0 quarantined"
    failed = report | {"verdict": "refused", "checks": [report["checks"][0] | {"outcome": "violated"}]}
    shown = render("validate", result | {"tables": [failed], "data_docs": "docs/index.html"})
    assert "violated" in shown
    assert shown.endswith("data docs: docs/index.html")


def test_versions_and_figures_of_the_registry_are_shown(world: Path) -> None:
    listed = registration.list_versions()
    shown = render("models", listed)
    assert "launch-latency: champion 1" in shown
    assert "challenger, champion" in shown
    compared = registration.compare_versions("launch-latency", "1", "champion")
    shown = render("models", compared)
    assert "rmse_us" in shown
    side = compared["sides"][0]
    assert shown.splitlines()[-1].split() == [
        *("1", "promote", str(side["judged_rows"]), side["test_set_sha256"][:12], "launches", "1"),
    ]
    json.loads(as_json(compared), parse_constant=pytest.fail)
    promoted = registration.promote("launch-latency", "1")
    assert render("models", promoted) == "model_name: launch-latency, champion: 1, gate: promote"

    verdict = with_evaluation(
        "launch-latency", {"version": "1", "outcome": "refuse", "reasons": ["too slow"]}
    )
    shown = render("train", verdict | {"refused": ["gate: too slow"]})
    assert "launch-latency version 1: gate says refuse\n  too slow" in shown
    assert "rmse_over_floor" in shown
    skipped = {"skip": True, "model_name": "launch-latency", "version": "1", "why": "same data"}
    assert render("train", skipped) == "launch-latency: not retrained: same data"


def test_registry_without_a_version_is_shown_with_the_reason(registry: Path) -> None:
    shown = render("models", registration.list_versions())
    assert "launch-latency: champion none: nothing was trained yet: run `warpgauge run`" in shown


def test_decisions_are_shown_also_where_nothing_could_be_measured() -> None:
    decision = {"signal": "residuals", "subject": "launch-latency", "status": "cannot_say", "sample_count": 0}
    decision |= {"value": None, "limit": NAN, "action": "none", "reason": "no champion"}
    shown = render("monitor", {"decisions": [decision]})
    assert "cannot_say  -      nan    0             none    no champion" in shown
    retrained = [{"model_name": "launch-latency", "outcome": "promoted"}]
    shown = render("monitor", {"decisions": [], "retrained": retrained})
    assert shown == "no signal could be measured\nretrained launch-latency: promoted"


def test_main_job_is_shown_from_its_source_to_where_to_look() -> None:
    result = {
        "launch_source": "NO MEASURED LAUNCHES",
        "tables": [{"table": "launches", "rows": 5, "added": 0, "quarantined": 0, "version": None}],
        "models": [{"skip": True, "model_name": "doc-quality", "why": "same data"}],
        "monitor": {"decisions": []},
        "where": {"tables": "data"},
    }
    assert render("run", result).splitlines() == [
        "NO MEASURED LAUNCHES",
        "",
        "table     rows  added  quarantined  version",
        "--------  ----  -----  -----------  -------",
        "launches  5     0      0            -",
        "",
        "doc-quality: not retrained: same data",
        "",
        "monitor",
        "no signal could be measured",
        "",
        "tables: data",
    ]


def test_prediction_says_what_it_is_worth() -> None:
    answer = {"predicted_latency_us": 3.24, "lower_us": 1.9, "upper_us": 5.7, "model_version": "2"}
    answer["model_name"] = "launch-latency"
    answer |= {"promoted": True, "is_simulated": False, "never_seen": []}
    assert render("predict", answer) == "3.2 us, between 1.9 and 5.7 us, launch-latency version 2"
    doubtful = answer | {
        "promoted": False,
        "is_simulated": True,
        "never_seen": ["gpu_name=X"],
        "upper_us": NAN,
    }
    assert render("predict", {"predictions": [answer, doubtful]}).splitlines()[1] == (
        "3.2 us, between 1.9 and nan us, launch-latency version 2, NOT PROMOTED, "
        "TRAINED ON SIMULATED LAUNCHES, never seen: gpu_name=X"
    )


def test_scores_of_documents_are_shown_with_who_taught_them() -> None:
    document = {"source_id": "a.md:x", "defect_probability": NAN, "kinds": None, "nature": None}
    result = {"documents": [document], "model_version": "1", "promoted": False, "provenance": "proxy"}
    shown = render("score", result).splitlines()
    assert shown[2].split() == ["a.md:x", "nan", "-", "-", "-", "-"]
    assert shown[3].startswith("doc-quality version 1, NOT PROMOTED, taught by proxy labels")


def test_machine_and_deployments_are_shown(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Looking up every installed package takes a second.
    monkeypatch.setattr(inspection, "_package", lambda _, name, lack: inspection._item(name, None, lack))
    shown = render("doctor", inspection.inspect_machine())
    assert "LightGBM" in shown
    deployed = {
        "server": "http://localhost",
        "work_pool": "warpgauge",
        "deployments": [{"name": "collect", "schedules": ["every hour"]}],
        "automations": [{"name": "drift", "expects": ["warpgauge.drift.latency"], "is_enabled": True}],
        "next": "start a worker",
    }
    assert "every hour" in render("deploy", deployed)


def test_every_command_has_a_form_for_people() -> None:
    from flows.__main__ import build_parser

    choices = build_parser()._subparsers._group_actions[0].choices  # type: ignore[union-attr]
    assert set(choices or ()) == set(RENDERERS)
