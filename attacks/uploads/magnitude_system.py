"""A linear system of which only absolute values are known: |W X| = A, for shared weights W and images X that are both unknown."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

INNER = 6
"""Alternations of signs and least squares from each candidate of a search."""
SWEEPS, RANDOM_STARTS = 2, 4
"""Of a search for signs: passes over its candidates, and how many of these are random."""
START_STD = 0.5
"""Of a random candidate around the prior, in units of pixels from -1 to 1."""


class MagnitudeSystem:
    """Absolute values A (M, D) of mixtures of N images X (N, D) in [-1, 1] by weights W (M, N).

    A row of W is not negative, and its entries at images of class c (``classes`` (N,)) add up to the known share of c (``shares``
    (M, K)). ``prior`` (N, D) is what the images look like on average; C * H * W = D.
    """

    def __init__(
        self, magnitudes: Tensor, shares: Tensor, classes: Tensor, prior: Tensor, image_shape: tuple[int, ...]
    ) -> None:
        self.magnitudes, self.shares, self.classes, self.prior = magnitudes, shares, classes, prior
        self.image_shape = tuple(image_shape)

    def even_weights(self) -> Tensor:
        """W (M, N) that divides each share evenly among the images of its class."""
        nothing = self.magnitudes.new_zeros(len(self.magnitudes), len(self.classes))
        return project_onto_shares(nothing, self.shares, self.classes)

    def weights(self, start: Tensor, images: Tensor, signs: Tensor, steps: int) -> Tensor:
        """W (M, N) that lowers ||W X - S * A||^2 from ``start``: accelerated projected gradient (Beck and Teboulle 2009, FISTA)."""
        gram, wanted = images @ images.T, (signs * self.magnitudes) @ images.T
        rate = 1 / torch.linalg.eigvalsh(gram)[-1].clamp(min=1e-12)
        weights = ahead = start
        momentum = 1.0
        for _ in range(steps):
            moved = project_onto_shares(ahead - rate * (ahead @ gram - wanted), self.shares, self.classes)
            following = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
            ahead = moved + (momentum - 1) / following * (moved - weights)
            weights, momentum = moved, following
        return weights

    def images(self, weights: Tensor, signs: Tensor, strength: float) -> Tensor:
        """argmin_X ||W X - S * A||^2 + strength ||X - prior||^2, (N, D), then clamped to [-1, 1]."""
        gram = weights.T @ weights + strength * torch.eye(weights.shape[1], dtype=weights.dtype)
        found: Tensor = torch.linalg.solve(gram, weights.T @ (signs * self.magnitudes) + strength * self.prior)
        return found.clamp(-1, 1)

    def searched(self, weights: Tensor, images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
        """Images (N, D) of a lower objective, where other signs have one: every pixel is a problem of its own.

        From each candidate (the values of a neighbouring pixel, the negative image, random ones) signs and least squares
        alternate; a pixel keeps what explains it best. A negative image is as good but for the prior, which decides.
        """
        gram = weights.T @ weights + strength * torch.eye(weights.shape[1], dtype=weights.dtype)
        inverse = torch.linalg.solve(gram, weights.T)
        offset = strength * torch.linalg.solve(gram, self.prior)

        def settled(found: Tensor) -> tuple[Tensor, Tensor]:
            for _ in range(INNER):
                found = (inverse @ (signs_of(weights @ found) * self.magnitudes) + offset).clamp(-1, 1)
            error = (self.magnitudes - (weights @ found).abs()).square().sum(0)
            return found, error + strength * (found - self.prior).square().sum(0)

        best, lowest = settled(images)
        for _ in range(SWEEPS):
            for candidate in list(self._candidates(best, generator)):
                found, objective = settled(candidate)
                better = objective < lowest
                best, lowest = torch.where(better, found, best), torch.where(better, objective, lowest)
        return best

    def _candidates(self, images: Tensor, generator: torch.Generator) -> Iterator[Tensor]:
        whole = images.view(-1, *self.image_shape)
        for shift in ((0, 1), (1, 0), (0, -1), (-1, 0)):
            yield whole.roll(shift, (-2, -1)).reshape(images.shape)
        yield -images
        for _ in range(RANDOM_STARTS):
            noise = torch.randn(images.shape, dtype=images.dtype, generator=generator)
            yield (self.prior + START_STD * noise).clamp(-1, 1)

    def error(self, weights: Tensor, images: Tensor) -> float:
        """Mean squared difference between |W X| and A."""
        return float((self.magnitudes - (weights @ images).abs()).square().mean())


def project_onto_shares(weights: Tensor, shares: Tensor, classes: Tensor) -> Tensor:
    """The nearest weights (M, N) that are not negative and add up to shares (M, K) over the images of each of K classes.

    A class without an image has no say. Source: Duchi et al., "Efficient Projections onto the l1-Ball", ICML 2008, Figure 1.
    """
    projected = torch.zeros_like(weights)
    for number in sorted(set(classes.tolist())):
        columns, share = (classes == number).nonzero().flatten(), shares[:, number, None]
        own = weights[:, columns]
        excess = own.sort(1, descending=True).values
        sums, places = excess.cumsum(1) - share, torch.arange(1, len(columns) + 1)
        count = (excess * places > sums).sum(1, keepdim=True).clamp(min=1)
        threshold = sums.gather(1, count - 1) / count
        projected[:, columns] = torch.where(share > 0, (own - threshold).clamp(min=0), 0.0)
    return projected


def signs_of(values: Tensor) -> Tensor:
    """1 or -1, of the shape of ``values``; 1 for zero."""
    return torch.where(values < 0, -1.0, 1.0).to(values)
