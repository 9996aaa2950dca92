"""The report's section on an active server: in red, and apart from the honest-but-curious server's results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from attacks.metrics.costs import MODEL_REFUSED
from simulations.report.analysis.line import Line
from simulations.report.page.tables import Cards, cards
from simulations.report.section import Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import exact
from simulations.report.studies.study import Study
from simulations.run_folder.rows import Row
from strategies.federated.observations import ACTIVE


@dataclass(frozen=True)
class ActiveRead:
    """One attack on one defence in one round.

    Attributes:
        cell: Its scores; of an attack that no client answered a cell without any.
        refused: (k, n): k of n clients refused its model, over all seeds; None where the rows do not say.
        why: Why it has no score, or "".
    """

    cell: Cell
    refused: tuple[int, int] | None
    why: str = ""


@dataclass(frozen=True)
class ActiveServerSection:
    """One entry for each attack under a defence in a round, and the threat cards of all."""

    reads: tuple[ActiveRead, ...]
    cards: Cards


def active_server(study: Study, _: Sequence[Line]) -> ActiveServerSection | None:
    """The section; None where the server only observed."""
    groups: dict[tuple[str, str, int], list[Cell]] = defaultdict(list)
    for cell in study.active_cells:
        groups[cell.defense, cell.attack, cell.round].append(cell)
    if not groups:
        return None
    # An attack that all clients refused has a cell of that alone; it is shown where there is no better one.
    shown = {key: max(cells, key=lambda one: (one.has_result, len(one.scores))) for key, cells in groups.items()}
    reads = tuple(ActiveRead(cell, _refused(study.active, key), _why(study.active, key)) for key, cell in shown.items())
    return ActiveServerSection(reads, cards([one.cell for one in reads]))


def _of(rows: Sequence[Row], key: tuple[str, str, int], metric: str) -> list[Row]:
    return [row for row in rows if (row.defense, row.attack, row.round) == key and row.metric == metric]


def _refused(rows: Sequence[Row], key: tuple[str, str, int]) -> tuple[int, int] | None:
    found = [row for row in _of(rows, key, MODEL_REFUSED.name) if row.value is not None]
    if not found or exact(found) is None:
        return None
    return sum(round((row.value or 0.0) * row.n) for row in found), sum(row.n for row in found)


def _why(rows: Sequence[Row], key: tuple[str, str, int]) -> str:
    return "; ".join(dict.fromkeys(row.message for row in _of(rows, key, "attack") if row.message))


ABOUT = """This server sent clients models of its own making in place of the agreed one, and read the answers.
It is another adversary than the honest-but-curious one of the rest of this page: nothing here counts in the headline, in the
summary or in a conclusion, and a client that checks what it is sent need not answer."""

TEMPLATE = """
<div class="banner alarm"><b>Not honest but curious.</b> Each row needs a server that deviates from the protocol.</div>
{{ table('Active server', 'tall after') }}
{{ head(['Defence', 'Attack', 'Status', '#Refused by', '#PSNR, dB', '#over null', '#SSIM', '#identified', '#n', '#Failures',
  '#Threat class', '#Card']) }}
<tbody>
{% for one in shown.reads %}{% set cell = one.cell %}
<tr{% if cell.status | dagger %} class="doubt"{% endif %}>
<td class="tight">{{ who(cell.defense) }}</td>
<td class="attack"><code class="status bad">{{ cell.attack | breakable }}</code>{{ below(cell, one.why) }}</td>
{% if cell.has_result or one.why %}{{ status(cell.status) }}{% else %}<td class="status">no answer</td>{% endif %}
{{ number(one.refused[0] ~ ' of ' ~ one.refused[1] if one.refused else nothing) }}
{{ image_scores(cell) }}
{{ number(cell.fact('threat_class') or nothing) }}
{{ number(shown.cards.numbers.get(cell.card, nothing)) }}
</tr>
{% endfor %}
</tbody></table></div>
{% if view.own_grids.active %}{{ gallery(view.own_grids.active) }}{% endif %}
{{ own_cards(shown.cards, 'the active server', true) }}
"""

SECTION = Section(
    name="active",
    title="Active server",
    about=ABOUT,
    view=active_server,
    template=TEMPLATE,
    own_pictures={ACTIVE.title: ()},
)
