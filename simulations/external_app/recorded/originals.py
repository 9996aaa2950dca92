"""Scores of guesses from a recording against the true images, where the user has them; no attack sees them."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import Labels, Reconstruction, score
from attacks.metrics.guesses import LABEL_ACCURACY
from attacks.metrics.images import PLACE
from attacks.metrics.names import GuessName, Role, Scores
from attacks.scoring.metrics import blurred, null_baselines, optimal_assignment
from clients.scoring.audit import UNIFORM
from clients.scoring.image_scores import image_scores, uniform_label_accuracy
from clients.scoring.null_baselines import BLURRED, flat_psnr
from clients.scoring.retrieval import CANDIDATES, Known, KnownImages, identified
from defenses.base import Batch
from defenses.tensors import NamedTensors, Tensors
from simulations.external_app.recorded.replies import Attackable
from simulations.external_app.recorded.reply_numbers import originals_file
from simulations.external_app.recorded.settings import AttackSettings
from simulations.external_app.recorded.update_files import few, read_file
from simulations.settings.errors import ConfigError

WHOLE = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)


@dataclass(frozen=True)
class Truth:
    """The examples behind one reply.

    Attributes:
        images: (N, C, H, W) in [0, 1].
        labels: (N,) int64, or None.
        others: (M, C, H, W), other examples of the kind.
        classes: (M,) int64, their classes; None where those of any image are unknown.
    """

    images: Tensor
    labels: Tensor | None
    others: Tensor
    classes: Tensor | None = None

    @property
    def mean(self) -> Tensor | None:
        """The mean image (C, H, W) of the first others; None where there are none."""
        return self.others[: self.most_others].mean(0) if len(self.others) else None

    @property
    def most_others(self) -> int:
        """Number of others, of any class, where there are so many."""
        return (CANDIDATES - 1) * len(self.images)

    @property
    def candidates(self) -> tuple[Known, Known]:
        """The images and the others of their classes; all of one class where classes are unknown."""
        if self.labels is None or self.classes is None:
            kinds = (
                torch.zeros(len(some), dtype=torch.int64) for some in (self.images, self.others[: self.most_others])
            )
            return Known(self.images, next(kinds)), Known(self.others[: self.most_others], next(kinds))
        alike = torch.isin(self.classes, self.labels)
        return Known(self.images, self.labels), Known(self.others[alike], self.classes[alike])

    def score(self, guess: Reconstruction | Labels) -> Scores:
        """Every metric of a guess, as the rows of a run name them; an exact copy scores ``MAX_PSNR``."""
        scores: Scores = {}
        if isinstance(guess, Reconstruction):
            pairs = optimal_assignment(guess.images, self.images)
            scores = image_scores(guess.images, self.images, pairs, "original")
            scores |= identified(guess.images, pairs, *self.candidates, paired=False) | flat_psnr(self.images, pairs[1])
            scores |= {PLACE.of(): pairs[1].tolist()}
            guess = Labels(guess.labels)
        if self.labels is not None:
            scores[LABEL_ACCURACY.of()] = [score(guess, self.labels)[LABEL_ACCURACY.name]]
        return scores

    def baselines(self, num_classes: int) -> dict[GuessName, Scores]:
        """Null baselines and scales with their scores."""
        mean = self.mean
        nulls = null_baselines(self.images, torch.zeros_like(self.images[0]) if mean is None else mean)
        if mean is None:
            del nulls["mean"]
        scored = {GuessName(Role.NULL_BASELINE, name): self.score(null) for name, null in nulls.items()}
        scored[BLURRED] = self.score(Reconstruction(blurred(self.images), torch.full((len(self.images),), -1)))
        for scores in scored.values():  # of classes they say nothing
            scores.pop(LABEL_ACCURACY.of(), None)
        if self.labels is not None:
            targets = F.one_hot(self.labels, num_classes).float()
            scored[UNIFORM] = {LABEL_ACCURACY.of(): uniform_label_accuracy(Batch(self.images, targets))}
        return scored


def read_originals(folder: Path, replies: Sequence[Attackable], auxiliary: Batch) -> dict[tuple[int, int], Truth]:
    """(round, client) -> the true examples of attacked replies.

    Those of the other replies and the auxiliary ones are the images among which true ones are identified.

    Args:
        folder: Of ``round-0001-node-ID.safetensors``, or ``node-ID.safetensors`` where a node has the same images in all
            rounds; of a single update, the file itself.
        replies: That are attacked.
        auxiliary: Maybe empty.

    Raises:
        ConfigError: When a file does not fit its reply.
    """
    given: dict[tuple[int, int], NamedTensors] = {}
    for reply in replies:
        path = originals_file(folder, reply.round, reply.node) or folder
        given[reply.round, reply.client] = read_truth(path, reply.settings)
    every = torch.cat([*(truth["images"] for truth in given.values()), auxiliary.images])
    labels = [truth.get("labels") for truth in given.values()]
    known = [own for own in labels if own is not None]
    classes = torch.cat([*known, auxiliary.targets.argmax(1)]) if len(known) == len(labels) else None
    return {place: _with_others(truth["images"], truth.get("labels"), every, classes) for place, truth in given.items()}


def _with_others(images: Tensor, labels: Tensor | None, every: Tensor, classes: Tensor | None) -> Truth:
    """The examples of a reply, and different images that are none of them: the first 99 for each, and 99 of each one's class.

    An original that went through an app's normalisation and back differs from the same auxiliary image by float errors.
    """
    known, kept, most = KnownImages(images), list[int](), (CANDIDATES - 1) * len(images)
    missing = Counter(
        {kind: (CANDIDATES - 1) * n for kind, n in Counter(labels.tolist() if labels is not None else []).items()}
    )
    kinds = [0] * len(every) if classes is None else classes.tolist()
    for at, kind in enumerate(kinds):
        if (len(kept) < most or missing[kind] > 0) and known.adds(every[at]):
            kept.append(at)
            missing[kind] -= 1
    return Truth(images, labels, every[kept], None if classes is None else classes[kept])


def read_truth(path: Path, settings: AttackSettings) -> Tensors:
    """The true "images" (num_examples, C, H, W) in [0, 1], float32, and perhaps "labels" (num_examples,), int64.

    Raises:
        ConfigError: When the file holds anything else.
    """
    tensors = read_file("originals", path)
    if "images" not in tensors or set(tensors) - {"images", "labels"}:
        raise ConfigError(f"originals: {path} holds {few(tensors)}; allowed: 'images', and perhaps 'labels'")
    images, expected = tensors["images"], (settings.num_examples, *settings.shape)
    if images.shape != expected or not images.is_floating_point():
        raise ConfigError(
            f"originals: images are {images.dtype} {tuple(images.shape)}; allowed: floating point {expected}"
        )
    if not (images.min() >= 0 and images.max() <= 1):  # A NaN is neither.
        low, high = images.min(), images.max()
        raise ConfigError(f"originals: images run from {low:g} to {high:g}; allowed: 0 to 1, before normalisation")
    truth = {"images": images.float()}
    if "labels" in tensors:
        labels, num_examples, num_classes = tensors["labels"], settings.num_examples, settings.num_classes
        allowed = f"allowed: whole numbers from 0 to {num_classes - 1}, of shape ({num_examples},)"
        if labels.dtype not in WHOLE or labels.shape not in ((num_examples,), (num_examples, 1)):
            raise ConfigError(f"originals: labels are {labels.dtype} {tuple(labels.shape)}; {allowed}")
        if labels.min() < 0 or labels.max() >= num_classes:
            raise ConfigError(f"originals: labels run from {labels.min()} to {labels.max()}; {allowed}")
        truth["labels"] = labels.long().reshape(num_examples)
    return truth
