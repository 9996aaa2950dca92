"""The known break of InstaHide, which solves many encodings of the same images together."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.base import OWN_OBJECTIVE, Knowledge
from attacks.guesses import Reconstruction
from attacks.observations import AttackError
from attacks.placement import HOST, Placement
from attacks.uploads.base import CollectionAttack, UploadedCollection
from attacks.uploads.magnitude_system import MagnitudeSystem, signs_of
from defenses.checks import starts_field, steps_field
from defenses.images.instahide import InstaHide

FIRST_PRIOR, LAST_PRIOR, SHRINK = 10.0, 1e-4, 0.85
"""Weight of the class means in the images' least squares, against the encodings: first, last, and from iteration to iteration."""
POLISH_FROM, POLISH_EVERY = 1 / 6, 10
"""Share of the iterations behind which signs are searched for, too, and how often."""


class _Known(NamedTuple):
    """The server's own images of each class, as values in [-1, 1]."""

    values: Tensor  # (n, D) float64
    classes: Tensor  # (n,) int64
    means: Tensor  # (K, D)


@dataclass(frozen=True, repr=False)
class JointEncodingInversion(CollectionAttack):
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
        weight_steps: Accelerated gradient steps on the weights per round.
    """

    source: ClassVar[str] = (
        "Carlini et al., Is Private Learning Possible with Instance Encoding?, IEEE S&P 2021, section 4"
    )
    threat: ClassVar[str] = (
        "all uploads of a client, InstaHide's algorithm (never its draws), auxiliary images with labels"
    )
    needs_auxiliary: ClassVar[bool] = True
    effort: ClassVar[Mapping[str, str]] = {"iterations": "iterations", "restarts": "restarts"}
    selection: ClassVar[str] = OWN_OBJECTIVE
    quick: ClassVar[Mapping[str, Any]] = {"iterations": 6, "restarts": 1}

    iterations: int = steps_field(150)
    restarts: int = starts_field(2)
    weight_steps: int = steps_field(15)
    learned: tuple[_Known, ...] | None = field(default=None, repr=False, compare=False)

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> JointEncodingInversion:
        """Keep the server's own images by class; without InstaHide in the pipeline, nothing."""
        if not any(isinstance(one, InstaHide) for one in knowledge.pipeline.defenses):
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
            weights = system.weights(weights, images, signs, self.weight_steps)
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
