"""Averaging uploads of the same image over passes, each of which shuffled it anew."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import ClassVar

import torch
from torch.nn import functional as F

from attacks.assignment import assigned
from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.uploads.base import CollectionAttack, UploadedCollection
from defenses.images.visual_mixer import VisualMixer


@dataclass(frozen=True, repr=False)
class PassAveraging(CollectionAttack):
    """The mean of what is seen of an image over the passes of an upload.

    A shuffle keeps the values of each window, so that the mean over the blocks of the largest windows' size is the same in all
    passes: by it the uploads of one image find each other, exactly, whatever order they came in. The mean over m shuffles of a
    window of variance s^2 has the window's mean as its expectation in every pixel and the variance s^2 / m around it: it tends to
    the picture of window means, which one upload gives at once where the windows are known (``WindowMean``). Many passes tell one
    thing more, which this picture shows: where the windows are.

    Without VisualMixer in the pipeline the guesses are the first pass.

    Attributes:
        learned: The pipeline's VisualMixer, or none of it; from ``fit``.
    """

    source: ClassVar[str] = "folklore: averaging out independent draws"
    threat: ClassVar[str] = "all uploads of a client, VisualMixer's settings (never its draws); no auxiliary data"

    learned: tuple[VisualMixer, ...] = field(default=(), repr=False, compare=False)

    def fit(self, knowledge: Knowledge, generator: torch.Generator) -> PassAveraging:
        """The attack for the pipeline's first VisualMixer."""
        found = [one for one in knowledge.pipeline.defenses if isinstance(one, VisualMixer)]
        return replace(self, learned=tuple(found[:1]))

    def attack_one(self, observation: UploadedCollection, generator: torch.Generator) -> Reconstruction:
        """The means; nothing is random."""
        guess = observation.first_pass()
        if not self.learned:
            return guess
        # The first are regions, which are cut at least once, unless there is one size.
        block = self.learned[0].sizes(*observation.images.shape[-2:])[:2][-1]
        passes = [images.float() for images in torch.split(observation.images, len(guess.labels))]
        # Of every channel, over blocks that the edges may cut: (B, blocks).
        means = [F.avg_pool2d(one, block, ceil_mode=True, count_include_pad=False).flatten(1) for one in passes]
        rows = [assigned(torch.cdist(means[0], one)) for one in means]
        mean = torch.stack([images[at] for images, at in zip(passes, rows, strict=True)]).mean(0)
        return replace(guess, images=mean.clamp(0, 1), diagnostics={"passes": float(observation.passes)})
