"""Gradients per example of one call of a layer, from its inputs and the gradients at its outputs.

Convolutions on a processor have ways of their own, chosen by their sizes alone; all other layers have those of Opacus.
"""

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from defenses.training.quiet_import import opacus_module

LEAST_PART = 1e-5
"""Of the lengths of a gradient's terms together: its own length counts as no less. Rounding in float64 is some 1e-8 of them."""

SPREAD = {("timm.models.vision_transformer", "VisionTransformer"): ("cls_token", "pos_embed", "reg_token")}
"""Module and name of a class -> weights (1, ...) of its own that it joins with a batch, so that (B, ...) may take their place."""

_ALIKE = {("timm.layers.norm", "LayerNorm"): nn.LayerNorm}
"""Module and name of a class -> the class whose function it computes."""

BLOCK = 16
"""Channels of which oneDNN takes a whole number at once."""


def example_rows(layer: Any, inputs: list[Tensor], gradients: Tensor) -> Iterator[tuple[Any, Tensor]]:
    """Trained weights of a layer and their gradients per example, (B, ...), for inputs (B, ...) and gradients (B, ...)."""
    ours = _as_they_are if type(layer) is Spread else _for_convolution(layer, gradients)
    by_functions = opacus_module("grad_sample.functorch").ft_compute_per_sample_gradient
    way = ours or _ways().get(_ALIKE.get(_name_of(layer), type(layer)), by_functions)
    if isinstance(layer, nn.Conv1d | nn.Conv2d | nn.Conv3d):  # Opacus unfolds images as if they were contiguous
        inputs, gradients = [one.contiguous() for one in inputs], gradients.contiguous()
    for weight, rows in way(layer, inputs, gradients).items():
        if weight.requires_grad:
            # What belongs to autograd, or to another weight, too, is nobody's to change.
            own = rows.untyped_storage().data_ptr() != gradients.untyped_storage().data_ptr()
            yield weight, rows if own else rows.clone()
    if ours and layer.bias is not None and layer.bias.requires_grad:
        yield layer.bias, gradients.sum((2, 3))


def _for_convolution(layer: nn.Module, gradients: Tensor) -> Any:
    """Our way for a convolution, chosen by its sizes alone; None where that of Opacus is faster, or for another layer."""
    if type(layer) is not nn.Conv2d or gradients.device.type != "cpu" or not layer.weight.requires_grad:
        return None
    if any(channels % (BLOCK * layer.groups) for channels in (layer.in_channels, layer.out_channels)):
        return _by_rows
    positions = math.prod(gradients.shape[2:])
    return _by_groups if gradients.dtype == torch.float32 and positions > layer.in_channels // layer.groups else None


class Spread(nn.Module):
    """A weight (1, ...) in whose place each example has its own copy: the gradient of a copy is that of the example."""

    def __init__(self, weight: nn.Parameter) -> None:
        super().__init__()
        self.weight, self.bias = weight, None


def spread_weights(layer: nn.Module) -> list[str]:
    """Names of the weights of a layer's own that can be spread over the examples, if these are all that it trains."""
    if not (names := SPREAD.get(_name_of(layer))) or getattr(layer, "dynamic_img_size", False):
        return []
    own = {name: weight for name, weight in layer.named_parameters(recurse=False) if weight.requires_grad}
    return [*own] if set(own) <= set(names) and all(len(weight) == 1 for weight in own.values()) else []


def is_known(layer: nn.Module) -> bool:
    """Whether there is a way for the layer's own weights; else it is differentiated as a whole, with all that is in it."""
    kind: type[nn.Module] = _ALIKE.get(_name_of(layer), type(layer))
    return kind in _ways() or bool(spread_weights(layer))


def _ways() -> dict[type[nn.Module], Any]:
    """Opacus' ways, by class of layer."""
    ways: dict[type[nn.Module], Any] = opacus_module("grad_sample").GradSampleModule.GRAD_SAMPLERS
    return ways


def _name_of(layer: nn.Module) -> tuple[str, str]:
    return type(layer).__module__, type(layer).__name__


def _as_they_are(layer: nn.Module, _: list[Tensor], gradients: Tensor) -> dict[Any, Tensor]:
    return {layer.weight: gradients.unsqueeze(1)}


def fewer_factors(layer: nn.Module, gradients: Tensor) -> bool:
    """Whether the gradient of a weight (F, A) has no fewer numbers than the T rows that it is the sum of products of."""
    if type(layer) is nn.Linear:
        positions = math.prod(gradients.shape[1:-1])
    elif type(layer) is nn.Conv2d and layer.groups == 1:
        positions = math.prod(gradients.shape[2:])
    else:
        return False
    rows, columns = layer.weight.flatten(1).shape
    return positions * (rows + columns) <= rows * columns


def factors_of(layer: Any, inputs: list[Tensor], gradients: Tensor) -> tuple[Tensor, Tensor]:
    """Rows g (B, T, F) and a (B, T, A) of a layer: the gradient of its weight is the sum of g_t a_t^T over the positions t."""
    if type(layer) is nn.Conv2d:
        images = _padded(layer, inputs[0])
        return gradients.flatten(2).mT, F.unfold(images, layer.kernel_size, layer.dilation, 0, layer.stride).mT
    g, a = (rows.reshape(len(rows), -1, rows.shape[-1]) for rows in (gradients, inputs[0]))
    return g, a


def lengths_of_products(g: Tensor, a: Tensor) -> Tensor:
    """Lengths (B,) of sums of g_t a_t^T. The squared length is the sum of (g_s g_t) (a_s a_t), which rounds if terms cancel."""
    squared = ((g @ g.mT) * (a @ a.mT)).sum((1, 2)).clamp(min=0)
    return squared.sqrt().maximum(LEAST_PART * (g.norm(dim=2) * a.norm(dim=2)).sum(1))


def sum_of_products(g: Tensor, a: Tensor, factors: Tensor) -> Tensor:
    """Sum (F, A) of g_t a_t^T over positions and examples, times the factors (B,) of these, in float64."""
    weighted = (g.double() * factors.double().view(-1, 1, 1)).flatten(0, 1)
    return weighted.mT @ a.double().flatten(0, 1)


def _padded(layer: nn.Conv2d, images: Tensor) -> Tensor:
    return F.pad(images, layer._reversed_padding_repeated_twice)


def _by_groups(layer: nn.Conv2d, inputs: list[Tensor], gradients: Tensor) -> dict[Any, Tensor]:
    """All examples as groups of one image: the gradient of its convolution is theirs, one behind the other."""
    images, count = inputs[0].to(gradients.dtype), len(gradients)
    images, padding = (_padded(layer, images), 0) if isinstance(layer.padding, str) else (images, layer.padding)
    rows = torch.ops.aten.convolution_backward(
        gradients.reshape(1, -1, *gradients.shape[2:]), images.reshape(1, -1, *images.shape[2:]),
        layer.weight[:1].expand(count * layer.out_channels, *layer.weight.shape[1:]), None, layer.stride,
        padding if padding else [0], layer.dilation, False, [0], count * layer.groups, [False, True, False],
    )[1]  # fmt: skip
    return {layer.weight: rows.view(count, *layer.weight.shape)}


def _by_rows(layer: nn.Conv2d, inputs: list[Tensor], gradients: Tensor) -> dict[Any, Tensor]:
    """A product for each row of the kernel: what it sees lies side by side once the images are unfolded along their width."""
    images, (count, _, high, wide) = _padded(layer, inputs[0].to(gradients.dtype)), gradients.shape
    (tall, broad), step, (apart, beside) = layer.kernel_size, layer.stride[0], layer.dilation
    # Rows of an image, in an order in which those that a row of the kernel sees follow each other.
    each = max(-(-images.shape[2] // step), high + (tall - 1) * apart // step)
    images = F.pad(images, (0, 0, 0, each * step - images.shape[2]))
    channels, (_, _, down, right) = layer.in_channels, images.stride()
    strides = (*images.stride()[:2], beside * right, down, step * down, layer.stride[1] * right)
    unfolded = images.as_strided((count, channels, broad, step, each, wide), strides).contiguous()
    parts, seen = count * layer.groups, channels // layer.groups * broad
    at_outputs = gradients.reshape(parts, -1, high * wide).mT
    made = images.new_empty(parts, tall, seen, at_outputs.shape[2])
    for row in range(tall):
        shift, first = divmod(row * apart, step)
        begin = (first * each + shift) * wide
        area = step * each * wide
        torch.bmm(
            unfolded.as_strided((parts, seen, high * wide), (seen * area, area, 1), begin), at_outputs, out=made[:, row]
        )
    rows = made.view(count, layer.groups, tall, -1, broad, at_outputs.shape[2]).permute(0, 1, 5, 3, 2, 4)
    return {layer.weight: rows.flatten(1, 2)}
