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

from simulations.report.drawing.canvas import Canvas, Mark, style
from simulations.report.drawing.figures import MOST_NAMED, WIDTH, Point, bounds, curves, inside, plane
from simulations.report.drawing.looks import COLORS, MARKERS, SHADES, looks
from simulations.report.drawing.picture_index import Picture, placed
from simulations.report.drawing.plots import MOST_ROWS, Dot, DotRow, rows_of_dots
from simulations.report.page.templates import read
from simulations.report.text import plain, short_names, whole_percent
from strategies.audit.kinds import kinds

CSS = read("style.css")

DP = ("DPSGD(target_epsilon=8.0)", "DPSGD(target_epsilon=2.0)")
FACES = looks(["", "A()", *DP])
numbers = st.floats(-1e6, 1e6)


def shapes(drawing: str, class_: str, tag: str = "path") -> list[ElementTree.Element]:
    of = [one for one in ElementTree.fromstring(drawing).iter() if class_ in (one.get("class") or "").split()]
    return [child for one in of for child in one.iter(tag)]


def place(mark: ElementTree.Element) -> tuple[float, float]:
    x, y = str(mark.get("transform")).removeprefix("translate(").rstrip(")").split()
    return float(x), float(y)


def corners(drawn: ElementTree.Element) -> np.ndarray:
    return np.array(re.findall(r"(-?[\d.]+) (-?[\d.]+)", str(drawn.get("d"))), dtype=float)


def box(text: ElementTree.Element) -> tuple[np.ndarray, np.ndarray]:
    from matplotlib.font_manager import FontProperties
    from matplotlib.textpath import TextPath

    drawn = TextPath((0, 0), text.text or "", size=11, prop=FontProperties(family="DejaVu Sans", weight="bold"))
    width, height = drawn.get_extents().x1, drawn.get_extents().y1
    found = re.search("text-anchor: (middle|end)", str(text.get("style")))
    left = float(text.get("x") or 0) - width * {"": 0, "middle": 0.5, "end": 1}[found[1] if found else ""]
    base = float(text.get("y") or 0)
    return np.array([left, base - height]), np.array([left + width, base])


@given(numbers | st.just(math.inf), numbers, numbers)
def test_what_lies_beyond_a_domain_is_drawn_at_its_edge(value: float, low: float, high: float) -> None:
    assume(high > low)
    assert inside(value, (low, high)) == np.clip(value, low, high)


@given(st.lists(numbers | st.none() | st.just(math.inf) | st.just(math.nan), max_size=5))
def test_bounds_hold_every_number_that_can_be_drawn(found: list[float | None]) -> None:
    low, high = bounds(found)
    assert high - low >= 1 - 1e-9
    assert all(low <= value <= high for value in found if value is not None and math.isfinite(value))


def drawn(marks: list[Mark]) -> str:
    with style():
        canvas = Canvas(200, 100)
        canvas.figure.set_layout_engine("none")
        canvas.axes.set_position((0, 0, 1, 1))
        canvas.axes.set(xlim=(0, 200), ylim=(100, 0))
        canvas.marks(marks)
        return canvas.svg("<b>& what it shows")


def test_every_marker_is_drawn_around_its_place_in_the_colours_of_the_page() -> None:
    import matplotlib

    found = {shape: drawn([Mark(50, 60, shape, "var(--d1)", "<tip> for $1$")]) for shape in MARKERS}
    for page in found.values():
        (mark,) = shapes(page, "mark")
        assert mark.findtext("title") == "<tip> for $1$"
        assert place(mark) == pytest.approx((50, 60), abs=0.01)
        around = corners(mark)
        assert np.abs(around).max() < 8
        assert around.min(0)[0] < 0 < around.max(0)[0]
        assert not re.search(r"#[0-9a-f]{6}|\bid=|href|url\(|font-family|DejaVu|<metadata|<style", page)
        assert ElementTree.fromstring(page).get("aria-label") == "<b>& what it shows"
    page = drawn([Mark(50, 60, "circle", "var(--d1)"), Mark(70, 60, "circle", "var(--d1)", hollow=True)])
    filled, hollow = (str(one.get("style")) for one in shapes(page, "mark"))
    assert "fill: var(--d1)" in filled
    assert ("fill: var(--card)" in hollow) & ("stroke: var(--d1)" in hollow)
    # A drawing does not depend on what a user set for matplotlib.
    with matplotlib.rc_context({"font.size": 30, "svg.fonttype": "path", "axes.grid": False, "axes.edgecolor": "red"}):
        assert drawn([Mark(50, 60, "star", "var(--d1)", "<tip> for $1$")]) == found["star"]


def test_the_plane_joins_dp_sgd_in_order_of_epsilon_and_puts_better_lower_right() -> None:
    eight, two = DP
    points = {"": Point(0.95, 0.9, 0.8, 1.0), eight: Point(0.88, 0.4), two: Point(0.8, 0.0, hollow=True)}
    drawing = plane(points, {eight: 7.99, two: 2.0}, FACES)
    names = [one.text for one in shapes(drawing, "name", "text")]
    assert names == ["No defence", "DPSGD(8.0), ε = 7.99", "DPSGD(2.0), ε = 2.00"]
    best, worse, lowest = (place(one) for one in shapes(drawing, "mark"))
    assert best[0] > worse[0] > lowest[0]
    assert best[1] < worse[1] < lowest[1]
    (curve,) = shapes(drawing, "curve")
    assert corners(curve) == pytest.approx(np.array([lowest, worse]), abs=0.01)
    assert len(shapes(drawing, "hollow")) == 1
    (whisker,) = shapes(drawing, "whisker")
    assert np.ptp(corners(whisker), 0) == pytest.approx((0, 0.2 / 0.4 * (lowest[1] - worse[1])), abs=0.05)
    assert "Images identified" in drawing


def test_names_hide_neither_each_other_nor_points_nor_the_note_that_counts_the_rest() -> None:
    of = ["", "A()", "B()", *DP]
    draws = np.random.default_rng(0)
    crowd = zip(of, draws.uniform(0.7, 0.72, 5), draws.uniform(0.4, 0.5, 5), strict=True)
    points = {one: Point(x, y, y - 0.2, y + 0.2, x - 0.05, x + 0.05) for one, x, y in crowd}
    drawing = plane(points, {DP[0]: 7.99, DP[1]: 2.0}, looks(of))
    assert [len(shapes(drawing, "name", "text")), *(len(shapes(drawing, x)) for x in ("entry", "mark"))] == [5] * 3
    hides_nothing(drawing)
    of = ["", *(f"Mixer(window={at}) | Pruning(share=0.{at})" for at in range(1, MOST_NAMED + 3))]
    drawing = plane({one: Point(0.5, 0.5) for one in of}, {}, looks(of))
    (note,), names = shapes(drawing, "note", "text"), shapes(drawing, "name", "text")
    assert (note.text, len(names)) == ("3 more defences: names in the tooltips and tables", MOST_NAMED)
    for (low, high), (other_low, other_high) in ((box(note), box(one)) for one in names):
        assert not ((low < other_high) & (other_low < high)).all()


def hides_nothing(drawing: str) -> None:
    boxes = [box(one) for one in shapes(drawing, "name", "text")]
    marks = [np.array(place(one)) for one in shapes(drawing, "mark")]
    for low, high in boxes:
        assert (low[0] >= 0) & (high[0] <= WIDTH)
        assert not any(((low < at + 4) & (at - 4 < high)).all() for at in marks)
    for (low, high), (other_low, other_high) in itertools.combinations(boxes, 2):
        assert not ((low < other_high) & (other_low < high)).all()


def test_curves_have_a_line_and_a_name_for_each_defence_and_can_be_read_of_one_round_or_many() -> None:
    series = {"": [Point(at, 30.0 - at) for at in (1, 3, 6)], "A()": [Point(1, 9.0, 8.0, 10.0, hollow=True)]}
    drawing = curves(series, FACES, "PSNR, dB", plain, [Point(1, 12.0), Point(6, 12.5)], (0, 40))
    assert [len(shapes(drawing, kind)) for kind in ("series", "nullline", "hollow")] == [1, 1, 1]
    assert [one.text for one in shapes(drawing, "name", "text")] == ["No defence", "A"]
    assert [one.text for one in shapes(drawing, "note", "text")] == ["best null"]
    hides_nothing(drawing)
    (line,) = shapes(curves({"": [Point(1, 30.0)]}, FACES, "PSNR, dB", plain, [Point(1, 12.0)], (0, 40)), "nullline")
    width, height = np.ptp(corners(line), 0)
    assert width > 100 > height == 0
    drawing = curves({"": [Point(at, 0.5) for at in range(200)]}, FACES, "accuracy", whole_percent, (), (0, 1))
    texts = [str(one.text) for one in ElementTree.fromstring(drawing).iter("text")]
    assert 2 <= len([text for text in texts if text.isdigit()]) <= 8
    assert not any("." in text for text in texts)
    assert len(shapes(drawing, "mark")) == 1


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


def chart(*rows: DotRow) -> str:
    return str(rows_of_dots(rows, (-5.0, 15.0), ("Share", "One mark per seed"), plain, "shares"))


def test_marks_stand_in_the_row_of_their_defence_at_their_value_and_the_first_rows_are_drawn() -> None:
    none = DotRow("No defence", FACES[""], [Dot(0.0, True, "none: 0"), Dot(10.0, True, "none: 10")])
    drawing = chart(none, DotRow("A", FACES["A()"], [Dot(5.0, False, "A: 5")], (1.0, 9.0)))
    low, high, below = map(place, shapes(drawing, "mark"))
    assert [place(one) for one in shapes(drawing, "hollow")] == [below]
    # The axis is linear: 5 lies in the middle of 0 and 10; the second row lies below the first, and its interval on its mark.
    assert below[0] == pytest.approx((low[0] + high[0]) / 2, abs=0.1)
    assert below[1] > max(low[1], high[1]) + 20
    (bar,) = map(corners, shapes(drawing, "whisker"))
    assert bar[:, 1] == pytest.approx(below[1], abs=0.1)
    assert bar[:, 0] == pytest.approx(low[0] + np.array([0.1, 0.9]) * (high[0] - low[0]), abs=0.1)
    root = ElementTree.fromstring(drawing)
    assert [one.text for one in root.iter("title")] == ["none: 0", "none: 10", "A: 5"]
    assert {"No defence", "A"} <= {one.text for one in root.iter("text")}
    many = chart(*(DotRow(f"A{at}", FACES["A()"], [Dot(5.0, True, "")]) for at in range(MOST_ROWS + 3)))
    assert len(shapes(many, "mark")) == MOST_ROWS
    assert "3 more rows not drawn" in [one.text for one in ElementTree.fromstring(many).iter("text")]


def pictures(folder: Path, levels: tuple[int, ...], kind: str = "reconstruction", **fields: object) -> list[Picture]:
    found = []
    for number, level in enumerate(levels):
        file = f"{kind}-{number}-{level}-{len(list(folder.iterdir()))}.png"
        Image.fromarray(np.full((4, 4), level, np.uint8)).save(folder / file)
        values = {"attack": "A()" if kind == "reconstruction" else "", "observation": "one-step probe", **fields}
        target = ("e", "", "0", "0", str(number))
        found.append(Picture("", round=1, target=target, kind=kind, file=file, psnr=None, **values))
    return found


def order(found: list[Picture]) -> list[str]:
    return [one.target[-1] for one in found if one.kind == "reconstruction"]


def test_a_guess_stands_beside_the_image_that_it_resembles(tmp_path: Path) -> None:
    levels, guessed = (10, 120, 230), (225, 15, 100)
    originals, guesses = pictures(tmp_path, levels, "original"), pictures(tmp_path, guessed)
    found = placed([*originals, *guesses], tmp_path)
    assert order(found) == ["2", "0", "1"]
    assert [one.file for one in found] == [one.file for one in (*originals, *guesses)]
    assert [one.target[-1] for one in found[:3]] == ["0", "1", "2"]
    # Every attack is paired by itself, and what is too much comes behind.
    second = pictures(tmp_path, (229, 60, 121, 11), attack="B()")
    assert order(placed([*originals, *pictures(tmp_path, (228,)), *second], tmp_path)) == ["2", "2", "3", "1", "0"]
    # Rows that keep their place on the wire keep it, and files that cannot be read change nothing.
    title = {"observation": next(kind.title for kind in kinds().values() if kind.paired)}
    kept = [*pictures(tmp_path, levels, "original", **title), *pictures(tmp_path, guessed, **title)]
    assert order(placed(kept, tmp_path)) == ["0", "1", "2"]
    (tmp_path / originals[1].file).write_bytes(b"no picture")
    assert order(placed([*originals, *guesses], tmp_path)) == ["0", "1", "2"]
