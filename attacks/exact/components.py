"""Independent component analysis of few mixtures with many samples: by a fixed point, then by a descent with priors."""

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
    """Mixtures with mean square 1 and uncorrelated rows; double precision.

    Attributes:
        samples: (R, K) = ``matrix`` @ mixtures.
        matrix: (R, R).
    """

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
