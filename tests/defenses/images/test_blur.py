"""Gaussian blur and shrinking against SciPy, and what must hold for any blur."""

import itertools

import numpy as np
import pytest
import torch
from scipy.ndimage import gaussian_filter, map_coordinates
from torch import Tensor

from defenses.base import Batch
from defenses.images.blur import Blur, Downsample, gaussian_blur
from defenses.random_draws import generator_for
from tests.bounded import bounded


def random(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def protect(defense: Blur | Downsample, images: Tensor) -> Tensor:
    return defense.protect_batch(Batch(images, torch.eye(len(images))), generator_for(0)).images


def test_agrees_with_scipy_also_where_it_is_wider_than_the_image() -> None:
    cases = [*itertools.product((0.1, 0.3, 1.0, 2.5, 9.0), ((2, 3, 32, 32), (1, 1, 7, 12), (1, 3, 1, 1)))]
    cases += [*itertools.product((40.0, 4096.0), ((2, 3, 8, 5), (1, 1, 1, 6)))]
    for std, shape in cases:
        images = random(*shape)
        expected = gaussian_filter(images.numpy(), sigma=(0, 0, std, std), mode="nearest", truncate=4.0)
        with bounded(10, 2**28):
            found = gaussian_blur(images, std)
        torch.testing.assert_close(found, torch.from_numpy(expected), atol=1e-12, rtol=0, msg=f"{std} {shape}")
    with pytest.raises(ValueError, match=r"std is 4097; allowed: 0, or a number from 1e-12 to 4096"):
        Blur(std=4097)


def test_shrinking_averages_blocks_and_interpolates_between_their_centres() -> None:
    """SciPy's linear spline, whose sample i lies in the middle of block i; beyond the outer centres nothing changes."""
    for side, factor in ((28, 14), (12, 4), (12, 3), (7, 7), (7, 1)):
        images = random(2, 3, side, side)
        small = images.unfold(2, factor, factor).unfold(3, factor, factor).mean((-2, -1))
        at = (np.arange(side) + 0.5) / factor - 0.5
        positions = np.meshgrid(at, at, indexing="ij")
        expected = [[map_coordinates(x, positions, order=1, mode="nearest") for x in image] for image in small.numpy()]
        shown = protect(Downsample(factor), images)
        torch.testing.assert_close(shown, torch.from_numpy(np.array(expected)), atol=1e-12, rtol=0)
    for factor in (6, 7, 100):  # an image within one block becomes its mean colour
        images = random(2, 3, 6, 5)
        shown = protect(Downsample(factor), images)
        torch.testing.assert_close(shown, images.mean((2, 3), keepdim=True).expand_as(images))
    assert 224 // Downsample().factor == 16  # of the paper's images


def test_a_side_that_is_no_multiple_is_rounded_up() -> None:
    """A bilinear enlargement of n x n numbers is a matrix of rank n."""
    for side, factor, blocks in ((30, 14, 3), (9, 4, 3), (16, 4, 4)):
        images = random(1, 1, side, side)
        assert torch.linalg.matrix_rank(images[0, 0]) == side
        assert torch.linalg.matrix_rank(protect(Downsample(factor), images)[0, 0]) == blocks
