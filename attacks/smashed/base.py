"""Smashed data as the server of split learning observes them, the base of attacks on them, and the plainest."""

from dataclasses import dataclass, replace
from typing import Generic, Self, TypeVar

import torch
from torch import Tensor, nn

from attacks.base import Attack
from attacks.guesses import Labels, Reconstruction
from attacks.observations import AttackError
from attacks.sender import ClientHalf
from defenses.checks import algorithm
from defenses.tensors import ImageShape, Shape, Update

Guess = TypeVar("Guess")

BEYOND_RUN = "more transmissions than the run makes"
"""Description of the upper bound that gets more transmissions than the run makes."""


@dataclass(frozen=True)
class EdgeStep:
    """One step of training of the client half, as the server sees it in SplitFed.

    Attributes:
        update: Parameter name -> (after - before), after all update defences.
        gradient: (B, N, D), the gradient of the loss with respect to the smashed data, which the server returned.
        learning_rate: Learning rate of the client's plain SGD.
        weight_decay: L2 coefficient of the client's SGD.
    """

    update: Update
    gradient: Tensor
    learning_rate: float
    weight_decay: float


@dataclass(frozen=True)
class SmashedData:
    """One client's smashed data of one batch, with the further knowledge of an honest-but-curious server.

    Attributes:
        features: (R, B, N, D), R transmissions of the same target images, after all defences; N tokens of length D. The
            first ``num_targets`` images of each are the targets, in the same rows; the rest of the batch differs from one
            transmission to the next.
        num_targets: Number of images to recover.
        edge: The client half, in eval mode; its weights are public.
        server: The server half (B, N, D) -> logits, in eval mode.
        input_shape: (C, H, W) of one image.
        mean: Per channel, for the normalisation of images in [0, 1].
        std: Per channel.
        orders: (R, B, N) int64, the origin of each token, otherwise None. No message contains it; in an audit, a client reports it
            for attacks that are upper bounds and need it.
        step: The client half's own update on the first transmission's batch, if it is trained; otherwise None.
    """

    features: Tensor
    num_targets: int
    edge: ClientHalf
    server: nn.Module
    input_shape: ImageShape
    mean: tuple[float, ...]
    std: tuple[float, ...]
    orders: Tensor | None = None
    step: EdgeStep | None = None


class SmashedAttack(Attack[SmashedData, Guess], Generic[Guess], observes=SmashedData):
    """Base of attacks on smashed data. A subclass implements ``attack_one``.

    Attributes:
        transmissions: Most transmissions of the same images that the attack uses. It gets those that the run has made, at least 1.
        beyond_run: Clients send the images ``transmissions`` times, even if the run does not: an upper bound.
    """

    transmissions: int = 1
    beyond_run: bool = False

    def limited_to(self, transmissions: int) -> Self:
        """The attack to fit for at most ``transmissions`` transmissions, at least 1."""
        own = min(self.transmissions, transmissions)
        return self if own == self.transmissions else replace(self, transmissions=own)  # type: ignore[type-var]

    @property
    def reveals_order(self) -> bool:
        """Whether the attack is an upper bound that gets the true order of the tokens."""
        return False

    @property
    def upper_bound(self) -> str:
        """Description of the true order, or of transmissions that the run does not make; see ``Attack``."""
        reasons = {"knows the order": self.reveals_order, BEYOND_RUN: self.beyond_run}
        return ", ".join(reason for reason, holds in reasons.items() if holds)

    def failed(self, observation: SmashedData, reason: str) -> Guess:
        """The failed guess, uniform grey; an attack on labels overrides this method."""
        return Reconstruction.grey(observation.num_targets, observation.input_shape, reason)  # type: ignore[return-value]

    def _attempt(self, observation: SmashedData, generator: torch.Generator) -> Guess:
        if not len(observation.features):
            return self.failed(observation, "there are no transmissions to attack")
        return super()._attempt(observation, generator)


def check_features(features: Tensor, expected: Shape) -> None:
    """Raise ``AttackError`` unless smashed data (..., N, D) have the auxiliary data's shape (N, D) and finite values."""
    if (shape := tuple(features.shape[-2:])) != expected:
        raise AttackError(f"smashed data has shape {shape} per example, that of auxiliary examples {expected}")
    if not torch.isfinite(features).all():
        raise AttackError("smashed data holds NaN or infinite values")


@algorithm
class ServerPrediction(SmashedAttack[Labels], data=("images", "tables"), needs_classes=True, guesses="labels"):
    """Infer the class of each image as the server half's own prediction from its smashed data, in the images' order.

    No defence can prevent this attack and keep the accuracy, because the server needs the prediction. Its score is a baseline for
    the label information that remains. Diagnostics: ``confidence``, the mean probability of the predicted classes.
    """

    source = "the task itself: a server half that classifies smashed data"
    threat = "one transmission of smashed data; the server's own half"

    def attack_one(self, observation: SmashedData, generator: torch.Generator) -> Labels:
        """Predict the classes of the first transmission's targets."""
        try:
            with torch.no_grad():
                logits = observation.server(observation.features[0])[: observation.num_targets]
        except RuntimeError as error:
            raise AttackError(f"the server half does not take these tokens: {error}") from error
        if not torch.isfinite(logits).all():
            raise AttackError("the server half's logits are NaN or infinite")
        confidence, classes = logits.softmax(1).max(1)
        return Labels(classes.cpu(), {"confidence": float(confidence.mean())})

    def failed(self, observation: SmashedData, reason: str) -> Labels:
        """Unknown classes."""
        return Labels(torch.full((observation.num_targets,), -1), failure=reason)
