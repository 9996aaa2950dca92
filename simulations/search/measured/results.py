"""Results of hybrids over held-out seeds, with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from scipy.stats import norm, t

from attacks.scoring.roc import binomial_interval
from simulations.search.measured.trials import Judged

READABLE = 0.5
"""Share of recovered images from which on the report calls a defence readable."""
TAIL = 0.025
"""Chance on each side of a 95 % interval."""


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
    def over_seeds(cls, values: Sequence[float], tail: float = TAIL, of_images: float = 0.0) -> MeanInterval:
        """Student's t over seeds; the ends are infinite for one value.

        Args:
            values: One for each seed.
            tail: Chance that the mean lies above the interval, and that it lies below it.
            of_images: Standard error of one value where all seeds test the same images: seeds that agree say nothing of other
                images, so that the interval is never narrower than with this error and a normal distribution.
        """
        n, mean = len(values), statistics.fmean(values)
        half = float(t.ppf(1 - tail, n - 1)) * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf
        half = max(half, float(norm.ppf(1 - tail)) * of_images)
        return cls(mean, mean - half, mean + half, n)


@dataclass(frozen=True)
class HybridResult:
    """One hybrid over all held-out seeds.

    Attributes:
        hybrid: Its text; "" for no defence.
        origin: See ``proposals``.
        accuracies: Seed -> accuracy on held-out test images.
        without: Seed -> that of no defence.
        tested: Number of these images; they are the same for all seeds.
        counts: Seed -> images that the strongest attack recovered, and images that it attacked.
        gain: Mean PSNR above the best null baseline, in dB.
        failed: Seeds on which it, or no defence, failed; the numbers above are those of the other seeds.
    """

    hybrid: str
    origin: str
    accuracies: Mapping[int, float]
    without: Mapping[int, float]
    tested: int
    counts: Mapping[int, tuple[int, int]]
    gain: MeanInterval
    failed: tuple[int, ...] = ()

    @property
    def accuracy(self) -> MeanInterval:
        """On held-out test images."""
        values = list(self.accuracies.values())
        error = math.sqrt(_variance(statistics.fmean(values), self.tested))
        return MeanInterval.over_seeds(values, of_images=error)

    @property
    def lost(self) -> MeanInterval | None:
        """Accuracy lost against no defence of the same seed; None for no defence."""
        return self.loss() if self.hybrid else None

    def loss(self, tail: float = TAIL) -> MeanInterval:
        """The same; ``tail`` as in ``over_seeds``. Both accuracies are taken as of different images, which is never too narrow."""
        values = [self.without[seed] - one for seed, one in self.accuracies.items()]
        means = (
            statistics.fmean(self.accuracies.values()),
            statistics.fmean(self.without[seed] for seed in self.accuracies),
        )
        error = math.sqrt(sum(_variance(mean, self.tested) for mean in means))
        return MeanInterval.over_seeds(values, tail, error)

    @property
    def recovered(self) -> int:
        """Images that the strongest attack recovered, over all seeds."""
        return sum(recovered for recovered, _ in self.counts.values())

    @property
    def attacked(self) -> int:
        """Images that it attacked, over all seeds."""
        return sum(attacked for _, attacked in self.counts.values())

    @property
    def rate(self) -> float:
        """Share of recovered images over all seeds."""
        return self.recovered / self.attacked

    @property
    def shares(self) -> dict[int, float]:
        """Seed -> share of recovered images."""
        return {seed: recovered / attacked for seed, (recovered, attacked) in self.counts.items()}

    @property
    def share(self) -> MeanInterval:
        """Share of recovered images, with the hull of two intervals: Clopper-Pearson over images, Student's t over seeds.

        Images of one seed share its model, so that an interval over images alone can be too narrow.
        """
        _, low, high = binomial_interval(self.recovered, self.attacked)
        seeds = MeanInterval.over_seeds(list(self.shares.values()))
        return MeanInterval(self.rate, min(low, seeds.low), max(high, seeds.high), self.attacked)


def outcomes(every: Sequence[Judged]) -> list[HybridResult]:
    """Each hybrid over the seeds on which it and no defence were judged, in the order of the queue.

    A hybrid without such a seed is left out.
    """
    none = {one.seed: one.last.accuracy for one in every if not one.hybrid and one.complete}
    seeds = sorted({one.seed for one in every})
    found: dict[str, list[Judged]] = {}
    for one in every:
        if one.complete and one.seed in none:
            found.setdefault(one.hybrid, []).append(one)
    return [
        HybridResult(
            hybrid,
            of[0].origin,
            {one.seed: one.last.accuracy for one in of},
            {one.seed: none[one.seed] for one in of},
            of[0].last.tested,
            {one.seed: (one.last.recovered, one.last.attacked) for one in of},
            MeanInterval.over_seeds([one.last.gain for one in of]),
            tuple(seed for seed in seeds if seed not in {one.seed for one in of}),
        )
        for hybrid, of in found.items()
    ]


def attack_works(results: Sequence[HybridResult]) -> bool:
    """Whether the attack recovers at least half of the images without a defence: else its failures mean nothing."""
    return any(one.rate >= READABLE for one in results if not one.hybrid)


def _variance(share: float, n: int) -> float:
    """Of a share of n independent images."""
    return share * (1 - share) / n
