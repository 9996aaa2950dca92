"""Trap weights: a first layer whose neurons are each active for only a few images of a batch."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Self

import torch
from torch import Tensor, nn

from attacks.active.base import ActiveAttack, AgreedModel, batch_guess, overwrite_linear, pixel_gradient, share_outside
from attacks.active.imprint_layer import MOST_OUTSIDE, ROUNDING
from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.normalisation import denormalise
from attacks.observations import AttackError, ClientUpdate
from defenses.checks import SMALLEST, algorithm, checked_field, is_number, scale_field, width_field
from defenses.tensors import Numbers

SAME = 1e-3
"""Mean squared error, in [0, 1], below which two neurons show the same image."""
HALVINGS = 40
"""Of the interval in which the scale lies."""


@algorithm
class TrapWeights(
    ActiveAttack,
    needs_auxiliary=True,
    selection="repeated by several neurons, pixels within [0, 1]",
    quick={"activation": 0.4},
):
    """Set the first linear layer so that few images activate each neuron, and recover one image from each neuron's gradient.

    A random half of each row's weights is negative, -|n| with n ~ N(0, 1); the other half holds the same numbers in another order
    times ``-factor``. On pixels in [0, 1] both halves nearly cancel; the factor, slightly below 1, decides how often the sum is
    positive. Bisection on auxiliary images finds the factor at which a share ``activation`` of them activates a neuron. If image i
    alone activates neuron k, (dL/dW)_k / (dL/db)_k = x_i. Several images give a mean weighted by their signals, which differs
    between neurons. A quotient repeated by several neurons is therefore an image: such quotients come first, then quotients within
    [0, 1], then the others. Diagnostics: ``neurons_on``, and ``repeated``, the number of repeated images.

    Reports "does not apply" for a model without a linear layer on the pixels that is followed by a ReLU, such as ``cnn``. The paper
    also passes pixels through convolutions made into identities, which pooling would blur here.

    Attributes:
        activation: Share of auxiliary images that activate a neuron, on average over neurons; about 1 / batch size is best.
        rows: Number of manipulated neurons, at most those of the layer; the others are never active. 0: all.
        scale: Standard deviation of the weights times the square root of the number of inputs; torch's own weights have 0.58.
    """

    source = (
        "Boenisch, Dziedzic, Schuster, Shamsabadi, Shumailov, Papernot, When the Curious Abandon Honesty: Federated Learning Is "
        "Not Private, EuroS&P 2023, trap weights; quotients: Phong et al. 2017, section 3"
    )
    threat = (
        "sends a model of its own making, of the agreed architecture; knows one update of one step; auxiliary images for the "
        "scale"
    )

    activation: float = checked_field(
        0.05, lambda share: is_number(share) and SMALLEST <= share < 1, f"a number from {SMALLEST:g}, below 1"
    )
    rows: int = width_field(0, 0)
    scale: float = scale_field(0.58)
    learned: float = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Learn the factor between the halves."""
        images = knowledge.auxiliary.images.flatten(1).double()
        if not len(images):
            raise AttackError(f"{self} needs auxiliary images for its scale, and there are none")
        negative, positive = (half.to(images) for half in self._halves(256, images.shape[1], generator))
        below, above, low, high = images @ negative.T, images @ positive.T, 0.0, 2.0
        for _ in range(HALVINGS):
            factor = (low + high) / 2
            often = float((below + factor * above > 0).double().mean()) > self.activation
            low, high = (low, factor) if often else (factor, high)
        return replace(self, learned=low)

    def _halves(self, rows: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Negative and positive weights (rows, size) each, zero in the other half; double."""
        half = size // 2
        drawn = torch.randn(rows, half, generator=generator, dtype=torch.float64).abs()
        places = torch.rand(rows, size, generator=generator).argsort(1)
        shuffled = drawn.gather(1, torch.rand(rows, half, generator=generator).argsort(1))
        empty = torch.zeros(rows, size, dtype=torch.float64)
        unit = self.scale / size**0.5
        return empty.scatter(1, places[:, :half], -unit * drawn), empty.scatter(
            1, places[:, half : 2 * half], unit * shuffled
        )

    def manipulated(self, agreed: AgreedModel, generator: torch.Generator) -> nn.Module:
        """Return the agreed model with trap weights in its first layer."""
        self.check_fitted()
        layer, model = agreed.pixel_layer(), copy.deepcopy(agreed.model)
        neurons, size = layer.module.weight.shape
        used = self.rows or neurons
        if used > neurons:
            raise AttackError(
                f"does not apply: layer {layer.name!r} has {neurons} neurons, and rows is {used}; allowed: 0 to {neurons}"
            )
        negative, positive = self._halves(used, size, generator)
        weights, constants = agreed.for_pixels(negative + self.learned * positive)
        weight, bias = torch.zeros(neurons, size).double(), -torch.ones(neurons).double()  # the others never turn on
        weight[:used], bias[:used] = weights, constants
        overwrite_linear(model, layer.name, weight, bias)
        return model

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``; nothing is random."""
        weight, bias = pixel_gradient(observation)
        used = bias.abs() > ROUNDING * bias.abs().max()
        if not used.any():
            raise AttackError("does not apply: no image turned a neuron on")
        quotients = weight[used] / bias[used, None]
        images = denormalise(quotients.view(-1, *observation.input_shape), observation)
        images = images[images.flatten(1).isfinite().all(1)]
        numbers["neurons_on"] = float(used.sum())
        return batch_guess(observation, list(_surest_first(images, numbers)), numbers)


def _surest_first(images: Tensor, numbers: Numbers) -> Tensor:
    """Each of the neurons' images (K, C, H, W) once: those that most neurons show first, and of others those within [0, 1]."""
    outside, flat = share_outside(images), images.clamp(-1, 2).flatten(1)
    # Without the matrix-product shortcut, which loses the digits that tell equal images from alike ones.
    apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square() / flat.shape[1]
    alike = (apart < SAME) & (outside <= MOST_OUTSIDE)[:, None]
    support = alike.sum(1)
    left, kept = torch.ones(len(images), dtype=torch.bool), list[int]()
    for at in sorted(range(len(images)), key=lambda at: (-int(support[at]), float(outside[at]))):
        if left[at]:
            kept.append(at)
            left &= apart[at] >= SAME
    numbers["repeated"] = float((support[kept] > 1).sum())
    return images[kept]
