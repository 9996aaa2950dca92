"""Decoding of one picture file into pixels."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.data.images import DataError
from clients.wire.texts import regular

if TYPE_CHECKING:
    from PIL import Image

FullScale = tuple[int, int]
"""Levels of whole numbers that become 0 and 255."""
MOST_PIXELS = 100_000_000
"""Of a picture that is read for its levels alone: a file that holds more is taken for a decompression bomb."""
EIGHT_BITS = {".bmp", ".gif", ".jpeg", ".jpg", ".webp"}
"""Endings of formats that hold no more, whose millions of files need not be opened for their depth."""
SAMPLE_FORMAT, SIGNED = 339, 2
"""Tag of TIFF, and its value for signed whole numbers."""


def decode(path: Path, scale: FullScale | None = None) -> Tensor:
    """Read any picture that Pillow can: uint8 (1, C, H, W) with C = 1 when its channels are equal, else 3; else ``DataError``.

    A rotation noted by the camera is applied, and transparency is dropped. Whole numbers of other than 8 unsigned bits become
    8 bits by ``scale``, without one by the picture's own ``full_scale``.
    """
    try:
        pixels = _pixels(path)
    except DataError as error:
        raise DataError(f"{path} {error}") from None
    if pixels.dtype != np.uint8:
        first, last = scale or _full_scale(pixels)
        # The highest 8 bits: what differs in them stays different, and 8 bits that were stretched to more come back.
        pixels = ((pixels - first) * 256 // (last - first + 1)).clip(0, 255).astype(np.uint8)
    images = torch.from_numpy(pixels)[None]
    return images[:, :1] if bool((images == images[:, :1]).all()) else images


def full_scale(paths: Iterable[Path]) -> FullScale | None:
    """The levels that become 0 and 255 in all of these pictures; None where none has whole numbers of other than 8 unsigned bits.

    A file does not say which of its levels is white: 12 bits of a camera come in files of 16. The scale is that of as many bits as
    the lowest and the highest level of all pictures need, 8 at least. Pictures that cannot be read are left out.
    """
    from PIL import Image

    extremes = []
    for path in (picture for picture in paths if picture.suffix.lower() not in EIGHT_BITS):
        try:
            with Image.open(regular(path)) as file:
                deep = file.mode.startswith("I") or _sample_format(file) == SIGNED
            if deep:
                levels = _pixels(path, MOST_PIXELS)
                extremes += [levels.min(), levels.max()]
        except Exception:  # named where the picture is used
            continue
    return _full_scale(np.array(extremes)) if extremes else None


def scale_text(scale: FullScale) -> str:
    """What a scale does, for notes and warnings."""
    return f"levels {scale[0]} to {scale[1]} become 0 to 255"


def levels_of(picture: Image.Image) -> Tensor:
    """A picture in memory as uint8 (C, H, W), C = 1 for grey levels and 3 for others; ``DataError`` unless it has 8 bits."""
    if picture.mode.startswith("I"):
        raise DataError("holds whole numbers of unknown range; convert it to 8-bit levels, or to floats in [0, 1]")
    return torch.from_numpy(_levels(picture))


def _full_scale(levels: NDArray[np.integer]) -> FullScale:
    lowest, highest = int(levels.min()), int(levels.max())
    bits = max(8, max(highest, ~lowest).bit_length() + (lowest < 0))
    first = -(2 ** (bits - 1)) if lowest < 0 else 0
    return first, first + 2**bits - 1


def _pixels(path: Path, most_pixels: int | None = None) -> NDArray[np.integer]:
    """Levels (C, H, W) of a file's first frame, uint8 or int64."""
    from PIL import Image, ImageOps

    try:
        with Image.open(regular(path)) as file:
            if most_pixels is not None and file.width * file.height > most_pixels:
                raise DataError(f"has {file.width} x {file.height} pixels, and {most_pixels:,} are allowed")
            signed = _sample_format(file)
            deep_colours = file.mode[0] != "I" and ";16" in str(file.tile)
            levels = _levels(ImageOps.exif_transpose(file))
    except DataError:
        raise
    except Exception as error:  # decoders of damaged files raise anything
        raise DataError(f"cannot be read: {str(error) or type(error).__name__}") from None
    if deep_colours and levels.max() < 128:  # of which Pillow reads the higher 8 bits alone
        raise DataError("holds colours of 16 bits, of which the lower half alone is used; convert it to 8-bit levels")
    if signed == SIGNED and levels.dtype == np.uint8:
        return levels.view(np.int8).astype(np.int64)
    if signed == 1 and levels.dtype == np.int32:
        return levels.view(np.uint32).astype(np.int64)
    return levels if levels.dtype == np.uint8 else levels.astype(np.int64)


def _sample_format(file: Image.Image) -> int:
    """Of a TIFF: 1 for unsigned whole numbers, 2 for signed ones; 0 of another file."""
    tags = getattr(file, "tag_v2", None)
    return 0 if tags is None else tags.get(SAMPLE_FORMAT, (1,))[0]


def _levels(picture: Image.Image) -> NDArray[np.integer]:
    """Grey or colour levels (C, H, W), of the picture's own type where it holds whole numbers beyond 8 bits."""
    if picture.mode == "F":
        raise DataError("holds floating-point values of unknown range; convert it to 8-bit levels")
    if not picture.mode.startswith("I"):
        picture = picture.convert("L" if picture.mode in {"1", "L", "LA"} else "RGB")
    return np.atleast_3d(np.asarray(picture)).transpose(2, 0, 1).copy()
