"""What the report shows of split learning: the client's costs under each defence, and the attacks on what it sends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import zip_longest

from attacks.metrics.guesses import CELLS_RIGHT, COLUMN, LABEL_ACCURACY, MSE_EMBEDDING
from attacks.metrics.metric import IMAGES
from attacks.metrics.names import Role
from attacks.metrics.registry import metric_of
from attacks.metrics.training import SPLIT
from simulations.report.analysis.line import Line
from simulations.report.page.tables import cards
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score
from simulations.report.studies.study import Study

OBSERVATION = "smashed data"
FACTS = ("transmissions_used", "auxiliary_data", "client_half_update")
"""Settings of a threat card by which attacks on smashed data differ; what an upper bound was given stands beside the attack."""


@dataclass(frozen=True)
class Cost:
    """What split learning costs a client under one defence, and what a shuffle hides.

    Attributes:
        line: The defence's line of the summary: its accuracy as deployed and the round of the scores.
        mcc_micro: Matthews' correlation in that round, of the same test images as the accuracy.
        mcc_macro: The same as the mean over classes.
        auc: Area under the ROC curve in that round, of tables.
        log_loss: Cross-entropy in that round, of tables.
        parameters: Of the client half.
        macs: Multiply-accumulates of one image through the client half.
        training_macs: The same with the backward pass, where the half is trained.
        peak_bytes: Most memory at once, with the parameters.
        images: Images that ``peak_bytes`` holds.
        bytes_per_sample: Bytes of the tokens of one image.
        samples_per_second: Images trained on per second of wall-clock time, mean over rounds.
        lost: Batches that never arrived, all rounds and seeds; None where nobody counted.
        expected: Batches that should have.
        orders: For each shuffle, log10 of the orders that it leaves open and of the share that contains the target.
    """

    line: Line
    mcc_micro: Score | None
    mcc_macro: Score | None
    auc: Score | None
    log_loss: Score | None
    parameters: float | None
    macs: float | None
    training_macs: float | None
    peak_bytes: float | None
    images: int
    bytes_per_sample: float | None
    samples_per_second: float | None
    lost: float | None
    expected: int
    orders: tuple[tuple[float | None, float | None], ...]


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

    costs: tuple[Cost, ...]
    cells: tuple[Cell, ...]
    facts: tuple[str, ...]
    scales: tuple[str, ...]
    tables: tuple[TableCell, ...] = ()


@dataclass(frozen=True)
class TableCell:
    """What one attack read of the rows of a table.

    Attributes:
        cell: The attack.
        right: Share of (column, category) pairs that are right.
        null: That of each column's most frequent category.
        error: Mean square error of the embeddings; None where the client half is trained.
        null_error: That of the mean embedding.
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
        """Reads the scores of an attack on rows."""

        def null(metric: str) -> float | None:
            return next(iter(cell.null_scores.get((metric, ""), {}).values()), None)

        columns = [
            (metric.removeprefix(COLUMN.name), score, null(metric))
            for (metric, _), score in cell.scores.items()
            if metric.startswith(COLUMN.name)
        ]
        error = cell.scores.get(MSE_EMBEDDING.of())
        return cls(
            cell, cell.scores[CELLS_RIGHT.of()], null(CELLS_RIGHT.name), error, null(MSE_EMBEDDING.name), tuple(columns)
        )


SHOWN = frozenset(one.name for one in SPLIT)


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
        if cell.observation == OBSERVATION and CELLS_RIGHT.of() in cell.scores
    )
    images = tuple(cell for cell in cells if CELLS_RIGHT.of() not in cell.scores)
    return SplitLearning(tuple(_cost(study, line) for line in lines), images, facts, tuple(scales), read)


def _on_smashed_data(cell: Cell) -> bool:
    """Attacks that guess labels alone have no score of this section; one that failed belongs here like those that did not."""
    return cell.observation == OBSERVATION and (
        LABEL_ACCURACY.of() not in cell.scores or any(metric_of(name).family is IMAGES for name, _ in cell.scores)
    )


def _cost(study: Study, line: Line) -> Cost:
    reference = "transformed" if line.protected else "original"

    def test(metric: str) -> Score | None:
        return None if line.round is None else study.series(line.defense, metric, reference).get(line.round)

    def mean(metric: str) -> float | None:
        return study.over_rounds(line.defense, metric)

    own = [row for row in study.rows if row.defense == line.defense and not row.attack]
    arrivals = [row for row in own if row.metric == "batches-lost" and row.value is not None]
    orders, shares = (
        [row.value for row in own if row.metric == name] for name in ("log10-orders", "log10-target-share")
    )
    return Cost(
        line=line,
        mcc_micro=test("mcc-micro"),
        mcc_macro=test("mcc-macro"),
        auc=test("test-auc"),
        log_loss=test("test-loss"),
        parameters=mean("edge-parameters"),
        macs=mean("edge-macs"),
        training_macs=mean("edge-training-macs"),
        peak_bytes=mean("edge-peak-bytes"),
        images=max((row.n for row in own if row.metric == "edge-peak-bytes"), default=1),
        bytes_per_sample=mean("bytes-per-sample"),
        samples_per_second=mean("samples-per-second"),
        lost=sum(row.value for row in arrivals if row.value is not None) if arrivals else None,
        expected=sum(row.n for row in arrivals),
        # Shuffles in a row have one pair each, which must not be averaged; seeds repeat the same pair.
        orders=tuple(dict.fromkeys(zip_longest(orders, shares))),
    )
