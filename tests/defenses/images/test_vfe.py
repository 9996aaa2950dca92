"""Visual feature entropy against slow loops, closed forms and full enumeration of permutations."""

import itertools
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from defenses.images.vfe import (
    pair_count,
    vfe_map,
    vfe_normalised,
    window_fill,
    window_pairs,
    window_sum,
    window_variance,
)
from tests.defenses.images.test_blur import random
from tests.defenses.images.visual_mixer_reference import Region, crop, divide, region_vfe

SHAPES = [(16, 16, 8), (17, 24, 7), (5, 5, 3), (1, 1, 4), (1, 9, 2), (16, 16, 16), (6, 6, 1)]


def whole(measure: Callable[[Tensor, int], Tensor], region: Tensor) -> Tensor:
    """A measure of windows, of (..., h, w) regions that each are one window: (...)."""
    return measure(region, max(region.shape[-2:]))[..., 0, 0]


def test_low_precision_is_widened() -> None:
    region = torch.tensor([[0.0, 300.0], [0.0, 300.0]], dtype=torch.float16)  # 300^2 overflows float16
    assert whole(vfe_map, region) == 180_000
    window = torch.tensor([[0, 1], [2, 4]])
    assert whole(vfe_map, window.double()).dtype == torch.float64
    assert whole(vfe_map, window.to(torch.uint8)) == 18  # an unsigned difference would wrap around
    for same in (vfe_map, vfe_normalised):  # of one colour
        assert whole(same, torch.full((8, 8), 0.3)) == 0
    images = 1000 + random(4, 4).float()
    assert window_variance(images, 4).item() == pytest.approx(float(images.double().var()), rel=1e-3)


def test_maps_equal_the_loop_over_windows() -> None:
    for height, width, window in SHAPES:
        images, regions = random(2, 2, height, width), divide(Region(0, 0, height, width, window), window)
        vfe, total, variance = vfe_map(images, window), window_sum(images, window), window_variance(images, window)
        filled = window_fill(total, window, height, width)
        normalised, pairs = vfe_normalised(images, window), window_pairs(height, width, window)
        assert vfe.flatten(2).shape[2] == pairs.numel() == len(regions)
        for at, (image, channel) in itertools.product(range(len(regions)), itertools.product(range(2), range(2))):
            region, plane = regions[at], images[image, channel, None]
            number = pair_count(region.height, region.width)
            pixels, slow = crop(plane, region), max(number, 1) * region_vfe(plane, region)
            spread = float(pixels.var()) if pixels.numel() > 1 else 0.0
            found = [float(one.flatten(2)[image, channel, at]) for one in (vfe, total, variance, normalised)]
            assert found == pytest.approx([slow, float(pixels.sum()), spread, slow / (2 * spread or 1)])
            assert (crop(filled[image, channel, None], region) == total.flatten(2)[image, channel, at]).all()
            board = ((torch.arange(region.height)[:, None] + torch.arange(region.width)) % 2)[None].double()
            of_board = number * region_vfe(board, Region(0, 0, region.height, region.width, window))
            assert pairs.flatten()[at] == of_board == number
