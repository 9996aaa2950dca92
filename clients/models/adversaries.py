"""Networks that classify a second attribute from the features of a cut classifier, for the attacker and for defences against it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from clients.models.classifiers import build_model
from clients.models.cuts import halves
from clients.models.library import ModelError

Shape = tuple[int, int, int]

SMALLEST: Mapping[str, int] = {"vgg16": 32, "vgg_small": 8}
"""Side in pixels of the smallest images that a model takes; those that are not named take any."""


@dataclass(frozen=True)
class AdversaryBuilder:
    """Builds adversaries of a cut model, in its own architecture.

    "split" is the server half with new weights. "tuned" is the same with the weights of the attacked model, except for its last
    layer. "full" is a whole model whose first layer takes the channels of the features; where they are too small for it, each value
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
    input_shape: Shape
    width: int = 0
    norm: str = "group"
    weights: Mapping[str, Tensor] | None = None

    def __call__(self, architecture: str, num_values: int, seed: int) -> nn.Module:
        """A network, features (B, Z, H', W') -> logits (B, num_values), in train mode on the CPU.

        Args:
            architecture: "split", "tuned" or "full".
            num_values: Values of the attribute, at least 2.
            seed: The new weights depend on it alone.

        Raises:
            ModelError: When the architecture is unknown, the cut is, or "tuned" has no weights to start from.
        """
        match architecture:
            case "split":
                return self._halves(num_values, seed)[1]
            case "tuned":
                return self._tuned(num_values, seed)
            case "full":
                return self._full(num_values, seed)
        raise ModelError(f"architecture is {architecture!r}; allowed: 'split', 'tuned', 'full'")

    def _build(self, num_values: int, shape: Shape, seed: int) -> nn.Module:
        return build_model(
            self.name, num_classes=num_values, input_shape=shape, width=self.width, norm=self.norm, seed=seed
        )

    def _halves(self, num_values: int, seed: int) -> tuple[nn.Module, nn.Module]:
        return halves(self._build(num_values, self.input_shape, seed), self.name, self.cut)

    def _tuned(self, num_values: int, seed: int) -> nn.Module:
        if self.weights is None:
            raise ModelError("architecture is 'tuned', but there are no weights of the attacked model to start from")
        whole = self._build(num_values, self.input_shape, seed)
        last = next(name for name, module in reversed(list(whole.named_modules())) if isinstance(module, nn.Linear))
        own = whole.state_dict()
        kept = {name: tensor for name, tensor in self.weights.items() if not name.startswith(f"{last}.")}
        whole.load_state_dict(own | kept)
        return halves(whole, self.name, self.cut)[1]

    def _full(self, num_values: int, seed: int) -> nn.Module:
        client, _ = self._halves(num_values, seed)
        with torch.no_grad():
            features = client.eval()(torch.zeros(1, *self.input_shape))
        _, channels, height, width = features.shape
        factor = math.ceil(SMALLEST.get(self.name, 1) / min(height, width))
        whole = self._build(num_values, (channels, factor * height, factor * width), seed)
        return whole if factor == 1 else nn.Sequential(nn.Upsample(scale_factor=factor), whole)
