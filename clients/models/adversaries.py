"""Networks that classify a second attribute from the features of a cut classifier, for the attacker and for defences against it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn

from clients.models.classifiers import build_model
from clients.models.cuts import halves
from clients.models.library import ModelError
from defenses.tensors import ImageShape, NamedTensors

SMALLEST: Mapping[str, int] = {"vgg16": 32, "vgg_small": 8}
"""Side in pixels of the smallest images that a model takes; those that are not named take any."""


@dataclass(frozen=True)
class AdversaryBuilder:
    """Builds adversaries of a classifier that is cut between feature maps (B, Z, H', W'), in that classifier's architecture.

    "split" is the server half with new weights. "tuned" is the same with the weights of the attacked model, except for its last
    layer. "full" is a whole model that takes the features in place of images. Where the features are too small for it, each value
    is first repeated over a square of the smallest side that makes them fit.

    Attributes:
        name: A key of ``CUTS``.
        cut: One of ``CUTS[name]``.
        input_shape: (C, H, W) of the attacked model's images.
        width: As of ``build_model``.
        norm: As of ``build_model``.
        weights: State dict of the whole attacked model; needed for "tuned" alone.

    Source: ADP's adversaries, "split" and "full". Which initial weights they have is not stated; ImageNet's in all but "full"
    explain its accuracies.
    """

    name: str
    cut: str
    input_shape: ImageShape
    width: int = 0
    norm: str = "group"
    weights: NamedTensors | None = None

    def __call__(self, architecture: str, num_values: int, seed: int) -> nn.Module:
        """A network, features (B, ...) -> logits (B, num_values), in train mode on the CPU; ``seed`` alone decides its new
        weights.

        Raises:
            ModelError: When the architecture is unknown, the cut is, or "tuned" has no weights to start from.
        """
        if architecture == "full":
            return self._full(num_values, seed)
        if architecture not in ("split", "tuned"):
            raise ModelError(f"architecture is {architecture!r}; allowed: 'split', 'tuned', 'full'")
        model = self._build(num_values, self.input_shape, seed)
        if architecture == "tuned":
            if self.weights is None:
                raise ModelError(
                    "architecture is 'tuned', but there are no weights of the attacked model to start from"
                )
            last = [name for name, module in model.named_modules() if isinstance(module, nn.Linear)][-1]
            kept = {name: tensor for name, tensor in self.weights.items() if not name.startswith(f"{last}.")}
            model.load_state_dict(model.state_dict() | kept)
        return halves(model, self.name, self.cut)[1]

    def _build(self, num_values: int, shape: ImageShape, seed: int) -> nn.Module:
        return build_model(
            self.name, num_classes=num_values, input_shape=shape, width=self.width, norm=self.norm, seed=seed
        )

    def _full(self, num_values: int, seed: int) -> nn.Module:
        client, _ = halves(self._build(num_values, self.input_shape, seed), self.name, self.cut)
        with torch.no_grad():
            features = client.eval()(torch.zeros(1, *self.input_shape))
        _, channels, height, width = features.shape
        factor = math.ceil(SMALLEST.get(self.name, 1) / min(height, width))
        whole = self._build(num_values, (channels, factor * height, factor * width), seed)
        return whole if factor == 1 else nn.Sequential(nn.Upsample(scale_factor=factor), whole)
