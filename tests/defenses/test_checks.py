"""Limits of settings: what a refusal calls allowed is taken, and what lies beside it is refused by name."""

import math
import re
from dataclasses import fields
from typing import Any

import pytest

from attacks.spec import ATTACKS
from defenses.base import DEFENSES
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


STATED: list[tuple[str, str, Any, Any]] = [
    # What a claim of privacy can be computed for.
    ("DPSGD", "noise_multiplier", 1e-4, 9.9e-5), ("DPSGD", "target_epsilon", 1e6, 1e6 + 1),
    ("DPSGD", "target_delta", 0.999, 1.0), ("DPSGD", "target_delta", 1e-300, 0.0), ("DPSGD", "accountant", "rdp", "gdp"),
    ("ClientDP", "noise_multiplier", 1e-4, 9.9e-5), ("ClientDP", "max_norm", 1e12, math.inf),
    ("FeatureDP", "noise_multiplier", 1e-4, 9.9e-5), ("FeatureDP", "delta", 0.999, 1.0),
    ("FlowerLocalDP", "epsilon", 1e6, 1.1e6), ("FlowerLocalDP", "delta", 0.999, 1.0),
    ("GaussianNoise", "std", 1e6, 1.1e6),
    # What a node has memory and time for: a server may ask for any of these.
    ("Blur", "std", 4096, 4097), ("VisualMixer", "window_upper", 4096, 4097), ("InstaHide", "num_mixed", 32, 33),
    ("DeltaAutoencoder", "epochs", 10**9, 10**9 + 1),
    # What a method needs, such as two examples for a mean of several.
    ("ClassGAN", "batch_size", 2, 1), ("TokenDecoder", "batch_size", 2, 0), ("AttributeInference", "batch_size", 2, 1),
    ("FieldReading", "batch_size", 2, 1), ("ImprintLayer", "bins", 2, 1), ("ImprintLayer", "bins", 10**6, 10**6 + 1),
    ("RMIA", "num_members", 2, 1),
    ("LiRA", "num_shadows", 2, 1), ("EmbeddingReversal", "learning_rate", 1, 2), ("SpearPlusPlus", "max_starts", 1, 0),
    ("InverseNetwork", "training", "static", "never"),
    ("STAdam", "beta", 0.0, 1.0), ("TokenDecoder", "batch_size", 2**20, 2**20 + 2),
]  # fmt: skip
"""Class, setting, an allowed value at the limit or near it, and a refused one beside it."""


def test_limits_that_keep_claims_and_machines_safe_are_where_they_are_stated() -> None:
    for name, field, good, bad in (one for one in STATED if one[0] in CLASSES):
        assert f"{field} is " not in refusal(CLASSES[name], field, good), (name, field, good)
        assert refusal(CLASSES[name], field, bad).startswith(f"{field} is "), (name, field, bad)
