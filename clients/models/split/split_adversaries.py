"""Networks that classify a second attribute from the tokens of a split transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from clients.models.adversaries import Adversaries
from clients.models.split.split_models import SplitShape, build_split_model


@dataclass(frozen=True)
class SplitAdversaryBuilder(Adversaries):
    """Builds adversaries of a split transformer, tokens (B, N, D) -> logits.

    "full" has as many blocks as both halves together; the tokens that travel take the place of embedded patches.

    Attributes:
        name: See ``clients.models.split.split_models.split_model_names``.
        input_shape: (C, H, W) of the attacked model's images.
        shape: Of the attacked model, which is one of images.
        weights: State dict of the attacked server half; needed for "tuned" alone.

    Source: the adversaries of ADP, "split" and "full", which are of convolutional networks (``clients.models.adversaries``).
    """

    name: str
    input_shape: tuple[int, int, int]
    shape: SplitShape
    weights: Mapping[str, Tensor] | None = None

    def _build(self, num_values: int, shape: SplitShape, seed: int) -> nn.Module:
        return build_split_model(
            self.name, num_classes=num_values, input_shape=self.input_shape, shape=shape, seed=seed
        )[1]

    def _attacked(self, num_values: int, seed: int) -> nn.Module:
        return self._build(num_values, self.shape, seed)

    def _full(self, num_values: int, seed: int) -> nn.Module:
        return self._build(num_values, replace(self.shape, edge_blocks=0), seed)
