import re
import xml.etree.ElementTree as ElementTree

import pytest

from simulations.report.drawing.dots import MOST_DOTS, MOST_ROWS, Dot, DotRow, rows_of_dots
from simulations.report.drawing.looks import looks
from simulations.report.text import plain

FACES = looks(["", "A()"])


def chart(*rows: DotRow, lines: dict[float, str] | None = None) -> ElementTree.Element:
    drawn = rows_of_dots(rows, (-5.0, 15.0), ("Gain, dB", "One mark per image"), plain, "gains", 600.0, lines)
    return ElementTree.fromstring(str(drawn))


def a_row(*dots: Dot, interval: tuple[float, float] | None = None) -> DotRow:
    return DotRow("A", FACES["A()"], list(dots), interval)


def marks(drawing: ElementTree.Element, class_: str = "mark") -> list[tuple[float, float]]:
    of = [one for one in drawing.iter() if class_ in (one.get("class") or "").split()]
    places = [str(child.get("transform")) for one in of for child in one.iter("path")]
    return [tuple(map(float, re.findall(r"[\d.]+", one))) for one in places if one.startswith("translate")]


def test_marks_stand_in_the_row_of_their_defence_at_their_value() -> None:
    none = DotRow("No defence", FACES[""], [Dot(0.0, True, "none: 0"), Dot(10.0, True, "none: 10")])
    drawing = chart(none, a_row(Dot(5.0, False, "A: 5")), lines={3.0: "--"})
    full, hollow = marks(drawing, "mark")[:2], marks(drawing, "hollow")
    assert len(hollow) == 1
    # The axis is linear: 5 lies in the middle of 0 and 10; the second row lies below the first.
    assert hollow[0][0] == pytest.approx((full[0][0] + full[1][0]) / 2, abs=0.1)
    assert hollow[0][1] > max(y for _, y in full) + 20
    assert [one.text for one in drawing.iter("title")] == ["none: 0", "none: 10", "A: 5"]
    assert {"No defence", "A"} <= {one.text for one in drawing.iter("text")}
    # Equal values do not hide each other.
    assert len({y for _, y in marks(chart(a_row(*[Dot(5.0, True, "")] * 5)))}) == 5
    # An interval lies on the marks of its row.
    drawing = chart(a_row(Dot(2.0, True, ""), Dot(8.0, True, ""), interval=(1.0, 9.0)))
    (low, y), (high, same) = marks(drawing)
    (bar,) = [child for one in drawing.iter() if one.get("class") == "whisker" for child in one.iter("path")]
    (left, height), (right, _) = re.findall(r"(-?[\d.]+) (-?[\d.]+)", str(bar.get("d")))
    assert y == same == pytest.approx(float(height), abs=0.1)
    assert float(left) < low < high < float(right)


def test_many_marks_and_rows_are_thinned_and_the_only_recovered_image_of_many_stays() -> None:
    dots = [Dot(-3.0 + at / 1000, False, "") for at in range(3 * MOST_DOTS)]
    drawing = chart(a_row(*dots, Dot(9.0, True, "recovered")))
    assert "recovered" in [one.text for one in drawing.iter("title")]
    assert len(marks(drawing)) <= MOST_DOTS
    drawing = chart(*(DotRow(f"A{at}", FACES["A()"], dots[:1]) for at in range(MOST_ROWS + 3)))
    assert len(marks(drawing)) == MOST_ROWS
    assert "3 more rows not drawn" in [one.text for one in drawing.iter("text")]
