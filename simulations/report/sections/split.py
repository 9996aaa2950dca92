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
from simulations.report.analysis.finding import Finding
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
        line: What the study shows of the defence: its accuracy as deployed and the round of the scores.
        scores: Metric -> score in that round, of ``TESTED``.
        means: Metric -> mean over rounds, of ``MEANS``.
        images: Images that "edge-peak-bytes" holds.
        lost: Batches that never arrived, all rounds and seeds; None where they were not counted.
        expected: Batches that should have.
        orders: For each shuffle, log10 of the orders that it leaves open and of the share that contains the target.
    """

    line: Finding
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


def split_learning(study: Study, lines: Sequence[Finding]) -> SplitLearning | None:
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


def _cost(study: Study, line: Finding) -> ClientCost:
    reference = "transformed" if line.accuracy.protected else "original"
    series = {name: study.series(line.defense, name, reference) for name in TESTED}
    at = line.accuracy.round
    own = [row for row in study.rows if row.defense == line.defense and not row.attack]
    arrivals = [row for row in own if row.metric == "batches-lost" and row.value is not None]
    orders, shares = (
        [row.value for row in own if row.metric == name] for name in ("log10-orders", "log10-target-share")
    )
    return ClientCost(
        line=line,
        scores={name: of[at] for name, of in series.items() if at in of},
        means={name: study.over_rounds(line.defense, name) for name in MEANS},
        images=max((row.n for row in own if row.metric == "edge-peak-bytes"), default=1),
        lost=sum(row.value for row in arrivals if row.value is not None) if arrivals else None,
        expected=sum(row.n for row in arrivals),
        # Shuffles in a row have one pair each, which must not be averaged; seeds repeat the same pair.
        orders=tuple(dict.fromkeys(zip_longest(orders, shares))),
    )


SECTION = Section(
    name="split",
    title="Split learning",
    view=split_learning,
    template="sections/split.html",
    deployed_on=" or tokens",
    pictures_show="what entered the client half; what a defence does to its tokens does not show in it",
)
