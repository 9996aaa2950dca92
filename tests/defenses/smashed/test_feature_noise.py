"""Noise on smashed data: its law, what averaging removes, the bound of clipping, and the budget that follows."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from defenses import FeatureDP, FeatureNoise
from defenses.random_draws import generator_for
from defenses.smashed.feature_noise import clip_examples


def random(*shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(0))


def test_the_noise_is_normal_with_the_given_standard_deviation_and_not_variance():
    features = random(10, 20, 50)
    noise = FeatureNoise().protect_features(features, generator_for(0)) - features
    assert kstest(noise.flatten().numpy() / 4, norm.cdf).pvalue > 1e-4


@pytest.mark.parametrize("rounds", [4, 60])
def test_averaging_rounds_leaves_noise_over_the_root_of_their_number(rounds: int):
    features = random(4, 10, 50)
    sent = [FeatureNoise(std=4.0).protect_features(features, generator_for(0, r)) for r in range(rounds)]
    left = torch.stack(sent).mean(0) - features
    # The standard deviation of n numbers has a relative error of 1 / sqrt(2 n).
    assert float(left.std()) == pytest.approx(4 / math.sqrt(rounds), rel=4 / math.sqrt(2 * left.numel()))


def test_clipping_bounds_each_example_and_leaves_short_ones():
    features = random(3, 5, 7) * torch.tensor([100.0, 0.01, 0.0])[:, None, None]
    clipped = clip_examples(features, 2.0)
    norms = clipped.flatten(1).norm(dim=1)
    assert float(norms[0]) == pytest.approx(2.0)
    assert torch.equal(clipped[1:], features[1:])
    torch.testing.assert_close(clipped[0] / 2, features[0] / features[0].norm())


def test_clipping_in_half_precision_does_not_overflow():
    features = torch.full((1, 100, 100), 300.0, dtype=torch.float16)
    torch.testing.assert_close(clip_examples(features, 1.0), torch.full_like(features, 0.01))


def test_no_two_examples_are_farther_apart_than_the_sensitivity():
    features = random(40, 3, 4) * torch.logspace(-3, 3, 40)[:, None, None]
    features[1] = -features[0]
    features[:2] *= 1e6  # opposite and long: the worst case
    sent = FeatureDP(clip=0.5, noise_multiplier=0.0).protect_features(features, generator_for(0)).flatten(1)
    assert float(torch.cdist(sent, sent).max()) == pytest.approx(2 * 0.5, rel=1e-5)
    assert float(sent.norm(dim=1).max()) == pytest.approx(0.5, rel=1e-5)


def test_the_noise_scales_with_clip_and_multiplier():
    features = random(10, 20, 50)
    noise = FeatureDP(clip=0.5, noise_multiplier=3.0).protect_features(features, generator_for(0))
    noise -= clip_examples(features, 0.5)
    assert kstest(noise.flatten().numpy() / 1.5, norm.cdf).pvalue > 1e-4


@pytest.mark.parametrize(
    ("defense", "known"),
    [
        (FeatureDP(neighbours="zero-out"), 4.38),
        (FeatureDP(), 10.0),
        (FeatureDP(noise_multiplier=math.sqrt(2)), 6.57),
        (FeatureDP(clip=7.0), 10.0),
    ],
)
def test_known_epsilons(defense: FeatureDP, known: float):
    assert defense.epsilon() == pytest.approx(known, abs=0.005)


def test_two_releases_are_a_gaussian_in_twice_the_dimension():
    """Integrates max(0, p - exp(epsilon) q) over the plane, for two releases that each differ by the sensitivity."""
    defense = FeatureDP(noise_multiplier=2.0, delta=0.01)
    epsilon = defense.epsilon(2)
    grid = np.linspace(-8, 9, 1701)
    q = norm.pdf(grid)
    p = norm.pdf(grid, 2 / 2.0)
    excess = np.maximum(0, np.outer(p, p) - math.exp(epsilon) * np.outer(q, q))
    assert excess.sum() * (grid[1] - grid[0]) ** 2 == pytest.approx(0.01, rel=1e-3)
    assert epsilon > defense.epsilon()


def test_the_budget_without_noise_and_without_releases():
    assert FeatureDP(noise_multiplier=0.0).epsilon() == math.inf
    assert FeatureDP(noise_multiplier=0.0).epsilon(0) == 0.0


def test_the_two_sent_examples_cannot_be_told_apart_better_than_delta_allows():
    """An attacker's best test on what the defence really sends, for the worst pair of examples."""
    defense = FeatureDP(clip=2.0, noise_multiplier=1.5, delta=0.02)
    count, direction = 100_000, torch.ones(2, 2) / 2
    worst = torch.stack([direction, -direction]) * 1e3
    shown = defense.protect_features(worst.repeat_interleave(count, 0), generator_for(1)).double()
    along = (shown * direction).sum((1, 2)) / (1.5 * 2.0)
    epsilon, ratio = defense.epsilon(), 2 / 1.5
    hits, false_alarms = (float((part > epsilon / ratio).double().mean()) for part in along.split(count))
    gain = hits - math.exp(epsilon) * false_alarms
    spread = math.sqrt((hits + math.exp(2 * epsilon) * false_alarms) / count)
    assert abs(gain - 0.02) < 4 * spread
    assert spread < 0.003


@pytest.mark.parametrize("shape", [(3, 4, 5, 6), (3, 7)], ids=["maps", "components"])
def test_clipping_bounds_the_norm_of_an_example_of_any_shape(shape: tuple[int, ...]):
    clipped = clip_examples(10 * random(*shape), 2.0)
    torch.testing.assert_close(clipped.flatten(1).norm(dim=1), torch.full((3,), 2.0))
