"""The report's section on edge-cloud inference: accuracy of the answers, cost of the messages, and recovery from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from attacks.metrics.images import MS_SSIM, PSNR
from attacks.metrics.metric import ATTRIBUTES
from attacks.metrics.training import (
    AGREEMENT,
    ANSWERS_GAINED,
    ANSWERS_LOST,
    FEATURE_BYTES,
    OFFLINE_ADVERSARY_ACCURACY,
    QUERY_BYTES,
    SERVED,
    TEST_ACCURACY,
)
from simulations.report.analysis.finding import Finding
from simulations.report.section import Section
from simulations.report.sections.inference.equation import (
    OPEN,
    Difference,
    decided,
    difference,
    folded,
    images_of,
    least_before,
    paired,
)
from simulations.report.studies.cell import Cell
from simulations.report.studies.score import Score, merge
from simulations.report.studies.study import Study
from strategies.inference.observations import Queried

ACCURACY = ATTRIBUTES.decides


@dataclass(frozen=True)
class Change:
    """A score before protection (alpha) and after it (beta); before is that of the run without a defence."""

    before: Score | None
    after: Score | None


@dataclass(frozen=True)
class Adversary:
    """The strongest adversary of one kind under one defence.

    Attributes:
        attack: Its text.
        change: Its accuracy; before is that of the strongest of the kind where nothing is protected. Of an attribute of two values
            that of the opposite guesses where these are right more often.
        null: Accuracy of always answering the most frequent value.
        learned: Whether on held-out images of the server's own it was above their most frequent value; True where no row says.
        equation: Equation 1 with it; "" where nothing is protected.
    """

    attack: str
    change: Change
    null: float | None
    equation: str
    learned: bool = True


@dataclass(frozen=True)
class CutLine:
    """One defence at one cut.

    Attributes:
        defense: Pipeline text.
        server: Accuracy of the answers; before is the whole model on clean images of the same clients.
        agreement: Share of test images whose answer is the one that plain features get.
        static: Trained on unprotected features, as in the paper; None where none was trained.
        retrained: Trained on protected features, which is what a defence has to be judged by; likewise.
        before: The attack that reconstructs best, by MS-SSIM where images have one, where nothing is protected.
        after: The attack that reconstructs best under this defence, likewise.
        numbers: Name -> bytes, counts and seconds of the service; mean over seeds.
    """

    defense: str
    server: Change
    agreement: Score | None
    static: Adversary | None
    retrained: Adversary | None
    before: Cell | None
    after: Cell | None
    numbers: dict[str, float]

    @property
    def doubt(self) -> str:
        """Reason why the retrained adversary was trained too little for a verdict on the defence; "" without one."""
        if not (self.defense and self.retrained):
            return ""
        if not self.retrained.learned:
            return "learned nothing"
        both = (self.retrained, self.static)
        retrained, static = (one.change.after.mean if one and one.change.after else None for one in both)
        return "no better than static" if retrained is not None and static is not None and retrained <= static else ""

    @property
    def smaller(self) -> float | None:
        """Bytes of plain features divided by bytes sent."""
        travels, plain = self.numbers.get(QUERY_BYTES.name), self.numbers.get(FEATURE_BYTES.name)
        return plain / travels if plain and travels else None


@dataclass(frozen=True)
class Cut:
    """One cut: a line for each defence, attacks that reconstruct queries, and the accuracy of the masks' offline adversary."""

    name: str
    lines: tuple[CutLine, ...]
    cells: tuple[Cell, ...]
    offline: Score | None = None

    @property
    def threshold(self) -> tuple[int, float, float | None] | None:
        """(images, most frequent value, least accuracy before protection with which Equation 1 can be satisfied)."""
        for one in (one for line in self.lines for one in (line.static, line.retrained) if one):
            if one.change.after and one.change.after.n and one.null is not None:
                images = images_of(one.change.after)
                return images, one.null, least_before(images, one.null)
        return None

    @property
    def infers(self) -> bool:
        """Whether an attribute was inferred."""
        return any(line.static or line.retrained for line in self.lines)


class CutReader:
    """Reader of a study's rows and cells about a cut."""

    def __init__(self, study: Study) -> None:
        self.study = study
        self.scores = {key: merge(rows) for key, rows in study.utility.items()}
        self.cells = [cell for cell in study.cells if not cell.is_upper_bound]

    def cut(self) -> Cut:
        """The study's results for its cut."""
        offline = [score for (_, metric, _), score in self.scores.items() if metric == OFFLINE_ADVERSARY_ACCURACY.name]
        # One adversary serves all pipelines: its rows under each of them are the same number.
        lines = tuple(map(self._line, self.study.pipelines))
        cells = tuple(c for c in self.study.cells if c.observation == Queried.title and c.psnr is not None)
        return Cut(self.study.cut, lines, cells, offline[0] if offline else None)

    def _line(self, defense: str) -> CutLine:
        before = self.scores.get((defense, TEST_ACCURACY.name, "original"))
        server = Change(before, self.scores.get((defense, TEST_ACCURACY.name, "transformed"), before))
        pairs = (self.scores.get((defense, metric.name, "")) for metric in (ANSWERS_LOST, ANSWERS_GAINED))
        lost = paired(server.before, server.after, *pairs)
        found = {one.name: score.mean for one in SERVED if (score := self.scores.get((defense, one.name, "")))}
        return CutLine(
            defense,
            server,
            self.scores.get((defense, AGREEMENT.name, "")),
            self._adversary(defense, False, lost),
            self._adversary(defense, True, lost),
            self._reconstruction(""),
            self._reconstruction(defense),
            {name: value for name, value in found.items() if value is not None},
        )

    def _adversary(self, defense: str, retrained: bool, server: Difference | None) -> Adversary | None:
        tried = [c for c in self.cells if ACCURACY in c.scores and c.knows_defenses == retrained]
        found = [cell for cell in tried if cell.defense == defense]
        scored = [cell for cell in found if cell.mean(*ACCURACY) is not None]
        if not found:
            return None
        best = max(scored, key=lambda cell: _read(cell).mean or 0.0) if scored else found[0]
        plain = [_read(cell) for cell in tried if cell.defense == ""]
        # The best before may be another than the best after: a defence is judged by what could be read before and after.
        change = Change(max(plain, key=lambda score: score.mean or 0.0, default=None), _read(best))
        judged = server, difference(change.before, change.after)
        word = "" if defense == "" else decided(*judged) if best.status == "ok" else OPEN
        null = best.null(ACCURACY)
        held, often = best.mean("holdout_accuracy"), best.mean("holdout_majority")
        learned = held is None or often is None or held > often
        return Adversary(best.attack, change, null, word, learned)

    def _reconstruction(self, defense: str) -> Cell | None:
        found = [c for c in self.cells if c.defense == defense and c.psnr is not None and c.psnr.mean is not None]
        # The measure of the paper, and of this column; images too small for it have PSNR alone.
        measure = (MS_SSIM if all(cell.mean(MS_SSIM.name, "original") is not None for cell in found) else PSNR).name
        return max(found, key=lambda cell: cell.mean(measure, "original") or 0.0, default=None)


def _read(cell: Cell) -> Score:
    """What an adversary reads; of two values the guesses' opposite may be what is worth more."""
    score = cell.scores[ACCURACY]
    return folded(score) if cell.fact("attribute_values") == "2" else score


MASKS = {"delta masks": ("image", "server-cam", "adversary-cam", "mask", "masked")}
"""What the index of pictures calls those of delta masks, and their kinds in the order of their making."""


def edge_cloud_inference(study: Study, _: Sequence[Finding]) -> Cut | None:
    """The section for one cut, or None for a study without queries."""
    return CutReader(study).cut() if any(row.metric == QUERY_BYTES.name for row in study.rows) else None


SECTION = Section(
    name="inference",
    title="Edge-cloud inference",
    view=edge_cloud_inference,
    template="sections/inference.html",
    deployed_on=" or features",
    pictures_show="what entered the client half; what a defence does to its features does not show in it",
    own_pictures=MASKS,
)
