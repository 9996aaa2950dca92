"""Labels of recovered examples from their gradients, and a check that the examples together explain the update."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.gradient.trial_gradients.matching import count_classes
from defenses.base import Update
from defenses.module_calls import calls_of

MOST_CLASSES = 1000
"""Classes that are tried of each example."""


def labels_of_signals(model: nn.Module, layer: nn.Module, images: Tensor, signals: Tensor) -> Tensor:
    """The class (B,) of each example, by the direction of its signal, the gradient of cross-entropy; int64, on the CPU.

    Of normalised images (B, C, H, W) and dL/dz (B, ...) at the layer's output, each up to a positive factor; ``model`` is from
    ``attackable``, and ``layer`` a module of it that is called once.
    -1 where the model has more than ``MOST_CLASSES`` classes.
    """
    classes = count_classes(model, (images.shape[1], images.shape[2], images.shape[3]), images)
    if classes > MOST_CLASSES:
        return torch.full((len(images),), -1)
    towards = signals.to(images).flatten(1)
    with torch.enable_grad(), calls_of([layer]) as calls:
        # Frozen layers have outputs without a graph, unless the images need one.
        logits = F.log_softmax(model(images.clone().requires_grad_()), 1)
        output = calls[0][2]
        cosines = []
        for number in range(classes):
            (slope,) = torch.autograd.grad(-logits[:, number].sum(), output, retain_graph=True)
            cosines.append(F.cosine_similarity(slope.flatten(1), towards, dim=1))
    labels: Tensor = torch.stack(cosines).argmax(0).cpu()
    return labels


def gradient_distance(model: nn.Module, images: Tensor, labels: Tensor, observed: Update) -> float:
    """1 - cosine of the gradient of normalised images (B, C, H, W) and the observed one, in [0, 2]: 0 where they explain it.

    By the parameters that ``observed`` names; the others are frozen.

    NaN where one of the labels (B,) is unknown, below 0; ``model`` is from ``attackable``.
    """
    if (labels < 0).any():
        return float("nan")
    parameters: Mapping[str, Tensor] = {
        name: value.detach().requires_grad_() for name, value in model.named_parameters() if name in observed
    }
    with torch.enable_grad():
        logits = torch.func.functional_call(model, dict(parameters), (images,))
        loss = F.cross_entropy(logits, labels.to(images.device))
        own = torch.autograd.grad(loss, list(parameters.values()), materialize_grads=True)
    ours = torch.cat([value.flatten().double() for value in own])
    theirs = torch.cat([observed[name].flatten().double() for name in parameters])
    return float(1 - F.cosine_similarity(ours, theirs, dim=0))
