"""The Cocktail Party Attack: approximate separation of a batch's inputs to a linear layer, like voices in a room."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.base import OWN_OBJECTIVE
from attacks.exact.base import SolvingAttack, recovered
from attacks.exact.linear_layer import GAP, LayerGradient, LowRank, Read, low_rank
from attacks.guesses import Reconstruction
from attacks.normalisation import channel_statistics
from attacks.observations import AttackError, ClientUpdate, NotApplicableError
from defenses.checks import ScaleOrNone, Starts, Steps, algorithm
from defenses.tensors import ImageShape, Numbers

OF_A_GAUSSIAN = 0.374567207
"""E log cosh(z) of a standard normal z, by numerical integration."""
FIXED_POINT_STEPS = 200
SETTLED = 1e-8
"""Change of the direction of a component below which the fixed point has settled."""


LEARNING_RATE, NEGENTROPY, DECORRELATION, TEMPERATURE = 0.005, 10.0, 1.5, 5.0
"""Of the descent's unit rows; weights of negentropy and decorrelation; sharpness of the penalty on pairs of similar rows."""
RELAXATION = 0.02
"""Last weight of the decorrelation divided by its first weight: sources need not be uncorrelated."""
LEAST_GAP = 3.0
"""Of singular values, see ``attacks.exact.linear_layer.GAP``: an approximate answer bears more noise than an exact one."""
BEYOND_RANGE = 0.005
"""Share of an image's pixels that may lie outside of [0, 1] where only the range determines its contrast."""
UNSEEN = 1e-2
"""Share of the usual length below which a component's is not believed."""


@dataclass(frozen=True)
class Whitened:
    """Mixtures with mean square 1 and uncorrelated rows: ``samples`` (R, K) = ``matrix`` (R, R) @ mixtures; double precision."""

    samples: Tensor
    matrix: Tensor

    @classmethod
    def of(cls, mixtures: Tensor, noise: float) -> Whitened | None:
        """Whiten mixtures (R, K), R <= K; None where their rank R is due to ``noise`` alone, relative to the largest."""
        # Singular values instead of the covariance's eigenvalues: weak examples are 1e-4 of strong ones, squares would be lost.
        left, values, right = torch.linalg.svd(mixtures, full_matrices=False)
        if not values[-1] > max(noise, 1e-10) * values[0]:
            return None
        length = math.sqrt(mixtures.shape[1])
        return cls(right * length, (left / values * length).T)


def fixed_point(samples: Tensor, generator: torch.Generator) -> Tensor:
    """Orthonormal rows V (R, R) that make V ``samples`` (R, K), whitened, most independent by log cosh (symmetric FastICA).

    Source: Hyvarinen, "Fast and robust fixed-point algorithms for independent component analysis", IEEE Transactions on Neural
    Networks 1999: the fixed point of several units with symmetric decorrelation, g = tanh.
    """
    rows = _orthonormal(torch.randn(len(samples), len(samples), generator=generator, dtype=samples.dtype))
    for _ in range(FIXED_POINT_STEPS):
        slope = (rows @ samples).tanh()
        step = slope @ samples.T / samples.shape[1] - (1 - slope.square()).mean(1, keepdim=True) * rows
        before, rows = rows, _orthonormal(step)
        if float((1 - (rows * before).sum(1).abs()).max()) < SETTLED:
            break
    return rows


def _orthonormal(rows: Tensor) -> Tensor:
    """The nearest orthonormal rows."""
    left, _, right = torch.linalg.svd(rows)
    nearest: Tensor = left @ right
    return nearest


def negentropy(sources: Tensor) -> Tensor:
    """Distance of sources (R, K) of variance 1 from a Gaussian: (E log cosh(s) - E log cosh(normal))^2, (R,)."""
    size = sources.abs()
    # log cosh without overflow.
    return ((size + F.softplus(-2 * size) - math.log(2)).mean(1) - OF_A_GAUSSIAN).square()


@algorithm
class CocktailParty(
    SolvingAttack,
    effort={"iterations": "iterations", "restarts": "restarts"},
    selection=OWN_OBJECTIVE,
    quick={"iterations": 40, "restarts": 1},
):
    """Separate a linear layer's inputs by independent component analysis: approximate, for any activation, large batches.

    Each row of dL/dW = sum_i dL/dz_i x_i^T is a mixture of the batch's inputs. Its singular value decomposition L R has rank B. The
    attack seeks the B x B matrix U whose product U R is the inputs, each up to a factor. R is whitened and unmixed by the symmetric
    fixed point. From there, a descent continues on the terms of the published objective with other weights, the last of which
    fades. The factors follow from dL/db, the same mixture of inputs that are all 1: x_i = (U R)_i / (U L^T dL/db)_i. For a layer
    without a bias, an image gets the sign and factor with the largest contrast within [0, 1].

    Samples are the differences of neighbouring pixels, in which images are sparse and nearly independent. The published samples,
    values of pixels, fail on digits from our start and with our budget. Differences are linear, so that the same U applies.

    The authors' non-negative, centred objective for features behind convolutions is not implemented.

    Reports "does not apply" if no linear layer sees the pixels, if the batch fills the layer's rank, for several local steps, and
    under noise or pruning that hides the examples' singular values.

    Diagnostics: ``rank``; ``singular_gap`` (noise over signal); ``objective``; ``gradient_distance`` (1 - cosine of the gradients
    of guess and update: near 0 the guess is right); ``outside_share`` (pixels beyond [0, 1] by 0.01 or more).

    Attributes:
        restarts: Fixed points from random starts, each with its descent; the lowest objective is returned.
        iterations: Steps of the descent.
        total_variation: Weight of the mean absolute difference, where these have variance 1.
    """

    source = (
        "Kariyappa, Guo, Maeng, Xiong, Suh, Qureshi, Lee, Cocktail Party Attack: Breaking Aggregation-Based Privacy in Federated "
        "Learning Using Independent Component Analysis, ICML 2023; differences as samples, the start, the bias, the weights and "
        "their annealing are ours"
    )

    restarts: Starts = 2
    iterations: Steps = 600
    total_variation: ScaleOrNone = 6.2

    def solve(self, observation: ClientUpdate, generator: torch.Generator, numbers: Numbers) -> Reconstruction:
        """See ``SolvingAttack``."""
        read = Read.of(observation)
        layer = read.on_pixels()
        gradient = read.of_layer(layer)
        parts = _examples(gradient, observation.num_examples)
        numbers |= {"rank": float(parts.rank), "singular_gap": parts.gap}
        unmixing = self.unmixing(parts, observation.input_shape, generator, numbers)
        mixed = unmixing @ parts.right
        if gradient.bias is None:
            lengths = _by_contrast(mixed, observation)
        else:
            # A component that the bias hardly sees is a difference of examples: wrong, and by that division beyond all bounds.
            by_bias = unmixing @ (parts.left.T @ gradient.bias)
            usual = by_bias.abs().median()
            lengths = torch.where(by_bias.abs() > UNSEEN * usual, by_bias, usual)
        inputs, signals = mixed / lengths[:, None], (parts.left @ torch.linalg.inv(unmixing) * lengths).T
        return recovered(observation, read, layer.module, inputs, signals, numbers)

    def unmixing(self, parts: LowRank, shape: ImageShape, generator: torch.Generator, numbers: Numbers) -> Tensor:
        """U (R, R): its rows turn the mixtures ``parts.right`` into the sources, up to order and factors.

        ``shape`` is (C, H, W) of the sources; ``numbers`` get the ``objective``.
        """
        mixtures, lengths = parts.right, parts.right.norm(dim=1)
        noise = parts.gap * float(lengths.min() / lengths.max())
        differences = _differences(mixtures.view(-1, *shape))
        white = Whitened.of(differences, noise)
        if white is None:
            raise NotApplicableError("an example is constant, or a combination of others, and cannot be separated")
        penalised, tries = white.matrix @ differences, []
        for _ in range(self.restarts):
            rows, objective = self._descend(fixed_point(white.samples, generator), white.samples, penalised)
            if torch.linalg.matrix_rank(rows, rtol=1e-4) == len(rows):
                tries.append((objective, rows))
        if not tries:
            raise AttackError("two components became equal from every start")
        numbers["objective"], rows = min(tries, key=lambda attempt: attempt[0])
        return rows @ white.matrix

    def _descend(self, rows: Tensor, samples: Tensor, penalised: Tensor) -> tuple[Tensor, float]:
        """Unit rows (R, R) where the descent from ``rows`` ends, and the objective there; see ``_objective``."""
        # Single precision: what is left open here is far above its rounding, and steps take half the time.
        mixed, sparse = samples.float(), penalised.float()
        free = rows.float().clone().requires_grad_()
        optimizer = torch.optim.Adam([free], LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.iterations)
        for step in range(self.iterations):
            weight = DECORRELATION * RELAXATION ** (step / max(self.iterations - 1, 1))
            with torch.enable_grad():
                value = self._objective(F.normalize(free, dim=1), mixed, sparse, weight)
                (free.grad,) = torch.autograd.grad(value, [free])
            optimizer.step()
            schedule.step()
        rows = F.normalize(free.detach(), dim=1)
        return rows.to(samples), float(self._objective(rows, mixed, sparse, DECORRELATION * RELAXATION))

    def _objective(self, unit: Tensor, samples: Tensor, penalised: Tensor, decorrelation: float) -> Tensor:
        """Of unit rows v_i, whitened mixtures z and what a prior wants small, p; rows need not be orthogonal.

            - negentropy * mean_i (E log cosh(v_i z) - E log cosh(normal))^2 + total_variation * mean_i |v_i p|
            + decorrelation * mean_ij (exp(temperature |v_i v_j|) - 1)

        Sources that are correlated a little have unmixing rows that are not orthogonal, and the last term only keeps two rows
        from being one: its weight falls from step to step. The value of a Gaussian is subtracted as in Hyvarinen and Oja,
        "Independent component analysis: algorithms and applications", Neural Networks 2000, Eq. 25.
        """
        pairs = decorrelation * (torch.exp(TEMPERATURE * (unit @ unit.T).abs()) - 1).mean()
        prior = self.total_variation * (unit @ penalised).abs().mean() if self.total_variation else 0.0
        return pairs + prior - NEGENTROPY * negentropy(unit @ samples).mean()


def _examples(gradient: LayerGradient, num_examples: int) -> LowRank:
    """The examples' part of a gradient: all of them, or those that stand out as only equal and known examples can be missing."""
    parts = low_rank(gradient, num_examples, LEAST_GAP)
    if parts.rank < num_examples and parts.gap > 1 / GAP:
        raise NotApplicableError(
            f"{parts.rank} of {num_examples} examples stand out from noise, pruning or several local steps"
        )
    return parts


def _differences(images: Tensor) -> Tensor:
    """Of neighbouring pixels across and down, of each image (R, C, H, W): (R, K); the images where they have one pixel alone."""
    across = (images[..., :, 1:] - images[..., :, :-1]).flatten(1)
    both = torch.cat([across, (images[..., 1:, :] - images[..., :-1, :]).flatten(1)], 1)
    return both if both.shape[1] else images.flatten(1)


def _by_contrast(mixed: Tensor, observation: ClientUpdate) -> Tensor:
    """Divisors (R,) of either sign under which an image has the most contrast, and all but a few of its pixels are in [0, 1]."""
    mean, std = channel_statistics(observation, mixed)
    # x * std + mean in [0, 1] for x = component / length: of each pixel the largest 1 / length, for both signs.
    pixels = (mixed.view(-1, *observation.input_shape) * std).flatten(1)
    offset = mean.expand(observation.input_shape).flatten()
    share = [_largest(sign * pixels, offset) for sign in (1.0, -1.0)]
    return 1 / torch.where(share[0] >= share[1], share[0], -share[1])


def _largest(pixels: Tensor, offset: Tensor) -> Tensor:
    """The largest factor (R,) with factor * pixels + offset in [0, 1], for all but a few pixels of each row (R, N)."""
    room = torch.where(pixels > 0, 1 - offset, offset) / pixels.abs().clamp_min(1e-300)
    return room.quantile(BEYOND_RANGE, dim=1)
