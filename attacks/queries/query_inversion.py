"""White-box inversion of queries: find images that the client's side maps to the sent tensor."""

import torch
from torch.nn import functional as F

from attacks.base import OWN_OBJECTIVE
from attacks.descent import StepRule
from attacks.guesses import Reconstruction
from attacks.image_measures import total_variation
from attacks.normalisation import channel_statistics
from attacks.queries.base import Inversion, Query, QueryAttack, answers
from attacks.sender import Sender
from attacks.smashed.feature_inversion import without_noise
from defenses.checks import ScaleOrNone, Steps, algorithm

LEARNING_RATE = 0.1
"""Of images in [0, 1], falling to zero along a half cosine."""
SMOOTH_STD, SMOOTH_GRID = 0.3, 4
"""Of the noise to start from, as in ``BackwardReconstruction``, drawn at so many points a side and interpolated between: a weak
prior leaves of a start what the client half does not see, and what is left of smooth noise disturbs an image less."""


@algorithm
class QueryInversion(
    QueryAttack[Reconstruction], effort={"iterations": "iterations"}, selection=OWN_OBJECTIVE, quick={"iterations": 12}
):
    """Optimise images until a client would send the observed query for them.

        argmin_x  |P(F(x)) - z|^2 / (numel(z) Var(z)) + total_variation * TV(x)

    F is the client half, in eval mode; P are the clients' fitted defences of features, without noise. Input defences are not
    undone: the guess is the client half's input. Images start as smooth noise around grey and are kept in [0, 1]; the guess
    of each is the iterate with the lowest objective. He et al. start from a constant image and do not divide the squared error by
    the variance, so that their weight of the prior depends on the layer.

    Diagnostics: ``feature_loss`` (mean squared error of the sent tensor) and ``relative_loss`` (divided by its variance; a constant
    would reach 1). If the second is far from 0, the inversion itself failed. Classes are the server half's predictions.

    Attributes:
        iterations: Steps of Adam (AMSGrad).
        total_variation: Weight of the image prior.
    """

    source = "He, Zhang, Lee, Model Inversion Attacks against Collaborative Inference, ACSAC 2019, Algorithm 1"
    threat = "one query; weights of the client half; the defences' algorithm and what they have learned"

    iterations: Steps = 300
    total_variation: ScaleOrNone = 0.01

    def attack_one(self, observation: Query, generator: torch.Generator) -> Reconstruction:
        """Invert the sent tensor, from a random start."""
        latent = observation.latent
        spread = latent.var(correction=0).clamp_min(1e-12)
        noiseless = without_noise(observation.pipeline)
        sender = Sender(observation.client_model, noiseless, observation.mean, observation.std)
        inversion = Inversion(
            send=lambda images: sender.latent(images, ("assumed",)),
            target=latent,
            prior=lambda images: self.total_variation * total_variation(images),
            scale=spread,
        )
        _, std = channel_statistics(observation, latent)
        channels, *sides = observation.input_shape
        grid = torch.randn(1, channels, SMOOTH_GRID, SMOOTH_GRID, generator=generator, dtype=latent.dtype) * SMOOTH_STD
        noise = F.interpolate(grid, sides, mode="bilinear", align_corners=True)
        start = (0.5 + std * noise.to(latent.device).repeat(len(latent), 1, 1, 1)).clamp(0, 1)
        images, numbers = inversion.search(start, self.iterations, StepRule(LEARNING_RATE, in_range=True), spread)
        return Reconstruction(images, answers(observation), numbers)
