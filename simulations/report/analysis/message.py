"""What attacks found in one kind and size of a defence's messages: the one verdict that every page, table and count follows."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any

from attacks.metrics.metric import ATTRIBUTES, CELLS, IMAGES, LEAST_IMAGES
from simulations.report.analysis.paired import PairedDifference
from simulations.report.studies.cell import FOUND, SEEN, Cell
from simulations.report.studies.intervals import LEVEL, Count
from simulations.report.studies.messages import MessageSize, stand_ins
from simulations.report.studies.rows import grouped
from simulations.report.studies.score import Score, Scored
from simulations.report.text import capital, count, dagger, percent, percentage


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
LEAKS = (Verdict.RECOGNISABLE, Verdict.IDENTIFIABLE, Verdict.INFERRED)
"""Verdicts of messages from which attacks take something."""


def rule() -> str:
    """The rule as pages state it, with the level of its tests."""
    words = " ".join(f"{capital(word)}: {MEANING[word]}." for word in Verdict if word is not Verdict.INFERRED)
    return f"{words} Each kind and size of message is tested by itself, at {100 * LEVEL:.0f} % over all attacks on it."


USUAL_CHANCE = 0.0105
"""Of images with about 99 others, which the glossary gives."""
COUNTED = {SEEN: "recognisable", FOUND: "identified", CELLS.decides: "of cells", ATTRIBUTES.decides: "of values"}
"""Score behind a verdict -> what it is a share of."""
Place = tuple[str, MessageSize | None]
"""A kind and size of message."""


@dataclass(frozen=True)
class Message:
    """A defence's messages of one kind and size: the verdict on them, and what a reader must know beside it.

    Attributes:
        message: What was attacked, such as "one-step probe"; "" where the scenario sends one kind alone.
        rung: How much entered one message; None where cards do not say.
        cells: All attacks tried, in every round, without upper bounds; at least one.
        difference: To no defence, by image; None where neither has any image.
        adaptive: An attack made against the defence was tried.
        warnings: What a reader must know of these messages alone.
    """

    message: str
    rung: MessageSize | None
    cells: tuple[Cell, ...]
    difference: PairedDifference | None = None
    adaptive: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def real(self) -> bool:
        """Whether clients send such messages without being asked: neither a probe nor another request."""
        return self.message not in stand_ins()

    @property
    def order(self) -> tuple[bool, MessageSize]:
        """Sort key: real messages first, each kind from the smallest to the largest."""
        return not self.real, self.rung or MessageSize(0, 0)

    @property
    def size(self) -> str:
        """The rung in words, as "1 image" or "4 steps on 16 images"; "" where it is not known."""
        return str(self.rung or "")

    @property
    def place(self) -> Place:
        """Kind and size, by which the same messages are found under another defence."""
        return self.message, self.rung

    @property
    def title(self) -> str:
        """Message and size."""
        return ", ".join(filter(None, (self.message, self.size)))

    @cached_property
    def tried(self) -> int:
        """Attacks and rounds among which the strongest was chosen, for which every verdict is corrected."""
        return sum(FOUND in cell.scores for cell in self.cells)

    def verdict_of(self, cell: Cell) -> Verdict:
        """The verdict on one attack among those tried."""
        if FOUND in cell.scores:
            for word, of in ((Verdict.RECOGNISABLE, SEEN), (Verdict.IDENTIFIABLE, FOUND)):
                if self.tried * cell.chances.get(of, 1.0) <= LEVEL:
                    return word
            return Verdict.NOTHING if counts(cell.scores[FOUND]) else Verdict.UNKNOWN
        other = next((key for key in (CELLS.decides, ATTRIBUTES.decides) if key in cell.scores), None)
        if other is None:
            return Verdict.UNKNOWN
        score, null = cell.scores[other], cell.null(other) or 0.0
        if other in cell.leaking and score.attacked >= LEAST_IMAGES:
            return Verdict.INFERRED
        return Verdict.NOTHING if counts(score) and (score.mean or 0.0) <= null else Verdict.UNKNOWN

    @cached_property
    def cell(self) -> Cell:
        """The strongest attack, which decides."""
        strongest = max(self.cells, key=self._strength)
        # What one attack leaves unknown, another may have decided: an attack that fails its control says nothing.
        unknown = self.verdict_of(strongest) is Verdict.UNKNOWN
        decided = [cell for cell in self.cells if unknown and self.verdict_of(cell) is Verdict.NOTHING]
        return max(decided, key=self._strength, default=strongest)

    @property
    def verdict(self) -> Verdict:
        """On all attacks together."""
        return self.verdict_of(self.cell)

    @cached_property
    def _most(self) -> int:
        return max((cell.scores[FOUND].attacked for cell in self.cells if FOUND in cell.scores), default=0)

    def _strength(self, cell: Cell) -> tuple[int, bool, float, float, bool, float]:
        word, psnr = self.verdict_of(cell), cell.psnr.mean if cell.psnr else None
        # An attack on a part of the messages, such as a control, leads only where no other is as strong.
        whole = FOUND not in cell.scores or 2 * cell.scores[FOUND].attacked >= self._most
        order = (SEEN, FOUND) if word is Verdict.RECOGNISABLE else (FOUND, SEEN)  # by what the verdict is of
        first, second = (cell.mean(*of) or 0.0 for of in order)
        return -list(Verdict).index(word), whole, first, second, cell.status == "ok", psnr or 0.0

    @property
    def of(self) -> Scored | None:
        """The score behind the verdict: that of recognisable images where it is of these, else of identified ones."""
        if self.verdict is Verdict.RECOGNISABLE:
            return SEEN
        return next((key for key in (FOUND, CELLS.decides, ATTRIBUTES.decides) if key in self.cell.scores), None)

    @property
    def found(self) -> Count | None:
        """(k, n): images that the strongest attack makes recognisable, or identifies where it makes none recognisable."""
        return self.cell.count(self.of) if self.of in (FOUND, SEEN) else None

    @property
    def score(self) -> Score | None:
        """The share behind the verdict, with its interval."""
        return self.cell.scores.get(self.of) if self.of else None

    @property
    def probability(self) -> float | None:
        """Bound on the probability that the best of as many guesses of the class alone has as many images."""
        return min(1.0, self.tried * self.cell.chances.get(self.of, 1.0)) if self.of in (FOUND, SEEN) else None

    @property
    def attack(self) -> str:
        """Text of the strongest attack; "" without a score."""
        return self.cell.attack if self.score else ""

    @property
    def counted(self) -> str:
        """What is counted: "recognisable" or "identified" images, or shares "of cells" or "of values"; "" without a score."""
        return COUNTED[self.of] if self.of and self.score else ""

    @property
    def null(self) -> float | None:
        """The null baseline of cells or values; of images the largest chance of a guess that knows the class."""
        if not (self.of and self.score):
            return None
        return self.cell.chance if self.found else self.cell.null(self.of)

    @property
    def shown(self) -> str:
        """The count, or the share; "" without a score."""
        if self.score is None or self.score.mean is None:
            return ""
        share = " of ".join(map(str, self.found)) if self.found else f"{percent(self.score.mean)} {self.counted}"
        return share + dagger(self.cell.status)

    @property
    def interval(self) -> str:
        """The interval in per cent, the number of messages, the null baseline (of images where they have fewer others than 99), and
        whether chance may give as much.
        """
        if self.score is None:
            return ""
        ends, sent = self.score.within(percentage), self.score.messages
        known = self.null is not None and (not self.found or self.null > USUAL_CHANCE)
        parts = (
            f"{ends} %" if ends else "",
            f"{'chance' if self.found else 'null'} {percent(self.null)}" if known else "",
            "" if sent is None else f"in {count(sent, 'message')}",
            self.by_chance,
        )
        return ", ".join(filter(None, parts))

    @property
    def by_chance(self) -> str:
        """What is said of images that are found where the verdict is not that any are."""
        return "no more than chance may give" if self.found and self.found[0] and self.verdict not in LEAKS else ""

    @property
    def text(self) -> str:
        """Message, verdict, count and interval in a line."""
        counted = self.shown
        if self.found:
            # The verdict has said what was counted where it found something.
            counted += " images" if self.verdict in LEAKS else f" {self.counted}"
        ends = f" ({self.interval})" if counted and self.interval else ""
        said = ", ".join(filter(None, (self.verdict, counted))) + ends
        return ": ".join(filter(None, (self.title, said)))

    def to_json(self) -> dict[str, Any]:
        """For programs; numbers are None without a score."""
        score, cell, rung = self.score or Score(None), self.cell if self.score else None, self.rung
        seen, identified = (cell.recognisable, cell.identified) if cell else (None, None)
        return {
            "message": self.message, "real": self.real,
            "images": rung.images if rung else None, "steps": rung.steps if rung else None,
            "verdict": self.verdict.value, "of": self.counted,
            "found": self.found[0] if self.found else None, "attacked": score.attacked if cell else None,
            "share": score.mean, "low": score.low, "high": score.high,
            "recognisable": seen[0] if seen else None, "identified": identified[0] if identified else None,
            "chance": self.probability if cell else None, "null": self.null, "sent": score.messages if cell else None,
            "attack": self.attack, "tried": len(self.cells) if cell else 0, "adaptive": self.adaptive and cell is not None,
            "clients": cell.clients if cell else None, "status": cell.status if cell else "",
            "difference": asdict(self.difference) if cell and self.difference else None,
            "warnings": self.warnings, "title": self.title,
        }  # fmt: skip


def worst(messages: Iterable[Message]) -> Message | None:
    """The messages with the worst verdict; of equals the first."""
    return min(messages, key=lambda message: list(Verdict).index(message.verdict), default=None)


def judge(cells: Sequence[Cell]) -> list[Message]:
    """Attacks, without upper bounds, by the kind and size of message: real ones first, each from the smallest to the largest."""
    of_images = [cell for cell in cells if IMAGES.scored(cell.scores)]
    others = [cell for cell in cells if CELLS.scored(cell.scores) or ATTRIBUTES.scored(cell.scores)]
    groups = grouped(of_images or others, lambda cell: (cell.observation, cell.rung if cell.card.images else None))
    return sorted((Message(*key, tuple(of)) for key, of in groups.items()), key=lambda message: message.order)


def counts(score: Score) -> bool:
    """Whether the attack's failure says anything: its control passed, on enough images."""
    return score.status == "ok" and score.attacked - score.failures >= LEAST_IMAGES
