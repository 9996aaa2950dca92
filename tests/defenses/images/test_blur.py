"""Gaussian blur and shrinking against SciPy, and what must hold for any blur."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, map_coordinates

from defenses.base import Batch
from defenses.images.blur import Blur, Downsample, gaussian_blur
from defenses.random_draws import generator_for
from tests.bounded import bounded


@pytest.mark.parametrize("std", [0.1, 0.3, 1.0, 2.5, 9.0])
@pytest.mark.parametrize("shape", [(2, 3, 32, 32), (1, 1, 7, 12), (1, 3, 1, 1)])
def test_agrees_with_scipy(std: float, shape: tuple[int, ...]):
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = gaussian_filter(images.numpy(), sigma=(0, 0, std, std), mode="nearest", truncate=4.0)
    torch.testing.assert_close(gaussian_blur(images, std), torch.from_numpy(expected), atol=1e-12, rtol=0)


@pytest.mark.parametrize("std", [40.0, 4096.0])
@pytest.mark.parametrize("shape", [(2, 3, 8, 5), (1, 1, 1, 6)])
def test_a_blur_that_is_wider_than_the_image_agrees_as_well(std: float, shape: tuple[int, ...]):
    images = torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = gaussian_filter(images.numpy(), sigma=(0, 0, std, std), mode="nearest", truncate=4.0)
    with bounded(2, 2**28):
        torch.testing.assert_close(gaussian_blur(images, std), torch.from_numpy(expected), atol=1e-12, rtol=0)


def test_the_widest_blur_of_a_batch_costs_little():
    images = torch.rand(16, 3, 32, 32)
    with bounded(2, 2**28):
        blurred = Blur(std=4096).protect_batch(Batch(images, torch.eye(16)), generator_for(0)).images
    corners = images[..., [0, 0, -1, -1], [0, -1, 0, -1]].mean(-1)
    torch.testing.assert_close(blurred.mean((-1, -2)), corners, atol=0.01, rtol=0)
    with pytest.raises(ValueError, match=r"std is 1000000000.0; allowed: 0, or a number from 1e-12 to 4096"):
        Blur(std=1e9)


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


# ---- shrinking


@pytest.mark.parametrize(("side", "factor"), [(28, 14), (12, 4), (12, 3), (7, 7), (7, 1)])
def test_shrinking_averages_blocks_and_interpolates_between_their_centres(side: int, factor: int):
    """SciPy's linear spline, whose sample i lies in the middle of block i; beyond the outer centres nothing changes."""
    images = torch.rand(2, 3, side, side, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    small = images.unfold(2, factor, factor).unfold(3, factor, factor).mean((-2, -1))
    at = (np.arange(side) + 0.5) / factor - 0.5
    positions = np.meshgrid(at, at, indexing="ij")
    expected = [
        [map_coordinates(plane, positions, order=1, mode="nearest") for plane in image] for image in small.numpy()
    ]
    shown = Downsample(factor).protect_batch(Batch(images, torch.eye(2)), generator_for(0)).images
    torch.testing.assert_close(shown, torch.from_numpy(np.array(expected)), atol=1e-12, rtol=0)


@pytest.mark.parametrize(("side", "factor", "blocks"), [(30, 14, 3), (9, 4, 3), (16, 4, 4)])
def test_a_side_that_is_no_multiple_is_rounded_up(side: int, factor: int, blocks: int):
    """A bilinear enlargement of n x n numbers is a matrix of rank n."""
    images = torch.rand(1, 1, side, side, generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    shown = Downsample(factor).protect_batch(Batch(images, torch.ones(1, 1)), generator_for(0)).images[0, 0]
    assert torch.linalg.matrix_rank(images[0, 0]) == side
    assert torch.linalg.matrix_rank(shown) == blocks


@pytest.mark.parametrize("factor", [6, 7, 100])
def test_an_image_within_one_block_becomes_its_mean_colour(factor: int):
    images = torch.rand(2, 3, 6, 5, generator=torch.Generator().manual_seed(5))
    shown = Downsample(factor).protect_batch(Batch(images, torch.eye(2)), generator_for(0)).images
    torch.testing.assert_close(shown, images.mean((2, 3), keepdim=True).expand_as(images))


def test_shrinking_applies_to_test_images_too_and_the_paper_keeps_16_by_16():
    assert Downsample.at_inference
    assert not Downsample.resamples
    assert 224 // Downsample().factor == 16
