"""The known break of InstaHide, which solves many encodings of the same images together."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.base import OWN_OBJECTIVE, Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.observations import AttackError
from attacks.placement import HOST, Placement
from attacks.uploads.base import CollectionAttack, UploadedCollection
from defenses.checks import Starts, Steps, algorithm
from defenses.images.instahide import InstaHide
from defenses.tensors import Shape

INNER = 6
"""Alternations of signs and least squares from each candidate of a search."""
SWEEPS, RANDOM_STARTS = 2, 4
"""Of a search for signs: passes over its candidates, and how many of these are random."""
WEIGHT_STEPS = 15
"""Accelerated gradient steps on the weights per round."""
START_STD = 0.5
"""Of a random candidate around the prior, in units of pixels from -1 to 1."""


FIRST_PRIOR, LAST_PRIOR, SHRINK = 10.0, 1e-4, 0.85
"""Weight of the class means in the images' least squares, against the encodings: first, last, and from iteration to iteration."""


class MagnitudeSystem:
    """Absolute values A (M, D) of mixtures of N images X (N, D) in [-1, 1] by weights W (M, N).

    A row of W is not negative, and its entries at images of class c (``classes`` (N,)) add up to the known share of c (``shares``
    (M, K)). ``prior`` (N, D) is what the images look like on average; C * H * W = D.
    """

    def __init__(self, magnitudes: Tensor, shares: Tensor, classes: Tensor, prior: Tensor, image_shape: Shape) -> None:
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
        solution: Tensor = torch.linalg.solve(gram, weights.T @ (signs * self.magnitudes) + strength * self.prior)
        return solution.clamp(-1, 1)

    def searched(self, weights: Tensor, images: Tensor, strength: float, generator: torch.Generator) -> Tensor:
        """Images (N, D) of a lower objective, where other signs have one: every pixel is a problem of its own.

        From each candidate (the values of a neighbouring pixel, the negative image, random ones) signs and least squares
        alternate; a pixel keeps what explains it best. A negative image is as good but for the prior, which decides.
        """
        gram = weights.T @ weights + strength * torch.eye(weights.shape[1], dtype=weights.dtype)
        inverse = torch.linalg.solve(gram, weights.T)
        offset = strength * torch.linalg.solve(gram, self.prior)

        def settled(pixels: Tensor) -> tuple[Tensor, Tensor]:
            for _ in range(INNER):
                pixels = (inverse @ (signs_of(weights @ pixels) * self.magnitudes) + offset).clamp(-1, 1)
            error = (self.magnitudes - (weights @ pixels).abs()).square().sum(0)
            return pixels, error + strength * (pixels - self.prior).square().sum(0)

        best, lowest = settled(images)
        for _ in range(SWEEPS):
            for candidate in list(self._candidates(best, generator)):
                tried, objective = settled(candidate)
                better = objective < lowest
                best, lowest = torch.where(better, tried, best), torch.where(better, objective, lowest)
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


POLISH_FROM, POLISH_EVERY = 1 / 6, 10
"""Share of the iterations behind which signs are searched for, too, and how often."""


class _Known(NamedTuple):
    """The server's own images of each class, as values in [-1, 1]."""

    values: Tensor  # (n, D) float64
    classes: Tensor  # (n,) int64
    means: Tensor  # (K, D)


@algorithm
class JointEncodingInversion(
    CollectionAttack,
    needs_auxiliary=True,
    effort={"iterations": "iterations", "restarts": "restarts"},
    selection=OWN_OBJECTIVE,
    quick={"iterations": 6, "restarts": 1},
):
    """Recover a client's images from all its uploads under InstaHide, which encodes each image several times.

    Encoding m is s_m * sum_j w_mj x_j with pixels in [-1, 1] and secret signs s_m, so that

        |encoding_m| = |sum_j w_mj x_j|,      sum of w_mj over j of class c = entry c of the uploaded label, exactly:

    labels are mixed by the same weights. With M encodings of N images there are M equations in N unknowns for each pixel. Labels
    give the classes in an encoding, but not the images within a class. Starting from the server's own images of the right classes,
    the attack alternates between

    1. signs of every mixture, from the current images and weights;
    2. weights: least squares on the signed encodings, within the labels' shares (``MagnitudeSystem.weights``);
    3. images: least squares on the signed encodings, with the class means as a prior that fades;
    4. in some rounds, a search for signs of a lower objective, pixel by pixel (``MagnitudeSystem.searched``).

    The start that explains the encodings with the lowest error is returned. Guesses are a set, in ascending order of class. If the
    pipeline has no InstaHide they are the first upload of each image.

    Differs from the paper in the matching of images and encodings: the paper trains a network on pairs and clusters; here the
    labels give the classes, and alternating minimisation finds the rest. This is the "inside-dataset" variant, which mixes in no
    public image.

    Attributes:
        iterations: Rounds of the four steps from each start.
        restarts: Number of starts.
    """

    source = "Carlini et al., Is Private Learning Possible with Instance Encoding?, IEEE S&P 2021, section 4"
    threat = "all uploads of a client, InstaHide's algorithm (never its draws), auxiliary images with labels"

    iterations: Steps = 150
    restarts: Starts = 2
    learned: tuple[_Known, ...] = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> JointEncodingInversion:
        """Keep the server's own images by class; without InstaHide in the pipeline, nothing."""
        if not any(isinstance(defense, InstaHide) for defense in knowledge.pipeline.defenses):
            return replace(self, learned=())
        own = Placement(HOST).moved(knowledge.auxiliary)
        if not len(own):
            raise AttackError(f"{self} starts from auxiliary images, and there are none")
        values, classes = _centred(own.images), own.targets.argmax(1)
        shares = F.one_hot(classes, own.targets.shape[1]).double()
        counts = shares.sum(0)[:, None]
        # A class that the server has no image of looks like the mean of all.
        means = torch.where(counts > 0, shares.T @ values / counts.clamp(min=1), values.mean(0))
        return replace(self, learned=(_Known(values, classes, means),))

    @torch.no_grad()
    def attack_one(self, observation: UploadedCollection, generator: torch.Generator) -> Reconstruction:
        """Solve all encodings together; without InstaHide, return the first upload of each image."""
        seen = Placement(HOST).moved(observation)
        plain = seen.first_pass()
        if not self.learned:
            return plain
        known = self.learned[0]
        if seen.passes < 2:
            raise AttackError(
                "each image has a single encoding; allowed: two or more (upload-passes), to find the signs"
            )
        if seen.images[0].numel() != known.values.shape[1]:
            raise AttackError(
                f"images have shape {tuple(seen.images.shape[1:])}, auxiliary ones {known.values.shape[1]} values"
            )
        classes = count_classes(seen)
        system = MagnitudeSystem(
            _centred(seen.images).abs(), seen.targets.double(), classes, known.means[classes], seen.images.shape[1:]
        )
        ends = [self._solve(system, self._start(classes, known, generator), generator) for _ in range(self.restarts)]
        best = min(range(len(ends)), key=lambda at: ends[at][1])
        images = ((ends[best][0] + 1) / 2).view(len(classes), *seen.images.shape[1:]).float().clamp(0, 1)
        notes = {"objective": ends[best][1], "restart": float(best), "equations": len(seen.images) / len(classes)}
        return replace(plain, images=images, labels=classes, diagnostics=notes)

    def _start(self, classes: Tensor, known: _Known, generator: torch.Generator) -> Tensor:
        """Images (N, D) of the right classes, drawn from the server's own."""
        start = known.means[classes].clone()
        for number in sorted(set(classes.tolist())):
            rows, own = (classes == number).nonzero().flatten(), (known.classes == number).nonzero().flatten()
            chosen = own[torch.randperm(len(own), generator=generator)[: len(rows)]]
            start[rows[: len(chosen)]] = known.values[chosen]
        return start

    def _solve(self, system: MagnitudeSystem, images: Tensor, generator: torch.Generator) -> tuple[Tensor, float]:
        """Images (N, D) in [-1, 1], and their mean squared error in explaining the encodings."""
        weights = system.even_weights()
        signs = signs_of(weights @ system.prior)
        for at in range(self.iterations):
            weights = system.weights(weights, images, signs, WEIGHT_STEPS)
            images = system.images(weights, signs_of(weights @ images), max(FIRST_PRIOR * SHRINK**at, LAST_PRIOR))
            if at >= POLISH_FROM * self.iterations and at % POLISH_EVERY == POLISH_EVERY - 1:
                images = system.searched(weights, images, LAST_PRIOR, generator)
            signs = signs_of(weights @ images)
        return images, system.error(weights, images)


def count_classes(seen: UploadedCollection) -> Tensor:
    """The class of each image of a client, in ascending order: (N,) int64.

    Each pass mixes every image into as many encodings as any other, by weights whose sum has the mean 1: so the labels of a pass
    add up to the classes' numbers, on average. Numbers are rounded down, and up where most is missing, to N together.
    """
    sums = seen.targets.double().sum(0) / seen.passes
    counts = sums.floor().long()
    missing = len(seen.images) // seen.passes - int(counts.sum())
    counts[(sums - sums.floor()).argsort(descending=True)[: max(missing, 0)]] += 1
    return torch.repeat_interleave(torch.arange(len(counts)), counts)


def _centred(images: Tensor) -> Tensor:
    """2 x - 1 of images in [0, 1]: (B, D) float64."""
    return (2 * images.detach().cpu().double() - 1).flatten(1)
