"""How an experiment's settings are declared, and words of theirs read."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import field
from typing import Any

from simulations.errors import ConfigError


def setting(default: Any, about: str, allowed: str = "", check: Callable[[Any], bool] | None = None) -> Any:
    """A field of an experiment: default, meaning, and what is allowed beyond its type."""
    return field(default=default, metadata={"about": about, "allowed": allowed, "check": check})


def at_least(minimum: float) -> dict[str, Any]:
    """From a minimum on."""
    return {"allowed": f"at least {minimum:g}", "check": lambda value: value >= minimum}


def between(minimum: int, maximum: int) -> dict[str, Any]:
    """Between two whole numbers, both included."""
    return {"allowed": f"at least {minimum}, at most {maximum}", "check": lambda value: minimum <= value <= maximum}


def above(minimum: float) -> dict[str, Any]:
    """Above a minimum, and finite."""
    return {"allowed": f"above {minimum:g}", "check": lambda value: minimum < value < float("inf")}


def one_of(*values: str) -> dict[str, Any]:
    """One of a few words."""
    return {"allowed": " or ".join(map(repr, values)), "check": lambda value: value in values}


SHARE: dict[str, Any] = {"allowed": "above 0, at most 1", "check": lambda value: 0 < value <= 1}


def milestone(word: str, rounds: int) -> int:
    """The round that a word of ``learning-rate-milestones`` names."""
    part, slash, whole = (piece.strip() for piece in word.partition("/"))
    if part.isdecimal() and whole.isdecimal() and 0 < int(part) < int(whole):
        return math.floor(rounds * int(part) / int(whole) + 0.5)
    if slash or not part.isdecimal() or not 1 <= int(part) < rounds:
        raise ConfigError(
            f"learning-rate-milestones: {word!r}; allowed: numbers from 1 to {rounds - 1}, as rounds = {rounds}, "
            "and shares such as 5/8"
        )
    return int(part)
