"""Pure tensor arithmetic that several defences share: maps of updates, clipping factors, and noise from a CPU generator."""

import torch
from torch import Tensor

from defenses.base import DefenseError
from defenses.tensors import Shape, TensorMap, Update


def map_update(function: TensorMap, update: Update) -> Update:
    """Applies ``function`` to every tensor of an update and keeps the update's order of names.

    Tensors are visited in sorted order of their names, so that what a random stream gives to a parameter does not
    depend on the order in which a client happens to build its dictionary.

    Raises:
        DefenseError: When a tensor is not floating-point; counters of steps or batches are no part of an update.
    """
    if wrong := [f"{name!r} ({tensor.dtype})" for name, tensor in update.items() if not tensor.is_floating_point()]:
        raise DefenseError(
            f"an update holds floating-point tensors only, got {', '.join(wrong)}; leave these out of it"
        )
    protected = {name: function(update[name]) for name in sorted(update)}
    return {name: protected[name] for name in update}


def gaussian_like(tensor: Tensor, std: float, generator: torch.Generator) -> Tensor:
    """Independent N(0, std^2) entries with the shape, dtype and device of ``tensor``, drawn on the CPU."""
    noise = torch.randn(tensor.shape, generator=generator, dtype=_draw_dtype(tensor))
    return (std * noise).to(tensor.device, tensor.dtype)


def laplace_like(tensor: Tensor, scale: float, generator: torch.Generator) -> Tensor:
    """Independent Laplace(0, scale) entries (standard deviation sqrt(2) * scale), else as ``gaussian_like``."""
    # The difference of two exponentials is Laplace, and unlike -sign(u) log(1 - 2|u|) it is finite for every draw.
    first, second = (
        torch.empty(tensor.shape, dtype=_draw_dtype(tensor)).exponential_(generator=generator) for _ in "ab"
    )
    return (scale * (first - second)).to(tensor.device, tensor.dtype)


def random_signs(shape: torch.Size | Shape, generator: torch.Generator) -> Tensor:
    """Independent fair signs -1.0 or 1.0, float32 on the CPU."""
    return torch.randint(0, 2, shape, generator=generator).float() * 2 - 1


def clip_factors(lengths: Tensor, most: float | Tensor) -> Tensor:
    """Factors min(1, most / length) for vectors of these lengths, (B,) -> (B,).

    The factor is 0 where a length is not finite, or so large that the factor would have no digits left. The caller must then count
    the whole vector as zero: 0 times an infinite entry is no number.
    """
    factors = most / lengths.clamp(min=most)
    return torch.where(factors >= torch.finfo(factors.dtype).tiny, factors, 0.0)


def widened(tensor: Tensor) -> Tensor:
    """The same values in float32, or unchanged if float64: 16-bit sums of squares overflow or round away."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()


def _draw_dtype(tensor: Tensor) -> torch.dtype:
    # Half precision cannot hold the tails of the draw; it is rounded after scaling instead.
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32
