"""Results as short tables for people, and the exit code that a result means."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from warpgauge.registry.names import DOC_QUALITY

REFUSED_EXIT_CODE = 3
COMPARED = ("version", "gate", "judged_rows", "test_set", "data_versions")
COSTED = (
    "model_name",
    "version",
    "started_at",
    "outcome",
    "wall_s",
    "cpu_s",
    "gpu_energy_j",
    "metric",
    "error_before",
    "error_after",
    "gain_ratio",
)
TOTALLED = ("model_name", "trainings", "promoted", "failed", "wall_s", "cpu_s", "gpu_energy_j")
_COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def exit_code(result: Mapping[str, Any]) -> int:
    """0, or 3 if the result names something refused or salvaged."""
    return REFUSED_EXIT_CODE if result.get("refused") or result.get("salvaged") else 0


def render(command: str, result: Mapping[str, Any]) -> str:
    """The result of a command as text for a terminal."""
    body = RENDERERS[command](result)
    for kind in ("refused", "salvaged"):
        body += [f"{kind.upper()}: {item}" for item in result.get(kind) or []]
    return printable("\n".join(body))


def as_json(result: Mapping[str, Any]) -> str:
    """The result as one JSON document; a number that is not finite is null, because JSON has no word for it."""
    return json.dumps(_plain(result), allow_nan=False)


def printable(text: str) -> str:
    """The text without what would command a terminal: names, titles and libraries' words come from outside."""
    plain = _COLOUR.sub("", text)
    return "".join(sign if sign.isprintable() or sign == "\n" else "?" for sign in plain)


def _plain(value: Any) -> Any:
    """The value in what JSON knows: numbers of numpy become numbers, times and paths text."""
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if value is None or isinstance(value, str | int):
        return value
    if hasattr(value, "tolist"):
        return _plain(value.tolist())
    return value.isoformat() if hasattr(value, "isoformat") else str(value)


def table(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> list[str]:
    """Rows as aligned lines under a heading; numbers to four significant digits."""
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [max(len(line[index]) for line in [list(columns), *cells]) for index in range(len(columns))]
    lines = [list(columns), ["-" * width for width in widths], *cells]
    return [
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip()
        for line in lines
    ]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list | tuple):
        value = ", ".join(map(str, value)) or "-"
    # A cell is one line, whatever a title or a file's name holds.
    return " ".join(str(value).split())


def _collected(result: Mapping[str, Any]) -> list[str]:
    rows = [
        {
            "source": report["source"],
            "offered": report["offered"],
            "added": report["added"],
            "counted": [f"{name} {count}" for name, count in report["counts"].items() if count],
        }
        for report in result["sources"]
    ]
    lines = table(rows, ("source", "offered", "added", "counted"))
    lines.append(f"{result['table']}: {result['added']} rows added, version {result['version']}")
    if result.get("labels_added") is not None:
        lines.append(f"labels: {result['labels_added']} added, with the documents or from their history")
    if result.get("unavailable"):
        lines.append(f"cannot say: {result['unavailable']}")
    return lines


def _validated(result: Mapping[str, Any]) -> list[str]:
    lines = [
        f"{report['table']}: {report['row_count']} rows, {report['verdict']}, {report.get('quarantined', 0)} quarantined"
        for report in result["tables"]
    ]
    for report in result["tables"]:
        failed = [check for check in report["checks"] if check["outcome"] != "passed"]
        if failed:
            columns = (
                "name",
                "column",
                "outcome",
                "element_count",
                "missing_count",
                "unexpected_count",
                "message",
            )
            lines += table(failed, columns)
    if result.get("data_docs"):
        lines.append(f"data docs: {result['data_docs']}")
    return lines


def _trained(result: Mapping[str, Any]) -> list[str]:
    if result.get("skip"):
        lines = [f"{result['model_name']}: not retrained: {result['why']}"]
    else:
        lines = [f"{result['model_name']} version {result['version']}: gate says {result['outcome']}"]
        lines += [f"  {reason}" for reason in result["reasons"]]
    headline = result.get("headline") or ""
    lines += [f"  {headline}"] if headline else []
    lines += [f"  note: {note}" for note in result.get("notes", []) if note not in headline]
    if result.get("evaluation"):
        lines += table(result["evaluation"], list(result["evaluation"][0]))
    return lines


def _decided(result: Mapping[str, Any]) -> list[str]:
    columns = ("signal", "subject", "status", "value", "limit", "sample_count", "action", "reason")
    lines = table(result["decisions"], columns) if result["decisions"] else ["no signal could be measured"]
    lines += [f"retrained {order['model_name']}: {order['outcome']}" for order in result.get("retrained", [])]
    lines += [f"closed {one['what']} {one['name']}: {one['why']}" for one in result.get("closed", [])]
    lines += [f"report: {result['report']}"] if result.get("report") else []
    return lines


def _reviewed(result: Mapping[str, Any]) -> list[str]:
    if "written" in result:
        if not result["documents"]:
            return ["no document waits for a person"]
        return [f"{result['documents']} documents written: {', '.join(result['written'])}"]
    columns = ("source", "answers", "added", "skipped", "refused")
    return [*table(result["files"], columns), f"{result['waiting']} documents still wait"]


def _drilled(result: Mapping[str, Any]) -> list[str]:
    lines = [f"{moment['at_s']:6.1f} s  {moment['what']}: {moment['said']}" for moment in result["moments"]]
    ending = "quiet" if result["is_quiet"] else "not quiet"
    return [
        *lines,
        "",
        f"{result['model_name']}: champion is version {result['champion']}, the monitor is {ending}",
        f"picture: {result['picture']}",
        f"store: {result['store']}",
    ]


def _run(result: Mapping[str, Any]) -> list[str]:
    lines = [
        result["launch_source"],
        "",
        *table(result["tables"], ("table", "rows", "added", "quarantined", "version")),
    ]
    for verdict in result["models"]:
        lines += ["", *_trained(verdict)]
    lines += ["", "monitor", *_decided(result["monitor"]), ""]
    lines += [f"{name}: {place}" for name, place in result["where"].items()]
    return lines


def _models(result: Mapping[str, Any]) -> list[str]:
    if "metrics" in result:
        return [
            *table(result["metrics"], ("metric", *result["versions"])),
            "",
            *table([_judged(side) for side in result["sides"]], COMPARED),
        ]
    if "trainings" in result:
        return [*table(result["trainings"], COSTED), "", *table(result["totals"], TOTALLED)]
    if "models" not in result:
        return [", ".join(f"{name}: {_cell(value)}" for name, value in result.items())]
    lines: list[str] = []
    for model in result["models"]:
        lines.append(
            f"{model['model_name']}: champion {model['champion'] or 'none: ' + str(model['no_champion_because'])}"
        )
        if model["versions"]:
            lines += table(
                model["versions"], ("version", "aliases", "gate", "review", "provenance", "headline")
            )
    return lines


def _judged(side: Mapping[str, Any]) -> dict[str, Any]:
    """What one version was judged on, in cells; as in the gate's reasons, 12 signs name a test set."""
    tables = [f"{name} {version}" for name, version in side["data_versions"].items() if "." not in name]
    return {**side, "test_set": (side["test_set_sha256"] or "-")[:12], "data_versions": tables}


def _predicted(result: Mapping[str, Any]) -> list[str]:
    lines = []
    for answer in result.get("predictions", [result]):
        text = (
            f"{answer['predicted_latency_us']:.1f} us, between {answer['lower_us']:.1f} and {answer['upper_us']:.1f} us"
            f", {answer['model_name']} version {answer['model_version']}"
        )
        if not answer["promoted"]:
            text += ", NOT PROMOTED"
        if answer["is_simulated"]:
            text += ", TRAINED ON SIMULATED LAUNCHES"
        if answer["never_seen"]:
            text += f", never seen: {', '.join(answer['never_seen'])}"
        lines.append(text)
        if answer.get("explanation"):
            lines += table(answer["explanation"], ("feature", "value", "factor_percent", "share_us"))
    return lines


def _scored(result: Mapping[str, Any]) -> list[str]:
    columns = ("source_id", "defect_probability", "kinds", "nature", "evidence", "never_seen")
    lines = table(result["documents"], columns)
    said = f"{DOC_QUALITY} version {result['model_version']}"
    if not result["promoted"]:
        said += ", NOT PROMOTED"
    if result["provenance"] == "proxy":
        said += ", taught by proxy labels (what later versions amended), not by people"
    return [*lines, said]


def _doctor(result: Mapping[str, Any]) -> list[str]:
    if "gpus" in result:
        return _constraints(result)
    return [
        f"Python {result['python']} on {result['platform']}",
        *table(result["items"], ("name", "found", "lack")),
    ]


def _constraints(result: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for gpu in result["gpus"]:
        title = gpu["name"] if gpu["gpu_uuid"] is None else f"{gpu['name']} ({gpu['gpu_uuid']})"
        lines += ["", title] if lines else [title]
        facts = [
            {"figure": name, "value": value}
            for name, value in gpu["facts"].items()
            if name not in ("name", "source")
        ]
        lines += [*table(facts, ("figure", "value")), f"source: {gpu['facts']['source']}", ""]
        lines += table(gpu["constraints"], ("name", "value", "meaning"))
        lines += [f"note: {note}" for note in gpu["notes"]]
    return lines


def _deployed(result: Mapping[str, Any]) -> list[str]:
    return [
        f"Prefect server {result['server']}, work pool {result['work_pool']}",
        *table(result["deployments"], ("name", "schedules")),
        *table(result["automations"], ("name", "expects", "is_enabled")),
        *(f"on the server and not in prefect.yaml: {one}" for one in result.get("not_in_file", [])),
        result["next"],
    ]


def _compacted(result: Mapping[str, Any]) -> list[str]:
    ending = "would be left at most" if result["dry_run"] else "are left"
    return [
        *table(result["items"], ("what", "before_mb", "after_mb", "removed", "kept")),
        f"{result['before_mb']:.1f} MB before, {result['after_mb']:.1f} MB {ending}",
    ]


RENDERERS: Mapping[str, Callable[[Mapping[str, Any]], list[str]]] = {
    "run": _run,
    "collect": _collected,
    "validate": _validated,
    "train": _trained,
    "predict": _predicted,
    "score": _scored,
    "monitor": _decided,
    "review": _reviewed,
    "drill": _drilled,
    "models": _models,
    "compact": _compacted,
    "deploy": _deployed,
    "doctor": _doctor,
}
