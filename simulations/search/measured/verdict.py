"""Whether a hybrid is better than random ones on images and seeds that the search never saw."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import t

from attacks.scoring.roc import binomial_interval
from simulations.search.measured.proposals import CONTROL
from simulations.search.measured.settings import Measured
from simulations.search.measured.trials import Judged, front

RESAMPLES = 20_000
LEVEL = 0.05
"""Chance of a false recommendation, over all hybrids that were confirmed."""


@dataclass(frozen=True)
class MeanInterval:
    """A mean with its 95 % interval.

    Attributes:
        mean: It.
        low: The lower end.
        high: The upper end.
        n: Number of values.
    """

    mean: float
    low: float
    high: float
    n: int

    @classmethod
    def over_seeds(cls, values: Sequence[float]) -> MeanInterval:
        """Student's t over seeds; the ends are infinite for one value."""
        n, mean = len(values), statistics.fmean(values)
        half = float(t.ppf(0.975, n - 1)) * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf
        return cls(mean, mean - half, mean + half, n)


@dataclass(frozen=True)
class HybridResult:
    """One hybrid over all held-out seeds.

    Attributes:
        hybrid: Its text; "" for no defence.
        origin: See ``proposals``.
        accuracy: On held-out test images.
        lost: Accuracy lost against no defence of the same seed; None for no defence.
        recovered: Images that the strongest attack recovered, over all seeds.
        attacked: Images that it attacked.
        gain: Mean PSNR above the best null baseline, in dB.
    """

    hybrid: str
    origin: str
    accuracy: MeanInterval
    lost: MeanInterval | None
    recovered: int
    attacked: int
    gain: MeanInterval

    @property
    def share(self) -> MeanInterval:
        """Share of recovered images, with its Clopper-Pearson interval."""
        share, low, high = binomial_interval(self.recovered, self.attacked)
        return MeanInterval(share, low, high, self.attacked)


@dataclass(frozen=True)
class Comparison:
    """A confirmed hybrid beside the random ones.

    Attributes:
        outcome: The hybrid.
        fewer: Mean share that attacks recover under random hybrids, less that under this one.
        low: Lower end of its interval, at the level that the number of confirmed hybrids leaves for each.
        high: The upper end.
        keeps: Whether the mean accuracy lost is at most ``tolerated``.
        as_good: Random hybrids that lose at most ``tolerated`` and under which attacks recover no more images.
        random: Number of random hybrids.
    """

    outcome: HybridResult
    fewer: float
    low: float
    high: float
    keeps: bool
    as_good: int
    random: int

    @property
    def chance(self) -> float:
        """Chance that a random hybrid does as well as one more of them, by its rank: (as good + 1) / (number + 1)."""
        return (self.as_good + 1) / (self.random + 1)

    @property
    def recommended(self) -> bool:
        """Whether it keeps accuracy, and attacks recover fewer images than under random hybrids, beyond chance."""
        return self.keeps and self.low > 0


def nominees(search: Measured, every: Sequence[Judged]) -> list[Judged]:
    """The hybrids of the front to confirm: lowest share of recovered images + accuracy lost beyond ``tolerated`` / ``exchange``.

    A validation accuracy is uncertain, so that a small loss beyond ``tolerated`` must not exclude a hybrid that hides much.
    """
    none = next((one.last.accuracy for one in every if not one.hybrid and one.complete), 0.0)

    def rank(one: Judged) -> tuple[float, float]:
        beyond = max(0.0, none - one.last.accuracy - search.tolerated)
        return one.last.share + beyond / search.exchange, one.last.gain

    return sorted((one for one in front(every) if one.hybrid), key=rank)[: search.confirmed]


def outcomes(every: Sequence[Judged]) -> list[HybridResult]:
    """Each hybrid over the seeds on which it and no defence were judged, in the order of the queue."""
    none = {one.seed: one.last.accuracy for one in every if not one.hybrid and one.complete}
    found: dict[str, list[Judged]] = {}
    for one in every:
        if one.complete and one.seed in none:
            found.setdefault(one.hybrid, []).append(one)
    return [
        HybridResult(
            hybrid,
            of[0].origin,
            MeanInterval.over_seeds([one.last.accuracy for one in of]),
            MeanInterval.over_seeds([none[one.seed] - one.last.accuracy for one in of]) if hybrid else None,
            sum(one.last.recovered for one in of),
            sum(one.last.attacked for one in of),
            MeanInterval.over_seeds([one.last.gain for one in of]),
        )
        for hybrid, of in found.items()
    ]


def compare(search: Measured, known: Sequence[HybridResult], confirmed: Sequence[str]) -> list[Comparison]:
    """Compare the confirmed hybrids with the random ones; nothing where fewer than two random ones were judged.

    Uncertainty of a share: Jeffreys' posterior, Beta(k + 1/2, n - k + 1/2). Uncertainty of the mean over random hybrids: they are
    drawn again with replacement, each with a share from its own posterior. That the attacked images are the same is not used,
    which makes intervals wider.
    """
    random = [one for one in known if one.origin == CONTROL]
    chosen = [one for one in known if one.hybrid in confirmed and one.lost is not None]
    if len(random) < 2:
        return []
    generator = np.random.default_rng(0)
    draws = np.stack([_posterior(one, generator) for one in random])
    again = generator.integers(len(random), size=(len(random), RESAMPLES))
    means = np.take_along_axis(draws, again, 0).mean(0)
    mean, tail = statistics.fmean(one.share.mean for one in random), LEVEL / 2 / max(1, len(chosen))
    found = []
    for one in chosen:
        low, high = np.quantile(means - _posterior(one, generator), [tail, 1 - tail])
        as_good = sum(_keeps(search, other) and other.share.mean <= one.share.mean for other in random)
        found.append(
            Comparison(one, mean - one.share.mean, float(low), float(high), _keeps(search, one), as_good, len(random))
        )
    return found


def _keeps(search: Measured, one: HybridResult) -> bool:
    return one.lost is not None and one.lost.mean <= search.tolerated


def _posterior(one: HybridResult, generator: np.random.Generator) -> NDArray[np.float64]:
    return generator.beta(one.recovered + 0.5, one.attacked - one.recovered + 0.5, RESAMPLES)
