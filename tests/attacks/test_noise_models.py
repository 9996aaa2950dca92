"""Inversion that models what was done to the update: noise of known law, a mask of pruned entries."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from attacks import GradientInversion, InvertingGradients, Knowledge, MaskedInversion, NoiseModelInversion, score
from attacks.base import Attack, ClientUpdate
from attacks.gradient_matching import cosine_distance, masked_cosine_distance
from attacks.noise_models import PIXEL_SCALE
from defenses import parse
from defenses.base import Batch
from tests.attacks.wire import MEAN, STD, classes, generators, observe, pictures, sigmoid_net

COUNT = 4


def knowledge(pipeline: str) -> Knowledge:
    def train(batch: Batch, seed: int) -> nn.Module:
        raise NotImplementedError

    return Knowledge(Batch(torch.zeros(0, 1, 12, 12), torch.zeros(0, 5)), parse(pipeline), MEAN, STD, train)


def defended(pipeline: str) -> tuple[list[ClientUpdate], torch.Tensor]:
    model, images, labels = sigmoid_net(), pictures(COUNT), classes(COUNT)
    seen = [observe(model, images[i : i + 1], labels[i : i + 1]) for i in range(COUNT)]
    protect = parse(pipeline).protect_update
    return [replace(one, update=protect(one.update, ("noise", at))) for at, one in enumerate(seen)], images


def mean_psnr(attack: Attack, seen: list[ClientUpdate], images: torch.Tensor) -> float:
    guesses = attack.attack_many(seen, generators(COUNT))
    return sum(score(guess, images[i : i + 1])["psnr"][0] for i, guess in enumerate(guesses)) / COUNT


@pytest.mark.parametrize(
    ("pipeline", "cost", "strength"),
    [
        ("GaussianNoise(std=0.03)", "l2", 0.03),
        ("GaussianNoise(std=0.03) | GaussianNoise(std=0.04)", "l2", 0.05),
        ("LaplaceNoise(scale=0.02)", "l1", 0.02),
        ("GaussianNoise(std=0.03) | LaplaceNoise(scale=0.02)", "l2", (0.03**2 + 2 * 0.02**2) ** 0.5),
        ("", "l2", 0.0),
    ],
)
def test_fit_takes_the_law_and_strength_of_the_noise_from_the_pipeline(
    pipeline: str, cost: str, strength: float
) -> None:
    fitted = NoiseModelInversion().fit(knowledge(pipeline), torch.Generator())
    assert (fitted.cost, fitted.noise_std) == (cost, pytest.approx(strength))


def test_the_prior_weighs_as_the_posterior_says() -> None:
    """2 s^2 times sum|dx| / scale, written with the mean over 144 pixels; s is the noise on the gradient."""
    (one, *_), _ = defended("")
    attack = NoiseModelInversion(noise_std=0.001)
    assert attack._prior(one) == pytest.approx(2 * (0.001 / 0.1) ** 2 * 144 / PIXEL_SCALE)
    assert replace(attack, cost="l1")._prior(one) == pytest.approx(0.001 / 0.1 * 144 / PIXEL_SCALE)
    assert NoiseModelInversion()._prior(one) == 0


def test_without_noise_it_is_plain_matching_and_near_exact() -> None:
    seen, images = defended("")
    attack = NoiseModelInversion(iterations=100, restarts=1)
    names = (
        "cost",
        "optimizer",
        "signed",
        "learning_rate",
        "iterations",
        "total_variation",
        "step_decay",
        "line_search",
    )
    plain = GradientInversion(**{name: getattr(attack, name) for name in names})
    ours, theirs = (a.attack_many(seen, generators(COUNT)) for a in (attack, plain))
    assert all(torch.equal(a.images, b.images) for a, b in zip(ours, theirs, strict=True))
    assert mean_psnr(attack, seen, images) > 30


def test_knowing_the_noise_helps_under_noise() -> None:
    """n = 4, one seed; the same optimizer and iterations without the model of the noise."""
    pipeline = "GaussianNoise(std=0.03)"
    seen, images = defended(pipeline)
    attack = NoiseModelInversion(iterations=80, restarts=1)
    fitted = attack.fit(knowledge(pipeline), torch.Generator())
    assert mean_psnr(fitted, seen, images) > mean_psnr(attack, seen, images) + 1


def test_a_masked_entry_is_missing_not_zero() -> None:
    gradient = {"a": torch.tensor([3.0, 4.0, 100.0])}
    pruned = {"a": torch.tensor([3.0, 4.0, 0.0])}
    assert masked_cosine_distance(gradient, pruned) == pytest.approx(0, abs=1e-6)
    assert cosine_distance(gradient, pruned) > 0.5
    assert masked_cosine_distance(gradient, gradient) == cosine_distance(gradient, gradient)


def test_knowing_the_mask_helps_under_pruning() -> None:
    """n = 4, one seed, 95 % of each tensor pruned."""
    seen, images = defended("Pruning(fraction=0.95)")
    masked = mean_psnr(MaskedInversion(iterations=200), seen, images)
    assert masked > mean_psnr(InvertingGradients(iterations=200), seen, images) + 1


def test_bad_strength_is_refused() -> None:
    with pytest.raises(ValueError, match="noise_std"):
        NoiseModelInversion(noise_std=-1.0)
