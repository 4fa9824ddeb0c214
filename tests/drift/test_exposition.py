"""The monitor's metrics: what Prometheus's own parser reads in them, and counters that never fall."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import polars as pl
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from tests.fakes import ROUNDS_BEGIN, decision_row
from warpgauge.drift.decision import BLIND_CAUSES
from warpgauge.drift.exposition import MOST_SIGNALS, Counts, read_counts, to_text
from warpgauge.drift.signal_state import PHASES
from warpgauge.drift.timeline import build_timeline, recent
from warpgauge.drift.verdict import Round
from warpgauge.settings import PROJECT_ROOT
from warpgauge.tables import ACTIONS, DECISIONS

Rows = Sequence[dict[str, Any]]
GPU = {"signal": "utilization_p95", "subject": "GPU-1"}


def at(minutes: float) -> datetime:
    return ROUNDS_BEGIN + timedelta(minutes=minutes)


def round_of(rows: Rows, **others: Any) -> Round:
    decided_at = rows[0]["decided_at"] if rows else ROUNDS_BEGIN
    frame = DECISIONS.conform(pl.DataFrame(list(rows), schema=DECISIONS.schema))
    return Round(
        "run",
        decided_at,
        rows,
        build_timeline(recent(frame.lazy(), decided_at).collect(), decided_at),
        **others,
    )


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    found = [
        ((sample.name, tuple(sorted(sample.labels.items()))), sample.value)
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    ]
    assert len(found) == len(dict(found)), "Prometheus refuses a series that is there twice"
    return dict(found)


def value(text: str, name: str, **labels: str) -> float | None:
    return samples(text).get((name, tuple(sorted(labels.items()))))


def test_gauges_say_what_was_measured() -> None:
    text = to_text(round_of([decision_row(30, 97.5)], undelivered=[{}, {}]), Counts(), 2.5)
    assert value(text, "warpgauge_monitor_last_run_timestamp_seconds") == at(30).timestamp()
    assert value(text, "warpgauge_monitor_run_duration_seconds") == 2.5
    assert value(text, "warpgauge_signal_value", **GPU) == 97.5
    assert value(text, "warpgauge_signal_limit", **GPU) == 92
    assert value(text, "warpgauge_signal_samples", **GPU) == 1234
    assert value(text, "warpgauge_monitor_signals", status="measured") == 1
    assert value(text, "warpgauge_monitor_signals", status="cannot_say") == 0
    assert value(text, "warpgauge_alerts_undelivered") == 2


def test_every_metric_has_help_and_type() -> None:
    text = to_text(
        round_of([decision_row(value=97, phase="firing", episode_id="e")], undelivered=[]),
        Counts(at(-5)),
        1.0,
    )
    names = {line.split("{")[0].split(" ")[0] for line in text.splitlines() if not line.startswith("#")}
    for name in names:
        assert f"# HELP {name} " in text
        assert f"# TYPE {name} {'counter' if name.endswith('_total') else 'gauge'}" in text
    assert all(name.startswith("warpgauge_") for name in names)


def test_what_is_not_known_is_absent_and_not_zero() -> None:
    text = to_text(round_of([decision_row(value=None, limit=None)]), Counts())
    for name in ("warpgauge_signal_value", "warpgauge_signal_limit"):
        assert value(text, name, **GPU) is None
    for name in ("warpgauge_monitor_run_duration_seconds", "warpgauge_alerts_undelivered"):
        assert value(text, name) is None
    assert value(text, "warpgauge_signal_samples", **GPU) == 12
    assert value(text, "warpgauge_signal_cannot_say", **GPU, cause="too few") == 1


def test_a_signal_is_in_one_phase() -> None:
    text = to_text(round_of([decision_row(value=97, phase="cooling", episode_id="e")]), Counts())
    states = {phase: value(text, "warpgauge_signal_state", **GPU, phase=phase) for phase in PHASES}
    assert states == {**dict.fromkeys(PHASES, 0), "cooling": 1}
    assert value(text, "warpgauge_episode_opened_timestamp_seconds", **GPU) == at(0).timestamp()


def test_a_phase_of_a_newer_version_is_shown() -> None:
    text = to_text(round_of([decision_row(phase="resting")]), Counts())
    assert value(text, "warpgauge_signal_state", **GPU, phase="resting") == 1
    assert value(text, "warpgauge_signal_state", **GPU, phase="quiet") == 0


@pytest.mark.parametrize("name", ['a"b', "a\\b", "a\nb", "a\x00b", "ä→µ", "{x='y'}", " # HELP x", "x" * 9999])
def test_any_name_is_one_label(name: str) -> None:
    text = to_text(round_of([decision_row(subject=name, model_name=name)]), Counts())
    found = [labels for (metric, labels), _ in samples(text).items() if metric == "warpgauge_signal_value"]
    assert len(found) == 1
    assert len(dict(found[0])["subject"]) <= 120


def test_names_that_become_one_label_are_one_series() -> None:
    rows = [decision_row(subject="x" * 200 + end) for end in "ab"]
    text = to_text(round_of(rows), Counts())
    assert value(text, "warpgauge_monitor_signals_left_out") == 1
    assert value(text, "warpgauge_monitor_signals", status="measured") == 2


def test_very_many_signals_are_bounded_and_the_worst_are_kept() -> None:
    rows = [decision_row(subject=f"GPU-{number}") for number in range(3000)]
    rows.append(decision_row(value=97, phase="human", episode_id="e", subject="GPU-worst"))
    text = to_text(round_of(rows), Counts())
    assert value(text, "warpgauge_monitor_signals_left_out") == 3001 - MOST_SIGNALS
    assert value(text, "warpgauge_signal_value", signal="utilization_p95", subject="GPU-worst") == 97
    assert len(text.encode()) < 1_000_000


def test_nothing_measured_is_told() -> None:
    text = to_text(round_of([]), Counts())
    assert value(text, "warpgauge_monitor_signals", status="measured") == 0


def test_the_example_rules_ask_for_metrics_that_there_are() -> None:
    rules = yaml.safe_load((PROJECT_ROOT / "infra" / "prometheus" / "alerts.yml").read_text(encoding="utf-8"))
    expressions = [rule["expr"] for group in rules["groups"] for rule in group["rules"]]
    asked = {name for text in expressions for name in re.findall(r"warpgauge_\w+", text)}
    text = to_text(round_of([decision_row(value=None)], undelivered=[]), Counts(), 1.0)
    assert asked
    assert asked <= {name for name, _ in samples(text)}
    causes = re.search(r'cause=~"([^"]+)"', " ".join(expressions))
    assert causes is not None
    assert sorted(causes[1].split("|")) == sorted(BLIND_CAUSES)


# Counters


def ended(outcome: str, minutes: float, model: str = "launch-latency") -> dict[str, Any]:
    return {"model_name": model, "outcome": outcome, "started_at": at(minutes - 1), "wall_s": 60.0}


def test_counters_begin_at_zero() -> None:
    text = to_text(round_of([decision_row()]), Counts())
    for action in ACTIONS:
        assert value(text, "warpgauge_decisions_total", action=action) == 0
    for outcome in ("promoted", "held", "refused", "failed"):
        assert value(text, "warpgauge_retrainings_total", model="launch-latency", outcome=outcome) == 0


def test_counters_go_on_from_the_text_before() -> None:
    attempts = [ended("failed", 1), ended("promoted", 6), {**ended("running", 9), "wall_s": None}]
    first = Counts().count_on(at(5), [("none", None, 3), ("review", "not_cured", 1)], attempts)
    text = to_text(round_of([decision_row(5)]), first)
    second = read_counts(text)
    assert second.until == first.until
    assert {action: count for action, count in second.decisions.items() if count} == first.decisions
    third = second.count_on(at(10), [("none", None, 2), ("retrain", None, 1)], attempts)
    text = to_text(round_of([decision_row(10)]), third)
    assert value(text, "warpgauge_decisions_total", action="none") == 5
    assert value(text, "warpgauge_decisions_total", action="retrain") == 1
    assert value(text, "warpgauge_alerts_total", cause="not_cured") == 1
    assert value(text, "warpgauge_retrainings_total", model="launch-latency", outcome="failed") == 1
    assert value(text, "warpgauge_retrainings_total", model="launch-latency", outcome="promoted") == 1


def test_the_same_round_told_twice_counts_once() -> None:
    once = Counts().count_on(at(5), [("none", None, 3)], [ended("failed", 5)])
    assert once.count_on(at(5), [], [ended("failed", 5)]) == once


def test_a_retraining_that_ended_after_the_round_is_counted_by_the_next() -> None:
    late = [ended("held", 7)]
    first = Counts().count_on(at(5), [], late)
    assert dict(first.retrainings) == {}
    assert first.count_on(at(10), [], late).retrainings == {("launch-latency", "held"): 1}


def test_times_survive_the_text_to_the_microsecond() -> None:
    moment = at(5) + timedelta(microseconds=123457)
    row = decision_row(5) | {"decided_at": moment}
    assert read_counts(to_text(round_of([row]), Counts())).until == moment


def test_a_later_round_is_known_and_a_wrong_clock_is_not_believed() -> None:
    assert Counts(at(10)).is_later(at(5))
    assert not Counts(at(10)).is_later(at(10))
    assert not Counts(at(6000)).is_later(at(5))
    assert not Counts().is_later(at(5))


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no metrics at all {",
        "warpgauge_decisions_total 3\n",
        'warpgauge_decisions_total{action="none"} 3\n',
        "warpgauge_monitor_last_run_timestamp_seconds NaN\n",
        "warpgauge_monitor_last_run_timestamp_seconds 1e300\n",
        'warpgauge_monitor_last_run_timestamp_seconds 1\nwarpgauge_alerts_total{cause="x"} +Inf\n',
        "\x00\x01",
    ],
)
def test_a_damaged_text_has_no_counts(text: str) -> None:
    assert read_counts(text) == Counts()
