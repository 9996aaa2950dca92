"""The backward attack of delta protection: white-box inversion of features by He, Zhang and Lee."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from attacks.base import OWN_OBJECTIVE
from attacks.descent import StepRule
from attacks.guesses import Reconstruction
from attacks.image_measures import squared_total_variation
from attacks.normalisation import denormalise
from attacks.queries.base import Query, QueryAttack
from attacks.queries.inversion import Inversion, answers, faint_noise
from attacks.smashed.feature_inversion import without_noise
from defenses.checks import choice_field, scale_field, steps_field

IGNORED, INCLUDED = PLUG_INS = ("ignored", "included")


@dataclass(frozen=True, repr=False)
class BackwardReconstruction(QueryAttack[Reconstruction]):
    """Searches, for each image alone, what the client half maps to the features that the server was given.

        argmin_x  mean (f(x) - z)^2 + total_variation * TV(x) + energy * mean x^2

    x is normalised, as the client half sees it, and starts as faint noise around 0; TV is the sum of the mean squared differences
    of neighbours across and down. f is the client half alone where the plug-in is "ignored", as the paper attacks its own defence.
    Where it is "included", features pass through the clients' defences too, noise left out, with what they have learned: the
    adaptive attack. Input defences are not undone. The weight of TV has to follow the depth of the cut: He et al. give 0 behind the
    first convolution, 10 behind the second block and 1000 behind the third.

    Diagnostics: ``feature_loss`` (the first term) and ``relative_loss`` (over the variance of the features; 1 is what a constant
    would reach), means over images. Classes are those that the server half answers with.

    Attributes:
        plug_in: "ignored" or "included".
        iterations: Steps of Adam (AMSGrad, epsilon 0.001); 20,000 in the ADP paper. Of each image, the iterate with the lowest
            objective becomes the guess; He et al. take the last.
        learning_rate: In units of normalised pixels.
        total_variation: Weight of TV.
        energy: Weight of the mean square.
    """

    source: ClassVar[str] = (
        "He, Zhang, Lee, Model Inversion Attacks against Collaborative Inference, ACSAC 2019, white box, as ADP uses it"
    )
    threat: ClassVar[str] = (
        "one query; weights of the client half; included: the defences' algorithm and what they have learned"
    )
    effort: ClassVar[Mapping[str, str]] = {"iterations": "iterations"}
    selection: ClassVar[str] = OWN_OBJECTIVE
    quick: ClassVar[Mapping[str, Any]] = {"iterations": 12}

    plug_in: str = choice_field(INCLUDED, PLUG_INS)
    iterations: int = steps_field(5000)
    learning_rate: float = scale_field(0.01)
    total_variation: float = scale_field(10.0, zero=True)
    energy: float = scale_field(0.0, zero=True)

    @property
    def knows_defenses(self) -> bool:
        """Only where the plug-in is included: around it, only the client half is inverted."""
        return self.plug_in == INCLUDED

    def attack_one(self, observation: Query, generator: torch.Generator) -> Reconstruction:
        """Inverts the features; random is where it starts."""
        target, noiseless = observation.features.detach(), without_noise(observation.pipeline)

        def send(inputs: Tensor) -> Tensor:
            features: Tensor = observation.client_model(inputs)
            if not self.knows_defenses:
                return features
            return noiseless.decode_features(noiseless.encode_features(features, ("assumed",)))

        def prior(inputs: Tensor) -> Tensor:
            rough = self.total_variation * squared_total_variation(inputs)
            return rough + self.energy * inputs.square().flatten(1).mean(1)

        rule = StepRule(self.learning_rate, epsilon=1e-3)
        spread = target.flatten(1).var(1, correction=0).clamp_min(1e-12)
        found, numbers = Inversion(send, target, prior, torch.ones_like(spread)).search(
            faint_noise(observation, target, generator), self.iterations, rule, spread
        )
        return Reconstruction(denormalise(found, observation).clamp(0, 1), answers(observation), numbers)
