"""Whether a hybrid is better than random ones on images and seeds that the search never saw."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from simulations.report.studies.score import TAIL
from simulations.search.measured.proposals import CONTROL
from simulations.search.measured.results import HybridResult, MeanInterval, attack_works, outcomes
from simulations.search.measured.settings import Measured
from simulations.search.measured.trials import Judged, front

RESAMPLES = 20_000
LEVEL = 0.05
"""Chance that interval or rank recommends falsely, over all hybrids that were to be confirmed."""


@dataclass(frozen=True)
class Comparison:
    """A confirmed hybrid beside the random ones.

    Attributes:
        outcome: The hybrid.
        fewer: Mean share that attacks recover under random hybrids, less that under this one.
        low: Lower end of its interval, at the level that the number of hybrids to confirm leaves for each.
        high: The upper end.
        keeps: Whether the interval of the accuracy lost ends at ``tolerated`` or below.
        as_good: Random hybrids that lose at most ``tolerated`` in the mean and under which attacks recover no larger share.
        random: Number of random hybrids, those that failed among them.
        level: Largest chance of a false recommendation of this hybrid: ``LEVEL`` / number of hybrids to confirm.
    """

    outcome: HybridResult
    fewer: float
    low: float
    high: float
    keeps: bool
    as_good: int
    random: int
    level: float

    @property
    def chance(self) -> float:
        """Chance that a random hybrid ranks so high among as many others."""
        return chance_of_rank(self.as_good, self.random)

    @property
    def ranks(self) -> bool:
        """Whether its rank among the random hybrids is beyond chance."""
        return beyond_chance(self.as_good, self.random, self.level)

    @property
    def needed(self) -> int:
        """Random hybrids from which on a rank can be beyond chance."""
        return needed_controls(self.level)

    @property
    def recommended(self) -> bool:
        """Whether no seed failed, it keeps accuracy, and fewer images are recovered than under random hybrids, beyond chance.

        The last has two parts: the interval against their mean lies above 0, and few random hybrids are as good.
        """
        return not self.outcome.failed and self.keeps and self.low > 0 and self.ranks


def nominees(search: Measured, every: Sequence[Judged]) -> list[Judged]:
    """The hybrids of the front to confirm, by the rule of choice.

    A validation accuracy is uncertain, so that a small loss beyond ``tolerated`` must not exclude a hybrid that hides much.
    """
    rule = _rule(search, every)
    return sorted((one for one in front(every) if one.hybrid), key=rule)[: search.confirmed]


def in_order(search: Measured, every: Sequence[Judged]) -> list[Judged]:
    """All hybrids: those with more rungs first, then by the rule of choice; failed ones last."""
    rule = _rule(search, every)

    def place(one: Judged) -> tuple[float, ...]:
        failed = bool(one.failure) or not one.rungs
        return (failed, -len(one.rungs), *(rule(one) if one.rungs else ()))

    return sorted(every, key=place)


def _rule(search: Measured, every: Sequence[Judged]) -> Callable[[Judged], tuple[float, float]]:
    """The rule of choice, lower is better: share recovered + accuracy lost beyond ``tolerated`` / ``exchange``; then gain."""
    none = next((one.last.accuracy for one in every if not one.hybrid and one.complete), 0.0)

    def rule(one: Judged) -> tuple[float, float]:
        beyond = max(0.0, none - one.last.accuracy - search.tolerated)
        return one.last.share + beyond / search.exchange, one.last.gain

    return rule


def level_of(confirmed: Sequence[str]) -> float:
    """Largest chance of a false recommendation of each of the hybrids that were to be confirmed."""
    return LEVEL / max(1, len(confirmed))


def keeps(search: Measured, one: HybridResult, level: float) -> bool:
    """Whether it is shown to lose at most ``tolerated``: at 95 %, or at the level that several hybrids leave for each."""
    return bool(one.hybrid) and one.loss(min(TAIL, level / 2)).high <= search.tolerated


def undecided(search: Measured, every: Sequence[Judged], confirmed: Sequence[str]) -> bool:
    """Whether a confirmed hybrid may still be recommended when the other random hybrids are judged, too.

    It may not if it failed on a seed or is not shown to keep accuracy, and not if so many of the random ones judged so far are as
    good that its rank among all ``controls`` can no longer be beyond chance. So judging fewer of them changes no recommendation.
    """
    known = outcomes(every)
    random = [one for one in known if one.origin == CONTROL]
    level = level_of(confirmed)
    return attack_works(known) and any(
        not one.failed
        and keeps(search, one, level)
        and beyond_chance(_as_good(search, one, random), search.controls, level)
        for one in known
        if one.hybrid in confirmed
    )


def needed_controls(level: float) -> int:
    """Random hybrids from which on a rank can have a chance of ``level`` or less: 19 for 5 %, one confirmed hybrid."""
    return math.ceil(1 / level - 1e-9) - 1


def chance_of_rank(as_good: int, random: int) -> float:
    """Chance that a random hybrid ranks so high among as many others: (as good + 1) / (number + 1)."""
    return (as_good + 1) / (random + 1)


def beyond_chance(as_good: int, random: int, level: float) -> bool:
    """Whether a rank among random hybrids has at most the chance ``level``."""
    return chance_of_rank(as_good, random) <= level * (1 + 1e-9)


def compare(search: Measured, every: Sequence[Judged], confirmed: Sequence[str]) -> list[Comparison]:
    """Compare the confirmed hybrids with the random ones; nothing where fewer than two random ones were judged.

    The interval of the difference is the hull of two:

    - over images and random hybrids: the share of a hybrid has Jeffreys' posterior, Beta(k + 1/2, n - k + 1/2), of the images of
      all seeds. Random hybrids are drawn again with replacement, each with a share from its own posterior;
    - over seeds: the difference on each seed is one value, for Student's t. Images of one seed share its model, so that they are
      not independent.

    Args:
        search: The settings.
        every: Judgements on held-out images and seeds.
        confirmed: Texts of the hybrids that were to be confirmed; the level is divided by their number, failed ones among them.
    """
    known = outcomes(every)
    random = [one for one in known if one.origin == CONTROL]
    number = len({one.hybrid for one in every if one.origin == CONTROL})
    if len(random) < 2:
        return []
    generator = np.random.default_rng(0)
    draws = np.stack([_posterior(one, generator) for one in random])
    again = generator.integers(len(random), size=(len(random), RESAMPLES))
    means = np.take_along_axis(draws, again, 0).mean(0)
    mean, level = statistics.fmean(one.rate for one in random), level_of(confirmed)
    found = []
    for one in known:
        if one.hybrid not in confirmed or one.lost is None:
            continue
        low, high = np.quantile(means - _posterior(one, generator), [level / 2, 1 - level / 2])
        differences = _differences(one, random) or [0.0]  # no seed in common: an infinite interval
        seeds = MeanInterval.over_seeds(differences, level / 2)
        found.append(
            Comparison(
                one, mean - one.rate, min(float(low), seeds.low), max(float(high), seeds.high),
                keeps(search, one, level), _as_good(search, one, random), number, level,
            )
        )  # fmt: skip
    return found


def _differences(one: HybridResult, random: Sequence[HybridResult]) -> list[float]:
    """Mean share under random hybrids less that under one, for each seed on which it was judged."""
    found = []
    for seed, share in one.shares.items():
        others = [other.shares[seed] for other in random if seed in other.shares]
        if others:
            found.append(statistics.fmean(others) - share)
    return found


def _as_good(search: Measured, one: HybridResult, random: Sequence[HybridResult]) -> int:
    """Random hybrids that lose at most ``tolerated`` in the mean and under which attacks recover no larger share."""
    return sum(_loses_little(search, other) and other.rate <= one.rate for other in random)


def _loses_little(search: Measured, one: HybridResult) -> bool:
    """Whether a random hybrid loses at most ``tolerated`` in the mean; unlike a confirmed one, it has the benefit of the doubt."""
    return one.lost is not None and one.lost.mean <= search.tolerated


def _posterior(one: HybridResult, generator: np.random.Generator) -> NDArray[np.float64]:
    return generator.beta(one.recovered + 0.5, one.attacked - one.recovered + 0.5, RESAMPLES)
