"""What a client does to images before it sends what its half makes of them: its own code, and what a server can run itself."""

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from attacks.normalisation import Normalisation, normalise
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.random_draws import Key, seed_of
from defenses.tensors import Shape


@runtime_checkable
class ClientHalf(Protocol):
    """The client half of a split transformer (``clients.models.split.halves.EdgeHalf``)."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""

    @property
    def patch_size(self) -> int:
        """Side in pixels of what one token stands for."""

    def embed(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) -> tokens (B, N, D), row by row."""

    @property
    def cardinalities(self) -> Shape:
        """Categories of each column, where it looks up rows of a table; else empty."""

    @property
    def token_length(self) -> int:
        """Numbers of a token that leaves ``encode``."""

    @property
    def keeps_slots(self) -> bool:
        """Whether tokens leave in the order of the patches or columns even where a defence shuffles what enters its blocks."""

    def encode(self, tokens: Tensor, unshuffled: Tensor | None = None) -> Tensor:
        """Tokens (B, N, D) through the client's blocks, none or more: (B, N, D'); see ``clients.models.split.halves``."""

    def embeddings_in(self, features: Tensor) -> Tensor:
        """The embeddings (..., N, D) among what ``encode`` made, (..., N, D')."""


def smash(edge: ClientHalf, pipeline: Pipeline, images: Tensor, known: Normalisation, key: Key) -> Tensor:
    """What a client sends of images (B, C, H, W) in [0, 1] that its input defences have protected: (B, N, D).

    Stages on tokens act between embedding and blocks, the others at the end.
    """
    tokens = edge.embed(normalise(images, known))
    return pipeline.protect_features(edge.encode(pipeline.protect_tokens(tokens, key), tokens), key)


def key_of(generator: torch.Generator) -> Key:
    """What names the draws of one batch that an attacker sends itself."""
    return ("attacker", seed_of(generator))


@dataclass(frozen=True)
class Sender:
    """A client's sending side: the algorithm and all that was learned, never a client's randomness.

    Attributes:
        edge: The client half in eval mode, with the weights of the attacked round: an ``ClientHalf``, or a module from normalised
            images (B, C, H, W) to features (B, C', H', W').
        pipeline: The clients' defences; those that learn are fitted.
        mean: Per channel, for the normalisation of images in [0, 1].
        std: Per channel.
    """

    edge: Any
    pipeline: Pipeline
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def features(self, images: Tensor) -> Tensor:
        """Unprotected features of images (B, C, H, W) in [0, 1], past the input defences; differentiable."""
        features: Tensor = self.edge(normalise(images, self))
        return features

    def latent(self, images: Tensor, key: Key) -> Tensor:
        """What travels of images (B, C, H, W) in [0, 1], past the input defences; differentiable."""
        if isinstance(self.edge, ClientHalf):
            return smash(self.edge, self.pipeline, images, self, key)
        return self.pipeline.encode_features(self.features(images), key)

    def query(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """What a server would see of clean test images (B, C, H, W) in [0, 1], all defences drawn afresh: features, latent."""
        key = key_of(generator)
        batch = Batch(images, images.new_zeros(len(images), 1))
        latent = self.latent(self.pipeline.protect_test(batch, key).images, key)
        return self.pipeline.decode_features(latent), latent

    def send(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Smashed data (B, N, D), float32, of clean images (B, C, H, W) in [0, 1], all defences drawn afresh; without a graph."""
        return self.send_with_order(images, generator)[0].float()

    @torch.no_grad()
    def send_with_order(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``send``, and where each token came from: (B, N) int64 on the CPU, numbers of tokens 0 to B * N - 1."""
        key = key_of(generator)
        batch = Batch(images, images.new_zeros(len(images), 1))
        shown = self.pipeline.protect_batch(self.pipeline.protect_once(batch, key), key).images
        features = smash(self.edge, self.pipeline, shown, self, key)
        if self.edge.keeps_slots:
            return features, torch.arange(features.shape[0] * features.shape[1]).view(features.shape[:2])
        return features, self.pipeline.token_order(len(features), features.shape[1], key)
