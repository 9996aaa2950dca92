"""Recognise a client's own images among those that its training saw, by ``PROJECTIONS`` numbers of each."""

import functools
import math
from typing import Any

import numpy as np
import torch
from flwr.app import Context
from numpy.typing import NDArray
from torch import Tensor

from clients.wire.records import to_tensors
from defenses.random_draws import generator_for

SAW = "fedveil-last-images"
"""Record of a context's state: the projections of the images that the last training saw."""
PROJECTIONS = 8
AT_ONCE = 2**22
"""Values of images that are projected at once."""
ALIKE = 1e-3
"""Largest distance between projections of one image, over their length or 1: numbers of 16 bits round less."""


def is_images(value: Any) -> bool:
    """Whether a model's argument is a batch of images (B, C, H, W): of features between layers a gradient is wanted."""
    if not isinstance(value, Tensor) or value.is_nested or value.layout is not torch.strided:
        return False
    batch = value.dim() == 4 and value.is_floating_point() and not value.requires_grad
    # One image of a batch that is mapped over holds no numbers of its own.
    return batch and not torch._C._functorch.is_functorch_wrapped_tensor(value)


@functools.lru_cache(maxsize=2)
def _directions(size: int) -> NDArray[np.float64]:
    generator = generator_for("recognise images", size)
    drawn = torch.randn(size, PROJECTIONS, generator=generator, dtype=torch.float64, device="cpu")
    return drawn.numpy() / math.sqrt(size)


def projected(images: Tensor) -> Tensor:
    """Images (N, C, H, W) as (N, PROJECTIONS) float64: the same image gives the same numbers, up to rounding."""
    flat = images.flatten(1)
    directions = _directions(flat.shape[1])
    # By numpy, as the app's own modes of torch may count or change what torch computes.
    parts = torch.split(flat, max(1, AT_ONCE // flat.shape[1]))
    return torch.from_numpy(np.concatenate([part.cpu().double().numpy() @ directions for part in parts]))


def recognised(context: Context, own: Tensor) -> tuple[int, int]:
    """How many images that the last training saw are among ``own`` (N, C, H, W), as the model takes them, and of how many."""
    record: Any = context.state.get(SAW)
    if record is None:
        return 0, 0
    seen, known = to_tensors(record)["images"], projected(own)
    near = torch.cat([torch.cdist(part, known).amin(1) for part in torch.split(seen, 256)])
    return int((near <= ALIKE * seen.norm(dim=1).clamp(min=1)).sum()), len(seen)
