"""Charts of a study: which numbers each chart shows."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from attacks.metrics.training import TEST_ACCURACY
from simulations.report import text
from simulations.report.analysis.finding import Finding
from simulations.report.drawing.chart import Axis, Chart, Point, Stroke, bounds, round_values, whiskers
from simulations.report.drawing.looks import Faces, Look, is_dp_sgd
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study
from strategies.federated.shown_epsilon import ShownEpsilon

LEAST_ROUNDS = 3
"""Rounds from which on a number is drawn over them: two points are no curve."""
MOST_TICKS = 8
"""Rounds that have a tick."""
MOST_MARKS = 24
"""Points of a line that have marks: more would hide the line."""
ROW = 44.0
"""Height of a row of dots."""
LEAST_EPSILON = 0.01
"""Smaller ones are drawn at the edge."""
Markers = Sequence[tuple[str, str]]
"""Each with a name."""
Series = dict[str, list[tuple[int, Score, str]]]
"""Defence -> round, share and by what, in order of rounds."""


def plane(lines: Sequence[Finding], faces: Faces) -> Chart | None:
    """Accuracy against the share of images identified in the messages with the worst verdict; None while no defence has both.

    Bottom right is better. A dashed line joins DP-SGD in order of epsilon.
    """
    points, names, spent = list[tuple[Point, Look]](), list[tuple[str, Look]](), list[tuple[float, float, float]]()
    for line in lines:
        accuracy, worst, look = line.accuracy.deployed, line.worst, faces[line.defense]
        share = worst.cell.scores.get(FOUND) if worst and worst.found else None
        if accuracy and accuracy.mean is not None and worst and share and share.mean is not None:
            tip = f"{look.name}: {text.percent(accuracy.mean)}, {worst.title}: {worst.verdict}"
            points.append((Point.of(accuracy.mean, share, tip, (accuracy.low, accuracy.high)), look))
            known = is_dp_sgd(line.defense) and line.epsilon is not None and math.isfinite(line.epsilon)
            names.append((look.name + (f", ε = {text.two(line.epsilon)}" if known else ""), look))
            spent += [(line.epsilon or 0.0, accuracy.mean, share.mean)] if known else []
    if not points:
        return None
    low, high = share_bounds([end for point, _ in points for end in (point.x, point.x_low, point.x_high)], 0.14, 0.05)
    joined = [Stroke([(x, y) for _, x, y in sorted(spent)], "var(--dp1)", "joined")] if len(spent) > 1 else []
    title = (
        "Test accuracy as deployed (higher is better →)",
        "Images identified by the strongest attack (lower is better ↓)",
    )
    return Chart(
        "Test accuracy against the share of images that the strongest attack identifies, one point per defence",
        Axis(title[0], low, high, round_values(low, high, 4), lambda value: f"{text.plain(100 * value)} %"),
        Axis(title[1], -0.08, 1.04, round_values(0, 1, 6), text.whole_percent),
        [*joined, *(line for point, look in points for line in whiskers([point], look))],
        points, names, height=290,
    )  # fmt: skip


def over_rounds(study: Study, faces: Faces) -> list[tuple[str, Chart]]:
    """Caption and chart: test accuracy, and images identified in each kind of message attacked in ``LEAST_ROUNDS``."""
    panels = [("Accuracy", "Test accuracy as deployed", _accuracy(study))]
    messages = grouped((cell for cell in study.feasible if cell.identified), lambda cell: cell.observation)
    for message, cells in messages.items():
        if len({cell.round for cell in cells}) >= LEAST_ROUNDS:
            panels.append((text.capital(message), "Images identified by the strongest attack", _identified(cells)))
    return [(caption, curves(series, faces, title, study.final_rounds)) for caption, title, series in panels if series]


def _accuracy(study: Study) -> Series:
    series: Series = {}
    for defense in study.pipelines:
        transformed = study.series(defense, TEST_ACCURACY.name, "transformed")
        tested = transformed or study.series(defense, TEST_ACCURACY.name, "original")
        if points := [(at, score, "") for at, score in tested.items() if score.mean is not None]:
            series[defense] = points
    return series


def _identified(cells: Sequence[Cell]) -> Series:
    """The attack of each defence and round that identifies most images."""
    series: Series = {}
    places = grouped(cells, lambda cell: (cell.defense, cell.round))
    for (defense, at), of in sorted(places.items(), key=lambda item: item[0][1]):
        best = max(of, key=lambda cell: cell.mean(*FOUND) or 0.0)
        series.setdefault(defense, []).append((at, best.scores[FOUND], f" by {best.attack}"))
    return series


def curves(series: Series, faces: Faces, title: str, finals: Collection[int] = ()) -> Chart:
    """Lines of shares over rounds; ``finals`` are rounds that stand for the model after the last one."""
    rounds = sorted({at for of in series.values() for at, *_ in of})
    low, high = (rounds[0], rounds[-1]) if len(rounds) > 1 else (rounds[0] - 1, rounds[0] + 1)
    domain = share_bounds([end for of in series.values() for _, one, _ in of for end in (one.mean, one.low, one.high)])
    lines, marked = list[Stroke](), list[tuple[Point, Look]]()
    for defense, of in series.items():
        look = faces[defense]
        points = [
            Point.of(at, score, f"{look.name}, {text.round_name(at, at in finals)}: {text.percent(score.mean)}{by}")
            for at, score, by in of
        ]
        lines += whiskers(points, look)
        lines += [Stroke([(point.x, point.y) for point in points], look.color)] if len(points) > 1 else []
        marked += [(mark, look) for mark in points if len(points) <= MOST_MARKS or mark.hollow or mark is points[-1]]
    return Chart(
        f"{title} over rounds, one line per defence",
        Axis("Round", low, high, _shown(rounds, finals), lambda at: "final" if at in finals else text.plain(at)),
        Axis(title, *domain, round_values(*domain, 5), text.whole_percent),
        lines,
        marked,
        [(faces[pipeline].name, faces[pipeline]) for pipeline in series],
    )


def _shown(rounds: Sequence[int], finals: Collection[int]) -> list[float]:
    """Rounds that have a tick: all while there is room, else round numbers, and always the final model."""
    low, high = rounds[0], rounds[-1]
    every = rounds if len(rounds) <= MOST_TICKS else round_values(low, high, MOST_TICKS)
    last = [at for at in rounds if at in finals]
    near = (high - low) / MOST_TICKS
    return [at for at in every if at == int(at) and at not in last and all(end - at >= near for end in last)] + last


def share_bounds(values: Sequence[float | None], pad: float = 0.08, least: float = 0.04) -> tuple[float, float]:
    """``bounds`` of shares, within [0, 1]."""
    low, high = bounds(values, pad, least)
    return max(low, 0.0), min(high, 1.0)


@dataclass(frozen=True)
class DotRow:
    """A row: its heading, its look, (value, tooltip, marker) of each dot, and an interval."""

    name: str
    look: Look
    dots: Sequence[tuple[float, str, str]]
    interval: tuple[float, float] | None = None


def rows_of_dots(rows: Sequence[DotRow], across: Axis, title: str, spoken: str, names: Markers = ()) -> Chart:
    """One row per defence, from top to bottom; ``names`` are markers with what they stand for."""
    ends = across.low, across.high
    lines: list[Stroke] = []
    for at, row in enumerate(rows):
        lines += [Stroke([(end, at - 0.7) for end in ends], "var(--rule)", "rule")] if at else []
        lines += [Stroke([(end, at + 0.1) for end in row.interval], row.look.color, "whisker")] if row.interval else []
    return Chart(
        spoken,
        across,
        Axis(title, len(rows) - 0.45, -0.75),
        lines,
        [
            (Point(x, at + 0.1, tip=tip), replace(row.look, shape=shape))
            for at, row in enumerate(rows)
            for x, tip, shape in row.dots
        ],
        [(name, Look(name, "var(--ink)", shape)) for shape, name in names],
        [(across.low, at - 0.35, row.name, row.look.color) for at, row in enumerate(rows)],
        height=ROW * len(rows),
    )


def epsilons(audits: Sequence[tuple[str, ShownEpsilon]], faces: Faces) -> Chart:
    """The claimed epsilon of each audit and both bounds shown, on one logarithmic axis."""
    named = dict(zip(("diamond", "circle", "up"), ("claimed", "shown at least", "if noise is Gaussian"), strict=True))
    rows = [
        DotRow(
            ", ".join(filter(None, (faces[defense].name, audit.level))),
            faces[defense],
            [
                (value, f"{faces[defense].name}: {named[shape]} {text.two(value)}", shape)
                for shape, value in zip(named, (audit.claimed, audit.plain, audit.gaussian), strict=True)
            ],
            (audit.plain, audit.claimed),
        )
        for defense, audit in audits
    ]
    known = [value for row in rows for value, *_ in row.dots if LEAST_EPSILON < value < math.inf] or [1.0]
    low, high = math.floor(math.log10(min(known))), math.floor(math.log10(max(known))) + 1
    across = Axis("ε (log)", 10.0**low, 10.0**high, [10.0**at for at in range(low, high + 1)], text.plain, log=True)
    spoken = "Epsilon claimed, and lower bounds shown, one row per defence"
    return rows_of_dots(rows, across, "A bound right of its claim refutes it", spoken, list(named.items()))
