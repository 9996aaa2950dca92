"""Both privacy scores side by side: their agreement on a search's policies, and the choice by the other score."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.stats import rankdata, spearmanr

from defenses.images.ats import Policy
from simulations.search.folder import Scored
from simulations.search.settings import OTHER, PAPER, RELEASED, Search
from simulations.search.space import disjoint, text_of

FEWEST = 3
"""Policies below which ranks say nothing."""

RESAMPLES = 2000

NAMES = {RELEASED: "S_pri, released code", PAPER: "S_pri, paper"}
"""Of columns and axes."""

MEANINGS = {
    RELEASED: "the score of the authors' released code (the mean over parameter tensors of their own cosines, trapezoid rule)",
    PAPER: "the score of the paper's Eqs. 5 and 7 (the cosine of the whole gradients, summed without the end of the way)",
}


class RankCorrelation(NamedTuple):
    """Spearman's rank correlation.

    Attributes:
        value: In [-1, 1].
        low: Lower end of its 95 % interval: percentiles over policies drawn with replacement.
        high: The upper end.
        n: Policies.
    """

    value: float
    low: float
    high: float
    n: int

    def __str__(self) -> str:
        return f"{self.value:.2f} (95 % interval {self.low:.2f} to {self.high:.2f}, n = {self.n})"


def rank_correlation(first: Sequence[float], second: Sequence[float]) -> RankCorrelation | None:
    """Spearman's rank correlation of two scores of the same policies; None for fewer than three, or where one is constant."""
    values = np.array([first, second], dtype=float)
    count = values.shape[1]
    if count < FEWEST or (np.ptp(values, axis=1) == 0).any():
        return None
    draws = np.random.default_rng(0).integers(count, size=(RESAMPLES, count))
    ranks = rankdata(values[:, draws], axis=2)
    ranks -= ranks.mean(2, keepdims=True)
    with np.errstate(invalid="ignore"):  # a draw of one policy alone has no correlation, and does not count
        found = (ranks[0] * ranks[1]).sum(1) / np.sqrt((ranks**2).sum(2).prod(0))
    low, high = np.nanpercentile(found, [2.5, 97.5])
    return RankCorrelation(float(spearmanr(*values).statistic), float(low), float(high), count)


@dataclass(frozen=True)
class TwoScores:
    """The two scores of a search, for its page.

    Attributes:
        scored: Candidates that have both.
        agreement: Of their ranks; None where there are too few.
        chosen: Policies that the search chose.
        by_other: Those that it would have chosen by the other score.
        search: The settings.
    """

    scored: tuple[Scored, ...]
    agreement: RankCorrelation | None
    chosen: str
    by_other: str
    search: Search

    @classmethod
    def of(
        cls, candidates: Sequence[Scored], passed: Sequence[Scored], chosen: str, channels: int, search: Search
    ) -> TwoScores:
        """Compare the two over all candidates, of which some passed the threshold; ``chosen`` is the result of the search."""
        both = tuple(one for one in candidates if one.scores.privacy is not None and one.scores.other is not None)
        agreement = rank_correlation(
            [one.scores.privacy or 0.0 for one in both], [one.scores.other or 0.0 for one in both]
        )
        ranked: list[Policy] = [one.policy for one in sorted(passed, key=lambda one: (one.scores.other, one.policy))]
        return cls(both, agreement, chosen, text_of(disjoint(ranked, search.policies, channels)), search)

    @property
    def own_name(self) -> str:
        """Name of the score that chooses."""
        return NAMES[self.search.privacy_score]

    @property
    def other_name(self) -> str:
        """Name of the other score."""
        return NAMES[OTHER[self.search.privacy_score]]

    @property
    def rule(self) -> str:
        """Statement of which score chooses, and which is shown for comparison."""
        own, other = (MEANINGS[name] for name in (self.search.privacy_score, OTHER[self.search.privacy_score]))
        return f"Two scores go under the name S_pri. Policies are chosen by {own}; beside it stands {other}."

    @property
    def verdict(self) -> str:
        """Statement of their agreement."""
        if self.agreement is None:
            return "Too few policies have both scores to compare their ranks."
        same = self.by_other == self.chosen
        return (
            f"Spearman's rank correlation of the two over the policies of this search that have both: {self.agreement}. By the "
            f"other score the search would have chosen {'the same policies' if same else self.by_other or 'none'}."
        )
