"""The report's section on a sensitive attribute that was guessed from training or its evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.metrics.metric import ATTRIBUTES
from simulations.report.analysis.finding import Finding
from simulations.report.section import Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study


@dataclass(frozen=True)
class Inferred:
    """One adversary's inference of a sensitive attribute.

    Attributes:
        cell: The attack.
        null: Accuracy of always answering the same value, whichever is right most often.
    """

    cell: Cell
    null: float | None

    @property
    def kind(self) -> str:
        """The adversary's training data: "retrained" on protected messages, or "static"."""
        return "retrained" if self.cell.knows_defenses else "static"

    @property
    def accuracy(self) -> Score:
        """Share of guesses that are right, with its exact interval."""
        return self.cell.scores[ATTRIBUTES.decides]


def inferred_attributes(study: Study, _: Sequence[Finding]) -> tuple[Inferred, ...]:
    """One for each adversary under a defence in a round. The section of a cut model shows its own attributes."""
    return tuple(
        Inferred(cell, cell.null(ATTRIBUTES.decides))
        for cell in study.cells
        if ATTRIBUTES.decides in cell.scores and not study.cut
    )


SECTION = Section("attributes", "Sensitive attribute", inferred_attributes, "sections/attributes.html")
