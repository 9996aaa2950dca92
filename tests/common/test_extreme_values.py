"""Every number of every defence and attack: refused by its name, or of use. New classes are tested as soon as they are exported."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from typing import Any

import pytest
import torch

from attacks.registry import ATTACKS
from defenses.base import Defense, DefenseError, EdgeTrainingDefense, SmashedDefense, TrainingDefense
from defenses.random_draws import generator_for
from defenses.registry import DEFENSES
from defenses.spec import settings_of
from tests.bounded import bounded
from tests.common.test_every_defense import a_training, outcome, train

pytestmark = pytest.mark.filterwarnings("ignore:Full backward hook", "ignore:Optimal order is the")

EXTREMES: list[Any] = [
    *(0, -1, 1e-300, 1e-160, 5e-324, -5e-324, 1e300, 10**10, 2**63, 2**70, 10**400),
    *(math.nan, math.inf, -math.inf, True, "1", None, [1], 1j),
]
CLASSES: dict[str, Callable[..., Any]] = {**DEFENSES, **ATTACKS}


def numbers() -> Iterator[tuple[str, str]]:
    """(class, field) of each field that may hold a number, or a tuple of some."""
    for name, cls in CLASSES.items():
        for spec in fields(cls):  # type: ignore[arg-type]
            if spec.name in settings_of(cls) and re.search(r"\b(int|float)\b", str(spec.type)):
                yield name, spec.name


NUMBERS = list(numbers())


def allowed(name: str, field: str) -> str:
    """What a refusal of the field says it may be."""
    with pytest.raises(ValueError, match="; allowed: ") as refusal:
        CLASSES[name](**{field: b"1"})
    return str(refusal.value).partition("; allowed: ")[2]


def made(name: str, field: str, value: Any) -> Any:
    """An instance with one extreme value, or None where it is refused: naming the field, the value and what is allowed."""
    cls = CLASSES[name]
    kind = next(str(spec.type) for spec in fields(cls) if spec.name == field)  # type: ignore[arg-type]
    given = (value,) if kind.startswith("tuple") else value
    try:
        with bounded(5):
            return cls(**{field: given})
    except ValueError as error:
        told = str(error)
    assert re.match(r"\w+ is .*; allowed: .", told, re.DOTALL), told
    assert len(told) < 1000
    # Of two fields that must fit each other, the error may name the other first.
    assert told.startswith(f"{field} is {given!r:.100}") or f"{field} = " in told, told
    return None


def test_there_are_such_fields() -> None:
    assert len(NUMBERS) > 200
    assert {name for name, _ in NUMBERS} > {"DPSGD", "InstaHide", "Blur", "ClassGAN", "InvertingGradients"}


@pytest.mark.parametrize(("name", "field"), NUMBERS)
def test_a_number_is_refused_by_name_or_is_of_a_size_that_acts(name: str, field: str) -> None:
    spec = next(one for one in fields(CLASSES[name]) if one.name == field)  # type: ignore[arg-type]
    most = 1e12 if "float" in str(spec.type) else 10**9
    told = allowed(name, field)
    endless = told.endswith("or inf")  # infinity is a meaning of its own
    # Probabilities are computed with as Python's floats, in which 1e-300 is a number.
    positive = made(name, field, 0) is None and "in (0, 1)" not in told
    for value in EXTREMES:
        if made(name, field, value) is None or value is None is spec.default:
            continue
        assert type(value) in (int, float), f"{value!r} is no number"
        assert not math.isnan(value)
        assert abs(value) <= most or endless, f"{value!r} has no end"
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


@pytest.mark.parametrize(("name", "field"), [pair for pair in NUMBERS if pair[0] in DEFENSES])
def test_an_extreme_number_protects_something_small(name: str, field: str) -> None:
    for value in EXTREMES:
        defense: Defense | None = made(name, field, value)
        if defense is None:
            continue
        if quick := type(defense).quick:
            defense = replace(defense, **{key: one for key, one in quick.items() if key != field})  # type: ignore[type-var]
        with bounded():
            assert spent(defense) > 0
            if isinstance(defense, SmashedDefense):
                try:
                    defense.check_batch(4, 16)
                except DefenseError:  # told before anything starts
                    continue
            result = outcome(defense, generator_for(0))
        # Training by extreme numbers may diverge, which a run tells; what is protected must be numbers.
        finite = all(torch.isfinite(tensor).all() for tensor in result.values())
        assert finite or isinstance(defense, TrainingDefense | EdgeTrainingDefense), f"{defense!r}"
