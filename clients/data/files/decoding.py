"""Decoding of one picture file into pixels: the same for the images of a run and for the copies of ``fedveil protect``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clients.data.images import DataError

if TYPE_CHECKING:
    from PIL import Image

MOST_LEVELS = 65535


@dataclass(frozen=True)
class Decoded:
    """A picture, uint8 (1, C, H, W), upright, C = 1 where its channels are equal, else 3; ``notes`` list what decoding left out."""

    image: Tensor
    notes: tuple[str, ...] = ()


def decode(path: Path) -> Tensor:
    """Read any picture that Pillow can: uint8 (1, C, H, W) with C = 1 when its channels are equal, else 3; else ``DataError``.

    A rotation noted by the camera is applied, transparency is dropped, and 16-bit grey is scaled to 8 bits.
    """
    try:
        return decode_noted(path).image
    except DataError as error:
        raise DataError(f"{path} {error}") from None


def decode_noted(path: Path, most_pixels: int | None = None) -> Decoded:
    """Decode as ``decode`` does, with notes on what is left out; first frame only. Refuses more than ``most_pixels``.

    Raises:
        DataError: As ``decode``, with the reason alone: the caller knows the name.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(path) as file:
            if most_pixels is not None and file.width * file.height > most_pixels:
                raise DataError(f"has {file.width} x {file.height} pixels, and {most_pixels:,} are allowed")
            frames = getattr(file, "n_frames", 1)
            notes = [f"first of {frames} frames"] if frames > 1 else []
            picture = ImageOps.exif_transpose(file)
            if picture.has_transparency_data:
                notes.append("transparency dropped: what it hid is shown")
            pixels, cut = _levels(picture)
    except DataError:
        raise
    except Exception as error:  # decoders of damaged files raise anything
        raise DataError(f"cannot be read: {str(error) or type(error).__name__}") from None
    return Decoded(merge_equal(pixels[None]), (*notes, *cut))


def levels_of(picture: Image.Image) -> Tensor:
    """A picture in memory as uint8 (C, H, W), C = 1 for grey levels and 3 for others; 16-bit grey is scaled to 8 bits."""
    return _levels(picture)[0]


def merge_equal(image: Tensor) -> Tensor:
    """Images (N, C, H, W) as one channel (N, 1, H, W) when all their channels are equal."""
    return image[:, :1] if bool((image == image[:, :1]).all()) else image


def _levels(picture: Image.Image) -> tuple[Tensor, list[str]]:
    """Grey or colour levels (C, H, W) of a picture, and what they lack."""
    if picture.mode == "F":
        raise DataError("holds floating-point values of unknown range; convert it to 8-bit levels")
    if not picture.mode.startswith("I"):
        pixels = np.asarray(picture.convert("L" if picture.mode in {"1", "L", "LA"} else "RGB"))
        return torch.from_numpy(np.atleast_3d(pixels).transpose(2, 0, 1).copy()), []
    levels = np.asarray(picture).astype(np.float64)
    notes = ["16 bits rounded to 8"]
    if levels.min() < 0 or levels.max() > MOST_LEVELS:
        notes.append(f"levels from {levels.min():g} to {levels.max():g} cut to 0 to {MOST_LEVELS}")
    return torch.from_numpy(np.clip(np.round(levels / 257), 0, 255).astype(np.uint8)[None]), notes
