"""Differences between a defence and none, paired by image: the same images were attacked under both."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from simulations.report.analysis.verdict import Judged
from simulations.report.studies.cell import FOUND, SEEN, Cell, Count
from simulations.report.studies.control import LEVEL
from simulations.report.studies.score import Scored, newcombe
from simulations.report.text import percentage

Z = 1.959963984540054
FEWER, MORE, ALIKE = "fewer", "more", "not distinguishable from no defence"


@dataclass(frozen=True)
class PairedDifference:
    """What a defence changes in the share of images that the strongest attack finds.

    Attributes:
        of: What is counted, "recognisable" or "identified".
        under: (k, n) under the defence.
        without: (k, n) without one.
        change: The first share less the second.
        low: Lower end of its 95 % interval.
        high: Upper end.
        p: Of the exact two-sided test, corrected for the number of defences (Holm).
        paired: Whether the images were paired: by the discordant pairs (McNemar), else by Fisher's exact test.
    """

    of: str
    under: Count
    without: Count
    change: float
    low: float
    high: float
    p: float
    paired: bool

    @property
    def word(self) -> str:
        """``FEWER``, ``MORE`` or ``ALIKE``."""
        return ALIKE if self.p >= LEVEL else FEWER if self.change < 0 else MORE

    @property
    def said(self) -> str:
        """The difference in words, with what was counted."""
        return ALIKE if self.word == ALIKE else f"{self.word} {self.of} than without a defence"

    @property
    def text(self) -> str:
        """The difference with its interval in percentage points and the number of images."""
        ends = f"{percentage(self.low)} to {percentage(self.high)} points"
        return f"{self.said} ({'paired, ' if self.paired else ''}{ends}, n = {self.under[1]})"


def differences(lines: Mapping[str, Sequence[Judged]]) -> dict[tuple[str, str], PairedDifference]:
    """(defence, ``Judged.title``) -> its difference to no defence, for messages in which the attacks of either find an image.

    Corrected for the number of defences that face the same kind and size of message. Both sides are of their strongest attack.
    """
    plain = {one.title: one.cell for one in lines.get("", ()) if one.cell}
    found: dict[tuple[str, str], PairedDifference] = {}
    for title, without in plain.items():
        raw = {
            defense: difference
            for defense, judged in lines.items()
            for one in judged
            if defense and one.title == title and one.cell and (difference := _difference(one.cell, without))
        }
        found |= {(defense, title): one for defense, one in holm(raw).items()}
    return found


def holm(raw: Mapping[str, PairedDifference]) -> dict[str, PairedDifference]:
    """The same with probabilities corrected for their number (Holm 1979)."""
    found, least = dict[str, PairedDifference](), 0.0
    for at, (name, one) in enumerate(sorted(raw.items(), key=lambda item: item[1].p)):
        least = max(least, min(1.0, (len(raw) - at) * one.p))
        found[name] = replace(one, p=least)
    return found


def _difference(cell: Cell, plain: Cell) -> PairedDifference | None:
    of = SEEN if any(one.count(SEEN) and one.mean(*SEEN) for one in (cell, plain)) else FOUND
    under, without = cell.count(of), plain.count(of)
    if under is None or without is None or not (under[0] or without[0]):
        return None
    word = "recognisable" if of == SEEN else "identified"
    if pairs := _pairs(cell, plain, of):
        gained, lost = (sum(one == pair for one in pairs) for pair in ((1, 0), (0, 1)))
        ends = paired_interval(gained, lost, len(pairs))
        return PairedDifference(
            word, under, without, (gained - lost) / len(pairs), *ends, exact_sign(gained, lost), True
        )
    from scipy.stats import fisher_exact

    shares = [(k / n, n) for k, n in (under, without)]
    p = float(fisher_exact(np.array([[k, n - k] for k, n in (under, without)])).pvalue)
    return PairedDifference(word, under, without, shares[0][0] - shares[1][0], *newcombe(*shares), p, False)


def _pairs(cell: Cell, plain: Cell, of: Scored) -> list[tuple[int, int]]:
    """(under, without) of each image; empty where the same images were not attacked under both."""
    own, other = cell.each.get(of, {}), plain.each.get(of, {})
    return [(own[image], other[image]) for image in own] if own.keys() == other.keys() else []


def exact_sign(gained: int, lost: int) -> float:
    """Two-sided probability of as uneven discordant pairs, were both directions alike: the exact test of McNemar (1947)."""
    from scipy.stats import binomtest

    return float(binomtest(gained, gained + lost).pvalue) if gained + lost else 1.0


def paired_interval(gained: int, lost: int, n: int) -> tuple[float, float]:
    """95 % interval of (gained - lost) / n of n pairs, within [-1, 1].

    Source: Bonett and Price, "Adjusted Wald confidence interval for a difference of binomial proportions based on paired data",
    Journal of Educational and Behavioral Statistics 2012, Eq. 8: one discordant pair is added in each direction.
    """
    more, less = (gained + 1) / (n + 2), (lost + 1) / (n + 2)
    half = Z * math.sqrt((more + less - (more - less) ** 2) / (n + 2))
    return max(more - less - half, -1.0), min(more - less + half, 1.0)
