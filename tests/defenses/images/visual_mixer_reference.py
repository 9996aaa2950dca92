"""Algorithm 1 of VisualMixer written down slowly: one image, one region and one window at a time.

The tests compare the vectorised version with it.
"""

import math
import statistics
from typing import NamedTuple

import torch
from torch import Tensor

from defenses.images.vfe import window_fill
from defenses.images.visual_mixer_windows import Level


class Region(NamedTuple):
    """A rectangle in pixels; ``size`` is the side of the square that the image's edge may have cut."""

    top: int
    left: int
    height: int
    width: int
    size: int


def window_sides(levels: list[Level], height: int, width: int) -> Tensor:
    """Side of the window that each pixel is shuffled in: (B, H, W) int64, in pixels."""
    sides = torch.zeros(len(levels[0][1]), height, width, dtype=torch.int64)
    for size, active in levels:
        sides += size * window_fill(active.cpu().long(), size, height, width)
    return sides


def divide(region: Region, size: int) -> list[Region]:
    """Cuts a region into squares of ``size``, smaller at its right and bottom edge."""
    return [
        Region(region.top + y, region.left + x, min(size, region.height - y), min(size, region.width - x), size)
        for y in range(0, region.height, size)
        for x in range(0, region.width, size)
    ]


def region_vfe(image: Tensor, region: Region) -> float:
    """VFE of one region per pair of neighbours, mean over channels."""
    pixels = crop(image, region)
    across = (pixels[:, :, 1:] - pixels[:, :, :-1]).pow(2).sum((1, 2))
    down = (pixels[:, 1:, :] - pixels[:, :-1, :]).pow(2).sum((1, 2))
    vfe = across + down
    pairs = region.height * (region.width - 1) + region.width * (region.height - 1)
    return vfe.mean().item() / max(pairs, 1)


def reference_partition(image: Tensor, lower: int, upper: int) -> list[Region]:
    """Windows that an image (C, H, W) is shuffled in: the list of all rectangles handed to "shuffle" by Algorithm 1."""
    _, height, width = image.shape
    smallest = 2 ** math.floor(math.log2(lower))
    size = max(height, width)
    while size > upper:
        size = max(2 ** math.floor(math.log2(size / 2)), smallest)
    pending = divide(Region(0, 0, height, width, size), size)
    median = statistics.median(region_vfe(image, region) for region in pending)
    windows = []
    while pending:
        region = pending.pop()
        half = max(math.ceil(region.size / 2), smallest)
        if region.size <= smallest:
            windows.append(region)
        elif region_vfe(image, region) <= median:
            windows.extend(divide(region, half))
        else:
            pending.extend(divide(region, half))
    return windows


def crop(image: Tensor, region: Region) -> Tensor:
    """The pixels of a region, as a view: (C, H, W) -> (C, h, w)."""
    return image[:, region.top : region.top + region.height, region.left : region.left + region.width]


def random_images(batch: int, channels: int, height: int, width: int, seed: int = 0) -> Tensor:
    """Images in [0, 1] whose contrast varies from place to place, so that regions differ in VFE."""
    generator = torch.Generator().manual_seed(seed)
    noise = torch.rand(batch, channels, height, width, generator=generator, dtype=torch.float64) - 0.5
    coarse = torch.rand(batch, 1, -(-height // 4), -(-width // 4), generator=generator, dtype=torch.float64) ** 2
    contrast = coarse.repeat_interleave(4, 2).repeat_interleave(4, 3)[..., :height, :width]
    return 0.5 + noise * contrast


def window_ids(levels: list[Level], height: int, width: int) -> Tensor:
    """Numbers the windows: (B, H, W) int64, equal where two pixels of an image are shuffled together."""
    ids = torch.zeros(len(levels[0][1]), height, width, dtype=torch.int64)
    first = 0
    for size, active in levels:
        rows, columns = active.shape[1:]
        numbers = active.cpu() * torch.arange(first, first + rows * columns).view(rows, columns)
        ids += window_fill(numbers, size, height, width)
        first += rows * columns
    return ids


def same_values_per_window(before: Tensor, after: Tensor, ids: Tensor) -> bool:
    """Whether each window holds the same multiset before and after, channel by channel."""

    def in_order(images: Tensor) -> Tensor:
        by_value = images.flatten(2).sort(2)
        windows = ids.flatten(1).unsqueeze(1).expand_as(by_value.indices).gather(2, by_value.indices)
        return by_value.values.gather(2, windows.sort(dim=2, stable=True).indices)

    return torch.equal(in_order(before), in_order(after))
