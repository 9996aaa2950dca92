"""What the report shows of a cut: accuracies before and after protection, reconstructions, and Equation 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from simulations.report.analysis.families import ATTRIBUTES
from simulations.report.analysis.score import Score, merge
from simulations.report.analysis.study import Cell, Study
from simulations.report.sections.inference.equation import OPEN, difference, equation

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
        change: Its accuracy; before is that of the same attack where nothing is protected.
        null: Accuracy of always answering the most frequent value.
        status: Of its score under the defence.
        equation: Equation 1 with it; "" where nothing is protected.
    """

    attack: str
    change: Change
    null: float | None
    status: str
    equation: str

    @property
    def beats_null(self) -> bool:
        """Whether it reads more than the most frequent value, with its whole interval."""
        after = self.change.after
        return after is not None and after.low is not None and self.null is not None and after.low > self.null


@dataclass(frozen=True)
class CutLine:
    """One defence at one cut.

    Attributes:
        defense: Pipeline text.
        server: Accuracy of the answers; before is the whole model on clean images of the same clients.
        agreement: Share of test images whose answer is the one that plain features get.
        static: Trained on unprotected features, as in the paper; None where nobody tried.
        retrained: Trained on protected features, which is what a defence has to be judged by; likewise.
        before: The attack that reconstructs best where nothing is protected.
        after: The attack that reconstructs best under this defence.
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
    def smaller(self) -> float | None:
        """Bytes of plain features over those that travel."""
        travels, plain = self.numbers.get("query-bytes"), self.numbers.get("feature-bytes")
        return plain / travels if plain and travels else None


@dataclass(frozen=True)
class Cut:
    """One cut: its name, a line for each defence, and what the offline adversary of the masks is worth."""

    name: str
    lines: tuple[CutLine, ...]
    offline: Score | None = None

    @property
    def infers(self) -> bool:
        """Whether anybody inferred an attribute."""
        return any(line.static or line.retrained for line in self.lines)


def read_cut(study: Study, metrics: Sequence[str]) -> Cut:
    """What a study says of its cut.

    Args:
        study: The study.
        metrics: Numbers of the service that are shown.
    """
    return _Reader(study, metrics).cut()


class _Reader:
    """Reads the rows and cells of a study."""

    def __init__(self, study: Study, metrics: Sequence[str]) -> None:
        self.study, self.metrics = study, metrics
        self.scores = {key: merge(rows) for key, rows in study.utility.items()}
        self.cells = [cell for cell in study.cells if not cell.is_upper_bound]

    def cut(self) -> Cut:
        offline = [score for (_, metric, _), score in self.scores.items() if metric == "offline-adversary-accuracy"]
        # One adversary serves all pipelines: its rows under each of them are the same number.
        return Cut(self.study.cut, tuple(map(self._line, self.study.pipelines)), offline[0] if offline else None)

    def _line(self, defense: str) -> CutLine:
        before = self.scores.get((defense, "test-accuracy", "original"))
        server = Change(before, self.scores.get((defense, "test-accuracy", "transformed"), before))
        found = {name: score.mean for name in self.metrics if (score := self.scores.get((defense, name, "")))}
        return CutLine(
            defense,
            server,
            self.scores.get((defense, "agreement", "")),
            self._adversary(defense, False, server),
            self._adversary(defense, True, server),
            self._reconstruction(""),
            self._reconstruction(defense),
            {name: value for name, value in found.items() if value is not None},
        )

    def _adversary(self, defense: str, retrained: bool, server: Change) -> Adversary | None:
        tried = [c for c in self.cells if c.defense == defense and ACCURACY in c.scores]
        found = [c for c in tried if c.knows_defenses == retrained]
        scored = [cell for cell in found if cell.mean(*ACCURACY) is not None]
        if not found:
            return None
        best = max(scored, key=lambda cell: cell.mean(*ACCURACY) or 0.0) if scored else found[0]
        plain = [c for c in self.cells if c.defense == "" and c.attack == best.attack and ACCURACY in c.scores]
        change = Change(plain[0].scores[ACCURACY] if plain else None, best.scores[ACCURACY])
        judged = difference(server.before, server.after), difference(change.before, change.after)
        told = "" if defense == "" else equation(*judged) if best.status == "ok" else OPEN
        null = max(best.null_scores.get(ACCURACY, {}).values(), default=None)
        return Adversary(best.attack, change, null, best.status, told)

    def _reconstruction(self, defense: str) -> Cell | None:
        found = [c for c in self.cells if c.defense == defense and c.psnr is not None and c.psnr.mean is not None]
        return max(found, key=lambda cell: cell.mean("psnr", "original") or 0.0, default=None)
