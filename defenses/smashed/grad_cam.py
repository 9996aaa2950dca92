"""Grad-CAM: where in an image a network finds what it decides by."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from defenses.base import DefenseError
from defenses.fitting import in_eval_mode
from defenses.module_calls import calls_of

_POOLS = (nn.AvgPool2d, nn.AdaptiveAvgPool2d)
LEAST_SIDE = 7
"""Of the maps that are looked at: those of the paper's networks, at 224 pixels, have 7 x 7 positions."""


def grad_cam(model: nn.Module, images: Tensor, layer: nn.Module) -> Tensor:
    """Class activation maps (B, H, W) in [0, 1], by the gradient of the largest logit with respect to the maps A of a layer.

        cam = relu(sum_c w_c A_c),    w_c = mean over positions of dy / dA_c;    v = (cam - min) / (max + 1e-7)

    with ``cam`` scaled bilinearly to the image before each image's least and largest value, min and max (after the subtraction),
    are taken. A map that is the same everywhere becomes 0 everywhere. Modes, weights, statistics and gradients of the model stay as
    they are.

    Source: Selvaraju et al., "Grad-CAM", ICCV 2017, Eq. 1 and 2; scaling as in the package grad-cam.
    """
    maps: list[Tensor] = []

    def keep(module: nn.Module, _: Any, output: Any) -> Tensor:
        if not _is_maps(output):
            raise DefenseError(
                f"{type(module).__name__} returns no maps (B, C, H, W): Grad-CAM needs a layer that does"
            )
        # From here on there is a graph; what comes before has no part in dy / dA.
        torch.set_grad_enabled(True)
        maps.append(output.detach().requires_grad_())
        return maps[-1].clone()  # which a later layer may change in place

    handle = layer.register_forward_hook(keep)
    try:
        with in_eval_mode(model), torch.no_grad():
            logits = model(images)
            if not maps:
                raise DefenseError(f"{type(layer).__name__} is not run by the model: name one of its layers")
            (weights,) = torch.autograd.grad(_largest(logits).sum(), maps[-1])
    finally:
        handle.remove()
    cams = (weights.mean((2, 3), keepdim=True) * maps[-1].detach()).sum(1, keepdim=True).relu()
    cams = F.interpolate(cams, images.shape[-2:], mode="bilinear", align_corners=False).squeeze(1)
    cams = cams - cams.amin((1, 2), keepdim=True)
    scaled: Tensor = cams / (cams.amax((1, 2), keepdim=True) + 1e-7)
    return scaled


def last_map_layer(model: nn.Module, images: Tensor, client: nn.Module | None = None) -> nn.Module:
    """The module that returns the deepest maps of 7 x 7 positions or more, or the deepest of the largest where none are so large.

    At 224 pixels that is the end of the last convolutional block, as in the paper: VGG's ``features``, ResNet's ``layer4``.
    Smaller images would leave 3 x 3 positions or fewer there, which cannot tell one part of an image from another. Never is it one
    inside the client half: its features are the first maps that count. An average pool's maps do not count. Where several modules
    return the same maps it is the outermost.
    """
    inside = set() if client is None else set(client.modules()) - {client}
    with in_eval_mode(model), torch.no_grad(), calls_of(m for m in model.modules() if m not in inside) as calls:
        model(images[:1])
    maps = [(module, output) for module, _, output in calls if _is_maps(output) and not isinstance(module, _POOLS)]
    found = [(min(output.shape[2:]), module) for module, output in maps if output[0, 0].numel() > 1]
    if not found:
        raise DefenseError(
            f"no layer of the model returns maps of more than one position for images {tuple(images.shape[1:])}: "
            "Grad-CAM needs such a layer; cut the model earlier or use larger images"
        )
    least = min(LEAST_SIDE, max(side for side, _ in found))
    return [module for side, module in found if side >= least][-1]


def _is_maps(output: Any) -> bool:
    return isinstance(output, Tensor) and output.dim() == 4


def _largest(logits: Tensor) -> Tensor:
    if logits.dim() != 2 or logits.shape[1] < 2:
        raise DefenseError(f"the model returns {tuple(logits.shape)}; allowed: logits (B, K) with K >= 2")
    return logits.gather(1, logits.argmax(1, keepdim=True))
