"""Guesses that used no observation, and what is made from the truth to read scores by."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.base import Reconstruction
from attacks.scoring.metrics import blurred, null_baselines
from clients.data.augmentation import mean_view
from clients.line_up import shows_views
from clients.local_data import CHUNK, LocalData, Probed, chunks
from defenses.base import Batch


@dataclass(frozen=True)
class Means:
    """Means of a client's training images, in float32.

    Attributes:
        total: Sum (C, H, W) over all of them, float64.
        count: How many they are.
        classes: Class -> sum and number of its images; of the classes that were asked for.
        attacked: Position -> that image as it is part of the sums, and its class.
    """

    total: Tensor
    count: int
    classes: dict[int, tuple[Tensor, int]]
    attacked: dict[int, tuple[Tensor, int]]

    def mean(self) -> Tensor:
        """Of all."""
        return (self.total / self.count).float()

    def class_mean(self, number: int, without: Collection[int]) -> Tensor:
        """Of a class without the images at some positions; of all other images where the class has none besides.

        Without all images of an observation, not only the one that is guessed: where two are of one class, the mean without
        the first would be the second, and the other way round, so that together they would be a perfect guess of both.
        """
        left_out = [self.attacked[position] for position in without if position in self.attacked]
        of_class = [image for image, own in left_out if own == number]
        every = [image for image, _ in left_out]
        for (total, count), out in (
            (self.classes.get(number, (self.total, 0)), of_class),
            ((self.total, self.count), every),
        ):
            if count > len(out):
                return ((total - sum(out, torch.zeros_like(total))) / (count - len(out))).float()
        return self.mean()


def means_of(
    data: LocalData,
    read: Callable[[Tensor, int], Tensor],
    size: int,
    classes: Collection[int] = (),
    attacked: Collection[int] = (),
) -> Means:
    """Sums over the training images that ``LocalData.averaged`` names.

    Args:
        data: The client's examples.
        read: Positions (n,) and the number of the piece -> images (n, C, H, W).
        size: Images that are read at once.
        classes: Classes to be summed apart.
        attacked: Positions of images to be kept, so that they can be left out.
    """
    chosen = data.averaged()
    labels = data.train_labels()
    total = torch.zeros(data.card.input_shape, dtype=torch.float64)
    sums = {number: (torch.zeros_like(total), 0) for number in classes}
    kept: dict[int, tuple[Tensor, int]] = {}
    for at, piece in enumerate(chunks(len(chosen), size)):
        positions = chosen[piece]
        images = read(positions, at).double().cpu()
        total += images.sum(0)
        for number, (so_far, count) in sums.items():
            mine = labels[positions] == number
            sums[number] = so_far + images[mine].sum(0), count + int(mine.sum())
        known = zip(positions.tolist(), images, labels[positions].tolist(), strict=True)
        kept |= {position: (image, number) for position, image, number in known if position in attacked}
    return Means(total, len(chosen), sums, kept)


class BlindGuesses:
    """What one client's images could be guessed as without an observation, and the scales.

    Null baselines ("baseline:grey", "baseline:mean") are what anyone can guess; their mean is of this client's own images, which no
    attacker has. Scales are no bars: "scale:blurred" is a blurred copy of the truth, and "scale:class-mean" what who knows only the
    class could guess: the mean of the client's images of the true class without those of the observation (not where examples have
    several labels). Against the transformed images
    means are of transformed images. Where the attacked images are cropped and mirrored, means are of such views.

    Args:
        data: The client's examples.
        known: The images behind each observation.
        few: Which images of an observation are guessed.
    """

    def __init__(self, data: LocalData, known: list[Probed], few: slice) -> None:
        self.few = few
        self._views = data.task.plan if all(shows_views(data, truth) for truth in known) else None
        self._one_class = data.task.plan.objective.one_class
        classes = (
            {int(c) for truth in known for c in truth.original.targets[few].argmax(1)} if self._one_class else set()
        )
        attacked = {int(p) for truth in known for p in truth.positions[few]}
        self._means = (
            means_of(data, lambda positions, _: data.plain(positions).images, CHUNK, classes, attacked),
            means_of(data, transformed(data), data.task.plan.batch_size, classes, attacked),
        )

    def of(self, truth: Probed) -> dict[str, tuple[Reconstruction, Reconstruction]]:
        """Name -> a guess of the original and one of the transformed images; null baselines depend on their shape alone."""
        images = truth.original.images[self.few], truth.seen.images[self.few]
        means = self._shown(self._means[0].mean()), self._means[1].mean()
        nulls = [null_baselines(of, mean) for of, mean in zip(images, means, strict=True)]
        found = {f"baseline:{name}": (nulls[0][name], nulls[1][name]) for name in nulls[0]}
        scale = [_unlabelled(blurred(of)) for of in images]
        found["scale:blurred"] = (scale[0], scale[1])
        if not self._one_class:
            return found
        classes = truth.original.targets[self.few].argmax(1).tolist()
        without = truth.positions[self.few].tolist()
        by_class = [torch.stack([of.class_mean(one, without) for one in classes]).to(images[0]) for of in self._means]
        by_class[0] = torch.stack([self._shown(image) for image in by_class[0]])
        return found | {"scale:class-mean": (_unlabelled(by_class[0]), _unlabelled(by_class[1]))}

    def _shown(self, mean: Tensor) -> Tensor:
        """A mean of raw images as the mean of their views, where views are attacked."""
        if self._views is None:
            return mean
        return mean_view(mean[None], self._views.crop_padding, self._views.horizontal_flip)[0]


def transformed(data: LocalData) -> Callable[[Tensor, int], Tensor]:
    """What ``means_of`` reads of the images as they enter the model in this round, a piece being a batch."""

    def read(positions: Tensor, at: int) -> Tensor:
        seen: Batch = data.view(positions, data.key("mean-transformed", data.task.round, at)).seen
        return seen.images

    return read


def _unlabelled(images: Tensor) -> Reconstruction:
    return Reconstruction(images, torch.full((len(images),), -1))
