"""Charts as SVG: well-formed, with the right figures at the right heights, told apart without colour."""

import re
import xml.etree.ElementTree as ET
from datetime import timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes import ROUNDS_BEGIN
from warpgauge.drift.signal_chart import (
    BOTTOM,
    LEFT,
    MEANINGS,
    SHAPES,
    STYLE,
    TOP,
    WIDTH,
    Picture,
    describe,
    draw_chart,
    draw_legend,
    draw_overview,
    draw_sheet,
)
from warpgauge.drift.timeline import SLOT_COUNT, Marker, Slot

SVG = "{http://www.w3.org/2000/svg}"
HOSTILE = '"><script>alert(1)</script><svg onload=alert(1)>\x00\u202e'


def at(minutes: float):
    return ROUNDS_BEGIN + timedelta(minutes=minutes)


def slot(place: int, value: float | None = 50.0, **others) -> Slot:
    known = {
        "low": value,
        "high": value,
        "lower": None if value is None else value - 2,
        "upper": None if value is None else value + 2,
        "last": value,
        "limit": 92.0,
        "round_count": 1,
        "blind_count": int(value is None),
        "is_open": False,
        "at": at(place),
    }
    return Slot(place=place, **{**known, **others})


def picture(slots=(), markers=(), **others) -> Picture:
    given = {
        "title": "GPU utilization",
        "subject": "GPU-1",
        "unit": "%",
        "start": at(0),
        "end": at(SLOT_COUNT),
    }
    return Picture(**{**given, **others}, slots=slots, markers=markers)


def drawn(one: Picture) -> ET.Element:
    return ET.fromstring(draw_chart(one, "c"))


def paths(chart: ET.Element, kind: str) -> list[str]:
    return [path.get("d", "") for path in chart.iter(f"{SVG}path") if path.get("class") == kind]


def heights(path: str) -> list[float]:
    """The y of each point of an absolute path of M, L and V."""
    return [float(y) for y in re.findall(r"(?:[ML][\d.]+ |V)([\d.]+)", path)]


def test_the_line_goes_through_the_values_and_the_limit_lies_where_it_is() -> None:
    chart = drawn(picture([slot(0, 0.0, lower=None, upper=None), slot(1, 92.0, lower=None, upper=None)]))
    (line,), (limit,) = paths(chart, "v"), paths(chart, "l")
    low, high = heights(line)
    assert low == BOTTOM
    assert TOP < high < BOTTOM - 80
    assert heights(limit) == [high]
    assert line.startswith(f"M{LEFT + 0.5} ")
    assert "limit 92" in "".join(chart.itertext())


def test_a_column_shows_its_lowest_and_its_highest() -> None:
    (line,) = paths(drawn(picture([slot(0, 50.0), slot(1, 50.0, low=10.0, high=90.0)])), "v")
    first, near, far = heights(line)
    assert near < first < far or far < first < near


def test_what_could_not_be_said_breaks_the_line_and_is_hatched() -> None:
    chart = drawn(picture([slot(0), slot(1), slot(2, None), slot(3), slot(4)]))
    (line,), (hatched,) = paths(chart, "v"), paths(chart, "n")
    assert line.count("M") == 2
    assert f"M{LEFT + 2} {TOP}H{LEFT + 3}V{BOTTOM}" in hatched


def test_one_round_among_others_that_could_not_say_leaves_a_mark() -> None:
    (hatched,) = paths(drawn(picture([slot(0), slot(1, blind_count=1, round_count=20), slot(2)])), "n")
    assert hatched == f"M{LEFT + 1} {BOTTOM - 5}H{LEFT + 2}V{BOTTOM}H{LEFT + 1}Z"


def test_where_nobody_asked_is_neither_line_nor_hatched() -> None:
    chart = drawn(
        picture([*(slot(place) for place in range(5)), *(slot(place) for place in range(200, 205))])
    )
    assert paths(chart, "v")[0].count("M") == 2
    assert paths(chart, "n") == []


def test_an_open_episode_is_shaded_from_its_opening_to_its_end() -> None:
    chart = drawn(picture([slot(place, is_open=10 <= place < 20) for place in range(40)]))
    (shaded,), (edges,) = paths(chart, "o"), paths(chart, "oe")
    assert shaded == f"M{LEFT + 10} {TOP}H{LEFT + 20}V{BOTTOM}H{LEFT + 10}Z"
    assert edges.count("M") == 2


def test_a_limit_that_moved_is_drawn_in_steps() -> None:
    (limit,) = paths(drawn(picture([slot(0), slot(10, limit=80.0), slot(20, limit=80.0)])), "l")
    assert limit.count("V") == 1
    assert f"H{LEFT + 10}V" in limit


def test_each_thing_that_was_done_has_a_shape_of_its_own_and_its_words() -> None:
    markers = [Marker(at(10 * place), kind, f"about {kind}") for place, kind in enumerate(MEANINGS)]
    chart = drawn(picture([slot(0)], markers))
    shapes = {
        path.get("d") for path in chart.iter(f"{SVG}path") if (path.get("class") or "").startswith("m ")
    }
    assert len(shapes) == len(MEANINGS) == len(set(SHAPES.values()))
    said = "".join(chart.itertext())
    assert all(f"{words}: about {kind}" in said for kind, words in MEANINGS.items())


def test_markers_of_an_unknown_outcome_and_beyond_the_end_are_drawn() -> None:
    chart = drawn(picture([slot(0)], [Marker(at(5000), "withdrawn", "later")]))
    (moved,) = [group.get("transform") for group in chart.iter(f"{SVG}g") if group.get("transform")]
    assert moved.startswith(f"translate({LEFT + SLOT_COUNT}")


def test_very_many_markers_are_bounded() -> None:
    markers = [Marker(at(number / 100), "ordered", "x" * 5000) for number in range(30_000)]
    assert len(draw_chart(picture([slot(0)], markers), "c")) < 30_000


@pytest.mark.parametrize("slots", [[], [slot(3, None)], [slot(3, 0.0, limit=None)], [slot(3, 0.0)]])
def test_little_or_nothing_is_drawn_too(slots: list[Slot]) -> None:
    chart = drawn(picture(slots))
    said = "".join(chart.itertext())
    if not slots:
        assert "not measured" in said
    elif slots[0].low is None:
        assert "no round could say" in said
    else:
        assert len(list(chart.iter(f"{SVG}circle"))) >= 1


number = st.floats(allow_nan=False, allow_infinity=False, min_value=-1e300, max_value=1e300)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(number, number, number, number), min_size=1, max_size=6))
def test_any_numbers_stay_within_the_picture(values: list[tuple[float, float, float, float]]) -> None:
    slots = [
        slot(place, low, high=max(low, high), lower=lower, upper=lower, limit=limit, last=low)
        for place, (low, high, lower, limit) in enumerate(values)
    ]
    chart = drawn(picture(slots))
    for kind in ("v", "l", "b"):
        for path in paths(chart, kind):
            assert "nan" not in path
            assert "inf" not in path
            assert all(TOP - 1 <= y <= BOTTOM + 1 for y in heights(path))


def test_every_picture_has_a_title_and_its_figures_in_words() -> None:
    chart = drawn(
        picture([slot(0, 40.0), slot(5, None), slot(9, 97.0, is_open=True)], [Marker(at(9), "ordered", "")])
    )
    title, described = chart.find(f"{SVG}title"), chart.find(f"{SVG}desc")
    assert title is not None
    assert described is not None
    assert title.text == "GPU utilization: GPU-1"
    assert chart.get("aria-labelledby") == f"{title.get('id')} {described.get('id')}"
    assert chart.get("role") == "img"
    assert described.text == (
        "2026-03-01 00:00 to 2026-03-01 06:08 UTC: 3 rounds, of which 1 could not say; lowest 40, highest 97, "
        "last 97 %; limit 92; episodes open 1 times; retraining ordered: 1."
    )
    assert describe(picture()) == "2026-03-01 00:00 to 2026-03-01 06:08 UTC: no round measured it."


def test_names_from_outside_are_text() -> None:
    hostile = picture([slot(0)], [Marker(at(0), HOSTILE, HOSTILE)], title=HOSTILE, subject=HOSTILE)
    for text in (
        draw_chart(hostile, "c"),
        draw_sheet([hostile], HOSTILE),
        draw_overview([(HOSTILE, hostile)], HOSTILE),
        draw_overview([(HOSTILE, hostile)], HOSTILE, "o"),
    ):
        tree = ET.fromstring(text)
        assert not [one for one in tree.iter() if one.tag == f"{SVG}script"]
        assert not [name for one in tree.iter() for name in one.attrib if name.startswith("on")]
        assert "<script" not in text


def test_a_document_brings_its_style_and_needs_nothing_else() -> None:
    for text in (
        draw_sheet([picture([slot(0)])] * 3, "Signals"),
        draw_overview([("GPU-1", picture([slot(0)]))], "All"),
    ):
        tree = ET.fromstring(text)
        assert tree.find(f"{SVG}style") is not None
        assert "url(#hatch)" in text
        assert tree.find(f".//{SVG}pattern[@id='hatch']") is not None
        assert re.findall(r"https?://[^\"' ]+", text) == ["http://www.w3.org/2000/svg"]
        assert all(words in "".join(tree.itertext()) for words in MEANINGS.values())


def test_an_empty_sheet_and_an_empty_overview_are_pictures() -> None:
    ET.fromstring(draw_sheet([], "Signals"))
    ET.fromstring(draw_overview([], "All"))


def test_a_lane_tells_rounds_blind_stretches_and_episodes_apart() -> None:
    slots = [slot(0), slot(1, None), slot(2, is_open=True), slot(3)]
    text = draw_overview([("GPU-1", picture(slots))], "All", "o")
    lane = ET.fromstring(text)
    assert paths(lane, "q") == [f"M{LEFT} 0H{LEFT + 1}V8H{LEFT}ZM{LEFT + 2} 0H{LEFT + 4}V8H{LEFT + 2}Z"]
    assert len(paths(lane, "n")) == len(paths(lane, "o")) == 1
    assert float(lane.get("viewBox", "").split()[2]) == WIDTH


def test_the_legend_shows_every_mark() -> None:
    legend = ET.fromstring(f"<div>{draw_legend()}</div>")
    said = " ".join(legend.itertext())
    assert all(
        words in said
        for words in (*MEANINGS.values(), "value and interval", "limit", "cannot say", "episode open")
    )


def test_every_class_that_is_drawn_has_a_style() -> None:
    text = draw_sheet([picture([slot(0), slot(1, None), slot(2, is_open=True)])], "x") + draw_legend()
    used = {name for found in re.findall(r'class="([^"]+)"', text) for name in found.split()}
    styled = set(re.findall(r"\.([a-z]+)", STYLE))
    assert used - {"chart", "key"} <= styled
