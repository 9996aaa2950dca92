"""Properties that every attack on smashed data must have. A new class is tested as soon as ``attacks.__all__`` names it."""

from __future__ import annotations

import copy
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from attacks import AttackError, Labels
from attacks.image_measures import mse
from attacks.smashed.base import EdgeStep, SmashedData
from defenses import SpectralShuffle
from defenses.base import Defense
from tests.attacks.smashed_wire import CLASSES, halves, knowledge, observe, seeded
from tests.common.test_every_attack import EVERY

NAMES = [name for name, cls in EVERY.items() if cls.observes is SmashedData]
CHEAP = {"iterations": 12, "transmissions": 3, "batch_size": 8, "width": 16, "num_images": 32, "reader_iterations": 12}

# A pipeline that the attack is meant for, where it is not the empty one.
PIPELINES: dict[str, tuple[Defense, ...]] = {"HermitianPairing": (SpectralShuffle(),)}


def cheap(name: str) -> Any:
    attack = EVERY[name]()
    return replace(attack, **{f.name: CHEAP[f.name] for f in fields(attack) if f.name in CHEAP})


@cache
def fitted(name: str) -> Any:
    """The cheap attack after it has learned from 64 auxiliary pictures."""
    defenses = PIPELINES.get(name, ())
    known = knowledge(*defenses, blocks=blocks(name), width=32, count=64)
    return cheap(name).fit(known, seeded(9))


def blocks(name: str) -> int:
    return 0 if name in PIPELINES else 1


def wire(name: str, **changes: Any) -> tuple[SmashedData, Tensor]:
    """What was sent of two targets in a batch of six, three times; with a step of the client half for who needs one."""
    seen, clean, _ = observe(*PIPELINES.get(name, ()), blocks=blocks(name), transmissions=3, **changes)
    if cheap(name).needs_step:
        edge = halves_of(name)
        gradient = torch.randn(seen.features[0].shape, generator=seeded(4))
        update = {n: 0.1 * torch.randn(w.shape, generator=seeded(5)) for n, w in edge.named_parameters()}
        seen = replace(seen, step=EdgeStep(update, gradient, 0.1, 0.0))
    return seen, clean


def halves_of(name: str) -> Any:
    from defenses.pipeline import Pipeline

    return halves(Pipeline(PIPELINES.get(name, ())), blocks(name))[0]


def guessed(guess: Any) -> Tensor:
    return guess.classes if isinstance(guess, Labels) else guess.images


@pytest.mark.parametrize("name", NAMES)
def test_repeats_itself_and_leaves_the_observation_alone(name: str) -> None:
    seen, _ = wire(name)
    before, weights = copy.deepcopy(seen.features), copy.deepcopy(halves_of(name).state_dict())
    torch.manual_seed(1)
    first = fitted(name)(seen, seeded())
    torch.manual_seed(2)
    again = fitted(name)(seen, seeded())
    assert not first.failure
    assert torch.equal(guessed(first), guessed(again))
    assert torch.equal(before, seen.features)
    assert all(torch.equal(value, halves_of(name).state_dict()[key]) for key, value in weights.items())


@pytest.mark.parametrize("name", NAMES)
def test_guesses_the_targets_and_nothing_else(name: str) -> None:
    seen, clean = wire(name)
    guess = fitted(name)(seen, seeded())
    if isinstance(guess, Labels):
        assert guess.classes.shape == (2,)
        assert guess.classes.min() >= 0
        assert guess.classes.max() < CLASSES
        assert torch.equal(guess.classes, guess.classes.sort().values)
    else:
        assert guess.images.shape == clean.shape
        assert torch.isfinite(guess.images).all()
        assert guess.images.min() >= 0
        assert guess.images.max() <= 1
    assert all(isinstance(value, float) for value in guess.diagnostics.values())


@pytest.mark.parametrize("name", NAMES)
def test_never_looks_at_the_true_order_unless_it_says_so(name: str) -> None:
    assert not fitted(name).reveals_order
    assert not fitted(name).upper_bound, "the default settings are those of an attacker, not of an upper bound"
    seen, _ = wire(name)
    told = replace(seen, orders=torch.zeros(seen.features.shape[:3], dtype=torch.int64))
    assert torch.equal(guessed(fitted(name)(seen, seeded())), guessed(fitted(name)(told, seeded())))


@pytest.mark.parametrize("name", NAMES)
def test_is_at_chance_on_fresh_noise(name: str) -> None:
    seen, clean = wire(name)
    noise = torch.randn(seen.features.shape, generator=seeded(3)) * seen.features.std()
    guess = fitted(name)(replace(seen, features=noise), seeded())
    if isinstance(guess, Labels) or guess.failure:
        return
    grey = torch.full_like(clean, 0.5)
    mean = clean.mean(0, keepdim=True).expand_as(clean)
    assert mse(guess.images, clean).mean() > 0.7 * min(mse(grey, clean).mean(), mse(mean, clean).mean())


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_observation_fails_alone(name: str) -> None:
    seen, _ = wire(name)
    broken = replace(seen, features=seen.features[:, :, :, :3], step=None)
    guesses = fitted(name).attack_many([seen, broken], [seeded(0), seeded(1)])
    assert not guesses[0].failure
    assert guesses[1].failure
    lone = fitted(name)(seen, seeded(0))
    assert torch.equal(guessed(lone), guessed(guesses[0]))


@pytest.mark.parametrize("name", [name for name in NAMES if EVERY[name]().transmissions > 1])
@pytest.mark.parametrize("count", [1, 2])
def test_it_makes_do_with_the_transmissions_that_a_run_makes(name: str, count: int) -> None:
    """Three are asked for; a run that sends an image once or twice gives no more, and the attack still guesses."""
    seen, clean = wire(name)
    attack = cheap(name).limited_to(count)
    assert (cheap(name).transmissions, attack.transmissions, attack.limited_to(9).transmissions) == (3, count, count)
    known = knowledge(*PIPELINES.get(name, ()), blocks=blocks(name), count=64)
    guess = attack.fit(known, seeded())(replace(seen, features=seen.features[:count]), seeded())
    assert not guess.failure
    assert guess.images.shape == clean.shape
    assert not torch.equal(guess.images, torch.full_like(guess.images, 0.5))


@pytest.mark.parametrize("name", [name for name in NAMES if EVERY[name]().transmissions > 1])
def test_more_transmissions_than_the_run_makes_are_an_upper_bound(name: str) -> None:
    assert not EVERY[name]().upper_bound
    assert "more transmissions" in EVERY[name](beyond_run=True).upper_bound


@pytest.mark.parametrize("name", [name for name in NAMES if EVERY[name]().needs_auxiliary])
def test_what_learns_must_be_fitted_on_enough(name: str) -> None:
    seen, _ = wire(name)
    assert "fit" in cheap(name)(seen, seeded()).failure
    assert fitted(name) == cheap(name), "what was learned is no hyper-parameter"
    known = knowledge(*PIPELINES.get(name, ()), blocks=blocks(name), count=1)
    with pytest.raises(AttackError):
        cheap(name).fit(known, seeded())


@pytest.mark.parametrize("name", [name for name in NAMES if EVERY[name]().needs_auxiliary])
def test_outside_of_split_learning_nothing_can_be_learned(name: str) -> None:
    with pytest.raises(AttackError, match="split"):
        cheap(name).fit(replace(knowledge(count=64), sender=None), seeded())
