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


@pytest.mark.numeric
def test_the_noise_is_normal_of_the_stated_size_and_fresh_in_every_round() -> None:
    features = random(10, 20, 50)
    for defense, std in ((FeatureNoise(), 4.0), (FeatureDP(clip=0.5, noise_multiplier=3.0), 1.5)):
        plain = features if std == 4.0 else clip_examples(features, 0.5)
        noise = defense.protect_features(features, generator_for(0)) - plain
        assert kstest(noise.flatten().numpy() / std, norm.cdf).pvalue > 1e-4
    sent = [FeatureNoise(std=4.0).protect_features(features, generator_for(0, r)) for r in range(20)]
    left = torch.stack(sent).mean(0) - features
    # Averaging leaves noise over the root of their number. The deviation of n numbers has a relative error of 1 / sqrt(2 n).
    assert float(left.std()) == pytest.approx(4 / math.sqrt(20), rel=4.5 / math.sqrt(2 * left.numel()))


def test_clipping_bounds_each_example_of_any_shape_and_leaves_short_ones() -> None:
    features = random(3, 5, 7) * torch.tensor([100.0, 0.01, 0.0])[:, None, None]
    clipped = clip_examples(features, 2.0)
    assert torch.equal(clipped[1:], features[1:])
    torch.testing.assert_close(clipped[0] / 2, features[0] / features[0].norm())
    half = torch.full((1, 100, 100), 300.0, dtype=torch.float16)  # whose squares overflow
    torch.testing.assert_close(clip_examples(half, 1.0), torch.full_like(half, 0.01))
    for shape in ((3, 4, 5, 6), (3, 7)):
        torch.testing.assert_close(
            clip_examples(10 * random(*shape), 2.0).flatten(1).norm(dim=1), torch.full((3,), 2.0)
        )
    # No two examples are farther apart than the sensitivity, and opposite long ones are as far.
    far = random(40, 3, 4) * torch.logspace(-3, 3, 40)[:, None, None]
    far[:2] = 1e6 * torch.stack([far[0], -far[0]])
    sent = FeatureDP(clip=0.5, noise_multiplier=0.0).protect_features(far, generator_for(0)).flatten(1)
    assert float(torch.cdist(sent, sent).max()) == pytest.approx(2 * 0.5, rel=1e-5)


def test_epsilon_is_that_of_known_values_and_of_an_integral_for_two_releases() -> None:
    for defense, known in (
        *((FeatureDP(neighbours="zero-out"), 4.38), (FeatureDP(), 10.0), (FeatureDP(clip=7.0), 10.0)),
        (FeatureDP(noise_multiplier=math.sqrt(2)), 6.57),
    ):
        assert defense.epsilon() == pytest.approx(known, abs=0.005), repr(defense)
    # max(0, p - exp(epsilon) q) over the plane, for two releases that each differ by the sensitivity.
    defense = FeatureDP(noise_multiplier=2.0, delta=0.01)
    epsilon, grid = defense.epsilon(2), np.linspace(-8, 9, 1701)
    p, q = norm.pdf(grid, 2 / 2.0), norm.pdf(grid)
    excess = np.maximum(0, np.outer(p, p) - math.exp(epsilon) * np.outer(q, q))
    assert excess.sum() * (grid[1] - grid[0]) ** 2 == pytest.approx(0.01, rel=1e-3)
    assert epsilon > defense.epsilon()
    assert FeatureDP(noise_multiplier=0.0).epsilon() == math.inf
    assert FeatureDP(noise_multiplier=0.0).epsilon(0) == 0.0


@pytest.mark.numeric
def test_the_two_sent_examples_cannot_be_told_apart_better_than_delta_allows() -> None:
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
    assert abs(gain - 0.02) < 4.5 * spread
    assert spread < 0.003
