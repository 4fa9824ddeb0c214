"""Bad deployments and automations are refused by name before anything is applied."""

from typing import Any

import pytest
import yaml

from warpgauge.automations import Emitted, FlowFacts, find_problems

ORDER = frozenset({"model_name", "attempt_id", "reason"})
EVENTS = {
    event.name: event
    for event in (
        Emitted("warpgauge.drift.latency", ORDER, "warpgauge.model.*"),
        Emitted("warpgauge.drift.docquality", ORDER, "warpgauge.model.doc-quality"),
        Emitted("warpgauge.alert.not_cured", frozenset({"cause", "reason"}), "warpgauge.signal.*"),
    )
}


def flow(*parameters: str, runs: str, emits: bool = False, is_training: bool = False) -> FlowFacts:
    return FlowFacts(
        frozenset(parameters),
        frozenset(runs.split()),
        frozenset(EVENTS) if emits else frozenset(),
        is_training,
    )


FLOWS = {
    "flows/collect.py:collect": flow("sources", runs="collect"),
    "flows/train.py:train": flow("attempt_id", "reason", runs="train", is_training=True),
    "flows/monitor.py:monitor": flow("allow_simulated", runs="monitor train", emits=True),
}
GOOD = """
deployments:
  - name: collect
    entrypoint: flows/collect.py:collect
  - name: train
    entrypoint: flows/train.py:train
    concurrency_limit: {limit: 1, collision_strategy: ENQUEUE}
    triggers:
      - name: warpgauge drift
        type: event
        expect: ["warpgauge.drift.docquality"]
        match: {"prefect.resource.id": "warpgauge.model.*"}
        posture: Reactive
        parameters:
          reason: "{{ event.payload.reason }}"
          attempt_id: "{{ event.payload.attempt_id }}"
  - name: monitor
    entrypoint: flows/monitor.py:monitor
"""


def problems(text: str) -> list[str]:
    return find_problems(yaml.safe_load(text), FLOWS, EVENTS)


def with_trigger(deployment: str, trigger: str, *more: tuple[str, str]) -> list[str]:
    """What is said of the good file with a trigger added to a deployment."""
    document: dict[str, Any] = yaml.safe_load(GOOD)
    for name, text in ((deployment, trigger), *more):
        entry = next(one for one in document["deployments"] if one["name"] == name)
        count = len(entry.setdefault("triggers", []))
        entry["triggers"].append({"name": f"warpgauge more {name} {count}", **yaml.safe_load(text)})
    return find_problems(document, FLOWS, EVENTS)


def test_good_file_has_no_problem() -> None:
    assert problems(GOOD) == []
    assert problems(GOOD.replace("{limit: 1, collision_strategy: ENQUEUE}", "1")) == []


@pytest.mark.parametrize(
    "trigger",
    [
        "{type: event}",
        "{expect: []}",
        "{expect: [], match: {}}",
        "{expect: null, posture: Proactive, within: 60}",
        '{expect: ["*"]}',
        "{expect: {}}",
        "{type: compound, require: any, within: 60, triggers: [{expect: []}]}",
    ],
)
def test_trigger_that_would_fire_on_every_event_is_refused(trigger: str) -> None:
    said = with_trigger("collect", trigger)
    assert "'warpgauge more collect 0' of collect would fire on every event" in said[0]
    assert "name the events" in said[0]


def test_trigger_without_parts_waits_for_nothing() -> None:
    (said,) = with_trigger("collect", "{type: sequence, within: 60, triggers: []}")
    assert "waits for nothing" in said


@pytest.mark.parametrize(
    "trigger",
    [
        '{expect: ["prefect.flow-run.Completed"]}',
        '{expect: ["prefect.flow-run.*"]}',
        '{expect: ["prefect.*"]}',
        '{expect: ["prefect.task-run.Failed"]}',
        '{expect: ["prefect.automation.action.executed"]}',
        '{expect: ["prefect.flow-run.Failed"], match: {"prefect.resource.id": "prefect.flow-run.*"}}',
        '{expect: ["prefect.flow-run.Failed"], match_related: {prefect.resource.role: flow, prefect.resource.name: collect}}',
        '{expect: ["prefect.flow-run.Failed"], match_related: {prefect.resource.role: flow, prefect.resource.name: "!train"}}',
        '{expect: ["prefect.flow-run.Failed"], match_related: {prefect.resource.role: deployment, prefect.resource.id: "prefect.deployment.0"}}',
        '{type: compound, require: all, within: 60, triggers: [{expect: ["prefect.flow-run.Completed"]}]}',
    ],
)
def test_deployment_that_would_start_itself_is_refused(trigger: str) -> None:
    said = with_trigger("collect", trigger)
    assert any("closes a loop: a run of collect starts collect, without end" in one for one in said)


def test_flow_that_expects_what_it_emits_is_refused() -> None:
    (said,) = with_trigger("monitor", '{expect: ["warpgauge.drift.latency"]}')
    assert "a run of monitor starts monitor" in said
    said_of_all = with_trigger("monitor", '{expect: ["warpgauge.*"]}')
    assert any("a run of monitor starts monitor" in one for one in said_of_all)


def test_loop_through_several_deployments_is_refused_once() -> None:
    after_training = '{expect: ["prefect.flow-run.Completed"], match_related: {prefect.resource.role: flow, prefect.resource.name: NAME}}'
    # The monitor starts the training by its event, and where no automation listens trains itself.
    said = with_trigger("monitor", after_training.replace("NAME", "[train, other]"))
    assert sorted(one.partition("a run of ")[2].partition(",")[0] for one in said) == [
        "monitor starts monitor",
        "train starts monitor starts train",
    ]
    three = with_trigger(
        "collect",
        after_training.replace("NAME", "train"),
        ("monitor", after_training.replace("NAME", "collect")),
    )
    assert any(
        "a run of" in one and "collect" in one and "train" in one and "monitor" in one for one in three
    )


def test_run_that_follows_another_flow_is_no_loop() -> None:
    chained = '{expect: ["prefect.flow-run.Completed"], match_related: [{prefect.resource.role: flow, prefect.resource.name: collect}]}'
    assert with_trigger("train", chained) == []
    assert (
        with_trigger("collect", '{expect: ["prefect.flow-run.Completed"], posture: Proactive, within: 9}')
        == []
    )
    assert with_trigger("collect", '{expect: ["acme.delivery.done"]}') == []


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("warpgauge.drift.docqualty", "did you mean warpgauge.drift.docquality?"),
        ("warpguage.drift.latency", "did you mean warpgauge.drift.latency?"),
        ("warpgauge.alert.not_cuerd", "did you mean warpgauge.alert.not_cured?"),
        ("warpgauge.trained", "they emit warpgauge.alert.not_cured, warpgauge.drift.docquality"),
        ("warpgauge.drifts.*", ""),
    ],
)
def test_event_that_nobody_emits_is_refused_with_what_was_meant(name: str, meant: str) -> None:
    (said,) = with_trigger("collect", f"{{expect: [{name!r}]}}")
    assert f"expects {name}, which no flow emits, so it would never fire" in said
    assert meant in said


def test_resource_that_no_event_is_about_is_refused() -> None:
    bad = '{expect: ["warpgauge.drift.docquality"], match: {"prefect.resource.id": "%s"}}'
    for wrong in ("warpgauge.models.*", "warpgauge.model.launch-latency"):
        (said,) = with_trigger("collect", bad % wrong)
        assert f"matches the resource {wrong}, which none of its events is about" in said
    for right in ("warpgauge.model.doc-quality", "warpgauge.*", "*", "!warpgauge.model.launch-latency"):
        assert with_trigger("collect", bad % right) == []
    # The latency event is about models of tables too, of whatever name.
    assert (
        with_trigger("collect", (bad % "warpgauge.model.latency-gemm").replace("docquality", "latency")) == []
    )


@pytest.mark.parametrize(
    "template",
    [
        "{{ event.payload.attemptid }}",
        "{{event.payload['attemptid']}}",
        "{{ event.payload.get('attemptid', '') }}",
    ],
)
def test_template_of_a_field_that_the_monitor_does_not_send_is_refused(template: str) -> None:
    text = GOOD.replace("{{ event.payload.attempt_id }}", template)
    (said,) = problems(text)
    assert "takes `event.payload.attemptid`, which warpgauge.drift.docquality does not carry" in said
    assert "it has attempt_id, model_name, reason" in said


def test_template_in_a_nested_value_is_looked_at() -> None:
    nested = (
        '{expect: ["warpgauge.drift.latency"], parameters: {sources: [{template: "{{ event.payload.no }}"}]}}'
    )
    assert "event.payload.no" in with_trigger("collect", nested)[0]


def test_field_must_be_in_every_event_that_the_trigger_takes() -> None:
    said = with_trigger(
        "collect", '{expect: ["warpgauge.*"], parameters: {sources: "{{ event.payload.attempt_id }}"}}'
    )
    assert ["warpgauge.alert.not_cured does not carry" in one for one in said] == [True]


def test_parameter_that_the_flow_does_not_take_is_refused() -> None:
    (said,) = problems(GOOD.replace("reason: ", "reasons: "))
    assert "sets the parameter reasons, which its flow does not take; it takes attempt_id, reason" in said


@pytest.mark.parametrize("limit", ["null", "0", "2", "{limit: 2}", "{collision_strategy: ENQUEUE}"])
def test_training_without_a_limit_of_one_is_refused(limit: str) -> None:
    (said,) = problems(GOOD.replace("{limit: 1, collision_strategy: ENQUEUE}", limit))
    assert said.startswith("deployment train trains a model with a concurrency limit of")
    assert "write `concurrency_limit:" in said


def test_names_must_be_there_once_and_be_ours() -> None:
    assert (
        "deployment 'collect' is there twice" in problems(GOOD.replace("name: monitor", "name: collect"))[0]
    )
    assert "does not begin with 'warpgauge '" in problems(GOOD.replace("warpgauge drift", "drift"))[0]
    twice = with_trigger("collect", '{name: warpgauge drift, expect: ["warpgauge.drift.latency"]}')
    assert twice == ["automation 'warpgauge drift' is there twice; give each a name of its own"]
    assert "has no name" in problems(GOOD.replace("name: monitor", "nam: monitor"))[0]


def test_entrypoint_that_is_no_flow_is_refused() -> None:
    (said,) = problems(GOOD.replace("flows/monitor.py:monitor", "flows/monitor.py:watch"))
    assert "its entrypoint 'flows/monitor.py:watch' is none of flows/collect.py:collect" in said


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "text",
        "{}",
        "deployments:",
        "deployments: {}",
        "deployments: []",
        "deployments: [1, {name: 2}]",
    ],
)
def test_file_without_deployments_is_refused(text: str) -> None:
    assert problems(text)


@pytest.mark.parametrize(
    "trigger",
    [
        "text",
        "[text]",
        "[null]",
        "{expect: x}",
        "[{expect: warpgauge.drift.latency}]",
        "[{expect: [1, null], match: text, match_related: [text], parameters: text, after: x}]",
        "[{type: metric, metric: {name: lateness}}]",
        "[{triggers: text}]",
        "[{triggers: [1, [2]]}]",
        "[{expect: [warpgauge.drift.latency], posture: [1], match_related: 3}]",
    ],
)
def test_malformed_triggers_are_refused_and_never_crash(trigger: str) -> None:
    document = yaml.safe_load(GOOD)
    document["deployments"][0]["triggers"] = yaml.safe_load(trigger)
    assert find_problems(document, FLOWS, EVENTS)
