"""The noise with which the steps of DP-SGD keep a budget."""

from __future__ import annotations

import functools
import math
import warnings
from dataclasses import dataclass

from defenses.base import DefenseError
from defenses.checks import LARGEST_NOISE, LEAST_MULTIPLIER
from defenses.neighbours import REPLACE_ONE, SENSITIVITY
from defenses.smashed.gaussian_mechanism import gaussian_ratio
from defenses.training.accounting import ORDERS, PRV, epsilon_spent, least_epsilon
from defenses.training.quiet_import import opacus_module

MOST_TRIES = 15
"""Of a noise in a search."""


@functools.lru_cache(maxsize=64)
def noise_for_budget(
    epsilon: float,
    delta: float,
    sample_rate: float,
    steps: int,
    accountant: str = PRV,
    neighbours: str = REPLACE_ONE,
) -> float:
    """The noise over the sensitivity with which ``steps`` steps spend at most ``epsilon``, and at least 99.9 % of it.

    ``PRV`` may use less of a budget that is so large that its grid does not hold it.

    Args:
        epsilon: The budget, above 0.
        delta: In (0, 1).
        sample_rate: Probability of an example per step, in (0, 1].
        steps: At least 1.
        accountant: "rdp" or "prv".
        neighbours: A name of ``defenses.neighbours``.

    Raises:
        DefenseError: When no noise meets the budget by this accountant.
    """
    aim = _Aim(epsilon, delta, sample_rate, steps, neighbours)
    if accountant == PRV:
        if epsilon < least_epsilon(delta):  # what RDP does not state either, to which PRV falls back
            raise aim.missed(f"the accountant {PRV!r} does not state so small an epsilon")
        return _searched(aim)
    with warnings.catch_warnings():
        # The search passes through extreme values, for which Opacus warns that the best order is at the edge.
        warnings.simplefilter("ignore")
        return _noise_by_rdp(aim)


@dataclass(frozen=True)
class _Aim:
    """What a search is for; see ``noise_for_budget``."""

    epsilon: float
    delta: float
    sample_rate: float
    steps: int
    neighbours: str

    def spent(self, noise: float) -> float:
        """Epsilon by ``PRV`` of all steps with a noise."""
        state = {"accountant": {"steps": [(noise, self.sample_rate, self.steps)]}}
        return epsilon_spent(state, self.delta, PRV, self.neighbours)

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


def _searched(aim: _Aim) -> float:
    """Search between a noise that suffices and one that does not, on logarithmic scales, where epsilon is nearly a line."""
    epsilon, spent = aim.epsilon, aim.spent
    low = high = _noise_by_central_limit(aim)
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
    raise aim.missed(f"the accountant {PRV!r} finds none up to {LARGEST_NOISE:g}")


def _noise_by_central_limit(aim: _Aim) -> float:
    """Where a search begins: the noise over the sensitivity of ``epsilon`` by a central limit (Bu et al. 2020, Theorem 5)."""
    share = gaussian_ratio(aim.epsilon, aim.delta) ** 2 / aim.steps / aim.sample_rate**2
    if aim.sample_rate == 1:
        noise = 1 / math.sqrt(share)
    elif aim.neighbours == REPLACE_ONE:
        noise = 1 / math.sqrt(math.asinh(share / 4)) / SENSITIVITY[REPLACE_ONE]
    else:
        noise = 1 / math.sqrt(math.log1p(share))
    return min(max(noise, LEAST_MULTIPLIER), LARGEST_NOISE)
