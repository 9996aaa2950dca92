"""Limits of settings: what a refusal calls allowed is taken, and what lies beside it is refused by name."""

import math
import re
from dataclasses import fields
from typing import Any

import pytest

from attacks.spec import ATTACKS
from defenses.registry import DEFENSES
from defenses.spec import settings_of
from tests.common.any_attack import registered
from tests.common.test_extreme_values import allowed

CLASSES: dict[str, Any] = registered({**DEFENSES, **ATTACKS})


def sides(text: str) -> tuple[list[Any], list[Any]]:
    """Values at the ends of what a refusal allows, and values beyond; none where the text is of another form."""
    if found := re.fullmatch(r"a whole number from (-?\d+) to (\d+)", text):
        low, high = map(int, found.groups())
        return [low, high], [low - 1, high + 1, low + 0.5]
    if found := re.fullmatch(r"(0, or )?a number from (\S+) to ([^\s,]+)(, or inf)?", text):
        zero, low, high, infinite = found[1], float(found[2]), float(found[3]), found[4]
        taken = [low, high, *([0] if zero else []), *([math.inf] if infinite else [])]
        return taken, [0.99 * low or -1e-6, 1.01 * high]
    choices = text.split(" | ")
    return (choices, ["no such text"]) if len(choices) > 1 else ([], [])


def refusal(cls: Any, field: str, value: Any) -> str:
    """What is said of a value, or "" where it is taken."""
    try:
        cls(**{field: value})
    except ValueError as error:
        return str(error)
    return ""


def test_limits_are_where_the_refusal_says_they_are(subtests: pytest.Subtests) -> None:
    tried = 0
    for name, cls in CLASSES.items():
        for field in (spec.name for spec in fields(cls) if spec.name in settings_of(cls)):
            with subtests.test(f"{name} {field}"):
                text = allowed(cls, field)
                taken, refused = sides(text)
                for value in taken:  # else refused by what another setting needs, such as a width that heads divide
                    assert f"allowed: {text}" not in refusal(cls, field, value)
                for value in refused:
                    assert refusal(cls, field, value) == f"{field} is {value!r}; allowed: {text}"
                tried += len(taken)
    assert tried > 200 or len(CLASSES) < 50
