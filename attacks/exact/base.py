"""Base of attacks that solve the equations of a gradient for its examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn

from attacks.base import Attack
from attacks.exact.example_labels import gradient_distance, labels_of_signals
from attacks.guesses import Reconstruction
from attacks.normalisation import denormalise, normalise
from attacks.observations import AttackError, ClientUpdate
from defenses.base import Update

MOST_GREY = 64
"""Images of a failed guess, at most: an update can cover thousands."""
BEYOND = 0.01
"""Distance from [0, 1] at which a pixel is outside and not rounded."""


@dataclass(frozen=True, repr=False)
class SolvingAttack(Attack[ClientUpdate, Reconstruction]):
    """Base of attacks that solve updates one by one; where the attack does not apply, the guess is grey with a reason.

    Updates are of one step, unless a subclass sets ``needs_one_step`` to False. Equations are few and in double precision, which
    most cards compute slowly: they are solved on the host.
    """

    threat: ClassVar[str] = "global model, one update of one step, its number of examples; no labels, no auxiliary data"
    needs_one_step: ClassVar[bool] = True
    begins_chains: ClassVar[bool] = True

    @property
    def threat_class(self) -> str:
        """Threat model of a server that knows what ``threat`` states: of the training no more than its number of steps."""
        return "B"

    def _attempt(self, observation: ClientUpdate, generator: torch.Generator) -> Reconstruction:
        numbers: dict[str, float] = {}
        try:
            return self.solve(observation, generator, numbers)
        except AttackError as error:
            count = min(observation.num_examples, MOST_GREY)
            return Reconstruction.grey(count, observation.input_shape, str(error), numbers)

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: dict[str, float]) -> Reconstruction:
        """Recover the images; ``numbers`` receives diagnostics, also before an ``AttackError``."""
        raise NotImplementedError


def recovered(
    observation: ClientUpdate,
    model: nn.Module,
    gradient: Update,
    layer: nn.Module,
    inputs: Tensor,
    signals: Tensor,
    numbers: dict[str, float],
) -> Reconstruction:
    """The guess from a layer's recovered pixels (R, C * H * W), normalised, with labels by dL/dz (R, ...) of each example.

    ``model`` is from ``attackable``, ``layer`` a module of it and ``gradient`` the update's, for all parameters.
    """
    if not inputs.isfinite().all():
        raise AttackError("the equations have no finite solution")
    raw = denormalise(inputs.view(-1, *observation.input_shape), observation)
    outside = float(((raw < -BEYOND) | (raw > 1 + BEYOND)).double().mean())
    images = raw.clamp(0, 1).float()
    seen = normalise(images, observation).to(next(iter(gradient.values())))
    labels = labels_of_signals(model, layer, seen, signals)
    distance = gradient_distance(model, seen, labels, gradient)
    return Reconstruction(images, labels, numbers | {"gradient_distance": distance, "outside_share": outside})
