"""The report's section on split learning: the client's cost under each defence, and recovery from the smashed data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from attacks.metrics import training
from attacks.metrics.guesses import CELLS_RIGHT, COLUMN, LABEL_ACCURACY, MSE_EMBEDDING
from attacks.metrics.metric import IMAGES
from attacks.metrics.names import Role
from attacks.metrics.registry import metric_of
from simulations.report.analysis.line import Line
from simulations.report.page.tables import cards
from simulations.report.section import Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study
from strategies.split.observations import Smashed

SHOWN = frozenset(one.name for one in training.SPLIT)
MEANS = tuple(one.name for one in (*training.CLIENT_HALF, training.BYTES_PER_SAMPLE, training.SAMPLES_PER_SECOND))
"""Costs that are shown as the mean over rounds."""
TESTED = tuple(one.name for one in (training.MCC_MICRO, training.MCC_MACRO, training.TEST_AUC, training.TEST_LOSS))
"""Metrics of the model after a round; the last two are of tables."""
FACTS = ("transmissions_used", "auxiliary_data", "client_half_update")
"""Settings of a threat card by which attacks on smashed data differ; what an upper bound was given stands beside the attack."""


@dataclass(frozen=True)
class ClientCost:
    """The client's cost of split learning under one defence, and the number of orders that a shuffle hides.

    Attributes:
        line: The defence's line of the summary: its accuracy as deployed and the round of the scores.
        scores: Metric -> score in that round, of ``TESTED``.
        means: Metric -> mean over rounds, of ``MEANS``.
        images: Images that "edge-peak-bytes" holds.
        lost: Batches that never arrived, all rounds and seeds; None where they were not counted.
        expected: Batches that should have.
        orders: For each shuffle, log10 of the orders that it leaves open and of the share that contains the target.
    """

    line: Line
    scores: Mapping[str, Score]
    means: Mapping[str, float | None]
    images: int
    lost: float | None
    expected: int
    orders: tuple[tuple[float | None, float | None], ...]


@dataclass(frozen=True)
class TableCell:
    """Result of one attack on the rows of a table.

    Attributes:
        cell: The attack.
        right: Share of (column, category) pairs that are right; ``null``: that of each column's most frequent category.
        error: Mean square error of the embeddings, None where the client half is trained; ``null_error``: of the mean embedding.
        columns: Of every column: its name, the share right, and that of its most frequent category.
    """

    cell: Cell
    right: Score
    null: float | None
    error: Score | None
    null_error: float | None
    columns: tuple[tuple[str, Score, float | None], ...]

    @classmethod
    def of(cls, cell: Cell) -> TableCell:
        """Read the scores of an attack on rows."""
        columns = [
            (key[0].removeprefix(COLUMN.name), score, cell.null(key))
            for key, score in cell.scores.items()
            if key[0].startswith(COLUMN.name)
        ]
        right, error = CELLS_RIGHT.of(), MSE_EMBEDDING.of()
        found = cell.scores[right], cell.null(right), cell.scores.get(error), cell.null(error)
        return cls(cell, *found, tuple(columns))


@dataclass(frozen=True)
class SplitLearning:
    """The section on split learning.

    Attributes:
        costs: One per defence.
        cells: Attacks that reconstruct images from smashed data.
        facts: Settings in which the cells' threat cards differ.
        scales: Of images in the scores of the paper's convention.
        tables: Attacks that read rows of a table.
    """

    costs: tuple[ClientCost, ...]
    cells: tuple[Cell, ...]
    facts: tuple[str, ...]
    scales: tuple[str, ...]
    tables: tuple[TableCell, ...] = ()


def split_learning(study: Study, lines: Sequence[Line]) -> SplitLearning | None:
    """The section, or None for a study without any number about split learning."""
    cells = tuple(cell for cell in study.cells if _on_smashed_data(cell))
    if not cells and not any(row.metric in SHOWN and row.role is Role.TRAINING for row in study.rows):
        return None
    differing = cards(cells).differing
    scales = dict.fromkeys(filter(None, (cell.fact("paper_convention") for cell in cells)))
    facts = tuple(key for key in FACTS if key in differing)
    read = tuple(
        TableCell.of(cell)
        for cell in study.cells
        if cell.observation == Smashed.title and CELLS_RIGHT.of() in cell.scores
    )
    images = tuple(cell for cell in cells if CELLS_RIGHT.of() not in cell.scores)
    return SplitLearning(tuple(_cost(study, line) for line in lines), images, facts, tuple(scales), read)


def _on_smashed_data(cell: Cell) -> bool:
    """Attacks that guess labels alone have no score of this section; one that failed belongs here like those that did not."""
    return cell.observation == Smashed.title and (
        LABEL_ACCURACY.of() not in cell.scores or any(metric_of(name).family is IMAGES for name, _ in cell.scores)
    )


def _cost(study: Study, line: Line) -> ClientCost:
    reference = "transformed" if line.protected else "original"
    series = {name: study.series(line.defense, name, reference) for name in TESTED}
    own = [row for row in study.rows if row.defense == line.defense and not row.attack]
    arrivals = [row for row in own if row.metric == "batches-lost" and row.value is not None]
    orders, shares = (
        [row.value for row in own if row.metric == name] for name in ("log10-orders", "log10-target-share")
    )
    return ClientCost(
        line=line,
        scores={name: of[line.round] for name, of in series.items() if line.round in of},
        means={name: study.over_rounds(line.defense, name) for name in MEANS},
        images=max((row.n for row in own if row.metric == "edge-peak-bytes"), default=1),
        lost=sum(row.value for row in arrivals if row.value is not None) if arrivals else None,
        expected=sum(row.n for row in arrivals),
        # Shuffles in a row have one pair each, which must not be averaged; seeds repeat the same pair.
        orders=tuple(dict.fromkeys(zip_longest(orders, shares))),
    )


ABOUT = """Clients hold the first part of the model and send the tokens of every image, the smashed data;
the server trains the rest on them."""

COSTS = """
{{ table('Costs', '') }}
{{ head(['Defence', '|#accuracy, %', '#MCC micro', '#MCC macro', '|#parameters', '#MACs per image', '#peak memory',
  '|#sent per image', '#images per second', '#batches lost', '|#orders left open', '#share with the target'],
  [('', 1), ('As deployed', 3), ('Client half', 3), ('Traffic', 3), ('Shuffles', 2)]) }}
<tbody>
{% for one in shown.costs %}{% set mean = one.means %}
<tr>{{ defended(one.line) }}
{{ score(one.line.deployed, percentage, true) }}
{{ score(one.scores.get('mcc-micro'), two) }}
{{ score(one.scores.get('mcc-macro'), two) }}
{% set macs, training, peak = mean['edge-macs'], mean['edge-training-macs'], mean['edge-peak-bytes'] %}
{{ number(mean['edge-parameters'] | amount, '', true, mean['edge-parameters']) }}
{{ number(macs | amount, 'training ' ~ (training | amount) if training != macs else '', value=macs) }}
{{ number(peak | size, count(one.images, 'image') if one.images > 1 else '', value=peak) }}
{{ number(mean['bytes-per-sample'] | size, '', true, mean['bytes-per-sample']) }}
{{ number(mean['samples-per-second'] | plain) }}
{{ number(one.lost | plain, 'of ' ~ one.expected if one.expected else '') }}
{{ number(one.orders | map('first') | map('power_of_ten') | join(', ') or nothing, '', true) }}
{{ number(one.orders | map('last') | map('power_of_ten') | join(', ') or nothing) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">MCC is Matthews' correlation of the classes: 0 is guessing, 1 is perfect. MACs
(multiply-accumulates) and memory (parameters, activations and gradients of one image, or of as many as the small print says)
are counted, not timed; images per second are wall-clock time, and depend on whatever else this machine did.
{% if shown.costs | map(attribute='orders') | select | list %}
Orders left open count the sequences in which one shuffled batch could have been sent, and the share of them in which an image keeps
its own tokens in one given order. They count what a shuffle hides, and no more: the multiset of tokens stays visible, so they bound
no attack{{ '; how far attacks get that solve the puzzle is in the next table' if shown.cells }}.
{% endif %}</p>
"""

SMASHED = """
{% if shown.cells %}
<h3>Attacks on smashed data</h3>
{{ table('Attacks on smashed data', 'tall') }}
{% set facts = shown.facts | map('replace', '_', ' ') | list %}
{% set threat = (facts + ['#card'])[0] %}
{{ head(['Defence', 'Attack', 'Status', '|#PSNR, dB', '#over null', '#SSIM', '|#paper PSNR, dB', '#paper SSIM', '#paper MSE',
  '|#identified', '#recognised', '#feature similarity', '|' ~ threat] + (facts + ['#card'])[1:],
  [('', 3), ('Against the original', 3), ("Paper's convention", 3), ('Oracle', 3), ('Threat', facts | length + 1)]) }}
<tbody>
{% for cell in shown.cells %}
{{ attacked(cell, view.adaptive, below(cell)) }}
{{ status(cell.status) }}
{{ score(cell.psnr, decibel, true) }}
{{ over_null(cell) }}
{{ score(cell.scores.get(('ssim', 'original')), two) }}
{{ score(cell.scores.get(('psnr-paper', '')), decibel, true) }}
{{ score(cell.scores.get(('ssim-paper', '')), two) }}
{{ number(cell.mean('mse-paper') | brief) }}
{{ share(cell.scores.get(('identification', '')), cell.chance_of_identification, none, true) }}
{{ recognised(cell) }}
{{ score(cell.scores.get(('feature-similarity', '')), two) }}
{% for key in shown.facts %}
<td{% if loop.first %} class="edge"{% endif %}>{{ cell.fact(key) or nothing }}</td>
{% endfor %}
{{ number(view.cards.numbers.get(cell.card, nothing), '', not shown.facts) }}
</tr>
{% endfor %}
</tbody></table></div>
<p class="soft small after">The paper's convention (Yao et al., ICDM 2022: images as they enter the network, a peak of 1
{%- for scale in shown.scales %}; here {{ scale }}{% endfor %}) is for comparison with its tables only.
 The oracle is a classifier trained on clean data. Identified is the
share of reconstructions whose nearest true image of those attacked together, to the oracle, is their own; feature similarity
is the cosine to it there. Attacks that guess labels alone are with <a href="attacks.html#attacks{{ s }}">all attacks</a>.</p>
{% endif %}
"""

TABLES = """
{% if shown.tables %}
<h3>Attacks on rows of a table</h3>
{{ table('Attacks on rows of a table', '') }}
{{ head(['Defence', 'Attack', 'Status', '|#cells right, %', '#most frequent, %', '|#MSE of embeddings', "#mean embedding's",
  '|#AUC', '#log-loss', '|#card']) }}
<tbody>
{% for one in shown.tables %}
{{ attacked(one.cell, view.adaptive, below(one.cell)) }}
{{ status(one.cell.status) }}
{{ score(one.right, percentage, true) }}
{{ number(one.null | percentage) }}
{{ score(one.error, two, true) }}
{{ number(one.null_error | two) }}
{% set cost = shown.costs | selectattr('line.defense', 'equalto', one.cell.defense) | first %}
{{ score(cost.scores.get('test-auc'), two, true) }}
{{ score(cost.scores.get('test-loss'), two) }}
{{ number(view.cards.numbers.get(one.cell.card, nothing), '', true) }}
</tr>
{% endfor %}
</tbody></table></div>
{% for one in shown.tables %}
<details><summary>{{ who(one.cell.defense) }}: columns as {{ one.cell.attack | breakable }} read them,
{{ round_name(one.cell.round, one.cell.final) }}</summary>
{{ table('Columns as they were read', '') }}
{{ head(['Column', '#share right, %', '#most frequent category, %']) }}
<tbody>
{% for name, right, null in one.columns %}
<tr><th scope="row">{{ name }}</th>{{ score(right, percentage) }}{{ number(null | percentage) }}</tr>
{% endfor %}
</tbody></table></div></details>
{% endfor %}
<p class="soft small after">A cell is right when its category is named for its own column. The baseline names every column's most
frequent category among the client's own training rows. AUC is the area under the ROC curve, of pairs within a client; log-loss is
in nats, and both are of the model as deployed.</p>
{% endif %}
"""

SECTION = Section(
    name="split",
    title="Split learning",
    about=ABOUT,
    view=split_learning,
    template=COSTS + SMASHED + TABLES,
    deployed_on=" or tokens",
    pictures_show="what entered the client half; what a defence does to its tokens does not show in it",
)
