"""Equation 1 of the delta protection paper, decided by intervals: the adversary must lose much more than the server half.

Source: Higgins et al., "Towards Privacy-Preserving Split Learning" (ADP), Eq. 1: S_alpha ~ S_beta, A_alpha >> A_beta and
|S_alpha - S_beta| << |A_alpha - A_beta|, with alpha before and beta after protection. It names no numbers; those here are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from simulations.report.studies.intervals import square_and_add, wilson
from simulations.report.studies.score import Score

LEAST_DROP = 0.1
"""What the adversary must lose at least for ">>", as a share: 10 percentage points."""
MOST_OF_DROP = 0.5
"""What the server half's difference may be at most for "<<", as a part of what the adversary loses."""

MARGIN = 0.04
"""What the server half's accuracy may change at most for "~": 4 percentage points, about what the paper's abstract reports."""

SATISFIED, NOT_SATISFIED, OPEN = "satisfied", "not satisfied", "undecided"


@dataclass(frozen=True)
class Difference:
    """A difference of two accuracies with its interval, as shares."""

    value: float
    low: float
    high: float

    @property
    def least(self) -> float:
        """The smallest absolute difference in the interval."""
        return 0.0 if self.low <= 0 <= self.high else min(abs(self.low), abs(self.high))

    @property
    def most(self) -> float:
        """The largest absolute difference in the interval."""
        return max(abs(self.low), abs(self.high))


def difference(before: Score | None, after: Score | None) -> Difference | None:
    """Before minus after, with the interval of ``square_and_add``; None where one has no interval."""
    if not (before and after and before.ends and after.ends) or before.mean is None or after.mean is None:
        return None
    ends = square_and_add((before.mean, *before.ends), (after.mean, *after.ends))
    return Difference(before.mean - after.mean, *ends)


def paired(before: Score | None, after: Score | None, lost: Score | None, gained: Score | None) -> Difference | None:
    """Before minus after where both are of the same images: Newcombe's square-and-add for paired proportions (method 10).

        low = d - sqrt(l1^2 - 2 phi l1 u2 + u2^2),    high = d + sqrt(u1^2 - 2 phi u1 l2 + l2^2)

    with d = lost - gained, l and u what Wilson's intervals reach below and above, and phi the correlation of the fourfold table
    with its continuity correction. Over seeds it takes the mean table of the same n images. Without the two shares the pairs are
    not known; then it is the wider interval of ``difference``.

    Args:
        before: Share of right answers before.
        after: Likewise after.
        lost: Share of images that were answered rightly before and are not after.
        gained: The reverse.

    Source: Newcombe, "Improved confidence intervals for the difference between binomial proportions based on paired data", 1998.
    """
    if before is None or after is None or lost is None or gained is None:
        return difference(before, after)
    if before.mean is None or lost.mean is None or gained.mean is None or not lost.n:
        return difference(before, after)
    n, first = images_of(lost), before.mean
    second = first - lost.mean + gained.mean
    (low1, high1), (low2, high2) = wilson(first, n), wilson(second, n)
    product = (first - lost.mean) * (1 - first - gained.mean) - lost.mean * gained.mean
    if product > 0:
        product = max(product - 1 / (2 * n), 0.0)
    spread = math.sqrt(max(first * (1 - first) * second * (1 - second), 0.0))
    phi = product / spread if spread else 0.0
    below, above = (first - low1, high2 - second), (high1 - first, second - low2)
    reach = [math.sqrt(max(x * x - 2 * phi * x * y + y * y, 0.0)) for x, y in (below, above)]
    value = lost.mean - gained.mean
    return Difference(value, value - reach[0], value + reach[1])


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
    from attacks.scoring.roc import binomial_interval

    after = Score(*binomial_interval(round(null * images), images))
    for hits in range(round(null * images), images + 1):
        found = difference(Score(*binomial_interval(hits, images)), after)
        if found is not None and found.low >= LEAST_DROP:
            return hits / images
    return None


def decided(server: Difference | None, adversary: Difference | None) -> str:
    """``SATISFIED``, ``NOT_SATISFIED`` or ``OPEN``, by the losses of the server half and the adversary; the page says how."""
    if server is None or adversary is None:
        return OPEN
    if adversary.low >= LEAST_DROP and server.most <= min(MARGIN, MOST_OF_DROP * adversary.low):
        return SATISFIED
    if adversary.high < LEAST_DROP or server.least > min(MARGIN, MOST_OF_DROP * adversary.high):
        return NOT_SATISFIED
    return OPEN
