"""Approximate inverses of the transforms of the ATS library."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from defenses.images.transforms import LIBRARY, apply_transform, blend, luma, magnitude, mean_grey, rotate, smooth

DIRECTED = ("shearY", "translateX", "translateY", "color", "contrast", "sharpness", "brightness")
ROUNDS = 12
_START: dict[str, Callable[[Tensor], Tensor]] = {
    "color": luma,
    "contrast": mean_grey,
    "brightness": torch.zeros_like,
}


def has_direction(index: int) -> bool:
    """Whether transform ``index`` goes either way, by the sign that is drawn for it."""
    return LIBRARY[index].name in DIRECTED


def changes_nothing(index: int, channels: int) -> bool:
    """Whether transform ``index`` is the identity on images of that many channels."""
    name, level, _ = LIBRARY[index]
    still = name == "solarize" and magnitude(name, level) > 255
    return still or (has_direction(index) and level == 0) or (name == "color" and channels == 1)


def invert_transform(images: Tensor, index: int, sign: int) -> Tensor:
    """Undoes transform ``index`` (0 to 49), applied with this sign, as far as a formula can: (B, C, H, W) in [0, 1].

    Shear, shift and rotation go the other way; pixels that they pushed out of the frame stay black or grey. Invert is its own
    inverse. Blends are divided by their factor, which is exact where nothing was clipped (contrast: where the mean survived).
    Equalize, autocontrast, posterize and solarize are not one to one and are left as they are.
    """
    name, level, _ = LIBRARY[index]
    size = magnitude(name, level)
    if name in ("shearY", "translateX", "translateY"):
        return apply_transform(images, index, torch.full((len(images),), -float(sign)))
    if name == "rotate":
        return rotate(images, -size)
    if name == "invert":
        return 1 - images
    change = sign * size
    if name == "sharpness":
        return _unsharpen(images, change)
    if name in ("color", "contrast", "brightness"):
        return blend(_START[name](images), images, images.new_tensor(1 / (1 + change) - 1))
    return images


def _unsharpen(images: Tensor, change: float) -> Tensor:
    """Solves y = (1 + c) x - c S x by x <- x + y - F(x), which contracts: the eigenvalues of c (1 - S) are below 1/2 in size."""
    guess = images
    for _ in range(ROUNDS):
        guess = guess + images - (guess * (1 + change) - smooth(guess) * change)
    return guess.clamp(0, 1)
