"""Pictures of signals over time, as SVG that needs nothing else: in a page, or as a file of its own.

A line of the value with the band of its interval and the dashed line of its limit; hatched where the monitor could not
say, empty where it did not ask, shaded while an episode is open, and a shape for each thing that was done. Every
meaning has a shape or a pattern besides its colour; the figures are in the description, for those who do not see it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import pairwise

from warpgauge.drift.public_text import LONGEST_NAME, escaped, number
from warpgauge.drift.timeline import SLOT_COUNT, Marker, Slot

WIDTH, HEIGHT = 424, 154
LEFT, TOP, BOTTOM = 46, 26, 134
# Of one kind of shapes the newest is drawn in so many pixels; of all the newest so many. The tables name the others.
MARKER_WIDTH = 6.0
MOST_MARKERS = 60
# A line joins readings that are at most so many times further apart than usual.
LONGEST_STRIDE = 3.0
LANE = 24

# Colours that are told apart with every common kind of colour blindness (Okabe and Ito, "Color universal design").
LIGHT = (
    "--paper:#fff;--ink:#1c2329;--faint:#5b6670;--rule:#dfe3e6;--line:#0063a3;--limit:#b34700;--open:#e69f00;"
    "--blind:#7a858e;--good:#00735c;--bad:#b3261e;--ask:#8a3f73;"
)
DARK = (
    "--paper:#171c20;--ink:#e7ebee;--faint:#a3adb5;--rule:#343c43;--line:#6cb9ec;--limit:#f0a25c;--open:#e6b84d;"
    "--blind:#98a3ab;--good:#4cc7a6;--bad:#ff8a80;--ask:#df9cc8;"
)
# Dark on screens only: paper is white.
COLOURS = f":root{{{LIGHT}}}@media screen and (prefers-color-scheme:dark){{:root{{{DARK}}}}}"
STYLE = """
svg.chart{font:11px system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",sans-serif;display:block;width:100%;
height:auto;max-width:560px}
.chart text{fill:var(--faint)}.chart .t{fill:var(--ink);font-weight:600}
.chart .r{stroke:var(--rule);stroke-width:1;fill:none}.chart .b{fill:var(--line);opacity:.2}
.chart .v{fill:none;stroke:var(--line);stroke-width:1.6;stroke-linejoin:round}.chart .d{fill:var(--line)}
.chart .l{fill:none;stroke:var(--limit);stroke-width:1.5;stroke-dasharray:6 3}.chart .ll{fill:var(--limit);stroke:var(--paper);stroke-width:3;paint-order:stroke}
.chart .o{fill:var(--open);opacity:.3}.chart .oe{stroke:var(--open);stroke-width:1.5;fill:none}
.chart .n{fill:url(#hatch)}.chart .h{stroke:var(--blind);stroke-width:1.4}.chart .hb{fill:var(--blind);opacity:.16}
.chart .q{fill:var(--line);opacity:.35}.chart .p{fill:var(--paper)}
.chart .m{stroke:var(--paper);stroke-width:1;paint-order:stroke}
.chart .ordered{fill:var(--line)}.chart .promoted{fill:var(--good)}.chart .held{fill:var(--ask)}
.chart .refused{fill:var(--limit)}.chart .failed{fill:var(--bad)}.chart .asked{fill:var(--ask)}.chart .alerted{fill:var(--bad)}
"""
HATCH = (
    '<defs><pattern id="hatch" width="5" height="5" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
    '<path class="hb" d="M0 0H5V5H0Z"/><path class="h" d="M0 0V5"/></pattern></defs>'
)
# Drawn about the origin, within 5 px of it.
SHAPES = {
    "ordered": "M0-5L5 4H-5Z",
    "promoted": "M-4.5 0A4.5 4.5 0 1 1 4.5 0A4.5 4.5 0 1 1-4.5 0Z",
    "held": "M0-5.5L5 0L0 5.5L-5 0Z",
    "refused": "M-4-4H4V4H-4ZM-1.8-1.8V1.8H1.8V-1.8Z",
    "failed": "M-5-3L-3-5L0-2L3-5L5-3L2 0L5 3L3 5L0 2L-3 5L-5 3L-2 0Z",
    "asked": "M-5 4L0-5L5 4H2.6L0-.6L-2.6 4Z",
    "alerted": "M-1.6-5H1.6L1 1.4H-1ZM-1.4 2.6H1.4V5H-1.4Z",
}
MEANINGS = {
    "ordered": "retraining ordered",
    "promoted": "promoted",
    "held": "held for review",
    "refused": "refused",
    "failed": "failed",
    "asked": "person asked",
    "alerted": "alert",
}
# A value's height as text.
Scale = Callable[[float], str]
BEGINNINGS = ("ordered", "asked", "alerted")
_STEPS = tuple(
    timedelta(minutes=minutes)
    for minutes in (5, 10, 15, 30, 60, 120, 180, 360, 720, 1440, 2880, 7200, 10080, 20160)
)


@dataclass(frozen=True)
class Picture:
    """One signal over a span of time.

    Attributes:
        title: What is measured.
        subject: What it is measured on. Both come from outside too, and are escaped here.
        unit: Of the value; empty where it has none.
        start, end: The span.
        slots: In the order of time, at most one a column.
        markers: What was done.
    """

    title: str
    subject: str
    unit: str
    start: datetime
    end: datetime
    slots: Sequence[Slot]
    markers: Sequence[Marker] = ()

    def x(self, moment: datetime) -> float:
        """Where a moment lies, within the plot."""
        share = (moment - self.start) / (self.end - self.start)
        return LEFT + SLOT_COUNT * min(1.0, max(0.0, share))

    @property
    def name(self) -> str:
        """What is measured, and on what."""
        return f"{self.title}: {self.subject}"

    @property
    def shown_markers(self) -> list[Marker]:
        """The newest of each kind in a marker's width, of those within the span; the newest of many."""
        newest = {
            (one.kind, self.x(one.at) // MARKER_WIDTH): one for one in self.markers if one.at >= self.start
        }
        return sorted(newest.values())[-MOST_MARKERS:]


def draw_chart(picture: Picture, name: str) -> str:
    """The picture as an `svg` element for a page that holds `STYLE` and `HATCH`.

    Args:
        picture: What to draw.
        name: Tells its parts from those of other pictures of the page: letters, digits, dashes.
    """
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-labelledby="{name}-t {name}-d" '
        f'xmlns="http://www.w3.org/2000/svg"><title id="{name}-t">{escaped(picture.name, 2 * LONGEST_NAME)}</title>'
        f'<desc id="{name}-d">{escaped(describe(picture))}</desc>{_chart(picture)}</svg>'
    )


def draw_sheet(pictures: Sequence[Picture], title: str) -> str:
    """Pictures one below the other as an SVG document of its own, with the legend.

    Args:
        pictures: At least none.
        title: Above them, escaped here.
    """
    pitch = HEIGHT + 34
    parts = []
    for place, picture in enumerate(pictures):
        caption = (
            f'<text class="t" x="6" y="12">{escaped(picture.title, LONGEST_NAME)}</text>'
            f'<text x="6" y="26">{escaped(picture.subject, 60)}</text>'
        )
        parts.append(
            f'<g transform="translate(0 {30 + place * pitch})">{caption}'
            f'<g transform="translate(0 26)">{_chart(picture)}</g></g>'
        )
    described = "; ".join(f"{one.name}: {describe(one)}" for one in pictures)
    return _document("".join(parts), title, described, 30 + len(pictures) * pitch)


def draw_overview(rows: Sequence[tuple[str, Picture]], title: str, name: str | None = None) -> str:
    """All signals as lanes over one span: open episodes, what could not be said, what was done.

    Args:
        rows: What stands above each lane, and its signal; all of one span.
        title: Of the picture, escaped here.
        name: As `draw_chart`; None makes a document of its own, with the legend.
    """
    parts = []
    for place, (label, picture) in enumerate(rows):
        lane = 4 + place * LANE
        parts.append(
            f'<g transform="translate(0 {lane})"><text x="6" y="9">{escaped(label, LONGEST_NAME)}</text>'
            f'<g transform="translate(0 12)">{_lane(picture)}</g></g>'
        )
    bottom = 4 + len(rows) * LANE
    if rows:
        first = rows[0][1]
        parts.append(f'<g transform="translate(0 {bottom - BOTTOM})">{_time_axis(first, BOTTOM)}</g>')
    height = bottom + 20
    described = (
        "; ".join(f"{label}: {describe(picture)}" for label, picture in rows) or "nothing was measured"
    )
    body = "".join(parts)
    if name is None:
        return _document(f'<g transform="translate(0 24)">{body}</g>', title, described, height + 24)
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {height}" role="img" aria-labelledby="{name}-t {name}-d" '
        f'xmlns="http://www.w3.org/2000/svg"><title id="{name}-t">{escaped(title, LONGEST_NAME)}</title>'
        f'<desc id="{name}-d">{escaped(described, 2000)}</desc>{body}</svg>'
    )


def draw_legend() -> str:
    """What the lines, patterns and shapes mean, as inline HTML for a page with `STYLE` and `HATCH`."""
    samples = [
        ('<path class="b" d="M0 1H26V13H0Z"/><path class="v" d="M0 9L9 4L17 9L26 5"/>', "value and interval"),
        ('<path class="l" d="M0 7H26"/>', "limit"),
        ('<path class="o" d="M0 0H26V14H0Z"/><path class="oe" d="M.8 0V14M25.2 0V14"/>', "episode open"),
        ('<path class="n" d="M0 0H26V14H0Z"/>', "cannot say"),
        *((f'<g transform="translate(13 7)">{_shape(kind)}</g>', said) for kind, said in MEANINGS.items()),
    ]
    return "".join(
        f'<span class="key"><svg class="chart" viewBox="0 0 26 14" aria-hidden="true" '
        f'xmlns="http://www.w3.org/2000/svg">{drawn}</svg>{said}</span>'
        for drawn, said in samples
    )


def describe(picture: Picture) -> str:
    """The picture in a sentence with its figures."""
    slots = picture.slots
    rounds = sum(slot.round_count for slot in slots)
    span = f"{_stamp(picture.start)} to {_stamp(picture.end)} UTC"
    if not rounds:
        return f"{span}: no round measured it."
    blind = sum(slot.blind_count for slot in slots)
    lows = [slot.low for slot in slots if slot.low is not None]
    highs = [slot.high for slot in slots if slot.high is not None]
    said = f"{span}: {rounds} rounds, of which {blind} could not say"
    if lows:
        last = next(slot.last for slot in reversed(slots) if slot.last is not None)
        said += f"; lowest {number(min(lows))}, highest {number(max(highs))}, last {number(last)}{picture.unit and ' '}{picture.unit}"
    limits = [slot.limit for slot in slots if slot.limit is not None]
    said += f"; limit {number(limits[-1])}" if limits else "; no limit"
    opened = sum(
        1 for place, slot in enumerate(slots) if slot.is_open and not (place and slots[place - 1].is_open)
    )
    said += f"; episodes open {opened} times" if opened else "; no episode"
    for kind, meaning in MEANINGS.items():
        count = sum(1 for one in picture.markers if one.kind == kind and one.at >= picture.start)
        said += f"; {meaning}: {count}" if count else ""
    return f"{said}."


def _document(body: str, title: str, described: str, height: float) -> str:
    """An SVG file that brings its own style; its legend stands in two lines at the foot."""
    entries = [
        ("ordered", 8, 0),
        ("promoted", 124, 0),
        ("held", 196, 0),
        ("refused", 294, 0),
        ("failed", 354, 0),
        ("asked", 8, 16),
        ("alerted", 124, 16),
    ]
    legend = "".join(
        f'<g transform="translate({x} {y})">{_shape(kind)}<text x="8" y="4">{MEANINGS[kind]}</text></g>'
        for kind, x, y in entries
    )
    legend += (
        '<rect class="o" x="186" y="11" width="16" height="10"/><text x="206" y="20">episode open</text>'
        '<rect class="n" x="290" y="11" width="16" height="10"/><text x="310" y="20">cannot say</text>'
    )
    total = height + 40
    return (
        f'<svg class="chart" viewBox="0 0 {WIDTH} {total}" width="{2 * WIDTH}" height="{2 * total}" role="img" '
        f'aria-labelledby="t d" xmlns="http://www.w3.org/2000/svg"><title id="t">{escaped(title, LONGEST_NAME)}</title>'
        f'<desc id="d">{escaped(described, 4000)}</desc><style>{COLOURS}{STYLE}svg.chart{{max-width:none}}</style>{HATCH}'
        f'<rect class="p" width="{WIDTH}" height="{total}"/>'
        f'<text class="t" x="6" y="16" font-size="13">{escaped(title, LONGEST_NAME)}</text>'
        f'{body}<g transform="translate(0 {height + 8})">{legend}</g></svg>'
    )


def _chart(picture: Picture) -> str:
    low, high = _reach(picture.slots)
    scale = (BOTTOM - TOP) / (high - low)

    def y(value: float) -> str:
        # An interval may be longer than the scale.
        return f"{BOTTOM - (min(max(value, low), high) - low) * scale:.1f}"

    parts = [_value_axis(low, high, scale), _time_axis(picture, BOTTOM)]
    parts += _spans(picture, TOP, BOTTOM)
    runs = _runs(picture.slots)
    bands = "".join(_band(run, y) for run in runs)
    parts.append(f'<path class="b" d="{bands}"/>' if bands else "")
    parts.append(_limit(picture, y))
    lines = "".join(_line(run, y) for run in runs)
    parts.append(f'<path class="v" d="{lines}"/>' if lines else "")
    # A reading with no neighbour would be a line without a length.
    alone = [run[0] for run in runs if len(run) == 1]
    parts += [f'<circle class="d" cx="{_x(one)}" cy="{y(_value(one.last))}" r="1.6"/>' for one in alone]
    if runs and runs[-1][-1] is picture.slots[-1]:
        newest = runs[-1][-1]
        parts.append(f'<circle class="d" cx="{_x(newest)}" cy="{y(_value(newest.last))}" r="3"/>')
    if not runs:
        said = "no round could say" if picture.slots else "not measured"
        parts.append(f'<text x="{LEFT + SLOT_COUNT / 2}" y="80" text-anchor="middle">{said}</text>')
    # What was begun above, how it ended below it: the two may be minutes apart.
    parts += _marked(picture, 7, 18)
    return "".join(parts)


def _lane(picture: Picture) -> str:
    """One signal as a lane, 8 px high: its rounds, open episodes, what could not be said."""
    said = _stretches(picture.slots, lambda slot: slot.low is not None)
    asked = "".join(f"M{x} 0H{end:.0f}V8H{x}Z" for x, end in said)
    parts = [
        f'<path class="r" d="M{LEFT} 8.5H{LEFT + SLOT_COUNT}"/>',
        f'<path class="q" d="{asked}"/>' if asked else "",
    ]
    parts += _spans(picture, 0, 8)
    parts += _marked(picture, 4, 4)
    return "".join(parts)


def _spans(picture: Picture, top: float, bottom: float) -> list[str]:
    """Open episodes, shaded between two lines, and what could not be said, hatched."""
    slots = picture.slots
    shaded = edges = hatched = ""
    for x, end in _stretches(slots, lambda slot: slot.is_open):
        shaded += f"M{x} {top}H{end:.0f}V{bottom}H{x}Z"
        edges += f"M{x} {top}V{bottom}M{end:.0f} {top}V{bottom}"
    # One round that could not say, among others that could, is a mark on the floor.
    for x, end in _stretches(slots, lambda slot: slot.blind_count > 0):
        hatched += f"M{x} {bottom - min(5, (bottom - top) / 2)}H{end:.0f}V{bottom}H{x}Z"
    for x, end in _stretches(slots, lambda slot: slot.low is None):
        hatched += f"M{x} {top}H{end:.0f}V{bottom}H{x}Z"
    parts = [f'<path class="o" d="{shaded}"/><path class="oe" d="{edges}"/>'] if shaded else []
    return parts + ([f'<path class="n" d="{hatched}"/>'] if hatched else [])


def _stretches(slots: Sequence[Slot], holds: Callable[[Slot], bool]) -> list[tuple[int, float]]:
    """Where the slots hold what is asked, from each to the next one of the same kind: first x and last."""
    longest = _longest_stride(slots)
    found: list[tuple[int, float]] = []
    for place, slot in enumerate(slots):
        if not holds(slot):
            continue
        start = LEFT + slot.place
        following = slots[place + 1].place if place + 1 < len(slots) else slot.place + 1
        end = LEFT + min(following, slot.place + longest)
        if found and found[-1][1] >= start:
            found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def _longest_stride(slots: Sequence[Slot]) -> float:
    """Columns between two readings that still belong together: some times what is usual."""
    steps = sorted(later.place - slot.place for slot, later in pairwise(slots))
    return max(2.0, LONGEST_STRIDE * steps[len(steps) // 2]) if steps else 2.0


def _runs(slots: Sequence[Slot]) -> list[list[Slot]]:
    """The slots that have a value, cut where the monitor could not say or did not ask."""
    longest = _longest_stride(slots)
    runs: list[list[Slot]] = []
    before: Slot | None = None
    for slot in slots:
        if slot.low is not None:
            is_joined = before is not None and before.low is not None and slot.place - before.place <= longest
            if is_joined:
                runs[-1].append(slot)
            else:
                runs.append([slot])
        before = slot
    return runs


def _value(value: float | None) -> float:
    assert value is not None, "a run holds slots with a value only"
    return value


def _x(slot: Slot) -> float:
    return LEFT + slot.place + 0.5


def _line(run: Sequence[Slot], y: Scale) -> str:
    """Through the extremes of each column, the nearer one first."""
    path = ""
    before = _value(run[0].low)
    for place, slot in enumerate(run):
        low, high = _value(slot.low), _value(slot.high)
        near, far = (low, high) if abs(low - before) <= abs(high - before) else (high, low)
        path += f"{'L' if place else 'M'}{_x(slot):g} {y(near)}"
        path += f"V{y(far)}" if far != near else ""
        before = far
    return path


def _band(run: Sequence[Slot], y: Scale) -> str:
    known = [slot for slot in run if slot.lower is not None and slot.upper is not None]
    if not known:
        return ""
    if len(known) == 1:
        slot = known[0]
        return f"M{_x(slot) - 1:g} {y(_value(slot.upper))}h2V{y(_value(slot.lower))}h-2Z"
    upper = "L".join(f"{_x(slot):g} {y(_value(slot.upper))}" for slot in known)
    lower = "L".join(f"{_x(slot):g} {y(_value(slot.lower))}" for slot in reversed(known))
    return f"M{upper}L{lower}Z"


def _limit(picture: Picture, y: Scale) -> str:
    """The limit as it was, in steps, with its newest figure at the end."""
    known = [slot for slot in picture.slots if slot.limit is not None]
    if not known:
        return ""
    path = f"M{LEFT + known[0].place} {y(_value(known[0].limit))}"
    before = known[0].limit
    for slot in known[1:]:
        if slot.limit != before:
            path += f"H{LEFT + slot.place}V{y(_value(slot.limit))}"
            before = slot.limit
    path += f"H{LEFT + SLOT_COUNT}"
    height = float(y(_value(before)))
    above = height - 3 if height > TOP + 12 else height + 11
    label = f'<text class="ll" x="{LEFT + 3}" y="{above:.1f}">limit {number(before)}</text>'
    return f'<path class="l" d="{path}"/>{label}'


def _marked(picture: Picture, begun_y: float, ended_y: float) -> list[str]:
    return [
        f'<g transform="translate({picture.x(one.at):.1f} {begun_y if one.kind in BEGINNINGS else ended_y:g})">'
        f"<title>{_stamp(one.at)} UTC, {escaped(MEANINGS.get(one.kind, one.kind), LONGEST_NAME)}: "
        f"{escaped(one.said, 120)}</title>{_shape(one.kind)}</g>"
        for one in picture.shown_markers
    ]


def _shape(kind: str) -> str:
    # An outcome of a newer version has a shape too.
    known = kind if kind in SHAPES else "held"
    return f'<path class="m {known}" fill-rule="evenodd" d="{SHAPES[known]}"/>'


def _reach(slots: Sequence[Slot]) -> tuple[float, float]:
    """Least and largest value of the scale: of readings and limit, and of intervals where they are not far longer."""
    drawn = [value for slot in slots for value in (slot.low, slot.high, slot.limit) if value is not None]
    low, high = (min(drawn), max(drawn)) if drawn else (0.0, 1.0)
    room = high - low or abs(high) or 1.0
    bounds = [bound for slot in slots for bound in (slot.lower, slot.upper) if bound is not None]
    if bounds:
        low, high = min(low, max(min(bounds), low - room)), max(high, min(max(bounds), high + room))
    if 0 <= low < 0.5 * high:
        low = 0.0
    room = max(high - low, 1e-9 * abs(high))
    # A room so small has no tenth that is a number.
    if room < 1e-290:
        return low - 0.5, high + 0.5
    return (low if low == 0 else low - 0.05 * room), high + 0.08 * room


def _value_axis(low: float, high: float, scale: float) -> str:
    rough = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(rough))
    step = next((power * factor for factor in (1, 2, 2.5, 5) if power * factor >= rough), 10 * power)
    parts: list[str] = []
    tick = math.ceil(low / step)
    while tick * step <= high and len(parts) < 8:
        y = BOTTOM - (tick * step - low) * scale
        parts.append(
            f'<path class="r" d="M{LEFT} {y:.1f}H{LEFT + SLOT_COUNT}"/>'
            f'<text x="{LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{_tick(tick * step)}</text>'
        )
        tick += 1
    return "".join(parts)


def _tick(value: float) -> str:
    """Short enough for the margin."""
    for size, sign in ((1e12, ""), (1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value:.0e}" if not sign else f"{value / (1e3 if sign == 'k' else size):.4g}{sign}"
    return f"{value + 0.0:.3g}"


def _time_axis(picture: Picture, y: float) -> str:
    span = picture.end - picture.start
    step = next((one for one in _STEPS if span / one <= 5), span / 4)
    midnight = picture.start.astimezone(UTC).replace(hour=0, minute=0, second=0, microsecond=0)
    moment = midnight + step * math.ceil((picture.start - midnight) / step)
    parts = [f'<path class="r" d="M{LEFT} {y:g}H{LEFT + SLOT_COUNT}"/>']
    while moment <= picture.end:
        is_day = moment.hour == moment.minute == 0
        label = f"{moment.day} {moment:%b}" if is_day or step >= timedelta(days=1) else f"{moment:%H:%M}"
        x = picture.x(moment)
        anchor = "start" if x < LEFT + 12 else "end" if x > LEFT + SLOT_COUNT - 12 else "middle"
        parts.append(
            f'<path class="r" d="M{x:.1f} {y:g}v4"/><text x="{x:.1f}" y="{y + 15:g}" text-anchor="{anchor}">{label}</text>'
        )
        moment += step
    return "".join(parts)


def _stamp(moment: datetime) -> str:
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M}"
