"""Noise on smashed data: its law, what averaging removes, the bound of clipping, and the budget that follows."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import kstest, norm

from defenses import FeatureDP, FeatureNoise
from defenses.random_draws import generator_for
from defenses.smashed.feature_noise import clip_examples
from defenses.smashed.gaussian_mechanism import gaussian_delta, gaussian_epsilon, gaussian_ratio
from tests.defenses.test_fitting import random


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
        torch.testing.assert_close(clip_examples(10 * random(*shape), 2.0).flatten(1).norm(dim=1), 2 * torch.ones(3))
    # No two examples are farther apart than the sensitivity, and opposite long ones are as far.
    far = random(40, 3, 4) * torch.logspace(-3, 3, 40)[:, None, None]
    far[:2] = 1e6 * torch.stack([far[0], -far[0]])
    sent = FeatureDP(clip=0.5, noise_multiplier=0.0).protect_features(far, generator_for(0)).flatten(1)
    assert float(torch.cdist(sent, sent).max()) == pytest.approx(2 * 0.5, rel=1e-5)


def test_an_example_that_overflows_counts_as_zero_and_gives_no_gradient() -> None:
    """Else a server that chooses the weights would see it through any noise."""
    for odd in (math.nan, math.inf, 1e30):
        features = random(3, 4, 8)
        features[1] = odd
        features.requires_grad_()
        clipped = clip_examples(features, 0.5)
        clipped.sum().backward()
        assert not clipped[1].any()
        torch.testing.assert_close(clipped[::2], clip_examples(features[::2], 0.5))
        gradient = features.grad
        assert gradient.isfinite().all()
        assert not gradient[1].any()


def test_epsilon_is_that_of_known_values_and_of_an_integral_for_two_releases() -> None:
    for defense, known in (
        (FeatureDP(), 10.0),
        (FeatureDP(clip=7.0), 10.0),
        (FeatureDP(noise_multiplier=2.0), 4.38),
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


def test_delta_is_the_hockey_stick_divergence() -> None:
    """The definition: delta = integral of max(0, p - exp(epsilon) q), for the two outputs that differ most."""
    for ratio, epsilon in itertools.product((0.05, 0.5, 1.0, 3.0), (0.0, 0.1, 1.0, 5.0)):
        grid = np.linspace(-12, 12 + ratio, 100_001)
        excess = np.maximum(0, norm.pdf(grid, ratio) - math.exp(epsilon) * norm.pdf(grid))
        expected = float(np.trapezoid(excess, grid))
        assert gaussian_delta(ratio, epsilon) == pytest.approx(expected, rel=1e-5, abs=1e-12), (ratio, epsilon)


def test_both_invert_each_other_far_into_the_tails() -> None:
    for ratio, delta in itertools.product((1e-3, 0.2, 1.0, 10.0, 1e3), (0.5, 1e-5, 1e-30, 1e-300)):
        epsilon = gaussian_epsilon(ratio, delta)
        if epsilon == 0:
            assert gaussian_delta(ratio, 0.0) <= delta
        else:
            assert gaussian_delta(ratio, epsilon) == pytest.approx(delta, rel=1e-6)
            assert gaussian_delta(ratio, epsilon * (1 - 1e-6)) > delta
    for epsilon, delta in itertools.product((1e-3, 0.7, 5.0, 400.0), (0.1, 1e-5, 1e-12)):
        assert gaussian_epsilon(gaussian_ratio(epsilon, delta), delta) == pytest.approx(epsilon, rel=1e-6, abs=1e-9)


def test_no_sensitivity_and_no_noise() -> None:
    assert (gaussian_delta(0.0, 0.0), gaussian_epsilon(0.0, 1e-5)) == (0.0, 0.0)
    assert (gaussian_delta(math.inf, 9.0), gaussian_epsilon(math.inf, 1e-5)) == (1.0, math.inf)
    assert gaussian_epsilon(1e200, 1e-5) == math.inf
    assert (gaussian_delta(1.0, math.inf), gaussian_delta(1.0, 700.0)) == (0.0, 0.0)
