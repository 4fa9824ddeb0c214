"""The page: the right figures from known rows, nothing from elsewhere, hostile names as text, bounded size."""

import html
import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import polars as pl
import pytest

from tests.fakes import ROUNDS_BEGIN, decision_row
from warpgauge.drift.report import MOST_CARDS, draw_pictures, render_markdown, render_page
from warpgauge.drift.timeline import build_timeline, recent
from warpgauge.drift.verdict import Round, cause_of, judge, phase_of, worst_first
from warpgauge.tables import DECISIONS

Rows = Sequence[dict[str, Any]]
HTML = "{http://www.w3.org/1999/xhtml}"
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\x00\x1b[2J\u202e]]>-->"
SLICES = [
    {
        "slice": "all rows",
        "sample_count": 900,
        "status": "measured",
        "value": 1.5,
        "limit": 4.5,
        "is_never_seen": False,
    },
    {
        "slice": "gpu_name=NVIDIA H100",
        "sample_count": 450,
        "status": "measured",
        "value": 9.25,
        "limit": 4.75,
        "change_ratio": 0.251,
        "inside_ratio": 0.4,
        "trained_inside_ratio": 0.9,
        "is_never_seen": False,
    },
    {
        "slice": "gpu_name=NVIDIA B200",
        "sample_count": 7,
        "status": "cannot_say",
        "value": None,
        "limit": None,
        "is_never_seen": True,
    },
]


def round_of(rows: Rows, before: Rows = (), **others: Any) -> Round:
    decided_at = rows[0]["decided_at"] if rows else ROUNDS_BEGIN
    frame = DECISIONS.conform(pl.DataFrame([*before, *rows], schema=DECISIONS.schema))
    timeline = build_timeline(recent(frame.lazy(), decided_at).collect(), decided_at)
    return Round(run_id="run-0", decided_at=decided_at, rows=rows, timeline=timeline, **others)


def page_of(rows: Rows, before: Rows = (), **others: Any) -> ET.Element:
    return parsed(render_page(round_of(rows, before, **others)))


def parsed(page: str) -> ET.Element:
    """The page, which is XML after its first line."""
    assert page.startswith("<!DOCTYPE html>\n")
    return ET.fromstring(page.split("\n", 1)[1])


def cells(page: ET.Element, section: str) -> list[list[str]]:
    found = page.find(f".//{HTML}section[@id='{section}']")
    assert found is not None
    return [["".join(cell.itertext()) for cell in row.iter(f"{HTML}td")] for row in found.iter(f"{HTML}tr")][
        1:
    ]


def cards(page: ET.Element) -> list[str]:
    return [" ".join("".join(card.itertext()).split()) for card in page.iter(f"{HTML}article")]


# The verdict


@pytest.mark.parametrize(
    ("rows", "said", "level"),
    [
        ([], "Nothing was measured", "blind"),
        ([decision_row()], "All quiet: 1 signal measured, each within its limit", "quiet"),
        (
            [decision_row(), decision_row(subject="B", value=None)],
            "All quiet; 1 of 2 signals cannot say",
            "blind",
        ),
        ([decision_row(value=None)], "Blind: none of 1 signal can say", "blind"),
        (
            [decision_row(value=97, phase="acting", action="retrain", episode_id="e")],
            "1 retraining ordered: launch-latency",
            "act",
        ),
        (
            [decision_row(value=97, phase="human", action="review", episode_id="e", alert_cause="not_cured")],
            "A person is asked: utilization_p95 of GPU-1",
            "person",
        ),
        (
            [decision_row(value=97, phase="human", episode_id="e")],
            "1 open episode for a person to end: utilization_p95 of GPU-1",
            "person",
        ),
        (
            [
                decision_row(value=97, phase="acknowledged", episode_id="e"),
                decision_row(subject="B", value=None),
            ],
            "1 episode open: utilization_p95 of GPU-1; 1 of 2 signals cannot say",
            "open",
        ),
        (
            [decision_row(value=None, action="alert", alert_cause="monitor_blind")],
            "1 alert: utilization_p95 of GPU-1; blind: none of 1 signal can say",
            "person",
        ),
        (
            [decision_row(value=97, phase="pending", action="wait")],
            "1 signal above the limit, not for long enough",
            "open",
        ),
        (
            [
                decision_row(value=97, phase="firing", action="wait", episode_id=name, subject=name)
                for name in "abc"
            ],
            "3 episodes open: utilization_p95 of a, utilization_p95 of b and 1 more",
            "open",
        ),
    ],
)
def test_a_round_in_one_sentence(rows: Rows, said: str, level: str) -> None:
    assert judge(round_of(rows)) == (said, level)


def test_retrainings_that_ran_in_the_round_come_first() -> None:
    row = decision_row(value=97, phase="acting", action="retrain", episode_id="e")
    ended = {"model_name": "launch-latency", "outcome": "failed: out of memory", "is_failed": True}
    said, level = judge(round_of([row], retrained=[ended]))
    assert said == ("Retraining of launch-latency ended here: failed; 1 retraining ordered: launch-latency")
    assert level == "person"


def test_the_worst_is_shown_first() -> None:
    rows = [
        decision_row(subject="quiet"),
        decision_row(subject="nearer", value=91),
        decision_row(subject="blind", value=None),
        decision_row(subject="open", value=97, phase="acknowledged", episode_id="e"),
        decision_row(subject="person", value=97, phase="human", episode_id="f"),
        decision_row(subject="odd") | {"state": "{}"},
    ]
    assert [row["subject"] for row in worst_first(rows)] == [
        "person",
        "open",
        "odd",
        "blind",
        "nearer",
        "quiet",
    ]


@pytest.mark.parametrize("state", [None, "", "{", "[]", "7", '{"phase": null}', '{"phase": ""}'])
def test_a_state_that_tells_no_phase_is_unknown(state: str | None) -> None:
    row = decision_row() | {"state": state}
    assert phase_of(row) == "unknown"
    assert "state unknown" in cards(page_of([row]))[0]


def test_why_a_signal_cannot_say_is_named_also_where_the_cause_is_new() -> None:
    assert cause_of(decision_row(value=None)) == "too few"
    assert cause_of(decision_row(value=None, reason="no champion: train one")) == "no champion"
    assert cause_of(decision_row(value=None, reason="moon phase: full")) == "unknown"
    assert cause_of(decision_row()) is None


# The page


def test_a_card_has_value_interval_limit_samples_state_and_reason() -> None:
    (card,) = cards(page_of([decision_row(value=84.25, model_version="7")]))
    assert card.startswith(
        "GPU utilization, 95th percentileGPU-1 · launch-latency version 7✓ quiet"
        "value84.25 %interval82.25 to 85.25limit92samples1,234within its limit: p95 84.25 %"
    )


def test_what_cannot_say_looks_other_than_quiet_and_shows_no_number() -> None:
    page = page_of([decision_row(value=None), decision_row(subject="GPU-2")])
    blind, quiet = page.iter(f"{HTML}article")
    assert (blind.get("class"), quiet.get("class")) == ("card is-blind", "card")
    said, _ = cards(page)
    assert "? cannot say: too few" in said
    assert "valueno number" in said
    assert "quiet" not in said


def test_a_blind_signal_with_an_open_episode_shows_both() -> None:
    row = decision_row(value=None, phase="acknowledged", episode_id="e1")
    (card,) = cards(page_of([row]))
    assert "? cannot say: too few" in card
    assert "◐ answered, episode open" in card


def test_decisions_are_told_with_their_reasons() -> None:
    rows = [
        decision_row(value=97, phase="acting", action="retrain", reason="retrain launch-latency: p95 97 %"),
        decision_row(subject="GPU-2", value=None, alert_cause="monitor_blind", action="alert"),
    ]
    assert cells(page_of(rows), "decisions") == [
        [
            "utilization_p95 of GPU-1",
            "retraining at work",
            "97",
            "92",
            "1,234",
            "retrain",
            "retrain launch-latency: p95 97 %",
        ],
        [
            "utilization_p95 of GPU-2",
            "cannot say: too few",
            "–",
            "92",
            "12",
            "alert, alert: monitor_blind",
            "cannot say, too few: 12 of 50",
        ],
    ]


def test_slices_are_shown_with_n_value_limit_and_status() -> None:
    row = decision_row(signal="residuals", subject="launch-latency", details=json.dumps({"slices": SLICES}))
    assert cells(page_of([row]), "slices") == [
        ["all rows", "900", "1.5", "4.5", "✓ within its limit", "–", "–", "–"],
        ["gpu_name=NVIDIA H100", "450", "9.25", "4.75", "▲ above its limit", "+25.1 %", "40.0 %", "90.0 %"],
        ["gpu_name=NVIDIA B200", "7", "–", "–", "? cannot say, never seen in training", "–", "–", "–"],
    ]


@pytest.mark.parametrize(
    "details",
    [
        "",
        "{",
        "[]",
        "null",
        '{"slices": 3}',
        '{"slices": [1, null, "x"]}',
        '{"slices": [{}]}',
        '{"slices": [{"value": 1e999}]}',
    ],
)
def test_details_that_cannot_be_read_cost_the_page_nothing(details: str) -> None:
    assert cards(page_of([decision_row(details=details)]))


def test_open_episodes_have_an_age_and_what_they_wait_for() -> None:
    state = {"opened_at": ROUNDS_BEGIN.isoformat(), "attempt_id": "e1/2", "failure_count": 1}
    before = [
        decision_row(0, 97, phase="firing", episode_id="e1", state=state, subject="GPU-gone"),
        decision_row(0, 97, phase="human", episode_id="e2", state={"opened_at": ROUNDS_BEGIN.isoformat()}),
    ]
    now = decision_row(200, 97, phase="human", episode_id="e2", reason="waits")
    page = page_of([now], before)
    assert cells(page, "open") == [
        ["utilization_p95 of GPU-1", "3 h 20 min", "a person", "0", "waits", "e2"],
        [
            "utilization_p95 of GPU-gone",
            "3 h 20 min",
            "its action, which is due",
            "1, 1 failed",
            "not measured in this round; last on 2026-03-01 00:00: within its limit: p95 97 %",
            "e1",
        ],
    ]


def test_past_episodes_have_opening_end_attempts_and_outcome() -> None:
    state = {"attempt_id": "e1/1", "outcome": "refused"}
    before = [
        decision_row(0, 97, phase="acknowledged", episode_id="e1", state=state),
        decision_row(1500, 50, episode_id="e1"),
    ]
    assert cells(page_of([decision_row(1510)], before), "history") == [
        ["2026-03-01 00:00", "2026-03-02 01:00", "1 d 1 h", "utilization_p95 of GPU-1", "1", "refused"]
    ]


def test_undelivered_alerts_are_told() -> None:
    alert = {
        "decided_at": ROUNDS_BEGIN,
        "cause": "not_cured",
        "reason": "retraining does not cure it",
        "refusal_count": 2,
        "trouble": "HTTP 503",
    }
    page = page_of([decision_row()], undelivered=[alert])
    assert cells(page, "undelivered") == [
        ["2026-03-01 00:00", "not_cured", "retraining does not cure it", "2", "HTTP 503"]
    ]


def test_a_page_of_nothing_measured_is_a_page() -> None:
    page = page_of([])
    assert "Nothing was measured" in "".join(page.itertext())
    assert cards(page) == []


def test_one_round_has_one_chart_and_a_long_history_two() -> None:
    days = [decision_row(60 * number) for number in range(72)]
    charts = [
        sum(1 for figure in page.iter(f"{HTML}article") for _ in figure.iter(f"{HTML}figure"))
        for page in (page_of([decision_row()]), page_of([days[-1]], days[:-1]))
    ]
    assert charts == [1, 2]


def hostile_rows() -> list[dict[str, Any]]:
    text = {"subject": HOSTILE, "reason": HOSTILE, "model_name": HOSTILE, "model_version": HOSTILE}
    slices = [{"slice": HOSTILE, "status": HOSTILE, "value": HOSTILE, "limit": [], "sample_count": HOSTILE}]
    return [
        decision_row(
            value=97,
            signal=HOSTILE,
            phase=HOSTILE,
            episode_id=HOSTILE,
            action="alert",
            alert_cause=HOSTILE,
            **text,
        )
        | {"details": json.dumps({"slices": slices})},
        decision_row(value=None, phase="human", episode_id="e" + HOSTILE, action=HOSTILE, **text),
    ]


def test_hostile_names_are_text_wherever_they_stand() -> None:
    alert = dict.fromkeys(("cause", "reason", "trouble"), HOSTILE) | {
        "decided_at": ROUNDS_BEGIN,
        "refusal_count": 1,
    }
    ended = {"model_name": HOSTILE, "outcome": HOSTILE, "is_failed": True}
    round_ = round_of(hostile_rows(), retrained=[ended], undelivered=[alert])
    page = render_page(round_)
    tree = parsed(page)
    tags = {element.tag.rpartition("}")[2] for element in tree.iter()}
    assert not tags & {"script", "img", "iframe", "object", "link", "a", "foreignObject", "use", "image"}
    names = {name for element in tree.iter() for name in element.attrib}
    assert not [name for name in names if name.startswith("on") or name in ("href", "src")]
    assert "\x00" not in page
    assert "\x1b" not in page
    assert "\u202e" not in page
    assert page.count("&lt;script&gt;alert(1)&lt;/script&gt;") > 10
    for picture in draw_pictures(round_).values():
        assert not [one for one in ET.fromstring(picture).iter() if one.tag.endswith("script")]
    short = render_markdown(round_, "x.html")
    assert "<" not in short
    assert "](" not in short


def test_secrets_and_paths_in_reasons_stay_here() -> None:
    said = "champion: /home/ann/mlruns/model.txt, store http://ann:hunter22@hub:5000 did not answer"
    row = decision_row(value=None, reason=said, phase="firing", episode_id="e")
    round_ = round_of([row])
    for text in (render_page(round_), render_markdown(round_), *draw_pictures(round_).values()):
        assert "hunter22" not in html.unescape(text)
        assert "/home/ann" not in html.unescape(text)


def test_the_page_needs_nothing_from_elsewhere() -> None:
    page = render_page(round_of([decision_row()]))
    addresses = set(re.findall(r"https?://[^\"' <]+", page))
    assert addresses == {"http://www.w3.org/1999/xhtml", "http://www.w3.org/2000/svg"}
    assert "default-src 'none'" in page
    assert "@import" not in page
    assert set(re.findall(r"url\(([^)]*)\)", page)) == {"#hatch"}
    assert "prefers-color-scheme:dark" in page
    assert "@media print" in page
    assert 'name="viewport"' in page


def test_ids_are_unique_and_labels_point_at_them() -> None:
    days = [decision_row(60 * number, subject=gpu) for number in range(40) for gpu in ("a", "b")]
    page = page_of([row for row in days if row["decided_at"] == days[-1]["decided_at"]], days[:-2])
    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    for element in page.iter():
        assert set((element.get("aria-labelledby") or "").split()) <= set(ids)


def test_a_month_of_sixteen_signals_is_bounded() -> None:
    subjects = [f"GPU-{number:036x}" for number in range(16)]
    rows = [
        decision_row(
            5 * number,
            None if number % 50 == gpu else 50 + (number * 7 + gpu) % 45,
            subject=subject,
            phase="firing" if number % 900 < 100 else "quiet",
            episode_id=f"e{number // 900}" if number % 900 < 100 else None,
            action="retrain" if number % 900 == 0 else "none",
        )
        for number in range(0, 8640, 4)
        for gpu, subject in enumerate(subjects)
    ]
    now = rows[-16:]
    round_ = round_of(now, rows[:-16])
    assert len(render_page(round_).encode()) < 1_000_000
    assert all(len(picture.encode()) < 500_000 for picture in draw_pictures(round_).values())


def test_a_thousand_signals_are_bounded_and_the_rest_is_counted() -> None:
    rows = [decision_row(subject=f"GPU-{number:036x}", reason="x" * 2000) for number in range(1000)]
    round_ = round_of(rows)
    page = render_page(round_)
    assert len(page.encode()) < 1_000_000
    tree = parsed(page)
    assert len(cards(tree)) == MOST_CARDS
    assert f"{1000 - MOST_CARDS} more signals" in "".join(tree.itertext())
    assert "and 800 more" in "".join(tree.itertext())
    assert "800 more signals" in render_markdown(round_)


def test_the_markdown_has_verdict_and_table() -> None:
    short = render_markdown(round_of([decision_row(value=84.5)]), "page.html")
    assert short.startswith("**All quiet: 1 signal measured, each within its limit**")
    assert (
        "| utilization&#95;p95 | GPU-1 | quiet | 84.5 | 92 | 1,234 | nothing to do: within its limit: p95 84.5 % |"
        in short
    )
    assert "`page.html`" in short


def test_pictures_are_documents_by_name() -> None:
    pictures = draw_pictures(round_of([decision_row()]))
    assert list(pictures) == ["overview.svg", "signals.svg"]
    assert all(ET.fromstring(text).tag.endswith("svg") for text in pictures.values())


def test_a_round_of_a_late_clock_is_told(tmp_path: Any) -> None:
    later = decision_row(600)
    assert cards(page_of([decision_row(0)], [later]))
    assert judge(round_of([decision_row(0)], [later]))[1] == "quiet"
    assert (
        timedelta(hours=1)
        == round_of([decision_row(0)]).timeline.end - round_of([decision_row(0)]).timeline.start
    )
