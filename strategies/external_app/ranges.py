"""What the settings of an audit may be: each by the type of its field and its range, checked before a run begins."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any

RANGES: dict[str, tuple[float, float]] = {
    "probe_images": (1, 10**6), "probe_targets": (1, 10**6), "momentum": (0, 1), "weight_decay": (0, 10**6),
    "seed": (0, 2**63 - 1), "workers": (0, 1024), "timeout": (0, 10**9),
}  # fmt: skip
"""From, to; both included but for what ``OPEN`` names."""
OPEN = {"momentum": 1, "timeout": 0}
"""Ends that are not allowed themselves."""


def checked(name: str, value: Any, kind: str) -> Any:
    """A value as plain Python has it: what comes from NumPy is no value that Flower sends.

    Args:
        name: Of the setting.
        value: What came.
        kind: ``int``, ``float``, ``bool``, ``str``, as the field is annotated; any other is passed on.

    Raises:
        ValueError: Naming the setting, what came and what is allowed.
    """
    if kind in ("bool", "str"):
        if isinstance(value, bool if kind == "bool" else str):
            return value
        raise ValueError(f"{name} is {value!r}; allowed: {'True or False' if kind == 'bool' else 'a text'}")
    if kind not in ("int", "float"):
        return value
    low, high = RANGES.get(name, (-math.inf, math.inf))
    number = isinstance(value, Integral if kind == "int" else Real) and not isinstance(value, bool)
    if not number or not low <= value <= high or not math.isfinite(value) or value == OPEN.get(name):
        what = "a whole number" if kind == "int" else "a number"
        raise ValueError(f"{name} is {value!r}; allowed: {what} {_bounds(name, low, high)}")
    return int(value) if kind == "int" else float(value)


def _bounds(name: str, low: float, high: float) -> str:
    start = f"above {low}" if OPEN.get(name) == low else f"from {low}"
    return f"{start}, {'below' if OPEN.get(name) == high else 'at most'} {high}"
