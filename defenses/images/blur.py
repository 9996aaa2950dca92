"""Blurring of images: with a Gaussian, and by a small copy that is enlarged again."""

from dataclasses import replace
from typing import Annotated

import torch
from torch import Tensor
from torch.nn import functional as F

from defenses.base import Batch, InputDefense
from defenses.checks import MOST_SIDE, SMALLEST, Limit, Pixels, algorithm


def gaussian_blur(images: Tensor, std: float) -> Tensor:
    """Convolves every channel of (B, C, H, W) with a Gaussian, cut at four standard deviations; border pixels are repeated.

    Below a standard deviation of 1/8 pixel the cut kernel is a single pixel.
    """
    if int(4 * std + 0.5) == 0:
        return images.clone()
    channels = images.shape[1]
    for axis in (2, 3):
        kernel = _gaussian(std, images.shape[axis]).to(images)
        radius = len(kernel) // 2
        # One direction after the other, so that a wide kernel costs no square of its width.
        beside = (0, 0, radius, radius) if axis == 2 else (radius, radius, 0, 0)
        shape = (1, 1, -1, 1) if axis == 2 else (1, 1, 1, -1)
        padded = F.pad(images, beside, mode="replicate")
        images = F.conv2d(padded, kernel.view(shape).expand(channels, -1, -1, -1), groups=channels)
    return images


def _gaussian(std: float, side: int) -> Tensor:
    """Kernel (2 r + 1,) for a side of ``size`` pixels; weights beyond the other border are added to that border's pixel."""
    radius = int(4 * std + 0.5)
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / std) ** 2)
    weights = weights / weights.sum()
    beyond = radius - (side - 1)
    if beyond <= 0:
        return weights
    inner = weights[beyond : len(weights) - beyond].clone()
    tail = weights[:beyond].sum()
    inner[0] += tail
    inner[-1] += tail
    return inner


@algorithm
class Blur(InputDefense):
    """Blur images with a Gaussian kernel.

    A simple baseline: blurring removes high frequencies from every copy, without randomness that an attacker could average
    out. Low frequencies stay visible.

    Args:
        std: Standard deviation of the Gaussian in pixels; 0 changes nothing.
    """

    std: Annotated[float, Limit(SMALLEST, MOST_SIDE, also=0)] = 1.0

    no_defense_at = {"std": 0}
    always_shown = ("std",)
    source = "Baseline; Gonzalez and Woods, Digital Image Processing, 3.5"
    # A model that was trained on blurred images has never seen a sharp one.
    at_inference = True
    resamples = False
    adaptive_attacks = ("LearnedRestorer", "TokenDecoder")

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Blurs the images; deterministic, targets are unchanged."""
        # A weighted mean of numbers in [0, 1] leaves it by rounding only.
        return replace(batch, images=gaussian_blur(batch.images, self.std).clamp(0, 1))


@algorithm
class Downsample(InputDefense):
    """Average blocks of pixels and enlarge the small image again: the baseline "Blur" of the patch-shuffling paper.

    An image of H x W becomes one of ceil(H / factor) x ceil(W / factor), each pixel the mean of its block, and then H x W
    again by bilinear interpolation. As with ``Blur`` there is no randomness to average out. An image that is not larger
    than ``factor`` keeps its mean colour alone.

    Args:
        factor: 14 makes 16 x 16 of 224 x 224, as in the paper; 1 changes nothing.
    """

    factor: Pixels = 14

    no_defense_at = {"factor": 1}
    always_shown = ("factor",)
    source = "Yao et al., Privacy-Preserving Split Learning via Patch Shuffling, ICDM 2022, VI (baseline Blur)"
    at_inference = True
    resamples = False
    adaptive_attacks = ("LearnedRestorer", "TokenDecoder")

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Shrinks and enlarges the images; deterministic, targets are unchanged."""
        height, width = batch.images.shape[-2:]
        small = F.interpolate(batch.images, (-(-height // self.factor), -(-width // self.factor)), mode="area")
        # Interpolated values are weighted means, which leave [0, 1] by rounding only.
        large = F.interpolate(small, (height, width), mode="bilinear", align_corners=False)
        return replace(batch, images=large.clamp(0, 1))
