"""InstaHide: the law of the weights, the same mixture in images and targets, and signs that keep magnitudes."""

import numpy as np
import pytest
import torch
from scipy.stats import ks_2samp

from defenses.base import Batch
from defenses.functional import random_signs
from defenses.images.instahide import MOST_MIXED, InstaHide, bounded_convex_weights
from defenses.random_draws import generator_for
from tests.bounded import bounded


@pytest.mark.numeric
def test_weights_have_the_law_of_plain_rejection() -> None:
    for num_mixed, max_weight in ((4, 0.65), (4, 1.0), (4, 0.3), (2, 0.65), (6, 1 / 3)):
        weights = bounded_convex_weights(4000, num_mixed, max_weight, generator_for(0))
        torch.testing.assert_close(weights.sum(1), torch.ones(4000, dtype=torch.float64))
        assert 0 <= weights.min() <= weights.max() <= max_weight
        draws = 600_000 if max_weight == 0.3 else 40_000  # a tight bound rejects nearly all
        points = np.random.default_rng(0).dirichlet(np.ones(num_mixed), size=draws)
        reference = points[points.max(1) <= max_weight][:4000]
        for statistic in (lambda w: w[:, 0], lambda w: w.max(1), lambda w: w.min(1), lambda w: w[:, 1] - w[:, -1]):
            assert ks_2samp(statistic(weights.numpy()), statistic(reference)).pvalue > 1e-4, (num_mixed, max_weight)
    for num_mixed in (1, 3, 49):  # the tightest bound leaves equal weights
        weights = bounded_convex_weights(5, num_mixed, 1 / num_mixed, generator_for(0))
        torch.testing.assert_close(weights, torch.full((5, num_mixed), 1 / num_mixed, dtype=torch.float64))


def test_weights_of_the_most_images_are_drawn_under_every_bound() -> None:
    for excess in (0.05, 1.01, 30.0):
        bound = min((1 + excess) / MOST_MIXED, 1.0)
        with bounded(30):
            weights = bounded_convex_weights(16, MOST_MIXED, bound, generator_for(0))
        torch.testing.assert_close(weights.sum(1), torch.ones(16, dtype=torch.float64))
        assert 0 <= weights.min() <= weights.max() <= bound


@pytest.mark.numeric
def test_signs_are_fair_and_independent_over_pixels_and_channels() -> None:
    batch = Batch(torch.full((1, 3, 64, 64), 0.8), torch.ones(1, 1))
    flipped = InstaHide(num_mixed=1, max_weight=1.0).protect_batch(batch, generator_for(2)).images
    is_flipped = (flipped < 0.5).double()
    torch.testing.assert_close(flipped, torch.where(is_flipped.bool(), 0.2, 0.8))
    across_channels = (is_flipped[:, 0] == is_flipped[:, 1]).double().mean().item()
    neighbours = (is_flipped[..., 1:] == is_flipped[..., :-1]).double().mean().item()
    for share, count in ((is_flipped.mean().item(), 3 * 64**2), (across_channels, 64**2), (neighbours, 3 * 64 * 63)):
        assert share == pytest.approx(0.5, abs=4.5 * 0.5 / count**0.5)


def test_mixture_agrees_with_a_loop() -> None:
    generator = torch.Generator().manual_seed(4)
    batch = Batch(torch.rand(5, 2, 3, 3, generator=generator), torch.rand(5, 7, generator=generator))
    protected = InstaHide(num_mixed=3).protect_batch(batch, generator_for(5))
    draws = generator_for(5)
    weights = bounded_convex_weights(5, 3, 0.65, draws).float()
    partners = [torch.arange(5), torch.randperm(5, generator=draws), torch.randperm(5, generator=draws)]
    signs = random_signs((5, 2, 3, 3), draws)
    for i in range(5):
        image = sum(weights[i, j] * batch.images[partners[j][i]] for j in range(3))
        target = sum(weights[i, j] * batch.targets[partners[j][i]] for j in range(3))
        torch.testing.assert_close(protected.images[i], torch.where(signs[i] > 0, image, 1 - image))
        torch.testing.assert_close(protected.targets[i], target)


def test_impossible_bounds_are_refused_and_it_holds_no_more_copies_than_it_mixes() -> None:
    """Beyond the allowed number a single batch took gigabytes."""
    for num_mixed, max_weight in ((4, 0.2), (2, 0.49), (4, 1.1), (0, 0.65), (2.0, 0.65)):
        with pytest.raises(ValueError, match="allowed"):
            InstaHide(num_mixed=num_mixed, max_weight=max_weight)
    for num_mixed in (2, MOST_MIXED):
        batch = Batch(torch.rand(16, 3, 64, 64), torch.eye(16))
        defense = InstaHide(num_mixed=num_mixed)
        with bounded(30, 2 * (num_mixed + 8) * batch.images.numel() * 4 + 2**27):
            defense.protect_batch(batch, generator_for(0))
    with pytest.raises(ValueError, match=f"num_mixed is {MOST_MIXED + 1}; allowed: a whole number from 1 to 32"):
        InstaHide(num_mixed=MOST_MIXED + 1)
