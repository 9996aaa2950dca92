"""Results at a cut: what the server half answers, and what the strongest adversaries read, before and after a defence."""

from dataclasses import dataclass

from attacks.metrics import training
from attacks.metrics.images import MS_SSIM, PSNR
from attacks.metrics.metric import ATTRIBUTES, Metric
from simulations.report.sections.inference import equation
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score, merge
from simulations.report.studies.study import Study
from strategies.inference.observations import QUERY

ACCURACY = ATTRIBUTES.decides


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
        lost = equation.answers_lost(self.server(defense), *pairs), equation.difference(before, _read(best))
        word = equation.decided(*lost) if best.status == "ok" else equation.OPEN
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
                images = equation.images_of(adversary.after)
                return images, adversary.null, equation.least_before(images, adversary.null)
        return None


def _read(cell: Cell) -> Score:
    """What an adversary reads; of two values the guesses' opposite may be what is worth more."""
    score = cell.scores[ACCURACY]
    return equation.folded(score) if cell.card.attribute_values == 2 else score
