"""The gradients of single examples by the parameters of one layer, from what went in and what came back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from simulations.search.gradients.folding import FoldedConv

KNOWN = (nn.Conv2d, nn.Linear, nn.GroupNorm, nn.LayerNorm, nn.BatchNorm1d, nn.BatchNorm2d)
"""Layers whose gradients are worked out here. What inherits from them may compute something else."""

LEAST_CHANNELS = 8
"""Input channels (of a group) below which a grouped convolution is slower than a product with unfolded images."""


class GradientError(ValueError):
    """A model whose gradients of single examples cannot be had."""


@dataclass(frozen=True)
class Passed:
    """What went into a layer, and the gradient of the loss by what came out; (B, ...) each."""

    given: Tensor
    returned: Tensor


def is_known(layer: nn.Module) -> bool:
    """Whether the gradients by a layer's own parameters are worked out here."""
    if isinstance(layer, nn.Conv2d) and (layer.padding_mode != "zeros" or isinstance(layer.padding, str)):
        return False
    return type(layer) in KNOWN


def gradients_of(layer: nn.Module, passed: Passed) -> Iterator[Tensor]:
    """(B, *shape) for each parameter tensor of a layer, the weight first."""
    given, returned = passed.given, passed.returned
    if isinstance(layer, FoldedConv):
        yield from layer.gradients(_convolution(layer.conv, given, returned), _sum(returned, (2, 3)))
        return
    if isinstance(layer, nn.Conv2d):
        yield _convolution(layer, given, returned)
        over: tuple[int, ...] = (2, 3)
    elif isinstance(layer, nn.Linear):
        returned, columns = (one.unsqueeze(1) if one.dim() == 2 else one.flatten(1, -2) for one in (returned, given))
        yield returned.transpose(1, 2) @ columns
        over = (1,)
    elif isinstance(layer, nn.LayerNorm):
        # Its weights are of the last axes, those of the other norms of axis 1.
        over = tuple(range(1, given.dim() - len(layer.normalized_shape)))
        yield _sum(returned * F.layer_norm(given, layer.normalized_shape, eps=layer.eps), over)
    elif isinstance(layer, nn.GroupNorm):
        over = tuple(range(2, given.dim()))
        yield _sum(returned * F.group_norm(given, layer.num_groups, eps=layer.eps), over)
    else:
        over = tuple(range(2, given.dim()))
        yield _batch_norm(cast(nn.BatchNorm2d, layer), given, returned)
    if layer.bias is not None:
        yield _sum(returned, over)


def _sum(values: Tensor, over: tuple[int, ...]) -> Tensor:
    return values.sum(over) if over else values  # torch sums over everything where there is nothing to sum over


def _batch_norm(layer: nn.BatchNorm2d, given: Tensor, returned: Tensor) -> Tensor:
    """Of the weight: the products with the normalised input, without making it."""
    if layer.running_mean is None or layer.running_var is None:
        raise GradientError("BatchNorm without running statistics mixes the examples of a batch")
    returned, given = (one.reshape(*one.shape[:2], -1) for one in (returned, given))
    products = (returned.unsqueeze(2) @ given.unsqueeze(3)).flatten(1)
    return (products - layer.running_mean * returned.sum(2)) / (layer.running_var + layer.eps).sqrt()


def _convolution(layer: nn.Conv2d, given: Tensor, returned: Tensor) -> Tensor:
    """The gradients of the weight, (B, *weight.shape): the examples stand side by side as groups of one convolution."""
    count, padding = len(given), cast(tuple[int, int], layer.padding)
    if layer.weight.shape[1] < LEAST_CHANNELS:
        patches = F.unfold(given, layer.kernel_size, layer.dilation, padding, layer.stride)
        rows, columns = (one.reshape(count, layer.groups, -1, one.shape[-1]) for one in (returned.flatten(2), patches))
        return (rows @ columns.transpose(2, 3)).view(count, *layer.weight.shape)
    shape = (count * layer.weight.shape[0], *layer.weight.shape[1:])
    sides = (given.reshape(1, -1, *given.shape[2:]), shape, returned.reshape(1, -1, *returned.shape[2:]))
    found: Tensor = conv2d_weight(*sides, layer.stride, padding, layer.dilation, count * layer.groups)  # type: ignore[no-untyped-call]
    return found.view(count, *layer.weight.shape)
