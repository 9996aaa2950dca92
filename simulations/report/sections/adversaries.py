"""The report's sections on other adversaries than the honest-but-curious server: an active one, and one that sees sums alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.metrics.costs import ATTACK, MODEL_REFUSED
from simulations.report.analysis.line import Line
from simulations.report.page.tables import Cards, cards
from simulations.report.section import Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.intervals import Count
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import exact
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row
from strategies.federated.aggregates import WITHHELD
from strategies.federated.observations import ACTIVE, AGGREGATE


@dataclass(frozen=True)
class AttackRead:
    """One attack on one defence in one round.

    Attributes:
        cell: Its scores; of an attack that no client answered a cell without any.
        why: Why it has no score, or why guesses failed; or "".
        refused: (k, n): k of n clients refused its model, over all seeds; None where the rows do not say.
    """

    cell: Cell
    why: str = ""
    refused: Count | None = None

    @property
    def clients(self) -> int:
        """Clients behind a sum; 1 for plain probes."""
        return self.cell.card.clients or 1


@dataclass(frozen=True)
class AdversarySection:
    """A section: an entry for each attack, the threat cards of all, and what was said of groups whose sum stayed hidden."""

    reads: tuple[AttackRead, ...]
    cards: Cards
    withheld: tuple[str, ...] = ()


def active_server(study: Study, _: Sequence[Line]) -> AdversarySection | None:
    """The section; None where the server only observed."""
    groups = grouped(study.active_cells, lambda cell: (cell.defense, cell.attack, cell.round)).values()
    # An attack that all clients refused has a cell of that alone; it is shown where there is no better one.
    shown = [max(cells, key=lambda one: (one.has_result, len(one.scores))) for cells in groups]
    return (
        AdversarySection(tuple(_active(cell, _rows_of(study.active, cell)) for cell in shown), cards(shown))
        if shown
        else None
    )


def _active(cell: Cell, rows: Sequence[Row]) -> AttackRead:
    refused = [row for row in rows if row.metric == MODEL_REFUSED.name and row.value is not None]
    counted = sum(round((row.value or 0.0) * row.n) for row in refused), sum(row.n for row in refused)
    why = dict.fromkeys(row.message for row in rows if row.metric == ATTACK.name and row.message)
    return AttackRead(cell, "; ".join(why), counted if exact(refused) else None)


def aggregates(study: Study, _: Sequence[Line]) -> AdversarySection | None:
    """The section, by defence, round and attack, then by the number of clients; None where no sums were attacked."""
    cells = study.aggregate_cells
    hidden = tuple(dict.fromkeys(row.message for row in study.rows if row.metric == WITHHELD))
    if not cells and not hidden:
        return None
    attacks = tuple(dict.fromkeys(cell.attack for cell in cells))
    reads = [AttackRead(cell, _failures(cell, _rows_of(study.aggregates, cell))) for cell in cells]
    order = study.pipelines.index
    reads.sort(key=lambda r: (order(r.cell.defense), r.cell.round, attacks.index(r.cell.attack), r.clients))
    return AdversarySection(tuple(reads), cards([one.cell for one in reads]), hidden)


def _failures(cell: Cell, rows: Sequence[Row]) -> str:
    """Why an attack failed on some or all sums of a size, each reason once."""
    same = (row for row in rows if row.card.clients == cell.card.clients)
    return "; ".join(dict.fromkeys(why for row in same for why in (row.message, *row.card.attack_failures) if why))


def _rows_of(rows: Sequence[Row], cell: Cell) -> list[Row]:
    place = cell.defense, cell.attack, cell.round
    return [row for row in rows if (row.defense, row.attack, row.round) == place]


SECTION = (
    Section("active", "Active server", active_server, "sections/active.html", own_pictures={ACTIVE.title: ()}),
    Section(
        "aggregates",
        "Sums of clients",
        aggregates,
        "sections/aggregates.html",
        metrics=(WITHHELD,),
        own_pictures={AGGREGATE.title: ()},
    ),
)
