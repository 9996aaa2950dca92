"""The report's charts: the privacy/accuracy plane, and curves over rounds."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from markupsafe import Markup

from simulations.report.drawing.canvas import ENTRY, Canvas, Mark, round_values, style
from simulations.report.drawing.looks import Faces, Look
from simulations.report.studies.score import Range, Score
from simulations.report.studies.stages import strengths
from simulations.report.text import count, plain, two, whole_percent

LARGEST = 1e12
"""Numbers beyond this (a diverged loss, the PSNR of an exact copy) do not stretch an axis."""


def bounds(values: Iterable[float | None], pad: float = 0.08, least: float = 1.0) -> tuple[float, float]:
    """A domain that holds all finite values, with some margin, never narrower than ``least``."""
    finite = [value for value in values if value is not None and abs(value) < LARGEST]
    low, high = (min(finite), max(finite)) if finite else (0.0, 0.0)
    air = max(pad * (high - low), (least - (high - low)) / 2)
    return low - air, high + air


def share_bounds(values: Iterable[float | None], pad: float = 0.08, least: float = 1.0) -> tuple[float, float]:
    """``bounds`` of shares, within [0, 1]."""
    low, high = bounds(values, pad, least)
    return max(low, 0.0), min(high, 1.0)


def inside(value: float, domain: tuple[float, float]) -> float:
    """``value``, or the end of the domain beyond which it lies: infinite values are drawn at the edge."""
    return min(max(value, domain[0]), domain[1])


WIDTH = 350.0
"""Of a drawing: a phone shows it at about its own size, and a large screen at up to 1.4 times this size (``.panel``)."""
MOST_TICKS = 8
"""Rounds that have a tick."""
MOST_NAMED = 16
"""Points of the plane, or lines of curves, that the legend names. The others are named in their tooltips and in the tables."""
Domain = tuple[float, float]
"""Lower and upper end of an axis."""


@dataclass(frozen=True)
class Point:
    """A mean with its 95 % interval (low, high), at a round or an accuracy that may have one, too.

    Infinite means are drawn at the edge. A hollow point's score is not validated; ``tip`` is its tooltip.
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


def plane(points: Mapping[str, Point], spent: Mapping[str, float], faces: Faces) -> Markup:
    """Accuracy against the share of images that the strongest attack identifies; bottom right is better.

    Args:
        points: Defence -> (accuracy in [0, 1], share of identified images in [0, 1]).
        spent: DP-SGD defence -> epsilon; these points are joined in order of epsilon. So are others that differ in one number.
        faces: Defence -> look.
    """
    with style():
        canvas = Canvas(WIDTH, 350 + _legend_height(len(points)))
        across = share_bounds([end for p in points.values() for end in (p.x, p.x_low, p.x_high)], 0.14, 0.05)
        up = -0.08, 1.04
        canvas.axes.set(xlim=across, ylim=up)
        canvas.titles(
            "Test accuracy as deployed (higher is better →)",
            "Images identified by the strongest attack (lower is better ↓)",
        )
        canvas.ticks(4, 6, lambda value: f"{plain(100 * value)} %", whole_percent)
        by_budget = tuple(sorted(spent, key=lambda one: spent[one]))
        for along in [by_budget] * (len(spent) > 1) + [
            of for of in strengths(list(points)) if not spent.keys() & set(of)
        ]:
            places = [(points[one].x, inside(points[one].y, up)) for one in along]
            color = "var(--dp1)" if along is by_budget else faces[along[0]].color
            canvas.line(places, "curve", color, "--", 1.5)
        for one, point in points.items():
            canvas.bars(_intervals(point, up), faces[one].color)
            canvas.marks([_mark(point, faces[one], up, 10)])
        names = {one: faces[one].name + (f", ε = {two(spent[one])}" if one in spent else "") for one in points}
        _legend(canvas, [(name, faces[one]) for one, name in names.items()])
        return canvas.svg(
            "Test accuracy against the share of images that the strongest attack identifies, one point per defence"
        )


def _intervals(point: Point, up: Domain) -> Iterator[tuple[float, float, float, float]]:
    if point.low is not None and point.high is not None:
        yield point.x, inside(point.low, up), point.x, inside(point.high, up)
    if point.x_low is not None and point.x_high is not None:
        yield point.x_low, inside(point.y, up), point.x_high, inside(point.y, up)


def curves(
    series: Mapping[str, Sequence[Point]],
    faces: Faces,
    y_title: str,
    show_y: Callable[[float], str],
    null: Sequence[Point],
    domain: Domain,
    finals: Collection[int] = (),
) -> Markup:
    """Lines over rounds, named by a legend.

    Args:
        series: Defence -> points, x is the round.
        faces: Defence -> look.
        y_title: What y is.
        show_y: Tick label of a y value.
        null: The best null baseline over rounds, dotted; may be empty.
        domain: Lower and upper end of y, so that several charts can share one axis.
        finals: Values of x that stand for the model after the last round.
    """
    with style():
        canvas = Canvas(WIDTH, 250 + _legend_height(len(series)))
        rounds = sorted({p.x for of in (*series.values(), null) for p in of})
        low, high = (rounds[0], rounds[-1]) if len(rounds) > 1 else (rounds[0] - 1, rounds[0] + 1)
        canvas.axes.set(xlim=(low, high), ylim=domain)
        canvas.titles("Round", y_title)
        canvas.ticks(_shown(rounds, finals), 5, lambda value: "final" if value in finals else plain(value), show_y)
        if null:
            # Of a single round it is a line across: a path of one point cannot be seen.
            ends = [replace(null[0], x=low), replace(null[0], x=high)] if len(null) == 1 else null
            canvas.line([(p.x, inside(p.y, domain)) for p in ends], "nullline", "var(--soft)", ":", 1.5)
        for one, of in series.items():
            _line(canvas, of, faces[one], domain)
        _legend(canvas, [(faces[one].name, faces[one]) for one in series])
        if null:
            canvas.name("best null", high, inside(null[-1].y, domain), ha="right", va="bottom")
        return canvas.svg(f"{y_title} over rounds, one line per defence")


def _shown(rounds: Sequence[float], finals: Collection[int]) -> list[float]:
    """Values of x that have a tick: all while there is room, else whole rounds, and always the final model."""
    low, high = rounds[0], rounds[-1]
    every = rounds if len(rounds) <= MOST_TICKS else round_values(MOST_TICKS).tick_values(low, high)
    shown = [value for value in every if low <= value <= high and (value in rounds or value == int(value))]
    last = [value for value in rounds if value in finals]
    near = (high - low) / MOST_TICKS
    return [value for value in shown if value not in last and all(end - value >= near for end in last)] + last


def _line(canvas: Canvas, points: Sequence[Point], look: Look, domain: Domain) -> None:
    canvas.bars((ends for point in points for ends in _intervals(point, domain)), look.color)
    if len(points) > 1:
        canvas.line([(point.x, inside(point.y, domain)) for point in points], "series", look.color)
    # In a long run marks on every round would hide the line.
    shown = [p for p in points if len(points) <= 24 or p.hollow or p is points[-1]]
    canvas.marks([_mark(point, look, domain, 6.5) for point in shown])


def _mark(point: Point, look: Look, domain: Domain, size: float) -> Mark:
    return Mark(point.x, inside(point.y, domain), look.shape, look.color, point.tip, point.hollow, size)


def _legend(canvas: Canvas, entries: Sequence[tuple[str, Look]]) -> None:
    named, more = entries[:MOST_NAMED], len(entries) - MOST_NAMED
    note = f"{count(more, 'more defence')}: names in the tooltips and tables" if more > 0 else ""
    canvas.legend([(name, Mark(0, 0, look.shape, look.color)) for name, look in named], note)


def _legend_height(entries: int) -> float:
    return ENTRY * min(entries, MOST_NAMED + 1)
