"""The patch embedding of a vision transformer with the position embedding behind it, found by running the network."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.exact.linear_layer import random_images
from attacks.observations import AttackError
from defenses.module_calls import calls_of

BATCH = 2
"""Number of images by which layers are found: a batch statistic of one 1 x 1 map is undefined."""
SAME = 1e-3
"""Largest difference between two gradients, in units of their length, at which they are the same up to rounding."""


@dataclass(frozen=True)
class PatchEmbedding:
    """A layer e_t = W x_t (+ b) of each patch x_t, to which row ``first`` + t of a trained parameter is added.

    The gradient by that row is then the gradient by e_t, whatever the network does with the sum.

    Attributes:
        name: Of the layer's module.
        module: It, an ``nn.Conv2d`` or an ``nn.Linear``.
        positions: Name of the parameter.
        first: Row of the first patch; rows before it belong to class tokens.
        columns: The parameter is (..., D, T) rather than (..., T, D); a convolution's map (D, h, w) is such a one.
        pixels: (T, P) int64, the pixel of the flattened image (C, H, W) that is at each place of each patch, from 1; 0: padding.
        count: C * H * W.
        width: D, the size of a token.
        output: Shape of the layer's output for one image: (1, D, h, w) or (1, T, D).
    """

    name: str
    module: nn.Module
    positions: str
    first: int
    columns: bool
    pixels: Tensor
    count: int
    width: int
    output: tuple[int, ...]

    @property
    def weight(self) -> str:
        """Name of W."""
        return f"{self.name}.weight".lstrip(".")

    def slopes(self, gradient: Tensor) -> Tensor:
        """dL/de_t (T, D) of the gradient by the position embedding, in double precision on the CPU."""
        rows = _rows(gradient.double().cpu(), self.width, self.columns)
        return rows[self.first : self.first + len(self.pixels)]

    def signals(self, slopes: Tensor) -> Tensor:
        """dL/de_t (T, D) in the shape of the layer's output for one image."""
        return (slopes.T if len(self.output) == 4 else slopes).reshape(self.output)

    def image(self, patches: Tensor) -> Tensor:
        """The flattened image (1, C * H * W) of patches (T, P): the mean where patches overlap, 0 where none is."""
        places, size = self.pixels.flatten(), self.count + 1
        sums = patches.new_zeros(size).index_add(0, places, patches.flatten())
        counts = patches.new_zeros(size).index_add(0, places, torch.ones_like(patches).flatten())
        return (sums / counts.clamp_min(1))[None, 1:]


def patch_embedding(model: nn.Module, input_shape: tuple[int, int, int], like: Tensor) -> PatchEmbedding:
    """Find the patch embedding of a model from ``attackable``, which is left as it is; ``like`` has its device and dtype.

    A layer counts that sees pixels, patch by patch, and whose outputs have the same gradient as rows of one trained parameter.

    Raises:
        AttackError: When there is none; the message says what is missing.
    """
    probed = _with_slopes(model)
    layers = (nn.Conv2d, nn.Linear)
    names: dict[nn.Module, str] = {one: name for name, one in probed.named_modules() if isinstance(one, layers)}
    patches = _patches(probed, names, input_shape, like)
    if not patches:
        raise AttackError(f"does not apply: no layer of {type(model).__name__} sees patches of the image's pixels")
    trained = {name: value for name, value in probed.named_parameters() if value.requires_grad}
    with torch.enable_grad(), calls_of(one for one, name in names.items() if name in patches) as seen:
        logits = probed(random_images(input_shape, like)[:BATCH].requires_grad_())
        weights = torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype, device=logits.device)
        wanted = [*(out for _, _, out in seen), *trained.values()]
        slopes = torch.autograd.grad((logits.flatten() * weights).sum(), wanted, allow_unused=True)
    of_parameters = dict(zip(trained, slopes[len(seen) :], strict=True))
    for (module, _, out), slope in zip(seen, slopes[: len(seen)], strict=True):
        weight: Any = module.weight
        name, width = names[module], int(weight.shape[0])
        if slope is None or len(patches[name]) * width != slope[0].numel():
            continue
        for positions, first, columns in _equal_rows(_rows(slope.sum(0), width, slope.dim() == 4), of_parameters):
            shape, count = (1, *out.shape[1:]), math.prod(input_shape)
            layer = model.get_submodule(name)
            return PatchEmbedding(name, layer, positions, first, columns, patches[name], count, width, shape)
    raise AttackError(
        f"does not apply: no trained position embedding of {type(model).__name__} is added to the output of "
        f"{' or '.join(map(repr, patches))}, which sees the pixels"
    )


def _with_slopes(model: nn.Module) -> nn.Module:
    """A copy without parameters that are all zero: behind a head or a scale of zeros every gradient would be zero."""
    probed = copy.deepcopy(model)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for value in probed.parameters():
            if value.is_floating_point() and not value.any():
                value.copy_(0.05 * torch.randn(value.shape, generator=generator))
    return probed


def _patches(
    model: nn.Module, names: Mapping[nn.Module, str], input_shape: tuple[int, int, int], like: Tensor
) -> dict[str, Tensor]:
    """Layers that see pixels, and are called once: name -> ``PatchEmbedding.pixels``."""
    count = math.prod(input_shape)
    numbers = 1 + torch.arange(count, device=like.device, dtype=like.dtype)
    with torch.no_grad(), calls_of(names) as seen:
        model(numbers.view(1, *input_shape).repeat(BATCH, 1, 1, 1))
    calls = Counter(module for module, _, _ in seen)
    found = {names[one]: _pixels(one, into[:1], count) for one, into, _ in seen if calls[one] == 1}
    return {name: pixels.cpu() for name, pixels in found.items() if pixels is not None}


def _pixels(module: nn.Module, into: Tensor, count: int) -> Tensor | None:
    """The pixel (T, P) at each place of each patch, where an input (1, ...) holds numbers of ``count`` pixels; else None."""
    if isinstance(module, nn.Conv2d):
        padding = (0, 0) if module.padding == "valid" else module.padding
        if into.dim() != 4 or module.groups != 1 or module.padding_mode != "zeros" or isinstance(padding, str):
            return None
        # A convolution's input must be the image itself, in its order.
        if not torch.equal(into.flatten(), 1 + torch.arange(count, device=into.device, dtype=into.dtype)):
            return None
        sizes: Any = module.kernel_size, module.dilation, padding, module.stride
        return F.unfold(into.double(), *sizes)[0].T.round().long()
    if into.dim() != 3:
        return None
    numbers = into[0].double().round()
    if not torch.equal(numbers, into[0].double()) or numbers.min() < 0 or not 1 <= numbers.max() <= count:
        return None
    return numbers.long()


def _rows(gradient: Tensor, width: int, columns: bool) -> Tensor:
    """(R, D) of a tensor (..., D, R) or (..., R, D) with nothing but ones in front."""
    return gradient.reshape(width, -1).T if columns else gradient.reshape(-1, width)


def _equal_rows(slopes: Tensor, gradients: Mapping[str, Tensor | None]) -> Iterator[tuple[str, int, bool]]:
    """The parameters that have all of ``slopes`` (T, D) as consecutive rows: name, first row, and whether they are columns."""
    tokens, width = slopes.shape
    length = float(slopes.norm())
    for name, gradient in gradients.items():
        shape = [] if gradient is None else [size for size in gradient.shape if size != 1]
        for columns in (False, True):
            if gradient is None or not shape or shape[0 if columns else -1] != width:
                continue
            rows = _rows(gradient, width, columns)
            for first in range(len(rows) - tokens + 1):
                if float((rows[first : first + tokens] - slopes).norm()) < SAME * length:
                    yield name, first, columns
