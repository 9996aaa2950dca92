"""From images in [0, 1] to what the clients' model sees, and back."""

from typing import Protocol

from torch import Tensor


class Normalisation(Protocol):
    """Whatever holds the statistics per channel: ``ClientUpdate``, ``Knowledge``."""

    @property
    def mean(self) -> tuple[float, ...]:
        """C means, for images in [0, 1]."""

    @property
    def std(self) -> tuple[float, ...]:
        """C standard deviations, for images in [0, 1]."""


def channel_statistics(known: Normalisation, like: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and standard deviation, (C, 1, 1) each, on the device and in the dtype of ``like``."""
    return like.new_tensor(known.mean).view(-1, 1, 1), like.new_tensor(known.std).view(-1, 1, 1)


def normalise(images: Tensor, known: Normalisation) -> Tensor:
    """(images - mean) / std per channel, for images (..., C, H, W) in [0, 1]."""
    mean, std = channel_statistics(known, images)
    return (images - mean) / std


def denormalise(images: Tensor, known: Normalisation) -> Tensor:
    """The inverse of ``normalise``, not clamped."""
    mean, std = channel_statistics(known, images)
    return images * std + mean
