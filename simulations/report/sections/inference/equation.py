"""Equation 1 of the delta protection paper, decided by intervals: does the adversary lose much more than the server half?

Source: Higgins et al., "Towards Privacy-Preserving Split Learning" (ADP), Eq. 1: S_alpha ~ S_beta, A_alpha >> A_beta and
|S_alpha - S_beta| << |A_alpha - A_beta|, with alpha before and beta after protection. It names no numbers; those here are ours.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from simulations.report.analysis.score import Score

LEAST_DROP = 0.1
"""What the adversary must lose at least for ">>", as a share: 10 percentage points."""
MOST_OF_DROP = 0.5
"""What the server half's difference may be at most for "<<", as a part of what the adversary loses."""

SATISFIED, NOT_SATISFIED, OPEN = "satisfied", "not satisfied", "cannot be told"
RULE = (
    "Equation 1 of the paper asks that the server's accuracy stays (S\N{GREEK SMALL LETTER ALPHA} \N{ALMOST EQUAL TO} "
    "S\N{GREEK SMALL LETTER BETA}) while the adversary's falls by much more; it names no numbers. Here it is satisfied where the "
    "adversary lost at least 10 percentage points and the server's accuracy changed by at most half of what the adversary lost, "
    "whatever lies within the 95 % intervals of both differences. It is not satisfied where nothing within these intervals meets "
    "that, and cannot be told otherwise, nor where the adversary is not validated on unprotected features."
)
"""As the page states it."""


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
        """The largest."""
        return max(abs(self.low), abs(self.high))


def difference(before: Score | None, after: Score | None) -> Difference | None:
    """Before minus after, with the interval of Newcombe's method 10 (square-and-add); None where one has no interval.

        low = d - sqrt((b - b_low)^2 + (a_high - a)^2),    high = d + sqrt((b_high - b)^2 + (a - a_low)^2)

    It takes the two as independent. They are of the same images, and agree more than independent ones would: the interval is wider
    than it need be.

    Source: Newcombe, "Interval estimation for the difference between independent proportions", 1998.
    """
    if before is None or after is None or before.mean is None or after.mean is None:
        return None
    if before.low is None or before.high is None or after.low is None or after.high is None:
        return None
    value = before.mean - after.mean
    low = value - math.hypot(before.mean - before.low, after.high - after.mean)
    high = value + math.hypot(before.high - before.mean, after.mean - after.low)
    return Difference(value, low, high)


def equation(server: Difference | None, adversary: Difference | None) -> str:
    """One of ``SATISFIED``, ``NOT_SATISFIED`` and ``OPEN``; see ``RULE``.

    Args:
        server: What the server half lost.
        adversary: What the adversary lost.
    """
    if server is None or adversary is None:
        return OPEN
    if adversary.low >= LEAST_DROP and server.most <= MOST_OF_DROP * adversary.low:
        return SATISFIED
    if adversary.high < LEAST_DROP or server.least > MOST_OF_DROP * adversary.high:
        return NOT_SATISFIED
    return OPEN
