"""Squares of 224 pixels of ten colour photographs that installed packages bring, and enlarged faces.

Imported by ``vm_224.py``; prints nothing by itself.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.nn import functional as F

from clients.data.packaged import packaged_file
from defenses.random_draws import generator_for

SIDE = 224
FILES = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "galaxies": ("skimage", "data/hubble_deep_field.jpg"),
    "tissue": ("skimage", "data/ihc.png"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "temple": ("sklearn", "datasets/images/china.jpg"),
    "flower": ("sklearn", "datasets/images/flower.jpg"),
}
"""Photograph -> package and file."""
FACES = ("skimage", "data/lfw_subset.npy")
"""100 grey faces of Labeled Faces in the Wild, 25 x 25, then as many patches without a face (scikit-image)."""
NUM_FACES = 100


class Squares(NamedTuple):
    """Squares of one seed, (N, 3, ``SIDE``, ``SIDE``) each, in [0, 1].

    Attributes:
        attacked: Four of each of half of the photographs, without overlap.
        others: All squares, at three scales, of the other photographs: what a server may learn from.
        whole: The central square of every photograph.
        quarters: Squares of every photograph without overlap, its shorter side scaled to two of them; the attacked ones are among
            these.
        finer: The same, its shorter side scaled to three.
    """

    attacked: Tensor
    others: Tensor
    whole: Tensor
    quarters: Tensor
    finer: Tensor


def squares(seed: int, attacked: int) -> Squares:
    """Squares of all photographs; which half of the photographs is attacked depends on the seed.

    Args:
        seed: Of the order of the photographs; an odd seed attacks the half that the even seed before it leaves out.
        attacked: Number of attacked squares, at most four for each photograph of one half.
    """
    names = list(FILES)
    order = torch.randperm(len(names), generator=generator_for("vm-224", seed // 2)).tolist()
    half = len(names) // 2
    first, rest = (order[:half], order[half:]) if seed % 2 == 0 else (order[half:], order[:half])
    cut = {parts: [tiles(photograph(name), parts) for name in names] for parts in (1, 2, 3)}
    chosen = torch.cat([cut[2][at][:4] for at in first])[:attacked]
    others = torch.cat([cut[parts][at] for at in rest for parts in (1, 2, 3)])
    return Squares(chosen, others, *(torch.cat(cut[parts]) for parts in (1, 2, 3)))


def photograph(name: str) -> Tensor:
    """A photograph of ``FILES``: (3, H, W) in [0, 1]."""
    with Image.open(packaged_file(*FILES[name])) as photo:
        return torch.from_numpy(np.array(photo.convert("RGB"))).permute(2, 0, 1).float() / 255


def tiles(photo: Tensor, parts: int) -> Tensor:
    """Squares without overlap, the shorter side scaled to ``parts`` of them; of one part the central one.

    (3, H, W) -> (N, 3, ``SIDE``, ``SIDE``).
    """
    height, width = photo.shape[1:]
    scale = parts * SIDE / min(height, width)
    size = (max(round(height * scale), parts * SIDE), max(round(width * scale), parts * SIDE))
    scaled = F.interpolate(photo[None], size, mode="bilinear", antialias=True)[0].clamp(0, 1)
    rows, columns = (length // SIDE if parts > 1 else 1 for length in size)
    top, left = ((length - count * SIDE) // 2 for length, count in zip(size, (rows, columns), strict=True))
    places: Sequence[tuple[int, int]] = list(itertools.product(range(rows), range(columns)))
    return torch.stack(
        [scaled[:, top + r * SIDE : top + (r + 1) * SIDE, left + c * SIDE : left + (c + 1) * SIDE] for r, c in places]
    )


def faces() -> Tensor:
    """Grey faces, enlarged from 25 to ``SIDE`` pixels: (``NUM_FACES``, 1, ``SIDE``, ``SIDE``) in [0, 1]."""
    pictures = torch.from_numpy(np.load(packaged_file(*FACES))[:NUM_FACES]).float()[:, None]
    return F.interpolate(pictures, (SIDE, SIDE), mode="bilinear", align_corners=False).clamp(0, 1)
