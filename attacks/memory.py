"""How much memory one trial of a gradient inversion takes, estimated before it starts."""

from __future__ import annotations

import copy
import math

import torch
from torch import Tensor, nn

FLOAT_BYTES = 4

ACTIVATION_COPIES = 10
"""The second derivative keeps a layer's output, its gradient, and what both are made of, forwards and backwards."""

WEIGHT_COPIES = 4
"""Observed gradient, dummy gradient, their difference, and one temporary."""


LARGE_IMAGE = 3 * 512 * 512
"""Values of an image from which on only its shapes are passed on: the meta device takes seconds to load, but holds no memory."""


def trial_bytes(model: nn.Module, input_shape: tuple[int, int, int], images: int, num_parameters: int) -> int:
    """A rough count of the bytes that one trial (one start of one target) holds at once; right within a small factor.

        bytes = 4 * (10 * images * A + 4 * num_parameters)

    where A is the number of values that the leaf modules of the model output for one image.

    Args:
        model: The attacked model; left as it is. One image passes through a copy of it; of a large image, only the shape.
        input_shape: (C, H, W) of one image.
        images: Dummy images of the trial.
        num_parameters: Weights of the model.

    Returns:
        The estimate, for float32.
    """
    return FLOAT_BYTES * (
        ACTIVATION_COPIES * images * _activations(model, input_shape) + WEIGHT_COPIES * num_parameters
    )


def _activations(model: nn.Module, input_shape: tuple[int, int, int]) -> int:
    """Values that the leaf modules output for one image, and the image itself."""
    private = copy.deepcopy(model)
    if math.prod(input_shape) > LARGE_IMAGE:
        try:
            return _count(private.to("meta"), torch.zeros(1, *input_shape, device="meta"))
        except (RuntimeError, NotImplementedError):
            # A forward pass that reads values has no shapes to give without them.
            private = copy.deepcopy(model)
    return _count(private, torch.zeros(1, *input_shape).to(next(model.parameters())))


def _count(model: nn.Module, image: Tensor) -> int:
    found = [image.numel()]

    def record(_: nn.Module, __: object, output: object) -> None:
        found.extend(
            value.numel() for value in (output if isinstance(output, tuple) else (output,)) if torch.is_tensor(value)
        )

    for module in model.modules():
        if not any(module.children()):
            module.register_forward_hook(record)
    with torch.no_grad():
        # In train mode, BatchNorm refuses one value per channel.
        model.eval()(image)
    return sum(found)
