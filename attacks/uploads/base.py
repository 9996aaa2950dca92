"""Uploads as the server of outsourced training observes them, and the attacks that take images as uploaded, or average them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks.assignment import assigned
from attacks.base import Attack, Knowledge
from attacks.guesses import Reconstruction
from attacks.observations import AttackError, TrainingUpdate
from defenses.checks import algorithm
from defenses.images.visual_mixer import VisualMixer

NOT_FINITE = "the uploaded images are not finite"


@dataclass(frozen=True)
class UploadedImages:
    """Images that one client uploaded in one batch.

    Attributes:
        images: (B, C, H, W), after all input defences; in [0, 1] unless a defence leaves that range.
        labels: (B,) int64, the uploaded classes; for a mixed label, the class with the largest share.
    """

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class UploadedCollection:
    """All images that one client uploaded: every image in each of several passes, after all input defences.

    Attributes:
        images: (M, C, H, W), pass after pass; the order within a pass is the client's and differs between passes.
        targets: (M, K), the uploaded labels; rows sum to 1.
        passes: How often each image was uploaded; M is a multiple of it.
    """

    images: Tensor
    targets: Tensor
    passes: int

    def first_pass(self) -> Reconstruction:
        """The guess that takes the first pass's images as uploaded."""
        if not torch.isfinite(self.images).all():
            raise AttackError(NOT_FINITE)
        count = len(self.images) // self.passes
        return Reconstruction(self.images[:count].float().clamp(0, 1), self.targets[:count].argmax(1))


class CollectionAttack(Attack[UploadedCollection, Reconstruction], observes=UploadedCollection):
    """Base of attacks on all uploads of a client, with one guess for each of the client's images."""

    def failed(self, observation: UploadedCollection, reason: str) -> Reconstruction:
        """Grey images with the labels of the first pass."""
        labels = observation.targets[: len(observation.targets) // observation.passes].argmax(1)
        return Reconstruction(torch.full((len(labels), *observation.images.shape[1:]), 0.5), labels, failure=reason)


class TrainedModel(TrainingUpdate):
    """The model that the server trained on all uploads, which any party that gets the model can attack."""


@algorithm
class AsUploaded(Attack[UploadedImages, Reconstruction], observes=UploadedImages, begins_chains=True):
    """Take the uploaded images as the guess, without an attack: what a defence of images hides from a passive viewer.

    Refinements can follow without an inversion: ``AsUploaded() | LearnedRestorer()``.
    """

    source = "VisualMixer (NDSS 2024), threat model"
    threat = "the uploaded images; no auxiliary data"

    def attack_one(self, observation: UploadedImages, generator: torch.Generator) -> Reconstruction:
        """The uploaded images; deterministic."""
        if not torch.isfinite(observation.images).all():
            raise AttackError(NOT_FINITE)
        return Reconstruction(observation.images.float().clamp(0, 1), observation.labels)

    def failed(self, observation: UploadedImages, reason: str) -> Reconstruction:
        """Grey images with the uploaded labels."""
        return Reconstruction(torch.full_like(observation.images.float(), 0.5), observation.labels, failure=reason)


@algorithm
class PassAveraging(CollectionAttack):
    """Average an image's shuffled uploads over several passes.

    A shuffle keeps the values of each window, so that means over blocks of the largest windows' size are the same in all passes.
    These means match the uploads of one image exactly, in any order. For a window of variance s^2, the mean over m shuffles has the
    window's mean as its expectation in every pixel, with variance s^2 / m. The guess therefore tends to the image of window means,
    which a single upload gives if the windows are known (``WindowMean``). In addition, many passes reveal the windows.

    Without VisualMixer in the pipeline the guesses are the first pass.

    Attributes:
        learned: The pipeline's VisualMixer, if any; set by ``fit``.
    """

    source = "folklore: averaging out independent draws"
    threat = "all uploads of a client, VisualMixer's settings (never its draws); no auxiliary data"

    learned: tuple[VisualMixer, ...] = field(default=(), repr=False, compare=False)

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> PassAveraging:
        """Return the attack for the pipeline's first VisualMixer."""
        mixers = [defense for defense in knowledge.pipeline.defenses if isinstance(defense, VisualMixer)]
        return replace(self, learned=tuple(mixers[:1]))

    def attack_one(self, observation: UploadedCollection, generator: torch.Generator) -> Reconstruction:
        """The means over passes; deterministic."""
        guess = observation.first_pass()
        if not self.learned:
            return guess
        # The first are regions, which are cut at least once, unless there is one size.
        block = self.learned[0].sizes(*observation.images.shape[-2:])[:2][-1]
        passes = [images.float() for images in torch.split(observation.images, len(guess.labels))]
        # Of every channel, over blocks that the edges may cut: (B, blocks).
        means = [F.avg_pool2d(images, block, ceil_mode=True, count_include_pad=False).flatten(1) for images in passes]
        rows = [assigned(torch.cdist(means[0], blocks)) for blocks in means]
        mean = torch.stack([images[at] for images, at in zip(passes, rows, strict=True)]).mean(0)
        return replace(guess, images=mean.clamp(0, 1), diagnostics={"passes": float(observation.passes)})
