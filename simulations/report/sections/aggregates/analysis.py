"""What attacks read of sums over clients, as a function of how many clients there are behind a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.report.analysis.line import Line
from simulations.report.page.tables import Cards, cards
from simulations.report.studies.cell import Cell
from simulations.report.studies.study import Study
from strategies.federated.aggregates import WITHHELD


@dataclass(frozen=True)
class Read:
    """One attack on sums of so many clients.

    Attributes:
        clients: Behind each sum; 1 for plain probes.
        cell: The scores.
        why: Why guesses failed, or "".
    """

    clients: int
    cell: Cell
    why: str = ""


@dataclass(frozen=True)
class Aggregates:
    """The section.

    Attributes:
        reads: By defence, round and attack, then by the number of clients.
        withheld: What was said of groups whose sum stayed hidden.
        cards: The threat cards.
    """

    reads: tuple[Read, ...]
    withheld: tuple[str, ...]
    cards: Cards


def aggregates(study: Study, _: Sequence[Line]) -> Aggregates | None:
    """The section; None where no sums were attacked."""
    cells = study.aggregate_cells
    hidden = tuple(dict.fromkeys(row.message for row in study.rows if row.metric == WITHHELD))
    if not cells and not hidden:
        return None
    attacks = tuple(dict.fromkeys(cell.attack for cell in cells))
    order = {defense: place for place, defense in enumerate(study.pipelines)}
    reads = [Read(cell.card.clients or 1, cell, "; ".join(_reasons(study, cell))) for cell in cells]
    reads.sort(key=lambda r: (order[r.cell.defense], r.cell.round, attacks.index(r.cell.attack), r.clients))
    return Aggregates(tuple(reads), hidden, cards([one.cell for one in reads]))


def _reasons(study: Study, cell: Cell) -> list[str]:
    """Why an attack failed on some or all sums of a size, each reason once."""
    same = (
        row
        for row in study.aggregates
        if (row.defense, row.attack, row.round) == (cell.defense, cell.attack, cell.round)
        and row.card.clients == cell.card.clients
    )
    return list(dict.fromkeys(why for row in same for why in (row.message, *row.card.attack_failures) if why))
