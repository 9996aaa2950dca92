"""Gaussian blur against SciPy, and what must hold for any blur."""

from __future__ import annotations

import pytest
import torch
from scipy.ndimage import gaussian_filter

from defenses.base import Batch, generator_for
from defenses.blur import Blur, gaussian_blur


@pytest.mark.parametrize("std", [0.1, 0.3, 1.0, 2.5, 9.0])
@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (1, 1, 7, 12), (1, 3, 1, 1)])
def test_agrees_with_scipy(std: float, shape: tuple[int, ...]):
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = gaussian_filter(images.numpy(), sigma=(0, 0, std, std), mode="nearest", truncate=4.0)
    torch.testing.assert_close(gaussian_blur(images, std), torch.from_numpy(expected), atol=1e-12, rtol=0)


def test_two_blurs_add_their_variances():
    images = torch.rand(1, 1, 80, 80, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    twice = gaussian_blur(gaussian_blur(images, 3.0), 4.0)
    inner = (..., slice(32, 48), slice(32, 48))
    torch.testing.assert_close(twice[inner], gaussian_blur(images, 5.0)[inner], atol=2e-4, rtol=0)


def test_a_constant_image_stays_and_a_point_spreads_evenly():
    constant = torch.full((1, 3, 16, 16), 0.3)
    torch.testing.assert_close(gaussian_blur(constant, 2.0), constant)
    point = torch.zeros(1, 1, 33, 33, dtype=torch.float64)
    point[..., 16, 16] = 1
    spread = gaussian_blur(point, 2.0)
    torch.testing.assert_close(spread, spread.transpose(-1, -2))
    torch.testing.assert_close(spread, spread.flip(-1))
    offsets = torch.arange(33, dtype=torch.float64) - 16
    variance = (spread.sum((0, 1, 2)) * offsets**2).sum().item()
    assert variance == pytest.approx(4.0, rel=2e-3)  # the tails beyond four standard deviations are cut


def test_the_defence_keeps_targets_and_applies_to_test_images_too():
    batch = Batch(torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(2)), torch.eye(2))
    protected = Blur(std=1.5).protect_batch(batch, generator_for(0))
    torch.testing.assert_close(protected.images, gaussian_blur(batch.images, 1.5))
    assert torch.equal(protected.targets, batch.targets)
    assert Blur.at_inference
    assert not Blur.resamples
