"""The accounting of DP-SGD: what recorded steps have spent, and the noise that keeps a budget."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

from defenses.base import DefenseError
from defenses.checks import LEAST_MULTIPLIER
from defenses.training.recorded_steps import recorded_steps

# Orders of Renyi divergence: those of Opacus, and larger ones, where small budgets are decided. Each gives a valid
# bound.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 72, 96, 128, 192, 256, 384, 512)


def epsilon_spent(state: Mapping[str, Any], delta: float) -> float:
    """The epsilon at ``delta`` of all steps recorded in a training state, over all rounds; 0.0 when there are none.

    Example-level (epsilon, delta)-differential privacy by Renyi accounting of the Poisson-subsampled Gaussian mechanism; ``inf``
    when a step had no noise, or hardly any. A step is recorded with its noise over its sensitivity, so that steps with other
    neighbours add up.
    """
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}; allowed: a number in (0, 1)")
    history = recorded_steps(state)
    if not history:
        return 0.0
    # Of next to no noise the accountant ends in an error or not at all; its true epsilon is no protection either.
    if any(noise_multiplier < LEAST_MULTIPLIER for noise_multiplier, _, _ in history):
        return math.inf
    from opacus.accountants import RDPAccountant  # type: ignore[import-untyped]

    accountant = RDPAccountant()
    accountant.load_state_dict({"mechanism": "rdp", "history": history})
    return float(accountant.get_epsilon(delta=delta, alphas=list(ORDERS)))


def least_epsilon(delta: float) -> float:
    """The epsilon at ``delta`` that no noise goes below in this accounting: that of a mechanism with no Renyi divergence at all.

    Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", 2020, Prop. 12, at a divergence of 0.
    """
    least: float = min(math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1) for order in ORDERS)
    return max(least, 0.0)


@functools.lru_cache(maxsize=64)
def noise_for_budget(epsilon: float, delta: float, sample_rate: float, steps: int) -> float:
    """The noise over the sensitivity with which ``steps`` steps spend at most ``epsilon``, and at least 99.9 % of it."""
    from opacus.accountants.utils import get_noise_multiplier  # type: ignore[import-untyped]

    with warnings.catch_warnings():
        # The search passes through extreme values, for which Opacus warns that the best order is at the edge.
        warnings.simplefilter("ignore")
        try:
            noise_multiplier = get_noise_multiplier(
                target_epsilon=epsilon,
                target_delta=delta,
                sample_rate=sample_rate,
                steps=steps,
                accountant="rdp",
                epsilon_tolerance=1e-3 * epsilon,
                alphas=list(ORDERS),
            )
        except ValueError as error:
            raise DefenseError(
                f"no noise keeps {steps} steps at sample rate {sample_rate:.4g} within epsilon {epsilon} "
                f"at delta {delta}: {error}"
            ) from None
    return float(noise_multiplier)
