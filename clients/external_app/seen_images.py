"""The images that a training was given, with their classes: what guesses are compared with where an app names no ``data``.

A model is given normalised images. Where these have the 256 levels of eight bits, mean and std follow from the levels.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from flwr.app import Context
from torch import Tensor
from torch.nn import functional as F

from clients.external_app.app_checks import PerChannel
from clients.wire.records import to_record, to_tensors
from defenses.random_draws import generator_for

IMAGES, SAW = "fedveil-images", "fedveil-last-images"
"""Records of a context's state: the images of the first training, and projections of those that the last one was given."""
GIVEN, SEEN = "data of the app", "its first training"
"""Where the images come from that guesses are compared with."""
PROJECTIONS = 8
ALIKE = 1e-3
"""Largest distance between projections of one image, over their length or 1: numbers of 16 bits round less."""
MOST_IMAGES, MOST_BYTES = 4096, 2**25
"""The first images of a training: those that are recognised, and what is kept of them."""
LEVELS = 255
"""Steps between black and white in eight bits."""
ROUNDING = 1e-3
"""How far beyond [0, 1] an image may lie after its normalisation was undone."""


class UnseenImagesError(ValueError):
    """Images or classes that a training did not show, or whose normalisation it did not."""


class SeenImages:
    """Collects the batches of a training: projections of all, and where ``keeps`` the images with their classes."""

    def __init__(self, *, keeps: bool) -> None:
        self._keeps = keeps
        self._projections: list[Tensor] = []
        self._batch: Tensor | None = None
        """The last one, which waits for its classes."""
        self._images: list[Tensor] = []
        self._classes: list[Tensor] = []

    def add(self, images: Tensor) -> None:
        """A batch (B, C, H, W), as a model was given it."""
        free = MOST_IMAGES - sum(map(len, self._projections))
        if sum(map(Tensor.numel, self._images)) * 4 >= MOST_BYTES or not free:
            return
        batch = images.detach()[:free]
        self._projections.append(projected(batch))
        if self._keeps:
            self._batch = batch

    def classify(self, logits: Any, classes: Any) -> None:
        """Classes (B,), or one-hot ones (B, K), of the last batch, as a loss was given them."""
        if self._batch is None or not isinstance(classes, Tensor) or len(classes) < len(self._batch):
            return
        if classes.dim() == 2 and classes.is_floating_point() and bool(((classes == 0) | (classes == 1)).all()):
            classes = classes.argmax(1)
        if classes.dim() != 1 or classes.is_floating_point() or not isinstance(logits, Tensor) or logits.dim() != 2:
            return
        self._images.append(self._batch.float().cpu())
        self._classes.append(classes.detach()[: len(self._batch)].long().cpu())
        self._batch = None

    @contextmanager
    def of_losses(self) -> Iterator[None]:
        """Has ``classify`` see what the cross entropies of ``torch.nn.functional`` are given."""
        before = {name: getattr(F, name) for name in ("cross_entropy", "nll_loss")}

        def watched(loss: Any) -> Any:
            @functools.wraps(loss)
            def computed(input: Tensor, target: Tensor, *args: Any, **kwargs: Any) -> Any:
                self.classify(input, target)
                return loss(input, target, *args, **kwargs)

            return computed

        for name, loss in before.items():
            setattr(F, name, watched(loss))
        try:
            yield
        finally:
            for name, loss in before.items():
                setattr(F, name, loss)

    def keep(self, context: Context, most: int) -> None:
        """Write the projections into a node's state, and where it has no images yet the first ``most`` (0: all), a pass."""
        context.state.pop(SAW, None)
        if self._projections:
            context.state[SAW] = to_record({"projections": torch.cat(self._projections)})
        if self._images and IMAGES not in context.state:
            images, classes = (torch.cat(one)[: most or None] for one in (self._images, self._classes))
            context.state[IMAGES] = to_record({"images": images, "classes": classes})


def kept_images(context: Context, mean: PerChannel | None, std: PerChannel | None) -> tuple[Tensor, Tensor, Any, Any]:
    """Images (N, C, H, W) in [0, 1] of a node's first training, classes (N,), and mean and std by which a model takes them.

    Raises:
        UnseenImagesError: Naming what was not seen.
    """
    record: Any = context.state.get(IMAGES)
    if record is None:
        raise UnseenImagesError(
            "this node has not trained, or its training gave no model images (B, C, H, W) with classes for cross_entropy or "
            "nll_loss of torch.nn.functional: give answer_audits data="
        )
    images, classes = (to_tensors(record)[name] for name in ("images", "classes"))
    found = normalisation_of(images) if mean is None or std is None else (mean, std)
    if found is None:
        raise UnseenImagesError(
            f"images run from {float(images.min()):.3g} to {float(images.max()):.3g}, and their normalisation does not show: give "
            "answer_audits mean= and std= of your Normalize"
        )
    means, stds = (torch.tensor(one, dtype=torch.float64).reshape(-1, 1, 1) for one in found)
    pixels = images.double() * stds + means
    if not (float(pixels.min()) >= -ROUNDING and float(pixels.max()) <= 1 + ROUNDING):
        raise UnseenImagesError(
            f"with mean {found[0]} and std {found[1]} undone, images run from {float(pixels.min()):.3g} to "
            f"{float(pixels.max()):.3g}; expected [0, 1]: give answer_audits the mean and std of your Normalize"
        )
    return pixels.float().clamp(0, 1), classes, *found


def normalisation_of(images: Tensor) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
    """Mean and std of each channel of images (N, C, H, W) that were normalised; None where they do not show.

    They show where a channel has values at both ends of 256 levels, and is on these levels. Images in [0, 1] that are not count as
    not normalised.
    """
    found = [_of_channel(channel) for channel in images.double().transpose(0, 1).flatten(1)]
    if all(found):
        means, stds = zip(*(one for one in found if one), strict=True)
        return means, stds
    if float(images.min()) >= 0 and float(images.max()) <= 1:
        count = images.shape[1]
        return (0.0,) * count, (1.0,) * count
    return None


def _of_channel(values: Tensor) -> tuple[float, float] | None:
    low, high = float(values.min()), float(values.max())
    levels = (values - low) / (high - low) * LEVELS if high > low else values * math.nan
    whole = levels.round()
    if not bool(((levels - whole).abs() < 0.01).all()) or any(bool((whole % one == 0).all()) for one in (3, 5, 17)):
        return None  # on fewer levels, such as 16 or 52, black and white need not be the ends
    # With x = (p - mean) / std, black is -mean / std, and white (1 - mean) / std.
    std = 1 / (high - low)
    return round(-low * std, 5) + 0.0, round(std, 5)


@functools.lru_cache(maxsize=4)
def _directions(size: int) -> Tensor:
    generator = generator_for("recognise images", size)
    return torch.randn(size, PROJECTIONS, generator=generator, dtype=torch.float64) / math.sqrt(size)


def projected(images: Tensor) -> Tensor:
    """Images (N, C, H, W) as (N, PROJECTIONS) float64: the same image gives the same numbers, up to rounding."""
    flat = images.flatten(1).double()
    numbers: Tensor = flat @ _directions(flat.shape[1]).to(flat.device)
    return numbers.cpu()


def _near(some: Tensor, known: Tensor) -> Tensor:
    """Which of ``some`` projections (N, PROJECTIONS) are of a known image: (N,) bool."""
    least: Tensor = torch.cat([torch.cdist(part, known).amin(1) for part in torch.split(some, 256)])
    return torch.le(least, ALIKE * some.norm(dim=1).clamp(min=1))


def recognised(context: Context, own: Tensor) -> tuple[int, int]:
    """How many images that the last training was given are among ``own`` (N, C, H, W), as a model takes them, and of how many."""
    record: Any = context.state.get(SAW)
    if record is None:
        return 0, 0
    seen = to_tensors(record)["projections"]
    known = torch.cat([projected(part) for part in torch.split(own, 1024)])
    return int(_near(seen, known).sum()), len(seen)
