"""Queries as the server observes them, and the base of attacks on queries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from attacks.base import Attack
from attacks.guesses import Reconstruction
from defenses.pipeline import Pipeline

Guess = TypeVar("Guess")


@dataclass(frozen=True)
class Query:
    """One client's query, with the further knowledge of an honest-but-curious server. Each image keeps its row.

    Attributes:
        features: (B, C', H', W') maps, or (B, N, D) tokens of a split transformer: the server half's input, after all defences,
            decoded.
        latent: (B, ...), the sent tensor; equal to ``features`` if no defence encodes them.
        client_model: The client half, in eval mode; the server has its weights.
        server_model: The server half, features -> logits (B, K), in eval mode.
        input_shape: (C, H, W) of one image.
        mean: Per channel, for the normalisation of images in [0, 1].
        std: Per channel.
        pipeline: The clients' defences; those that learn are fitted, as the server that decodes has fitted them.
    """

    features: Tensor
    latent: Tensor
    client_model: nn.Module
    server_model: nn.Module
    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pipeline: Pipeline = Pipeline()  # noqa: RUF009 (it is frozen)


class QueryAttack(Attack[Query, Guess], Generic[Guess]):
    """Base of attacks on queries. A subclass implements ``attack_one``."""

    observes = Query

    def failed(self, observation: Query, reason: str) -> Guess:
        """Uniform grey. An attack that guesses something else overrides this."""
        return Reconstruction.grey(len(observation.features), observation.input_shape, reason)  # type: ignore[return-value]

    def _attempt(self, observation: Query, generator: torch.Generator) -> Guess:
        if not all(torch.isfinite(sent).all() for sent in (observation.features, observation.latent)):
            return self.failed(observation, "the query holds NaN or infinite values")
        return super()._attempt(observation, generator)
