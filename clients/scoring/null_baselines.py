"""Null baselines, which use no observation, and scales, which are made from the originals for comparison."""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.guesses import Reconstruction
from attacks.image_measures import psnr
from attacks.metrics.images import FLAT_PSNR
from attacks.metrics.names import GuessName, Role, Scores
from attacks.scoring.metrics import blurred, null_baselines
from clients.data.augmentation import mean_view
from clients.scoring.retrieval import shows_views
from clients.task.batches import CHUNK, chunks
from clients.task.local_data import LocalData
from clients.task.truths import Probed
from defenses.base import Batch

BLURRED = GuessName(Role.SCALE, "blurred")
CLASS_MEAN = GuessName(Role.SCALE, "class-mean")


Sums = dict[int, tuple[Tensor, int]]
"""Class -> sum of its images, and how many they are."""


@dataclass(frozen=True)
class Means:
    """Means of a client's training images, in float32.

    Attributes:
        total: Sum (C, H, W) over all of them, float64.
        count: Number of images.
        classes: Class -> sum and number of its images, for the requested classes.
        attacked: Of each observation: class -> sum and number of its images, as they are part of the sums.
    """

    total: Tensor
    count: int
    classes: Sums
    attacked: list[Sums]

    def mean(self) -> Tensor:
        """Mean of all images."""
        return (self.total / self.count).float()

    def has_others(self, observation: int) -> bool:
        """Whether the client has images besides the observed ones."""
        return self.count > sum(count for _, count in self.attacked[observation].values())

    def class_mean(self, number: int, observation: int) -> Tensor:
        """Mean of a class without the observed images; mean of all other images where the class has no others.

        There must be others (``has_others``).

        Without all of them, guessed or not: where two are of one class, the mean without the first would be the second, and the
        other way round, so that together they would be a perfect guess of both.
        """
        own = self.attacked[observation]
        nothing = torch.zeros_like(self.total), 0
        every = sum((total for total, _ in own.values()), nothing[0]), sum(count for _, count in own.values())
        for (total, count), (left_out, fewer) in (
            (self.classes.get(number, nothing), own.get(number, nothing)),
            ((self.total, self.count), every),
        ):
            if count > fewer:
                return ((total - left_out) / (count - fewer)).float()
        raise ValueError("there are no images besides those behind the observation")


def means_of(
    data: LocalData,
    read: Callable[[Tensor, int], Tensor],
    size: int,
    classes: Collection[int] = (),
    attacked: Sequence[Tensor] = (),
) -> Means:
    """Sums over the training images that ``LocalData.averaged`` names; those of ``classes`` and ``attacked`` positions (n,) apart.

    The images behind each observation are summed apart so that they can be left out. ``read`` gives images (n, C, H, W) at
    positions (n,) of a piece by its number, ``size`` at once.
    """
    chosen = data.averaged()
    labels = data.train_labels()
    total = torch.zeros(data.card.input_shape, dtype=torch.float64)
    sums: Sums = {}
    apart: list[Sums] = [{} for _ in attacked]
    inside = [torch.isin(chosen, out) for out in attacked]
    for at, piece in enumerate(chunks(len(chosen), size)):
        positions = chosen[piece]
        images = read(positions, at).double().cpu()
        total += images.sum(0)
        _add_up(sums, images, labels[positions], classes)
        for own, of_own in zip(apart, inside, strict=True):
            if (mine := of_own[piece]).any():
                _add_up(own, images[mine], labels[positions][mine])
    return Means(total, len(chosen), sums, apart)


def _add_up(sums: Sums, images: Tensor, labels: Tensor, classes: Collection[int] | None = None) -> None:
    """Adds images (n, C, H, W) of labels (n,) to the sums of their classes; None: of all classes."""
    for number in set(labels.tolist()) & set(labels.tolist() if classes is None else classes):
        mine = labels == number
        so_far, count = sums.get(number, (torch.zeros(()), 0))
        sums[number] = so_far + images[mine].sum(0), count + int(mine.sum())


def flat_psnr(truth: Tensor, columns: Tensor) -> Scores:
    """``FLAT_PSNR``: the PSNR of each image's own mean colour, in dB, of the images ``columns`` of the truth (B, C, H, W)."""
    images = truth.detach().cpu()[columns]
    return {FLAT_PSNR.of(): FLAT_PSNR.cut(psnr(images.mean((2, 3), keepdim=True).expand_as(images), images).tolist())}


class BlindGuesses:
    """Null baselines and scales of one client's images.

    Null baselines ("grey", "mean") are what anyone can guess; their mean is of this client's own images, which no attacker has.
    Scales are no baselines: "blurred" is a blurred copy of the truth. "class-mean" is the guess of an attacker that knows only the
    class: the mean of the client's images of the true class without those of the observation (not where examples have several
    labels, nor where the observation is of all images). Against the transformed images means are of transformed images. Where the
    attacked images are cropped and mirrored, means are of such views.

    ``known`` are the images behind each observation; ``few`` says which of them are guessed.
    """

    def __init__(self, data: LocalData, known: list[Probed], few: slice) -> None:
        self.few = few
        self._data = data
        self._one_class = data.task.plan.objective.one_class
        classes = (
            {int(c) for truth in known for c in truth.original.targets[few].argmax(1)} if self._one_class else set()
        )
        self._known = known
        attacked = [truth.positions for truth in known]
        plain = means_of(data, lambda positions, _: data.plain(positions).images, CHUNK, classes, attacked)
        # 0: unknown, as of an app that names no batch size
        size = data.task.plan.batch_size or CHUNK
        self._means = (
            plain,
            means_of(data, transformed(data), size, classes, attacked) if data.changes_images else plain,
        )

    def of(self, truth: Probed) -> dict[GuessName, tuple[Reconstruction, Reconstruction]]:
        """Null baseline or scale -> guesses of the original and of the transformed images behind one of the observations.

        Null baselines depend on their shape alone.
        """
        images = truth.original.images[self.few], truth.seen.images[self.few]
        means = self._shown(self._means[0].mean()), self._means[1].mean()
        nulls = [null_baselines(of, mean) for of, mean in zip(images, means, strict=True)]
        guesses = {GuessName(Role.NULL_BASELINE, name): (nulls[0][name], nulls[1][name]) for name in nulls[0]}
        scale = [Reconstruction.unlabelled(blurred(of), {}) for of in images]
        guesses[BLURRED] = (scale[0], scale[1])
        at = next(at for at, view in enumerate(self._known) if view is truth)
        # Of all images at once a mean would be of the attacked ones themselves, under a name that denies it.
        if not self._one_class or not self._means[0].has_others(at):
            return guesses
        classes = truth.original.targets[self.few].argmax(1).tolist()
        by_class = [torch.stack([of.class_mean(label, at) for label in classes]).to(images[0]) for of in self._means]
        by_class[0] = torch.stack([self._shown(image) for image in by_class[0]])
        guess, protected = (Reconstruction.unlabelled(images, {}) for images in by_class)
        return guesses | {CLASS_MEAN: (guess, protected)}

    def _shown(self, mean: Tensor) -> Tensor:
        """A mean of raw images as the mean of their views, where views are attacked."""
        if not all(shows_views(self._data, truth) for truth in self._known):
            return mean
        plan = self._data.task.plan
        return mean_view(mean[None], plan.crop_padding, plan.horizontal_flip)[0]


def transformed(data: LocalData) -> Callable[[Tensor, int], Tensor]:
    """Images of ``means_of`` as they enter the model in this round, one batch at a time."""

    def read(positions: Tensor, at: int) -> Tensor:
        seen: Batch = data.view(positions, data.key("mean-transformed", data.task.round, at)).seen
        return seen.images

    return read
