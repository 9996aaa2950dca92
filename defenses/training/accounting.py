"""The accounting of DP-SGD: what recorded steps have spent, by several accountants."""

import functools
import math
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from defenses.base import DefenseError
from defenses.checks import LARGEST_NOISE, LEAST_MULTIPLIER, is_number, is_whole, shown
from defenses.neighbours import ADD_OR_REMOVE, BUDGET, REPLACE_ONE, SENSITIVITY
from defenses.tensors import Numbers
from defenses.training.quiet_import import opacus_module

Steps = tuple[tuple[float, float, int], ...]
"""(noise over sensitivity, sample rate, number of steps) of each entry."""

RDP, PLD = "rdp", "pld"
"""Accountants: Renyi divergences; privacy loss distributions."""
MEANING: Mapping[str, str] = MappingProxyType({
    RDP: "upper bound by Renyi divergences",
    PLD: "upper bound by privacy loss distributions",
    ADD_OR_REMOVE: "the same noise for one example more or less, as Opacus counts",
})  # fmt: skip
"""Accountant, or other neighbours -> what that epsilon is, for readers."""
CLAIMING = (PLD, RDP)
"""Accountants that a claim may be of: their epsilon is an upper bound."""
# Orders of Renyi divergence: those of Opacus, and larger ones, where small budgets are decided. Each gives a valid bound.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 72, 96, 128, 192, 256, 384, 512)
MOST_NOISES = 32
"""Of noise, for privacy loss distributions: each takes up to a tenth of a second, in each round anew."""
INTERVAL = 1e-4
"""Of a grid of privacy losses, as a share of epsilon by ``RDP``; the bound lies above the exact epsilon by about as much."""
MOST_POINTS = 10**6
"""Of the grid of one step."""
LARGEST_EPSILON = 1e4
"""By ``RDP``, for which losses are computed: far beyond all use."""
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


def record_step(state: dict[str, Any], noise: float, sample_rate: float) -> None:
    """Add one step to the recorded ones of a training state; ``noise`` is over the sensitivity."""
    steps = state.setdefault("accountant", {}).setdefault("steps", [])
    if steps and steps[-1][:2] == [noise, sample_rate]:
        steps[-1][2] += 1
    else:
        steps.append([noise, sample_rate, 1])


def together(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """A training state with the recorded steps of several."""
    return {"accountant": {"steps": [entry for state in states for entry in recorded_steps(state)]}}


def epsilon_spent(
    state: Mapping[str, Any], delta: float, accountant: str = PLD, neighbours: str = REPLACE_ONE
) -> float:
    """The epsilon at ``delta`` of all steps recorded in a training state, over all rounds; 0.0 when there are none.

    An upper bound for example-level (epsilon, delta)-differential privacy of the Poisson-subsampled Gaussian mechanism; ``inf``
    when a step had no noise, or hardly any.

    Args:
        state: Its steps have their noise over their sensitivity, so that steps with other neighbours add up under ``RDP``.
        delta: In (0, 1).
        accountant: ``RDP``, or ``PLD``: the smaller one of ``RDP`` and the bound by privacy loss distributions, which are not
            computed where epsilon is beyond all use.
        neighbours: Of the steps; ``RDP`` makes no difference between neighbours.

    Raises:
        ValueError: On a delta, an accountant or steps that are not allowed.
    """
    if accountant not in CLAIMING:
        raise ValueError(f"accountant is {accountant!r}; allowed: {' | '.join(CLAIMING)}")
    steps = _merged(state, delta)
    bound = _rdp_epsilon(steps, delta)
    return bound if accountant == RDP else min(bound, _pld_epsilon(steps, delta, neighbours, bound))


def epsilon_by_accountant(state: Mapping[str, Any], delta: float, neighbours: str = REPLACE_ONE) -> Numbers:
    """Name of an accountant -> its epsilon at ``delta`` of all steps recorded in a training state; see ``epsilon_spent``.

    Beside replaced examples stands ``ADD_OR_REMOVE`` by ``PLD``: its steps have half the sensitivity.
    """
    steps = _merged(state, delta)
    epsilons = {RDP: _rdp_epsilon(steps, delta)}
    if not steps or epsilons[RDP] == math.inf:
        return epsilons
    epsilons[PLD] = epsilon_spent(state, delta, PLD, neighbours)
    if neighbours == REPLACE_ONE:
        halved = [(SENSITIVITY[REPLACE_ONE] * noise, rate, count) for noise, rate, count in steps]
        epsilons[ADD_OR_REMOVE] = epsilon_spent({"accountant": {"steps": halved}}, delta, PLD, ADD_OR_REMOVE)
    return epsilons


@functools.lru_cache(maxsize=64)
def noise_for_budget(
    epsilon: float, delta: float, sample_rate: float, steps: int, accountant: str = PLD, neighbours: str = REPLACE_ONE
) -> float:
    """The noise over the sensitivity with which ``steps`` steps spend at most ``epsilon``, and at least 99.9 % of it.

    Beyond ``LARGEST_EPSILON`` ``PLD`` may use less.

    Args:
        epsilon: The budget, above 0.
        delta: In (0, 1).
        sample_rate: Probability of an example per step, in (0, 1].
        steps: At least 1.
        accountant: A name in ``CLAIMING``.
        neighbours: A name of ``defenses.neighbours``.

    Raises:
        DefenseError: When no noise meets the budget by this accountant.
    """
    from scipy.optimize import brentq  # slow to import

    def spent(noise: float) -> float:
        return epsilon_spent({"accountant": {"steps": [(noise, sample_rate, steps)]}}, delta, accountant, neighbours)

    def beyond(log_noise: float) -> float:  # on logarithmic scales epsilon is nearly a line, but for its ends
        return math.log(min(max(spent(math.exp(log_noise)), 1e-9 * epsilon), 1e9 * epsilon) / (0.9995 * epsilon))

    low = high = 1.0
    while spent(high) > epsilon:
        if high >= LARGEST_NOISE:
            raise DefenseError(
                f"no noise keeps {steps} steps at sample rate {sample_rate:.4g} within epsilon {epsilon} at delta {delta}: the "
                f"accountant {accountant!r} finds none up to {LARGEST_NOISE:g}"
            )
        high = min(4 * high, LARGEST_NOISE)
    while spent(low) <= epsilon:
        if low <= LEAST_MULTIPLIER:
            return low
        low = max(low / 4, LEAST_MULTIPLIER)
    noise = math.exp(brentq(beyond, math.log(low), math.log(high), xtol=1e-5))
    while spent(noise) > epsilon:  # the grid follows from the noise: epsilon is not quite monotone
        noise *= 1 + 1e-4
    return noise


def budget_terms(states: Sequence[Mapping[str, Any]], neighbours: str, norm: float) -> Numbers:
    """What the epsilon of recorded steps follows from, beside delta: metrics by name; none before the first step.

    Args:
        states: Training states.
        neighbours: Of the epsilon.
        norm: The clipping norm at the start.
    """
    entries = [entry for state in states for entry in recorded_steps(state) if entry[2]]
    if not entries:
        return {}
    noise, rate, _ = entries[0]
    return {
        f"{BUDGET}noise-multiplier": SENSITIVITY[neighbours] * noise,
        f"{BUDGET}clipping-norm": norm,
        f"{BUDGET}sample-rate": rate,
        f"{BUDGET}steps": sum(count for *_, count in entries),
    }


def _merged(state: Mapping[str, Any], delta: float) -> Steps:
    """The recorded steps that release something, equal ones counted together."""
    if not 0 < delta < 1:
        raise ValueError(f"delta is {delta!r}; allowed: a number in (0, 1)")
    counts: Counter[tuple[float, float]] = Counter()
    for noise, rate, count in recorded_steps(state):
        counts[noise, rate] += count
    return tuple((noise, rate, count) for (noise, rate), count in counts.items() if count and rate)


@functools.lru_cache(maxsize=256)
def _pld_epsilon(steps: Steps, delta: float, neighbours: str, bound: float) -> float:
    """An upper bound close to the exact epsilon; ``bound``, that by ``RDP``, where none is computed.

    Source: Doroshenko et al., "Connect the Dots: Tighter Discrete Approximations of Privacy Loss Distributions", PETS 2022; Zhu,
    Dong, Wang, "Optimal Accounting of Differential Privacy via Characteristic Function", AISTATS 2022, for the dominating pairs.
    """
    if not 0 < bound < LARGEST_EPSILON or len(steps) > MOST_NOISES:
        return bound
    from dp_accounting import (  # type: ignore[import-untyped]  # slow to import
        GaussianDpEvent,
        NeighboringRelation,
        PoissonSampledDpEvent,
    )
    from dp_accounting.pld import PLDAccountant  # type: ignore[import-untyped]

    relation = NeighboringRelation.REPLACE_ONE if neighbours == REPLACE_ONE else NeighboringRelation.ADD_OR_REMOVE_ONE
    # By the longest tail of a step's loss, beyond which 1e-22 of its mass lies.
    reach = max(10 / noise + 0.5 / noise**2 for noise, _, _ in steps)
    accountant = PLDAccountant(relation, value_discretization_interval=max(INTERVAL * bound, reach / MOST_POINTS))
    for noise, rate, count in steps:
        # Its noise is over the clipping norm.
        mechanism = GaussianDpEvent(SENSITIVITY[neighbours] * noise)
        accountant.compose(mechanism if rate == 1 else PoissonSampledDpEvent(rate, mechanism), count)
    return float(accountant.get_epsilon(delta))


def _rdp_epsilon(steps: Steps, delta: float) -> float:
    if not steps:
        return 0.0
    # Of next to no noise the accountant ends in an error or not at all; its true epsilon is no protection either.
    if any(noise < LEAST_MULTIPLIER for noise, _, _ in steps):
        return math.inf
    total = sum(count * _divergences(noise, rate) for noise, rate, count in steps)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a best order at the edge, which is a bound all the same
        spent = opacus_module("accountants.analysis.rdp").get_privacy_spent(orders=list(ORDERS), rdp=total, delta=delta)
    return max(0.0, float(spent[0]))  # of a large delta the conversion may go below 0


@functools.lru_cache(maxsize=1024)
def _divergences(noise: float, rate: float) -> Any:
    """Renyi divergences (orders,) of one step, as a NumPy array."""
    return opacus_module("accountants.analysis.rdp").compute_rdp(
        q=rate, noise_multiplier=noise, steps=1, orders=list(ORDERS)
    )


def least_epsilon(delta: float) -> float:
    """The epsilon at ``delta`` that no noise goes below in this accounting: that of a mechanism with no Renyi divergence at all.

    Source: Canonne, Kamath, Steinke, "The Discrete Gaussian for Differential Privacy", 2020, Prop. 12, at a divergence of 0.
    """
    least: float = min(math.log1p(-1 / order) - (math.log(delta) + math.log(order)) / (order - 1) for order in ORDERS)
    return max(least, 0.0)
