"""Charts of a study: which numbers each chart shows."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType

from markupsafe import Markup

from attacks.metrics.metric import IMAGES, LABELS
from attacks.metrics.training import EPSILON, TEST_ACCURACY
from simulations.report import text
from simulations.report.analysis.line import Line
from simulations.report.drawing.domains import bounds, share_bounds
from simulations.report.drawing.dots import Dot, DotRow, rows_of_dots
from simulations.report.drawing.figures import Point, curves, plane, strip
from simulations.report.drawing.looks import Look, is_dp_sgd
from simulations.report.studies.cell import Cell
from simulations.report.studies.recovery import LEAST_GAIN
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study

BROAD, NARROW = 1120.0, 350.0
"""Drawing widths for large and small screens: text keeps its size, so small screens need their own drawing."""

MOST_STRIPS = 24
"""Defences whose headline has a strip: of more each would cost a tenth of a second, and they cannot be compared by eye."""

LEAST_ROUNDS = 3
"""Rounds from which on a number is drawn over them: two points are no curve."""

Series = dict[str, list[Point]]
"""Defence -> points in order of rounds."""


def strips(lines: Sequence[Line], faces: Mapping[str, Look]) -> dict[str, Markup]:
    """Defence -> the strip beside its headline; all share the axis from 0 to 100 %."""
    drawn = {}
    for line in lines[:MOST_STRIPS]:
        cell = line.strongest
        if cell and cell.share:
            point = _point(0, cell.share, recovered_by(cell, faces[line.defense].name))
            drawn[line.defense] = strip(point, cell.chance_of_retrieval, faces[line.defense])
    return drawn


def planes(lines: Sequence[Line], faces: Mapping[str, Look]) -> list[tuple[str, Markup]]:
    """The privacy/accuracy plane for large and small screens; empty while no defence has both numbers."""
    points, spent = {}, {}
    for line in lines:
        accuracy, cell = line.deployed, line.strongest
        if accuracy and accuracy.mean is not None and cell and cell.share:
            tip = recovered_by(cell, f"{faces[line.defense].name}: {text.percent(accuracy.mean)}")
            points[line.defense] = _point(accuracy.mean, cell.share, tip, (accuracy.low, accuracy.high))
            if is_dp_sgd(line.defense) and line.epsilon is not None and math.isfinite(line.epsilon):
                spent[line.defense] = line.epsilon
    if not points:
        return []
    return [(name, plane(points, spent, faces, width)) for name, width in (("broad", BROAD), ("narrow", NARROW))]


def recovered_by(cell: Cell, before: str) -> str:
    """The label of a point: the count of recovered images, and the attack."""
    recovered, n = cell.recovered or (0, 0)
    return f"{before}, {recovered} of {n} recovered by {cell.attack}, {text.round_name(cell.round, cell.final)}"


def accuracy(study: Study, faces: Mapping[str, Look]) -> list[tuple[str, Markup]]:
    """Test accuracy as deployed over rounds, for large and small screens."""
    series: Series = {}
    for defense in study.pipelines:
        found = study.series(defense, TEST_ACCURACY.name, "transformed")
        found = found or study.series(defense, TEST_ACCURACY.name, "original")
        name = faces[defense].name
        points = [
            _point(at, score, f"{name}, round {at}: {text.percent(score.mean)}")
            for at, score in found.items()
            if score.mean is not None
        ]
        if points:
            series[defense] = points
    if not series:
        return []
    domain = share_bounds([end for of in series.values() for p in of for end in (p.y, p.low, p.high)], least=0.04)
    title = "Test accuracy as deployed"
    return [
        (name, curves(series, faces, width, title, text.whole_percent, (), domain, study.final_rounds))
        for name, width in (("broad", BROAD), ("narrow", NARROW))
    ]


def spent(study: Study) -> dict[str, dict[int, Score]]:
    """Defence -> round -> epsilon, where it has a finite bound in ``LEAST_ROUNDS`` rounds or more."""
    found: dict[str, dict[int, Score]] = {}
    for defense in study.pipelines:
        series = study.series(defense, EPSILON.name)
        known = {at: one for at, one in series.items() if one.mean is not None and math.isfinite(one.mean)}
        if len(known) >= LEAST_ROUNDS and max(series) in known:
            found[defense] = known
    return found


def epsilon(
    of: Mapping[str, Mapping[int, Score]], faces: Mapping[str, Look], levels: Mapping[str, str] = MappingProxyType({})
) -> list[tuple[str, Markup]]:
    """Epsilon over rounds, for large and small screens; points name what it protects (defence -> a word of ``level_of``)."""
    series = {
        defense: [
            _point(
                at, score, f"{faces[defense].name}, round {at}: {_epsilon_of(defense, levels)} = {text.two(score.mean)}"
            )
            for at, score in scores.items()
        ]
        for defense, scores in of.items()
    }
    low, high = bounds([0.0, *(point.y for points in series.values() for point in points)])
    found = " and ".join(sorted({levels[defense] for defense in of if levels.get(defense)}))
    title = f"ε spent by training ({found})" if found else "ε spent by training"
    return [
        (name, curves(series, faces, width, title, text.plain, (), (max(low, 0.0), high)))
        for name, width in (("broad", BROAD), ("narrow", NARROW))
        if series
    ]


def _epsilon_of(defense: str, levels: Mapping[str, str]) -> str:
    return f"{levels[defense]} ε" if levels.get(defense) else "ε"


def gains(lines: Sequence[Line], faces: Mapping[str, Look]) -> list[tuple[str, Markup]]:
    """The gain of each image under the strongest attacks, filled where recovered; for large and small screens."""
    rows = []
    for line in lines:
        look, (recovered, others) = faces[line.defense], (line.strongest and line.strongest.gains) or ((), ())
        dots = [_gain_dot(gain, True, look) for gain in recovered] + [_gain_dot(gain, False, look) for gain in others]
        if dots:
            rows.append(DotRow(look.name, look, sorted(dots, key=lambda dot: dot.x)))
    domain = bounds([0.0, LEAST_GAIN, *(dot.x for row in rows for dot in row.dots)], least=6.0)
    titles = "Gain over the image's own null baseline, dB", "One mark per image, full where it was recovered"
    spoken = "Gain of each image under the strongest attack on each defence, one row per defence"
    lines_at = {0.0: ":", LEAST_GAIN: "--"}
    return [
        (name, rows_of_dots(rows, domain, titles, text.plain, spoken, width, lines_at))
        for name, width in (("broad", BROAD), ("narrow", NARROW))
        if rows
    ]


def _gain_dot(gain: float, recovered: bool, look: Look) -> Dot:
    return Dot(gain, recovered, f"{look.name}: {text.signed(gain)} dB, {'' if recovered else 'not '}recovered")


def most_rounds(study: Study) -> int:
    """The largest number of rounds in which one attack ran on one kind of message."""
    rounds: dict[tuple[str, str], set[int]] = defaultdict(set)
    for cell in study.cells:
        rounds[cell.attack, cell.observation].add(cell.round)
    return max(map(len, rounds.values()), default=0)


def panels(study: Study, faces: Mapping[str, Look]) -> list[tuple[str, Markup]]:
    """One chart per attack and observation of ``LEAST_ROUNDS`` or more: PSNR over rounds, or label accuracy without one."""
    groups: dict[tuple[str, str], list[Cell]] = defaultdict(list)
    for cell in study.cells:
        groups[cell.attack, cell.observation].append(cell)
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
    drawn = [
        (name, curves(of, faces, NARROW, "PSNR, dB", text.plain, null, domain, study.final_rounds))
        for name, (of, null) in images.items()
    ]
    return drawn + [
        (name, curves(of, faces, NARROW, "Label accuracy", text.whole_percent, null, (0.0, 1.0), study.final_rounds))
        for name, (of, null) in labels.items()
    ]


def _rounds(
    cells: Sequence[Cell],
    metric: tuple[str, str],
    faces: Mapping[str, Look],
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
        point = _point(cell.round, score, f"{faces[cell.defense].name}, {when}: {show(score.mean)}{doubt}")
        kept = series[cell.defense].get(cell.round)
        series[cell.defense][cell.round] = point if kept is None or point.y > kept.y else kept
        if baselines := cell.null_scores.get(metric):
            null.setdefault(cell.round, max(baselines.values()))
    lines = {defense: [points[at] for at in sorted(points)] for defense, points in series.items()}
    return lines, [Point(at, null[at]) for at in sorted(null)]


def _point(x: float, score: Score, tip: str, across: tuple[float | None, float | None] = (None, None)) -> Point:
    assert score.mean is not None
    return Point(x, score.mean, score.low, score.high, *across, hollow=score.status != "ok", tip=tip)
