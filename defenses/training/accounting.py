"""The accounting of DP-SGD: what recorded steps have spent, by several accountants."""

from __future__ import annotations

import functools
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from defenses.checks import LEAST_MULTIPLIER, is_number, is_whole, shown
from defenses.neighbours import ADD_OR_REMOVE, BUDGET, REPLACE_ONE, SENSITIVITY
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.tensors import Numbers
from defenses.training.privacy_loss import prv_epsilon
from defenses.training.quiet_import import opacus_module

Steps = tuple[tuple[float, float, int], ...]
"""(noise over sensitivity, sample rate, number of steps) of each entry."""

RDP, PRV, EXACT = "rdp", "prv", "exact"
"""Accountants: Renyi divergences; privacy loss random variables; the closed form for steps on all examples."""
MEANING: Mapping[str, str] = MappingProxyType({
    RDP: "upper bound by Renyi divergences",
    PRV: "upper bound by privacy loss random variables",
    EXACT: "exact, as every step was on all examples",
    ADD_OR_REMOVE: "the same noise for one example more or less, as Opacus counts",
})  # fmt: skip
"""Accountant, or other neighbours -> what that epsilon is, for readers."""
CLAIMING = (PRV, RDP)
"""Accountants that a claim may be of: their epsilon is an upper bound."""
# Orders of Renyi divergence: those of Opacus, and larger ones, where small budgets are decided. Each gives a valid bound.
ORDERS = (*(1 + x / 10 for x in range(1, 100)), *range(12, 64), 72, 96, 128, 192, 256, 384, 512)
MOST_NOISES = 32
"""Of noise, for privacy loss random variables: each takes a tenth of a second, in each round anew."""
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
    state: Mapping[str, Any], delta: float, accountant: str = PRV, neighbours: str = REPLACE_ONE
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


def epsilon_by_accountant(state: Mapping[str, Any], delta: float, neighbours: str = REPLACE_ONE) -> Numbers:
    """Name of an accountant -> its epsilon at ``delta`` of all steps recorded in a training state; see ``epsilon_spent``.

    ``RDP`` is an upper bound and always there. Where every step was on all examples, ``EXACT`` is, too. Elsewhere ``PRV`` is, an
    upper bound that is close to the exact epsilon, unless its grid would be too large. Beside replaced examples stands
    ``ADD_OR_REMOVE``, by the closest of these: its steps have half the sensitivity.
    """
    steps = _merged(state, delta)
    found = {RDP: _rdp_epsilon(steps, delta)}
    if not steps or found[RDP] == math.inf:
        return found
    tight = _tight_epsilon(steps, delta, neighbours)
    if tight is not None:
        found[EXACT if _on_all_examples(steps) else PRV] = tight
    if neighbours == REPLACE_ONE:
        halved = tuple((SENSITIVITY[REPLACE_ONE] * noise, rate, count) for noise, rate, count in steps)
        # By the same accountant as the claim, or the two would differ for another reason than their neighbours.
        other = None if tight is None else _tight_epsilon(halved, delta, ADD_OR_REMOVE)
        found[ADD_OR_REMOVE] = _rdp_epsilon(halved, delta) if other is None else other
    return found


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


def _on_all_examples(steps: Steps) -> bool:
    return all(rate == 1 for _, rate, _ in steps)


def exact_epsilon(steps: Iterable[tuple[float, float, int]], delta: float) -> float:
    """The epsilon at ``delta`` of entries that are all on everything at once, by their noise above 0 and their number."""
    return gaussian_epsilon(math.sqrt(math.fsum(count / noise**2 for noise, _, count in steps)), delta)


@functools.lru_cache(maxsize=256)
def _tight_epsilon(steps: Steps, delta: float, neighbours: str) -> float | None:
    """The exact epsilon of steps on all examples, else an upper bound that is close to it; None without a close one."""
    if not steps:
        return 0.0
    if any(noise < LEAST_MULTIPLIER for noise, _, _ in steps):
        return math.inf
    if _on_all_examples(steps):
        return exact_epsilon(steps, delta)
    if len(steps) > MOST_NOISES:
        return None
    return prv_epsilon(steps, delta, neighbours)


def _rdp_epsilon(steps: Steps, delta: float) -> float:
    if not steps:
        return 0.0
    # Of next to no noise the accountant ends in an error or not at all; its true epsilon is no protection either.
    if any(noise < LEAST_MULTIPLIER for noise, _, _ in steps):
        return math.inf
    total = sum(count * _divergences(noise, rate) for noise, rate, count in steps)
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
