"""The report's section on a sensitive attribute that was guessed from training or its evaluation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.metrics.metric import ATTRIBUTES
from simulations.report.analysis.line import Line
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


def inferred_attributes(study: Study, _: Sequence[Line]) -> tuple[Inferred, ...]:
    """One for each adversary under a defence in a round. The section of a cut model shows its own attributes."""
    return tuple(
        Inferred(cell, cell.null(ATTRIBUTES.decides))
        for cell in study.cells
        if ATTRIBUTES.decides in cell.scores and not study.cut
    )


ABOUT = """Guesses of an attribute that the task does not ask for, made from what the clients sent
anyway or from one-step probes, and scored by its owners. The bar is to answer always with the value that is right
most often. A static adversary learned without the defences; a retrained one as clients with these defences send, and is
what a defence has to be judged by."""

TEMPLATE = """
{{ table('Sensitive attribute', 'tall') }}
{{ head(['Defence', 'Attack', 'Learned', 'Status', '#Accuracy, %', '#Most frequent, %', '#n', '#On its own held-out, %',
  '#Failures', '#Card']) }}
<tbody>
{% for one in shown %}{% set cell = one.cell %}
{% set often = cell.mean('holdout_majority') %}
{{ attacked(cell, view.adaptive, below(cell, at=round_name(cell.round, cell.final) ~ ', ' ~ cell.observation)) }}
<td>{{ one.kind }}</td>
{{ status(cell.status) }}
{{ score(one.accuracy, percentage) }}
{{ number(one.null | percentage) }}
{{ number(one.accuracy.n) }}
{{ number(cell.mean('holdout_accuracy') | percentage, 'most frequent ' ~ (often | percentage) if often is not none else '') }}
{{ number(one.accuracy.failures) }}
{{ number(view.cards.numbers.get(cell.card, nothing)) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">Small print is the exact 95&nbsp;% interval. † marks an adversary that reads no more than the most
frequent value where nothing is protected, or too few guesses for a verdict.</p>
"""

SECTION = Section("attributes", "Sensitive attribute", ABOUT, inferred_attributes, TEMPLATE)
