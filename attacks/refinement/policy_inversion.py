"""Undoing ATS: find the drawn policy of a transformed image, and invert it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

import torch
from torch import Tensor

from attacks.base import Knowledge, learned_field
from attacks.guesses import Reconstruction
from attacks.observations import AttackError, ClientUpdate
from attacks.refinement.base import Refinement
from defenses.checks import algorithm
from defenses.images.ats import ATS, parse_policies
from defenses.images.transforms import LIBRARY, apply_transform, blend, luma, magnitude, mean_grey, rotate, smooth
from defenses.tensors import Shape, TensorMap

DIRECTED = ("shearY", "translateX", "translateY", "color", "contrast", "sharpness", "brightness")
ROUNDS = 12
_START: dict[str, TensorMap] = {"color": luma, "contrast": mean_grey, "brightness": torch.zeros_like}


MOST_DRAWS = 4096
COMPONENTS, MOST_IMAGES = 64, 1000
"""Principal components of the density of a draw's results (a probabilistic PCA), and auxiliary images that it is made of."""
NOISE = 0.05
"""Assumed standard deviation of errors in recovered pixels, for pixels in [0, 1]."""


def has_direction(index: int) -> bool:
    """Whether transform ``index`` goes either way, by the sign that is drawn for it."""
    return LIBRARY[index].name in DIRECTED


def changes_nothing(index: int, channels: int) -> bool:
    """Whether transform ``index`` is the identity on images of that many channels."""
    name, level = LIBRARY[index]
    still = name == "solarize" and magnitude(name, level) > 255
    return still or (has_direction(index) and level == 0) or (name == "color" and channels == 1)


def invert_transform(images: Tensor, index: int, sign: int) -> Tensor:
    """Undoes transform ``index`` (0 to 49), applied with this sign, as far as a formula can: (B, C, H, W) in [0, 1].

    Shear, shift and rotation go the other way; pixels that they pushed out of the frame stay black or grey. Invert is its own
    inverse. Blends are divided by their factor, which is exact where nothing was clipped (contrast: where the mean survived).
    Equalize, autocontrast, posterize and solarize are not one to one and are left as they are.
    """
    name, level = LIBRARY[index]
    size = magnitude(name, level)
    if name in ("shearY", "translateX", "translateY"):
        return apply_transform(images, index, torch.full((len(images),), -float(sign)))
    if name == "rotate":
        return rotate(images, -size)
    if name == "invert":
        return 1 - images
    change = sign * size
    if name == "sharpness":
        return _unsharpen(images, change)
    if name in ("color", "contrast", "brightness"):
        return blend(_START[name](images), images, images.new_tensor(1 / (1 + change) - 1))
    return images


def _unsharpen(images: Tensor, change: float) -> Tensor:
    """Solves y = (1 + c) x - c S x by x <- x + y - F(x), which contracts: the eigenvalues of c (1 - S) are below 1/2 in size."""
    guess = images
    for _ in range(ROUNDS):
        guess = guess + images - (guess * (1 + change) - smooth(guess) * change)
    return guess.clamp(0, 1)


Steps = tuple[tuple[int, int], ...]
"""What one draw of ATS does: (index of the transform, sign), from left to right."""


class Draw(NamedTuple):
    """One thing that ATS may have done: ``steps``, with a ``probability``, by policy number ``policy``."""

    steps: Steps
    policy: int
    probability: float


class _Gaussian(NamedTuple):
    """Probabilistic PCA on D pixels: N(mean, basis diag(variances) basis^T + rest (I - basis basis^T))."""

    mean: Tensor  # (D,)
    basis: Tensor  # (D, q), orthonormal columns
    variances: Tensor  # (q,)
    rest: float

    def log_density(self, points: Tensor) -> Tensor:
        """(n, D) -> (n,)."""
        centred = points - self.mean
        inside = centred @ self.basis
        outside = (centred.square().sum(1) - inside.square().sum(1)).clamp(min=0)
        distance = (inside.square() / self.variances).sum(1) + outside / self.rest
        size, rank = self.basis.shape
        volume = self.variances.log().sum() + (size - rank) * math.log(self.rest)
        return -0.5 * (distance + volume + size * math.log(2 * math.pi))


class _Undo(NamedTuple):
    """What is known about one draw: how its results are distributed, and what its approximate inverse gets wrong."""

    draw: Draw
    density: _Gaussian  # of its results
    error: Tensor  # (D,) mean of original - inverse
    weights: Tensor  # (q, D): error - mean error, from coordinates in the basis

    def score(self, images: Tensor, restored: Tensor) -> Tensor:
        """How probable the draw is for images (n, C, H, W), of which it would have made ``restored``: (n,)."""
        misfit = (_forward(restored, self.draw.steps) - images).square().flatten(1).sum(1) / (2 * NOISE**2)
        return self.density.log_density(images.flatten(1)) + math.log(self.draw.probability) - misfit

    def restore(self, images: Tensor) -> Tensor:
        """(n, C, H, W) -> the same: the inverse, plus the mean of its error given what is seen."""
        inverse = _backward(images, self.draw.steps).flatten(1)
        guess = inverse + self.error + (images.flatten(1) - self.density.mean) @ self.density.basis @ self.weights
        return guess.view(images.shape).clamp(0, 1)


@algorithm
class PolicyInversion(Refinement, needs_auxiliary=True, selection="most probable draw"):
    """Find the policy and signs that ATS drew for a recovered image, and undo them.

    ATS draws one of a few policies and a sign per step, so that all possible draws can be listed. Each draw T is applied to the
    auxiliary images, which gives a density of its results and a linear estimate of the error of its approximate inverse T^-.
    The guess comes from the most probable draw:

        T* = argmax_T  log p_T(x~) + log P(T) - |T(x^_T) - x~|^2 / (2 NOISE^2)
        x^_T = T^-(x~) + E[x - T^-(T(x)) | T(x) = x~]

    The expectation is that of the joint Gaussian with the covariances of the auxiliary images. If T loses no information the error
    is zero; pixels that T moved out of the frame get their mean given the visible pixels. Balunovic et al. 2022 attack ATS early
    in training instead.
    """

    source = "our adaptive attack on ATS; density: Tipping and Bishop 1999, Eq. 4-9"
    threat = "recovered images, the ATS policies (never the draws), auxiliary images like the clients'"

    learned: tuple[_Undo, ...] = learned_field()

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> PolicyInversion:
        """Learn the effect of each draw of the pipeline's first ATS on auxiliary images; without ATS, learn nothing."""
        defense = next((d for d in knowledge.pipeline.defenses if isinstance(d, ATS)), None)
        if defense is None:
            return replace(self, learned=())
        count = len(knowledge.auxiliary)
        if count < 2:
            raise AttackError(f"PolicyInversion needs at least 2 auxiliary images, got {count}")
        images = knowledge.auxiliary.images[torch.randperm(count, generator=generator)[:MOST_IMAGES]].float()
        draws = possible_draws(parse_policies(defense.policies), images.shape[1])
        return replace(self, learned=tuple(self._learn(draw, images) for draw in draws))

    @torch.no_grad()
    def _learn(self, draw: Draw, images: Tensor) -> _Undo:
        seen = _forward(images, draw.steps)
        error = (images - _backward(seen, draw.steps)).flatten(1)
        points = seen.flatten(1)
        density = fit_gaussian(points, COMPONENTS, NOISE)
        inside = (points - density.mean) @ density.basis
        # The covariance of the result is diagonal in its own principal components; the variances include the noise.
        weights = inside.T @ (error - error.mean(0)) / len(points) / density.variances[:, None]
        return _Undo(draw, density, error.mean(0), weights)

    @torch.no_grad()
    def refine(self, observation: ClientUpdate, guess: Reconstruction, generator: torch.Generator) -> Reconstruction:
        """Undo ATS in every image; deterministic.

        Added diagnostics: "ats-draws" (number of possible draws; 0 without ATS), "ats-policy" (number of the chosen policy, from 0;
        the mean over images) and "ats-margin" (log score minus that of the second draw, mean; infinite if there is one draw).
        """
        learned = self.learned or ()
        notes = guess.diagnostics | {"ats-draws": float(len(learned))}
        if not learned:
            return replace(guess, diagnostics=notes)
        mean = learned[0].density.mean
        images = guess.images.detach().to(mean)
        if images[0].numel() != len(mean):
            raise AttackError(f"images have shape {tuple(images.shape[1:])}, auxiliary ones {len(mean)} values")
        restored = torch.stack([undo.restore(images) for undo in learned])  # (draws, n, C, H, W)
        scores = torch.stack([undo.score(images, x) for undo, x in zip(learned, restored, strict=True)])
        ranked = scores.sort(0, descending=True)
        best = ranked.indices[0]  # (n,)
        policies = torch.tensor([undo.draw.policy for undo in learned])[best.cpu()]
        margin = (ranked.values[0] - ranked.values[1]).mean().item() if len(learned) > 1 else math.inf
        notes |= {"ats-policy": policies.float().mean().item(), "ats-margin": margin}
        return replace(guess, images=restored[best, torch.arange(len(images))].to(guess.images), diagnostics=notes)


def possible_draws(policies: Sequence[Shape], channels: int) -> list[Draw]:
    """All possible draws of ATS, each once, with its probability: policies and signs.

    Steps without effect are left out; equal draws are merged under the first policy that has them.
    """
    draws: dict[Steps, Draw] = {}
    for number, policy in enumerate(policies):
        options = [_options(index, channels) for index in policy]
        if math.prod(map(len, options)) > MOST_DRAWS:
            raise AttackError(f"policy {policy} can be drawn in more than {MOST_DRAWS} ways")
        for draw in product(*options):
            steps: Steps = tuple(step for part in draw for step in part)
            probability = 1 / math.prod(map(len, options)) / len(policies)
            known = draws.get(steps, Draw(steps, number, 0.0))
            draws[steps] = known._replace(probability=known.probability + probability)
    return list(draws.values())


def _options(index: int, channels: int) -> list[Steps]:
    """What one step may do, each with the same probability: one step or none."""
    if changes_nothing(index, channels):
        return [()]
    return [((index, sign),) for sign in ((1, -1) if has_direction(index) else (1,))]


def fit_gaussian(points: Tensor, components: int, noise: float) -> _Gaussian:
    """Maximum-likelihood probabilistic PCA of (N, D) points, to which independent noise of this standard deviation is added."""
    centred = points - points.mean(0)
    # Double precision: pixels that never vary make the small eigenvalues exact zeros.
    gram = (
        centred.double() @ centred.double().T
        if len(points) < points.shape[1]
        else centred.double().T @ centred.double()
    )
    values, vectors = torch.linalg.eigh(gram)
    kept = min(components, len(points) - 1, points.shape[1] - 1)
    values, vectors = values.flip(0)[:kept].clamp(min=1e-12), vectors.flip(1)[:, :kept]
    basis = vectors if gram.shape[0] == points.shape[1] else centred.double().T @ vectors / values.sqrt()
    variances = values / len(points)
    left = (centred.double().square().sum() / len(points) - variances.sum()).clamp(min=0)
    rest = left.item() / (points.shape[1] - kept) + noise**2
    return _Gaussian(points.mean(0), basis.to(points), (variances + noise**2).to(points), rest)


def _forward(images: Tensor, steps: Steps) -> Tensor:
    for index, sign in steps:
        images = apply_transform(images, index, torch.full((len(images),), float(sign)))
    return images


def _backward(images: Tensor, steps: Steps) -> Tensor:
    for index, sign in reversed(steps):
        images = invert_transform(images, index, sign)
    return images
