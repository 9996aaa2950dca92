"""ROC curves of membership attacks: one chart per attack, one line per defence."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from attacks.metrics.metric import MEMBERSHIP
from simulations.report.drawing.chart import WIDTH, Axis, Chart, Place, Point, Stroke
from simulations.report.drawing.looks import Faces, Look
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score, Scored
from simulations.report.studies.study import Study
from simulations.report.text import dagger, percent, plain, two, within
from simulations.run_folder.rows import Row

Curve = list[Place]
"""(false positive rate, true positive rate), both rising from 0 to 1."""
AUC = MEMBERSHIP.decides
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


def roc_charts(study: Study, faces: Faces) -> list[tuple[str, Chart]]:
    """(attack, chart) for every membership attack; each defence in the last round in which it was attacked."""
    latest: dict[Scored, dict[str, Cell]] = defaultdict(dict)
    for cell in study.cells:
        if cell.mean(*AUC) is not None:
            latest[cell.attack, cell.observation][cell.defense] = cell  # cells come in order of rounds
    found = [(attack, _chart(study, list(cells.values()), faces)) for (attack, _), cells in latest.items()]
    return [(attack, chart) for attack, chart in found if chart.names]


def _chart(study: Study, cells: Sequence[Cell], faces: Faces) -> Chart:
    lines = [Stroke([(LEAST_RATE, LEAST_RATE), (1, 1)], "var(--soft)", "null")]
    points: list[tuple[Point, Look]] = []
    names = []
    for cell in cells:
        rows, look, score = _rows(study, cell), faces[cell.defense], cell.scores[AUC]
        if known := [curve for row in rows if (curve := read_curve(row.extra.get("roc")))]:
            curve = mean_curve(known)
            # One false positive of n non-members is a rate of 1 / n.
            others = min((row.card.others or 0 for row in rows), default=0)
            points += [(_at(curve, rate, look, score), look) for rate in RATES if others >= 1 / rate]
            lines.append(Stroke(curve, look.color))
            ends = within(score.low, score.high, two)
            shown = f"{look.name}: AUC {two(score.mean)}" + (f" ({ends})" if ends else "") + dagger(score.status)
            names.append((shown, look))
    across, up = (
        Axis(
            f"{which} positive rate (log)", LEAST_RATE, 1.0, DECADES, lambda value: f"{plain(100 * value)} %", log=True
        )
        for which in ("False", "True")
    )
    spoken = "True positive rate against false positive rate of a membership attack, one line per defence"
    return Chart(spoken, across, up, lines, points, names, height=WIDTH * 0.72)


def _rows(study: Study, cell: Cell) -> list[Row]:
    """The rows with the cell's curves."""
    place = (cell.defense, cell.attack, cell.round, AUC[0])
    return [
        r for r in study.rows if (r.defense, r.attack, r.round, r.metric) == place and r.card.lasting() == cell.card
    ]


def _at(curve: Curve, rate: float, look: Look, score: Score) -> Point:
    found = rate_at(curve, rate)
    tip = f"{look.name}: {percent(found)} of members at {percent(rate)} false positives"
    return Point(rate, found, hollow=score.status != "ok", tip=tip)
