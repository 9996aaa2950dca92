"""Epsilon of sampled Gaussian steps from their privacy loss random variables (PRV), for the neighbours that the bound names.

The loss of a step is log P(x) / Q(x) at an output x drawn from P, where P and Q are the outputs on two neighbouring data sets.
Opacus composes the losses of all steps numerically, with a bound on its error. Its own pair is one example more in P. Two pairs
are added here:

    remove     P = (1 - q) N(0, z^2) + q N(1, z^2)    Q = N(0, z^2)
    add        P = N(0, z^2)                          Q = (1 - q) N(0, z^2) + q N(1, z^2)
    replace    P = (1 - q) N(0, z^2) + q N(1, z^2)    Q = (1 - q) N(0, z^2) + q N(-1, z^2)

Each dominates every pair of clipped gradients. A test region A of probability p under N(0, z^2) has at most Phi(Phi^-1(p) + 1 / z)
under a Gaussian whose mean is at most 1 away, and at least Phi(Phi^-1(p) - 1 / z) under another. A half-line reaches both at once.
The outputs without the example, drawn or not, are the same in P and Q, and a hockey-stick divergence is convex in both.

Source: Gopi, Lee, Wutschitz, "Numerical Composition of Differential Privacy" (NeurIPS 2021); Zhu, Dong, Wang, "Optimal Accounting
of Differential Privacy via Characteristic Function" (AISTATS 2022) for pairs that dominate and for the two directions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE, SENSITIVITY
from defenses.training.quiet_import import opacus_module

Array = NDArray[np.float64]
Steps = Sequence[tuple[float, float, int]]
"""(noise over sensitivity, sample rate in (0, 1], number of steps) of each entry."""

ADDED, REMOVED, REPLACED = "add", "remove", "replace"
DIRECTIONS = {ADD_OR_REMOVE: (REMOVED, ADDED), REPLACE_ONE: (REPLACED,)}
"""Neighbours -> the pairs whose epsilon counts; the largest is the bound. The pair of a replacement is its own mirror image."""

CLOSE, LARGEST_ERROR = 0.01, 0.5
"""Of epsilon: the error that is aimed at, as a share of epsilon up to 1; and the largest allowed, for which the theory of the grid
holds well. The result lies above the exact value by at most twice the error."""
SHARES = (0.02, 0.05)
"""Of epsilon: the errors that are allowed where the grid of a smaller one would be too large."""
SHARE_OF_DELTA = 1e-3
"""The part of delta that pays for the numerical error."""
MOST_POINTS = 2**23
"""Of the grids of all entries together: 64 MiB for each array."""
LONGEST_LOSS = 700.0
"""Half the width of the grid: exp of it is still a float."""
_ORDERS = (1.25, 1.5, 1.75, *range(2, 12), 14, 16, 20, 24, 32, 48, 64, 128, 256, 512)
"""Of the Renyi divergences that bound the tails of the loss; each gives a valid width."""


@dataclass(frozen=True)
class SampledPair:
    """The privacy loss of one step.

    Attributes:
        noise: Standard deviation of the noise over the sensitivity (2 under a replacement, else 1), above 0.
        rate: Probability q of an example in a batch, in (0, 1].
        direction: ``ADDED``, ``REMOVED`` or ``REPLACED``.
    """

    noise: float
    rate: float
    direction: str

    def cdf(self, losses: Array) -> Array:
        """Probability under P that the loss is at most each of ``losses`` (n,)."""
        from scipy.special import ndtr  # slow to import

        std = self.noise * (SENSITIVITY[REPLACE_ONE] if self.direction == REPLACED else 1)
        if self.direction == ADDED:  # the loss is minus that of REMOVED, at a point drawn from N(0, z^2)
            return np.asarray(ndtr(-self._point(-losses, std) / std))
        points = self._point(losses, std)
        return np.asarray((1 - self.rate) * ndtr(points / std) + self.rate * ndtr((points - 1) / std))

    def _point(self, losses: Array, std: float) -> Array:
        """The output x at which log P(x) / Q(x) of ``REPLACED``, else of ``REMOVED``, has each value; -inf below all values."""
        if self.direction == REPLACED:
            # With v = exp(x / z^2 - t / 2), P(x) = exp(t) Q(x) is v - 1 / v = 2 sinh(t / 2) (1 - q) / q exp(1 / (2 z^2)).
            ratio = (1 - self.rate) / self.rate * math.exp(1 / (2 * std**2))
            return np.asarray(std**2 * (losses / 2 + np.arcsinh(ratio * np.sinh(losses / 2))))
        absent = (1 - self.rate) * np.exp(-losses)
        with np.errstate(divide="ignore"):
            return std**2 * (losses + np.log1p(-np.minimum(absent, 1.0)) - math.log(self.rate)) + 0.5


class _Truncated:
    """A pair's loss under the condition that it lies on the grid, as ``opacus`` makes it discrete."""

    def __init__(self, pair: SampledPair, domain: Any) -> None:
        self._pair, self._domain = pair, domain
        self._low, high = pair.cdf(np.array([domain.t_min, domain.t_max]))
        self._mass = high - self._low

    def cdf(self, losses: Array) -> Array:
        inside = (self._pair.cdf(losses) - self._low) / self._mass
        return np.where(losses < self._domain.t_min, 0.0, np.where(losses < self._domain.t_max, inside, 1.0))

    def mean(self) -> float:
        """By the trapezoidal rule on the grid, whose error is of the order of the density at its two ends."""
        found = self.cdf(self._domain.ts)
        return float(self._domain.t_max - self._domain.dt * (found.sum() - (found[0] + found[-1]) / 2))


def prv_epsilon(steps: Steps, delta: float, neighbours: str) -> float | None:
    """An upper bound of the epsilon of all steps at ``delta``, or None where the grid would be too large for a close one.

    Args:
        steps: As ``Steps``; at least one.
        delta: In (0, 1).
        neighbours: "add-or-remove" or "replace-one". Steps of rate 1 may be of either.
    """
    found = [_of_direction(steps, delta, direction) for direction in DIRECTIONS[neighbours]]
    return None if None in found else max(found)  # type: ignore[type-var]


def _of_direction(steps: Steps, delta: float, direction: str) -> float | None:
    prv = opacus_module("accountants.analysis.prv")
    counts, delta_error = [count for *_, count in steps], delta * SHARE_OF_DELTA
    width, epsilon = _tails(steps, delta, delta_error)
    if not 0 < epsilon <= width <= LONGEST_LOSS:
        return None
    # Mesh and width as in Opacus; see Gopi et al. for the error that they bound.
    fineness = math.sqrt(sum(counts) * math.log(12 / delta_error) / 2)
    most = min(
        MOST_POINTS / len(steps), delta / 100 / np.finfo(float).eps
    )  # of more points, rounding could be felt in delta
    errors = (CLOSE * min(1.0, epsilon), *(min(share * epsilon, LARGEST_ERROR) for share in SHARES))
    error = next((one for one in errors if 2 * (width + 3) * fineness / one <= most), None)
    if error is None:
        return None
    domain = prv.Domain.create_aligned(-width - 3, width + 3, error / fineness)
    pairs = [SampledPair(noise, rate, direction) for noise, rate, _ in steps]
    try:
        losses = [prv.discretize(_Truncated(pair, domain), domain) for pair in pairs]
        total = prv.compose_heterogeneous(losses, counts)
        return float(total.compute_epsilon(delta, delta_error, error)[2])
    except (RuntimeError, ValueError):  # Opacus gives up where rounding would decide
        return None


def _tails(steps: Steps, delta: float, delta_error: float) -> tuple[float, float]:
    """Half the width of a grid that misses the loss of one step, or of all, with small probability; and an epsilon at ``delta``."""
    rdp, counts = opacus_module("accountants.analysis.rdp"), sum(count for *_, count in steps)
    single = [
        np.asarray(rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=1, orders=_ORDERS)) for noise, rate, _ in steps
    ]
    total = sum(one * count for one, (*_, count) in zip(single, steps, strict=True))

    def epsilon(divergences: Any, at: float) -> float:
        orders = np.array(_ORDERS)
        found = divergences + np.log1p(-1 / orders) - (math.log(at) + np.log(orders)) / (orders - 1)
        return float(max(0.0, np.nanmin(found)))

    widths = [epsilon(one, delta_error / (8 * counts)) for one in single]
    return max(epsilon(total, delta_error / 4), *widths), epsilon(total, delta)
