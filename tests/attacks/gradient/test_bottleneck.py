"""The known break of PRECODE: what is random is left out of the matching, and the rest is matched exactly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from attacks import BottleneckInversion, InvertingGradients, Reconstruction, score
from attacks.base import Attack
from attacks.gradient.inversion_target import Victim
from attacks.observations import ClientUpdate
from defenses import Precode, Training
from defenses.random_draws import generator_for
from tests.attacks.wire import CLASSES, MEAN, STD, classes, generators, observe, pictures, sigmoid_net

COUNT = 3
SETTINGS: dict[str, Any] = {"iterations": 150, "total_variation": 1e-4, "prior_decay": False}


def built(defense: Precode) -> torch.nn.Module:
    return defense.extended(sigmoid_net(), generator_for("first"))


def sent(size: int = 1) -> tuple[list[ClientUpdate], Tensor]:
    """One step of SGD of each of COUNT clients, with draws of their own, through the defence's own training."""
    defense, images, labels = Precode(size=16), pictures(COUNT), classes(COUNT)
    seen = []
    for at in range(0, COUNT - size + 1, size):
        some, truth = images[at : at + size], labels[at : at + size]
        model, public = built(defense), built(defense)
        made = Training(
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
            loader=DataLoader(TensorDataset(images)),
            loss=lambda model, images, targets: F.cross_entropy(model(images), targets),
            epochs=1,
            total_epochs=1,
        )
        made = defense.protect_training(made, generator_for("client", at))
        made.loss(model, (some - MEAN[0]) / STD[0], F.one_hot(truth, CLASSES).float()).backward()
        update = {name: -0.1 * weight.grad for name, weight in model.named_parameters() if weight.grad is not None}
        seen.append(replace(observe(public, some, truth), update=update))
    return seen, images


def psnr(attack: Attack, seen: list[ClientUpdate], images: Tensor) -> float:
    guesses = attack.attack_many(seen, generators(len(seen)))
    assert not any(guess.failure for guess in guesses)
    return sum(score(guess, images[i : i + 1])["psnr"][0] for i, guess in enumerate(guesses)) / len(seen)


def test_at_the_true_image_what_is_matched_agrees_exactly_whatever_was_drawn() -> None:
    seen, images = sent()
    attack, generator = BottleneckInversion(total_variation=0.0, prior_decay=False), torch.Generator()
    for at, one in enumerate(seen):
        victim = Victim.of(one)
        trials = [(attack.prepare(0, one, victim, generator), 0)]
        truth = ((images[at : at + 1] - MEAN[0]) / STD[0]).view(1, -1)
        of_all = InvertingGradients(total_variation=0.0, prior_decay=False)._objective(trials, victim)
        exact, plain = (
            float(objective(truth, torch.tensor([0]))[0]) for objective in (attack._objective(trials, victim), of_all)
        )
        assert exact < 1e-5
        assert plain > 0.02


@pytest.mark.long
def test_it_breaks_what_the_plain_attack_does_not() -> None:
    seen, images = sent()
    plain, adaptive = (
        psnr(InvertingGradients(**SETTINGS), seen, images),
        psnr(BottleneckInversion(**SETTINGS), seen, images),
    )
    assert adaptive > 30
    assert adaptive > plain + 8


@pytest.mark.long
def test_an_update_of_noise_gives_nothing() -> None:
    seen, images = sent()
    stream = torch.Generator().manual_seed(5)
    blind = [
        replace(one, update={name: torch.randn(v.shape, generator=stream) for name, v in one.update.items()})
        for one in seen
    ]
    mean = Reconstruction(images.mean(0, keepdim=True).expand_as(images), torch.zeros(COUNT, dtype=torch.int64))
    assert psnr(BottleneckInversion(**SETTINGS), blind, images) < sum(score(mean, images)["psnr"]) / COUNT


def test_several_examples_are_refused() -> None:
    seen, _ = sent(2)
    guesses = BottleneckInversion(iterations=2).attack_many(seen, generators(len(seen)))
    assert all("covers 2 examples" in guess.failure for guess in guesses)


def test_without_a_bottleneck_it_is_the_plain_attack() -> None:
    one = observe(sigmoid_net(), pictures(1), classes(1))
    settings = {"iterations": 20}
    found, plain = (
        attack(**settings).attack_many([one], generators(1))[0].images
        for attack in (BottleneckInversion, InvertingGradients)
    )
    assert torch.equal(found, plain)


@pytest.mark.parametrize("told", [True, False])
def test_labels_can_be_inferred(told: bool) -> None:
    seen, _ = sent()
    hidden = seen if told else [replace(one, labels=None) for one in seen]
    guesses = BottleneckInversion(iterations=1).attack_many(hidden, generators(COUNT))
    assert [int(guess.labels) for guess in guesses] == classes(COUNT).tolist()
