"""Gaussian blur."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from defenses.base import Batch, InputDefense
from defenses.checks import is_number, require


def gaussian_blur(images: Tensor, std: float) -> Tensor:
    """Convolves every channel with a Gaussian, cut at four standard deviations; pixels at the border are repeated.

    Args:
        images: (B, C, H, W), floating point.
        std: Standard deviation in pixels; below 1/8 the cut kernel is a single pixel.
    """
    radius = int(4 * std + 0.5)
    if radius == 0:
        return images.clone()
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * (offsets / std) ** 2)
    kernel = (weights / weights.sum()).to(images)
    channels = images.shape[1]
    padded = F.pad(images, (radius, radius, radius, radius), mode="replicate")
    rows = F.conv2d(padded, kernel.view(1, 1, -1, 1).expand(channels, -1, -1, -1), groups=channels)
    return F.conv2d(rows, kernel.view(1, 1, 1, -1).expand(channels, -1, -1, -1), groups=channels)


@dataclass(frozen=True, repr=False)
class Blur(InputDefense):
    """Blurs images with a Gaussian.

    The plainest image obfuscation, here as a baseline: what it removes is gone from every copy, with no randomness
    that an attacker could average out, and what it keeps (low frequencies) is shown to everyone.

    Args:
        std: Standard deviation of the Gaussian in pixels; 0 changes nothing.
    """

    std: float = 1.0

    always_shown: ClassVar[tuple[str, ...]] = ("std",)
    source: ClassVar[str] = "Baseline; Gonzalez and Woods, Digital Image Processing, 3.5"
    # A model that was trained on blurred images has never seen a sharp one.
    at_inference: ClassVar[bool] = True
    resamples: ClassVar[bool] = False
    adaptive_attacks: ClassVar[tuple[str, ...]] = ("LearnedRestorer",)

    def __post_init__(self) -> None:
        require(is_number(self.std) and 0 <= self.std < math.inf, self, "std", "a finite number >= 0")

    def protect_batch(self, batch: Batch, generator: torch.Generator) -> Batch:
        """Blurs the images; deterministic, targets are unchanged."""
        # A weighted mean of numbers in [0, 1] leaves it by rounding only.
        return replace(batch, images=gaussian_blur(batch.images, self.std).clamp(0, 1))
