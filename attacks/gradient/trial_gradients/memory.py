"""Memory of a gradient inversion: how many trials fit, estimated before it starts, and halved where memory runs out."""

import contextlib
import copy
import ctypes
import math
from collections.abc import Callable, Sequence
from typing import TypeVar

import psutil
import torch
from torch import Tensor, nn

from attacks.observations import AttackError
from defenses.module_calls import calls_of
from defenses.tensors import ImageShape

Trial = TypeVar("Trial")
End = TypeVar("End")

FLOAT_BYTES = 4
ACTIVATION_COPIES = 10
"""The second derivative keeps a layer's output, its gradient, and what both are made of, forwards and backwards."""
WEIGHT_COPIES = 8
"""Observed and dummy gradient, each by name and as one vector; moved weights, the gradient of the cost, and temporaries."""


LARGE_IMAGE = 3 * 512 * 512
"""Values of an image from which on only its shapes are passed on: the meta device takes seconds to load, but holds no memory."""


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
"""Numbers of glibc's malloc.h."""


def trial_bytes(model: nn.Module, input_shape: ImageShape, images: int) -> int:
    """Estimate the bytes that one trial of so many float32 images holds at once, within a small factor.

        bytes = 4 * (10 * images * A + 8 * P)

    where A is the number of values that the leaf modules of the model output for one image, and P that of its weights. One image
    passes through a copy of the model; of a large image, only the shape.
    """
    weights = sum(parameter.numel() for parameter in model.parameters())
    return FLOAT_BYTES * (ACTIVATION_COPIES * images * _activations(model, input_shape) + WEIGHT_COPIES * weights)


def _activations(model: nn.Module, input_shape: ImageShape) -> int:
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
    with torch.no_grad(), calls_of(module for module in model.modules() if not any(module.children())) as calls:
        # In train mode, BatchNorm refuses one value per channel.
        model.eval()(image)
    outputs = [part for _, _, output in calls for part in (output if isinstance(output, tuple) else (output,))]
    return image.numel() + sum(output.numel() for output in outputs if torch.is_tensor(output))


def fitting_trials(model: nn.Module, input_shape: ImageShape, images: int) -> int:
    """Estimate by ``trial_bytes`` how many trials fit into the free memory of the model's device."""
    free = free_bytes(next(model.parameters()).device)
    needed = trial_bytes(model, input_shape, images)
    if needed > free:
        size = "x".join(map(str, input_shape))
        raise AttackError(
            f"one trial of {images} dummy images of {size} would need about {needed / 1e9:.1f} GB, and {free / 1e9:.1f} GB "
            "are free; lower its max_images"
        )
    return free // needed


def free_bytes(device: torch.device) -> int:
    """Bytes that new tensors on a device may take, with those that torch keeps on a card for this process and does not use."""
    card = torch.get_device_module(device)
    if device.type == "cpu" or not hasattr(card, "mem_get_info"):  # as of a device that shares the host's memory
        return psutil.virtual_memory().available
    free: int = card.mem_get_info(device)[0] + card.memory_reserved(device) - card.memory_allocated(device)
    return free


def keep_freed_memory() -> None:
    """Let this process reuse large blocks of memory instead of returning them to the system.

    An evaluation allocates and frees the same blocks thousands of times, and the system hands each of them out page by page, which
    costs about a fifth of the time. For processes that do nothing but attack; without effect where the C library is not glibc.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        for parameter, value in ((M_MMAP_THRESHOLD, 2**30), (M_TRIM_THRESHOLD, 2**31 - 1)):
            mallopt(parameter, value)


def in_chunks(run: Callable[[Sequence[Trial]], End], trials: Sequence[Trial], chunk: int) -> list[End]:
    """Results for consecutive parts of ``trials``, of at most ``chunk`` each and fewer where memory runs out."""
    ends: list[End] = []
    done = 0
    while done < len(trials):
        some = trials[done : done + chunk]
        try:
            ends.append(run(some))
            done += len(some)
            continue
        except RuntimeError as error:
            if not is_out_of_memory(error):
                raise
            reason = str(error).splitlines()[0][:200]
        # Behind the except block, because the error keeps all tensors of the failed try alive.
        if len(some) == 1:
            raise AttackError(f"out of memory with a single trial in memory: {reason}")
        chunk = len(some) // 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return ends


def is_out_of_memory(error: RuntimeError) -> bool:
    """Whether an error means lack of memory: accelerators raise their own class, the CPU's allocator a plain RuntimeError."""
    messages = ("out of memory", "not enough memory", "can't allocate memory")
    return isinstance(error, torch.OutOfMemoryError) or any(words in str(error).lower() for words in messages)
