"""Equality of images: they differ by less than an 8-bit file can hold."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

HALF_A_GREY = 0.5 / 255
"""No value of the same image read in two ways differs by so much: normalising and undoing it leaves float errors alone."""
PARTS, ROUNDING = 8, 1e-6


class KnownImages:
    """Images (C, H, W) in [0, 1] of one shape, each kept once; the first ones are ``images`` (N, C, H, W)."""

    def __init__(self, images: Tensor) -> None:
        self._images: list[NDArray[np.float32]] = []
        self._means = np.zeros((max(2 * len(images), 64), PARTS))
        for image in images:
            self.adds(image)

    def __contains__(self, image: Tensor) -> bool:
        """Whether it is one of them."""
        return self._holds(pixels := _pixels(image), _means(pixels))

    def adds(self, image: Tensor) -> bool:
        """Keep an image, and return whether it is a new one."""
        pixels = _pixels(image)
        means, count = _means(pixels), len(self._images)
        if self._holds(pixels, means):
            return False
        if count == len(self._means):
            self._means = np.concatenate([self._means, np.zeros_like(self._means)])
        self._means[count] = means
        self._images.append(pixels)
        return True

    def _holds(self, pixels: NDArray[np.float32], means: NDArray[np.float64]) -> bool:
        # Means of parts differ by no more than values do, and tell nearly all images apart without a look at every value.
        apart = np.abs(self._means[: len(self._images)] - means).max(1)
        near = np.flatnonzero(apart < HALF_A_GREY + ROUNDING)
        return any(np.abs(self._images[at] - pixels).max() < HALF_A_GREY for at in near)


def _pixels(image: Tensor) -> NDArray[np.float32]:
    found: NDArray[np.float32] = image.detach().float().numpy().ravel()
    return found


def _means(pixels: NDArray[np.float32]) -> NDArray[np.float64]:
    """(PARTS,) means of equal runs of the values, 0 for each part that is none."""
    parts = min(PARTS, len(pixels))
    starts = np.arange(parts) * len(pixels) // parts
    means = np.zeros(PARTS)
    sums = np.add.reduceat(pixels, starts, dtype=np.float64)
    means[:parts] = sums / np.diff(np.append(starts, len(pixels)))
    return means
