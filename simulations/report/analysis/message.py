"""What attacks found in one kind and size of a defence's messages, in words and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from attacks.metrics.metric import ATTRIBUTES, CELLS
from simulations.report.analysis.paired import PairedDifference
from simulations.report.analysis.verdict import LEAKS, Judged
from simulations.report.studies.cell import FOUND, SEEN
from simulations.report.studies.score import Score
from simulations.report.text import count, dagger, percent, percentage, within

USUAL_CHANCE = 0.0105
"""Of images with about 99 others, which the glossary gives."""
COUNTED = {SEEN: "recognisable", FOUND: "identified", CELLS.decides: "of cells", ATTRIBUTES.decides: "of values"}
"""Score behind a verdict -> what it is a share of."""


@dataclass(frozen=True)
class Message(Judged):
    """The verdict on messages of one kind and size, with what a reader must know beside it.

    Attributes:
        difference: To no defence, by image; None where neither has any image.
        adaptive: An attack made against the defence was tried.
        warnings: What a reader must know of these messages alone.
    """

    difference: PairedDifference | None = None
    adaptive: bool = False
    warnings: tuple[str, ...] = ()

    @property
    def attack(self) -> str:
        """Text of the strongest attack; "" without a score."""
        return self.cell.attack if self.cell and self.score else ""

    @property
    def counted(self) -> str:
        """What is counted: "recognisable" or "identified" images, or shares "of cells" or "of values"; "" without a score."""
        return COUNTED[self.of] if self.of and self.score else ""

    @property
    def null(self) -> float | None:
        """The null baseline of cells or values; of images the largest chance of a guess that knows the class."""
        if not (self.cell and self.of and self.score):
            return None
        return self.cell.chance if self.found else self.cell.null(self.of)

    @property
    def shown(self) -> str:
        """The count, or the share; "" without a score."""
        if self.cell is None or self.score is None or self.score.mean is None:
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
        ends, sent = within(self.score.low, self.score.high, percentage), self.score.messages
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
        """Verdict, count and interval in a line."""
        counted = self.shown
        if self.found:
            # The verdict has said what was counted where it found something.
            counted += " images" if self.verdict[:5] == self.counted[:5] else f" {self.counted}"
        ends = f" ({self.interval})" if counted and self.interval else ""
        return ", ".join(filter(None, (self.verdict, counted))) + ends

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
