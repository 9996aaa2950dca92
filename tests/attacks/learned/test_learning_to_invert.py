"""A network that reads images from updates: it adapts to defences that it knows, and reads nothing from noise."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache, partial
from itertools import permutations
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import AttackError, ClientUpdate, InvertingGradients, Knowledge, LearningToInvert
from attacks.image_measures import psnr
from attacks.learned.learning_to_invert import matched, noise_like
from defenses import GaussianNoise, Pruning
from defenses.base import Batch, Update, UpdateDefense
from defenses.pipeline import Pipeline
from tests.attacks.wire import CLASSES, MEAN, SIDE, STD, classes, observe, pictures, sigmoid_net

STEPS = {"updates": 480, "size": 128, "hidden": 128, "iterations": 300}
PRUNED = Pruning(fraction=0.95, per="update")


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def seen(images: Tensor, labels: Tensor, defense: UpdateDefense | None, seed: int) -> ClientUpdate:
    """What crossed the wire of one step."""
    one = observe(sigmoid_net(seed=5), images, labels)
    return one if defense is None else replace(one, update=defense.protect_update(one.update, seeded(seed)))


def probes(
    size: int, defense: UpdateDefense | None, batch: Batch, count: int, seed: int
) -> Iterator[tuple[Tensor, Update]]:
    """As ``clients.federated.local_training.probes_alone``."""
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
def fitted(size: int = 1, defense: UpdateDefense | None = None) -> LearningToInvert:
    return LearningToInvert(**STEPS).fit(knowledge(size, defense), seeded(1))


def victims(size: int, defense: UpdateDefense | None, count: int = 24) -> tuple[list[ClientUpdate], Tensor]:
    """Updates of new images, and these (count, size, C, H, W)."""
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
@pytest.mark.parametrize("defense", [None, PRUNED, GaussianNoise(std=2e-3, per="update")])
def test_it_reads_single_images_from_updates_and_through_defences(defense: UpdateDefense | None) -> None:
    """Better than the mean image on average, the whole interval of the gain above 1 dB."""
    updates, truth = victims(1, defense)
    gain = decibels(fitted(1, defense), updates, truth) - of_mean(truth)
    assert gain.mean() - 2 * gain.std() / len(gain) ** 0.5 > 1
    told = fitted(1, defense).learned.diagnostics
    assert told["holdout_psnr"] > told["holdout_psnr_mean_image"] > told["holdout_psnr_noise"]


@pytest.mark.long
def test_learned_from_pruned_updates_it_beats_inversion_and_itself_without_that_knowledge() -> None:
    updates, truth = victims(1, PRUNED, 8)
    adaptive = decibels(fitted(1, PRUNED), updates, truth).mean()
    assert adaptive > decibels(fitted(), updates, truth).mean() + 1
    assert adaptive > decibels(InvertingGradients(iterations=150, restarts=1), updates, truth).mean() + 1


@pytest.mark.long
def test_on_noise_it_is_no_better_than_the_mean_image() -> None:
    updates, truth = victims(1, None)
    noisy = [replace(one, update=noise_like(one.update, seeded(at))) for at, one in enumerate(updates)]
    gain = decibels(fitted(), noisy, truth) - of_mean(truth)
    assert gain.mean() < 0


@pytest.mark.long
def test_learned_from_noise_alone_it_says_that_it_read_nothing() -> None:
    told = fitted(1, GaussianNoise(std=1e3, per="update")).learned.diagnostics
    assert told["holdout_psnr"] <= told["holdout_psnr_mean_image"] + 0.2


def test_images_are_matched_as_by_trying_every_order() -> None:
    guess, truth = (torch.rand(6, 4, 1, 3, 3, generator=seeded(at)) for at in (1, 2))
    for one, of, found in zip(guess, truth, matched(guess, truth), strict=True):
        best = min(float((one - of[list(order)]).square().sum()) for order in permutations(range(4)))
        assert float((one - found).square().sum()) == pytest.approx(best)
    assert torch.equal(matched(truth[:, [2, 0, 3, 1]], truth), truth[:, [2, 0, 3, 1]])


def test_noise_in_place_of_an_update_is_as_long_and_tells_nothing() -> None:
    update = victims(1, None, 1)[0][0].update
    noise = noise_like(update, seeded(0))
    for name, tensor in update.items():
        torch.testing.assert_close(noise[name].norm(), tensor.norm())
    large = max(update, key=lambda name: update[name].numel())
    assert F.cosine_similarity(noise[large].flatten(), update[large].flatten(), 0).abs() < 0.1


def test_of_several_images_it_guesses_as_many_and_repeats_itself() -> None:
    """How well it reads batches is not claimed: with so few updates it is hardly better than the mean image."""
    quick, guesses = LearningToInvert(**LearningToInvert.quick), []
    updates, truth = victims(2, None, 2)
    for state in (1, 2):
        torch.manual_seed(state)
        guesses.append(quick.fit(knowledge(2), seeded(1)).attack_many(updates, [seeded(0)] * 2))
    first, second = guesses
    assert all(one.images.shape == truth[0].shape for one in first)
    assert all(torch.equal(a.images, b.images) for a, b in zip(first, second, strict=True))


def test_what_it_cannot_learn_from_is_refused_in_words() -> None:
    few = LearningToInvert(**LearningToInvert.quick)
    with pytest.raises(AttackError, match="15 auxiliary examples are too few to learn from; at least 16"):
        few.fit(knowledge(count=15), seeded(0))
    with pytest.raises(AttackError, match="does not apply: the attack learns from one-step updates"):
        few.fit(knowledge(probes=None), seeded(0))
    with pytest.raises(AttackError, match="call fit first"):
        few.attack_many(victims(1, None, 1)[0], [seeded(0)])


def test_a_whole_round_fails_and_names_what_attacks_it() -> None:
    fitted = LearningToInvert(**LearningToInvert.quick).fit(knowledge(), seeded(1))
    round_of_three = replace(victims(1, None, 1)[0][0], local_steps=3)
    failure = fitted(round_of_three, seeded(0)).failure
    assert failure.startswith("does not apply: the update has 3 local steps")
    assert "SurrogateMatching" in failure


def test_updates_of_another_size_or_model_fail_and_say_why() -> None:
    two, one = victims(2, None, 1)[0][0], victims(1, None, 1)[0][0]
    other = replace(one, update={name: tensor[..., :1] for name, tensor in one.update.items()})
    nan = replace(one, update={name: tensor * torch.nan for name, tensor in one.update.items()})
    guesses = fitted().attack_many([two, other, nan, one], [seeded(0)] * 4)
    assert f"images have shape (2, 1, {SIDE}, {SIDE}); allowed: (1, 1, {SIDE}" in guesses[0].failure
    assert "names or shapes differ" in guesses[1].failure
    assert "NaN" in guesses[2].failure
    assert [tuple(guess.images.shape[:1]) for guess in guesses] == [(2,), (1,), (1,), (1,)]
    assert not guesses[3].failure


@pytest.mark.parametrize(
    "wrong", [{"updates": 15}, {"size": 0}, {"hidden": 0.5}, {"iterations": 0}, {"learning_rate": 0}]
)
def test_settings_out_of_range_are_named(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        LearningToInvert(**wrong)
