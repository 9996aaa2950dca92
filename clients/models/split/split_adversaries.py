"""Networks that classify a second attribute from the tokens of a split transformer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from torch import Tensor

from clients.models.library import ModelError
from clients.models.split.server_half import ServerHalf
from clients.models.split.split_models import SplitShape, build_split_model


@dataclass(frozen=True)
class SplitAdversaryBuilder:
    """Builds adversaries of a split transformer, in its own architecture.

    "split" is the server half with new weights. "tuned" is the same with the weights of the attacked server half, except for its
    head. "full" has as many blocks as both halves together; the tokens that travel take the place of embedded patches.

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

    def __call__(self, architecture: str, num_values: int, seed: int) -> ServerHalf:
        """A network, tokens (B, N, D) -> logits (B, num_values), in train mode on the CPU.

        Args:
            architecture: "split", "tuned" or "full".
            num_values: Values of the attribute, at least 2.
            seed: The new weights depend on it alone.

        Raises:
            ModelError: When the architecture is unknown, or "tuned" has no weights to start from.
        """
        match architecture:
            case "split":
                return self._build(num_values, self.shape, seed)
            case "tuned":
                return self._tuned(num_values, seed)
            case "full":
                return self._build(num_values, replace(self.shape, edge_blocks=0), seed)
        raise ModelError(f"architecture is {architecture!r}; allowed: 'split', 'tuned', 'full'")

    def _build(self, num_values: int, shape: SplitShape, seed: int) -> ServerHalf:
        return build_split_model(
            self.name, num_classes=num_values, input_shape=self.input_shape, shape=shape, seed=seed
        )[1]

    def _tuned(self, num_values: int, seed: int) -> ServerHalf:
        if self.weights is None:
            raise ModelError("architecture is 'tuned', but there are no weights of the attacked model to start from")
        server = self._build(num_values, self.shape, seed)
        own = server.state_dict()
        head = {name for name in own if name.startswith("head.")}
        server.load_state_dict(own | {name: tensor for name, tensor in self.weights.items() if name not in head})
        return server
