"""Tables of the report's sections as columns, each a heading and what it shows of a row, and what sections share of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from attacks.metrics.images import PSNR, SSIM
from attacks.metrics.metric import Metric
from simulations.report.analysis.finding import Finding
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Score, Scored
from simulations.report.studies.study import Study
from simulations.report.text import NOTHING, decibel, percent, percentage, round_name, setting, signed, two, within
from strategies.audit.threat_card import ThreatCard

Show = Callable[[float | None], str]
CARD_ORDER = (
    *("server", "observation", "clients", "aggregation", "images", "batch", "attacked", "tokens"),
    *("transmissions_used", "transmissions", "client_half", "client_half_update"),
    *("local_steps", "labels", "labels_known", "labels_held_by", "learning_rate", "mode", "augmentation", "momentum"),
    *("defense_strength", "in_training", "mods", "messages", "budget", "batch_norm_statistics"),
    *("auxiliary_data", "threat_class", "iterations", "restarts", "selection", "training_iterations"),
    *("knows_defenses", "randomness", "upper_bound"),
)
"""Settings of a threat card in the order in which a reader asks for them; unknown ones follow."""


@dataclass(frozen=True)
class Shown:
    """One cell of a table: a text, lines of small print (empty ones are left out), and what its column is sorted by."""

    text: object
    below: Sequence[str] = ()
    value: float | None = None


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        heading: # before it stands over numbers, | before that opens a group.
        show: Row -> its cell, or the text alone.
        kind: "defence", "attack" (of rows that are cells of a study) or "status", which the page draws; else a CSS class.
    """

    heading: str
    show: Callable[[Any], object]
    kind: str = ""

    def of(self, row: Any) -> Shown:
        """The cell of a row."""
        found = self.show(row)
        return found if isinstance(found, Shown) else Shown(found)

    @property
    def opening(self) -> Column:
        """The same column, as the first of a group."""
        return replace(self, heading=f"|{self.heading}")

    @property
    def look(self) -> str:
        """CSS classes."""
        marks = [word for mark, word in {"|": "edge", "#": "num"}.items() if mark in self.heading[:2]]
        return " ".join(filter(None, [*marks, self.kind]))


@dataclass(frozen=True)
class Table:
    """A table; the first of its ``columns`` heads the row.

    Attributes:
        groups: Headings of the groups of columns, "" for none.
        how: "h3" shows the title as a heading, "folded" folds the table below it.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    groups: Sequence[str] = ()
    how: str = ""

    @property
    def spans(self) -> list[tuple[str, int]]:
        """``groups`` with their numbers of columns."""
        opening = [at for at, one in enumerate(self.columns) if not at or one.heading.startswith("|")]
        return [
            (name, b - a) for name, (a, b) in zip(self.groups, pairwise([*opening, len(self.columns)]), strict=False)
        ]


def over_interval(score: Score | None, show: Show) -> Shown:
    """A mean over its interval."""
    return Shown(show(score.mean), (within(score.low, score.high, show),)) if score else Shown(NOTHING)


def scored(heading: str, of: Scored, show: Show) -> Column:
    """A score of an attack over its interval."""
    return Column(heading, lambda cell: over_interval(cell.scores.get(of), show))


def averaged(study: Study, heading: str, metric: Metric, show: Show) -> Column:
    """A number about the training of a row's defence, mean over rounds."""

    def read(row: Any) -> Shown:
        value = study.over_rounds(row.defense, metric.name)
        return Shown(show(value), value=value)

    return Column(heading, read)


@dataclass(frozen=True)
class Cards:
    """Threat cards: settings that all share, settings that differ, (number, attacks, texts) of each, and the number by card."""

    shared: dict[str, str]
    differing: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...], tuple[str, ...]], ...]
    numbers: dict[ThreatCard, int]


def cards(cells: Sequence[Cell]) -> Cards:
    """Numbers the threat cards in order of appearance."""
    attacks = {
        card: dict.fromkeys(cell.attack for cell in of) for card, of in grouped(cells, lambda one: one.card).items()
    }
    found = {card: {key: setting(value) for key, value in card.to_json().items()} for card in attacks}
    order = {key: place for place, key in enumerate(CARD_ORDER)}
    keys = sorted({key for card in found.values() for key in card}, key=lambda key: (order.get(key, len(order)), key))
    differ = [key for key in keys if len({card.get(key) for card in found.values()}) > 1]
    first: Mapping[str, str] = next(iter(found.values()), {})
    rows = (
        (number, tuple(attacks[card]), tuple(values.get(key, "") for key in differ))
        for number, (card, values) in enumerate(found.items(), 1)
    )
    shared = {key: first[key] for key in keys if key not in differ}
    return Cards(shared, tuple(differ), tuple(rows), {card: number for number, card in enumerate(found, 1)})


def card(cards: Cards) -> Column:
    """The number of an attack's threat card."""
    return Column("#Card", lambda cell: cards.numbers.get(cell.card, NOTHING))


def attack(below: Callable[[Cell], Sequence[str]]) -> Column:
    """The attack of a cell with small print."""
    return Column("Attack", lambda cell: Shown(cell.name, below(cell)), "attack")


def round_of(cell: Cell) -> str:
    """The attacked round in words."""
    return round_name(cell.round, cell.final)


def share(score: Score | None, **compared: float | None) -> Shown:
    """A share of images with its interval, its number of images, and what it is compared with, such as the chance."""
    if score is None:
        return Shown(NOTHING)
    others = (f"{name} {percent(value)}" for name, value in compared.items() if value is not None)
    return Shown(percent(score.mean), (within(score.low, score.high, percentage), f"n = {score.n}", *others))


def _over_null(cell: Cell) -> Shown:
    null = cell.best_null
    return Shown(signed(cell.gap), (f"{null[0]} {decibel(null[1])}",) if null else ())


def _identified(cell: Cell) -> Shown:
    if not cell.identified:
        return Shown(NOTHING)
    ends = within(cell.scores[FOUND].low, cell.scores[FOUND].high, percentage)
    return Shown(
        " of ".join(map(str, cell.identified)), (f"{ends} %", f"chance {percent(cell.chance)}" if cell.chance else "")
    )


def _of_line(line: Finding) -> Shown:
    return Shown(line.defense, () if line.accuracy.round is None else (f"after round {line.accuracy.round}",))


DEFENCE = Column("Defence", lambda row: row.defense, "defence")
OF_LINE = Column("Defence", _of_line, "defence")
DEPLOYED = Column("|#accuracy as deployed, %", lambda line: over_interval(line.accuracy.deployed, percentage))
STATUS = Column("Status", lambda cell: cell.status, "status")
ATTACKED = (DEFENCE, attack(lambda cell: (round_of(cell),)), STATUS)
OF_PSNR = scored(f"#{PSNR.label}", PSNR.of("original"), decibel)
OVER_NULL = Column("#over null", _over_null)
OF_SSIM = scored(f"#{SSIM.label}", SSIM.of("original"), two)
IDENTIFIED = Column("#identified", _identified)
COUNT = Column("#n", lambda cell: cell.leading.n)
FAILURES = Column("#Failures", lambda cell: cell.leading.failures)
IMAGE_SCORES = (OF_PSNR, OVER_NULL, OF_SSIM, IDENTIFIED, COUNT, FAILURES)
