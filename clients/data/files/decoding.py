"""Decoding of one picture file into pixels: the same for the images of a run and for the copies of ``fedveil protect``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
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
"""Of one picture, decoded: a file that holds more is taken for a decompression bomb where the caller asks for that."""
EIGHT_BITS = {".bmp", ".gif", ".jpeg", ".jpg", ".webp"}
"""Endings of formats that hold no more, whose millions of files need not be opened for their depth."""
SAMPLE_FORMAT, SIGNED = 339, 2
"""Tag of TIFF, and its value for signed whole numbers."""


@dataclass(frozen=True)
class Decoded:
    """A picture, uint8 (1, C, H, W), upright, C = 1 where its channels are equal, else 3; ``notes`` list what decoding changed."""

    image: Tensor
    notes: tuple[str, ...] = ()


def decode(path: Path, scale: FullScale | None = None) -> Tensor:
    """Read any picture that Pillow can: uint8 (1, C, H, W) with C = 1 when its channels are equal, else 3; else ``DataError``.

    A rotation noted by the camera is applied, and transparency is dropped. Whole numbers of other than 8 unsigned bits become
    8 bits by ``scale``, without one by the picture's own ``full_scale``.
    """
    try:
        return decode_noted(path, scale=scale).image
    except DataError as error:
        raise DataError(f"{path} {error}") from None


def decode_noted(path: Path, most_pixels: int | None = None, scale: FullScale | None = None) -> Decoded:
    """Decode as ``decode`` does, with notes on what is changed; first frame only. Refuses more than ``most_pixels``.

    Raises:
        DataError: As ``decode``, with the reason alone: the caller knows the name.
    """
    pixels, notes = _pixels(path, most_pixels)
    if pixels.dtype != np.uint8:
        first, last = scale or _full_scale(pixels)
        notes.append(scale_text((first, last)))
        # The highest 8 bits: what differs in them stays different, and 8 bits that were stretched to more come back.
        pixels = ((pixels - first) * 256 // (last - first + 1)).clip(0, 255).astype(np.uint8)
    return Decoded(merge_equal(torch.from_numpy(pixels)[None]), tuple(notes))


def full_scale(paths: Iterable[Path]) -> FullScale | None:
    """The levels that become 0 and 255 in all of these pictures; None where none has whole numbers of other than 8 unsigned bits.

    A file does not say which of its levels is white: 12 bits of a camera come in files of 16. The scale is that of as many bits as
    the lowest and the highest level of all pictures need, 8 at least. Pictures that cannot be read are left out.
    """
    from PIL import Image

    found = []
    for path in (one for one in paths if one.suffix.lower() not in EIGHT_BITS):
        try:
            with Image.open(regular(path)) as file:
                deep = file.mode.startswith("I") or _sample_format(file) == SIGNED
            if deep:
                levels = _pixels(path, MOST_PIXELS)[0]
                found += [levels.min(), levels.max()]
        except Exception:  # named where the picture is used
            continue
    return _full_scale(np.array(found)) if found else None


def scale_text(scale: FullScale) -> str:
    """What a scale does, for notes and warnings."""
    return f"levels {scale[0]} to {scale[1]} become 0 to 255"


def levels_of(picture: Image.Image) -> Tensor:
    """A picture in memory as uint8 (C, H, W), C = 1 for grey levels and 3 for others; ``DataError`` unless it has 8 bits."""
    if picture.mode.startswith("I"):
        raise DataError("holds whole numbers of unknown range; convert it to 8-bit levels, or to floats in [0, 1]")
    return torch.from_numpy(_levels(picture))


def merge_equal(image: Tensor) -> Tensor:
    """Images (N, C, H, W) as one channel (N, 1, H, W) when all their channels are equal."""
    return image[:, :1] if bool((image == image[:, :1]).all()) else image


def _full_scale(levels: NDArray[np.integer]) -> FullScale:
    lowest, highest = int(levels.min()), int(levels.max())
    bits = max(8, max(highest, ~lowest).bit_length() + (lowest < 0))
    first = -(2 ** (bits - 1)) if lowest < 0 else 0
    return first, first + 2**bits - 1


def _pixels(path: Path, most_pixels: int | None) -> tuple[NDArray[np.integer], list[str]]:
    """Levels (C, H, W) of a file, uint8 or int64, and what of it they lack."""
    from PIL import Image, ImageOps

    try:
        with Image.open(regular(path)) as file:
            if most_pixels is not None and file.width * file.height > most_pixels:
                raise DataError(f"has {file.width} x {file.height} pixels, and {most_pixels:,} are allowed")
            frames, signed = getattr(file, "n_frames", 1), _sample_format(file)
            deep_colours = file.mode[0] != "I" and ";16" in str(file.tile)
            notes = [f"first of {frames} frames"] if frames > 1 else []
            picture = ImageOps.exif_transpose(file)
            if picture.has_transparency_data:
                notes.append("transparency dropped: what it hid is shown")
            levels = _levels(picture)
    except DataError:
        raise
    except Exception as error:  # decoders of damaged files raise anything
        raise DataError(f"cannot be read: {str(error) or type(error).__name__}") from None
    if deep_colours:
        if levels.max() < 128:  # of which Pillow reads the higher 8 bits alone
            raise DataError(
                "holds colours of 16 bits, of which the lower half alone is used; convert it to 8-bit levels"
            )
        notes.append(scale_text((0, 65535)))
    if signed == SIGNED and levels.dtype == np.uint8:
        return levels.view(np.int8).astype(np.int64), notes
    if signed == 1 and levels.dtype == np.int32:
        return levels.view(np.uint32).astype(np.int64), notes
    return levels if levels.dtype == np.uint8 else levels.astype(np.int64), notes


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
