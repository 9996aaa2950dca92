"""Averaging of uploads of the same image over several passes with independent shuffles."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import torch
from torch.nn import functional as F

from attacks.assignment import assigned
from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.uploads.base import CollectionAttack, UploadedCollection
from defenses.images.visual_mixer import VisualMixer


@dataclass(frozen=True, repr=False)
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
        found = [one for one in knowledge.pipeline.defenses if isinstance(one, VisualMixer)]
        return replace(self, learned=tuple(found[:1]))

    def attack_one(self, observation: UploadedCollection, generator: torch.Generator) -> Reconstruction:
        """The means over passes; deterministic."""
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
