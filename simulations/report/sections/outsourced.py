"""The report's section on outsourced training: the clients' uploads, and what attacks recover from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.metrics.metric import IMAGES
from attacks.metrics.training import UPLOAD_BYTES, UPLOADS
from attacks.uploads.base import AsUploaded
from simulations.report.analysis.finding import Finding
from simulations.report.section import Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.stages import names_of
from simulations.report.studies.study import Study
from strategies.outsourced.observations import Upload


@dataclass(frozen=True)
class UploadRead:
    """One attack on the uploads of one defence.

    Attributes:
        cell: Its scores.
        gain: PSNR over that of the images as they were uploaded, in dB; None where one of the two is missing, and where the attack
            does not beat the null baselines.
    """

    cell: Cell
    gain: float | None


@dataclass(frozen=True)
class OutsourcedTraining:
    """The section: for each defence its line, the means of ``UPLOADS`` over rounds, and the attacks on its uploads."""

    uploads: tuple[tuple[Finding, tuple[float | None, ...]], ...]
    reads: tuple[UploadRead, ...]


def outsourced_training(study: Study, lines: Sequence[Finding]) -> OutsourcedTraining | None:
    """The section, or None for a study in which nothing was uploaded."""
    if not any(row.metric == UPLOAD_BYTES.name for row in study.rows):
        return None
    cells = [cell for cell in study.cells if cell.observation == Upload.title]
    looking = {(cell.defense, cell.round): cell.mean(*IMAGES.decides) for cell in cells if _looks(cell)}
    return OutsourcedTraining(
        tuple((line, tuple(study.over_rounds(line.defense, metric.name) for metric in UPLOADS)) for line in lines),
        tuple(UploadRead(cell, _gain(cell, looking.get((cell.defense, cell.round)))) for cell in cells),
    )


def _looks(cell: Cell) -> bool:
    """Whether the attack only takes the images as they came: every other attack on an upload must add to it."""
    return names_of(cell.attack) == (AsUploaded.__name__,)


def _gain(cell: Cell, looking: float | None) -> float | None:
    own = cell.mean(*IMAGES.decides)
    beaten = cell.gap is None or cell.gap > 0
    return None if _looks(cell) or own is None or looking is None or not beaten else own - looking


SECTION = Section(
    name="outsourced",
    title="Outsourced training",
    view=outsourced_training,
    template="sections/outsourced.html",
    pictures_show="the images as they were uploaded",
)
