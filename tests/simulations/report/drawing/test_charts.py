import itertools
import math
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from PIL import Image

from defenses.neighbours import REPLACE_ONE
from simulations.report.analysis.finding import findings_of
from simulations.report.drawing.chart import WIDTH, Axis, Chart, Point, Stroke, bounds, round_values
from simulations.report.drawing.looks import COLORS, MARKERS, SHADES, Look, looks
from simulations.report.drawing.picture_index import Picture
from simulations.report.drawing.pictures import Embedder, grids
from simulations.report.drawing.plots import MOST_TICKS, DotRow, curves, epsilons, over_rounds, plane, rows_of_dots
from simulations.report.page.templates import macros, read
from simulations.report.studies.score import Score
from simulations.report.text import short_names
from strategies.federated.shown_epsilon import ShownEpsilon
from tests.simulations.report.report_run import INVERSION, PIPELINES, attack_rows, demo_rows, study_of

CSS = read("style.css")
DP = ("DPSGD(target_epsilon=8.0)", "DPSGD(target_epsilon=2.0)")
FACES = looks(["", "A()", *DP])
UNIT = Axis("", 0, 10), Axis("", 0, 10)
numbers = st.floats(-1e6, 1e6)


@given(numbers | st.just(math.inf), numbers, numbers)
def test_what_lies_beyond_an_axis_is_drawn_at_its_edge(value: float, low: float, high: float) -> None:
    assume(high - low > 1e-6)
    expected = (np.clip(value, low, high) - low) / (high - low)
    assert Axis("", low, high).share(value) == pytest.approx(expected, abs=1e-9)
    assert Axis("", high, low).share(value) == pytest.approx(1 - expected, abs=1e-9)


@given(st.lists(numbers | st.none() | st.just(math.inf) | st.just(math.nan), max_size=5))
def test_bounds_hold_every_number_that_can_be_drawn(found: list[float | None]) -> None:
    low, high = bounds(found)
    assert high - low >= 1 - 1e-9
    assert all(low <= value <= high for value in found if value is not None and math.isfinite(value))


@given(numbers, st.floats(0.01, 1e6), st.integers(4, 8))
def test_ticks_are_round_and_evenly_spaced_between_the_ends(low: float, span: float, most: int) -> None:
    found = round_values(low, low + span, most)
    assert 1 <= len(found) <= most + 1
    assert all(low - 1e-6 * span <= value <= low + span * (1 + 1e-6) for value in found)
    for step in np.diff(found):
        assert step == pytest.approx(found[1] - found[0])
        assert f"{step:.0e}"[0] in "125"


def svg(chart: Chart) -> ElementTree.Element:
    drawn = macros({})["chart"](chart)
    return ElementTree.fromstring(f"<div>{drawn}</div>")


def parts(drawing: ElementTree.Element, kind: str) -> list[ElementTree.Element]:
    return [one for one in drawing.iter() if kind in (one.get("class") or "").split()]


def corners(drawn: ElementTree.Element) -> np.ndarray:
    return np.array(re.findall(r"(-?[\d.]+) (-?[\d.]+)", str(drawn.get("d"))), dtype=float)


def test_a_chart_is_drawn_at_its_values_in_colours_of_the_page_with_its_names_below() -> None:
    look, other = Look("<b>& A", "var(--d1)", "star"), Look("B", "var(--none)", "circle")
    points = [(Point(0, 10, tip="<tip>"), look), (Point(10, 5, hollow=True), other)]
    line, names = Stroke([(0, 10), (10, 5)], "var(--d1)"), [(one.name, one) for _, one in points]
    chart = Chart("<b>& all", *UNIT, [line], points, names)
    drawing = svg(chart)
    (line,), (full, hollow) = parts(drawing, "series"), parts(drawing, "mark")
    places = [np.array(re.findall(r"[\d.]+", str(one.get("transform"))), dtype=float) for one in (full, hollow)]
    assert corners(line) == pytest.approx(np.array(places))
    assert places[0] == pytest.approx([chart.left, 28])
    assert places[1] == pytest.approx([WIDTH - 18, 28 + chart.height / 2])
    assert [full.findtext("title"), hollow.findtext("title")] == ["<tip>", None]
    assert parts(drawing, "hollow") == [hollow]
    assert full.get("d") != hollow.get("d")
    assert [one.get("style") for one in (line, full, hollow)] == ["color:var(--d1)"] * 2 + ["color:var(--none)"]
    assert [one.text or one[-1].tail for one in drawing.iter("li")] == ["<b>& A", "B"]
    assert parts(drawing, "chart")[0].get("aria-label") == "<b>& all"
    assert not re.search(r"#[0-9a-f]{6}|\bid=|href|url\(", ElementTree.tostring(drawing, encoding="unicode"))


def test_the_plane_joins_dp_sgd_in_order_of_epsilon_and_shows_what_the_summary_says() -> None:
    chart = plane(findings_of(study_of(demo_rows()), {}), looks(PIPELINES))
    assert chart
    names = dict(zip([one.name for _, one in chart.points], [one for one, _ in chart.points], strict=True))
    assert [name for name, _ in chart.names] == ["No defence", "Mixer", "DPSGD(8.0), ε = 8.00", "DPSGD(2.0), ε = 2.00"]
    (joined,) = [one for one in chart.lines if one.kind == "joined"]
    assert joined.places == [(names[one].x, names[one].y) for one in ("DPSGD(2.0)", "DPSGD(8.0)")]
    assert [round(names[one].x, 2) for one in ("No defence", "Mixer")] == [0.95, 0.9]
    assert names["No defence"].tip == "No defence: 95.0 %, one-step probe, 1 image: recognisable"
    whiskers = [one.places for one in chart.lines if one.kind == "whisker"]
    point = names["No defence"]
    assert [(point.x, point.low), (point.x, point.high)] in whiskers
    assert all(chart.across.low <= x <= chart.across.high for of in whiskers for x, _ in of)


def test_images_identified_are_drawn_over_three_attacked_rounds_or_more() -> None:
    rows = [one | {"round": at} for at in (1, 2, 4) for one in attack_rows(PIPELINES[1]) if one["round"] == 1]
    ((_, chart),) = over_rounds(study_of(rows), looks(PIPELINES))
    assert {one.tip for one, _ in chart.points} == {f"Mixer, round {at}: 0.0 % by {INVERSION}" for at in (1, 2, 4)}
    assert over_rounds(study_of(attack_rows(PIPELINES[1])), looks(PIPELINES)) == []


def test_a_single_round_and_a_long_run_can_be_read() -> None:
    (mark,) = curves({"": [(1, Score(0.5), "")]}, FACES, "accuracy").points
    assert mark[0].x == 1
    chart = curves({"": [(at, Score(0.5), "") for at in range(200)]}, FACES, "accuracy", {199})
    shown = [chart.across.show(one) for one in chart.across.ticks]
    assert 2 <= len(shown) <= MOST_TICKS + 1
    assert shown[-1] == "final"
    assert all(one.isdigit() for one in shown[:-1])
    assert len(chart.points) == 1


def test_each_defence_looks_different_and_the_same_everywhere() -> None:
    dp_sgd = [f"DPSGD(target_epsilon={epsilon}.0)" for epsilon in range(1, 2 * SHADES + 1)]
    texts = ["", *(f"D{i}()" for i in range(2 * COLORS)), *dp_sgd]
    found = looks(texts)
    assert looks(texts) == found
    assert len({(look.color, look.shape) for look in found.values()}) == len(texts)
    assert len({look.color for look in list(found.values())[: COLORS + 1]}) == COLORS + 1
    assert len({look.name for look in found.values()}) == len(texts)
    short = {
        "": "No defence", "Mixer(window=8)": "Mixer", DP[0]: "DPSGD(8.0)", DP[1]: "DPSGD(2.0)", "A() | B(x=1)": "A + B",
        "A()": "A",
    }  # fmt: skip
    assert short_names(list(short)) == short
    defined = set(re.findall(r"--([a-z0-9]+):", CSS))
    assert {look.shape for look in found.values()} == MARKERS.keys()
    assert {look.color.removeprefix("var(--").removesuffix(")") for look in found.values()} <= defined


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


def test_colours_can_be_read_and_told_apart_in_both_schemes() -> None:
    schemes = [palette(scheme) for scheme in ("light", "dark")]
    assert schemes[0].keys() == schemes[1].keys()
    for colors in schemes:
        marks = {name: color for name, color in colors.items() if re.fullmatch(r"none|d\d|dp\d", name)}
        assert len(marks) == 1 + COLORS + SHADES
        assert min(contrast(colors[text], colors["page"]) for text in ("ink", "soft", "alarm")) >= 4.5
        assert min(contrast(color, colors["card"]) for color in marks.values()) >= 3
        for matrix in (np.eye(3), np.array(DEUTERANOPIA), np.array(PROTANOPIA)):
            for one, other in itertools.combinations(marks.values(), 2):
                assert np.linalg.norm(lab(matrix @ linear(one)) - lab(matrix @ linear(other))) >= 19.5


def test_dots_stand_in_the_row_of_their_defence_at_their_value() -> None:
    none = DotRow("No defence", FACES[""], [(0.0, "none: 0", "circle"), (1.0, "none: 1", "circle")])
    chart = rows_of_dots([none, DotRow("A", FACES["A()"], [(0.5, "A: 0.5", "up")], (0.4, 0.7))], Axis("", 0, 1), "", "")
    low, high, below = ((chart.x(one.x), chart.y(one.y)) for one, _ in chart.points)
    assert below[0] == pytest.approx((low[0] + high[0]) / 2, abs=0.01)
    assert low[1] == high[1] < below[1] - 20
    assert [said for *_, said, _ in chart.texts] == ["No defence", "A"]
    (bar,) = [one.places for one in chart.lines if one.kind == "whisker"]
    assert bar == [(0.4, chart.points[2][0].y), (0.7, chart.points[2][0].y)]


def test_claims_and_bounds_of_epsilon_stand_on_one_axis() -> None:
    numbers = (1e-5, 0.95, 0.0, 4.0, "all parameters", 100, 100, 80, "", 18.0, 19.0)
    audits = [("A()", ShownEpsilon(8.0, *numbers, neighbours=REPLACE_ONE)), (DP[0], ShownEpsilon(math.inf, *numbers))]
    chart = epsilons(audits, FACES)
    assert [said for *_, said, _ in chart.texts] == ["A, example-level", "DPSGD(8.0)"]
    (claimed, shown, gaussian), (without, *_) = ([chart.points[at + 3 * row] for at in range(3)] for row in range(2))
    assert [chart.across.share(one.x) for one, _ in (shown, without)] == [0, 1]
    # Twice as large lies as far to the right everywhere.
    right = chart.x(claimed[0].x) - chart.x(gaussian[0].x)
    assert right == pytest.approx(chart.x(2.0) - chart.x(1.0), abs=0.02)
    shapes = [look.shape for _, look in (claimed, shown, gaussian)]
    assert [(look.shape, name) for name, look in chart.names] == [
        *zip(shapes, ("claimed", "shown at least", "if noise is Gaussian"), strict=True)
    ]
    assert gaussian[0].tip == "A: if noise is Gaussian 4.00"


def pictures(folder: Path, levels: tuple[int, ...], kind: str = "reconstruction", **fields: object) -> list[Picture]:
    found = []
    for number, level in enumerate(levels):
        file = f"{kind}-{number}-{level}-{len(list(folder.iterdir()))}.png"
        Image.fromarray(np.full((4, 4), level, np.uint8)).save(folder / file)
        values = {"attack": "A()" if kind == "reconstruction" else "", "observation": "one-step probe", **fields}
        target = ("e", "", "0", "0", str(number))
        found.append(Picture("", round=1, target=target, kind=kind, file=file, psnr=None, **values))
    return found


def test_images_of_different_messages_never_stand_in_one_strip(tmp_path: Path) -> None:
    """The first image of a client's round and that of its first probe have one number."""
    asked = [*pictures(tmp_path, (10,), "original"), *pictures(tmp_path, (11,), attack="B()")]
    title = {"observation": "training update"}
    sent = [*pictures(tmp_path, (20,), "original", **title), *pictures(tmp_path, (21,), **title)]
    found = [*grids([*asked, *sent], [""], Embedder(tmp_path)), *grids(asked, [""], Embedder(tmp_path))]
    assert [one.source for one in found] == ["training update", "one-step probe"]
    shown = [[tile.source for tile in strip.tiles if tile.uri] for one in found for strip in one.strips]
    assert shown == [["original", "A()"], ["original", "B()"]]
