"""Which automations may be deployed: those that fire on what is meant, carry what is needed, and start no loop.

An automation with nothing to expect fires on every event of the server, one whose deployment brings about what it
expects starts itself without end, and one that waits for a mistyped name never fires, which nobody notices. All of
it can be read off `prefect.yaml`, before anything is applied.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

NAME_PREFIX = "warpgauge "
OUR_EVENTS = "warpgauge."
# Events that Prefect emits for every run and every automation that fires; the first two name their flow.
RUN_EVENTS = ("prefect.flow-run.", "prefect.task-run.")
BROUGHT_ABOUT = (*RUN_EVENTS, "prefect.automation.", "prefect.worker.")
ALIKE = 0.8
PAYLOAD_FIELD = re.compile(r"event\.payload(?:\.get\(\s*|\.|\[\s*)['\"]?(\w+)")


@dataclass(frozen=True)
class Emitted:
    """An event that our flows emit.

    Attributes:
        name: Its name.
        fields: What its payload holds.
        resource: Pattern of the id of its resource.
    """

    name: str
    fields: frozenset[str]
    resource: str


@dataclass(frozen=True)
class FlowFacts:
    """What is known of the flow behind an entrypoint.

    Attributes:
        parameters: Names of its parameters.
        runs: Names of the flows that a run of it runs, its own among them.
        emits: Names of our events that it emits.
        is_training: It trains a model, of which one at a time may be trained.
    """

    parameters: frozenset[str]
    runs: frozenset[str]
    emits: frozenset[str]
    is_training: bool


def find_problems(
    document: object, flows: Mapping[str, FlowFacts], events: Mapping[str, Emitted]
) -> list[str]:
    """What is wrong with the deployments and automations of a parsed `prefect.yaml`.

    Args:
        document: The parsed file.
        flows: Entrypoint (`flows/x.py:x`) -> its flow.
        events: Name -> what our flows emit.

    Returns:
        One sentence a problem: what was found, what is needed, what to do; empty where all is well.
    """
    deployments = document.get("deployments") if isinstance(document, dict) else None
    if not isinstance(deployments, list) or not deployments:
        return ["it names no deployment; write them as a list under `deployments`"]
    problems: list[str] = []
    starts: dict[str, list[tuple[str, dict[str, Any], str]]] = {}
    known: dict[str, FlowFacts] = {}
    names: list[str] = []
    automations: list[str] = []
    for number, entry in enumerate(deployments, 1):
        if not isinstance(entry, dict) or not isinstance(entry.get("name"), str):
            problems.append(f"deployment {number} has no name; give it one")
            continue
        name = entry["name"]
        names.append(name)
        flow = flows.get(str(entry.get("entrypoint")))
        if flow is None:
            problems.append(
                f"deployment {name}: its entrypoint {entry.get('entrypoint')!r} is none of {', '.join(sorted(flows))}; correct it"
            )
        else:
            known[name] = flow
            if flow.is_training and _limit(entry) != 1:
                problems.append(
                    f"deployment {name} trains a model with a concurrency limit of {_limit(entry)}; two trainings of a "
                    "model must not run at once: write `concurrency_limit: {limit: 1, collision_strategy: ENQUEUE}`"
                )
        triggers = entry.get("triggers") or []
        if not isinstance(triggers, list) or not all(isinstance(one, dict) for one in triggers):
            problems.append(f"deployment {name}: its triggers are no list of mappings; write them as one")
            continue
        for trigger in triggers:
            automation = str(trigger.get("name"))
            automations.append(automation)
            problems += _problems_of(automation, name, trigger, flow, events)
            starts.setdefault(name, []).extend((automation, part, name) for part in _parts(trigger))
    for kind, listed in (("deployment", names), ("automation", automations)):
        twice = sorted({one for one in listed if listed.count(one) > 1})
        problems += [f"{kind} {one!r} is there twice; give each a name of its own" for one in twice]
    return problems + _loops(known, starts, events)


def _problems_of(
    automation: str,
    deployment: str,
    trigger: dict[str, Any],
    flow: FlowFacts | None,
    events: Mapping[str, Emitted],
) -> list[str]:
    who = f"automation {automation!r} of {deployment}"
    problems = []
    if not automation.startswith(NAME_PREFIX):
        problems.append(
            f"{who}: its name does not begin with {NAME_PREFIX!r}, by which ours are found; rename it"
        )
    parts = list(_parts(trigger))
    if not parts:
        problems.append(
            f"{who} waits for nothing: its list of triggers is empty; name an event under `expect`"
        )
    for part in parts:
        problems += [f"{who} {said}" for said in _problems_of_event(part, events)]
    matched = [event for part in parts for event in events.values() if _expects(part, event.name)]
    asked = sorted(
        {field for text in _texts(trigger.get("parameters")) for field in PAYLOAD_FIELD.findall(text)}
    )
    problems += [
        f"{who} takes `event.payload.{field}`, which {event.name} does not carry; it has {', '.join(sorted(event.fields))}"
        for event in matched
        for field in asked
        if field not in event.fields
    ]
    if flow is not None:
        problems += [
            f"{who} sets the parameter {name}, which its flow does not take; it takes {', '.join(sorted(flow.parameters))}"
            for name in _mapping(trigger.get("parameters"))
            if name not in flow.parameters
        ]
    return problems


def _problems_of_event(part: dict[str, Any], events: Mapping[str, Emitted]) -> Iterator[str]:
    """What is wrong with one event trigger, without its name."""
    if str(part.get("type", "event")) == "metric" or part.get("posture") == "Metric":
        yield "waits for a metric, which only Prefect Cloud measures; expect an event of the monitor"
        return
    expected = part.get("expect")
    if expected and not isinstance(expected, list):
        yield f"expects {expected!r}, which is no list; write `expect: [EVENT, ...]`"
        return
    if not expected or any(set(str(name)) <= {"*"} for name in expected):
        yield "would fire on every event of the server; name the events that it waits for under `expect`"
        return
    for name in [*_as_list(expected), *_as_list(part.get("after"))]:
        is_known = any(fnmatchcase(event, name) for event in events)
        near = difflib.get_close_matches(name, events, n=1, cutoff=ALIKE)
        if not is_known and (name.startswith(OUR_EVENTS) or near):
            meant = f"did you mean {near[0]}?" if near else f"they emit {', '.join(sorted(events))}"
            yield f"expects {name}, which no flow emits, so it would never fire; {meant}"
    ours = [
        event for event in events.values() if any(fnmatchcase(event.name, str(name)) for name in expected)
    ]
    patterns = _as_list(_mapping(part.get("match")).get("prefect.resource.id"))
    if (
        ours
        and patterns
        and not any(_overlap(pattern, event.resource) for pattern in patterns for event in ours)
    ):
        yield (
            f"matches the resource {', '.join(patterns)}, which none of its events is about, so it would never fire; "
            f"they are about {', '.join(sorted({event.resource for event in ours}))}"
        )


def _loops(
    flows: Mapping[str, FlowFacts],
    starts: Mapping[str, list[tuple[str, dict[str, Any], str]]],
    events: Mapping[str, Emitted],
) -> list[str]:
    """Deployments that start themselves, straight away or by way of others."""
    follows = {
        first: {
            second: automation
            for second, triggers in starts.items()
            for automation, part, _ in triggers
            if _is_started_by(part, flow, events)
        }
        for first, flow in flows.items()
    }
    found: dict[frozenset[str], str] = {}
    for first in follows:
        paths = [[first]]
        while paths:
            path = paths.pop()
            for after, automation in follows.get(path[-1], {}).items():
                if after == first:
                    found.setdefault(
                        frozenset(path),
                        f"automation {automation!r} closes a loop: a run of {' starts '.join([*path, first])}, without end; "
                        "expect another event, or name by match_related the flows that it waits for",
                    )
                elif after not in path:
                    paths.append([*path, after])
    return list(found.values())


def _is_started_by(part: dict[str, Any], flow: FlowFacts, events: Mapping[str, Emitted]) -> bool:
    """Whether a run of the flow brings about an event that the trigger fires on."""
    if part.get("posture", "Reactive") != "Reactive" or not isinstance(part.get("expect"), list):
        return False
    if any(_expects(part, name) for name in flow.emits if name in events):
        return True
    about_runs = any(_begins(str(name), RUN_EVENTS) for name in part["expect"])
    others = any(_begins(str(name), BROUGHT_ABOUT) for name in part["expect"]) and not about_runs
    return others or (about_runs and _is_about(part, flow))


def _is_about(part: dict[str, Any], flow: FlowFacts) -> bool:
    """Whether a trigger on runs of flows takes the runs of this one: it may name those it waits for."""
    related = part.get("match_related")
    for one in map(_mapping, related if isinstance(related, list) else [related]):
        named = _as_list(one.get("prefect.resource.name"))
        if one.get("prefect.resource.role") == "flow" and named:
            return any(_matches(pattern, run) for pattern in named for run in flow.runs)
    return True


def _parts(trigger: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """The event triggers of a trigger, which may hold several."""
    inner = trigger.get("triggers")
    if isinstance(inner, list):
        for one in inner:
            if isinstance(one, dict):
                yield from _parts(one)
    else:
        yield trigger


def _expects(part: dict[str, Any], event: str) -> bool:
    expected = part.get("expect")
    return isinstance(expected, list) and any(fnmatchcase(event, str(name)) for name in expected)


def _matches(pattern: str, value: str) -> bool:
    """As Prefect matches a label: a `*` stands for anything, a `!` before it for all others."""
    return fnmatchcase(value, pattern.removeprefix("!")) is not pattern.startswith("!")


def _overlap(pattern: str, other: str) -> bool:
    """Whether some text may fit both patterns."""
    if pattern.startswith("!"):
        return pattern.removeprefix("!") != other
    return _begins(pattern, (other.partition("*")[0],)) if "*" in other else fnmatchcase(other, pattern)


def _begins(pattern: str, prefixes: tuple[str, ...]) -> bool:
    """Whether a text that fits the pattern may begin so."""
    sure, star, _ = pattern.partition("*")
    return any(sure.startswith(prefix) or (bool(star) and prefix.startswith(sure)) for prefix in prefixes)


def _limit(entry: dict[str, Any]) -> object:
    limit = entry.get("concurrency_limit")
    return limit.get("limit") if isinstance(limit, dict) else limit


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _as_list(value: object) -> list[str]:
    if value is None:
        return []
    return [str(one) for one in value] if isinstance(value, list) else [str(value)]


def _texts(value: object) -> Iterator[str]:
    """Every text in a nested value."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for inner in value.values():
            yield from _texts(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _texts(inner)
