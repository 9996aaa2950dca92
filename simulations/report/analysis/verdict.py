"""The verdict on a defence's messages of one kind and size: the one rule that every page, table and count follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from attacks.metrics.metric import ATTRIBUTES, CELLS, IMAGES
from simulations.report.studies.cell import FOUND, SEEN, Cell
from simulations.report.studies.control import LEAST_IMAGES
from simulations.report.studies.intervals import LEVEL, Count
from simulations.report.studies.messages import MessageSize, stand_ins
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Score, Scored
from simulations.report.text import capital


class Verdict(StrEnum):
    """What attacks found; never a promise of privacy. The worst comes first."""

    RECOGNISABLE = "recognisable"
    IDENTIFIABLE = "identifiable"
    INFERRED = "inferred"
    UNKNOWN = "unknown"
    NOTHING = "nothing found"


MEANING = {
    Verdict.RECOGNISABLE: "identifiable, and enough guesses also show their image's structure, beyond its colour",
    Verdict.IDENTIFIABLE: "guesses are nearest to their own image among up to 99 others of its class, mean and contrast removed, "
    "more often than guesses of the class alone",
    Verdict.INFERRED: "attributes or cells are right more often than their most frequent value",
    Verdict.NOTHING: "none of that, by an attack that passed its positive control",
    Verdict.UNKNOWN: "no attack passed its positive control, or fewer than 16 images were attacked",
}
"""Verdict -> its rule in words."""
_ORDER = {word: place for place, word in enumerate(Verdict)}


@dataclass(frozen=True)
class Judged:
    """A defence's messages of one kind and size, and what the attacks found in them.

    Attributes:
        message: What was attacked, such as "one-step probe"; "" where the scenario sends one kind alone.
        rung: How much entered one message; None where cards do not say.
        cells: All attacks tried, in every round, without upper bounds.
        verdict: On all of them together.
        cell: The strongest attack; None where none was scored.
    """

    message: str
    rung: MessageSize | None
    cells: tuple[Cell, ...]
    verdict: Verdict
    cell: Cell | None

    @property
    def real(self) -> bool:
        """Whether clients send such messages without being asked: neither a probe nor another request."""
        return self.message not in stand_ins()

    @property
    def order(self) -> tuple[bool, MessageSize]:
        """Sort key: real messages first, each kind from the smallest to the largest."""
        return not self.real, self.rung or MessageSize(0, 0)

    @property
    def of(self) -> Scored | None:
        """The score behind the verdict: that of recognisable images where it is of these, else of identified ones."""
        if self.cell is None or self.verdict is Verdict.RECOGNISABLE:
            return SEEN if self.cell else None
        return next((one for one in (FOUND, CELLS.decides, ATTRIBUTES.decides) if one in self.cell.scores), None)

    @property
    def found(self) -> Count | None:
        """(k, n): images that the strongest attack makes recognisable, or identifies where it makes none recognisable."""
        return self.cell.count(self.of) if self.cell and self.of in (FOUND, SEEN) else None

    @property
    def score(self) -> Score | None:
        """The share behind the verdict, with its interval."""
        return self.cell.scores.get(self.of) if self.cell and self.of else None

    @property
    def probability(self) -> float | None:
        """Bound on the probability that the best of as many guesses of the class alone has as many images."""
        if self.cell is None or self.of not in (FOUND, SEEN):
            return None
        return min(1.0, tried(self.cells) * self.cell.chances.get(self.of, 1.0))

    @property
    def size(self) -> str:
        """The rung in words, as "1 image" or "4 steps on 16 images"; "" where it is not known."""
        return str(self.rung or "")

    @property
    def title(self) -> str:
        """Message and size."""
        return ", ".join(filter(None, (self.message, self.size)))


LEAKS = (Verdict.RECOGNISABLE, Verdict.IDENTIFIABLE, Verdict.INFERRED)
"""Verdicts of messages from which attacks take something."""


def rule() -> str:
    """The rule as pages state it, with the level of its tests."""
    words = " ".join(f"{capital(word)}: {MEANING[word]}." for word in Verdict if word is not Verdict.INFERRED)
    return f"{words} Each kind and size of message is tested by itself, at {100 * LEVEL:.0f} % over all attacks on it."


def judge(cells: Sequence[Cell]) -> list[Judged]:
    """The verdict on each kind and size of message: real ones first, each from the smallest to the largest."""
    able = [cell for cell in cells if not cell.is_upper_bound]
    of_images = [cell for cell in able if IMAGES.scored(cell.scores)]
    others = [cell for cell in able if CELLS.scored(cell.scores) or ATTRIBUTES.scored(cell.scores)]
    groups = grouped(of_images or others, lambda cell: (cell.observation, cell.rung if cell.card.images else None))
    found = [Judged(message, rung, tuple(of), *_verdict(of)) for (message, rung), of in groups.items()]
    return sorted(found, key=lambda one: one.order)


def tried(cells: Sequence[Cell]) -> int:
    """Attacks and rounds among which the strongest was chosen."""
    return sum(FOUND in cell.scores for cell in cells)


def worst(judged: Sequence[Judged]) -> Judged | None:
    """The messages with the worst verdict; of equals the first."""
    return min(judged, key=lambda one: _ORDER[one.verdict], default=None)


def _verdict(cells: Sequence[Cell]) -> tuple[Verdict, Cell | None]:
    times = tried(cells)

    def strength(cell: Cell) -> tuple[int, float, float, bool, float]:
        psnr = cell.psnr.mean if cell.psnr else None
        word = verdict_of(cell, times)
        order = (SEEN, FOUND) if word is Verdict.RECOGNISABLE else (FOUND, SEEN)  # by what the verdict is of
        first, second = (cell.mean(*of) or 0.0 for of in order)
        return -_ORDER[word], first, second, cell.status == "ok", psnr or 0.0

    strongest = max(cells, key=strength, default=None)
    if strongest is None:
        return Verdict.UNKNOWN, None
    found = verdict_of(strongest, times)
    # What one attack leaves unknown, another may have decided: an attack that fails its control says nothing.
    decided = [cell for cell in cells if found is Verdict.UNKNOWN and verdict_of(cell, times) is Verdict.NOTHING]
    return (Verdict.NOTHING, max(decided, key=strength)) if decided else (found, strongest)


def verdict_of(cell: Cell, tried: int = 1) -> Verdict:
    """The verdict on one attack among as many that were tried."""
    if FOUND in cell.scores:
        for word, of in ((Verdict.RECOGNISABLE, SEEN), (Verdict.IDENTIFIABLE, FOUND)):
            if tried * cell.chances.get(of, 1.0) <= LEVEL:
                return word
        return Verdict.NOTHING if _counts(cell.scores[FOUND]) else Verdict.UNKNOWN
    other = next((one for one in (CELLS.decides, ATTRIBUTES.decides) if one in cell.scores), None)
    if other is None:
        return Verdict.UNKNOWN
    score, null = cell.scores[other], cell.null(other) or 0.0
    if other in cell.leaking and score.attacked >= LEAST_IMAGES:
        return Verdict.INFERRED
    return Verdict.NOTHING if _counts(score) and (score.mean or 0.0) <= null else Verdict.UNKNOWN


def _counts(score: Score) -> bool:
    """Whether the attack's failure says anything: its control passed, on enough images."""
    return score.status == "ok" and score.attacked - score.failures >= LEAST_IMAGES
