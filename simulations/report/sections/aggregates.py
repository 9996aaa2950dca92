"""The report's section on sums of clients' updates: what attacks recover, by the number of clients behind a sum."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.report.analysis.line import Line
from simulations.report.page.tables import Cards, cards
from simulations.report.section import Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.study import Study
from strategies.federated.aggregates import WITHHELD
from strategies.federated.observations import AGGREGATE


@dataclass(frozen=True)
class SumRead:
    """One attack on sums of so many clients (1 for plain probes), and the reason of failed guesses, or ""."""

    clients: int
    cell: Cell
    why: str = ""


@dataclass(frozen=True)
class AggregatesSection:
    """The section.

    Attributes:
        reads: By defence, round and attack, then by the number of clients.
        withheld: What was said of groups whose sum stayed hidden.
        cards: The threat cards.
    """

    reads: tuple[SumRead, ...]
    withheld: tuple[str, ...]
    cards: Cards


def aggregates(study: Study, _: Sequence[Line]) -> AggregatesSection | None:
    """The section; None where no sums were attacked."""
    cells = study.aggregate_cells
    hidden = tuple(dict.fromkeys(row.message for row in study.rows if row.metric == WITHHELD))
    if not cells and not hidden:
        return None
    attacks = tuple(dict.fromkeys(cell.attack for cell in cells))
    order = {defense: place for place, defense in enumerate(study.pipelines)}
    reads = [SumRead(cell.card.clients or 1, cell, "; ".join(_reasons(study, cell))) for cell in cells]
    reads.sort(key=lambda r: (order[r.cell.defense], r.cell.round, attacks.index(r.cell.attack), r.clients))
    return AggregatesSection(tuple(reads), hidden, cards([one.cell for one in reads]))


def _reasons(study: Study, cell: Cell) -> list[str]:
    """Why an attack failed on some or all sums of a size, each reason once."""
    same = (
        row
        for row in study.aggregates
        if (row.defense, row.attack, row.round) == (cell.defense, cell.attack, cell.round)
        and row.card.clients == cell.card.clients
    )
    return list(dict.fromkeys(why for row in same for why in (row.message, *row.card.attack_failures) if why))


ABOUT = """What the same attacks read where the server sees only the sum of n clients' one-step probes, as
secure aggregation leaves it (assumed, not run: the simulated server holds the single updates and hides them from these attacks).
With n = 1 the sum is the plain probe. Nothing here counts in the headline, in the summary or in a conclusion."""

TEMPLATE = """
{% if shown.reads %}
{{ table('Sums of clients', 'tall after') }}
{{ head(['Defence', 'Attack', 'Status', '#Clients', '#PSNR, dB', '#over null', '#SSIM', '#identified', '#n', '#Failures',
  '#Card']) }}
<tbody>
{% for one in shown.reads %}
{{ attacked(one.cell, view.adaptive, below(one.cell, one.why)) }}
{{ status(one.cell.status) }}
{{ number(one.clients) }}
{{ image_scores(one.cell) }}
{{ number(shown.cards.numbers.get(one.cell.card, nothing)) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">Each client scores the guesses against its own images, matched by assignment: a guess counts for at most
one image of each client, and with n clients each image chooses among n times as many guesses. Candidates are 100 for each guess
where a client has so many images; else the chance of a null guess, given under “identified”, is higher.</p>
{% endif %}
{% for why in shown.withheld %}<p class="soft small after">{{ why }}</p>{% endfor %}
{% if shown.reads %}{{ own_cards(shown.cards, 'the sums') }}{% endif %}
"""

SECTION = Section(
    name="aggregates",
    title="Sums of clients",
    about=ABOUT,
    view=aggregates,
    template=TEMPLATE,
    metrics=(WITHHELD,),
    own_pictures={AGGREGATE.title: ()},
)
