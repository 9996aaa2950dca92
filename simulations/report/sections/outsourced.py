"""The report's section on outsourced training: the clients' uploads, and what attacks recover from them."""

from collections.abc import Sequence

from attacks.metrics import training
from attacks.metrics.metric import IMAGES
from attacks.uploads.base import AsUploaded
from simulations.report import columns
from simulations.report.analysis.finding import Finding
from simulations.report.columns import Table, averaged, number
from simulations.report.section import Content, Section
from simulations.report.studies.cell import Cell
from simulations.report.studies.stages import names_of
from simulations.report.studies.study import Study
from simulations.report.text import plain, signed, size
from strategies.outsourced.observations import UPLOAD

NOTE = """Every score is against the original. No attack here needs an inversion: the server holds the protected images.
AsUploaded takes them as they came, and what stands under “over the upload” is what an attack adds to looking at them, where it
beats the null baselines. As the undefended uploads are the originals, they say nothing of an attack that undoes a defence: it
counts if it adds to looking under one of the defences here. Attacks on uploaded images read every image alone, though the server
holds all uploads; those on all uploads of a client, where there are any, do not. What the trained model itself gives away is with
the attacks on members and classes."""


def outsourced_training(study: Study, lines: Sequence[Finding]) -> Content | None:
    """Costs by defence and attacks on uploads, or None for a study in which nothing was uploaded."""
    if not any(row.metric == training.UPLOAD_BYTES.name for row in study.rows):
        return None
    costs = (
        columns.OF_LINE,
        columns.DEPLOYED,
        averaged(study, "images uploaded", training.UPLOADED_IMAGES, plain).opening,
        averaged(study, "bytes of a client", training.UPLOAD_BYTES, size),
        averaged(study, "seconds of a client", training.UPLOAD_SECONDS, plain),
        averaged(study, "seconds of the server, a round", training.SERVER_SECONDS, plain),
    )
    cells = [cell for cell in study.cells if cell.observation == UPLOAD.title]
    gained = number("over the upload", lambda cell: signed(_gain(cell, cells)))
    scores = (columns.OF_PSNR.opening, columns.OVER_NULL, gained, columns.OF_SSIM, columns.IDENTIFIED.opening)
    recovered = Table("What comes back out of the uploads", (*columns.ATTACKED, *scores), cells, how="h3")
    return Content([Table("Costs", costs, lines), *([recovered, NOTE] if cells else ())])


def _looks(cell: Cell) -> bool:
    """Whether the attack only takes the images as they came: every other attack on an upload must add to it."""
    return names_of(cell.attack) == (AsUploaded.__name__,)


def _gain(cell: Cell, cells: Sequence[Cell]) -> float | None:
    """PSNR over that of the images as they were uploaded, in dB; None where the attack does not beat the null baselines."""
    place, own = (cell.defense, cell.round), cell.mean(*IMAGES.decides)
    looked = (other.mean(*IMAGES.decides) for other in cells if _looks(other) and (other.defense, other.round) == place)
    looking, beaten = next(looked, None), cell.gap is None or cell.gap > 0
    return None if _looks(cell) or own is None or looking is None or not beaten else own - looking


SECTION = Section(
    "outsourced",
    "Outsourced training",
    outsourced_training,
    text="Clients upload their training images, protected, with their labels; the server trains on the uploads.",
    pictures_show="the images as they were uploaded",
)
