"""A network that learns on the server's own images to read updates."""

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import AttackError, ClientUpdate, Knowledge, LearningToInvert
from attacks.image_measures import psnr
from attacks.learned.learning_to_invert import matched, noise_like
from defenses import GaussianNoise, Pruning
from defenses.base import Batch, UpdateDefense
from defenses.pipeline import Pipeline
from defenses.tensors import Update
from tests.attacks.wire import CLASSES, MEAN, SIDE, STD, classes, observe, pictures, sigmoid_net
from tests.attacks.wire import stream as seeded

QUICK = LearningToInvert(**LearningToInvert.profile.quick)
PRUNED = Pruning(fraction=0.95, per="update")


def seen(images: Tensor, labels: Tensor, defense: UpdateDefense | None, seed: int) -> ClientUpdate:
    one = observe(sigmoid_net(seed=5), images, labels)
    return one if defense is None else replace(one, update=defense.protect_update(one.update, seeded(seed)))


def probes(
    size: int, defense: UpdateDefense | None, batch: Batch, count: int, seed: int
) -> Iterator[tuple[Tensor, Update]]:
    generator = seeded(seed)
    for at in range(count):
        rows = torch.randperm(len(batch), generator=generator)[:size]
        yield rows, seen(batch.images[rows], batch.targets[rows].argmax(1), defense, seed + at).update


def knowledge(size: int = 1, defense: UpdateDefense | None = None, count: int = 240, **changes: Any) -> Knowledge:
    targets = F.one_hot(classes(count, seed=6), CLASSES).float()
    values: dict[str, Any] = {
        "auxiliary": Batch(pictures(count, seed=5), targets), "pipeline": Pipeline(), "mean": MEAN, "std": STD,
        "train": lambda *_: sigmoid_net(), "probes": partial(probes, size, defense),
    }  # fmt: skip
    return Knowledge(**(values | changes))


@cache
def fitted(defense: UpdateDefense | None = None) -> LearningToInvert:
    return LearningToInvert(updates=480, size=128, hidden=128, iterations=300).fit(knowledge(1, defense), seeded(1))


def victims(size: int, defense: UpdateDefense | None, count: int = 24) -> tuple[list[ClientUpdate], Tensor]:
    images, labels = pictures(count * size, seed=9), classes(count * size, seed=10)
    groups = torch.arange(count * size).split(size)
    updates = [seen(images[rows], labels[rows], defense, 900 + at) for at, rows in enumerate(groups)]
    return updates, images.view(count, size, *images.shape[1:])


def decibels(attack: Any, updates: list[ClientUpdate], truth: Tensor) -> Tensor:
    guesses = attack.attack_many(updates, [seeded(at) for at in range(len(updates))])
    assert not any(guess.failure for guess in guesses)
    images = torch.stack([guess.images for guess in guesses])
    return psnr(images.flatten(0, 1), matched(images, truth).flatten(0, 1))


def of_mean(truth: Tensor) -> Tensor:
    mean = pictures(240, seed=5).mean(0).expand_as(truth)
    return psnr(mean.flatten(0, 1), truth.flatten(0, 1))


@pytest.mark.long
@pytest.mark.numeric
def test_it_reads_single_images_from_updates_and_through_defences() -> None:
    """Better than the mean image on average, the whole interval of the gain above 1 dB; from noise alone no better."""
    for defense in (None, PRUNED, GaussianNoise(std=2e-3, per="update")):
        updates, truth = victims(1, defense)
        gain = decibels(fitted(defense), updates, truth) - of_mean(truth)
        assert gain.mean() - 2 * gain.std() / len(gain) ** 0.5 > 1, defense
        told = fitted(defense).learned.diagnostics
        assert told["holdout_psnr"] > told["holdout_psnr_mean_image"] > told["holdout_psnr_noise"], defense
    noisy = [replace(one, update=noise_like(one.update, seeded(at))) for at, one in enumerate(victims(1, None)[0])]
    assert (decibels(fitted(), noisy, truth) - of_mean(truth)).mean() < 0
    told = fitted(GaussianNoise(std=1e3, per="update")).learned.diagnostics
    assert told["holdout_psnr"] <= told["holdout_psnr_mean_image"] + 0.2


def test_images_are_matched_as_by_trying_every_order() -> None:
    guess, truth = (torch.rand(6, 4, 1, 3, 3, generator=seeded(at)) for at in (1, 2))
    for one, of, found in zip(guess, truth, matched(guess, truth), strict=True):
        best = min(float((one - of[list(order)]).square().sum()) for order in permutations(range(4)))
        assert float((one - found).square().sum()) == pytest.approx(best)
    assert torch.equal(matched(truth[:, [2, 0, 3, 1]], truth), truth[:, [2, 0, 3, 1]])


@pytest.mark.numeric
def test_noise_in_place_of_an_update_is_as_long_and_tells_nothing() -> None:
    update = victims(1, None, 1)[0][0].update
    noise = noise_like(update, seeded(0))
    for name, tensor in update.items():
        torch.testing.assert_close(noise[name].norm(), tensor.norm())
    large = max(update, key=lambda name: update[name].numel())
    assert F.cosine_similarity(noise[large].flatten(), update[large].flatten(), 0).abs() < 0.12


def test_what_it_cannot_learn_from_or_read_is_refused_with_the_reason() -> None:
    for known, why in (
        (knowledge(count=15), "15 auxiliary examples are too few to learn from; at least 16"),
        (knowledge(probes=None), "does not apply: the attack learns from one-step updates"),
    ):
        with pytest.raises(AttackError, match=why):
            QUICK.fit(known, seeded(0))
    one = victims(1, None, 1)[0][0]
    cases = {
        "does not apply: the update has 3 local steps": replace(one, local_steps=3),
        f"images have shape (2, 1, {SIDE}, {SIDE}); allowed: (1, 1, {SIDE}": victims(2, None, 1)[0][0],
        "names or shapes differ": replace(one, update={name: tensor[..., :1] for name, tensor in one.update.items()}),
        "NaN": replace(one, update={name: tensor * torch.nan for name, tensor in one.update.items()}),
        "": one,
    }
    guesses = QUICK.fit(knowledge(), seeded(1)).attack_many(list(cases.values()), [seeded(0)] * 5)
    for (why, case), guess in zip(cases.items(), guesses, strict=True):
        assert why in guess.failure
        assert bool(guess.failure) == bool(why)
        assert len(guess.images) == case.num_examples
