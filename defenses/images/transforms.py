"""The 50 image transforms of the ATS library, on float tensors, vectorised over the images that share one.

The library is 25 two-step policies of AutoAugment, flattened, with weakened magnitudes; its reference works on 8-bit images with
Pillow. Here every function maps (B, C, H, W) in [0, 1] to the same. Continuous operations are not rounded to 256 grey levels;
posterize and equalize round their input to them. Single-channel images count as grey: ``color`` leaves them unchanged.
"""

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from defenses.base import DefenseError

NUM_LEVELS = 10


_TABLE = (
    "invert 7, contrast 6, rotate 2, translateX 9, sharpness 1,"
    "sharpness 3, shearY 2, translateY 2, autocontrast 5, equalize 2,"
    "shearY 5, posterize 5, color 3, brightness 5, sharpness 9,"
    "brightness 9, equalize 5, equalize 1, contrast 7, sharpness 5,"
    "color 5, translateX 5, equalize 7, autocontrast 8, translateY 3,"
    "sharpness 6, brightness 6, color 8, solarize 0, invert 0,"
    "equalize 0, autocontrast 0, equalize 8, equalize 4, color 5,"
    "equalize 5, autocontrast 4, solarize 4, brightness 3, color 0,"
    "solarize 1, autocontrast 0, translateY 3, translateY 4, autocontrast 1,"
    "solarize 1, equalize 5, invert 1, translateY 3, autocontrast 1"
)


class Transform(NamedTuple):
    """One entry of the library.

    Attributes:
        name: The operation.
        level: 0 to 9, on the operation's own range of magnitudes.
    """

    name: str
    level: int


# Table 5 of the paper; in the authors' list entry 43 has level 3 instead of 4.
_ENTRIES = (entry.split() for entry in _TABLE.split(","))
LIBRARY = tuple(Transform(name, int(level)) for name, level in _ENTRIES)

LARGEST = {
    "shearY": 0.3,
    "translateX": 150 / 331,
    "translateY": 150 / 331,
    "rotate": 30.0,
    "color": 0.5,
    "contrast": 0.5,
    "sharpness": 0.5,
    "brightness": 0.5,
}
"""Magnitude at level 9: shear in pixels per pixel, shift as a part of the side, degrees, change of a blend factor."""


def magnitude(name: str, level: int) -> float:
    """The magnitude of an operation at a level, linear from level 0 to 9.

    For ``posterize`` the number of bits that stay (8 at level 0, 4 at 9), for ``solarize`` the grey level of 0 to 255
    from which on pixels are inverted (256 at level 0, 0 at 9); else level / 9 of ``LARGEST``; 0 where levels mean
    nothing.
    """
    part = level / (NUM_LEVELS - 1)
    if name == "posterize":
        return float(round(8 - 4 * part))
    if name == "solarize":
        return 256 - 256 * part
    return part * LARGEST.get(name, 0.0)


def apply_transform(images: Tensor, index: int, signs: Tensor) -> Tensor:
    """Applies transform ``index`` of the library to images (B, C, H, W) in [0, 1], C = 1 (grey) or 3 (RGB).

    Signs (B,), 1 or -1, are directions of shear, shift and blend (rotation is always anticlockwise in the reference).

    Raises:
        DefenseError: When images have neither one nor three channels.
    """
    if images.shape[1] not in (1, 3):
        raise DefenseError(
            f"the transforms expect 1 (grey) or 3 (RGB) channels, got images of shape {tuple(images.shape)}"
        )
    name, level = LIBRARY[index]
    return _OPERATIONS[name](images, magnitude(name, level), signs.to(images.device, torch.float64).view(-1, 1, 1, 1))


def luma(images: Tensor) -> Tensor:
    """(B, 1, H, W): 0.299 R + 0.587 G + 0.114 B (ITU-R 601-2); grey images as they are."""
    if images.shape[1] == 1:
        return images
    return (images * images.new_tensor([0.299, 0.587, 0.114]).view(-1, 1, 1)).sum(1, keepdim=True)


def translate_x(images: Tensor, shift: Tensor) -> Tensor:
    """Output column x shows input column floor(x + 1/2 + shift * W); black where there is none."""
    width = images.shape[-1]
    columns = torch.floor(torch.arange(width, device=images.device) + 0.5 + shift * width).long()
    return images.gather(-1, columns.clamp(0, width - 1).expand(images.shape)) * ((columns >= 0) & (columns < width))


def shear_x(images: Tensor, slope: Tensor) -> Tensor:
    """Output (y, x) shows input (y, x + slope * (y + 1/2)), cubic along the row; black where that lies outside.

    The cubic is Pillow's, with parameter a = -1: its tangents are differences over two pixels, not halved as in
    Catmull-Rom.
    """
    height, width = images.shape[-2:]
    rows = torch.arange(height, device=images.device, dtype=torch.float64).view(-1, 1) + 0.5
    position = torch.arange(width, device=images.device) + slope * rows  # (B, 1, H, W); pixel centres are whole
    left = position.floor()
    v0, v1, v2, v3 = (
        images.gather(-1, (left + step).long().clamp(0, width - 1).expand(images.shape)) for step in (-1, 0, 1, 2)
    )
    d = (position - left).to(images)
    value = v1 + d * (v2 - v0 + d * (2 * (v0 - v1) + v2 - v3 + d * (v1 - v0 + v3 - v2)))
    return (value * ((position + 0.5 >= 0) & (position + 0.5 < width))).clamp(0, 1)


def rotate(images: Tensor, degrees: float) -> Tensor:
    """Turns anticlockwise by ``degrees``, nearest neighbour; grey (128/255) where there is no image."""
    height, width = images.shape[-2:]
    angle = math.radians(degrees)
    y = (torch.arange(height, device=images.device, dtype=torch.float64) + 0.5 - height / 2).view(-1, 1)
    x = torch.arange(width, device=images.device, dtype=torch.float64) + 0.5 - width / 2
    column = (math.cos(angle) * x - math.sin(angle) * y + width / 2).floor().long()  # (H, W)
    row = (math.sin(angle) * x + math.cos(angle) * y + height / 2).floor().long()
    inside = (column >= 0) & (column < width) & (row >= 0) & (row < height)
    source = (row.clamp(0, height - 1) * width + column.clamp(0, width - 1)).expand(images.shape)
    return torch.where(inside, images.flatten(2).gather(-1, source.flatten(2)).view(images.shape), 128 / 255)


def blend(start: Tensor, images: Tensor, change: Tensor) -> Tensor:
    """Returns start + (1 + change) * (images - start), clamped to [0, 1]; exactly ``images`` at change 0."""
    change = change.to(images)
    return (images * (1 + change) - start * change).clamp(0, 1)


def smooth(images: Tensor) -> Tensor:
    """Mean of the 3 x 3 neighbours with weight 1 and the pixel with weight 5; border pixels are kept."""
    result = images.clone()
    if min(images.shape[-2:]) >= 3:
        total = sum(
            images[..., 1 + dy : images.shape[-2] - 1 + dy, 1 + dx : images.shape[-1] - 1 + dx] for dy, dx in _AROUND
        )
        result[..., 1:-1, 1:-1] = (total + 5 * images[..., 1:-1, 1:-1]) / 13
    return result


_AROUND = [(dy, dx) for dy in (-1, 0, 1) for dx in (-1, 0, 1) if (dy, dx) != (0, 0)]


def mean_grey(images: Tensor) -> Tensor:
    """Mean luma of each image, (B, 1, 1, 1)."""
    return luma(images).mean((1, 2, 3), keepdim=True)


def autocontrast(images: Tensor) -> Tensor:
    """Stretches every channel of every image linearly so that it reaches from 0 to 1; constant channels are kept."""
    low, high = images.amin((2, 3), keepdim=True), images.amax((2, 3), keepdim=True)
    flat = low == high
    return torch.where(flat, images, ((images - low) / (high - low).masked_fill(flat, 1)).clamp(0, 1))


def grey_levels(images: Tensor) -> Tensor:
    """The nearest of the levels 0 to 255, int64."""
    return (images * 255).round().long().clamp(0, 255)


def equalize(images: Tensor) -> Tensor:
    """Maps grey levels so that every channel's histogram is as even as a map of levels can make it.

    Level i goes to floor((step // 2 + pixels below i) / step), with step = (pixels not at the highest level in use) //
    255; a channel with step 0 is kept.
    """
    levels = grey_levels(images).flatten(2)  # (B, C, H W)
    histogram = torch.zeros(*levels.shape[:2], 256, dtype=torch.long, device=images.device)
    histogram.scatter_add_(2, levels, torch.ones_like(levels))
    step = (levels.shape[2] - histogram.gather(2, levels.amax(2, keepdim=True))) // 255
    below = histogram.cumsum(2) - histogram
    table = (below + step // 2) // step.clamp(min=1)
    mapped = table.gather(2, levels).clamp(max=255).to(images) / 255
    return torch.where((step == 0).unsqueeze(-1), images, mapped.view(images.shape))


def posterize(images: Tensor, num_bits: int) -> Tensor:
    """Keeps the ``num_bits`` highest bits of every grey level and sets the others to zero."""
    levels = grey_levels(images)
    return (levels - levels.remainder(2 ** (8 - num_bits))).to(images) / 255


def solarize(images: Tensor, threshold: float) -> Tensor:
    """Inverts what is at least ``threshold`` (on 0 to 255)."""
    return torch.where(images * 255 < threshold, images, 1 - images)


def _along_columns(function: Callable[[Tensor, Tensor], Tensor], images: Tensor, amount: Tensor) -> Tensor:
    return function(images.transpose(-1, -2), amount).transpose(-1, -2)


# (images (B, C, H, W), magnitude, signs (B, 1, 1, 1)) -> images
_OPERATIONS: dict[str, Callable[[Tensor, float, Tensor], Tensor]] = {
    "shearY": lambda images, size, signs: _along_columns(shear_x, images, size * signs),
    "translateX": lambda images, size, signs: translate_x(images, size * signs),
    "translateY": lambda images, size, signs: _along_columns(translate_x, images, size * signs),
    "rotate": lambda images, size, _: rotate(images, size),
    "color": lambda images, size, signs: blend(luma(images), images, size * signs),
    "contrast": lambda images, size, signs: blend(mean_grey(images), images, size * signs),
    "sharpness": lambda images, size, signs: blend(smooth(images), images, size * signs),
    "brightness": lambda images, size, signs: blend(torch.zeros_like(images), images, size * signs),
    "posterize": lambda images, size, _: posterize(images, int(size)),
    "solarize": lambda images, size, _: solarize(images, size),
    "autocontrast": lambda images, *_: autocontrast(images),
    "equalize": lambda images, *_: equalize(images),
    "invert": lambda images, *_: 1 - images,
}
