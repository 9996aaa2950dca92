"""Gradient inversion that does not match the gradients of defended layers."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import nn

from attacks.base import Knowledge, learned_field
from attacks.gradient.noise_models import MaskedInversion
from attacks.observations import AttackError, ClientUpdate
from defenses.base import Update
from defenses.checks import scale_field
from defenses.updates.soteria import Soteria


@dataclass(frozen=True, repr=False)
class OmittedLayerInversion(MaskedInversion):
    """Match all gradients except the weight gradients of layers that a defence changed.

    ``fit`` takes the layer from the pipeline's ``Soteria``. Otherwise each update is searched: a fully connected layer counts as
    defended if at least ``least_zero`` of the columns of its weight gradient were sent as zero. Soteria zeroes 80 %. A layer
    after smooth activations has no zero columns; after a ReLU, an entry that is zero for every image has one anyway, and omitting
    that layer loses little. Biases are matched, and zeros of other layers are matched as zeros.

    Attributes:
        least_zero: Share of zero columns from which a layer counts as defended.

    Raises:
        AttackError: When nothing would be left to match.
    """

    source = "Balunovic 2022 (Bayesian framework for gradient leakage), section 5 (Soteria)"
    threat = "as GradientInversion, and that some layer's gradient was pruned by columns"

    least_zero: float = scale_field(0.5, most=1)
    learned: Soteria | None = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """The attack for the layer that the pipeline defends: over several steps hardly a column is zero in all of them."""
        stage = next((one for one in knowledge.pipeline.defenses if isinstance(one, Soteria)), None)
        return replace(super().fit(knowledge, generator), learned=stage)

    def observed_gradient(self, observation: ClientUpdate) -> Update:
        """The gradient with zeros, which the cost leaves out, for the weights of defended layers."""
        gradient, omitted = observation.gradient(), self.defended(observation)
        if set(omitted) == set(gradient):
            raise AttackError(f"every gradient has zero columns ({', '.join(omitted)}); nothing is left to match")
        # Zeros that were observed are to be matched: the smallest number is no zero to the cost, and adds nothing.
        return {
            name: torch.zeros_like(value)
            if name in omitted
            else torch.where(value == 0, torch.finfo(value.dtype).tiny, value)
            for name, value in gradient.items()
        }

    def defended(self, observation: ClientUpdate) -> list[str]:
        """Names of the weights that are left out."""
        if self.learned is not None:
            return [f"{self.learned.defended(observation.model)[0]}.weight".lstrip(".")]
        missing = self.missing(observation)
        layers = [name for name, module in observation.model.named_modules() if isinstance(module, nn.Linear)]
        names = [f"{name}.weight".lstrip(".") for name in layers]
        return [
            name for name in names if name in missing and float(missing[name].all(0).double().mean()) >= self.least_zero
        ]
