"""Queries as the server observes them, the base of attacks on queries, and the search for the images behind one."""

from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from attacks.base import Attack
from attacks.descent import StepRule, minimise
from attacks.guesses import Reconstruction
from attacks.observations import AttackError
from defenses.base import DefenseError
from defenses.pipeline import Pipeline
from defenses.tensors import ImageShape, Numbers, TensorMap

Guess = TypeVar("Guess")


@dataclass(frozen=True)
class Query:
    """One client's query, with the further knowledge of an honest-but-curious server. Each image keeps its row.

    Attributes:
        features: (B, C', H', W') maps: the server half's input, after all defences, decoded.
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
    input_shape: ImageShape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    pipeline: Pipeline = Pipeline()  # noqa: RUF009 (it is frozen)


class QueryAttack(Attack[Query, Guess], Generic[Guess], observes=Query):
    """Base of attacks on queries. A subclass implements ``attack_one``."""

    def failed(self, observation: Query, reason: str) -> Guess:
        """Uniform grey. An attack that guesses something else overrides this."""
        return Reconstruction.grey(len(observation.features), observation.input_shape, reason)  # type: ignore[return-value]

    def _attempt(self, observation: Query, generator: torch.Generator) -> Guess:
        if not all(torch.isfinite(sent).all() for sent in (observation.features, observation.latent)):
            return self.failed(observation, "the query holds NaN or infinite values")
        return super()._attempt(observation, generator)


@dataclass(frozen=True)
class Inversion:
    """The search for images that ``send`` maps to what was sent, each image for itself.

        argmin_x  mean (send(x) - target)^2 / scale + prior(x)

    Attributes:
        send: Images (B, C, H, W), in whatever unit is searched in -> what would be sent of them, as ``target``; differentiable.
        target: (B, ...), what was sent.
        prior: Images -> (B,), how unlikely each is.
        scale: Of the error: a number for all images, or one for each, (B,).
    """

    send: TensorMap
    target: Tensor
    prior: TensorMap
    scale: Tensor

    def errors(self, images: Tensor) -> Tensor:
        """Mean squared error of what would be sent: (B,)."""
        try:
            sent = self.send(images)
        except DefenseError as misfit:
            raise AttackError(f"the query cannot be attacked: {misfit}") from misfit
        if sent.shape != self.target.shape:
            raise AttackError(f"what was sent has shape {tuple(self.target.shape)}, expected {tuple(sent.shape)}")
        return (sent - self.target).square().flatten(1).mean(1)

    def objective(self, images: Tensor) -> Tensor:
        """See the class: (B,)."""
        return self.errors(images) / self.scale + self.prior(images)

    def search(self, start: Tensor, iterations: int, rule: StepRule, spread: Tensor) -> tuple[Tensor, Numbers]:
        """The images (B, C, H, W) of the lowest objective, and how close they come.

        The numbers are means over images: "feature_loss", the error, and "relative_loss", the same over ``spread``, the variance
        of what was sent, which is the error that a constant would reach.
        """
        images, _ = minimise(self.objective, start, iterations, rule)
        with torch.no_grad():
            loss = self.errors(images)
        return images, {"feature_loss": float(loss.mean()), "relative_loss": float((loss / spread).mean())}


def answers(observation: Query) -> Tensor:
    """The classes (B,) that the server half answers with, which its owner knows anyway; on the CPU."""
    with torch.no_grad():
        classes: Tensor = observation.server_model(observation.features).argmax(1)
    return classes.cpu()
