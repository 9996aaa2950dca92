"""Scenes to detect garments in: Fashion-MNIST's garments on photographs, with boxes that are exactly the garments' visible pixels.

The parts of a study share neither a garment nor a pixel of a photograph. Imported by ``vm_detection.py``; prints nothing by itself.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from clients.data.images import ImageData, to_float
from clients.data.packaged import PHOTOS, photograph

PARTS = ("train", "auxiliary", "validation", "test")
"""Scenes of the clients, of the server, to choose a confidence on, and to be judged on; of each photograph a quarter each."""
MOST = 4
"""Garments of a scene."""
SIDES = (0.2, 0.45)
"""Longest side of a garment, as a share of the scene's."""
VISIBLE = 8 / 255
"""Level above which a pixel of Fashion-MNIST is garment: below is what is left of its background."""
DARKEST = 0.4
"""Of the random colour that a garment gets: a grey one would be told from a photograph by that alone."""
SHARED = 0.1
"""Most that two garments' boxes share, of the smaller one."""
TRIES = 50
"""Places that are tried for a garment; a scene in which none is free holds fewer garments."""
CROP = 120
"""Shortest side in pixels of what a background shows of a photograph."""


@dataclass(frozen=True)
class Scenes:
    """Images with what they show.

    Attributes:
        images: (N, 3, S, S) in [0, 1].
        boxes: Of each image (n, 4), float: left, top, right, bottom in pixels, the last two just outside.
        labels: Of each image (n,), int64, from 1; 0 is the background.
    """

    images: Tensor
    boxes: tuple[Tensor, ...]
    labels: tuple[Tensor, ...]

    def __len__(self) -> int:
        return len(self.images)

    @property
    def num_objects(self) -> int:
        """Garments in all scenes."""
        return sum(map(len, self.labels))


def compose(count: int, size: int, garments: ImageData, rows: Tensor, part: str, stream: torch.Generator) -> Scenes:
    """Scenes of 1 to ``MOST`` garments.

    Args:
        count: Scenes, N.
        size: Their side, S, in pixels.
        garments: Fashion-MNIST's images.
        rows: Which of them may be used, (M,).
        part: One of ``PARTS``: whose quarter of each photograph may be seen.
        stream: CPU generator of all draws.
    """
    images, boxes, labels = [], [], []
    for _ in range(count):
        number = int(torch.randint(1, MOST + 1, (), generator=stream))
        chosen = rows[torch.randint(len(rows), (number,), generator=stream)]
        crops = list(to_float(garments.images[chosen])[:, 0])
        scene, owner = paste(background(part, size, stream), crops, stream)
        seen = [at for at in range(number) if (owner == at).any()]
        images.append(scene)
        boxes.append(tight_boxes(owner, seen))
        labels.append(garments.labels[chosen][seen] + 1)
    return Scenes(torch.stack(images), tuple(boxes), tuple(labels))


def paste(scene: Tensor, crops: Sequence[Tensor], stream: torch.Generator) -> tuple[Tensor, Tensor]:
    """Puts garments (h, w) in [0, 1] on a background (3, S, S): each at a random scale and place, in a random colour.

    Returns:
        The scene (3, S, S), and whose pixel each is: (S, S) int64, the number of a garment, or -1 for the background.
    """
    size = scene.shape[-1]
    scene, owner = scene.clone(), torch.full((size, size), -1)
    taken: list[tuple[int, int, int, int]] = []
    for number, crop in enumerate(crops):
        low, high = (math.log(share * size) for share in SIDES)
        side = math.exp(low + (high - low) * float(torch.rand((), generator=stream)))
        grey, mask = scaled(crop, side)
        colour = DARKEST + (1 - DARKEST) * torch.rand(3, 1, 1, generator=stream)
        box = _free_place(mask.shape[0], mask.shape[1], size, taken, stream)
        if box is None:
            continue
        taken.append(box)
        left, top, right, bottom = box
        scene[:, top:bottom, left:right] = torch.where(mask, colour * grey, scene[:, top:bottom, left:right])
        owner[top:bottom, left:right][mask] = number
    return scene, owner


def scaled(crop: Tensor, side: float) -> tuple[Tensor, Tensor]:
    """A garment (h, w) cut to what is visible of it and scaled so that its longest side has ``side`` pixels: grey values, mask."""
    visible = crop > VISIBLE
    rows, columns = (visible.any(axis).nonzero().flatten() for axis in (1, 0))
    cut = (slice(int(rows[0]), int(rows[-1]) + 1), slice(int(columns[0]), int(columns[-1]) + 1))
    layers = torch.stack([crop[cut], visible[cut].float()])[None]
    shape = [max(2, round(side * length / max(layers.shape[-2:]))) for length in layers.shape[-2:]]
    grey, share = F.interpolate(layers, shape, mode="bilinear", antialias=True)[0]
    return grey, share >= 0.5


def tight_boxes(owner: Tensor, numbers: Sequence[int]) -> Tensor:
    """Boxes (n, 4) around all pixels of each garment in a map (S, S) of owners: left, top, right, bottom, the last two outside."""
    found = []
    for number in numbers:
        down, across = (owner == number).nonzero().unbind(1)
        found.append(torch.stack([across.min(), down.min(), across.max() + 1, down.max() + 1]))
    return torch.stack(found).float() if found else torch.zeros(0, 4)


def background(part: str, size: int, stream: torch.Generator) -> Tensor:
    """A square of a random photograph's quarter, (3, size, size); quarters take turns, so that parts see the same photographs."""
    number = int(torch.randint(len(PHOTOS), (), generator=stream))
    photo = _photo(list(PHOTOS)[number])
    height, width = (length // 2 for length in photo.shape[1:])
    down, across = divmod((PARTS.index(part) + number) % len(PARTS), 2)
    quarter = photo[:, down * height : (down + 1) * height, across * width : (across + 1) * width]
    most = min(height, width)
    side = int(torch.randint(min(CROP, most), most + 1, (), generator=stream))
    top, left = (int(torch.randint(length - side + 1, (), generator=stream)) for length in (height, width))
    square = quarter[:, top : top + side, left : left + side]
    return F.interpolate(square[None], (size, size), mode="bilinear", antialias=True)[0].clamp(0, 1)


@functools.cache
def _photo(name: str) -> Tensor:
    """A photograph of the ``photos`` data set before it is cut into tiles, (3, H, W) in [0, 1]."""
    pixels = torch.from_numpy(photograph(name).copy())
    return to_float(pixels.permute(2, 0, 1))


def _free_place(
    height: int, width: int, size: int, taken: Sequence[tuple[int, int, int, int]], stream: torch.Generator
) -> tuple[int, int, int, int] | None:
    """A place for a box of this size that shares little with those that are taken; None when none was found."""
    for _ in range(TRIES):
        top, left = (int(torch.randint(size - length + 1, (), generator=stream)) for length in (height, width))
        box = (left, top, left + width, top + height)
        if all(_shared(box, other) <= SHARED for other in taken):
            return box
    return None


def _shared(one: tuple[int, int, int, int], other: tuple[int, int, int, int]) -> float:
    """Area that two boxes share, over that of the smaller."""
    across, down = (min(one[at + 2], other[at + 2]) - max(one[at], other[at]) for at in (0, 1))
    smaller = min((box[2] - box[0]) * (box[3] - box[1]) for box in (one, other))
    return max(across, 0) * max(down, 0) / smaller
