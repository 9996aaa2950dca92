"""What the server of a split federation sees: smashed data; and what every attack on it shares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from attacks.base import Attack, AttackError, Labels, Reconstruction
from attacks.normalisation import Normalisation, normalise
from defenses.base import Batch, Key, Update
from defenses.pipeline import Pipeline

Guess = TypeVar("Guess", Reconstruction, Labels)

BEYOND_RUN = "more transmissions than the run makes"
"""Why an attack that is sent images as often as it wishes is an upper bound."""


class EdgeHalf(Protocol):
    """The client half of a split transformer (``clients.models.halves.EdgeHalf``)."""

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of tokens."""

    @property
    def patch_size(self) -> int:
        """Side in pixels of what one token stands for."""

    def embed(self, images: Tensor) -> Tensor:
        """Normalised images (B, C, H, W) -> tokens (B, N, D), row by row."""

    def encode(self, tokens: Tensor) -> Tensor:
        """Tokens (B, N, D) through the client's transformer blocks, none or more: (B, N, D)."""


def smash(edge: EdgeHalf, pipeline: Pipeline, images: Tensor, known: Normalisation, key: Key) -> Tensor:
    """What a client sends of images that its input defences have protected: (B, N, D).

    Args:
        edge: The client half.
        pipeline: Its stages on smashed data are applied: those on tokens between embedding and blocks, the others at the end.
        images: (B, C, H, W) in [0, 1].
        known: Statistics for the normalisation.
        key: Names the random stream.
    """
    tokens = pipeline.protect_tokens(edge.embed(normalise(images, known)), key)
    return pipeline.protect_features(edge.encode(tokens), key)


@dataclass(frozen=True)
class Sender:
    """A client's sending side as the server can run it itself: the algorithm and the weights, never a client's randomness.

    Attributes:
        edge: The client half with the weights of the attacked round, in eval mode.
        pipeline: The clients' defences.
        mean: Per channel, for the normalisation.
        std: Per channel.
    """

    edge: EdgeHalf
    pipeline: Pipeline
    mean: tuple[float, ...]
    std: tuple[float, ...]

    def send(self, images: Tensor, generator: torch.Generator) -> Tensor:
        """Smashed data (B, N, D) of clean images (B, C, H, W) in [0, 1], all defences drawn afresh."""
        return self.send_with_order(images, generator)[0]

    def send_with_order(self, images: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """``send``, and where each token came from: (B, N) int64 on the CPU, numbers of tokens 0 to B * N - 1."""
        key = ("attacker", int(torch.randint(1 << 62, (), generator=generator)))
        batch = Batch(images, images.new_zeros(len(images), 1))
        shown = self.pipeline.protect_batch(self.pipeline.protect_once(batch, key), key).images
        features = smash(self.edge, self.pipeline, shown, self, key)
        return features, self.pipeline.token_order(len(features), features.shape[1], key)


@dataclass(frozen=True)
class EdgeStep:
    """One step of training of the client half, as the server sees it in SplitFed.

    Attributes:
        update: Parameter name -> (after - before), after all update defences.
        gradient: (B, N, D), the gradient of the loss with respect to the smashed data that the server returned.
        learning_rate: Of the client's plain SGD.
        weight_decay: Its L2 coefficient.
    """

    update: Update
    gradient: Tensor
    learning_rate: float
    weight_decay: float


@dataclass(frozen=True)
class SmashedData:
    """What one client sent of one batch, and what an honest-but-curious server knows besides.

    Attributes:
        features: (R, B, N, D), R transmissions of the same target images, after all defences; N tokens of length D. The
            first ``num_targets`` images of each sending are the targets, in the same places; the others came along in the same
            batch and are other ones in each sending.
        num_targets: Images to reconstruct.
        edge: The client half, in eval mode; its weights are public.
        server: The server half (B, N, D) -> logits, in eval mode.
        input_shape: (C, H, W) of one image.
        mean: Per channel, for the normalisation of images in [0, 1].
        std: Per channel.
        orders: (R, B, N) int64, where each token came from. No message carries this: a client tells it to an upper bound that
            asks for it, and only in an audit. Else None.
        step: The client half's own update on the first sending's batch, where it is trained; else None.
    """

    features: Tensor
    num_targets: int
    edge: EdgeHalf
    server: nn.Module
    input_shape: tuple[int, int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    orders: Tensor | None = None
    step: EdgeStep | None = None


class SmashedAttack(Attack[SmashedData, Guess], Generic[Guess]):
    """Base of attacks on smashed data. A subclass implements ``attack_one``.

    Attributes:
        observes: "smashed".
    """

    observes = "smashed"

    @property
    def transmissions(self) -> int:
        """How many transmissions of the same images it uses at most: 1, or more for an attack over rounds.

        It gets no more than the run has made by then, and must work with any number from 1.
        """
        return 1

    def limited_to(self, transmissions: int) -> Self:
        """The attack to fit where there are only so many transmissions, at least 1; one that uses many overrides this."""
        return self

    @property
    def beyond_run(self) -> bool:
        """Whether the clients send the images as often as it wishes, however often the run itself does: an upper bound."""
        return False

    @property
    def reveals_order(self) -> bool:
        """Whether it is an upper bound that is told the true order of the tokens."""
        return False

    @property
    def upper_bound(self) -> str:
        """See ``Attack``: a told order, and transmissions that the run does not make."""
        reasons = {"told the order": self.reveals_order, BEYOND_RUN: self.beyond_run}
        return ", ".join(reason for reason, holds in reasons.items() if holds)

    @property
    def needs_step(self) -> bool:
        """Whether it attacks the update of a trained client half as well."""
        return False

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Guess:
        """Attacks one observation.

        Raises:
            AttackError: When it cannot be attacked; ``attack_many`` turns this into a failed guess.
        """
        raise NotImplementedError

    def failed(self, observation: SmashedData, reason: str) -> Guess:
        """The guess of an attack that failed: uniform grey. An attack on labels overrides this."""
        images = torch.full((observation.num_targets, *observation.input_shape), 0.5)
        unknown = torch.full((observation.num_targets,), -1)
        return Reconstruction(images, unknown, failure=reason)  # type: ignore[return-value]

    def attack_many(self, observations: Sequence[SmashedData], generators: Sequence[torch.Generator]) -> list[Guess]:
        """Attacks independent observations, one generator each."""
        return [self._attempt(*one) for one in zip(observations, generators, strict=True)]

    def _attempt(self, observation: SmashedData, generator: torch.Generator) -> Guess:
        try:
            if not len(observation.features):
                raise AttackError("there are no transmissions to attack")
            return self.attack_one(observation, generator)
        except AttackError as error:
            return self.failed(observation, str(error))
