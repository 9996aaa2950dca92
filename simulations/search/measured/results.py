"""Results of hybrids over held-out seeds, with intervals."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from scipy.stats import t

from attacks.scoring.roc import binomial_interval
from simulations.report.analysis.accuracy_change import newcombe
from simulations.report.studies.score import TAIL, wilson
from simulations.search.measured.trials import Judged

READABLE = 0.5
"""Share of recovered images from which on the report calls a defence readable."""


@dataclass(frozen=True)
class MeanInterval:
    """A mean with its 95 % interval.

    Attributes:
        mean: The mean of the values.
        low: The lower end of the interval.
        high: The upper end; both ends are infinite for one value, which shows no spread.
        n: Number of values.
    """

    mean: float
    low: float
    high: float
    n: int

    @classmethod
    def over_seeds(cls, values: Sequence[float], tail: float = TAIL) -> MeanInterval:
        """Student's t over seeds; the ends are infinite for one value.

        Args:
            values: One for each seed.
            tail: Chance that the mean lies above the interval, and that it lies below it.
        """
        n, mean = len(values), statistics.fmean(values)
        half = float(t.ppf(1 - tail, n - 1)) * statistics.stdev(values) / math.sqrt(n) if n > 1 else math.inf
        return cls(mean, mean - half, mean + half, n)

    def hull(self, ends: tuple[float, float], least: float, most: float) -> MeanInterval:
        """Widen the interval to other ends, and cut finite ends to possible values, ``least`` to ``most``.

        Where all seeds test the same images, seeds that agree say nothing of other images: the other ends are those of one seed's
        images.
        """
        low, high = min(self.low, ends[0]), max(self.high, ends[1])
        return replace(
            self,
            low=max(low, least) if math.isfinite(low) else low,
            high=min(high, most) if math.isfinite(high) else high,
        )


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
        """Accuracy on held-out test images: Student's t over seeds, never narrower than Wilson's interval of one seed's images."""
        values = list(self.accuracies.values())
        return MeanInterval.over_seeds(values).hull(wilson(statistics.fmean(values), self.tested), 0.0, 1.0)

    @property
    def lost(self) -> MeanInterval | None:
        """Accuracy lost against no defence of the same seed; None for no defence."""
        return self.loss() if self.hybrid else None

    def loss(self, tail: float = TAIL) -> MeanInterval:
        """Accuracy lost against no defence of the same seed: Student's t over seeds, never narrower than Newcombe's interval.

        Newcombe's interval takes both accuracies as those of different images. They are of the same images, so that the interval is
        rather too wide than too narrow. ``tail`` is the chance on each side.
        """
        values = [self.without[seed] - one for seed, one in self.accuracies.items()]
        means = (
            statistics.fmean(self.without[seed] for seed in self.accuracies),
            statistics.fmean(self.accuracies.values()),
        )
        of_images = newcombe((means[0], self.tested), (means[1], self.tested), tail=tail)
        return MeanInterval.over_seeds(values, tail).hull(of_images, -1.0, 1.0)

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
        return replace(seeds.hull((low, high), 0.0, 1.0), mean=self.rate, n=self.attacked)


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
