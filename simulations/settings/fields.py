"""Fields of settings: default, meaning, what is allowed, and the check of a value."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import Field, field, fields
from typing import Any

from clients.wire.limits import LIMITS
from simulations.settings.errors import ConfigError

LARGEST = 2**63 - 1
"""Largest number: the largest integer of TOML, Flower and torch. Infinity and NaN are not allowed."""

LONGEST = 160
"""Most characters of a value in an error."""


def setting(default: Any, about: str, allowed: str = "", check: Callable[[Any], bool] | None = None) -> Any:
    """A field of settings: default, meaning (its help text), allowed values, and their check."""
    return field(default=default, metadata={"about": about, "allowed": allowed, "check": check})


def key_of(name: str) -> str:
    """The key that users write for a field: its name with hyphens."""
    return name.replace("_", "-")


def check_values(settings: Any) -> None:
    """Check each field of a frozen dataclass of settings by ``checked``; integers become floats in fields of floats."""
    for spec in fields(settings):
        object.__setattr__(settings, spec.name, checked(spec, getattr(settings, spec.name)))


def checked(spec: Field[Any], value: Any) -> Any:
    """Check a setting's value by type and range, and return it; an integer becomes a float in a field of floats.

    Raises:
        ConfigError: With the key, the value and the allowed values.
    """
    kind: type[Any] = type(spec.default)
    key, check = key_of(spec.name), spec.metadata["check"]
    if type(value) is not kind and not (kind is float and type(value) is int):
        raise ConfigError(
            f"{key} is {shown(value)} ({type(value).__name__}); expected {kind.__name__}, such as {spec.default!r}"
        )
    if kind in (int, float) and not abs(value) <= LARGEST:  # NaN is no number up to it, either
        allowed = spec.metadata["allowed"]
        raise ConfigError(
            f"{key} is {shown(value)}; allowed: {allowed}{'' if 'at most' in allowed else f', and at most {LARGEST}'}"
        )
    if check and not check(value):
        raise ConfigError(f"{key} is {shown(value)}; allowed: {spec.metadata['allowed']}")
    return float(value) if kind is float else value


def shown(value: Any) -> str:
    """Text of a value for an error; a long text is cut and its length is added."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of more digits than Python writes, or lists in lists
        return f"{type(value).__name__} that is too large to show"
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}... ({len(text)} characters)"


def at_least(minimum: float) -> dict[str, Any]:
    """Range of values from a minimum on."""
    return {"allowed": f"at least {minimum:g}", "check": lambda value: value >= minimum}


def between(minimum: float, maximum: float) -> dict[str, Any]:
    """Range of values between two numbers, both included."""
    return {"allowed": f"at least {minimum}, at most {maximum}", "check": lambda value: minimum <= value <= maximum}


def at_most_characters(maximum: int) -> dict[str, Any]:
    """Check for a text of one line with a largest length."""
    return {
        "allowed": f"one line of at most {maximum} characters",
        "check": lambda value: len(value) <= maximum and value.isprintable(),
    }


def above(minimum: float, maximum: float) -> dict[str, Any]:
    """Range of values above a minimum, up to and including a maximum."""
    return {"allowed": f"above {minimum:g}, at most {maximum:g}", "check": lambda value: minimum < value <= maximum}


def one_of(*values: str) -> dict[str, Any]:
    """Check for one of a few words."""
    return {"allowed": " or ".join(map(repr, values)), "check": lambda value: value in values}


def limited(name: str) -> dict[str, Any]:
    """Range of values that nodes accept for a plan's field (``clients.wire.limits``)."""
    return {"allowed": str(LIMITS[name]), "check": LIMITS[name].allows}


IMAGE_SIDE: dict[str, Any] = limited("image_size")
"""Side of images, 0 for no scaling. Images of one pixel are refused: shuffles, crops and scores need more."""

SHARE: dict[str, Any] = above(0, 1)
