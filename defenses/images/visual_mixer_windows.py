"""Which windows VisualMixer shuffles an image in (Algorithm 1, lines 3-21): larger where it has little structure; their bounds."""

import math
from itertools import pairwise

import torch
from torch import Tensor

from defenses.images.vfe import (
    pair_count,
    squared_differences,
    vfe_map,
    vfe_normalised,
    window_fill,
    window_pairs,
    window_sum,
    window_vfe,
)

PAPER_SIDE = 224
"""Pixels along a side of the images for which the paper works its example, those of ImageNet (section IV-B)."""


def window_lower_bound(target: float) -> int:
    """WS_l: the smallest window whose VFE / (2 sigma^2) reaches a target V in the mean over shuffles (section IV-B).

    The mean is ``pair_count``, 2 WS (WS - 1), so that WS_l is (1 + sqrt(1 + 2 V)) / 2, rounded up.
    """
    window = int((1 + math.sqrt(1 + 2 * target)) / 2)
    return window + (pair_count(window, window) < target)


Level = tuple[int, Tensor]
"""A window size and which windows of that size are shuffled: (B, ceil(H / size), ceil(W / size)), bool."""


def power_of_two(value: int, up: bool = False) -> int:
    """The largest power of two at most ``value`` (1 or more); with ``up``, the smallest at least ``value``."""
    return 1 << ((value - 1).bit_length() if up else value.bit_length() - 1)


def window_sizes(height: int, width: int, lower: int, upper: int, first_regions: str = "halved") -> list[int]:
    """Sides of the first regions and of the windows that they are halved to (Algorithm 1, lines 3-6, 11 and 16), decreasing.

    The size of an image is its longer side. Where the paper would fall below its own lower bound, we stop at it: line 5
    can undershoot (17 becomes 8 although 16 would do), and so can half of an image no larger than ``upper``. One entry alone means
    that the regions themselves are shuffled whole.
    """
    smallest = power_of_two(lower)
    size = max(height, width)
    if size <= upper:  # One region, whose VFE is the median: it is shuffled at half its size and never split further.
        return [size] if size <= smallest else [size, max(-(-size // 2), smallest)]
    if first_regions == "nearest":
        size = power_of_two(upper)
    while size > upper:
        size = power_of_two(size) // 2
    size = max(size, smallest)
    return [size >> halvings for halvings in range((size // smallest).bit_length())]


def windows_in_words(sizes: list[int], side: int) -> str:
    """Windows in pixels, as shares of the image's longer side, and as many pixels of ``PAPER_SIDE`` as that share covers."""
    windows = [min(size, side) for size in (sizes[-1], sizes[1] if len(sizes) > 1 else sizes[0])]

    def span(scale: float) -> str:
        least, most = (f"{window * scale:.0f}" for window in windows)
        return least if least == most else f"{least} to {most}"

    share = f"windows of {span(1)} of {side} pixels ({span(100 / side)} % of the side)"
    return (
        share if side == PAPER_SIDE else f"{share}, as {span(PAPER_SIDE / side)} of {PAPER_SIDE} in VisualMixer's paper"
    )


def partition(images: Tensor, sizes: list[int]) -> list[Level]:
    """Which windows each image is shuffled in (Algorithm 1, lines 7-21), largest first; every pixel lies in exactly one.

    A window is at most one of ``sizes`` high and wide, and smaller at the right and bottom edge. Compared with the median over the
    first regions is VFE_R for each neighbouring pair, mean over channels (equation 4): the sums of the paper would put nearly all
    parts of a region, a quarter of its area, under it.
    """
    height, width = images.shape[-2:]
    pending = torch.ones(
        len(images), -(-height // sizes[0]), -(-width // sizes[0]), dtype=torch.bool, device=images.device
    )
    levels: list[Level] = []
    shuffled = torch.zeros_like(pending)
    median: Tensor | None = None
    across, down = (squared.mean(1) for squared in squared_differences(images))
    for size, half in pairwise(sizes):
        pairs = window_pairs(height, width, size).clamp(min=1)
        value = window_vfe(across, down, size) / pairs.to(across.device)
        median = _median(value) if median is None else median
        low = value <= median
        levels.append((size, shuffled))
        rows, columns = -(-height // half), -(-width // half)
        shuffled, pending = (window_fill(regions, 2, rows, columns) for regions in (pending & low, pending & ~low))
    return [*levels, (sizes[-1], shuffled | pending)]


def mixing_windows(images: Tensor, levels: list[Level]) -> dict[int, int]:
    """Size -> how many windows of it change anything: those that hold two different values in some channel.

    A window of one colour is shuffled into itself, so that it does not show the defence's effect.
    """
    return {size: int((active & (vfe_map(images, size) > 0).any(1)).sum()) for size, active in levels}


def total_vfe(images: Tensor, levels: list[Level]) -> float:
    """VFE / (2 sigma^2) of windows, mean over channels, added up over all windows of all images; see ``vfe_normalised``.

    The shuffle keeps the sigma of every window.
    """
    return sum(
        float((vfe_normalised(images, size).mean(1) * active).sum(dtype=torch.float64)) for size, active in levels
    )


def log10_keys(images: Tensor, levels: list[Level]) -> float:
    """Decimal logarithm of the number of orders that one shuffle of all windows can have, added up over images.

    A window of n pixels has n! orders, and windows are shuffled independently: the product over them. (The paper prints their sum,
    the work of an attacker that can check each window alone.) Channels are shuffled apart. Windows of one
    value, which no order changes, are not counted; of equal pixels in others no account is taken: this is an upper bound.
    """
    total, (height, width) = 0.0, images.shape[-2:]
    for size, active in levels:
        pixels = window_sum(torch.ones(height, width, dtype=torch.float64), size)
        orders = (vfe_map(images, size) > 0).sum(1) * active
        total += float((torch.lgamma(pixels + 1) * orders.cpu()).sum()) / math.log(10)
    return total


def _median(value: Tensor) -> Tensor:
    """Median over regions, the mean of the two middle ones for an even number: (B, h, w) -> (B, 1, 1)."""
    ordered = value.flatten(1).sort(1).values
    count = ordered.shape[1]
    return ((ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2).view(-1, 1, 1)
