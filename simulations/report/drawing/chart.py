"""A chart as values in its own units; the macro ``chart`` draws it as SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from simulations.report.drawing.looks import Look
from simulations.report.studies.intervals import Range
from simulations.report.studies.score import Score

WIDTH, TOP, RIGHT = 350.0, 28.0, 18.0
"""Of a drawing, and the room beside its axes: a phone shows it at about this size, a large screen at up to 1.4 times of it."""
CHARACTER = 6.5
"""Width of a character of a tick's label, at most."""
LARGEST = 1e12
"""Numbers beyond this (a diverged loss, the PSNR of an exact copy) do not stretch an axis."""
Place = tuple[float, float]
"""x and y."""


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``, which may be the smaller one; ``show`` is the label of a tick."""

    title: str
    low: float
    high: float
    ticks: Sequence[float] = ()
    show: Callable[[float], str] = str
    log: bool = False

    def share(self, value: float) -> float:
        """Where a value lies between the ends, in [0, 1]: what lies beyond one is drawn at it."""
        ends = self.low, self.high
        low, high, at = (math.log10(raw) if self.log else raw for raw in (*ends, min(max(value, min(ends)), max(ends))))
        return (at - low) / (high - low)


@dataclass(frozen=True)
class Point:
    """A mean with its 95 % interval (low, high), at a round or an accuracy that may have one, too.

    A hollow point's score is not validated; ``tip`` is its tooltip.
    """

    x: float
    y: float
    low: float | None = None
    high: float | None = None
    x_low: float | None = None
    x_high: float | None = None
    hollow: bool = False
    tip: str = ""

    @classmethod
    def of(cls, x: float, score: Score, tip: str, across: Range = (None, None)) -> Point:
        """A score that has a mean; ``across`` is the interval of ``x``."""
        assert score.mean is not None
        return cls(x, score.mean, score.low, score.high, *across, hollow=score.status != "ok", tip=tip)


@dataclass(frozen=True)
class Stroke:
    """A line through places in a CSS colour; ``kind`` is its class: "series", "joined", "null", "whisker" or "rule"."""

    places: Sequence[Place]
    color: str
    kind: str = "series"


@dataclass(frozen=True)
class Chart:
    """A chart, its parts in the order in which they cover each other.

    Attributes:
        spoken: Its text alternative.
        across: Horizontal axis.
        up: Vertical axis.
        points: Each with its look.
        names: Names of the looks, below the drawing.
        texts: (x, y, text, CSS colour), inside.
        height: Of the axes, in pixels.
    """

    spoken: str
    across: Axis
    up: Axis
    lines: Sequence[Stroke] = ()
    points: Sequence[tuple[Point, Look]] = ()
    names: Sequence[tuple[str, Look]] = ()
    texts: Sequence[tuple[float, float, str, str]] = ()
    height: float = 240.0

    @property
    def left(self) -> float:
        """Room for the labels of the vertical axis."""
        return 8 + CHARACTER * max((len(self.up.show(tick)) for tick in self.up.ticks), default=0)

    def x(self, value: float) -> float:
        """Where a value of the horizontal axis lies, in pixels."""
        return round(self.left + self.across.share(value) * (WIDTH - RIGHT - self.left), 2)

    def y(self, value: float) -> float:
        """Where a value of the vertical axis lies, in pixels from the top."""
        return round(TOP + (1 - self.up.share(value)) * self.height, 2)

    def path(self, places: Sequence[Place]) -> str:
        """A line as SVG writes it."""
        return "M" + "L".join(f"{self.x(x)} {self.y(y)}" for x, y in places)


def whiskers(points: Iterable[Point], look: Look) -> Iterator[Stroke]:
    """The intervals of points."""
    for point in points:
        if point.low is not None and point.high is not None:
            yield Stroke([(point.x, point.low), (point.x, point.high)], look.color, "whisker")
        if point.x_low is not None and point.x_high is not None:
            yield Stroke([(point.x_low, point.y), (point.x_high, point.y)], look.color, "whisker")


def bounds(values: Iterable[float | None], pad: float = 0.08, least: float = 1.0) -> tuple[float, float]:
    """A domain that holds all finite values, with some margin, never narrower than ``least``."""
    finite = [value for value in values if value is not None and abs(value) < LARGEST]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    air = max(pad * (high - low), (least - (high - low)) / 2)
    return low - air, high + air


def round_values(low: float, high: float, most: int) -> list[float]:
    """Values 1, 2 or 5 times a power of ten apart from ``low`` to ``high``, about ``most``, none of them below 1e-9."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= 0.999 * rough)
    return [
        round(at * step, 12) + 0.0 for at in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]
