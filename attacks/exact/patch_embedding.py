"""The patch embedding of a vision transformer with the position embedding behind it, found by running the network."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.exact.linear_layer import PROBES, random_images
from attacks.observations import AttackError
from defenses.module_calls import calls_of

SAME = 1e-3
"""Largest difference between two gradients, in units of the larger one's length, at which they are the same up to rounding."""


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

    A layer counts that sees pixels, patch by patch, and whose outputs have the same gradient as rows of one parameter.

    Raises:
        AttackError: When there is none; the message says what is missing.
    """
    probed = _with_slopes(model)
    names = {one: name for name, one in probed.named_modules() if isinstance(one, nn.Conv2d | nn.Linear)}
    numbered = 1 + torch.arange(input_shape[0] * input_shape[1] * input_shape[2], device=like.device, dtype=like.dtype)
    with torch.no_grad(), calls_of(names) as seen:
        # Two images, as for batch statistics; the pixels' values are their numbers.
        probed(numbered.view(1, *input_shape).repeat(2, 1, 1, 1))
    patches = {names[one]: _pixels(one, into[:1], numbered.numel()) for one, into, _ in _called_once(seen)}
    found = {name: pixels.cpu() for name, pixels in patches.items() if pixels is not None}
    kind = type(model).__name__
    if not found:
        raise AttackError(f"does not apply: no layer of {kind} sees patches of the image's pixels")
    trained = {name: value for name, value in probed.named_parameters() if value.requires_grad}
    with torch.enable_grad(), calls_of(one for one, name in names.items() if name in found) as seen:
        logits = probed(random_images(input_shape, like)[: max(2, PROBES // 8)].requires_grad_())
        outputs = [out for _, _, out in seen]
        weights = torch.linspace(-1, 2, logits.numel(), dtype=logits.dtype, device=logits.device)
        wanted = torch.autograd.grad(
            (logits.flatten() * weights).sum(), [*outputs, *trained.values()], allow_unused=True
        )
    by_parameter = [(name, slope) for name, slope in zip(trained, wanted[len(outputs) :], strict=True)]
    for (module, _, out), slope in zip(seen, wanted[: len(outputs)], strict=True):
        name = names[module]
        if slope is None or len(found[name]) != slope[0].numel() // module.weight.shape[0]:
            continue
        width = module.weight.shape[0]
        slopes = _rows(slope.sum(0), width, columns=slope.dim() == 4)
        for positions, first, columns in _equal_rows(slopes, by_parameter):
            layer = model.get_submodule(name)
            shape, count = (1, *out.shape[1:]), numbered.numel()
            return PatchEmbedding(name, layer, positions, first, columns, found[name], count, width, shape)
    raise AttackError(
        f"does not apply: no trained position embedding of {kind} is added to the output of {' or '.join(map(repr, found))}, which "
        "sees the pixels"
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


def _called_once(seen: list[Any]) -> list[Any]:
    counts: dict[nn.Module, int] = {}
    for module, _, _ in seen:
        counts[module] = counts.get(module, 0) + 1
    return [call for call in seen if counts[call[0]] == 1]


def _pixels(module: nn.Module, into: Tensor, count: int) -> Tensor | None:
    """Which pixel (T, P) the layer sees where, of an input (1, ...) that holds numbers of ``count`` pixels; None for other inputs."""
    if isinstance(module, nn.Conv2d):
        # A convolution's input is the image itself, in its order.
        padding = (0, 0) if module.padding == "valid" else module.padding
        if into.dim() != 4 or module.groups != 1 or module.padding_mode != "zeros" or isinstance(padding, str):
            return None
        if not torch.equal(into.flatten(), 1 + torch.arange(into.numel(), device=into.device, dtype=into.dtype)):
            return None
        patches = F.unfold(
            into.double(),
            module.kernel_size,
            module.dilation,
            padding,
            module.stride,  # type: ignore[arg-type]
        )[0].T
    else:
        if into.dim() != 3:
            return None
        patches = into[0].double()
    numbers = patches.round()
    if not torch.equal(numbers, patches) or numbers.min() < 0 or not 1 <= numbers.max() <= count:
        return None
    return numbers.long()


def _rows(gradient: Tensor, width: int, columns: bool) -> Tensor:
    """(R, D) of a tensor (..., D, R) or (..., R, D) with nothing but ones in front."""
    return gradient.reshape(width, -1).T if columns else gradient.reshape(-1, width)


def _equal_rows(slopes: Tensor, parameters: list[tuple[str, Tensor | None]]) -> Iterator[tuple[str, int, bool]]:
    """The parameters that have all of ``slopes`` (T, D) as consecutive rows: name, first row, and whether they are columns."""
    tokens, width = slopes.shape
    least = SAME * slopes.norm()
    for name, gradient in parameters:
        if gradient is None or gradient.numel() % width or gradient.numel() < slopes.numel() or not least > 0:
            continue
        shape = [size for size in gradient.shape if size != 1]
        for columns in (False, True):
            if not shape or shape[0 if columns else -1] != width:
                continue
            rows = _rows(gradient, width, columns)
            for first in range(len(rows) - tokens + 1):
                if (rows[first : first + tokens] - slopes).norm() < least:
                    yield name, first, columns
