"""Soteria: prune the gradient of one fully connected layer where its representation gives the input away."""

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from defenses.base import DefenseError, Training, TrainingDefense
from defenses.checks import ShareOrNone, algorithm, require
from defenses.tensors import Shape

FLOOR = 0.1
"""Added to |r_i|, as in the authors' code, so that an entry of a ReLU's zero has a score."""
GRADIENTS_AT_ONCE = 256
"""Entries of a representation times examples whose gradients by the images are in memory together."""


@algorithm
class Soteria(TrainingDefense):
    """Zero columns of one layer's weight gradient, those whose absence should change a reconstruction most.

    For the representation r (B, D), which is the input of a fully connected layer, and images x,

        score_i = sum_b ||d r_bi / d x_b||_2 / (|r_bi| + 0.1),

    and the floor(fraction * D) entries with the lowest scores are pruned: columns i of the layer's weight gradient become zero, in
    every local step. These are the entries with the largest ||r_i|| / ||d r_i / d x||, whose absence should move the
    reconstruction the farthest. All other gradients, this layer's bias and the forward pass stay unchanged. The scores sum over
    the batch, so that one example's gradient depends on the others.

    Known break: the client sends all other layers unchanged, and an attack that does not match the defended layer's weights is
    not affected (Balunovic et al., ICLR 2022, section 5): ``OmittedLayerInversion``.

    An entry that a ReLU set to zero has the lowest score, 0; its column is zero without a defence. Differences from the authors'
    code: |r_i| for r_i, and an exact number of pruned entries. Their percentile prunes none if too many scores are 0.

    Args:
        fraction: Part of the representation's entries that is pruned, in [0, 1]; 0 changes nothing. The paper uses 0.8.
        layer: Name of the defended ``nn.Linear``; "" is the last one in order of definition.
    """

    fraction: ShareOrNone = 0.8
    layer: str = ""

    no_defense_at = {"fraction": 0}
    always_shown = ("fraction",)
    source = (
        "Sun et al., Soteria: Provable Defense against Privacy Leakage in Federated Learning from Representation Perspective, "
        "CVPR 2021, Eq. 7 and Algorithm 1"
    )
    mixes_examples = True
    resamples = False
    adaptive_attacks = ("OmittedLayerInversion",)

    def __post_init__(self) -> None:
        super().__post_init__()
        parts = self.layer.split(".") if isinstance(self.layer, str) and self.layer else []
        named = isinstance(self.layer, str) and all(part.isidentifier() or part.isdigit() for part in parts)
        require(named, self, "layer", "3, head.fc or another name of an nn.Linear; '' for the last")

    def check_model(self, model: nn.Module, input_shape: Shape) -> None:
        """Refuse a model without the layer."""
        self.defended(model)

    def protect_training(self, training: Training, generator: torch.Generator) -> Training:
        """Prune the gradient of every loss; deterministic."""
        layer, inner = self.defended(training.model)[1], training.loss

        def loss(model: nn.Module, images: Tensor, targets: Tensor) -> Tensor:
            images = images.detach().requires_grad_()

            def pruned(module: nn.Linear, inputs: tuple[Any, ...], _: Tensor) -> Tensor:
                kept = self.kept(inputs[0], images).to(module.weight)
                # The same values, of which only the kept columns have a gradient: no state outlives the loss.
                return F.linear(inputs[0], module.weight * kept + (module.weight * (1 - kept)).detach(), module.bias)

            hook = layer.register_forward_hook(pruned)
            try:
                return inner(model, images, targets)
            finally:
                hook.remove()

        return replace(training, loss=loss)

    def defended(self, model: nn.Module) -> tuple[str, nn.Linear]:
        """The defended layer and its name."""
        layers = {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}
        if not layers or (self.layer and self.layer not in layers):
            raise DefenseError(f"{self}: the model's fully connected layers are {', '.join(layers) or 'none'}")
        name = self.layer or list(layers)[-1]
        return name, layers[name]

    def kept(self, representation: Tensor, images: Tensor) -> Tensor:
        """Which entries of a representation (B, D) of images (B, C, H, W), which ask for gradients, are not pruned: (D,) bool."""
        if representation.dim() != 2 or len(representation) != len(images):
            raise DefenseError(
                f"{self}: the layer gets {tuple(representation.shape)} for {len(images)} images; one vector each is expected"
            )
        pruned = math.floor(self.fraction * representation.shape[1] + 1e-9)
        kept = torch.ones(representation.shape[1], dtype=torch.bool, device=images.device)
        if pruned:
            kept[self.scores(representation, images).argsort(stable=True)[:pruned]] = False
        return kept

    @staticmethod
    def scores(representation: Tensor, images: Tensor) -> Tensor:
        """score_i of the class, (D,): low where an entry is to be pruned."""
        count, dim = representation.shape
        directions = torch.eye(dim, dtype=representation.dtype, device=representation.device)
        norms = []
        for rows in torch.split(directions, max(1, GRADIENTS_AT_ONCE // max(count, 1))):
            cotangents = rows[:, None].expand(-1, count, -1)
            (grads,) = torch.autograd.grad(representation, images, cotangents, retain_graph=True, is_grads_batched=True)
            norms.append(grads.flatten(2).norm(dim=2))
        return (torch.cat(norms).T / (representation.detach().abs() + FLOOR)).sum(0)
