"""The steps that a privacy accountant recorded in a training state, which may come from a message or a file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from defenses.checks import is_number, is_whole, shown

MOST_RECORDED = 2**63
"""Steps of one entry: what a message holds of a whole number."""


def recorded_steps(state: Mapping[str, Any]) -> list[tuple[float, float, int]]:
    """(noise over sensitivity, sample rate, number of steps) of each entry of ``state["accountant"]["steps"]``; none without one.

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
