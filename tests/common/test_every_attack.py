"""Properties that every attack must have. A new class is tested as soon as ``attacks.__all__`` names it."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from dataclasses import fields, replace
from functools import cache
from typing import Any, get_args, get_origin

import pytest
import torch
from torch import Tensor, nn

import attacks
from attacks import Attack, ClientUpdate, Labels, Reconstruction, null_baselines, score
from defenses.spec import parse_statements, registry_of
from tests.attacks.wire import CLASSES, classes, observe, pictures, sigmoid_net

NAMES: dict[str, Callable[..., Any]] = registry_of(attacks, Attack)

# Enough to see a leak in tests that run every class; fields that a class lacks are ignored.
CHEAP = {"iterations": 40, "restarts": 1}


def cheap(cls: Callable[..., Any]) -> Any:
    attack = cls()
    return replace(attack, **{f.name: CHEAP[f.name] for f in fields(attack) if f.name in CHEAP})


def observation_type(cls: Any) -> Any:
    """What stands for Observation in ``class X(Attack[Observation, Guess])``, in this class or the nearest base."""
    for base in cls.__mro__:
        for written in getattr(base, "__orig_bases__", ()):
            if get_origin(written) is Attack:
                return get_args(written)[0]
    raise AssertionError(f"{cls.__name__} must be written as Attack[Observation, Guess]")


def update_of(model: nn.Module, image: Tensor, label: Tensor) -> ClientUpdate:
    return observe(model, image, label)


# One entry per type of observation: (model, image (1, 1, 12, 12), label (1,)) -> what crossed the wire.
WIRES: dict[Any, Callable[[nn.Module, Tensor, Tensor], Any]] = {ClientUpdate: update_of}


def silenced(observation: Any, seed: int) -> Any:
    """The observation with everything that depends on the private image replaced by fresh noise."""
    generator = torch.Generator().manual_seed(seed)
    noise = {name: torch.randn(value.shape, generator=generator) for name, value in observation.update.items()}
    return replace(observation, update=noise)


@cache
def data(count: int) -> tuple[Tensor, Tensor]:
    return pictures(count, seed=3), classes(count, seed=3)


def wires(cls: Callable[..., Any], count: int) -> list[Any]:
    kind = observation_type(cls)
    assert kind in WIRES, f"add an example of {kind.__name__} to WIRES, so that {cls} is tested"
    model, (images, labels) = sigmoid_net(seed=5), data(count)
    return [WIRES[kind](model, images[i : i + 1], labels[i : i + 1]) for i in range(count)]


def streams(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(100 * seed + i) for i in range(count)]


def guessed(guess: Any) -> Tensor:
    return guess.images if isinstance(guess, Reconstruction) else guess.classes


@pytest.mark.parametrize("name", NAMES)
def test_says_where_it_comes_from_and_what_it_assumes(name):
    assert NAMES[name].source.strip()
    assert NAMES[name].threat.strip()
    assert NAMES[name].__doc__.strip()


@pytest.mark.parametrize("name", NAMES)
def test_survives_pickle_and_its_own_text(name):
    attack = cheap(NAMES[name])
    assert pickle.loads(pickle.dumps(attack)) == attack
    for instance in (attack, NAMES[name]()):
        assert parse_statements(repr(instance), NAMES, "attack") == [[instance]]
    assert repr(NAMES[name]()) == f"{name}()"


@pytest.mark.parametrize("name", NAMES)
def test_fields_cannot_be_changed(name):
    attack = NAMES[name]()
    first = next(f.name for f in fields(attack))
    with pytest.raises(AttributeError):
        setattr(attack, first, getattr(attack, first))


@pytest.mark.parametrize("name", NAMES)
def test_repeats_itself_and_leaves_the_observation_alone(name):
    attack, seen = cheap(NAMES[name]), wires(NAMES[name], 2)
    before = copy.deepcopy(seen)
    torch.manual_seed(1)
    first = attack.attack_many(seen, streams(2))
    torch.manual_seed(2)
    again = attack.attack_many(seen, streams(2))
    assert all(torch.equal(guessed(a), guessed(b)) for a, b in zip(first, again, strict=True))
    assert not any(guess.failure for guess in first)
    for old, new in zip(before, seen, strict=True):
        assert all(torch.equal(value, new.update[key]) for key, value in old.update.items())
        weights = new.model.state_dict()
        assert all(torch.equal(value, weights[key]) for key, value in old.model.state_dict().items())
        assert [m.training for m in old.model.modules()] == [m.training for m in new.model.modules()]
        assert all(p.grad is None and p.requires_grad for p in new.model.parameters())


@pytest.mark.parametrize("name", NAMES)
def test_a_guess_depends_on_its_own_observation(name):
    """At least one of several observations is guessed differently from the others, and a broken one harms none of them."""
    attack, seen = cheap(NAMES[name]), wires(NAMES[name], 4)
    broken = replace(seen[1], update={})
    guesses = attack.attack_many([seen[0], broken, *seen[2:]], streams(4))
    assert [bool(guess.failure) for guess in guesses] == [False, True, False, False]
    assert len({tuple(guessed(guess).flatten().tolist()) for guess in guesses if not guess.failure}) > 1


@pytest.mark.parametrize("name", NAMES)
def test_is_at_chance_on_fresh_noise(name):
    cls = NAMES[name]
    count = 60 if cls is attacks.LabelInference else 4
    images, labels = data(count)
    seen = [silenced(observation, seed) for seed, observation in enumerate(wires(cls, count))]
    guesses = cheap(cls).attack_many(seen, streams(count))
    if isinstance(guesses[0], Labels):
        right = sum(score(guess, labels[i : i + 1])["label-accuracy"] for i, guess in enumerate(guesses))
        # Three standard deviations above the mean of a binomial distribution.
        assert right < count / CLASSES + 3 * (count * (CLASSES - 1)) ** 0.5 / CLASSES
    else:
        grey = null_baselines(images, images.mean(0))["grey"].images
        bar = [score(Reconstruction(grey[i : i + 1], labels), images[i : i + 1])["psnr"][0] for i in range(count)]
        blind = [score(guess, images[i : i + 1])["psnr"][0] for i, guess in enumerate(guesses)]
        assert sum(blind) / count < sum(bar) / count + 1
