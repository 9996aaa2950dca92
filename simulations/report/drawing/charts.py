"""The pieces of a chart: scales, ticks, marks and labels as inline SVG.

Colours are CSS variables (``style.py``), so that a chart follows the page into dark mode. Everything that is text is
escaped by ``tag``; coordinates have one decimal.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape

TEXT_WIDTH = 7.2
"""Width of a character of bold chart text, in user units: enough for the usual sans-serif fonts at 12 units."""


LARGEST = 1e12
"""Numbers beyond this (a diverged loss, the PSNR of an exact copy) do not stretch an axis."""

Value = str | float | None
"""An attribute of an SVG element; None is left out."""


def tag(element: str, inside: str | Iterable[str], /, **attributes: Value) -> Markup:
    """One SVG element; ``stroke_width=2`` is written ``stroke-width="2"``, ``class_`` is written ``class``."""
    inner = escape(inside) if isinstance(inside, str) else Markup("").join(inside)
    written = Markup("")
    for key, value in attributes.items():
        if value is not None:
            shown = f"{value:.1f}" if isinstance(value, float) else value
            written += Markup(' {}="{}"').format(key.rstrip("_").replace("_", "-"), shown)
    return Markup("<{0}{1}>{2}</{0}>").format(Markup(element), written, inner)


def svg(width: float, height: float, title: str, content: Iterable[str], class_: str = "chart") -> Markup:
    """A drawing that scales with its container; a ``title`` says what it shows, "" is for mere decoration."""
    box = f"0 0 {width:g} {height:g}"
    if not title:
        return tag("svg", content, class_=class_, viewBox=box, aria_hidden="true")
    return tag("svg", content, class_=class_, viewBox=box, role="img", aria_label=title)


@dataclass(frozen=True)
class Scale:
    """A linear map from [low, high] to [start, end]; what lies outside is drawn at the edge."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """The coordinate of ``value``."""
        inside = min(max(value, self.low), self.high)
        return self.start + (inside - self.low) / (self.high - self.low) * (self.end - self.start)


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Round values (1, 2 or 5 times a power of ten apart) inside [low, high], at most ``most`` of them."""
    if not high > low:
        return [low]
    exponent = math.floor(math.log10((high - low) / most))
    steps = (factor * 10.0**power for power in (exponent, exponent + 1) for factor in (1, 2, 5))
    step = next(s for s in steps if math.floor(high / s + 1e-9) - math.ceil(low / s - 1e-9) < most)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [0.0 if index == 0 else round(index * step, 12) for index in range(first, last + 1)]


def bounds(values: Iterable[float | None], pad: float = 0.08, least: float = 1.0) -> tuple[float, float]:
    """A domain that holds all values that can be drawn, with some air, never narrower than ``least``."""
    finite = [value for value in values if value is not None and abs(value) < LARGEST]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    air = max(pad * (high - low), (least - (high - low)) / 2)
    return low - air, high + air


def text(x: float, y: float, content: str, class_: str = "", anchor: str = "start", **more: Value) -> Markup:
    """Chart text; ``anchor`` is start, middle or end."""
    return tag("text", content, x=float(x), y=float(y), class_=class_ or None, text_anchor=anchor, **more)


def line(x1: float, y1: float, x2: float, y2: float, class_: str, **more: Value) -> Markup:
    """A straight line."""
    return tag("line", "", x1=float(x1), y1=float(y1), x2=float(x2), y2=float(y2), class_=class_, **more)


def path(points: Sequence[tuple[float, float]], class_: str, **more: Value) -> Markup:
    """A line through points."""
    drawn = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    return tag("path", "", d=drawn, class_=class_, **more)


_SHAPES = {
    "square": ((-1, -1), (1, -1), (1, 1), (-1, 1)),
    "diamond": ((0, -1.35), (1.35, 0), (0, 1.35), (-1.35, 0)),
    "up": ((0, -1.25), (1.2, 0.95), (-1.2, 0.95)),
    "down": ((0, 1.25), (1.2, -0.95), (-1.2, -0.95)),
    "star": tuple(
        (round(r * math.sin(i * math.pi / 5), 3), round(-r * math.cos(i * math.pi / 5), 3))
        for i, r in enumerate((1.5, 0.65) * 5)
    ),
}
MARKERS = ("circle", *_SHAPES)


def marker(
    x: float, y: float, shape: str, color: str, tip: str = "", hollow: bool = False, size: float = 4.5
) -> Markup:
    """A point with a tooltip; ``hollow`` is for scores that are not validated."""
    style = f"--c:{color}"
    class_ = "mark hollow" if hollow else "mark"
    hint = [tag("title", tip)] if tip else []
    if shape == "circle":
        return tag("circle", hint, cx=float(x), cy=float(y), r=float(size), class_=class_, style=style)
    corners = " ".join(f"{x + size * dx:.1f},{y + size * dy:.1f}" for dx, dy in _SHAPES[shape])
    return tag("polygon", hint, points=corners, class_=class_, style=style)


def spread(wanted: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """Moves label positions apart so that neighbours are at least ``gap`` apart, in order and inside [low, high].

    Positions that already fit stay where they are; too many labels for the space share it evenly.
    """
    order = sorted(range(len(wanted)), key=lambda index: wanted[index])
    gap = min(gap, (high - low) / max(len(wanted) - 1, 1))
    placed = [0.0] * len(wanted)
    floor = low
    for index in order:
        placed[index] = max(wanted[index], floor)
        floor = placed[index] + gap
    ceiling = high
    for index in reversed(order):
        placed[index] = min(placed[index], ceiling)
        ceiling = placed[index] - gap
    return placed


@dataclass(frozen=True)
class Box:
    """A rectangle that labels must not share."""

    left: float
    top: float
    right: float
    bottom: float

    def overlap(self, other: Box) -> float:
        """Shared area."""
        across = min(self.right, other.right) - max(self.left, other.left)
        down = min(self.bottom, other.bottom) - max(self.top, other.top)
        return max(across, 0.0) * max(down, 0.0)


def label_box(x: float, y: float, content: str, anchor: str) -> Box:
    """Where ``text(x, y, content, anchor=anchor)`` will lie, about."""
    width = TEXT_WIDTH * len(content)
    left = x - {"start": 0.0, "middle": width / 2, "end": width}[anchor]
    return Box(left, y - 11, left + width, y + 4)


def place_label(x: float, y: float, content: str, taken: Sequence[Box], inside: Box) -> tuple[float, float, str]:
    """The position beside a point (right, left, above, below, corners) that covers least of what is taken."""
    near = [(x + 9, y + 4, "start"), (x - 9, y + 4, "end"), (x, y - 11, "middle"), (x, y + 20, "middle")]
    near += [(x + 9, y - 9, "start"), (x + 9, y + 17, "start"), (x - 9, y - 9, "end"), (x - 9, y + 17, "end")]
    return freest(near, content, taken, inside)


def freest(
    near: Sequence[tuple[float, float, str]], content: str, taken: Sequence[Box], inside: Box
) -> tuple[float, float, str]:
    """The position (x, baseline, anchor) of a text that covers least of what is taken; the first of several."""

    def cost(spot: tuple[float, float, str]) -> float:
        box = label_box(spot[0], spot[1], content, spot[2])
        area = (box.right - box.left) * (box.bottom - box.top)
        return sum(box.overlap(other) for other in taken) + 3 * (area - box.overlap(inside))

    return min(near, key=cost)
