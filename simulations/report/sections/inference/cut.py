"""Results at a cut: what the server half answers, what the strongest adversaries read, and Equation 1, decided by intervals.

Source: Higgins et al., "Towards Privacy-Preserving Split Learning" (ADP), Eq. 1: S_alpha ~ S_beta, A_alpha >> A_beta and
|S_alpha - S_beta| << |A_alpha - A_beta|, with alpha before and beta after protection. It names no numbers; those here are ours.
"""

from dataclasses import dataclass, replace

from attacks.metrics import training
from attacks.metrics.images import MS_SSIM, PSNR
from attacks.metrics.metric import ATTRIBUTES, Metric
from simulations.report.studies.cell import Cell
from simulations.report.studies.intervals import Change, paired_images, square_and_add
from simulations.report.studies.score import Score, merge
from simulations.report.studies.study import Study
from strategies.inference.observations import QUERY

ACCURACY = ATTRIBUTES.decides
LEAST_DROP = 0.1
"""What the adversary must lose at least for ">>", as a share: 10 percentage points."""
MOST_OF_DROP = 0.5
"""What the server half's difference may be at most for "<<", as a part of what the adversary loses."""
MARGIN = 0.04
"""What the server half's accuracy may change at most for "~": 4 percentage points, about what the paper's abstract reports."""
SATISFIED, NOT_SATISFIED, OPEN = "satisfied", "not satisfied", "undecided"


@dataclass(frozen=True)
class Adversary:
    """The strongest adversary of one kind under one defence.

    Attributes:
        cell: Its scores.
        before: Accuracy of the strongest of the kind where nothing is protected; None where none was tried there.
        equation: Equation 1 with it; "" where nothing is protected.
    """

    cell: Cell
    before: Score | None
    equation: str

    @property
    def after(self) -> Score:
        """Its accuracy; of an attribute of two values that of the opposite guesses where these are right more often."""
        return _read(self.cell)

    @property
    def null(self) -> float | None:
        """Accuracy of always answering the most frequent value."""
        return self.cell.null(ACCURACY)


class Cut:
    """Reader of a study's rows and cells about its cut, by defence."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.cells = study.feasible
        """Attacks without upper bounds."""
        self.queried = [cell for cell in study.cells if cell.observation == QUERY.title and cell.psnr is not None]
        """Attacks that reconstruct queries."""
        each = (self.adversary(defense, kind) for defense in study.pipelines for kind in (False, True))
        self.adversaries = [adversary for adversary in each if adversary]
        """The static one of a defence first."""

    def score(self, defense: str, metric: Metric, reference: str = "") -> Score | None:
        """A number about training or the service, over all rounds."""
        rows = self.study.utility.get((defense, metric.name, reference))
        return merge(rows) if rows else None

    def server(self, defense: str) -> tuple[Score | None, Score | None]:
        """Accuracy of the whole model on clean images, and of the answers to the same clients."""
        before = self.score(defense, training.TEST_ACCURACY, "original")
        return before, self.score(defense, training.TEST_ACCURACY, "transformed") or before

    def adversary(self, defense: str, retrained: bool) -> Adversary | None:
        """The strongest one that learned from protected features, or else, as in the paper, from unprotected ones."""
        tried = [c for c in self.cells if ACCURACY in c.scores and c.card.knows_defenses == retrained]
        own = [cell for cell in tried if cell.defense == defense]
        if not own:
            return None
        best = max(own, key=lambda cell: -1.0 if (mean := _read(cell).mean) is None else mean)
        # The best before may be another than the best after: a defence is judged by what could be read before and after.
        plain = [_read(cell) for cell in tried if cell.defense == ""]
        before = max(plain, key=lambda score: score.mean or 0.0, default=None)
        pairs = (self.score(defense, metric) for metric in (training.ANSWERS_LOST, training.ANSWERS_GAINED))
        lost = answers_lost(self.server(defense), *pairs), difference(before, _read(best))
        word = decided(*lost) if best.status == "ok" else OPEN
        return Adversary(best, before, word if defense else "")

    def doubt(self, defense: str) -> str:
        """Reason why the retrained adversary was trained too little for a verdict on the defence; "" without one."""
        retrained, static = (self.adversary(defense, kind) for kind in (True, False))
        if not (defense and retrained):
            return ""
        # Held-out images are the server's own.
        held, often = retrained.cell.mean("holdout_accuracy"), retrained.cell.mean("holdout_majority")
        if held is not None and often is not None and held <= often:
            return "learned nothing"
        own, other = retrained.after.mean, static.after.mean if static else None
        return "no better than static" if own is not None and other is not None and own <= other else ""

    @property
    def best_reconstruction(self) -> Cell | None:
        """The best attack where nothing is protected, by the paper's measure; images too small for it have PSNR alone."""
        cells = [c for c in self.cells if not c.defense and c.psnr is not None and c.psnr.mean is not None]
        measure = (MS_SSIM if all(cell.mean(*MS_SSIM.of("original")) is not None for cell in cells) else PSNR).of(
            "original"
        )
        return max(cells, key=lambda cell: cell.mean(*measure) or 0.0, default=None)

    @property
    def offline(self) -> Score | None:
        """Accuracy of the adversary that masks are made against: one serves all defences, and its rows are the same number."""
        name = training.OFFLINE_ADVERSARY_ACCURACY.name
        return next((merge(rows) for (_, metric, _), rows in self.study.utility.items() if metric == name), None)

    @property
    def threshold(self) -> tuple[int, float, float | None] | None:
        """(images, most frequent value, least accuracy before protection with which Equation 1 can be satisfied)."""
        for adversary in self.adversaries:
            if adversary.after.n and adversary.null is not None:
                images = images_of(adversary.after)
                return images, adversary.null, least_before(images, adversary.null)
        return None


def _read(cell: Cell) -> Score:
    """What an adversary reads; of two values the guesses' opposite may be what is worth more."""
    score = cell.scores[ACCURACY]
    return folded(score) if cell.card.attribute_values == 2 else score


def difference(before: Score | None, after: Score | None) -> Change | None:
    """Before minus after, with the interval of ``square_and_add``; None where one has no interval."""
    if not (before and after and before.ends and after.ends) or before.mean is None or after.mean is None:
        return None
    ends = square_and_add((before.mean, *before.ends), (after.mean, *after.ends))
    return Change(before.mean - after.mean, *ends)


def answers_lost(server: tuple[Score | None, Score | None], lost: Score | None, gained: Score | None) -> Change | None:
    """Accuracy before minus after of the same images, with the paired interval; of several seeds from the mean table.

    ``lost`` and ``gained`` are the shares of images that are answered rightly before alone, and after alone; without them the
    pairs are not known, and the interval is the wider one of ``difference``.
    """
    if not (lost and gained and lost.n) or lost.mean is None or gained.mean is None:
        return difference(*server)
    n = images_of(lost)
    return paired_images(round(lost.mean * n), round(gained.mean * n), n)._replace(mean=lost.mean - gained.mean)


def images_of(score: Score) -> int:
    """Distinct images of a score over seeds, whose test images are the same."""
    return score.n // max(len(score.by_seed), 1)


def folded(score: Score) -> Score:
    """The share of right guesses of a binary value, or one minus it where that is larger."""
    if score.mean is None or score.mean >= 1 / 2:
        return score
    low, high = (None if end is None else 1 - end for end in (score.high, score.low))
    return replace(score, mean=1 - score.mean, low=low, high=high)


def least_before(images: int, null: float) -> float | None:
    """The least accuracy of an adversary before protection with which Equation 1 can be satisfied; None where none can.

    It is the one whose loss is at least ``LEAST_DROP`` with its whole interval if it reads no more after it than the null, the
    accuracy of always answering the most frequent value.
    """
    from attacks.scoring.intervals import binomial_interval

    after = Score(*binomial_interval(round(null * images), images))
    for hits in range(round(null * images), images + 1):
        drop = difference(Score(*binomial_interval(hits, images)), after)
        if drop is not None and drop.low >= LEAST_DROP:
            return hits / images
    return None


def decided(server: Change | None, adversary: Change | None) -> str:
    """``SATISFIED``, ``NOT_SATISFIED`` or ``OPEN``, by the losses of the server half and the adversary; the page says how."""
    if server is None or adversary is None:
        return OPEN
    least, most = sorted((abs(server.low), abs(server.high)))
    if adversary.low >= LEAST_DROP and most <= min(MARGIN, MOST_OF_DROP * adversary.low):
        return SATISFIED
    changed = not server.low <= 0 <= server.high and least > min(MARGIN, MOST_OF_DROP * adversary.high)
    return NOT_SATISFIED if adversary.high < LEAST_DROP or changed else OPEN
