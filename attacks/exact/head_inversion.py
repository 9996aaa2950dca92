"""Recovery of a linear layer's inputs behind a convolutional network, and of images with these features."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch

from attacks.base import OWN_OBJECTIVE
from attacks.exact.base import SolvingAttack
from attacks.exact.class_features import class_features
from attacks.exact.feature_images import FeatureImages
from attacks.exact.linear_layer import Read, low_rank
from attacks.exact.spear import Spear
from attacks.guesses import Reconstruction
from attacks.observations import ClientUpdate
from defenses.checks import scale_field, steps_field


@dataclass(frozen=True, repr=False)
class HeadInversion(SolvingAttack):
    """Solve for the input features of the first linear layer, then optimise images until they have these features.

    The features a_i are exact: for one example a = (dL/dW)_j / (dL/db)_j, for several ``Spear`` if a ReLU follows the layer. With
    phi the network below the layer, at the weights that the client started from,

        argmin_x  |phi(x) - a|^2 / (numel(a) Var(a)) + total_variation * TV(x),    for each image separately.

    phi loses information (pooling, strides), more the deeper it is: the features are exact and the images are not.

    If the only linear layer is the last, without a ReLU after it, features of several examples follow from their classes
    (``class_features``). This is approximate, and needs distinct classes of the examples and a class without an example.

    Reports "does not apply" if no linear layer sees one vector of each example, and for an update of several steps. For two or more
    examples, the conditions of ``Spear`` or distinct classes are needed too. Batches are harder than for pixels: an untrained
    network has nearly the same features for all images, so that too few directions are found (the failure states how many).

    Diagnostics: those of ``Spear``; ``feature_loss`` (mean squared error of the features) and ``relative_loss`` (divided by their
    variance; far from 0 the descent failed); ``leak`` (see ``class_features``); ``gradient_distance`` (1 - cosine of the gradients
    of guess and update).

    Attributes:
        iterations: Steps of Adam (AMSGrad). The lowest objective is returned.
        learning_rate: Learning rate for images in [0, 1], falling to zero along a half cosine.
        total_variation: Weight of the image prior.
        max_samples: ``max_samples`` of ``Spear``.
        max_descents: ``max_descents`` of ``Spear``.
    """

    source: ClassVar[str] = (
        "features: Phong et al. 2017, section 3, and Dimitrov et al. 2024 (SPEAR), Algorithm 1; their inversion: Kariyappa et al. "
        "2023 (Cocktail Party Attack), section 5, after Mahendran and Vedaldi 2015, Eq. 1"
    )
    effort: ClassVar[Mapping[str, str]] = {"iterations": "iterations"}
    selection: ClassVar[str] = OWN_OBJECTIVE
    quick: ClassVar[Mapping[str, Any]] = {"iterations": 40, "max_samples": 20_000, "max_descents": 256}

    iterations: int = steps_field(600)
    learning_rate: float = scale_field(0.05)
    total_variation: float = scale_field(1e-2, zero=True)
    max_samples: int = steps_field(1_000_000)
    max_descents: int = steps_field(5_000)

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: dict[str, float]) -> Reconstruction:
        """See ``SolvingAttack``."""
        read = Read.of(observation)
        layer, solver = read.first_layer(), Spear(max_samples=self.max_samples, max_descents=self.max_descents)
        below = FeatureImages(self.iterations, self.learning_rate, self.total_variation)
        if observation.num_examples > 1 and layer.is_head:
            low_rank(read.of_layer(layer), observation.num_examples)  # refuses noise
            known = class_features(read.of_layer(layer), observation.num_examples)
            numbers["leak"] = known.leak
            return below.guess(known.features, read, layer, observation, numbers, labels=known.labels)
        found = solver.factors(read.of_layer(layer), layer, observation.num_examples, generator, numbers)
        return below.guess(found.inputs, read, layer, observation, numbers, signals=found.signals)
