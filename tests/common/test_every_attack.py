"""Properties that every attack must have. A new class is tested as soon as ``attacks`` exports it."""

import contextlib
import copy
import json
import pickle
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attacks
from attacks.active.base import ActiveAttack, AgreedModel
from attacks.spec import ATTACKS
from defenses.base import Batch
from defenses.spec import parse_statements
from tests.attacks.wire import CLASSES, MEAN, SIDE, STD, classes, observe, patch_net, pictures, relu_net, sigmoid_net
from tests.common.any_attack import pipelines_against, quick, registered
from tests.common.test_every_defense import texts_of

EVERY: dict[str, Callable[..., Any]] = registered(ATTACKS)  # concrete ones: Refinement is not among them
# Attacks that meet other observations, or guess an attribute, have tests of their own, such as test_every_smashed_attack.py.
NAMES = {
    name: cls
    for name, cls in EVERY.items()
    if issubclass(cls.profile.observes, attacks.ClientUpdate) and cls.profile.guesses != "attributes"  # type: ignore[attr-defined]
}
DEAR = (
    "LBFGSL2", "LBFGSCosine", "ClassFishing", "CocktailParty", "NoiseModelInversion", "ClassGAN",
)  # fmt: skip
"""Attacks that take long for a guess even with their quick settings."""
ON_PIXELS = ("CocktailParty", "ImprintLayer", "MatchedFilter", "SpearPlusPlus", "TrapWeights")
NETS: dict[str, Callable[..., nn.Module]] = {**dict.fromkeys(ON_PIXELS, relu_net), "PatchEmbeddingInversion": patch_net}
"""Attacks that do not apply without a linear layer on the pixels, or without a patch embedding."""
# (attack, one of the defences that name it as their adaptive attack): what it learns differs with each.
FIRST = [(name, next(iter(pipelines_against(name)))) for name in NAMES if name not in DEAR]
OTHERS = [(name, one) for name in NAMES for one in pipelines_against(name) if (name, one) not in FIRST]


def history_of(model: nn.Module, image: Tensor, label: Tensor) -> attacks.UpdateHistory:
    return attacks.UpdateHistory((observe(model, image, label), observe(model, 1 - image, label)))


def train(batch: Batch, seed: int) -> nn.Module:
    model, mean, std = sigmoid_net(seed % 1000), torch.tensor(MEAN), torch.tensor(STD)
    optimizer = torch.optim.SGD(model.parameters(), 0.05)
    for _ in range(10):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model((batch.images - mean) / std), batch.targets).backward()
        optimizer.step()
    return model.eval()


@cache
def fitted(name: str, defense: str) -> Any:
    """The quick attack after it has learned from 24 auxiliary pictures and this defence."""
    targets = nn.functional.one_hot(classes(24, seed=8), CLASSES).float()
    auxiliary = Batch(pictures(24, seed=8), targets)
    knowledge = attacks.Knowledge(auxiliary, pipelines_against(name)[defense], MEAN, STD, train)
    return quick(NAMES[name]).fit(knowledge, torch.Generator().manual_seed(9))


def run(attack: Any, seen: list[Any], generators: list[torch.Generator]) -> list[Any]:
    """Guesses; a refinement gets those of a plain inversion, failed ones included."""
    if not isinstance(attack, attacks.Refinement):
        return list(attack.attack_many(seen, generators))
    first = attacks.InvertingGradients(iterations=20).attack_many(seen, streams(len(seen), seed=7))
    return list(attack.refine_many(seen, first, generators))


def updates_of(observation: Any) -> list[attacks.ClientUpdate]:
    return list(observation.updates) if isinstance(observation, attacks.UpdateHistory) else [observation]


def with_updates(observation: Any, change: Callable[[attacks.ClientUpdate], attacks.ClientUpdate]) -> Any:
    if isinstance(observation, attacks.UpdateHistory):
        return replace(observation, updates=tuple(change(one) for one in observation.updates))
    return change(observation)


def of_noise(name: str, defense: str, count: int) -> list[Any]:
    """Guesses from observations with everything that depends on the private image replaced by fresh noise."""

    def silenced(one: attacks.ClientUpdate, generator: torch.Generator) -> attacks.ClientUpdate:
        return replace(one, update={k: torch.randn(v.shape, generator=generator) for k, v in one.update.items()})

    pairs = zip(wires(NAMES[name], count), streams(count, seed=1), strict=True)
    seen = [with_updates(one, lambda update, stream=stream: silenced(update, stream)) for one, stream in pairs]
    return run(fitted(name, defense), seen, streams(count))


@cache
def data(count: int) -> tuple[Tensor, Tensor]:
    return pictures(count, seed=3), classes(count, seed=3)


def wires(cls: Callable[..., Any], count: int) -> list[Any]:
    """What crossed the wire of each image alone: one update, or two of the same client."""
    observed = history_of if cls.profile.observes_history else observe  # type: ignore[attr-defined]
    model = NETS.get(cls.__name__, sigmoid_net)(seed=5)
    images, labels = data(count)
    attack = fitted(cls.__name__, "plain") if issubclass(cls, ActiveAttack) else None  # type: ignore[arg-type]
    if isinstance(attack, ActiveAttack):  # which reads what answers its own model
        model = attack.manipulated(AgreedModel(model, (1, SIDE, SIDE), MEAN, STD), torch.Generator().manual_seed(6))
        labels = torch.full_like(labels, getattr(attack, "target", 0)) if hasattr(attack, "target") else labels
    return [observed(model, images[i : i + 1], labels[i : i + 1]) for i in range(count)]


def streams(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(100 * seed + i) for i in range(count)]


def guessed(guess: Any) -> Tensor:
    if isinstance(guess, attacks.Membership):
        images, labels = data(4)
        return guess.scores((images - torch.tensor(MEAN)) / torch.tensor(STD), labels)
    return guess.images if isinstance(guess, attacks.Reconstruction | attacks.Representatives) else guess.classes


def test_a_class_says_what_it_assumes_reads_back_from_its_text_and_cannot_be_changed(subtests: pytest.Subtests) -> None:
    for name, cls in EVERY.items():
        with subtests.test(name):
            assert cls.source.strip()
            assert cls.threat.strip()
            assert cls.__doc__.strip()
            attack, default = quick(cls), cls()
            assert pickle.loads(pickle.dumps(attack)) == attack
            for instance in (attack, default):
                assert parse_statements(repr(instance), ATTACKS, "attack") == [[instance]]
            assert repr(default) == f"{name}()"
            first = next((field.name for field in fields(default)), "threat")
            with pytest.raises(AttributeError):
                setattr(default, first, getattr(default, first))


def test_what_needs_more_than_an_update_says_so(subtests: pytest.Subtests) -> None:
    """Auxiliary data for attacks that learn, another attack's guess for refinements."""
    for name, defense in FIRST:
        with subtests.test(name):
            attack, seen = quick(NAMES[name]), wires(NAMES[name], 1)
            if isinstance(attack, attacks.Refinement):
                with pytest.raises(attacks.AttackError, match="refines"):
                    attack.attack_many(seen, streams(1))
            if attack.needs_auxiliary:
                with pytest.raises(attacks.AttackError, match=r"auxiliary|fit"):
                    run(attack, seen, streams(1))
                assert fitted(name, defense) == attack  # what was learned is no hyper-parameter


def repeats_itself(name: str, defense: str) -> None:
    """Two observations are guessed differently, and a broken one between them harms neither."""
    seen = wires(NAMES[name], 3)
    seen[1] = with_updates(seen[1], lambda one: replace(one, update={}))
    before = copy.deepcopy(seen)
    torch.manual_seed(1)
    first = run(fitted(name, defense), seen, streams(3))
    torch.manual_seed(2)
    again = run(fitted(name, defense), seen, streams(3))
    assert [bool(guess.failure) for guess in first] == [False, True, False]
    found, same = ([guessed(guess) for guess in guesses if not guess.failure] for guesses in (first, again))
    assert all(torch.equal(a, b) for a, b in zip(found, same, strict=True))
    assert not torch.equal(*found)
    pairs = zip(before, seen, strict=True)
    for old, new in (pair for a, b in pairs for pair in zip(updates_of(a), updates_of(b), strict=True)):
        assert all(torch.equal(value, new.update[key]) for key, value in old.update.items())
        weights = new.model.state_dict()
        assert all(torch.equal(value, weights[key]) for key, value in old.model.state_dict().items())
        assert [m.training for m in old.model.modules()] == [m.training for m in new.model.modules()]
        assert all(p.grad is None and p.requires_grad for p in new.model.parameters())


def is_at_chance(name: str, defense: str) -> None:
    """On updates of noise. They may not make the attack fail in silence, nor give anything but numbers."""
    count = 4
    guesses = of_noise(name, defense, count)
    images, labels = data(count)
    if isinstance(guesses[0], attacks.Membership | attacks.Representatives):  # no guess of these images
        assert all(torch.isfinite(guessed(guess)).all() for guess in guesses)
    elif isinstance(guesses[0], attacks.Labels):
        count = 60  # a guess of one class says little
        guesses, (_, labels) = of_noise(name, defense, count), data(count)
        right = sum(attacks.score(guess, labels[i : i + 1])["label-accuracy"] for i, guess in enumerate(guesses))
        # Four standard deviations above the mean of a binomial distribution.
        assert right < count / CLASSES + 4 * (count * (CLASSES - 1)) ** 0.5 / CLASSES
    else:
        grey = attacks.null_baselines(images, images.mean(0))["grey"].images
        bar = [
            attacks.score(attacks.Reconstruction(grey[i : i + 1], labels), images[i : i + 1])["psnr"][0]
            for i in range(count)
        ]
        blind = [attacks.score(guess, images[i : i + 1])["psnr"][0] for i, guess in enumerate(guesses)]
        assert sum(blind) / count < sum(bar) / count + 1


def test_it_repeats_itself_guesses_from_its_own_observation_and_leaves_it_alone(subtests: pytest.Subtests) -> None:
    for name, defense in FIRST:
        with subtests.test(f"{name} {defense}"):
            repeats_itself(name, defense)


@pytest.mark.numeric
def test_it_is_at_chance_on_fresh_noise(subtests: pytest.Subtests) -> None:
    for name, defense in FIRST:
        with subtests.test(f"{name} {defense}"):
            is_at_chance(name, defense)


@pytest.mark.long
def test_so_it_is_against_all_other_defences_and_with_the_dear_attacks(subtests: pytest.Subtests) -> None:
    for name, defense in OTHERS:
        with subtests.test(f"{name} {defense}"):
            repeats_itself(name, defense)
            is_at_chance(name, defense)


def variants(name: str) -> Iterator[Any]:
    """The attack by its defaults, and with each text that a field allows: some trains only under one of them."""
    yield (first := EVERY[name]())
    for field in fields(first):
        for value in texts_of(EVERY[name], field):
            with contextlib.suppress(ValueError):
                yield EVERY[name](**{field.name: value})


def test_its_card_leaves_out_no_field_that_is_effort(subtests: pytest.Subtests) -> None:
    for name, cls in EVERY.items():
        with subtests.test(name):
            card, effort = cls().card(), cls.profile.effort
            assert set(card) <= {"iterations", "restarts", "selection", "training_iterations"}
            assert json.loads(json.dumps(card)) == card
            assert "selection" in card or "restarts" not in card
            assert set(effort) <= {field.name for field in fields(cls)}
            assert {field.name for field in fields(cls)} & {"iterations", "restarts"} <= set(effort)
            assert bool(effort) == bool({"iterations", "training_iterations"} & set(card))
            for number, (field, entry) in enumerate(effort.items(), 37):
                shown = (str(replace(one, **{field: number}).card().get(entry)) for one in variants(name))
                assert any(re.search(rf"\b{number}\b", text) for text in shown), field
