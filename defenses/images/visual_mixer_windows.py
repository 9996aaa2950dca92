"""Which windows VisualMixer shuffles an image in (Algorithm 1, lines 3-21): larger where it has little structure; their bounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from itertools import product

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
from defenses.random_draws import generator_for

ESTIMATORS = ("exact", "sum", "perm", "pairs")
DENSITIES = ("normalised", "sum", "sigma")
FIRST_REGIONS = ("halved", "nearest")
PAPER_SIDE = 224
"""Pixels along a side of the images for which the paper works its example, those of ImageNet (section IV-B)."""


def shuffled_vfe_variance(window: int, kurtosis: float | None = None) -> float:
    """Exact variance of VFE_R / (2 sigma^2) over all permutations of a square window's pixels; 0 for a single pixel.

    Divided by the number of pairs E, that quantity is Geary's C on the grid with n = WS^2 pixels, of known variance:

        Var = [(n-1)(n^2-3n+3-(n-1)b) E - (n-1)(n^2+3n-6-(n^2-n+2)b) D/4 + (n^2-3-(n-1)^2 b) E^2] / (n(n-2)(n-3))

    where b is the pixels' kurtosis, by default 3 (n - 1) / (n + 1), the mean over normal samples, and D the sum of squared
    neighbour counts. For bell-shaped pixels it is near 2 WS (WS - 1), half of the paper's chi-square value, because the pixels of
    a window are a fixed set. Source: Cliff, Ord, "Spatial Processes: Models and Applications" (1981), randomisation moments of
    Geary's C.
    """
    if window == 1:
        return 0.0
    n, edges = window**2, pair_count(window, window)
    b = 3 * (n - 1) / (n + 1) if kurtosis is None else min(kurtosis, (n**2 - 3 * n + 3) / (n - 1))
    # 4 corners have 2 neighbours, 4 (WS - 2) border pixels have 3, the rest have 4.
    squared_degrees = 4 * 4 + 4 * (window - 2) * 9 + (window - 2) ** 2 * 16
    first = (n - 1) * (n**2 - 3 * n + 3 - (n - 1) * b) * edges
    second = (n - 1) * (n**2 + 3 * n - 6 - (n**2 - n + 2) * b) * squared_degrees / 4
    third = (n**2 - 3 - (n - 1) ** 2 * b) * edges**2
    return (first - second + third) / (n * (n - 2) * (n - 3))


def shuffled_vfe(window: int, margin: float = 0.0) -> float:
    """What the VFE / (2 sigma^2) of a shuffled window reaches: its mean 2 WS (WS - 1), less ``margin`` standard deviations.

    The paper takes the deviation of a chi-square law, see ``shuffled_vfe_variance``; the mean is the same.
    """
    return pair_count(window, window) - margin * math.sqrt(shuffled_vfe_variance(window))


def window_lower_bound(target: float, margin: float = 0.0) -> int:
    """WS_l: the smallest window whose shuffled VFE reaches a target V, of VFE / (2 sigma^2) (section IV-B); see ``shuffled_vfe``.

    Without a margin it is ceil((1 + sqrt(1 + 2 V)) / 2).
    """
    window = int((1 + math.sqrt(1 + 2 * target)) / 2)
    while shuffled_vfe(window, margin) < target:
        window += 1
    return window


def window_upper_bound(within: float, confidence: float = 0.5, *, strict: bool = False) -> int:
    """WS_u = 3 + 2 floor(m): the largest window whose output changes little with probability ``confidence`` (equation 17).

    A window of 3 changes it little with probability alpha_0 = ``within``. The paper says that a window of 3 + 2m has m^2 outputs,
    hence alpha = alpha_0^(m^2), so m = sqrt(log alpha / log alpha_0); but m = 0 has one output, not none: with ``strict`` (m + 1)^2
    count. The paper gives no alpha.
    """
    if within in (0.0, 1.0):
        known = "every" if within else "no"
        raise ValueError(f"{known} sampled kernel stays within max_change, so the bound is unknown; change max_change")
    m = math.sqrt(math.log(confidence) / math.log(within)) - strict
    if m < 0:
        raise ValueError(
            f"a window of 3 stays within max_change with probability {within:.4f} only; lower confidence or raise max_change"
        )
    return 3 + 2 * math.floor(m)


@functools.cache
def public_probability(max_change: float, estimator: str) -> float:
    """``within_probability`` from a stream that everyone knows.

    Clients and attackers must find the same bound, and a client's secret must not show in it.
    """
    return within_probability(max_change, estimator, generator_for("VisualMixer", "window_upper"))


def within_probability(
    max_change: float, estimator: str, generator: torch.Generator, num_samples: int = 200_000
) -> float:
    """alpha_0 = P(change <= max_change), by Monte Carlo over 2 x 2 kernels of independent standard normal weights.

    The paper gives no value of d, here ``max_change`` in standard deviations of a weight. With 200,000 kernels the standard
    error of alpha_0 is 0.0003 at d = 5.

    The output B is a 2 x 2 convolution of a 3 x 3 window in [0, 1] followed by a 2 x 2 max-pooling (equations 13-15).
    The change between a window and its shuffled version is estimated as

    - "exact": max B - min B over all 512 binary windows, as the paper enumerates. B is convex, so its maximum is binary
      but its minimum need not be: over windows in [0, 1], a linear programme for 20,000 kernels gives alpha_0 = 0.977
      instead of 0.982 at 5, hence WS_u = 13 instead of 15;
    - "sum": the sum of absolute weights, the bound that equations 13 and 14 give; never below "exact";
    - "perm": as "exact", among windows with equally many ones, which is what a shuffle can reach;
    - "pairs": |B - B'| for two random binary windows, a typical change and not a bound.

    Equation 16 of the paper integrates w1 + w2 over a truncated density, which neither agrees with equation 15 nor is
    the law of ordered weights; it is not offered.
    """
    within = 0
    for start in range(0, num_samples, 1000):  # 512 outputs per kernel: 2 MB at a time stay in the processor's cache.
        weights = torch.randn(min(1000, num_samples - start), 4, generator=generator)
        within += int((output_change(weights, estimator, generator) <= max_change).sum())
    return within / num_samples


def output_change(weights: Tensor, estimator: str, generator: torch.Generator) -> Tensor:
    """The change of ``within_probability`` for given kernels: (S, 4), row-major weights -> (S,)."""
    if estimator == "sum":
        return weights.abs().sum(1)
    outputs = window_outputs(weights)
    if estimator == "pairs":
        pairs = torch.randint(len(outputs), (2, len(weights)), generator=generator)
        return (outputs.gather(0, pairs[:1]) - outputs.gather(0, pairs[1:])).abs().squeeze(0)
    ones = _binary_windows().sum((1, 2))
    groups = [ones == ones] if estimator == "exact" else [ones == count for count in range(10)]
    return torch.stack([outputs[group].amax(0) - outputs[group].amin(0) for group in groups]).amax(0)


def window_outputs(weights: Tensor) -> Tensor:
    """Convolution and max-pooling of all 512 binary 3 x 3 windows: kernels (S, 4), row-major -> (512, S)."""
    kernels = torch.tensor(list(product((0.0, 1.0), repeat=4)), dtype=weights.dtype)
    sums = kernels @ weights.T  # (16, S): what each of the 16 binary 2 x 2 patches gives.
    patches = _binary_windows().unfold(1, 2, 1).unfold(2, 2, 1).reshape(512, 4, 4)
    numbers = (patches * torch.tensor([8, 4, 2, 1])).sum(-1)  # (512, 4): which patch is at each place.
    first, second, third, fourth = (sums.index_select(0, place) for place in numbers.unbind(1))
    return torch.maximum(torch.maximum(first, second), torch.maximum(third, fourth))


def _binary_windows() -> Tensor:
    return torch.tensor(list(product((0, 1), repeat=9))).view(512, 3, 3)


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
    """Windows in pixels, as shares of the image's longer side, and as many pixels of ``PAPER_SIDE`` as that share covers.

    Args:
        sizes: As ``window_sizes`` gives them.
        side: Pixels.
    """
    windows = [min(one, side) for one in (sizes[-1], sizes[1] if len(sizes) > 1 else sizes[0])]

    def span(scale: float) -> str:
        least, most = (f"{one * scale:.0f}" for one in windows)
        return least if least == most else f"{least} to {most}"

    share = f"windows of {span(1)} of {side} pixels ({span(100 / side)} % of the side)"
    return (
        share if side == PAPER_SIDE else f"{share}, as {span(PAPER_SIDE / side)} of {PAPER_SIDE} in VisualMixer's paper"
    )


def region_density(images: Tensor, sizes: list[int], density: str) -> Iterator[Tensor]:
    """What Algorithm 1 compares with its median, mean over channels (equation 4), for regions of each size in turn.

    Yields:
        (B, ceil(H / size), ceil(W / size)).
    """
    if density == "sigma":
        for size in sizes:
            yield vfe_normalised(images, size).mean(1)
        return
    height, width = images.shape[-2:]
    across, down = (squared.mean(1) for squared in squared_differences(images))
    for size in sizes:
        pairs = window_pairs(height, width, size).clamp(min=1) if density == "normalised" else torch.ones(())
        yield window_vfe(across, down, size) / pairs.to(across.device)


def partition(images: Tensor, sizes: list[int], density: str = "normalised") -> list[Level]:
    """Which windows each image is shuffled in (Algorithm 1, lines 7-21), largest first; every pixel lies in exactly one.

    A window is at most one of ``sizes`` high and wide, and smaller at the right and bottom edge.
    """
    height, width = images.shape[-2:]
    pending = torch.ones(
        len(images), -(-height // sizes[0]), -(-width // sizes[0]), dtype=torch.bool, device=images.device
    )
    levels: list[Level] = []
    shuffled = torch.zeros_like(pending)
    median: Tensor | None = None
    for size, half, value in zip(sizes, sizes[1:], region_density(images, sizes[:-1], density), strict=False):
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


def log10_keys(images: Tensor, levels: list[Level], *, per_channel: bool = False) -> float:
    """Decimal logarithm of the number of orders that one shuffle of all windows can have, added up over images.

    A window of n pixels has n! orders, and windows are shuffled independently: the product over them. (The paper prints their sum,
    the work of an attacker that can check each window alone.) With ``per_channel`` channels are shuffled apart. Windows of one
    colour, which no order changes, are not counted; of equal pixels in others no account is taken: this is an upper bound.
    """
    total, (height, width) = 0.0, images.shape[-2:]
    for size, active in levels:
        pixels = window_sum(torch.ones(height, width, dtype=torch.float64), size)
        moving = vfe_map(images, size) > 0  # (B, C, h, w)
        orders = (moving.sum(1) if per_channel else moving.any(1)) * active
        total += float((torch.lgamma(pixels + 1) * orders.cpu()).sum()) / math.log(10)
    return total


def _median(value: Tensor) -> Tensor:
    """Median over regions, the mean of the two middle ones for an even number: (B, h, w) -> (B, 1, 1)."""
    ordered = value.flatten(1).sort(1).values
    count = ordered.shape[1]
    return ((ordered[:, (count - 1) // 2] + ordered[:, count // 2]) / 2).view(-1, 1, 1)
