"""A denoiser that knows digits: better guesses from noisy updates, and nothing but paint from updates of noise."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import AttackError, ClientUpdate, InvertingGradients, Knowledge, LearnedDenoiser, Reconstruction
from attacks.image_measures import psnr
from attacks.learned.learning_to_invert import noise_like
from attacks.refinement.base import Chain
from attacks.refinement.denoising import noisy
from clients.data.datasets import load_dataset
from defenses import Batch, GaussianNoise, Pipeline
from tests.attacks.wire import CLASSES, MEAN, STD, classes, observe, sigmoid_net

COUNT = 16
NOISE = GaussianNoise(std=2e-2, per="update")


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@cache
def digits() -> Tensor:
    """Digits of half the size, without their margin: (416, 1, 12, 12)."""
    found = load_dataset("mnist-5k", train_limit=416).train.images
    assert isinstance(found, Tensor)
    images = found[torch.randperm(len(found), generator=seeded(3))] / 255
    return F.avg_pool2d(images[..., 2:26, 2:26], 2)


def knowledge(count: int = 400) -> Knowledge:
    images = digits()[COUNT : COUNT + count]
    targets = F.one_hot(classes(len(images), seed=6), CLASSES).float()
    return Knowledge(Batch(images, targets), Pipeline(), MEAN, STD, lambda *_: sigmoid_net())


@cache
def fitted() -> LearnedDenoiser:
    return LearnedDenoiser(iterations=200).fit(knowledge(), seeded(1))


@cache
def victims() -> tuple[list[ClientUpdate], Tensor]:
    """Noisy updates of digits that are not among the auxiliary ones."""
    images, labels, found = digits()[:COUNT], classes(COUNT, seed=10), []
    for at in range(COUNT):
        one = observe(sigmoid_net(seed=5), images[at : at + 1], labels[at : at + 1])
        found.append(replace(one, update=NOISE.protect_update(one.update, seeded(900 + at))))
    return found, images


def both(updates: list[ClientUpdate]) -> tuple[Tensor, Tensor]:
    """PSNR of an inversion and of the same guesses denoised."""
    streams = [seeded(at) for at in range(len(updates))]
    first = InvertingGradients(iterations=60, restarts=1)
    plain = first.attack_many(updates, streams)
    refined = Chain((first, fitted())).refine_many(updates, plain, streams)
    assert not any(guess.failure for guess in refined)
    truth = victims()[1]
    before, after = (psnr(torch.cat([guess.images for guess in of]), truth) for of in (plain, refined))
    return before, after


@pytest.mark.long
def test_it_improves_guesses_from_noisy_updates_and_beats_the_mean_image() -> None:
    before, after = both(victims()[0])
    for gain in (after - before, after - psnr(digits()[COUNT:].mean(0).expand_as(victims()[1]), victims()[1])):
        assert gain.mean() - 2 * gain.std() / COUNT**0.5 > 0.5


@pytest.mark.long
def test_of_noise_it_paints_nothing_better_than_the_mean_image() -> None:
    silent = [replace(one, update=noise_like(one.update, seeded(at))) for at, one in enumerate(victims()[0])]
    _, painted = both(silent)
    gain = painted - psnr(digits()[COUNT:].mean(0).expand_as(victims()[1]), victims()[1])
    assert gain.mean() + 2 * gain.std() / COUNT**0.5 < 0
    told = fitted().learned.diagnostics
    assert told["holdout_psnr"] > told["holdout_psnr_noisy"] + 1
    assert told["holdout_psnr_noise"] < told["holdout_psnr_mean_image"] + 0.2


def test_noise_has_the_strength_that_was_asked_for_at_every_grain() -> None:
    grey = torch.full((300, 1, 12, 12), 0.5)
    std = torch.full((300,), 0.05)
    change = noisy(grey, std, seeded()) - grey
    assert float(change.std()) == pytest.approx(0.05, rel=0.03)
    across = (change[..., 1:] * change[..., :-1]).flatten(1).mean(1) / 0.05**2
    # Neighbours share 0, 1/2 or 3/4 of their grains; all three occur.
    near = [int(((across - of).abs() < 0.12).sum()) for of in (0, 0.5, 0.75)]
    assert min(near) > 40
    assert torch.equal(noisy(grey, torch.zeros(300), seeded()), grey)


def test_it_goes_by_no_defence_and_is_learned_once_for_all() -> None:
    attack = LearnedDenoiser(**LearnedDenoiser.quick)
    assert not attack.learns_from_defenses
    assert not attack.learns_from_model
    chain = Chain((InvertingGradients(), attack))
    assert chain.learns_prior
    assert chain.threat_class == "D"
    assert not Chain((InvertingGradients(),)).learns_prior


def test_what_it_cannot_learn_from_or_refine_is_refused_in_words() -> None:
    quick = LearnedDenoiser(**LearnedDenoiser.quick)
    with pytest.raises(AttackError, match="at least 16 auxiliary examples, got 15"):
        quick.fit(knowledge(15), seeded())
    guess = Reconstruction(torch.rand(2, 1, 8, 12, generator=seeded()), torch.zeros(2, dtype=torch.int64))
    with pytest.raises(AttackError, match="needs auxiliary data: call fit first"):
        quick.refine_many(victims()[0][:1], [guess], [seeded()])
    told = quick.fit(knowledge(40), seeded()).refine_many(victims()[0][:1], [guess], [seeded()])[0]
    assert "images have shape (1, 8, 12), auxiliary ones (1, 12, 12)" in told.failure
    assert torch.equal(told.images, torch.full_like(guess.images, 0.5))


@pytest.mark.parametrize(
    "wrong", [{"iterations": 0}, {"width": 1.5}, {"batch_size": 0}, {"learning_rate": 0}, {"strongest": 0}]
)
def test_settings_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LearnedDenoiser(**wrong)
