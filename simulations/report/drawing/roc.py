"""ROC curves of membership attacks: one chart per attack, one line per defence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup

from attacks.metrics.metric import MEMBERSHIP
from simulations.report.drawing.canvas import ENTRY, Canvas, Mark, style
from simulations.report.drawing.figures import WIDTH
from simulations.report.drawing.looks import Faces, Look
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score, Scored
from simulations.report.studies.study import Study
from simulations.report.text import dagger, percent, plain, two, within
from simulations.run_folder.rows import Row

Curve = list[tuple[float, float]]
"""(false positive rate, true positive rate), both rising from 0 to 1."""

AUC = MEMBERSHIP.decides
HEIGHT = 320.0
"""Of a drawing in user units without its legend."""
LEAST_RATE = 0.001
"""Where both axes begin: lower rates are drawn at the edge."""
DECADES = (0.001, 0.01, 0.1, 1.0)
RATES = (0.01, LEAST_RATE)
"""False positive rates at which curves carry a mark, if there are so many non-members that the rate can occur."""


def read_curve(value: object) -> Curve:
    """The points of a row's ``roc`` field, sorted; none for any other content."""
    try:
        points = sorted((float(x), float(y)) for x, y in value)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        return []
    return points if all(0 <= rate <= 1 for point in points for rate in point) else []


def mean_curve(curves: Sequence[Curve]) -> Curve:
    """One curve as it is; of several seeds the mean true positive rate at every false positive rate (vertical averaging)."""
    if len(curves) == 1:
        return curves[0]
    grid = sorted({*(i / 100 for i in range(101)), *(i / 5000 for i in range(100))})
    rates = [np.interp(grid, [x for x, _ in curve], [y for _, y in curve], left=0.0) for curve in curves]
    return list(zip(grid, np.mean(rates, axis=0).tolist(), strict=True))


def rate_at(curve: Curve, false: float) -> float:
    """The highest true positive rate at no more than this rate of false positives."""
    return max((true for rate, true in curve if rate <= false), default=0.0)


def roc_charts(study: Study, faces: Faces) -> list[tuple[str, Markup]]:
    """(attack, chart) for every membership attack; each defence in the last round in which it was attacked."""
    latest: dict[Scored, dict[str, Cell]] = defaultdict(dict)
    for cell in study.cells:
        if cell.mean(*AUC) is not None:
            latest[cell.attack, cell.observation][cell.defense] = cell  # cells come in order of rounds
    drawn = []
    for (attack, _), cells in latest.items():
        known = {defense: curve for defense, cell in cells.items() if (curve := _curve(study, cell))}
        if known:
            marked = {defense: _resolved(study, cells[defense]) for defense in known}
            drawn.append((attack, _chart(known, cells, marked, faces)))
    return drawn


def _curve(study: Study, cell: Cell) -> Curve:
    curves = [curve for row in _rows(study, cell) if (curve := read_curve(row.extra.get("roc")))]
    return mean_curve(curves) if curves else []


def _rows(study: Study, cell: Cell) -> list[Row]:
    """The rows with the cell's curves."""
    place = (cell.defense, cell.attack, cell.round, AUC[0])
    return [
        r for r in study.rows if (r.defense, r.attack, r.round, r.metric) == place and r.card.lasting() == cell.card
    ]


def _resolved(study: Study, cell: Cell) -> list[float]:
    """The rates of ``RATES`` that a test on so many non-members can have: one false positive of n is a rate of 1 / n."""
    others = min((row.card.others or 0 for row in _rows(study, cell)), default=0)
    return [rate for rate in RATES if others >= 1 / rate]


def _chart(
    curves: Mapping[str, Curve],
    cells: Mapping[str, Cell],
    marked: Mapping[str, Sequence[float]],
    faces: Faces,
) -> Markup:
    with style():
        canvas = Canvas(WIDTH, HEIGHT + ENTRY * len(curves))
        canvas.axes.set(xscale="log", yscale="log", xlim=(LEAST_RATE, 1), ylim=(LEAST_RATE, 1))
        canvas.axes.minorticks_off()
        canvas.titles("False positive rate (log)", "True positive rate (log)")
        canvas.ticks(DECADES, DECADES, _rate, _rate)
        canvas.line([(LEAST_RATE, LEAST_RATE), (1, 1)], "nullline", "var(--soft)", ":", 1.5)
        for defense, curve in curves.items():
            look = faces[defense]
            canvas.line([(max(x, LEAST_RATE), max(y, LEAST_RATE)) for x, y in curve], "series", look.color)
            canvas.marks([_at(curve, rate, look, cells[defense].scores[AUC]) for rate in marked[defense]])
        canvas.legend([_entry(faces[defense], cells[defense].scores[AUC]) for defense in curves])
        return canvas.svg("True positive rate against false positive rate of a membership attack, one line per defence")


def _at(curve: Curve, rate: float, look: Look, score: Score) -> Mark:
    found = rate_at(curve, rate)
    tip = f"{look.name}: {percent(found)} of members at {percent(rate)} false positives"
    return Mark(rate, max(found, LEAST_RATE), look.shape, look.color, tip, score.status != "ok")


def _rate(value: float) -> str:
    return f"{plain(100 * value)} %"


def _entry(look: Look, score: Score) -> tuple[str, Mark]:
    ends = within(score.low, score.high, two)
    shown = f"{look.name}: AUC {two(score.mean)}" + (f" ({ends})" if ends else "") + dagger(score.status)
    return shown, Mark(0, 0, look.shape, look.color, hollow=score.status != "ok")
