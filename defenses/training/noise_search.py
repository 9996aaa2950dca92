"""The noise with which the steps of DP-SGD keep a budget."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from defenses.base import DefenseError
from defenses.checks import LARGEST_NOISE, LEAST_MULTIPLIER
from defenses.neighbours import REPLACE_ONE, SENSITIVITY
from defenses.smashed.gaussian_mechanism import gaussian_ratio
from defenses.training.accounting import ORDERS, PRV, RDP, epsilon_spent, least_epsilon
from defenses.training.quiet_import import opacus_module

MOST_TRIES = 15
"""Of a noise in a search."""
MOST_LEVELS = 64
"""Of noise in a training: each costs an accountant up to a second."""
WHOLE_ORDERS = tuple(float(order) for order in ORDERS if order == int(order))
"""Of Renyi divergences. Opacus has a finite sum for these alone."""


Levels = tuple[tuple[float, int], ...]
"""(factor of the noise, number of steps) of each part of a training with the same noise."""


@functools.lru_cache(maxsize=64)
def noise_for_budget(
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: str = PRV,
    neighbours: str = REPLACE_ONE,
    levels: Levels = (),
) -> float:
    """The noise over the sensitivity with which ``steps`` steps spend at most ``epsilon``, and at least 99.9 % of it.

    ``PRV`` may use less of a budget that is so large that its grid does not hold it.

    Args:
        epsilon: The budget, above 0.
        delta: In (0, 1).
        sample_rate: Probability of an example per step, in (0, 1].
        steps: At least 1.
        accountant: ``RDP`` or ``PRV``.
        neighbours: A name of ``defenses.neighbours``.
        levels: Where noise changes: its factors and their steps, ``steps`` together. The result has the factor 1. With several
            levels, ``RDP`` spends at least 99 % of the budget.

    Raises:
        DefenseError: When no noise meets the budget by this accountant, or there are more than ``MOST_LEVELS`` levels.
    """
    if len(levels) > MOST_LEVELS:
        raise DefenseError(
            f"a target_epsilon with noise that changes {len(levels) - 1} times takes too long to account; allowed: up to "
            f"{MOST_LEVELS - 1} times"
        )
    levels = levels if len(levels) > 1 else ((1.0, steps),)
    aim = _Aim(epsilon, delta, sample_rate, levels, neighbours)
    if accountant == PRV:
        if epsilon < least_epsilon(delta):  # what RDP does not state either, to which PRV falls back
            raise aim.missed(f"the accountant {PRV!r} does not state so small an epsilon")
        return _searched(aim, lambda noise: epsilon_spent(aim.state(noise), delta, PRV, neighbours), PRV)
    with warnings.catch_warnings():
        # The search passes through extreme values, for which Opacus warns that the best order is at the edge.
        warnings.simplefilter("ignore")
        return _noise_by_rdp(aim) if len(levels) == 1 else _noise_of_levels_by_rdp(aim)


@dataclass(frozen=True)
class _Aim:
    """What a search is for; see ``noise_for_budget``."""

    epsilon: float
    delta: float
    sample_rate: float
    levels: Levels
    neighbours: str

    @property
    def steps(self) -> int:
        return sum(count for _, count in self.levels)

    def entries(self, noise: float) -> list[tuple[float, float, int]]:
        """The account's entries, where the first noise is ``noise``."""
        return [(noise * factor, self.sample_rate, count) for factor, count in self.levels]

    def state(self, noise: float) -> dict[str, Any]:
        """A training state with these entries."""
        return {"accountant": {"steps": self.entries(noise)}}

    def missed(self, why: object) -> DefenseError:
        return DefenseError(
            f"no noise keeps {self.steps} steps at sample rate {self.sample_rate:.4g} within epsilon {self.epsilon} at delta "
            f"{self.delta}: {why}"
        )


def _noise_by_rdp(aim: _Aim) -> float:
    try:
        noise = opacus_module("accountants.utils").get_noise_multiplier(
            target_epsilon=aim.epsilon,
            target_delta=aim.delta,
            sample_rate=aim.sample_rate,
            steps=aim.steps,
            accountant="rdp",
            epsilon_tolerance=1e-3 * aim.epsilon,
            alphas=list(ORDERS),
        )
    except ValueError as error:
        raise aim.missed(error) from None
    return float(noise)


def _noise_of_levels_by_rdp(aim: _Aim) -> float:
    """Search at few orders, as each gives a valid bound: whole ones, which are fast; then all near the best of them."""
    found = _searched(aim, lambda noise: _at_orders(aim, noise, WHOLE_ORDERS)[0], RDP)
    best = _at_orders(aim, found, WHOLE_ORDERS)[1]
    near = tuple(order for order in ORDERS if abs(order - best) <= 1)
    return _searched(aim, lambda noise: _at_orders(aim, noise, near)[0], RDP, begin=found)


def _at_orders(aim: _Aim, noise: float, orders: tuple[float, ...]) -> tuple[float, float]:
    """Epsilon by some orders of Renyi divergence, and the order that it is of."""
    entries = aim.entries(noise)
    if any(one < LEAST_MULTIPLIER for one, _, _ in entries):
        return math.inf, orders[0]
    rdp = opacus_module("accountants.analysis.rdp")
    total = sum(
        rdp.compute_rdp(q=rate, noise_multiplier=one, steps=count, orders=orders) for one, rate, count in entries
    )
    epsilon, order = rdp.get_privacy_spent(orders=orders, rdp=total, delta=aim.delta)
    return float(epsilon), float(order)


def _searched(aim: _Aim, spent: Callable[[float], float], accountant: str, begin: float | None = None) -> float:
    """Search between a noise that suffices and one that does not, on logarithmic scales, where epsilon is nearly a line.

    Args:
        aim: What for.
        spent: Epsilon of a noise.
        accountant: Named in errors.
        begin: A noise that is close; None: by a central limit.
    """
    epsilon = aim.epsilon
    low = high = begin or _noise_by_central_limit(aim)
    over = under = spent(high)
    apart = 1.1
    while under > epsilon and high < LARGEST_NOISE:
        low, over = high, under
        high, apart = min(apart * high, LARGEST_NOISE), 2 * apart
        under = spent(high)
    while over <= epsilon and low > LEAST_MULTIPLIER:
        if 0.999 * epsilon <= over:
            return low
        high, under = low, over
        low, apart = max(low / apart, LEAST_MULTIPLIER), 2 * apart
        over = spent(low)
    for attempt in range(MOST_TRIES):
        if 0.999 * epsilon <= under <= epsilon:
            return high
        # Where epsilon is infinite or 0 on one side, or the line has failed, the middle is taken.
        line = 0 < under < over < math.inf and attempt % 3 < 2
        aimed = math.log(0.9995 * epsilon / over) / math.log(under / over) if line else 0.5
        noise = low * (high / low) ** min(max(aimed, 0.01), 0.99)
        at = spent(noise)
        if at <= epsilon:
            high, under = noise, at
        else:
            low, over = noise, at
    # Where the accountant falls back to Renyi divergences, epsilon has a step: the budget is not used up.
    if under <= epsilon:
        return high
    raise aim.missed(f"the accountant {accountant!r} finds none up to {LARGEST_NOISE:g}")


def _noise_by_central_limit(aim: _Aim) -> float:
    """Where a search begins: the noise over the sensitivity of ``epsilon`` by a central limit (Bu et al. 2020, Theorem 5)."""
    share = gaussian_ratio(aim.epsilon, aim.delta) ** 2 / aim.steps / aim.sample_rate**2
    if aim.sample_rate == 1:
        noise = 1 / math.sqrt(share)
    elif aim.neighbours == REPLACE_ONE:
        noise = 1 / math.sqrt(math.asinh(share / 4)) / SENSITIVITY[REPLACE_ONE]
    else:
        noise = 1 / math.sqrt(math.log1p(share))
    raised = 0.0
    for factor, count in aim.levels:  # the mean of 1 / factor^2, which may be beyond floats
        raised += count / aim.steps / max(factor, 1e-100) ** 2
    return min(max(noise * math.sqrt(raised), LEAST_MULTIPLIER), LARGEST_NOISE)
