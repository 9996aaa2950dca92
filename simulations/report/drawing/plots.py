"""Charts of a study as values in their own units; the macro ``chart`` draws them as SVG, in the colours of the page."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

from attacks.metrics.training import TEST_ACCURACY
from simulations.report import text
from simulations.report.analysis.finding import Finding
from simulations.report.drawing.looks import Faces, Look, is_dp_sgd
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.studies.intervals import Range
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study

WIDTH, TOP, RIGHT = 350.0, 28.0, 18.0
"""Of a drawing, and the room beside its axes: a phone shows it at about this size, a large screen at up to 1.4 times of it."""
CHARACTER = 6.5
"""Width of a character of a tick's label, at most."""
Place = tuple[float, float]
"""x and y."""
LEAST_ROUNDS = 3
"""Rounds from which on a number is drawn over them: two points are no curve."""
MOST_TICKS = 8
"""Rounds that have a tick."""
MOST_MARKS = 24
"""Points of a line that have marks: more would hide the line."""
Series = dict[str, list[tuple[int, Score, str]]]
"""Defence -> round, share and by what, in order of rounds."""


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``; ``show`` is the label of a tick."""

    title: str
    low: float
    high: float
    ticks: Sequence[float] = ()
    show: Callable[[float], str] = str

    def share(self, value: float) -> float:
        """Where a value lies between the ends, in [0, 1]: what lies beyond one is drawn at it."""
        return (min(max(value, self.low), self.high) - self.low) / (self.high - self.low)


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
    """A line through places in a CSS colour; ``kind`` is its class: "series", "joined" or "whisker"."""

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
        height: Of the axes, in pixels.
    """

    spoken: str
    across: Axis
    up: Axis
    lines: Sequence[Stroke] = ()
    points: Sequence[tuple[Point, Look]] = ()
    names: Sequence[tuple[str, Look]] = ()
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


def round_values(low: float, high: float, most: int) -> list[float]:
    """Values 1, 2 or 5 times a power of ten apart from ``low`` to ``high``, about ``most``, none of them below 1e-9."""
    rough = (high - low) / most
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(times * power for times in (1, 2, 5, 10) if times * power >= 0.999 * rough)
    return [
        round(at * step, 12) + 0.0 for at in range(math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9) + 1)
    ]


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


def share_bounds(values: Iterable[float | None], pad: float = 0.08, least: float = 0.04) -> tuple[float, float]:
    """The part of [0, 1] that holds all of at least one share and ends of intervals, with some margin, not narrow without need."""
    shares = [min(max(value, 0.0), 1.0) for value in values if value is not None]
    low, high = min(shares), max(shares)
    air = max(pad * (high - low), (least - (high - low)) / 2)
    return max(low - air, 0.0), min(high + air, 1.0)
