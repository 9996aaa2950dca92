"""The backward attack of delta protection: white-box inversion of features by He, Zhang and Lee."""

from typing import Literal

import torch
from torch import Tensor

from attacks.base import OWN_OBJECTIVE
from attacks.descent import StepRule
from attacks.guesses import Reconstruction
from attacks.image_measures import squared_total_variation
from attacks.normalisation import denormalise
from attacks.queries.base import Inversion, Query, QueryAttack, answers
from attacks.smashed.feature_inversion import without_noise
from defenses.checks import Scale, ScaleOrNone, Steps, algorithm

START_STD = 0.1
"""In units of normalised pixels. Behind a constant image group normalisation divides by almost nothing: the first gradient is
hundreds of times too long, AMSGrad never forgets it, and the search stands still."""


@algorithm
class BackwardReconstruction(
    QueryAttack[Reconstruction], effort={"iterations": "iterations"}, selection=OWN_OBJECTIVE, quick={"iterations": 12}
):
    """Search for an image that the client half maps to the received features, for each image separately.

        argmin_x  mean (f(x) - z)^2 + total_variation * TV(x)

    x is normalised, as the input of the client half, and starts as faint noise around 0; TV is the sum of the mean squared
    differences of neighbours across and down. With the plug-in "ignored", f is the client half alone, as in the paper's attack on
    its own defence. With "included", the adaptive attack, features also pass through the clients' fitted defences without
    noise. Input defences are not undone. The weight of TV depends on the depth of the cut: He et al. use 0 after the first
    convolution, 10 after the second block and 1000 after the third.

    Diagnostics: ``feature_loss`` (the first term) and ``relative_loss`` (divided by the variance of the features; a constant
    would reach 1), means over images. Classes are the server half's predictions.

    Attributes:
        plug_in: "ignored" or "included".
        iterations: Steps of Adam (AMSGrad, epsilon 0.001); 20,000 in the ADP paper. Of each image, the iterate with the lowest
            objective becomes the guess; He et al. take the last.
        learning_rate: In units of normalised pixels.
        total_variation: Weight of TV.
    """

    source = (
        "He, Zhang, Lee, Model Inversion Attacks against Collaborative Inference, ACSAC 2019, white box, as ADP uses it"
    )
    threat = "one query; weights of the client half; included: the defences' algorithm and what they have learned"

    plug_in: Literal["ignored", "included"] = "included"
    iterations: Steps = 5000
    learning_rate: Scale = 0.01
    total_variation: ScaleOrNone = 10.0

    @property
    def knows_defenses(self) -> bool:
        """Whether the plug-in is included; otherwise the attack inverts only the client half."""
        return self.plug_in == "included"

    def attack_one(self, observation: Query, generator: torch.Generator) -> Reconstruction:
        """Invert the features, from a random start."""
        target, noiseless = observation.features.detach(), without_noise(observation.pipeline)

        def send(inputs: Tensor) -> Tensor:
            features: Tensor = observation.client_model(inputs)
            if not self.knows_defenses:
                return features
            return noiseless.decode_features(noiseless.encode_features(features, ("assumed",)))

        def prior(inputs: Tensor) -> Tensor:
            return self.total_variation * squared_total_variation(inputs)

        rule = StepRule(self.learning_rate, epsilon=1e-3)
        # One draw for all images: the start of an image must not depend on how many others there are.
        noise = torch.randn(observation.input_shape, generator=generator, dtype=target.dtype) * START_STD
        spread = target.flatten(1).var(1, correction=0).clamp_min(1e-12)
        inverted, numbers = Inversion(send, target, prior, torch.ones_like(spread)).search(
            noise.to(target.device).repeat(len(target), 1, 1, 1), self.iterations, rule, spread
        )
        return Reconstruction(denormalise(inverted, observation).clamp(0, 1), answers(observation), numbers)
