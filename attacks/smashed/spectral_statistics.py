"""Where a spectral patch comes from, by the second-order statistics of the spectra of auxiliary images."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.sender import Sender
from attacks.smashed.base import check_features

MOST_IMAGES = 3000
FREEDOM = 3.0
"""Degrees of freedom of the multivariate t distribution: spectra of images have heavy tails."""
STEPS = 2
RIDGE = 1e-6
LEAST = -200.0
"""Log-probabilities count no less."""


@dataclass(frozen=True)
class SpectralStatistics:
    """A multivariate t distribution of the received patches of each position, after division by an image's median energy.

    Attributes:
        mean: (N, D), of each position.
        factor: (N, D, D), Cholesky factors of the scale matrices.
        diagnostics: ``position_accuracy``, of the position that is most probable alone, on the images it was fitted to.
    """

    mean: Tensor
    factor: Tensor
    diagnostics: dict[str, float]

    @classmethod
    def of(cls, sender: Sender, images: Tensor, generator: torch.Generator) -> SpectralStatistics:
        """Send auxiliary images (M, C, H, W) in [0, 1], and fit one distribution for each position by fixed-point iterations."""
        received, order = sender.send_with_order(images[:MOST_IMAGES], generator)
        slots = (order % order.shape[1]).argsort(1).to(received.device)
        ordered = scaled(received)[torch.arange(len(slots), device=slots.device).unsqueeze(1), slots]
        dim = ordered.shape[2]
        means, factors = [], []
        for values in ordered.unbind(1):
            mean = values.mean(0)
            centred = values - mean
            scale = _regular(centred.T @ centred / len(centred))
            for _ in range(STEPS):
                distance = (centred @ torch.linalg.inv(scale) * centred).sum(1, keepdim=True)
                weights = (FREEDOM + dim) / (FREEDOM + distance)
                scale = _regular((centred * weights).T @ centred / len(centred))
            means.append(mean)
            factors.append(torch.linalg.cholesky(scale))
        fitted = cls(torch.stack(means), torch.stack(factors), {})
        probable = fitted.scores(fitted(received[:32])).argmax(2).cpu()
        fitted.diagnostics["position_accuracy"] = float((probable == order[:32] % order.shape[1]).double().mean())
        return fitted

    def check(self, features: Tensor) -> None:
        """Raise ``AttackError`` unless smashed data (R, B, N, D) are those it was fitted to."""
        check_features(features, tuple(self.mean.shape))

    def __call__(self, features: Tensor) -> Tensor:
        """Log-probability of each position for each received patch, (B, N, D) -> (B, N, N)."""
        values, dim = scaled(features), self.mean.shape[1]
        found = []
        for mean, factor in zip(self.mean, self.factor, strict=True):
            white = torch.linalg.solve_triangular(factor, (values.flatten(0, 1) - mean).T, upper=False)
            distance = white.square().sum(0).view(values.shape[:2])
            found.append(-(FREEDOM + dim) / 2 * torch.log1p(distance / FREEDOM) - factor.diagonal().log().sum())
        return torch.stack(found, 2).log_softmax(2).clamp_min(LEAST).float()

    def scores(self, reading: Tensor) -> Tensor:
        """The log-probabilities themselves, as ``TokenReader.scores`` gives them."""
        return reading


def scaled(features: Tensor) -> Tensor:
    """Patches (B, N, D) over the square root of their image's median energy, in double precision."""
    exact = features.double()
    energy = exact.square().sum(2).median(1).values.clamp_min(1e-24)
    return exact / energy.sqrt().view(-1, 1, 1)


def _regular(matrix: Tensor) -> Tensor:
    return matrix + RIDGE * matrix.diagonal().mean() * torch.eye(len(matrix), dtype=matrix.dtype, device=matrix.device)
