"""Every number of every defence and attack: refused by its name, or of use. New classes are tested as soon as they are exported."""

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import Field, fields, replace
from typing import Any

import pytest
import torch

from attacks.spec import ATTACKS
from defenses.base import DEFENSES, Defense, DefenseError, EdgeTrainingDefense, SmashedDefense, TrainingDefense
from defenses.checks import declared_fields
from defenses.random_draws import generator_for
from tests.bounded import bounded
from tests.common.any_attack import registered
from tests.common.test_every_defense import a_training, outcome, train

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Optimal order is the")

EXTREMES: list[Any] = [
    *(0, -1, 1e-300, 1e-160, 5e-324, -5e-324, 1e300, 10**10, 2**63, 2**70, 10**400),
    *(math.nan, math.inf, -math.inf, True, "1", None, [1], 1j),
]
CLASSES: dict[str, Callable[..., Any]] = registered({**DEFENSES, **ATTACKS})


def numbers(cls: Callable[..., Any]) -> Iterator[Field[Any]]:
    """The fields that hold a number."""
    numeric = {name for name, declared in declared_fields(cls).items() if declared.kind in (int, float)}
    yield from (spec for spec in fields(cls) if spec.name in numeric)  # type: ignore[arg-type]


def allowed(cls: Callable[..., Any], field: str) -> str:
    """What a refusal of the field says it may be."""
    with pytest.raises(ValueError, match="; allowed: ") as refusal:
        cls(**{field: b"1"})
    return str(refusal.value).partition("; allowed: ")[2]


def made(cls: Callable[..., Any], spec: Field[Any], value: Any) -> Any:
    """An instance with one extreme value, or None where it is refused: naming the field, the value and what is allowed."""
    try:
        return cls(**{spec.name: value})
    except ValueError as error:
        message = str(error)
    assert re.match(r"\w+ is .*; allowed: .", message, re.DOTALL), message
    assert len(message) < 1000
    # Of two fields that must fit each other, the error may name the other first.
    assert message.startswith(f"{spec.name} is {value!r:.100}") or f"{spec.name} = " in message, message
    return None


def test_a_number_is_refused_by_name_or_is_of_a_size_that_acts(subtests: pytest.Subtests) -> None:
    assert sum(1 for cls in CLASSES.values() for _ in numbers(cls)) > 200 or len(CLASSES) < 50
    for name, cls in CLASSES.items():
        for spec in numbers(cls):
            with subtests.test(f"{name} {spec.name}"), bounded(60):
                most = 1e12 if declared_fields(cls)[spec.name].kind is float else 10**9
                text = allowed(cls, spec.name)
                # Probabilities are computed with as Python's floats, in which 1e-300 is a number.
                positive = made(cls, spec, 0) is None and "below 1" not in text
                for value in EXTREMES:
                    if made(cls, spec, value) is None or value is None is spec.default:
                        continue
                    assert type(value) in (int, float), f"{value!r} is no number"
                    assert not math.isnan(value)
                    assert abs(value) <= most or text.startswith("inf, or "), f"{value!r} has no end"
                    assert not positive or value > 1e-38, f"{value!r} is 0 in float32, which is refused"


def spent(defense: Defense) -> float:
    """The epsilon of a little training, or of three releases; 1 where nothing is claimed."""
    if not defense.bounds_examples:
        return 1.0
    if not isinstance(defense, TrainingDefense):
        return float(defense.privacy(3)["epsilon"])  # type: ignore[attr-defined]
    training = defense.protect_training(a_training(defense), generator_for(0))
    train(training)
    return float(defense.privacy(training.state)["epsilon"])  # type: ignore[attr-defined]


def test_an_extreme_number_protects_something_small(subtests: pytest.Subtests) -> None:
    for name, cls in registered(DEFENSES).items():
        for spec in numbers(cls):
            with subtests.test(f"{name} {spec.name}"), bounded(60):
                for value in EXTREMES:
                    defense: Defense | None = made(cls, spec, value)
                    if defense is None:
                        continue
                    if cls.quick:
                        kept = {key: one for key, one in cls.quick.items() if key != spec.name}
                        defense = replace(defense, **kept)  # type: ignore[type-var]
                    assert spent(defense) > 0
                    if isinstance(defense, SmashedDefense):
                        try:
                            defense.check_batch(4, 16)
                        except DefenseError:  # a run says so before anything starts
                            continue
                    found = outcome(defense, generator_for(0)).values()
                    # Training by extreme numbers may diverge, which a run reports; what is protected must be numbers.
                    finite = all(torch.isfinite(tensor).all() for tensor in found)
                    assert finite or isinstance(defense, TrainingDefense | EdgeTrainingDefense), f"{defense!r}"
