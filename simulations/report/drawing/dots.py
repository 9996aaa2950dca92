"""Rows of marks over one axis: each image under a defence, or each seed of a run."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from simulations.report.drawing.canvas import Canvas, Mark, paint, style
from simulations.report.drawing.figures import WIDE, Domain
from simulations.report.drawing.looks import Look
from simulations.report.text import count

MOST_ROWS = 24
"""Rows that are drawn: more are not compared by eye."""
MOST_DOTS = 400
"""Dots of a row that are drawn; of more, evenly spaced ones in their order, so that the distribution stays."""
LANES = 5
"""Heights that the dots of a row take in turn, so that equal ones can be told apart."""


@dataclass(frozen=True)
class Dot:
    """A mark at ``x``, filled if ``full``, hollow otherwise; ``tip`` is its tooltip."""

    x: float
    full: bool
    tip: str


@dataclass(frozen=True)
class DotRow:
    """A row: its heading, the look of its marks, its dots in rising order, and an interval of their mean, if any."""

    name: str
    look: Look
    dots: Sequence[Dot]
    interval: tuple[float, float] | None = None


def rows_of_dots(
    rows: Sequence[DotRow],
    domain: Domain,
    titles: tuple[str, str],
    show: Callable[[float], str],
    spoken: str,
    width: float,
    lines: Mapping[float, str] | None = None,
) -> Markup:
    """A chart with one row per defence.

    Args:
        rows: From top to bottom; ``MOST_ROWS`` are drawn.
        domain: Lower and upper end of the axis.
        titles: What the axis is, and what a mark is.
        show: Tick label of a value.
        spoken: What the chart shows, for those who hear it.
        width: Width of the drawing.
        lines: Values with a vertical line -> matplotlib's style of it.
    """
    drawn = rows[:MOST_ROWS]
    with style(axes_grid=False):
        canvas = Canvas(width, 70 + 44 * len(drawn))
        canvas.axes.set(xlim=domain, ylim=(len(drawn) - 0.45, -0.75))
        canvas.titles(*titles)
        canvas.ticks(8 if width > WIDE else 5, 2, show, show)
        canvas.axes.set_yticks([])
        for value, dashes in (lines or {}).items():
            canvas.axes.axvline(value, color=paint("var(--soft)"), linewidth=1, linestyle=dashes)
        for at, row in enumerate(drawn):
            if at:
                canvas.axes.axhline(at - 0.7, color=paint("var(--rule)"), linewidth=1)
            canvas.name(row.name, domain[0], at - 0.42, row.look.color)
            if row.interval:
                canvas.bars([(row.interval[0], at + 0.1, row.interval[1], at + 0.1)], row.look.color, 3.0)
            canvas.marks(_marks(row, at))
        if more := len(rows) - len(drawn):
            canvas.note(f"{count(more, 'more row')} not drawn")
        return canvas.svg(spoken)


def _marks(row: DotRow, at: int) -> list[Mark]:
    lanes = 1 if row.interval else LANES
    return [
        Mark(dot.x, at + 0.1 + (0.4 * (place % lanes) / lanes - 0.16 if lanes > 1 else 0), row.look.shape, row.look.color,
             dot.tip, not dot.full, 6.5)
        for place, dot in enumerate(_thinned(row.dots))
    ]  # fmt: skip


def _thinned(dots: Sequence[Dot]) -> list[Dot]:
    """At most ``MOST_DOTS``, evenly spaced in their order; full ones stay where they are no more than half as many."""
    full = [dot for dot in dots if dot.full]
    if 2 * len(full) > MOST_DOTS:
        return list(dots[:: -(-len(dots) // MOST_DOTS)])
    hollow = [dot for dot in dots if not dot.full]
    step = max(1, -(-len(hollow) // (MOST_DOTS - len(full))))
    return sorted([*full, *hollow[::step]], key=lambda dot: dot.x)
