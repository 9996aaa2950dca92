"""The accounting of DP-SGD: what recorded steps have spent, by several accountants, and the noise that keeps a budget."""

from __future__ import annotations

import functools
import math
import warnings
from collections import Counter
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from defenses.base import DefenseError
from defenses.checks import LARGEST_NOISE, LEAST_MULTIPLIER, is_number, is_whole, shown
from defenses.neighbours import REPLACE_ONE, SENSITIVITY
from defenses.smashed.gaussian_mechanism import gaussian_epsilon, gaussian_ratio
from defenses.training.privacy_loss import prv_epsilon
from defenses.training.quiet_import import opacus_module

Steps = tuple[tuple[float, float, int], ...]
"""(noise over sensitivity, sample rate, number of steps) of each entry."""

RDP, PRV, EXACT, GDP = "rdp", "prv", "exact", "gdp"
"""Accountants: Renyi divergences; privacy loss random variables; the closed form for steps on all examples; a central limit."""
MEANING: Mapping[str, str] = MappingProxyType({
    RDP: "upper bound by Renyi divergences",
    PRV: "upper bound by privacy loss random variables",
    EXACT: "exact, as every step was on all examples",
    GDP: "approximation by a central limit, no bound",
})  # fmt: skip
"""Accountant -> what its epsilon is, for readers."""
CLAIMING = (RDP, PRV)
"""Accountants that a claim may be of: their epsilon is an upper bound."""
MOST_TRIES = 15
"""Of a noise in a search."""
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


def epsilon_spent(
    state: Mapping[str, Any], delta: float, accountant: str = RDP, neighbours: str = REPLACE_ONE
) -> float:
    """The epsilon at ``delta`` of all steps recorded in a training state, over all rounds; 0.0 when there are none.

    An upper bound for example-level (epsilon, delta)-differential privacy of the Poisson-subsampled Gaussian mechanism; ``inf``
    when a step had no noise, or hardly any.

    Args:
        state: Its steps have their noise over their sensitivity, so that steps with other neighbours add up under ``RDP``.
        delta: In (0, 1).
        accountant: ``RDP``, or ``PRV``: the closed form where every step was on all examples, else privacy loss random variables.
            Where their grid would be too large, because epsilon is beyond all use, it is ``RDP`` again.
        neighbours: Of the steps with a sample rate below 1; ``RDP`` makes no difference between neighbours.

    Raises:
        ValueError: On a delta, an accountant or steps that are not allowed.
    """
    if accountant not in CLAIMING:
        raise ValueError(f"accountant is {accountant!r}; allowed: {' | '.join(CLAIMING)}")
    steps = _merged(state, delta)
    bound = _tight_epsilon(steps, delta, neighbours) if accountant == PRV else None
    return _rdp_epsilon(steps, delta) if bound is None else bound


def epsilon_by_accountant(state: Mapping[str, Any], delta: float, neighbours: str = REPLACE_ONE) -> dict[str, float]:
    """Name of an accountant -> its epsilon at ``delta`` of all steps recorded in a training state; see ``epsilon_spent``.

    ``RDP`` is an upper bound and always there. Where every step was on all examples, ``EXACT`` is, too. Elsewhere ``PRV`` is, an
    upper bound that is close to the exact epsilon, unless its grid would be too large. ``GDP`` approximates epsilon by a central
    limit. It is no bound, and can be too small.
    """
    steps = _merged(state, delta)
    found = {RDP: _rdp_epsilon(steps, delta)}
    if not steps or found[RDP] == math.inf:
        return found
    tight = _tight_epsilon(steps, delta, neighbours)
    if tight is not None:
        found[EXACT if _on_all_examples(steps) else PRV] = tight
    return found | {GDP: gdp_epsilon(steps, delta, neighbours)}


def gdp_epsilon(steps: Steps, delta: float, neighbours: str) -> float:
    """What many steps with small sample rates spend, by a central limit theorem; an approximation, no bound.

    The sum of the losses of T steps approaches that of one Gaussian mechanism of parameter mu, with mu^2 the sum of the chi-square
    divergences of the steps: q^2 (e^(1 / z^2) - 1) for one example more or less, 2 q^2 (e^(1 / z^2) - e^(-1 / z^2)) for a
    replacement. A step on all examples has 1 / z^2, or 4 / z^2, exactly.

    Source: Bu, Dong, Long, Su, "Deep Learning with Gaussian Differential Privacy" (2020), Theorem 5, for the first; the second
    follows from Dong, Roth, Su, "Gaussian Differential Privacy" (2019), Theorem 3.5, in the same way.
    """
    squares = []
    for noise, rate, count in steps:
        if rate == 1:
            squares.append(count / noise**2)
            continue
        inverse = 1 / (SENSITIVITY[neighbours] * noise) ** 2
        try:
            one = 4 * math.sinh(inverse) if neighbours == REPLACE_ONE else math.expm1(inverse)
        except OverflowError:
            return math.inf
        squares.append(count * rate**2 * one)
    return gaussian_epsilon(math.sqrt(math.fsum(squares)), delta)


def _merged(state: Mapping[str, Any], delta: float) -> Steps:
    """The recorded steps that release something, equal ones counted together."""
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}; allowed: a number in (0, 1)")
    counts: Counter[tuple[float, float]] = Counter()
    for noise, rate, count in recorded_steps(state):
        counts[noise, rate] += count
    return tuple((noise, rate, count) for (noise, rate), count in counts.items() if count and rate)


def _on_all_examples(steps: Steps) -> bool:
    return all(rate == 1 for _, rate, _ in steps)


@functools.lru_cache(maxsize=256)
def _tight_epsilon(steps: Steps, delta: float, neighbours: str) -> float | None:
    """The exact epsilon of steps on all examples, else an upper bound that is close to it; None without a close one."""
    if not steps:
        return 0.0
    if any(noise < LEAST_MULTIPLIER for noise, _, _ in steps):
        return math.inf
    if _on_all_examples(steps):
        return gaussian_epsilon(math.sqrt(math.fsum(count / noise**2 for noise, _, count in steps)), delta)
    return prv_epsilon(steps, delta, neighbours)


def _rdp_epsilon(steps: Steps, delta: float) -> float:
    if not steps:
        return 0.0
    # Of next to no noise the accountant ends in an error or not at all; its true epsilon is no protection either.
    if any(noise < LEAST_MULTIPLIER for noise, _, _ in steps):
        return math.inf
    accountant = opacus_module("accountants").RDPAccountant()
    accountant.load_state_dict({"mechanism": "rdp", "history": list(steps)})
    # Of a large delta the conversion may go below 0.
    return max(0.0, float(accountant.get_epsilon(delta=delta, alphas=list(ORDERS))))


def least_epsilon(delta: float) -> float:
    """The epsilon at ``delta`` that no noise goes below in this accounting: that of a mechanism with no Renyi divergence at all.

    Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", 2020, Prop. 12, at a divergence of 0.
    """
    least: float = min(math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1) for order in ORDERS)
    return max(least, 0.0)


@functools.lru_cache(maxsize=64)
def noise_for_budget(
    epsilon: float, delta: float, sample_rate: float, steps: int, accountant: str = RDP, neighbours: str = REPLACE_ONE
) -> float:
    """The noise over the sensitivity with which ``steps`` steps spend at most ``epsilon``, and at least 99.9 % of it.

    ``PRV`` may use less of a budget that is so large that its grid does not hold it.

    Raises:
        DefenseError: When no noise meets the budget by this accountant.
    """
    if accountant == PRV:
        return _noise_by_prv(epsilon, delta, sample_rate, steps, neighbours)
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
            raise _no_noise(epsilon, delta, sample_rate, steps, error) from None
    return float(noise_multiplier)


def _noise_by_prv(epsilon: float, delta: float, sample_rate: float, steps: int, neighbours: str) -> float:
    """Search between a noise that suffices and one that does not, on logarithmic scales, where epsilon is nearly a line."""

    def spent(noise: float) -> float:
        return epsilon_spent({"accountant": {"steps": [[noise, sample_rate, steps]]}}, delta, PRV, neighbours)

    if epsilon < least_epsilon(delta):  # what RDP does not state either, to which PRV falls back
        raise _no_noise(
            epsilon, delta, sample_rate, steps, f"the accountant {PRV!r} does not state so small an epsilon"
        )
    low = high = _noise_by_central_limit(epsilon, delta, sample_rate, steps, neighbours)
    over = under = spent(high)
    apart = 1.1
    while under > epsilon and high < LARGEST_NOISE:
        low, over = high, under
        high, apart = min(apart * high, LARGEST_NOISE), 2 * apart
        under = spent(high)
    while over <= epsilon and low > LEAST_MULTIPLIER:
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
    if (
        under <= epsilon
    ):  # where the accountant falls back to Renyi divergences, epsilon has a step: the budget is not used up
        return high
    raise _no_noise(epsilon, delta, sample_rate, steps, f"the accountant {PRV!r} finds none up to {LARGEST_NOISE:g}")


def _no_noise(epsilon: float, delta: float, sample_rate: float, steps: int, why: object) -> DefenseError:
    return DefenseError(
        f"no noise keeps {steps} steps at sample rate {sample_rate:.4g} within epsilon {epsilon} at delta {delta}: {why}"
    )


def _noise_by_central_limit(epsilon: float, delta: float, sample_rate: float, steps: int, neighbours: str) -> float:
    """Where a search begins: the noise over the sensitivity whose ``gdp_epsilon`` is ``epsilon``."""
    share = gaussian_ratio(epsilon, delta) ** 2 / steps / sample_rate**2
    if sample_rate == 1:
        noise = 1 / math.sqrt(share)
    elif neighbours == REPLACE_ONE:
        noise = 1 / math.sqrt(math.asinh(share / 4)) / SENSITIVITY[REPLACE_ONE]
    else:
        noise = 1 / math.sqrt(math.log1p(share))
    return min(max(noise, LEAST_MULTIPLIER), LARGEST_NOISE)
