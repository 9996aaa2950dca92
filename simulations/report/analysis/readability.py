"""The verdict on one attack in a word, and the ranking of attacks that selects the headline."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from attacks.metrics.metric import ATTRIBUTES, CELLS, IMAGES
from clients.scoring.null_baselines import CLASS_MEAN
from simulations.report.studies.cell import Cell
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.studies.score import Score, Scored

MOST = 0.5
"""Share of the images that must be recovered before all are called readable."""


class Readability(StrEnum):
    """What the attacks of a report recovered; never a promise of privacy."""

    READABLE = "readable"
    PARTLY = "partly readable"
    UNKNOWN = "unknown"
    NOT_RECOVERED = "not recovered"


def readability(cell: Cell | None) -> Readability:
    """The verdict on one attack: on images, on rows of a table or on a sensitive attribute (docs/concepts.md).

    Over several seeds it is of the images of all. Partly readable is what is so in any of them, because an interval over two seeds
    is so wide that it would hide what both show. Of rows and attributes the null baseline is the most frequent value: readable is
    what is right in at least half of the cases that it misses.
    """
    found = _scored(cell)
    if cell is None or found is None:
        return Readability.UNKNOWN
    of, score, mean, null = found
    bar = max(cell.scales.get(CLASS_MEAN.name, null), null) if of == IMAGES.decides else null
    together = score.status == "ok" and score.low is not None and score.low > bar
    if of != IMAGES.decides:
        some = of in cell.leaking or together
        most = some and mean - null >= MOST * (1 - null)
    else:
        recovered, n = cell.recovered or (0, score.n)
        most = recovered >= MOST * n
        some = recovered > 0 or cell.picks or cell.clear or together
    if most or some:
        return Readability.READABLE if most else Readability.PARTLY
    # A mean above the bar that its interval does not tell from it is no evidence that nothing was recovered.
    return Readability.NOT_RECOVERED if score.status == "ok" and mean <= bar else Readability.UNKNOWN


def _scored(cell: Cell | None) -> tuple[Scored, Score, float, float] | None:
    """(metric and reference, score, its mean, the best null guess's) that a verdict is of; None where there can be none."""
    of = next((one.decides for one in (IMAGES, CELLS, ATTRIBUTES) if cell and one.scored(cell.scores)), None)
    if cell is None or of is None:
        return None
    score = cell.scores[of]
    if score.mean is None or score.all_failed or score.attacked < LEAST_IMAGES or cell.too_few:
        return None
    return of, score, score.mean, cell.null(of) or 0.0


def lead(cells: Sequence[Cell]) -> Cell | None:
    """The headline's attack on images (docs/concepts.md); None without a score. Upper bounds do not count.

    What could not be decided comes before what was not recovered, for it is no evidence for a defence. A leak counts whether
    validated or not: the control guards against attacks that are too weak.
    """
    scored = [cell for cell in cells if image_score(cell) is not None and not cell.is_upper_bound]
    return max(scored, key=strength, default=None)  # of equals the first


def image_score(cell: Cell) -> float | None:
    """The mean PSNR against the original images, in dB; None of an attack on anything else."""
    return cell.mean(*IMAGES.decides)


def strength(cell: Cell) -> tuple[float, float, float, bool, bool, float]:
    """Sort key of ``lead``."""
    word, score = readability(cell), cell.scores[IMAGES.decides]
    # A leak whose images could not be looked for is not hidden by what was recovered from nothing.
    undecided = word is Readability.UNKNOWN and (
        (_scored(cell) is not None and score.status == "ok") or (bool(cell.unjudged) and cell.leaks)
    )
    share = cell.share.mean or 0.0 if cell.share else 0.0
    identified = cell.picked[0] / cell.picked[1] if cell.picks and cell.picked and not share else 0.0
    counts = bool(share or identified) or score.status == "ok"
    height = cell.gap if cell.gap is not None else score.mean or 0.0
    # Neither is what was recovered of too few images for a verdict.
    raised = RECOVERED_OF_FEW if word is Readability.UNKNOWN and share else _ORDER[word] + 2 * undecided
    return raised, share, identified, not score.all_failed, counts, height


RECOVERED_OF_FEW = 2.5
"""Stands before what was not recovered, and behind a verdict that something was."""
_ORDER = dict(zip(Readability, (4, 3, 0, 1), strict=True))
"""How bad a verdict is; between those on one attack that was not recovered and partly readable is what could not be decided."""
