"""Range checks for hyper-parameters, so that every defence and attack refuses bad values in the same words."""

from __future__ import annotations

import math
from typing import Any


def require(condition: bool, owner: Any, name: str, allowed: str) -> None:
    """Raises ``ValueError`` naming the field, its value and what is allowed, unless ``condition`` holds."""
    if not condition:
        raise ValueError(f"{name} is {getattr(owner, name)!r}; allowed: {allowed}")


LARGEST_NOISE = 1e6
"""Of standard deviations: far beyond what leaves anything of a gradient, an image or a feature, and far below float32's largest."""


def require_noise(owner: Any, name: str) -> None:
    """Raises ``ValueError`` unless the field is the scale of a noise that floats can hold."""
    value = getattr(owner, name)
    require(is_number(value) and 0 <= value <= LARGEST_NOISE, owner, name, "a number from 0 to 1e6")


PER = ("step", "update")
"""What a defence of gradients and updates may act on; see ``defenses.base.UpdateDefense``."""


def require_per(owner: Any) -> None:
    """Raises ``ValueError`` unless the field ``per`` is one of ``PER``."""
    require(isinstance(owner.per, str) and owner.per in PER, owner, "per", " or ".join(map(repr, PER)))


def is_whole(value: Any) -> bool:
    """Whether ``value`` is an integer (bool is not)."""
    return isinstance(value, int) and not isinstance(value, bool)


def is_number(value: Any) -> bool:
    """Whether ``value`` is a number other than NaN that fits a float (bool is not)."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # an integer of more than 308 digits
        return False
