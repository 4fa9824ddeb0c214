"""The model card: what a version predicts, from what, how well beside the simple baseline, and its limits.

A pure function of facts to Markdown, so that the page a reviewer reads can be made again and compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

ABSENT = "not recorded"
PROVENANCE = {
    "measured": "measured on real hardware",
    "simulated": "SIMULATED: made by the simulator, not measured",
    "human": "human annotators",
    "history": "`proxy`: derived from the project's own history (what a later version amended), "
    "not from human labels",
    "proxy": "`proxy`: not human labels; figures say how well the proxy is met, not how well a person would agree",
}


def model_card(facts: Mapping[str, Any]) -> str:
    """The model card in Markdown.

    Args:
        facts: Any of these; an absent one is shown as "not recorded".
            name, version, predicts (a sentence), unit, created_at, intended_use, not_for;
            is_simulated (bool); label_provenance (measured, simulated, human, history, proxy);
            data_versions {table: version}; row_counts {what: rows}; test_set_sha256;
            metrics {metric: value}; baseline_name; baseline_metrics {metric: value};
            slices {slice: {metric: value}}; limits [sentence];
            verdict {outcome, reasons}; settings {name: value}; environment {name: value}.

    Returns:
        Markdown that ends with one newline; text from data is escaped, a figure that is not finite is named so.
    """
    is_simulated = bool(facts.get("is_simulated"))
    lines = [f"# {_text(facts.get('name'))}, version {_text(facts.get('version'))}", ""]
    if is_simulated:
        lines += [
            "> **Trained on simulated rows.** No figure below was measured on hardware; the version is promoted",
            "> only by a run that said `--allow-simulated`.",
            "",
        ]
    unit = f" Unit: {_text(facts['unit'])}." if facts.get("unit") else ""
    lines += ["## What it predicts", "", f"{_text(facts.get('predicts'))}{unit}", ""]
    lines += ["## Intended use", "", _text(facts.get("intended_use")), ""]
    lines += [f"Not for: {_text(facts.get('not_for'))}", ""]
    lines += ["## Gate", "", *_verdict(facts.get("verdict")), ""]
    lines += ["## Figures on the held-out rows", "", *_figures(facts), ""]
    lines += ["## Slices", "", *_slices(facts.get("slices")), ""]
    lines += ["## Data", "", *_data(facts, is_simulated), ""]
    lines += ["## Limits", "", *_bullets(facts.get("limits")), ""]
    lines += ["## Settings and environment", ""]
    lines += [*_pairs("setting", facts.get("settings")), "", *_pairs("environment", facts.get("environment"))]
    return "\n".join(lines).rstrip() + "\n"


def _verdict(verdict: Mapping[str, Any] | None) -> list[str]:
    if not verdict:
        return ["Not judged yet."]
    said = {"promote": "promoted", "hold": "held for a reviewer", "refuse": "refused"}
    outcome = str(verdict.get("outcome"))
    return [f"**{said.get(outcome, _text(outcome))}**", "", *_bullets(verdict.get("reasons"))]


def _figures(facts: Mapping[str, Any]) -> list[str]:
    metrics: Mapping[str, Any] = facts.get("metrics") or {}
    baseline: Mapping[str, Any] = facts.get("baseline_metrics") or {}
    if not metrics:
        return [f"Figures: {ABSENT}."]
    name = _text(facts.get("baseline_name") or "baseline")
    rows = [[f"`{_text(key)}`", _figure(value), _figure(baseline.get(key))] for key, value in metrics.items()]
    return _table(["figure", "this version", name], rows)


def _slices(slices: Mapping[str, Mapping[str, Any]] | None) -> list[str]:
    if not slices:
        return [f"Slices: {ABSENT}."]
    columns = list(dict.fromkeys(key for figures in slices.values() for key in figures))
    rows = [
        [_text(name), *(_figure(figures.get(column)) for column in columns)]
        for name, figures in slices.items()
    ]
    return _table(["slice", *(f"`{_text(column)}`" for column in columns)], rows)


def _data(facts: Mapping[str, Any], is_simulated: bool) -> list[str]:
    provenance = str(facts.get("label_provenance") or ("simulated" if is_simulated else ""))
    return [
        f"- Labels: {PROVENANCE.get(provenance, _text(provenance or None))}",
        f"- Simulated: {'yes' if is_simulated else 'no' if 'is_simulated' in facts else ABSENT}",
        f"- Data versions: {_inline(facts.get('data_versions'))}",
        f"- Rows: {_inline(facts.get('row_counts'))}",
        f"- Test set SHA-256: `{_text(facts.get('test_set_sha256'))}`",
        f"- Created: {_text(facts.get('created_at'))}",
    ]


def _bullets(sentences: Sequence[str] | None) -> list[str]:
    if not sentences:
        return [f"- {ABSENT}"]
    return [f"- {_text(sentence)}" for sentence in sentences]


def _pairs(title: str, values: Mapping[str, Any] | None) -> list[str]:
    if not values:
        return [f"{title.capitalize()}: {ABSENT}."]
    return _table([title, "value"], [[f"`{_text(key)}`", _figure(value)] for key, value in values.items()])


def _inline(values: Mapping[str, Any] | None) -> str:
    if not values:
        return ABSENT
    return ", ".join(f"{_text(key)} {_figure(value)}" for key, value in values.items())


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    return [
        f"| {' | '.join(header)} |",
        f"|{'---|' * len(header)}",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def _figure(value: Any) -> str:
    if value is None:
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if math.isfinite(value) else "not finite"
    if isinstance(value, Mapping | list | tuple):
        return _text(json.dumps(value, sort_keys=True, default=str))
    return _text(value)


def _text(value: Any) -> str:
    """One line that opens no table cell, tag or heading of its own."""
    if value is None or value == "":
        return ABSENT
    line = " ".join(str(value).split())
    return line.replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
