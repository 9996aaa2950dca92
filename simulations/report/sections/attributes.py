"""The report's section on a sensitive attribute that was guessed from training or its evaluation."""

from __future__ import annotations

from collections.abc import Sequence

from attacks.metrics.metric import ATTRIBUTES
from simulations.report import columns
from simulations.report.analysis.finding import Finding
from simulations.report.columns import Cards, Column, Shown, Table, attack, card, number, round_of, scored
from simulations.report.section import Content, Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.study import Study
from simulations.report.text import percentage

ACCURACY = ATTRIBUTES.decides


def _held_out(cell: Cell) -> Shown:
    often = cell.mean("holdout_majority")
    below = "" if often is None else f"most frequent {percentage(often)}"
    return Shown(percentage(cell.mean("holdout_accuracy")), (below,))


def inferred_attributes(study: Study, _: Sequence[Finding]) -> Content | None:
    """A row for each adversary under a defence in a round. The section of a cut model shows its own attributes."""
    cells = [cell for cell in study.cells if ACCURACY in cell.scores and not study.cut]
    shown = (
        columns.DEFENCE,
        attack(lambda cell: (f"{round_of(cell)}, {cell.observation}",)),
        Column("Learned", lambda cell: "retrained" if cell.card.knows_defenses else "static"),
        columns.STATUS,
        scored("Accuracy, %", ACCURACY, percentage),
        number("Most frequent, %", lambda cell: percentage(cell.null(ACCURACY))),
        columns.COUNT,
        number("On its own held-out, %", _held_out),
        columns.FAILURES,
        card(Cards(study.cells)),
    )
    note = """Small print is the exact 95 % interval. † marks an adversary that reads no more than the most frequent value where
    nothing is protected, or too few guesses for a verdict."""
    return Content([Table("Sensitive attribute", shown, cells), note]) if cells else None


SECTION = Section(
    "attributes",
    "Sensitive attribute",
    inferred_attributes,
    text="""Guesses of an attribute that the task does not ask for, made from what the clients sent anyway or from one-step
    probes, and scored by its owners. The bar is to answer always with the value that is right most often. A static adversary
    learned without the defences; a retrained one as clients with these defences send, and is what a defence has to be judged
    by.""",
)
