"""Manipulated first layers: the imprint layer of Robbing the Fed, which sorts a batch into bins, and trap weights."""

import copy
from dataclasses import replace
from typing import Annotated, Self

import torch
from torch import Tensor, nn

from attacks.active.base import ActiveAttack, AgreedModel, batch_guess, overwrite_linear, pixel_gradient, share_outside
from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.normalisation import denormalise
from attacks.observations import AttackError, ClientUpdate, NotApplicableError
from defenses.checks import Limit, algorithm
from defenses.tensors import Numbers

MOST_BINS = 10**6
"""Most bins: more than any layer has rows."""
SCALE = 0.01
"""Of rows and biases. An update is a difference of two float32 weights: what small weights lose in it is small. The layer behind is
as much larger, so that the gradient is, too."""
ROUNDING = 1e-5
"""Share of the largest signal below which a bin is empty: what is left there are rounding errors of the sums."""
MOST_OUTSIDE = 0.05
"""Share of pixels beyond [0, 1] up to which a bin counts as one image's: noise adds some, a mixture has many."""


@algorithm
class ImprintLayer(
    ActiveAttack, needs_auxiliary=True, selection="measurement within its bin, pixels within [0, 1]", quick={"bins": 16}
):
    """Sort the batch into bins by brightness, and recover exactly each image that is alone in its bin.

    The brightness is the mean of all pixels, h(x) = d . x. The first ``bins`` rows of the linear layer on the pixels become d,
    their biases -c_k. The thresholds c_1 < c_2 < ... divide the auxiliary images evenly, and neuron k is active if h(x) > c_k. The
    next layer's columns for these neurons become equal, so that an image has the same signal delta_i in all neurons that it
    activates. Then

        (dL/dW_k - dL/dW_(k+1)) / (dL/db_k - dL/db_(k+1)) = sum of delta_i x_i / sum of delta_i   over c_k < h(x_i) <= c_(k+1),

    which is x_i if only one image lies in the bin. If B images fall evenly into K bins, B (1 - 1/K)^(B-1) images are expected to be
    alone. A quotient counts as such an image (diagnostic ``bins_read``) if its own h lies in the bin and its pixels in [0, 1].
    The other guesses are mixtures, or grey.

    Reports "does not apply" for a model that does not begin with a linear layer, a ReLU and another linear layer, as ``mlp`` does.
    The paper's server adds the module; here only weights are manipulated, because clients can check the architecture.

    Attributes:
        bins: K, the number of manipulated rows; at most the neurons of the layer.
    """

    source = (
        "Fowl, Geiping, Czaja, Goldblum, Goldstein, Robbing the Fed: Directly Obtaining Private Data in Federated Learning with "
        "Modified Models, ICLR 2022, the imprint module"
    )
    threat = (
        "sends a model of its own making, of the agreed architecture; knows one update of one step; auxiliary images for "
        "quantiles"
    )

    bins: Annotated[int, Limit(2, MOST_BINS)] = 64
    learned: tuple[Tensor, Tensor] = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> Self:
        """Learn the thresholds (K,) of the mean of all pixels, and keep its direction (C * H * W,); in double precision."""
        images = knowledge.auxiliary.images.flatten(1).double()
        if len(images) < 2:
            raise AttackError(f"{self} needs 2 auxiliary images for its quantiles, and there are {len(images)}")
        size = images.shape[1]
        direction = torch.ones(size, dtype=torch.float64) / size
        measured = (images @ direction.to(images)).cpu()
        inner = measured.quantile(torch.arange(1, self.bins, dtype=torch.float64) / self.bins)
        # No image is below the first: one that turns no neuron on would leave nothing behind.
        lowest = measured.min() - 2 * (measured.max() - measured.min())
        return replace(self, learned=(direction, torch.cat([lowest[None], inner])))

    def manipulated(self, agreed: AgreedModel, generator: torch.Generator) -> nn.Module:
        """Return the agreed model with the imprint in its first layer, and equal columns in the next layer."""
        self.check_fitted()
        layer, model = agreed.pixel_layer(), copy.deepcopy(agreed.model)
        behind, (neurons, size) = agreed.layer_behind(layer), layer.module.weight.shape
        if neurons < self.bins:
            raise NotApplicableError(
                f"layer {layer.name!r} has {neurons} neurons, and bins is {self.bins}; allowed: 2 to {neurons}"
            )
        direction, thresholds = self.learned
        weights, constants = agreed.for_pixels(direction.expand(self.bins, size))
        weight, bias = torch.zeros(neurons, size).double(), -torch.ones(neurons).double()  # the others never turn on
        weight[: self.bins], bias[: self.bins] = weights, constants - thresholds
        overwrite_linear(model, layer.name, SCALE * weight, SCALE * bias)
        next_layer = model.get_submodule(behind)
        assert isinstance(next_layer, nn.Linear)
        # A typical image turns half of the neurons on: with this length it is seen as about one of unit size.
        typical = (thresholds[self.bins // 2] - thresholds).clamp(min=0).sum().clamp(min=1e-9)
        column = torch.randn(len(next_layer.weight), generator=generator, dtype=torch.float64) / (SCALE * typical)
        columns = next_layer.weight.detach().clone()
        columns[:, : self.bins] = column[:, None].to(columns)
        overwrite_linear(model, behind, columns)
        return model

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``; nothing is random."""
        parts = pixel_gradient(observation, self.bins, "no bias, or fewer neurons than bins")
        # Differences of neighbours: (K, C * H * W) and (K,).
        weight, signal = (_between(part[: self.bins]) for part in parts)
        used, images = _quotients(observation, weight, signal, "an imprinted neuron")
        direction, thresholds = self.learned
        upper = torch.cat([thresholds[1:], thresholds.new_full((1,), float("inf"))])
        measured, slack = images.flatten(1) @ direction, 0.1 * (thresholds[-1] - thresholds[1]) / self.bins
        inside = (measured > thresholds[used] - slack) & (measured <= upper[used] + slack)
        alone = inside & (share_outside(images) <= MOST_OUTSIDE)
        order = sorted(range(len(images)), key=lambda at: (not alone[at], -float(signal[used][at].abs())))
        numbers |= {"bins_used": float(used.sum()), "bins_read": float(alone.sum())}
        finite = [at for at in order if images[at].isfinite().all()]
        return batch_guess(observation, [images[at] for at in finite], numbers)


def _quotients(observation: ClientUpdate, weight: Tensor, signal: Tensor, what: str) -> tuple[Tensor, Tensor]:
    """Which neurons' signals (K,) are more than rounding, and the images that their weights' gradients (K, C * H * W) hold."""
    used = signal.abs() > ROUNDING * signal.abs().max()
    if not used.any():
        raise NotApplicableError(f"no image turned {what} on")
    return used, denormalise((weight[used] / signal[used, None]).view(-1, *observation.input_shape), observation)


def _between(rows: Tensor) -> Tensor:
    """Of rows (K, ...) each without what the next one holds as well."""
    return torch.cat([rows[:-1] - rows[1:], rows[-1:]])


TRAP_SCALE = 0.58
"""Standard deviation of the weights times the square root of the number of inputs, as of torch's own weights."""
SAME = 1e-3
"""Mean squared error, in [0, 1], below which two neurons show the same image."""
ACTIVATION = 0.05
"""Share of auxiliary images that activate a neuron of trap weights, on average over neurons; about 1 / batch size is best."""
HALVINGS = 40
"""Of the interval in which the scale lies."""


@algorithm
class TrapWeights(ActiveAttack, needs_auxiliary=True, selection="repeated by several neurons, pixels within [0, 1]"):
    """Set the first linear layer so that few images activate each neuron, and recover one image from each neuron's gradient.

    A random half of each row's weights is negative, -|n| with n ~ N(0, 1); the other half holds the same numbers in another order
    times ``-factor``. On pixels in [0, 1] both halves nearly cancel; the factor, slightly below 1, decides how often the sum is
    positive. Bisection on auxiliary images finds the factor at which a share ``ACTIVATION`` of them activates a neuron. If image i
    alone activates neuron k, (dL/dW)_k / (dL/db)_k = x_i. Several images give a mean weighted by their signals, which differs
    between neurons. A quotient repeated by several neurons is therefore an image: such quotients come first, then quotients within
    [0, 1], then the others. Diagnostics: ``neurons_on``, and ``repeated``, the number of repeated images.

    Reports "does not apply" for a model without a linear layer on the pixels that is followed by a ReLU, such as ``cnn``. The paper
    also passes pixels through convolutions made into identities, which pooling would blur here.
    """

    source = (
        "Boenisch, Dziedzic, Schuster, Shamsabadi, Shumailov, Papernot, When the Curious Abandon Honesty: Federated Learning Is "
        "Not Private, EuroS&P 2023, trap weights; quotients: Phong et al. 2017, section 3"
    )
    threat = (
        "sends a model of its own making, of the agreed architecture; knows one update of one step; auxiliary images for the "
        "scale"
    )

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
            often = float((below + factor * above > 0).double().mean()) > ACTIVATION
            low, high = (low, factor) if often else (factor, high)
        return replace(self, learned=low)

    def _halves(self, rows: int, size: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Negative and positive weights (rows, size) each, zero in the other half; double."""
        half = size // 2
        drawn = torch.randn(rows, half, generator=generator, dtype=torch.float64).abs()
        places = torch.rand(rows, size, generator=generator).argsort(1)
        shuffled = drawn.gather(1, torch.rand(rows, half, generator=generator).argsort(1))
        empty = torch.zeros(rows, size, dtype=torch.float64)
        unit = TRAP_SCALE / size**0.5
        return empty.scatter(1, places[:, :half], -unit * drawn), empty.scatter(
            1, places[:, half : 2 * half], unit * shuffled
        )

    def manipulated(self, agreed: AgreedModel, generator: torch.Generator) -> nn.Module:
        """Return the agreed model with trap weights in its first layer."""
        self.check_fitted()
        layer, model = agreed.pixel_layer(), copy.deepcopy(agreed.model)
        neurons, size = layer.module.weight.shape
        negative, positive = self._halves(neurons, size, generator)
        overwrite_linear(model, layer.name, *agreed.for_pixels(negative + self.learned * positive))
        return model

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``; nothing is random."""
        weight, bias = pixel_gradient(observation)
        used, images = _quotients(observation, weight, bias, "a neuron")
        images = images[images.flatten(1).isfinite().all(1)]
        numbers["neurons_on"] = float(used.sum())
        return batch_guess(observation, list(_surest_first(images, numbers)), numbers)


def _surest_first(images: Tensor, numbers: Numbers) -> Tensor:
    """Each of the neurons' images (K, C, H, W) once: those that most neurons show first, and of others those within [0, 1]."""
    outside, flat = share_outside(images), images.clamp(-1, 2).flatten(1)
    # Without the matrix-product shortcut, which loses the digits that tell equal images from alike ones.
    apart = torch.cdist(flat, flat, compute_mode="donot_use_mm_for_euclid_dist").square() / flat.shape[1]
    support = ((apart < SAME) & (outside <= MOST_OUTSIDE)[:, None]).sum(1)
    left, kept = torch.ones(len(images), dtype=torch.bool), list[int]()
    for at in sorted(range(len(images)), key=lambda at: (-int(support[at]), float(outside[at]))):
        if left[at]:
            kept.append(at)
            left &= apart[at] >= SAME
    numbers["repeated"] = float((support[kept] > 1).sum())
    return images[kept]
