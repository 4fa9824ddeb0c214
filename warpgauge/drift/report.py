"""One round of the monitor as a page for people: self-contained HTML, and the same pictures by themselves.

The page needs nothing but itself: no script, font or picture from elsewhere, so it opens offline and can be sent. What
it tells comes from outside (names of GPUs, reasons), so every text passes `escaped`, and a content policy in the page
forbids everything but its own style. What it holds is bounded, however many signals and rounds there are.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from warpgauge.drift.public_text import LONGEST_NAME, escaped, number, public
from warpgauge.drift.signal_chart import (
    COLOURS,
    HATCH,
    STYLE,
    Picture,
    draw_chart,
    draw_legend,
    draw_overview,
    draw_sheet,
)
from warpgauge.drift.timeline import DAY, HISTORY, Episode, Timeline
from warpgauge.drift.verdict import (
    PHASE_WORDS,
    WAITS_FOR,
    Round,
    cause_of,
    judge,
    phase_of,
    slices_of,
    title_of,
    unit_of,
    worst_first,
)

# So many signals have a card with their charts, the worst first; the others are rows of the table of decisions.
MOST_CARDS = 24
MOST_LANES = 40
MOST_ROWS = 200
MOST_EPISODES = 100
MOST_SLICES = 25
# A month's chart says more than the day's once the history is this long.
LONG_HISTORY = DAY + timedelta(hours=6)
_SIGNS = {
    "quiet": "✓",
    "pending": "◔",
    "firing": "▲",
    "acting": "↻",
    "acknowledged": "◐",
    "cooling": "◐",
    "human": "!",
}
_LEVEL_SIGNS = {"person": "!", "act": "↻", "open": "▲", "blind": "?", "quiet": "✓"}
_ACTION_WORDS = {
    "none": "nothing to do",
    "wait": "wait",
    "retrain": "retrain",
    "review": "ask a person",
    "alert": "alert",
}
_STYLE = """
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);font:15px/1.45 system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;color-scheme:light dark}
main{max-width:1280px;margin:0 auto;padding:16px}
h1{font-size:1.35rem;line-height:1.3;margin:0 0 4px;overflow-wrap:anywhere}
h2{font-size:1.05rem;margin:28px 0 8px}h3{font-size:.95rem;margin:0}
p{margin:4px 0}.faint,figcaption,caption{color:var(--faint);font-size:.85rem}
header{border-left:6px solid var(--good);padding:4px 0 4px 12px}
header.person{border-color:var(--bad)}header.act,header.open{border-color:var(--open)}header.blind{border-color:var(--blind);border-left-style:dashed}
.sign{display:inline-block;min-width:1.2em;text-align:center;font-weight:700}
.cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,380px),1fr));gap:12px;align-items:start}
.card{border:1px solid var(--rule);border-radius:6px;padding:10px 12px;min-width:0;overflow-wrap:anywhere}
.card.is-open{border-color:var(--open);border-width:2px}.card.human{border-color:var(--bad)}
.card.is-blind{border:2px dashed var(--blind)}
.badge{display:inline-block;border:1px solid var(--rule);border-radius:4px;padding:0 7px;margin:4px 4px 2px 0;font-size:.85rem;font-weight:600}
.badge.quiet{color:var(--good)}.badge.human{color:var(--bad)}.badge.is-blind{border-style:dashed;border-color:var(--blind)}
.figures{display:grid;grid-template-columns:auto 1fr;gap:0 12px;margin:6px 0;font-variant-numeric:tabular-nums}
.figures dt{color:var(--faint)}.figures dd{margin:0}.figures .value{font-size:1.25rem;font-weight:600;line-height:1.2}
figure{margin:6px 0 0}
.scroll{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-size:.87rem;font-variant-numeric:tabular-nums}
caption{text-align:left;padding:2px 0 4px}
th,td{text-align:left;vertical-align:top;padding:3px 10px 3px 0;border-bottom:1px solid var(--rule)}
th{font-weight:600;color:var(--faint)}td.n,th.n{text-align:right;white-space:nowrap}td.w{min-width:16em;overflow-wrap:anywhere}
tr.above td{font-weight:600}tr.unsaid td{color:var(--faint);font-style:italic}
.legend{display:flex;flex-wrap:wrap;gap:2px 14px;font-size:.82rem;color:var(--faint)}
.key{display:inline-flex;align-items:center;gap:5px}.key svg.chart{width:26px;flex:none}
footer{margin-top:28px;color:var(--faint);font-size:.82rem}
@media screen and (max-width:700px){thead{display:none}tr,td,td.n{display:block;text-align:left;border:0;padding:1px 0}
tr{border-bottom:1px solid var(--rule);padding:4px 0}td::before{content:attr(data-of) ": ";color:var(--faint)}}
@media print{main{max-width:none;padding:0}.card,tr,figure{break-inside:avoid}.scroll{overflow:visible}
.cards{grid-template-columns:repeat(3,1fr);gap:6px}.card{padding:5px 7px}body,table,.badge,.faint,figcaption{font-size:9px}
.figures .value{font-size:11px}h2{margin-top:12px;break-after:avoid}}
"""


def render_page(round_: Round) -> str:
    """The round as one HTML document, which is well-formed XML too."""
    sentence, level = judge(round_)
    run_id, moment = escaped(round_.run_id, LONGEST_NAME), _stamp(round_.decided_at)
    measured = sum(row["status"] == "measured" for row in round_.rows)
    body = (
        f'<header class="{level}"><h1><span class="sign" aria-hidden="true">{_LEVEL_SIGNS[level]}</span> {escaped(sentence)}</h1>'
        f'<p class="faint">Monitor round of {moment} UTC: {len(round_.rows)} signals, {measured} measured. Run {run_id}.</p></header>'
        f"{_undelivered(round_)}{_retrained(round_)}{_open_episodes(round_)}{_overview(round_)}{_cards(round_)}{_slices(round_)}{_decisions(round_)}{_history(round_)}"
    )
    return (
        '<!DOCTYPE html>\n<html lang="en" xmlns="http://www.w3.org/1999/xhtml"><head><meta charset="utf-8"/>'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; "
        "base-uri 'none'; form-action 'none'\"/>"
        '<meta name="viewport" content="width=device-width, initial-scale=1"/>'
        f'<meta name="warpgauge-run" content="{run_id}"/><title>Monitor, {moment} UTC: {escaped(sentence, 80)}</title>'
        f"<style>{COLOURS}{STYLE}{_STYLE}</style></head><body>"
        f'<svg class="chart" aria-hidden="true" width="0" height="0" style="position:absolute;width:0;height:0" '
        f'xmlns="http://www.w3.org/2000/svg">{HATCH}</svg><main>{body}<footer><p>All times are UTC. A signal that '
        "cannot say is neither quiet nor drifting: its episode, open or not, stays as it is. The figures are those of "
        "the table decisions.</p></footer></main></body></html>\n"
    )


def draw_pictures(round_: Round) -> dict[str, str]:
    """The page's pictures as SVG documents, by file name: `overview.svg`, and the charts in `signals.svg`."""
    moment = f"{_stamp(round_.decided_at)} UTC"
    timeline = round_.timeline
    charts = [
        _picture(row, timeline, timeline.start if _is_long(timeline) else timeline.day_start)
        for row in worst_first(round_.rows)[:MOST_CARDS]
    ]
    return {
        "overview.svg": draw_overview(_lanes(round_), f"{_lane_title(round_)}, until {moment}"),
        "signals.svg": draw_sheet(charts, f"Signals until {moment}"),
    }


def render_markdown(round_: Round, page: str | None = None) -> str:
    """The round in short, as Markdown without HTML.

    Args:
        round_: What to tell.
        page: Name of the page's file, for those who can open it.
    """
    sentence, _ = judge(round_)
    lines = [
        f"**{_plain(sentence)}**",
        "",
        f"Monitor round of {_stamp(round_.decided_at)} UTC, run {_plain(round_.run_id)}.",
        "",
        "| signal | of | state | value | limit | samples | decision |",
        "|---|---|---|---|---|---|---|",
    ]
    rows = worst_first(round_.rows)
    for row in rows[:MOST_ROWS]:
        cells = (
            row["signal"],
            row["subject"],
            _state_words(row),
            number(row["value"]),
            number(row["limit"]),
            f"{row['sample_count']:,}",
            f"{_action_words(row)}: {row['reason']}",
        )
        lines.append("| " + " | ".join(_plain(cell) for cell in cells) + " |")
    if len(rows) > MOST_ROWS:
        lines += ["", f"{len(rows) - MOST_ROWS} more signals are in the table `decisions`."]
    if page:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", page)
        lines += [
            "",
            f"The page with charts: `{name}` among the monitor's reports, and in its run in MLflow.",
        ]
    return "\n".join(lines) + "\n"


def _plain(text: object) -> str:
    """Text that Markdown takes for nothing else: no HTML, link, emphasis or end of a cell."""
    shown = public(text)
    return "".join(f"&#{ord(sign)};" if sign in "<>&|[]`*_\\!" else sign for sign in shown)


def _undelivered(round_: Round) -> str:
    if not round_.undelivered:
        return ""
    rows = [
        (
            _stamp(alert["decided_at"]),
            escaped(alert["cause"], LONGEST_NAME),
            escaped(alert["reason"]),
            str(int(alert.get("refusal_count") or 0)),
            escaped(alert.get("trouble") or "", 200),
        )
        for alert in round_.undelivered
    ]
    table = _table(
        "Alerts that the webhook has not taken",
        ("since", "cause", "what", "refused, times", "trouble"),
        rows,
        MOST_EPISODES,
        numeric=(3,),
        wide=(2,),
    )
    return (
        f'<section id="undelivered"><h2>Alerts undelivered: {len(round_.undelivered)}</h2>{table}</section>'
    )


def _retrained(round_: Round) -> str:
    if not round_.retrained:
        return ""
    items = "".join(
        f"<li>{escaped(one['model_name'], LONGEST_NAME)}: {escaped(one['outcome'])}</li>"
        for one in round_.retrained[:MOST_EPISODES]
    )
    return f'<section id="retrained"><h2>Retrainings that ran in this round</h2><ul>{items}</ul></section>'


def _open_episodes(round_: Round) -> str:
    episodes = [one for one in round_.timeline.episodes if one.closed_at is None]
    if not episodes:
        return ""
    now = {(row["signal"], row["subject"]) for row in round_.rows}
    rows = [
        (
            escaped(f"{one.signal} of {one.subject}", 2 * LONGEST_NAME),
            _lasting(round_.decided_at - one.opened_at),
            escaped(WAITS_FOR.get(one.phase, PHASE_WORDS.get(one.phase, one.phase)), LONGEST_NAME),
            str(len(one.attempts)) + (f", {one.failure_count} failed" if one.failure_count else ""),
            escaped(
                one.reason
                if (one.signal, one.subject) in now
                else f"not measured in this round; last on {_stamp(one.last_seen_at)}: {one.reason}"
            ),
            escaped(one.episode_id, LONGEST_NAME),
        )
        for one in episodes
    ]
    table = _table(
        "",
        ("signal", "open for", "waits for", "retrainings", "as of now", "episode"),
        rows,
        MOST_EPISODES,
        wide=(4,),
    )
    return f'<section id="open"><h2>Open episodes: {len(episodes)}</h2>{table}</section>'


def _overview(round_: Round) -> str:
    if not round_.rows:
        return ""
    lanes = _lanes(round_)
    more = len(round_.rows) - len(lanes)
    said = f"{more} more signals are in the table of decisions." if more > 0 else ""
    return (
        f'<section id="overview"><h2>{_lane_title(round_)}</h2><div class="legend">{draw_legend()}</div>'
        f"<figure>{draw_overview(lanes, _lane_title(round_), 'overview')}<figcaption>{said}</figcaption></figure></section>"
    )


def _lane_title(round_: Round) -> str:
    days = (round_.timeline.end - round_.timeline.start) / DAY
    return f"All signals, last {days:.0f} days" if days >= 1.5 else "All signals, last day"


def _lanes(round_: Round) -> list[tuple[str, Picture]]:
    timeline = round_.timeline
    return [
        (
            f"{row['signal']} of {public(row['subject'], 24)}: {_state_words(row)}",
            _picture(row, timeline, timeline.start),
        )
        for row in worst_first(round_.rows)[:MOST_LANES]
    ]


def _cards(round_: Round) -> str:
    if not round_.rows:
        return ""
    rows = worst_first(round_.rows)
    cards = "".join(_card(row, round_.timeline, f"s{place}") for place, row in enumerate(rows[:MOST_CARDS]))
    said = (
        f'<p class="faint">{len(rows) - MOST_CARDS} more signals, quieter than these, are in the table of decisions.</p>'
        if len(rows) > MOST_CARDS
        else ""
    )
    return f'<section id="signals"><h2>Signals</h2><div class="cards">{cards}</div>{said}</section>'


def _card(row: Mapping[str, Any], timeline: Timeline, name: str) -> str:
    phase, cause, unit = phase_of(row), cause_of(row), unit_of(row["signal"])
    badge = (
        f'<span class="badge is-blind"><span class="sign" aria-hidden="true">?</span> cannot say: {escaped(cause)}</span>'
        if cause
        else ""
    )
    if not (cause and phase == "quiet"):
        badge += (
            f'<span class="badge {phase if phase in PHASE_WORDS else "unknown"}"><span class="sign" aria-hidden="true">'
            f"{_SIGNS.get(phase, '?')}</span> {escaped(PHASE_WORDS.get(phase, phase), LONGEST_NAME)}</span>"
        )
    value = "no number" if row["value"] is None else f"{number(row['value'])} {unit}"
    has_interval = row["lower"] is not None and row["upper"] is not None
    interval = f"{number(row['lower'])} to {number(row['upper'])}" if has_interval else "none"
    model = f" · {escaped(row['model_name'], LONGEST_NAME)}" if row["model_name"] else ""
    model += f" version {escaped(row['model_version'], LONGEST_NAME)}" if row["model_version"] else ""
    kinds = ["card", *(["is-blind"] if cause else ["is-open"] if phase not in ("quiet", "unknown") else [])]
    kinds += ["human"] if phase == "human" else []
    charts = _figure("Last day", draw_chart(_picture(row, timeline, timeline.day_start), f"{name}-day"))
    if _is_long(timeline):
        days = (timeline.end - timeline.start) / DAY
        drawn = draw_chart(_picture(row, timeline, timeline.start), f"{name}-month")
        charts += _figure(f"Last {days:.0f} days", drawn)
    return (
        f'<article class="{" ".join(kinds)}" id="{name}"><h3>{escaped(title_of(row["signal"]), LONGEST_NAME)}</h3>'
        f'<p class="faint"><bdi>{escaped(row["subject"], LONGEST_NAME)}</bdi>{model}</p><p>{badge}</p>'
        f'<dl class="figures"><dt>value</dt><dd class="value">{value}</dd><dt>interval</dt><dd>{interval}</dd>'
        f"<dt>limit</dt><dd>{number(row['limit'])}</dd><dt>samples</dt><dd>{int(row['sample_count']):,}</dd></dl>"
        f"<p>{escaped(row['reason'])}</p>{charts}</article>"
    )


def _figure(caption: str, drawn: str) -> str:
    return f"<figure><figcaption>{caption}</figcaption>{drawn}</figure>"


def _picture(row: Mapping[str, Any], timeline: Timeline, start: datetime) -> Picture:
    key = (row["signal"], row["subject"])
    slots = timeline.month if start == timeline.start else timeline.day
    return Picture(
        title=title_of(row["signal"]),
        subject=row["subject"],
        unit=unit_of(row["signal"]),
        start=start,
        end=timeline.end,
        slots=slots.get(key, ()),
        markers=timeline.markers.get(key, ()),
    )


def _is_long(timeline: Timeline) -> bool:
    return timeline.end - timeline.start > LONG_HISTORY


def _slices(round_: Round) -> str:
    """The slices of each signal that has some, all rows first."""
    tables = ""
    for row in worst_first(round_.rows)[:MOST_CARDS]:
        if slices := slices_of(row):
            tables += _slice_table(f"{title_of(row['signal'])} of {row['subject']}", slices)
    return f'<section id="slices"><h2>Slices</h2>{tables}</section>' if tables else ""


def _slice_table(caption: str, slices: Sequence[Mapping[str, Any]]) -> str:
    rows, kinds = [], []
    for one in slices:
        value, limit = _finite(one.get("value")), _finite(one.get("limit"))
        if one.get("status") != "measured" or value is None:
            said, kind = "? cannot say", "unsaid"
        elif limit is not None and value > limit:
            said, kind = "▲ above its limit", "above"
        else:
            said, kind = "✓ within its limit", ""
        said += ", never seen in training" if one.get("is_never_seen") is True else ""
        count = one.get("sample_count")
        rows.append(
            (
                escaped(one.get("slice", "unnamed"), LONGEST_NAME),
                f"{count:,}" if isinstance(count, int) else "–",
                number(value),
                number(limit),
                said,
                _percent(one.get("change_ratio"), "+"),
                _percent(one.get("inside_ratio")),
                _percent(one.get("trained_inside_ratio")),
            )
        )
        kinds.append(kind)
    columns = (
        "slice",
        "n",
        "value",
        "limit",
        "status",
        "latency over predicted",
        "in interval",
        "in training",
    )
    shown = escaped(caption, 2 * LONGEST_NAME)
    return _table(shown, columns, rows, MOST_SLICES, numeric=(1, 2, 3, 5, 6, 7), kinds=kinds)


def _percent(ratio: Any, sign: str = "") -> str:
    share = _finite(ratio)
    return "–" if share is None else f"{100 * share:{sign},.1f} %"


def _finite(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e300 else None


def _decisions(round_: Round) -> str:
    rows = [
        (
            escaped(f"{row['signal']} of {row['subject']}", 2 * LONGEST_NAME),
            escaped(_state_words(row), LONGEST_NAME),
            number(row["value"]),
            number(row["limit"]),
            f"{int(row['sample_count']):,}",
            escaped(_action_words(row), LONGEST_NAME),
            escaped(row["reason"]),
        )
        for row in worst_first(round_.rows)
    ]
    if not rows:
        return ""
    table = _table(
        "",
        ("signal", "state", "value", "limit", "samples", "decision", "because"),
        rows,
        MOST_ROWS,
        numeric=(2, 3, 4),
        wide=(6,),
    )
    return f'<section id="decisions"><h2>Decisions of this round</h2>{table}</section>'


def _history(round_: Round) -> str:
    episodes = round_.timeline.episodes
    title = f'<section id="history"><h2>Episodes of the last {HISTORY.days} days: {len(episodes)}</h2>'
    if not episodes:
        return f"{title}<p>None.</p></section>"
    rows = [_episode_cells(one, round_.decided_at) for one in episodes]
    columns = ("opened", "closed", "lasted", "signal", "retrainings", "outcome")
    return f"{title}{_table('', columns, rows, MOST_EPISODES)}</section>"


def _episode_cells(one: Episode, now: datetime) -> tuple[str, ...]:
    failed = f", {one.failure_count} failed" if one.failure_count else ""
    return (
        _stamp(one.opened_at),
        "open" if one.closed_at is None else _stamp(one.closed_at),
        _lasting((one.closed_at or now) - one.opened_at),
        escaped(f"{one.signal} of {one.subject}", 2 * LONGEST_NAME),
        f"{len(one.attempts)}{failed}",
        escaped(one.outcome or "nothing was started", LONGEST_NAME),
    )


def _table(
    caption: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    most: int,
    *,
    numeric: Iterable[int] = (),
    wide: Iterable[int] = (),
    kinds: Sequence[str] = (),
) -> str:
    """A table of cells that are markup already; of too many rows the first, with how many more there are."""
    styles = {**dict.fromkeys(numeric, ' class="n"'), **dict.fromkeys(wide, ' class="w"')}
    head = "".join(
        f'<th scope="col"{styles.get(place, "")}>{name}</th>' for place, name in enumerate(columns)
    )
    lines = []
    for number_, row in enumerate(rows[:most]):
        kind = f' class="{kinds[number_]}"' if kinds and kinds[number_] else ""
        cells = "".join(
            f'<td data-of="{columns[place]}"{styles.get(place, "")}>{cell}</td>'
            for place, cell in enumerate(row)
        )
        lines.append(f"<tr{kind}>{cells}</tr>")
    titled = f"<caption>{caption}</caption>" if caption else ""
    more = f'<p class="faint">and {len(rows) - most} more</p>' if len(rows) > most else ""
    return f'<div class="scroll"><table>{titled}<thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>{more}'


def _state_words(row: Mapping[str, Any]) -> str:
    phase, cause = phase_of(row), cause_of(row)
    words = PHASE_WORDS.get(phase, phase)
    if cause is None:
        return words
    return f"cannot say: {cause}" + ("" if phase == "quiet" else f"; {words}")


def _action_words(row: Mapping[str, Any]) -> str:
    words = _ACTION_WORDS.get(row["action"], row["action"])
    return f"{words}, alert: {row['alert_cause']}" if row["alert_cause"] else words


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"


def _lasting(span: timedelta) -> str:
    """A length of time in its two largest units."""
    minutes = max(0, int(span.total_seconds() // 60))
    days, hours, minutes = minutes // 1440, minutes // 60 % 24, minutes % 60
    if days:
        return f"{days} d {hours} h"
    return f"{hours} h {minutes} min" if hours else f"{minutes} min"
