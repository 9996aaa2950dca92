"""Check from shapes alone that a model fits into memory, before any of its numbers is made."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import nn

from clients.models.library import ModelError, Shape
from clients.process.machine import memory_of_machine

FLOAT_BYTES = 4
HELD = 3
"""A client that trains holds the weights it was sent, those it trains, and their gradients."""
USUAL_VALUES, USUAL_WIDTH, USUAL_DEPTH = 3 * 256 * 256, 1024, 24
"""Of an image's values, a model's width and its blocks: up to these any model of ours is built and tried within a gibibyte."""


class TooLargeError(ModelError):
    """A model, or a batch of images, that this machine cannot hold."""


def is_usual(shape: Sequence[int], width: int, depth: int = 0) -> bool:
    """Whether a model of these sizes needs no such check; the check makes torch load modules for seconds."""
    return math.prod(shape) <= USUAL_VALUES and width <= USUAL_WIDTH and depth <= USUAL_DEPTH


def require_fits(
    build: Callable[[], Sequence[nn.Module]], model: str, shape: Shape, image_size: int, batch_size: int, width: int, depth: int = 0
) -> None:  # fmt: skip
    """Raise ``TooLargeError`` for a model, whose trained modules ``build`` makes, or a batch too large for this machine."""
    if is_usual(shape, width, depth):
        return
    try:
        with torch.device("meta"):
            parameters = sum(one.numel() for module in build() for one in module.parameters())
    except Exception:
        # Of models that read their own numbers while they are built, and of those that are refused elsewhere.
        parameters = 0
    batch = batch_size * math.prod(shape)
    needed, there = FLOAT_BYTES * (HELD * parameters + batch), memory_of_machine()
    if needed > there:
        raise TooLargeError(
            f"image-size is {image_size}, width is {width}, batch-size is {batch_size}: {model!r} has "
            f"{parameters:,} parameters on images of {shape[1]}x{shape[2]}, and to hold them and a batch takes "
            f"{needed / 2**30:.1f} GiB; this machine has {there / 2**30:.1f} GiB in all. Lower image-size, width or batch-size"
        )
