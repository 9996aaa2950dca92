"""Differences between a defence and none, paired by image where the same images were attacked under both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from simulations.report.studies.cell import SEEN, Cell
from simulations.report.studies.intervals import LEAST_MESSAGES, LEVEL, Count, paired, unpaired
from simulations.report.studies.messages import by_message
from simulations.report.studies.rows import Key, grouped
from simulations.report.studies.score import Scored
from simulations.report.studies.stages import names_of
from simulations.report.text import count, percentage

FEWER, MORE, ALIKE = "fewer", "more", "not distinguishable from no defence"


@dataclass(frozen=True)
class PairedDifference:
    """What a defence changes in the share of images that the strongest attack finds.

    Attributes:
        of: What is counted, "recognisable" or "identified".
        under: (k, n) under the defence, of the paired images where they are.
        without: (k, n) without one.
        change: The first share less the second; ``low`` and ``high``: its 95 % interval.
        p: Of the two-sided test, corrected for the number of defences (Holm).
        paired: Whether the images were paired (``intervals.paired``, else ``intervals.unpaired``).
        messages: Messages that the images were in, of the side with fewer.
        by: The strongest attack without a defence, where it is not the one under the defence; else "".
    """

    of: str
    under: Count
    without: Count
    change: float
    low: float
    high: float
    p: float
    paired: bool
    messages: int
    by: str = ""

    @property
    def word(self) -> str:
        """``FEWER``, ``MORE`` or ``ALIKE``."""
        return ALIKE if self.p >= LEVEL else FEWER if self.change < 0 else MORE

    @property
    def said(self) -> str:
        """The difference in words, with what was counted."""
        if self.messages < min(LEAST_MESSAGES, self.under[1]):
            return "too few messages to compare with no defence"
        return ALIKE if self.word == ALIKE else f"{self.word} {self.of} than without a defence"

    @property
    def text(self) -> str:
        """The difference with its interval in percentage points, the number of images, and the attack without a defence where it is
        another.
        """
        ends = f"{percentage(self.low)} to {percentage(self.high)} points"
        several = f" in {count(self.messages, 'message')}" if self.messages < self.under[1] else ""
        by = f", without a defence by {self.by}" if self.by else ""
        return f"{self.said} ({'paired, ' if self.paired else ''}{ends}, n = {self.under[1]}{several}{by})"


def differences(
    attacks: Mapping[str, Mapping[Key, Sequence[Cell]]], plain: Mapping[Key, tuple[Cell, Scored]]
) -> dict[tuple[str, Key], PairedDifference]:
    """(defence, ``Message.place``) -> its difference to no defence, for messages in which the attacks of either find an image.

    Corrected for the number of defences that face the same kind and size of message. The side of a defence is of the attack that
    has the highest compared score.

    ``attacks`` are by defence and place; ``plain`` has the strongest one without a defence, and the score behind its verdict.
    """
    changes: dict[tuple[str, Key], PairedDifference] = {}
    for place, (without, of) in plain.items():
        raw = {
            defense: difference
            for defense, tried in attacks.items()
            if defense and (difference := _difference(tried.get(place, ()), without, of))
        }
        changes |= {(defense, place): corrected for defense, corrected in holm(raw).items()}
    return changes


def holm(raw: Mapping[str, PairedDifference]) -> dict[str, PairedDifference]:
    """The same with probabilities corrected for their number (Holm 1979)."""
    corrected, least = dict[str, PairedDifference](), 0.0
    for at, (name, difference) in enumerate(sorted(raw.items(), key=lambda item: item[1].p)):
        least = max(least, min(1.0, (len(raw) - at) * difference.p))
        corrected[name] = replace(difference, p=least)
    return corrected


def _difference(tried: Sequence[Cell], plain: Cell, of: Scored) -> PairedDifference | None:
    able = [cell for cell in tried if cell.count(of)]
    if not able:
        return None
    cell = max(able, key=lambda attack: attack.mean(*of) or 0.0)
    under, without = cell.count(of), plain.count(of)
    if under is None or without is None or not (under[0] or without[0]):
        return None
    if pairs := _pairs(cell, plain, of):
        under, without = ((sum(pair[at] for _, pair in pairs), len(pairs)) for at in (0, 1))
        messages = [
            (sum(hits == (1, 0) for _, hits in group), sum(hits == (0, 1) for _, hits in group), len(group))
            for group in grouped(pairs, lambda pair: pair[0]).values()
        ]
        change, sent = paired(messages), len(messages)
    else:
        sides = [_messages(attack, counted, of) for attack, counted in ((cell, under), (plain, without))]
        change, sent = unpaired(*sides), min(map(len, sides))
    word = "recognisable" if of == SEEN else "identified"
    return PairedDifference(word, under, without, *change, bool(pairs), sent, _other(plain.attack, cell.attack))


def _other(attack: str, than: str) -> str:
    """The names of an attack's stages, or its text where only settings differ from those of another; "" for the same attack."""
    names = " + ".join(names_of(attack))
    return "" if attack == than else attack if names == " + ".join(names_of(than)) else names


def _messages(cell: Cell, counted: Count, of: Scored) -> list[Count]:
    """(k, n) of each message; of each image where the rows do not say which message it was in."""
    hits, missed = counted[0], counted[1] - counted[0]
    return by_message(cell.each.get(of, {}).values()) or [(1, 1)] * hits + [(0, 1)] * missed


def _pairs(cell: Cell, plain: Cell, of: Scored) -> list[tuple[str, tuple[int, int]]]:
    """Of each image that was attacked under both: its message, and whether it is found (under, without).

    Empty where they are fewer than half of the images of each side.
    """
    own, other = cell.each.get(of, {}), plain.each.get(of, {})
    both = [image for image in own if image in other] if cell.comparable and plain.comparable else []
    if 2 * len(both) < min(len(own), len(other)):
        return []
    return [(own[image][0], (own[image][1], other[image][1])) for image in both]
