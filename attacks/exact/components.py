"""Independent component analysis of few mixtures of many samples: by a fixed point, then by a descent with priors."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

OF_A_GAUSSIAN = 0.374567207
"""E log cosh(z) of a standard normal z, by numerical integration."""
FIXED_POINT_STEPS = 200
SETTLED = 1e-8
"""Change of the direction of a component below which the fixed point has settled."""


@dataclass(frozen=True)
class Whitened:
    """Mixtures with mean square 1 and no mean product; double precision.

    Attributes:
        samples: (R, K) = ``matrix`` @ mixtures.
        matrix: (R, R).
    """

    samples: Tensor
    matrix: Tensor

    @classmethod
    def of(cls, mixtures: Tensor, noise: float) -> Whitened | None:
        """Of mixtures (R, K), R <= K; None where they have rank R by their ``noise`` alone, relative to the largest."""
        # Singular values instead of the covariance's eigenvalues: weak examples are 1e-4 of strong ones, squares would be lost.
        left, values, right = torch.linalg.svd(mixtures, full_matrices=False)
        if not values[-1] > max(noise, 1e-10) * values[0]:
            return None
        length = math.sqrt(mixtures.shape[1])
        return cls(right * length, (left / values * length).T)


def fixed_point(samples: Tensor, generator: torch.Generator) -> Tensor:
    """Orthonormal rows V (R, R) for which V ``samples`` (R, K), whitened, are as independent as log cosh tells (symmetric FastICA).

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


@dataclass(frozen=True)
class Unmixing:
    """Unmixes by a descent with priors, from given rows to the minimum over unit rows v_i of this.

        - negentropy * mean_i (E log cosh(v_i z) - E log cosh(normal))^2 + prior * mean_i |v_i p|
        + decorrelation * mean_ij (exp(temperature |v_i v_j|) - 1),

    z the whitened mixtures and |v_i p| the mean of the absolute values of what a prior wants small. Rows need not be orthogonal:
    sources that are correlated a little have unmixing rows that are not, and the last term only keeps two rows from being one. So
    its weight falls from step to step, to ``relaxation`` times the first.

    Attributes:
        iterations: Steps of Adam.
        learning_rate: Of unit rows, falling to zero along a half cosine.
        negentropy: Weight.
        prior: Weight.
        decorrelation: Weight in the first step.
        temperature: How sharply one pair of like rows counts among the others.
        relaxation: Weight of decorrelation in the last step, over that in the first.

    Source: Kariyappa et al. 2023 (Cocktail Party Attack), the objective for fully connected layers; the value of a Gaussian is
    subtracted as in Hyvarinen and Oja, "Independent component analysis: algorithms and applications", Neural Networks 2000, Eq. 25.
    """

    iterations: int
    learning_rate: float
    negentropy: float
    prior: float
    decorrelation: float
    temperature: float
    relaxation: float

    def descend(self, rows: Tensor, samples: Tensor, penalised: Tensor) -> tuple[Tensor, float]:
        """Unit rows (R, R) where the descent from ``rows`` ends, and the objective there.

        Args:
            rows: Where to start, (R, R).
            samples: Whitened mixtures (R, K).
            penalised: p, (R, K'), linear in the mixtures.
        """
        # Single precision: what is left open here is far above its rounding, and steps take half the time.
        mixed, sparse = samples.float(), penalised.float()
        free = rows.float().clone().requires_grad_()
        optimizer = torch.optim.Adam([free], self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.iterations)
        for step in range(self.iterations):
            weight = self.decorrelation * self.relaxation ** (step / max(self.iterations - 1, 1))
            with torch.enable_grad():
                value = self._objective(F.normalize(free, dim=1), mixed, sparse, weight)
                (free.grad,) = torch.autograd.grad(value, [free])
            optimizer.step()
            schedule.step()
        rows = F.normalize(free.detach(), dim=1)
        final = self._objective(rows, mixed, sparse, self.decorrelation * self.relaxation)
        return rows.to(samples), float(final)

    def _objective(self, unit: Tensor, samples: Tensor, penalised: Tensor, decorrelation: float) -> Tensor:
        pairs = decorrelation * (torch.exp(self.temperature * (unit @ unit.T).abs()) - 1).mean()
        prior = self.prior * (unit @ penalised).abs().mean() if self.prior else 0.0
        return pairs + prior - self.negentropy * negentropy(unit @ samples).mean()


def negentropy(sources: Tensor) -> Tensor:
    """How far sources (R, K) of variance 1 are from a Gaussian: (E log cosh(s) - E log cosh(normal))^2, (R,)."""
    size = sources.abs()
    # log cosh without overflow.
    return ((size + F.softplus(-2 * size) - math.log(2)).mean(1) - OF_A_GAUSSIAN).square()
