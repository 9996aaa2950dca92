"""The accounting of DP-SGD: what recorded steps have spent, and the noise that keeps a budget."""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Mapping
from typing import Any

from defenses.base import DefenseError
from defenses.checks import LEAST_MULTIPLIER, is_number, is_whole, shown
from defenses.training.quiet_import import opacus_module

# Orders of Renyi divergence: those of Opacus, and larger ones, where small budgets are decided. Each gives a valid bound.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 72, 96, 128, 192, 256, 384, 512)
MOST_RECORDED = 2**63
"""Steps of one entry: what a message holds of a whole number."""


def recorded_steps(state: Mapping[str, Any]) -> list[tuple[float, float, int]]:
    """(noise over sensitivity, sample rate, number of steps) of each entry of ``state["accountant"]["steps"]``; none without one.

    The state may come from a message or a file.

    Raises:
        ValueError: When it holds something else, such as negative steps, which would give a part of the budget back.
    """
    accountant = state.get("accountant", {})
    steps = accountant.get("steps", []) if isinstance(accountant, Mapping) else accountant
    if not isinstance(steps, list | tuple):
        steps = [steps]
    if odd := [entry for entry in steps if not _is_entry(entry)]:
        raise ValueError(
            f"the accountant's steps hold {shown(odd[0])}; allowed: [noise over sensitivity of at least 0, sample rate from 0 to "
            "1, number of steps of at least 0]"
        )
    return [(entry[0], entry[1], entry[2]) for entry in steps]


def _is_entry(entry: Any) -> bool:
    if not isinstance(entry, list | tuple) or len(entry) != 3:
        return False
    noise_multiplier, sample_rate, steps = entry
    return (
        (is_number(noise_multiplier) and noise_multiplier >= 0)
        and (is_number(sample_rate) and 0 <= sample_rate <= 1)
        and (is_whole(steps) and 0 <= steps < MOST_RECORDED)
    )


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
    accountant = opacus_module("accountants").RDPAccountant()
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
    get_noise_multiplier = opacus_module("accountants.utils").get_noise_multiplier

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
