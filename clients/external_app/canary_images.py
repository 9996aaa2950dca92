"""Images that carry the number of a canary, and data sets that hold such images behind a node's own examples.

An image of two pixel values spells the number in its first pixels. It can be read after any collate function, on any device, and
after any normalisation that treats all pixels of a channel alike. Augmentation of whole batches may destroy it.
"""

import functools
import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Dataset

from attacks.dp_audit.placed_canaries import NO_CANARY

NUMBER_BITS, TAG_BITS = 14, 24
PIXELS = 2 + NUMBER_BITS + TAG_BITS
"""Pixels that spell a number: one of each value, the number, and a digest of it that real images have by chance once in 2^24."""
MOST_CANARIES = 2**NUMBER_BITS
MOST_CHANNELS = 4


def spelling(number: int) -> Tensor:
    """Which of the two pixel values each of the first pixels has: (PIXELS,), bool."""
    tag = int.from_bytes(hashlib.blake2b(b"canary %d" % number, digest_size=TAG_BITS // 8).digest(), "big")
    text = f"01{number:0{NUMBER_BITS}b}{tag:0{TAG_BITS}b}"
    return torch.tensor([bit == "1" for bit in text])


@functools.lru_cache(maxsize=8)
def _spellings(count: int) -> Tensor:
    return torch.stack([spelling(number) for number in range(count)])


def spelled(like: Tensor, number: int) -> Tensor:
    """An image of the shape, type and range of ``like`` that carries a number.

    Args:
        like: An image (C, H, W), (H, W, C) or (H, W), or a vector; a channel has at least ``PIXELS`` pixels.
        number: In [0, ``MOST_CANARIES``).
    """
    low, high = like.amin(), like.amax()
    if low == high:
        high = low + 1
    channels_last = like.ndim == 3 and like.shape[-1] <= MOST_CHANNELS < like.shape[0]
    place = like.movedim(-1, 0) if channels_last else like
    plane = place.shape[1:] if place.ndim == 3 else place.shape
    bits = spelling(number).repeat(-(-plane.numel() // PIXELS))[: plane.numel()].view(plane).to(like.device)
    filled = torch.where(bits, high, low).expand(place.shape)
    return (filled.movedim(0, -1) if channels_last else filled).contiguous()


def numbers_in(inputs: Tensor, count: int) -> Tensor:
    """The number of the canary that each input carries, or ``NO_CANARY``: (B,) int64, on the CPU.

    Inputs (B, ...) have channels before pixels, as a model receives them. Numbers below ``count`` are recognised.
    """
    unmarked = torch.full((len(inputs),), NO_CANARY, dtype=torch.long)
    if not len(inputs) or inputs[0].numel() < PIXELS:
        return unmarked
    plane = inputs.detach().flatten(1)[:, :PIXELS].cpu()
    low, high = plane[:, :1], plane[:, 1:2]
    bits = plane == high
    numbers = (bits[:, 2 : 2 + NUMBER_BITS] * (2 ** torch.arange(NUMBER_BITS - 1, -1, -1))).sum(1)
    two = ((plane == low) | (plane == high)).all(1) & (numbers < count)
    right = (_spellings(count)[numbers.clamp(max=count - 1)] == bits).all(1)
    return torch.where(two & right, numbers, unmarked)


class CanaryDataset(Dataset[Any]):
    """A node's own examples, and behind them canaries: copies of its first example, each with an image that carries a number.

    Its items are mappings, tuples or lists, in which the first tensor of at least ``PIXELS`` values is the image.
    """

    def __init__(self, own: Any, numbers: Sequence[int]) -> None:
        self._own, self._numbers = own, list(numbers)
        with_image(own[0], lambda image: image)

    def __len__(self) -> int:
        return len(self._own) + len(self._numbers)

    def __getitem__(self, index: int) -> Any:
        at = index + len(self) if index < 0 else index
        if at < len(self._own):
            return self._own[at]
        number = self._numbers[at - len(self._own)]  # IndexError past the end, as of a list
        return with_image(self._own[0], lambda image: spelled(image, number))


def with_image(item: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """An item whose image is changed.

    Raises:
        TypeError: When the item holds no image as a tensor.
    """
    pairs: list[tuple[Any, Any]] = []
    if isinstance(item, Mapping):
        pairs = list(item.items())
    elif isinstance(item, list | tuple):
        pairs = list(enumerate(item))
    image = next((key for key, part in pairs if isinstance(part, Tensor) and part.numel() >= PIXELS), None)
    if image is None:
        held = ", ".join(type(part).__name__ for _, part in pairs) or type(item).__name__
        raise TypeError(
            f"with_canaries: an example holds {held}; expected a mapping, tuple or list with an image as a tensor of at least "
            f"{PIXELS} pixels"
        )
    changed = [change(part) if key == image else part for key, part in pairs]
    if isinstance(item, Mapping):
        return dict(zip(item, changed, strict=True))
    return item._make(changed) if hasattr(item, "_make") else type(item)(changed)
