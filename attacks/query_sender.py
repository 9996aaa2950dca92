"""What a client does to test images before it sends them to be answered: its own code, and what a server can run itself."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from attacks.normalisation import normalise
from attacks.sender import key_of, smash
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.random_draws import Key


@dataclass(frozen=True)
class QuerySender:
    """A client's sending side: the algorithm and all that was learned, never a client's randomness.

    Attributes:
        client_model: The client half, in eval mode: normalised images (B, C, H, W) -> features (B, C', H', W').
        pipeline: The clients' defences; those that learn are fitted.
        mean: Per channel, for the normalisation of images in [0, 1].
        std: Per channel.
    """

    client_model: nn.Module
    pipeline: Pipeline
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def features(self, images: Tensor) -> Tensor:
        """Unprotected features (B, C', H', W') of images (B, C, H, W) in [0, 1], past the input defences; differentiable."""
        features: Tensor = self.client_model(normalise(images, self))
        return features

    def latent(self, images: Tensor, key: Key) -> Tensor:
        """What travels of images (B, C, H, W) in [0, 1], past the input defences; differentiable."""
        return self.pipeline.encode_features(self.features(images), key)

    def decoded(self, latent: Tensor) -> Tensor:
        """The features (B, C', H', W') that the server half is given of what travelled."""
        return self.pipeline.decode_features(latent)

    def send(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What a server would see of clean images (B, C, H, W) in [0, 1], all defences drawn afresh: features, and the latent."""
        key = key_of(generator)
        batch = Batch(images, images.new_zeros(len(images), 1))
        latent = self.latent(self.pipeline.protect_test(batch, key).images, key)
        return self.decoded(latent), latent


@dataclass(frozen=True)
class TokenSender(QuerySender):
    """The same of a client of split learning (``attacks.sender.EdgeHalf``), whose tokens pass stages before its blocks, too."""

    def latent(self, images: Tensor, key: Key) -> Tensor:
        """Tokens (B, N, D) of images (B, C, H, W) in [0, 1], past the input defences, as they travel."""
        return smash(self.client_model, self.pipeline, images, self, key)  # type: ignore[arg-type]
