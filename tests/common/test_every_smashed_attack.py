"""Properties that every attack on smashed data must have. A new class is tested as soon as ``attacks`` exports it."""

import copy
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks import AttackError, Knowledge, Labels
from attacks.image_measures import mse
from attacks.smashed.base import EdgeStep, SmashedData
from clients.models.split.halves import EdgeHalf
from defenses.base import SmashedDefense
from defenses.pipeline import Pipeline
from tests.attacks.smashed_wire import CLASSES, halves, knowledge, observe, seeded
from tests.common.any_attack import pipelines_against, quick
from tests.common.test_every_attack import EVERY

NAMES = [name for name, cls in EVERY.items() if cls.profile.observes is SmashedData and "images" in cls.profile.data]
MANY = [name for name in NAMES if EVERY[name]().transmissions > 1]
LEARNING = [name for name in NAMES if EVERY[name]().needs_auxiliary]


@cache
def defenses_against(name: str) -> dict[str, Pipeline]:
    return pipelines_against(name, SmashedDefense)


def pairs(names: list[str]) -> list[tuple[str, str]]:
    """(attack, one of the defences of smashed data that name it as their adaptive attack), or "plain" where none does."""
    return [(name, one) for name in names for one in defenses_against(name)]


def known_of(name: str, defense: str, count: int = 64) -> Knowledge:
    pipeline = defenses_against(name)[defense]
    return knowledge(*pipeline.defenses, blocks=blocks(pipeline), width=32, count=count)


@cache
def fitted(name: str, defense: str) -> Any:
    """The quick attack after it has learned from 64 auxiliary pictures."""
    return quick(EVERY[name]).fit(known_of(name, defense), seeded(9))


def blocks(pipeline: Pipeline) -> int:
    return 1 if pipeline.edge_blocks is None else pipeline.edge_blocks


def wire(name: str, defense: str, **changes: Any) -> tuple[SmashedData, Tensor]:
    """What was sent of two targets in a batch of six, three times or more; with a step of the client half for who needs one."""
    pipeline, attack = defenses_against(name)[defense], quick(EVERY[name])
    transmissions = max(3, attack.transmissions)
    seen, clean, _ = observe(*pipeline.defenses, blocks=blocks(pipeline), transmissions=transmissions, **changes)
    if attack.profile.needs_step:
        gradient = torch.randn(seen.features[0].shape, generator=seeded(4))
        weights = halves_of(name, defense).named_parameters()
        update = {n: 0.1 * torch.randn(w.shape, generator=seeded(5)) for n, w in weights}
        seen = replace(seen, step=EdgeStep(update, gradient, 0.1, 0.0))
    return seen, clean


def halves_of(name: str, defense: str) -> EdgeHalf:
    pipeline = defenses_against(name)[defense]
    return halves(pipeline, blocks(pipeline))[0]


def guessed(guess: Any) -> Tensor:
    return guess.classes if isinstance(guess, Labels) else guess.images


def repeats_itself(name: str, defense: str) -> None:
    """Beside a broken observation as well, whatever torch's default generator and the true order of the tokens are."""
    seen, clean = wire(name, defense)
    before, weights = copy.deepcopy(seen.features), copy.deepcopy(halves_of(name, defense).state_dict())
    attack = fitted(name, defense)
    assert not attack.reveals_order
    assert not attack.upper_bound, "the default settings are those of an attacker, not of an upper bound"
    torch.manual_seed(1)
    first = attack(seen, seeded())
    torch.manual_seed(2)
    orders = torch.zeros(seen.features.shape[:3], dtype=torch.int64)
    broken = replace(seen, features=seen.features[:, :, :, :3], step=None)
    again, failed = attack.attack_many([replace(seen, orders=orders), broken], [seeded(), seeded(1)])
    assert (bool(first.failure), bool(failed.failure)) == (False, True)
    assert torch.equal(guessed(first), guessed(again))
    assert torch.equal(before, seen.features)
    assert all(torch.equal(value, halves_of(name, defense).state_dict()[key]) for key, value in weights.items())
    if isinstance(first, Labels):
        assert first.classes.shape == (2,)
        assert 0 <= first.classes.min() <= first.classes.max() < CLASSES
        assert torch.equal(first.classes, first.classes.sort().values)
    else:
        assert first.images.shape == clean.shape
        assert torch.isfinite(first.images).all()
        assert 0 <= first.images.min() <= first.images.max() <= 1
    assert all(isinstance(value, float) for value in first.diagnostics.values())


def is_at_chance(name: str, defense: str) -> None:
    seen, clean = wire(name, defense)
    noise = torch.randn(seen.features.shape, generator=seeded(3)) * seen.features.std()
    guess = fitted(name, defense)(replace(seen, features=noise), seeded())
    if isinstance(guess, Labels) or guess.failure:
        return
    grey = torch.full_like(clean, 0.5)
    mean = clean.mean(0, keepdim=True).expand_as(clean)
    assert mse(guess.images, clean).mean() > 0.7 * min(mse(grey, clean).mean(), mse(mean, clean).mean())


def makes_do_with_fewer_transmissions(name: str, defense: str) -> None:
    """More are asked for; a run that sends an image once or twice gives no more, and the attack still guesses."""
    seen, clean = wire(name, defense)
    wanted = quick(EVERY[name])
    for count in (1, 2):
        attack, fewer = wanted.limited_to(count), min(count, wanted.transmissions)
        assert (attack.transmissions, attack.limited_to(9).transmissions) == (fewer, fewer)
    alone = wanted.limited_to(1).fit(known_of(name, defense), seeded())
    guess = alone(replace(seen, features=seen.features[:1]), seeded())
    assert not guess.failure
    assert guess.images.shape == clean.shape
    assert not torch.equal(guess.images, torch.full_like(guess.images, 0.5))


def is_fitted_on_enough(name: str, defense: str) -> None:
    with pytest.raises(AttackError, match="call fit first"):
        quick(EVERY[name])(wire(name, defense)[0], seeded())
    assert fitted(name, defense) == quick(EVERY[name]), "what was learned is no hyper-parameter"
    with pytest.raises(AttackError):
        quick(EVERY[name]).fit(known_of(name, defense, count=1), seeded())
    with pytest.raises(AttackError, match="split"):
        quick(EVERY[name]).fit(replace(known_of(name, defense), sender=None), seeded())


DEAR = ("Pix2Pix", "AdaptiveDecoder")
"""Attacks that take seconds even with their quick settings."""
PROPERTIES = (
    (repeats_itself, NAMES), (is_at_chance, NAMES), (makes_do_with_fewer_transmissions, MANY), (is_fitted_on_enough, LEARNING),
)  # fmt: skip
FIRST = [(name, next(iter(defenses_against(name)))) for name in NAMES if name not in DEAR]


@pytest.mark.numeric
def test_every_attack_on_smashed_data_has_these_properties(subtests: pytest.Subtests) -> None:
    for holds, names in PROPERTIES:
        for name, defense in pairs(names):
            if (name, defense) in FIRST:
                with subtests.test(f"{holds.__name__} {name} {defense}"):
                    holds(name, defense)


@pytest.mark.long
def test_so_it_is_against_all_other_defences_and_with_the_dear_attacks(subtests: pytest.Subtests) -> None:
    for holds, names in PROPERTIES:
        for name, defense in pairs(names):
            if (name, defense) not in FIRST:
                with subtests.test(f"{holds.__name__} {name} {defense}"):
                    holds(name, defense)


def test_more_transmissions_than_the_run_makes_are_an_upper_bound() -> None:
    for name in ("TokenIntersection", "FeatureAveraging", "AdaptiveDecoder"):
        assert not EVERY[name]().upper_bound
        assert "more transmissions" in EVERY[name](beyond_run=True).upper_bound
        with pytest.raises(ValueError, match=r"beyond_run is 'no'; allowed: True or False"):
            EVERY[name](beyond_run="no")
