"""What the report shows of guesses of a sensitive attribute, beside what its most frequent value would get."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.report.analysis.adversary import RETRAINED_KIND, kind
from simulations.report.analysis.line import Line
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study

ACCURACY = ("attribute-accuracy", "")


@dataclass(frozen=True)
class Inferred:
    """What one adversary read of a sensitive attribute.

    Attributes:
        cell: The attack.
        kind: "static" or "retrained": what it learned from.
        accuracy: Share of guesses that are right, with its exact interval.
        null: That of always answering the same value, whichever is right most often.
    """

    cell: Cell
    kind: str
    accuracy: Score
    null: float | None

    @property
    def reads(self) -> bool:
        """Whether it reads more than the most frequent value, with its whole interval."""
        return self.null is not None and self.accuracy.low is not None and self.accuracy.low > self.null


@dataclass(frozen=True)
class SensitiveAttribute:
    """The section.

    Attributes:
        found: One for each adversary under a defence in a round.
        retrained: How many of those under a defence were retrained.
        reading: How many of these read more than the most frequent value.
    """

    found: tuple[Inferred, ...]
    retrained: int
    reading: int


def inferred_attributes(study: Study, _: Sequence[Line]) -> SensitiveAttribute | None:
    """The section; None where nobody guessed an attribute. What is guessed at the cuts of a model is shown there."""
    found = tuple(
        Inferred(
            cell,
            kind(cell.attack),
            cell.scores[ACCURACY],
            max(cell.null_scores.get(ACCURACY, {}).values(), default=None),
        )
        for cell in study.cells
        if ACCURACY in cell.scores and not study.cut
    )
    if not found:
        return None
    under = [one for one in found if one.cell.defense and one.kind == RETRAINED_KIND and one.cell.status == "ok"]
    return SensitiveAttribute(found, len(under), sum(one.reads for one in under))
