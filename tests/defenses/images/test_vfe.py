"""Visual feature entropy against slow loops, closed forms and full enumeration of permutations."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from defenses.images.vfe import (
    pair_count,
    vfe_image,
    vfe_map,
    vfe_normalised,
    window_fill,
    window_pairs,
    window_sum,
    window_variance,
)

SHAPES = [(16, 16, 8), (17, 24, 7), (5, 5, 3), (1, 1, 4), (1, 9, 2), (16, 16, 16), (6, 6, 1)]


def random(*shape: int) -> Tensor:
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def whole(measure: Callable[[Tensor, int], Tensor], region: Tensor) -> Tensor:
    """A measure of windows, of (..., h, w) regions that each are one window: (...)."""
    return measure(region, max(region.shape[-2:]))[..., 0, 0]


def slow_vfe(region: Tensor) -> float:
    """Sum over explicitly listed neighbour pairs of one (h, w) region."""
    height, width = region.shape
    total = 0.0
    for y in range(height):
        for x in range(width):
            if x + 1 < width:
                total += float(region[y, x + 1] - region[y, x]) ** 2
            if y + 1 < height:
                total += float(region[y + 1, x] - region[y, x]) ** 2
    return total


def windows_of(image: Tensor, window: int) -> list[list[Tensor]]:
    """The windows of an (H, W) image in reading order, as rows of a list."""
    height, width = image.shape
    return [[image[y : y + window, x : x + window] for x in range(0, width, window)] for y in range(0, height, window)]


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


def test_maps_and_images_equal_the_loop_over_windows() -> None:
    for height, width, window in SHAPES:
        images = random(2, 2, height, width)
        computed = vfe_map(images, window), window_sum(images, window), window_variance(images, window)
        normalised, pairs = vfe_normalised(images, window), window_pairs(height, width, window)
        filled = window_fill(computed[1], window, height, width)
        sums: list[list[float]] = []
        for i, image in enumerate(images.flatten(0, 1)):
            sums.append([])
            for row, windows in enumerate(windows_of(image, window)):
                for column, region in enumerate(windows):
                    vfe, total, variance = (values.flatten(0, 1)[i, row, column] for values in computed)
                    slow, spread = slow_vfe(region), float(region.var()) if region.numel() > 1 else 0.0
                    assert (vfe, total, variance) == pytest.approx((slow, float(region.sum()), spread)), SHAPES
                    assert normalised.flatten(0, 1)[i, row, column] == pytest.approx(slow / (2 * spread or 1))
                    assert (windows_of(filled.flatten(0, 1)[i], window)[row][column] == total).all()
                    board = (torch.arange(region.shape[0])[:, None] + torch.arange(region.shape[1])) % 2
                    assert i or pairs[row, column] == slow_vfe(board) == pair_count(*region.shape)
                    sums[-1].append(slow)
        assert pairs.shape == computed[0].shape[-2:]
        # An image's VFE is the mean over its windows, or the sum over its pixels.
        of_images = zip(vfe_image(images, window), vfe_image(images, window, "eq3"), strict=True)
        for at, (mean, eq3) in enumerate(of_images):
            channels = sums[2 * at : 2 * at + 2]
            assert float(mean) == pytest.approx(sum(sum(each) / len(each) for each in channels) / 2)
            assert float(eq3) == pytest.approx(sum(map(sum, channels)) / 2 / (height * width))
    with pytest.raises(ValueError, match="norm is 'sum'; allowed: window, eq3"):
        vfe_image(images, window, "sum")
