from __future__ import annotations

import itertools
import math
import re
import xml.etree.ElementTree as ElementTree

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from simulations.report.drawing.charts import (
    MARKERS,
    Box,
    Scale,
    bounds,
    label_box,
    marker,
    place_label,
    spread,
    tag,
    ticks,
)
from simulations.report.drawing.figures import Point, curves, plane, strip
from simulations.report.drawing.looks import COLORS, SHADES, looks
from simulations.report.page.style import CSS
from simulations.report.text import breakable, plain, short_names, whole_percent

DP = ("DPSGD(target_epsilon=8.0)", "DPSGD(target_epsilon=2.0)")
FACES = looks(["", "A()", *DP])
numbers = st.floats(-1e6, 1e6)


def shapes(drawing: str, class_: str) -> list[ElementTree.Element]:
    return [one for one in ElementTree.fromstring(drawing).iter() if class_ in (one.get("class") or "").split()]


@given(numbers, numbers, st.integers(2, 9))
def test_ticks_are_round_evenly_spaced_inside_and_not_too_many(low: float, high: float, most: int) -> None:
    assume(high - low > 1e-3)
    found = ticks(low, high, most)
    assert 1 <= len(found) <= most
    slack = 1e-8 * (high - low)
    assert all(low - slack <= value <= high + slack for value in found)
    if len(found) > 2:
        steps = np.diff(found)
        assert steps == pytest.approx(np.full(len(steps), steps[0]))
        leading = steps[0] / 10 ** math.floor(math.log10(steps[0]) + 1e-9)
        assert any(leading == pytest.approx(nice) for nice in (1, 2, 5, 10))


@given(numbers, numbers, numbers)
def test_a_scale_is_linear_and_keeps_to_its_edges(low: float, high: float, value: float) -> None:
    assume(high - low > 1e-3)
    scale = Scale(low, high, 10, 110)
    expected = np.interp(value, [low, high], [10, 110])
    assert scale(value) == pytest.approx(expected, abs=1e-6)
    assert scale(math.inf) == 110


@given(st.lists(numbers | st.none() | st.just(math.inf) | st.just(math.nan), max_size=5))
def test_bounds_hold_every_number_that_can_be_drawn(found: list[float | None]) -> None:
    low, high = bounds(found)
    assert high - low >= 1 - 1e-9
    assert all(low <= value <= high for value in found if value is not None and math.isfinite(value))


@given(st.lists(st.floats(0, 100), min_size=1, max_size=8))
def test_labels_are_moved_apart_in_order_and_inside(wanted: list[float]) -> None:
    placed = spread(wanted, 14, 0, 100)
    assert all(-1e-9 <= at <= 100 + 1e-9 for at in placed)
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    gaps = np.diff([placed[index] for index in order])
    assert all(gap >= min(14, 100 / max(len(wanted) - 1, 1)) - 1e-9 for gap in gaps)


def test_labels_that_fit_stay_where_they_are() -> None:
    assert spread([50.0, 10.0, 90.0], 14, 0, 100) == [50.0, 10.0, 90.0]


def test_a_label_takes_the_free_side() -> None:
    inside = Box(0, 0, 500, 300)
    x, _, anchor = place_label(100, 100, "name", [label_box(109, 104, "name", "start")], inside)
    assert (x, anchor) != (109, "start")
    assert place_label(490, 100, "a long name", [], inside)[2] == "end"


def test_text_and_attributes_are_escaped() -> None:
    drawn = str(tag("text", "<b>&", aria_label='"<', stroke_width=2.0, x=None))
    assert drawn == '<text aria-label="&#34;&lt;" stroke-width="2.0">&lt;b&gt;&amp;</text>'


@pytest.mark.parametrize("shape", MARKERS)
def test_every_marker_can_be_drawn_around_its_place(shape: str) -> None:
    drawn = ElementTree.fromstring(marker(50, 60, shape, "red", tip="<tip>"))
    assert drawn.findtext("title") == "<tip>"
    if shape == "circle":
        assert (drawn.get("cx"), drawn.get("cy")) == ("50.0", "60.0")
    else:
        corners = np.array([[float(v) for v in pair.split(",")] for pair in str(drawn.get("points")).split()])
        assert np.abs(corners - [50, 60]).max() < 8
        assert corners.min(0)[0] < 50 < corners.max(0)[0]


def test_the_plane_joins_dp_sgd_in_order_of_epsilon_and_puts_better_lower_right() -> None:
    eight, two = "DPSGD(target_epsilon=8.0)", "DPSGD(target_epsilon=2.0)"
    points = {"": Point(0.95, 31.0, 29.0, 33.0), eight: Point(0.88, 15.0), two: Point(0.8, 7.0, hollow=True)}
    drawing = plane(points, {eight: 7.99, two: 2.0}, {"baseline:grey": 8.0, "baseline:blurred": 12.0}, FACES, 700)
    places = {
        name: (float(one.get("x") or 0), float(one.get("y") or 0))
        for one in shapes(drawing, "name")
        for name in [(one.text or "").split(",")[0]]
    }
    assert places["No defence"][0] > places["DPSGD(8.0)"][0] > places["DPSGD(2.0)"][0]
    assert places["No defence"][1] < places["DPSGD(8.0)"][1] < places["DPSGD(2.0)"][1]
    (curve,) = shapes(drawing, "curve")
    along = [float(pair.split()[0]) for pair in str(curve.get("d")).lstrip("M").split("L")]
    assert len(along) == 2
    assert along == sorted(along)
    (band,) = shapes(drawing, "null")
    inside = float(band.get("y") or 0), float(band.get("y") or 0) + float(band.get("height") or 0)
    polygons = [one for one in shapes(drawing, "mark") if one.tag == "polygon"]
    heights = [np.mean([float(p.split(",")[1]) for p in str(one.get("points")).split()]) for one in polygons]
    assert heights[0] < inside[0] < inside[1] < heights[1]  # 15 dB is above the band (8 to 12 dB), 7 dB below it
    assert len(shapes(drawing, "hollow")) == 1
    assert len(shapes(drawing, "whisker")) == 1


@pytest.mark.parametrize("accuracy", [0.7, 0.75, 0.9])
def test_the_label_of_the_null_baselines_keeps_clear_of_the_points(accuracy: float) -> None:
    points = {"": Point(0.95, 31.0), "A()": Point(0.68, 5.0), DP[0]: Point(accuracy, 13.0), DP[1]: Point(0.93, 13.0)}
    drawing = plane(points, {}, {"baseline:grey": 8.0, "baseline:blurred": 12.0}, FACES, 1120)
    (note,) = [one for one in shapes(drawing, "note") if str(one.text).startswith("null baselines")]
    at = float(note.get("x") or 0), float(note.get("y") or 0)
    box = label_box(*at, str(note.text), note.get("text-anchor") or "start")
    marks = [one for one in shapes(drawing, "mark") if one.tag == "polygon"]
    assert len(marks) == 3
    for mark in marks:
        corners = np.array([[float(v) for v in pair.split(",")] for pair in str(mark.get("points")).split()])
        assert not box.overlap(Box(*corners.min(0), *corners.max(0)))
    assert (box.left >= 40) & (box.right <= 1120)


@pytest.mark.parametrize("mean", [math.inf, -math.inf, 1e300])
def test_infinite_scores_are_drawn_at_the_edge(mean: float) -> None:
    drawing = plane({"": Point(0.9, mean), "A()": Point(0.8, 10.0)}, {}, {}, FACES, 350)
    assert "nan" not in drawing
    assert len(shapes(drawing, "mark")) == 2
    assert "inf" not in strip(Point(0, mean), mean, [8.0], (0, 40), FACES[""])


def test_curves_have_a_line_and_a_name_for_each_defence() -> None:
    series = {"": [Point(at, 30.0 - at) for at in (1, 3, 6)], "A()": [Point(1, 9.0, 8.0, 10.0, hollow=True)]}
    drawing = curves(series, FACES, 350, "PSNR, dB", plain, [Point(1, 12.0), Point(6, 12.5)], (0, 40))
    assert len(shapes(drawing, "series")) == 1
    assert len(shapes(drawing, "nullline")) == 1
    assert [one.text for one in shapes(drawing, "name")] == ["No defence", "A"]
    assert [one.text for one in shapes(drawing, "note")] == ["best null"]
    assert len(shapes(drawing, "hollow")) == 1


def test_the_null_baseline_of_a_single_round_can_be_seen() -> None:
    """A path of one point draws nothing."""
    drawing = curves({"": [Point(1, 30.0)]}, FACES, 350, "PSNR, dB", plain, [Point(1, 12.0)], (0, 40))
    (drawn,) = shapes(drawing, "nullline")
    ends = [tuple(map(float, pair.split())) for pair in str(drawn.get("d")).lstrip("M").split("L")]
    assert len({x for x, _ in ends}) == 2
    assert len({y for _, y in ends}) == 1


def test_a_long_run_keeps_whole_rounds_on_its_axis() -> None:
    series = {"": [Point(at, 0.5) for at in range(200)]}
    drawing = curves(series, FACES, 350, "accuracy", whole_percent, (), (0, 1))
    labels = [str(one.text) for one in shapes(drawing, "tick") if one.get("text-anchor") == "middle"]
    assert 2 <= len(labels) <= 8
    assert all(label.isdigit() for label in labels)
    assert len(shapes(drawing, "mark")) == 1


def test_each_defence_looks_different_and_the_same_everywhere() -> None:
    texts = [
        "",
        *(f"D{i}()" for i in range(2 * COLORS)),
        *(f"DPSGD(target_epsilon={e}.0)" for e in range(1, 2 * SHADES + 1)),
    ]
    found = looks(texts)
    assert looks(texts) == found
    assert len({(look.color, look.shape) for look in found.values()}) == len(texts)
    assert len({look.color for look in list(found.values())[: COLORS + 1]}) == COLORS + 1
    assert len({look.name for look in found.values()}) == len(texts)
    defined = set(re.findall(r"--([a-z0-9]+):", CSS))
    assert {look.color.removeprefix("var(--").removesuffix(")") for look in found.values()} <= defined


def test_short_names_are_short_and_unique() -> None:
    texts = ["", "Mixer(window=8)", "DPSGD(target_epsilon=8.0)", "DPSGD(target_epsilon=2.0)", "A() | B(x=1)", "A()"]
    assert list(short_names(texts).values()) == ["No defence", "Mixer", "DPSGD(8.0)", "DPSGD(2.0)", "A + B", "A"]
    long = [f"Defence(parameter={'x' * 30}{i})" for i in range(3)]
    assert len(set(short_names(long).values())) == 3


@given(st.text(max_size=20))
def test_breaks_do_not_change_a_text(text: str) -> None:
    assert breakable(text).replace("<wbr>", "") == str(breakable("")) + _escaped(text)


def _escaped(text: str) -> str:
    from markupsafe import escape

    return str(escape(text))


# Colours: contrast (WCAG 2) and distance for people with colour vision deficiencies, from the published matrices ---------

DEUTERANOPIA = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
PROTANOPIA = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]


def linear(color: str) -> np.ndarray:
    share = np.array([int(color[at : at + 2], 16) / 255 for at in (1, 3, 5)])
    return np.where(share <= 0.04045, share / 12.92, ((share + 0.055) / 1.055) ** 2.4)


def lab(rgb: np.ndarray) -> np.ndarray:
    matrix = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = matrix @ np.clip(rgb, 0, 1) / [0.9505, 1.0, 1.089]
    f = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def contrast(one: str, other: str) -> float:
    darker, lighter = sorted(float(linear(color) @ [0.2126, 0.7152, 0.0722]) for color in (one, other))
    return (lighter + 0.05) / (darker + 0.05)


def palette(scheme: str) -> dict[str, str]:
    halves = CSS.split("@media (prefers-color-scheme: dark)")
    part = halves[0] if scheme == "light" else halves[1][: halves[1].index("* {")]
    return dict(re.findall(r"--([a-z0-9]+): (#[0-9a-f]{6})\b", part))


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_colours_can_be_read_and_told_apart(scheme: str) -> None:
    colors = palette(scheme)
    marks = {name: color for name, color in colors.items() if re.fullmatch(r"none|d\d|dp\d", name)}
    assert len(marks) == 1 + COLORS + SHADES
    for text in ("ink", "soft", "alarm"):
        assert contrast(colors[text], colors["page"]) >= 4.5
    for color in marks.values():
        assert contrast(color, colors["card"]) >= 3
    for matrix in (np.eye(3), np.array(DEUTERANOPIA), np.array(PROTANOPIA)):
        for one, other in itertools.combinations(marks.values(), 2):
            assert np.linalg.norm(lab(matrix @ linear(one)) - lab(matrix @ linear(other))) >= 19.5
