"""What an active server read of answers to models of its own making, and how many clients refused these."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.report.analysis.line import Line
from simulations.report.page.tables import Cards, cards
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import exact
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row

REFUSED = "model-refused"
"""Share of the clients that refused an attack's model."""


@dataclass(frozen=True)
class Read:
    """One attack on one defence in one round.

    Attributes:
        cell: Its scores; of an attack that nobody answered a cell without any.
        refused: (k, n): k of n clients refused its model, over all seeds; None where the rows do not say.
        why: Why it has no score, or "".
    """

    cell: Cell
    refused: tuple[int, int] | None
    why: str = ""


@dataclass(frozen=True)
class ActiveServer:
    """The section.

    Attributes:
        reads: One for each attack under a defence in a round.
        cards: The threat cards.
    """

    reads: tuple[Read, ...]
    cards: Cards


def active_server(study: Study, _: Sequence[Line]) -> ActiveServer | None:
    """The section; None where the server did nothing but look."""
    groups: dict[tuple[str, str, int], list[Cell]] = {}
    for cell in study.active_cells:
        groups.setdefault((cell.defense, cell.attack, cell.round), []).append(cell)
    if not groups:
        return None
    # Whoever was refused by all has a cell of that alone; it is shown where there is no better one.
    shown = {key: max(cells, key=lambda one: (one.has_result, len(one.scores))) for key, cells in groups.items()}
    reads = tuple(Read(cell, _refused(study.active, key), _why(study.active, key)) for key, cell in shown.items())
    return ActiveServer(reads, cards([one.cell for one in reads]))


def _of(rows: Sequence[Row], key: tuple[str, str, int], metric: str) -> list[Row]:
    return [row for row in rows if (row.defense, row.attack, row.round) == key and row.metric == metric]


def _refused(rows: Sequence[Row], key: tuple[str, str, int]) -> tuple[int, int] | None:
    found = [row for row in _of(rows, key, REFUSED) if row.value is not None]
    if not found or exact(found) is None:
        return None
    return sum(round((row.value or 0.0) * row.n) for row in found), sum(row.n for row in found)


def _why(rows: Sequence[Row], key: tuple[str, str, int]) -> str:
    return "; ".join(dict.fromkeys(row.message for row in _of(rows, key, "attack") if row.message))
