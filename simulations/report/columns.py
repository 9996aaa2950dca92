"""Tables of the report's sections as columns, each a heading and what it shows of a row, and what sections share of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from attacks.metrics.images import ORACLE_ACCURACY, PSNR, RECOGNITION, SSIM
from attacks.metrics.metric import Metric
from simulations.report.analysis.finding import Finding
from simulations.report.studies.cell import FOUND, Cell
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Score, Scored
from simulations.report.studies.study import Study
from simulations.report.text import (
    NOTHING,
    breakable,
    dagger,
    decibel,
    percent,
    percentage,
    points,
    round_name,
    setting,
    signed,
    two,
)
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

    @property
    def says(self) -> bool:
        """Whether it shows more than a dash."""
        return self.text != NOTHING or any(self.below)


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        heading: Its name.
        show: Row -> its cell, or the text alone; None for a dash.
        kind: "defence", "attack" or "status", which the page draws from a text; else a CSS class.
        below: Small print of the heading.
        optional: The column is left out where no row has anything to show in it.
        numeric: It holds numbers.
        opens_group: A line stands before it.
    """

    heading: str
    show: Callable[[Any], object]
    kind: str = ""
    below: str = ""
    optional: bool = False
    numeric: bool = False
    opens_group: bool = False

    def of(self, row: Any) -> Shown:
        """The cell of a row."""
        cell = self.show(row)
        return cell if isinstance(cell, Shown) else Shown(NOTHING if cell is None else cell)

    @property
    def opening(self) -> Column:
        """The same column, as the first of a group."""
        return replace(self, opens_group=True)

    @property
    def marks(self) -> str:
        """CSS classes of the heading."""
        return " ".join(["edge"] * self.opens_group + ["num"] * self.numeric)

    @property
    def look(self) -> str:
        """CSS classes of the cells."""
        return " ".join(filter(None, (self.marks, self.kind)))


number = partial(Column, numeric=True)
"""A column of numbers."""


@dataclass(frozen=True)
class Table:
    """A table; the first of its ``columns`` heads the row.

    Attributes:
        groups: Headings of the groups of columns, "" for none.
        how: "h3" shows the title as a heading, "folded" folds the table below its ``summary``, or else its title.
        look: CSS classes.
        summary: What stands above a folded table.
        unfolded: A folded table begins unfolded.
    """

    title: str
    columns: Sequence[Column]
    rows: Sequence[Any]
    groups: Sequence[str] = ()
    how: str = ""
    look: str = "tall after"
    summary: str = ""
    unfolded: bool = False

    @cached_property
    def shown(self) -> list[Column]:
        """The columns, without optional ones that show nothing."""
        return [col for col in self.columns if not col.optional or any(col.of(row).says for row in self.rows)]

    @property
    def spans(self) -> list[tuple[str, int]]:
        """``groups`` with their numbers of columns."""
        opening = [at for at, column in enumerate(self.shown) if not at or column.opens_group]
        return [(name, b - a) for name, (a, b) in zip(self.groups, pairwise([*opening, len(self.shown)]), strict=False)]


def pill(word: str) -> Markup:
    """A verdict."""
    return Markup('<b class="word {}">{}</b>').format(word.replace(" ", "-"), word)


def code(text: str) -> Markup:
    """Text of a defence or an attack."""
    return Markup("<code>{}</code>").format(breakable(text))


def over_interval(score: Score | None, show: Show, ends: Show | None = None) -> Shown | None:
    """A mean over its interval; with ``ends``, which shows the interval, it has a mark where it says nothing."""
    if score is None:
        return None
    mark = dagger(score.status) if ends else ""
    return Shown(show(score.mean) + mark, (score.within(ends or show),))


def change(of: Finding) -> Shown:
    """The change in accuracy, and whether it is the defence's cost."""
    score = of.accuracy.change or Score(None)
    return Shown(points(score.mean), (score.within(points), of.accuracy.note))


def scored(heading: str, of: Scored, show: Show, ends: Show | None = None, *, optional: bool = False) -> Column:
    """A score of an attack over its interval, as ``over_interval`` shows it."""
    return number(heading, lambda cell: over_interval(cell.scores.get(of), show, ends), optional=optional)


def averaged(study: Study, heading: str, metric: Metric, show: Show) -> Column:
    """A number about the training of a row's defence, mean over rounds."""

    def read(row: Any) -> Shown:
        value = study.over_rounds(row.defense, metric.name)
        return Shown(show(value), value=value)

    return number(heading, read)


class Cards:
    """Threat cards of cells, numbered in order of appearance: settings that all ``shared``, and names of those ``differing``."""

    def __init__(self, cells: Sequence[Cell]) -> None:
        self._cells = grouped(cells, lambda cell: cell.card)
        self.numbers = {card: at for at, card in enumerate(self._cells, 1)}
        self._facts = {card: {key: setting(value) for key, value in card.to_json().items()} for card in self._cells}
        order = {key: place for place, key in enumerate(CARD_ORDER)}
        keys = sorted(
            {key for of in self._facts.values() for key in of}, key=lambda key: (order.get(key, len(order)), key)
        )
        values = {key: dict.fromkeys(of.get(key, "") for of in self._facts.values()) for key in keys}
        self.shared = {key: next(iter(texts)) for key, texts in values.items() if len(texts) == 1}
        self.differing = [key for key in keys if key not in self.shared]

    def table(self, title: str) -> Table:
        """The settings in which the cards differ, folded."""

        def attacks(card: ThreatCard) -> Markup:
            return Markup(", ").join(code(text) for text in dict.fromkeys(cell.attack for cell in self._cells[card]))

        def fact(key: str) -> Column:
            return Column(key.replace("_", " "), lambda card: self._facts[card].get(key), "text")

        shown = (number("Card", self.numbers.get), Column("Attacks", attacks, "wide"), *map(fact, self.differing))
        rows = list(self.numbers) if self.differing else []
        return Table(title, shown, rows, how="folded", look="after", summary=f"{len(rows)} cards")


def card(cards: Cards) -> Column:
    """The number of an attack's threat card."""
    return number("Card", lambda cell: cards.numbers.get(cell.card))


def attack(below: Callable[[Cell], Sequence[str]] = lambda _: ()) -> Column:
    """The attack of a cell with small print."""
    return Column("Attack", lambda cell: Shown(cell.attack, below(cell)), "attack")


def round_of(cell: Cell) -> str:
    """The attacked round in words."""
    return round_name(cell.round, cell.final)


def share(score: Score | None, **compared: float | None) -> Shown | None:
    """A share of images with its interval, its number of images, and what it is compared with, such as the chance."""
    if score is None:
        return None
    others = (f"{name} {percent(value)}" for name, value in compared.items() if value is not None)
    return Shown(percent(score.mean), (score.within(percentage), f"n = {score.n}", *others))


def recognised(cell: Cell) -> Shown | None:
    """The share of images in which the oracle sees the right class, beside chance and how good the oracle is."""
    chance, oracle = cell.card.chance_of_recognition, cell.mean(ORACLE_ACCURACY.name)
    return share(cell.scores.get(RECOGNITION.of()), chance=chance, oracle=oracle)


def _over_null(cell: Cell) -> Shown:
    null = cell.best_null
    return Shown(signed(cell.gap), (f"{null[0]} {decibel(null[1])}",) if null else ())


def _identified(cell: Cell) -> Shown | None:
    if not cell.identified:
        return None
    ends = cell.scores[FOUND].within(percentage)
    return Shown(
        " of ".join(map(str, cell.identified)), (f"{ends} %", f"chance {percent(cell.chance)}" if cell.chance else "")
    )


def _of_line(line: Finding) -> Shown:
    return Shown(line.defense, () if line.accuracy.round is None else (f"after round {line.accuracy.round}",))


DEFENCE = Column("Defence", lambda row: row.defense, "defence")
OF_LINE = Column("Defence", _of_line, "defence")
DEPLOYED = number("accuracy as deployed, %", lambda line: over_interval(line.accuracy.deployed, percentage)).opening
STATUS = Column("Status", lambda cell: cell.status, "status")
ATTACKED = (DEFENCE, attack(lambda cell: (round_of(cell),)), STATUS)
OF_PSNR = scored(f"{PSNR.label}", PSNR.of("original"), decibel)
OVER_NULL = number("over null", _over_null)
OF_SSIM = scored(f"{SSIM.label}", SSIM.of("original"), two)
IDENTIFIED = number("identified", _identified)
COUNT = number("n", lambda cell: cell.leading.n)
FAILURES = number("Failures", lambda cell: cell.leading.failures)
IMAGE_SCORES = (OF_PSNR, OVER_NULL, OF_SSIM, IDENTIFIED, COUNT, FAILURES)
