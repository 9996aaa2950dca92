"""Visual feature entropy against slow loops, closed forms and full enumeration of permutations."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
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

WINDOW = torch.tensor([[0.0, 1.0], [2.0, 4.0]])
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


def test_worked_example_and_the_mean_over_all_permutations() -> None:
    assert whole(vfe_map, WINDOW) == 18  # across 1 + 4, down 4 + 9
    assert whole(vfe_map, F.pad(WINDOW, (0, 1, 0, 1))) == 55  # what zero padding would add: 1 + 16 + 4 + 16
    assert whole(vfe_normalised, WINDOW) == pytest.approx(18 / (2 * 35 / 12))
    for region in (WINDOW, torch.tensor([[0.0, 0.3, 0.3], [1.0, 5.0, 2.0]])):
        shuffled = torch.tensor(list(itertools.permutations(region.flatten().tolist()))).view(-1, *region.shape)
        assert whole(vfe_normalised, shuffled).mean() == pytest.approx(pair_count(*region.shape), rel=1e-5)
    shuffled = torch.tensor(list(itertools.permutations(WINDOW.flatten().tolist()))).view(-1, 2, 2)
    assert whole(vfe_map, shuffled).mean() == pytest.approx(4 * 35 / 12 * 2)  # 4 sigma^2 WS (WS - 1) = 23.33


def test_invariances_and_limits() -> None:
    region = random(9, 9)
    assert torch.allclose(whole(vfe_map, -3 * region + 7), 9 * whole(vfe_map, region))
    assert torch.allclose(whole(vfe_normalised, -3 * region + 7), whole(vfe_normalised, region))
    for same in (region.T, region.flip(0), region.flip(1)):
        assert torch.allclose(whole(vfe_map, same), whole(vfe_map, region))
    for size in (1, 2, 8):
        assert whole(vfe_map, torch.full((size, size), 0.3)) == 0
        assert whole(vfe_normalised, torch.full((size, size), 0.3)) == 0
        board = (torch.arange(size)[:, None] + torch.arange(size)) % 2
        assert whole(vfe_map, board) == 2 * size * (size - 1)
        assert (whole(vfe_map, random(100, size, size)) <= 2 * size * (size - 1)).all()
    board = ((torch.arange(224)[:, None] + torch.arange(224)) % 2).float().expand(3, -1, -1)
    assert (vfe_map(board, 8) == 112).all()  # the mean of equation 12


@pytest.mark.numeric
def test_independent_noise_adds_2_variances_per_pair() -> None:
    size, std, repeats = 8, 0.5, 4000
    clean, generator = random(size, size), torch.Generator().manual_seed(1)
    noise = std * torch.randn(repeats, size, size, generator=generator, dtype=torch.float64)
    added = whole(vfe_map, clean + noise) - whole(vfe_map, clean)
    assert abs(added.mean() - 4 * std**2 * size * (size - 1)) < 4.5 * added.std() / repeats**0.5
    # The released dataset: 448 pixels, windows of 28, noise of 0.5 on a flat image: 756 = 4 * 0.25 * 28 * 27.
    noisy = 0.5 * torch.randn(4, 1, 448, 448, generator=generator, dtype=torch.float64)
    assert float(vfe_image(noisy, 28).mean()) == pytest.approx(756, rel=0.01)


def test_low_precision_is_widened() -> None:
    region = torch.tensor([[0.0, 300.0], [0.0, 300.0]], dtype=torch.float16)  # 300^2 overflows float16
    assert whole(vfe_map, region) == 180_000
    assert whole(vfe_map, WINDOW.double()).dtype == torch.float64
    assert whole(vfe_map, WINDOW.to(torch.uint8)) == 18  # an unsigned difference would wrap around
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
                    assert i or pairs[row, column] == slow_vfe(board)
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
