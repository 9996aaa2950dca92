"""Scores of guesses from a recording against the true images, where the user has them; no attack sees them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import Labels, Reconstruction, score
from attacks.metrics.guesses import LABEL_ACCURACY
from attacks.metrics.names import GuessName, Role, Scores
from attacks.scoring.metrics import blurred, null_baselines, optimal_assignment
from clients.scoring.audit import UNIFORM
from clients.scoring.image_scores import image_scores, uniform_label_accuracy
from clients.scoring.null_baselines import BLURRED, null_psnr
from clients.scoring.retrieval import CANDIDATES, KnownImages, retrieval
from defenses.base import Batch, NamedTensors
from simulations.external_app.recorded.arguments.headers import originals_file
from simulations.external_app.recorded.replies import Attackable
from simulations.external_app.recorded.update_files import read_truth


@dataclass(frozen=True)
class Truth:
    """The examples behind one reply.

    Attributes:
        images: (N, C, H, W) in [0, 1].
        labels: (N,) int64, or None.
        others: (M, C, H, W), other examples of the kind, for retrieval.
    """

    images: Tensor
    labels: Tensor | None
    others: Tensor

    @property
    def mean(self) -> Tensor | None:
        """The mean image (C, H, W) of the others; None where there are none."""
        return self.others.mean(0) if len(self.others) else None

    def pairs(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Which guessed image is compared with which true one."""
        return optimal_assignment(images, self.images)

    def score(self, guess: Reconstruction | Labels) -> Scores:
        """Every metric of a guess, as the rows of a run name them; an exact copy scores ``MAX_PSNR``."""
        found: Scores = {}
        if isinstance(guess, Reconstruction):
            pairs = self.pairs(guess.images)
            found = image_scores(guess.images, self.images, pairs, "original")
            found |= retrieval(guess, pairs, self.images, self.others, paired=False)
            found |= null_psnr(self.images, self.mean, pairs[1])
            guess = Labels(guess.labels)
        if self.labels is not None:
            found[LABEL_ACCURACY.of()] = [score(guess, self.labels)[LABEL_ACCURACY.name]]
        return found

    def baselines(self, num_classes: int) -> dict[GuessName, Scores]:
        """Null baselines and scales with their scores."""
        mean = self.mean
        nulls = null_baselines(self.images, torch.zeros_like(self.images[0]) if mean is None else mean)
        if mean is None:
            del nulls["mean"]
        found = {GuessName(Role.NULL_BASELINE, name): self.score(null) for name, null in nulls.items()}
        found[BLURRED] = self.score(Reconstruction(blurred(self.images), torch.full((len(self.images),), -1)))
        for scores in found.values():  # of classes they say nothing
            scores.pop(LABEL_ACCURACY.of(), None)
        if self.labels is not None:
            targets = F.one_hot(self.labels, num_classes).float()
            found[UNIFORM] = {LABEL_ACCURACY.of(): uniform_label_accuracy(Batch(self.images, targets))}
        return found


def read_originals(folder: Path, replies: Sequence[Attackable], auxiliary: Tensor) -> dict[tuple[int, int], Truth]:
    """(round, client) -> the true examples of attacked replies.

    Retrieval looks for true images among those of the other replies and the auxiliary ones (M, C, H, W).

    Args:
        folder: Of ``round-0001-node-ID.safetensors``, or ``node-ID.safetensors`` where a node has the same images in all rounds.
        replies: That are attacked.
        auxiliary: Maybe empty.

    Raises:
        ConfigError: When a file does not fit its reply.
    """
    found: dict[tuple[int, int], NamedTensors] = {}
    for one in replies:
        path = originals_file(folder, one.reply)
        assert path is not None  # as ``require_complete`` has checked
        found[one.reply.round, one.client] = read_truth(path, one.settings)
    every = torch.cat([*(truth["images"] for truth in found.values()), auxiliary])
    return {
        place: Truth(truth["images"], truth.get("labels"), _others(every, truth["images"]))
        for place, truth in found.items()
    }


def _others(every: Tensor, own: Tensor) -> Tensor:
    """Different images that are none of ``own``, at most 99 for each of these.

    An original that went through an app's normalisation and back differs from the same auxiliary image by float errors.
    """
    known = KnownImages(own)
    kept: list[Tensor] = []
    for image in every:
        if len(kept) == (CANDIDATES - 1) * len(own):
            break
        if known.adds(image):
            kept.append(image)
    return torch.stack(kept) if kept else own[:0]
