"""A tensor as a picture of 8 bits."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from torch import Tensor

if TYPE_CHECKING:
    from PIL.Image import Image


def drawn(image: Tensor) -> Image:
    """The picture of an image (C, H, W) in [0, 1] with 1 or 3 channels; values beyond are cut."""
    from PIL import Image

    pixels = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).numpy()
    return Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else np.ascontiguousarray(pixels))
