"""Images with given features: from the inputs of a linear layer behind a convolutional network back to the pixels."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.descent import StepRule, minimise
from attacks.exact.base import gradient_distance, labels_of_signals
from attacks.exact.linear_layer import LinearLayer, Read
from attacks.guesses import Reconstruction
from attacks.image_measures import total_variation
from attacks.normalisation import normalise
from attacks.observations import ClientUpdate
from defenses.base import Numbers
from defenses.module_calls import calls_of


@dataclass(frozen=True)
class FeatureImages:
    """argmin_x  |phi(x) - a|^2 / (numel(a) Var(a)) + prior * TV(x), for each image; phi is the network below a layer.

    Attributes:
        iterations: Steps of Adam (AMSGrad). The lowest objective is returned.
        learning_rate: Of images in [0, 1], falling to zero along a half cosine.
        prior: Weight of the total variation.

    Source: Kariyappa et al. 2023 (Cocktail Party Attack), section 5, after Mahendran and Vedaldi 2015, Eq. 1.
    """

    iterations: int = 600
    learning_rate: float = 0.05
    prior: float = 1e-2

    def guess(
        self,
        features: Tensor,
        read: Read,
        layer: LinearLayer,
        observation: ClientUpdate,
        numbers: Numbers,
        *,
        signals: Tensor | None = None,
        labels: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Reconstruction:
        """Images whose features are nearest to the layer's inputs (R, N), with given labels or labels from dL/dz (R, M).

        They start as uniform noise, or as grey images without a generator; ``numbers`` get ``feature_loss``, ``relative_loss`` and
        ``gradient_distance``.
        """
        features = features.to(next(iter(read.gradient.values())))
        spread = features.var().clamp_min(1e-12)

        def errors(images: Tensor) -> Tensor:
            with calls_of([layer.module]) as calls:
                read.model(normalise(images, observation))
            squares: Tensor = (calls[0][1] - features).square()
            return squares.mean(1)

        shape = (len(features), *observation.input_shape)
        start = torch.full(shape, 0.5) if generator is None else torch.rand(shape, generator=generator)
        with torch.enable_grad():
            rule = StepRule(self.learning_rate, in_range=True)
            images, _ = minimise(
                lambda one: errors(one) / spread + self.prior * total_variation(one),
                start.to(features),
                self.iterations,
                rule,
            )
        loss = float(errors(images.detach()).mean().detach())
        numbers |= {"feature_loss": loss, "relative_loss": loss / float(spread)}
        seen = normalise(images, observation)
        if labels is None:
            assert signals is not None
            labels = labels_of_signals(read.model, layer.module, seen, signals)
        numbers["gradient_distance"] = gradient_distance(read.model, seen, labels, read.gradient)
        return Reconstruction(images.float().cpu(), labels, numbers)
