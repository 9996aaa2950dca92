"""Charts of a study: which numbers each chart shows."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from markupsafe import Markup

from attacks.metrics.metric import IMAGES, LABELS
from attacks.metrics.training import TEST_ACCURACY
from simulations.report import text
from simulations.report.analysis.line import Line
from simulations.report.drawing.canvas import Canvas, Mark, paint, style
from simulations.report.drawing.figures import WIDTH, Domain, Point, bounds, curves, plane, share_bounds
from simulations.report.drawing.looks import Faces, Look, is_dp_sgd
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Scored
from simulations.report.studies.study import Study
from simulations.report.text import count

MOST_ROWS = 24
"""Rows that are drawn: more are not compared by eye."""


@dataclass(frozen=True)
class Dot:
    """A mark at ``x``, filled if ``full``, hollow otherwise; ``tip`` is its tooltip."""

    x: float
    full: bool
    tip: str


@dataclass(frozen=True)
class DotRow:
    """A row: its heading, the look of its marks, its dots, and an interval of their mean, if any."""

    name: str
    look: Look
    dots: Sequence[Dot]
    interval: tuple[float, float] | None = None


def rows_of_dots(
    rows: Sequence[DotRow],
    domain: Domain,
    titles: Scored,
    show: Callable[[float], str],
    spoken: str,
) -> Markup:
    """A chart with one row per defence.

    Args:
        rows: From top to bottom; ``MOST_ROWS`` are drawn.
        domain: Lower and upper end of the axis.
        titles: What the axis is, and what a mark is.
        show: Tick label of a value.
        spoken: What the chart shows, for those who hear it.
    """
    drawn = rows[:MOST_ROWS]
    with style(axes_grid=False):
        canvas = Canvas(WIDTH, 70 + 44 * len(drawn))
        canvas.axes.set(xlim=domain, ylim=(len(drawn) - 0.45, -0.75))
        canvas.titles(*titles)
        canvas.ticks(5, 2, show, show)
        canvas.axes.set_yticks([])
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
    return [Mark(dot.x, at + 0.1, row.look.shape, row.look.color, dot.tip, not dot.full, 6.5) for dot in row.dots]


LEAST_ROUNDS = 3
"""Rounds from which on a number is drawn over them: two points are no curve."""

Series = dict[str, list[Point]]
"""Defence -> points in order of rounds."""


def plane_of(lines: Sequence[Line], faces: Faces) -> Markup | None:
    """The privacy/accuracy plane of the messages with the worst verdict; None while no defence has both numbers."""
    points, spent = {}, {}
    for line in lines:
        accuracy, one = line.deployed, line.worst
        if (
            accuracy
            and accuracy.mean is not None
            and one
            and one.cell
            and (share := one.cell.scores.get(FOUND))
            and one.found
        ):
            tip = f"{faces[line.defense].name}: {text.percent(accuracy.mean)}, {one.title}: {one.verdict}"
            points[line.defense] = Point.of(accuracy.mean, share, tip, (accuracy.low, accuracy.high))
            if is_dp_sgd(line.defense) and line.epsilon is not None and math.isfinite(line.epsilon):
                spent[line.defense] = line.epsilon
    return plane(points, spent, faces) if points else None


def accuracy(study: Study, faces: Faces) -> Markup | None:
    """Test accuracy as deployed over rounds; None without any."""
    series: Series = {}
    for defense in study.pipelines:
        found = study.series(defense, TEST_ACCURACY.name, "transformed")
        found = found or study.series(defense, TEST_ACCURACY.name, "original")
        name = faces[defense].name
        points = [
            Point.of(at, score, f"{name}, round {at}: {text.percent(score.mean)}")
            for at, score in found.items()
            if score.mean is not None
        ]
        if points:
            series[defense] = points
    if not series:
        return None
    domain = share_bounds([end for of in series.values() for p in of for end in (p.y, p.low, p.high)], least=0.04)
    return curves(series, faces, "Test accuracy as deployed", text.whole_percent, (), domain, study.final_rounds)


def most_rounds(study: Study) -> int:
    """The largest number of rounds in which one attack ran on one kind of message."""
    return max((len({cell.round for cell in of}) for of in _attacks(study).values()), default=0)


def _attacks(study: Study) -> dict[Scored, list[Cell]]:
    return grouped(study.cells, lambda cell: (cell.attack, cell.observation))


def panels(study: Study, faces: Faces) -> list[tuple[str, Markup]]:
    """Caption and chart per attack and observation of ``LEAST_ROUNDS`` or more: PSNR over rounds, or label accuracy without one."""
    groups = _attacks(study)
    observations = Counter(attack for attack, _ in groups)
    images, labels = dict[str, tuple[Series, list[Point]]](), dict[str, tuple[Series, list[Point]]]()
    for (attack, observation), cells in groups.items():
        if len({cell.round for cell in cells}) < LEAST_ROUNDS:
            continue
        caption = f"{attack}, {observation}" if observations[attack] > 1 else attack
        caption += ", upper bound" if attack in study.upper_bounds else ""
        of_images = _rounds(cells, IMAGES.decides, faces, lambda value: f"{text.decibel(value)} dB")
        of_labels = _rounds(cells, LABELS.decides, faces, text.percent)
        if of_images[0]:
            images[caption] = of_images
        elif of_labels[0]:
            labels[caption] = of_labels
    every = [p for series, null in images.values() for of in (*series.values(), null) for p in of]
    domain = bounds([end for p in every for end in (p.y, p.low, p.high)], least=4.0)
    return [
        (name, curves(of, faces, title, show, null, ends, study.final_rounds))
        for title, show, ends, found in (
            ("PSNR, dB", text.plain, domain, images),
            ("Label accuracy", text.whole_percent, (0.0, 1.0), labels),
        )
        for name, (of, null) in found.items()
    ]


def _rounds(
    cells: Sequence[Cell],
    metric: Scored,
    faces: Faces,
    show: Callable[[float | None], str],
) -> tuple[Series, list[Point]]:
    """Points per defence, and the best null baseline per round; of several cells in a round the worst case counts."""
    series: dict[str, dict[int, Point]] = defaultdict(dict)
    null: dict[int, float] = {}
    for cell in cells:
        score = cell.scores.get(metric)
        if score is None or score.mean is None:
            continue
        doubt = "" if score.status == "ok" else f" ({score.status})"
        when = text.round_name(cell.round, cell.final)
        point = Point.of(cell.round, score, f"{faces[cell.defense].name}, {when}: {show(score.mean)}{doubt}")
        kept = series[cell.defense].get(cell.round)
        series[cell.defense][cell.round] = point if kept is None or point.y > kept.y else kept
        if (best := cell.null(metric)) is not None:
            null.setdefault(cell.round, best)
    lines = {defense: [points[at] for at in sorted(points)] for defense, points in series.items()}
    return lines, [Point(at, null[at]) for at in sorted(null)]
