"""Decoding of one picture file into pixels."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from clients.data.images import DataError
from clients.wire.texts import regular

if TYPE_CHECKING:
    from PIL import Image

SAMPLE_FORMAT = 339
"""Tag of TIFF; its value is 1 for unsigned whole numbers."""


def decode(path: Path) -> Tensor:
    """Read any picture that Pillow can: uint8 (1, C, H, W) with C = 1 when its channels are equal, else 3; else ``DataError``.

    A rotation noted by the camera is applied, and transparency is dropped.
    """
    from PIL import Image, ImageOps

    try:
        with Image.open(regular(path)) as file:
            deep = ";16" in str(file.tile) or getattr(file, "tag_v2", {}).get(SAMPLE_FORMAT, (1,))[0] != 1
            if deep:  # Pillow would read one of two bytes of a colour, and the sign of a level as a part of it
                raise _not_eight_bits()
            images = levels_of(ImageOps.exif_transpose(file))[None]
    except DataError as error:
        raise DataError(f"{path} {error}") from None
    except Exception as error:  # decoders of damaged files raise anything
        raise DataError(f"{path} cannot be read: {str(error) or type(error).__name__}") from None
    return images[:, :1] if bool((images == images[:, :1]).all()) else images


def levels_of(picture: Image.Image) -> Tensor:
    """A picture in memory as uint8 (C, H, W), C = 1 for grey levels and 3 for others; ``DataError`` unless it has 8 bits."""
    if picture.mode[0] in "IF":
        raise _not_eight_bits()
    picture = picture.convert("L" if picture.mode in {"1", "L", "LA"} else "RGB")
    return torch.from_numpy(np.atleast_3d(np.asarray(picture)).transpose(2, 0, 1).copy())


def _not_eight_bits() -> DataError:
    return DataError("holds other levels than unsigned ones of 8 bits; convert it to 8-bit levels")
