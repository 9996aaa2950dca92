"""Convolutions that take in the BatchNorm behind them: in eval mode the two are one map, at the cost of one."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, fx, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval


class FoldedConv(nn.Module):
    """A convolution with the BatchNorm that follows it.

    Args:
        conv: As it is without the norm.
        norm: With running statistics, in eval mode.
    """

    def __init__(self, conv: nn.Conv2d, norm: nn.BatchNorm2d) -> None:
        super().__init__()
        self.conv, self.norm = conv, norm
        self.both = fuse_conv_bn_eval(conv, norm).requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        """What the norm makes of what the convolution makes."""
        made: Tensor = self.both(images)
        return made

    def gradients(self, products: Tensor, sums: Tensor) -> Iterable[Tensor]:
        """The gradients of single examples by the parameters of both, without what passed between them.

        Args:
            products: (B, *weight.shape), the gradients by the folded weight: of what came in and what came back behind the norm.
            sums: (B, out channels), of what came back.

        Yields:
            (B, numbers in the tensor): weight and bias of the convolution, weight and bias of the norm, as far as it has them.
        """
        mean, variance = self.norm.running_mean, self.norm.running_var
        assert mean is not None
        assert variance is not None
        deviation = (variance + self.norm.eps).sqrt()
        scale = (self.norm.weight / deviation if self.norm.affine else 1 / deviation).detach()
        weight = self.conv.weight.detach()
        yield products * scale.view(-1, *[1] * (weight.dim() - 1))
        shift = -mean
        if self.conv.bias is not None:
            yield sums * scale
            shift = shift + self.conv.bias.detach()
        if self.norm.affine:
            # By the weight of the norm: what came back times what went in, which is linear in what went into the convolution.
            own = torch.linalg.vecdot(products.flatten(2), weight.flatten(1))
            yield (own + shift * sums) / deviation
            yield sums


def fold(model: nn.Module) -> nn.Module:
    """A copy of a model in eval mode, with every convolution folded whose output goes into a BatchNorm and nowhere else.

    Pairs whose norm does not follow at once among the model's modules stay, so that the order of parameters is kept; so does a
    model that cannot be traced.
    """
    model = copy.deepcopy(model)
    for conv, norm in _pairs(model):
        modules = dict(model.named_modules())
        folded = FoldedConv(cast(nn.Conv2d, modules[conv]), cast(nn.BatchNorm2d, modules[norm]))
        _replace(model, conv, folded)
        _replace(model, norm, nn.Identity())
    return model


def _pairs(model: nn.Module) -> list[tuple[str, str]]:
    try:
        graph = fx.symbolic_trace(model).graph
    except Exception:  # Tracing runs the model's own code, which may raise anything; folding only saves time.
        return []
    modules = {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.BatchNorm2d) or next(layer.parameters(recurse=False), None) is not None
    }
    names = list(modules)
    calls = [str(node.target) for node in graph.nodes if node.op == "call_module"]
    found = []
    for node in graph.nodes:
        if node.op != "call_module" or not isinstance(modules.get(str(node.target)), nn.BatchNorm2d) or not node.args:
            continue
        before = node.args[0]
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) > 1:
            continue
        conv, norm = str(before.target), str(node.target)
        follows = conv in modules and names.index(norm) == names.index(conv) + 1
        once = calls.count(conv) == calls.count(norm) == 1
        if follows and once and isinstance(modules[conv], nn.Conv2d) and modules[norm].running_mean is not None:
            found.append((conv, norm))
    return found


def _replace(model: nn.Module, name: str, layer: nn.Module) -> None:
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, layer)
