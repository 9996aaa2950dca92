"""What the report shows of outsourced training: what clients upload, and how much of the images comes back out of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.report.analysis.line import Line
from simulations.report.studies.cell import Cell
from simulations.report.studies.study import Study

OBSERVATION = "uploaded images"
LOOKING = "AsUploaded()"
"""The attack that takes the images as they came: whatever else reads an upload must add to it."""
METRICS = ("uploaded-images", "upload-bytes", "upload-seconds", "server-seconds")
"""In the order of the fields of ``Upload``."""


@dataclass(frozen=True)
class Upload:
    """What the clients upload under one defence.

    Attributes:
        line: The defence's line of the summary.
        images: Images that the server holds, of all clients; of several seeds their mean.
        bytes_of_client: Bytes that a client uploads, mean over clients.
        seconds_of_client: Seconds that a client works for it, mean over clients.
        seconds_of_server: Seconds of training in a round.
    """

    line: Line
    images: float | None
    bytes_of_client: float | None
    seconds_of_client: float | None
    seconds_of_server: float | None


@dataclass(frozen=True)
class Read:
    """One attack on the uploads of one defence.

    Attributes:
        cell: Its scores.
        gain: PSNR over that of the images as they were uploaded, in dB; None where one of the two is missing, and where the attack
            does not beat the null baselines: then it adds nothing that anyone could not guess.
    """

    cell: Cell
    gain: float | None


@dataclass(frozen=True)
class OutsourcedTraining:
    """The section: one entry for each defence, and one for each attack on what it uploads."""

    uploads: tuple[Upload, ...]
    reads: tuple[Read, ...]


def outsourced_training(study: Study, lines: Sequence[Line]) -> OutsourcedTraining | None:
    """The section, or None for a study in which nothing was uploaded."""
    if not any(row.metric == "upload-bytes" for row in study.rows):
        return None
    cells = [cell for cell in study.cells if cell.observation == OBSERVATION]
    looking = {(cell.defense, cell.round): cell.mean("psnr", "original") for cell in cells if cell.attack == LOOKING}
    return OutsourcedTraining(
        tuple(_upload(study, line) for line in lines),
        tuple(Read(cell, _gain(cell, looking.get((cell.defense, cell.round)))) for cell in cells),
    )


def _upload(study: Study, line: Line) -> Upload:
    return Upload(line, *(study.over_rounds(line.defense, name) for name in METRICS))


def _gain(cell: Cell, looking: float | None) -> float | None:
    own = cell.mean("psnr", "original")
    beaten = cell.gap is None or cell.gap > 0
    return None if cell.attack == LOOKING or own is None or looking is None or not beaten else own - looking
