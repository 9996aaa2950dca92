"""Data sets of images: in memory, and described before their images are read."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from defenses.tensors import ImageShape

P = TypeVar("P")

Labels = NDArray[np.int64]
"""Classes (N,), from 0."""
Rows = NDArray[np.intp]
"""Which examples, (n,)."""
Levels = NDArray[np.uint8]
"""Levels from 0 to 255, of any shape."""

IMAGE_MEMORY = 1.0
"""GiB of decoded images that a process may hold of a data set: several workers of a simulation share one machine."""


class DataError(ValueError):
    """Data that are missing, damaged, or of another kind than their name implies."""


class MissingDataError(DataError):
    """Data missing from the searched folder; the message names the settings of the folder and of a download."""

    def __init__(self, found: str, download: str = "") -> None:
        super().__init__(f"{found}; set data-dir to the directory that holds it{download and f', or {download}'}")
        self.found = found


def to_float(images: Tensor) -> Tensor:
    """Maps uint8 images in [0, 255] to float32 images in [0, 1], of the same shape; rows of a table keep their numbers."""
    return images.float() / 255 if images.dtype == torch.uint8 else images.float()


class StoredImages:
    """Images (N, C, H, W), uint8, that ``read`` decodes and resizes by their rows (n,) on every access."""

    dtype = torch.uint8

    def __init__(self, read: Callable[[Rows], Tensor], shape: tuple[int, int, int, int]) -> None:
        self.shape = torch.Size(shape)
        self._read = read

    def __getitem__(self, rows: Tensor | slice) -> Tensor:
        """The images at ``rows``; ``DataError`` when a picture cannot be read or has another size than the first."""
        chosen = np.arange(len(self))[rows if isinstance(rows, slice) else rows.numpy()]
        return self._read(chosen) if len(chosen) else torch.empty(0, *self.shape[1:], dtype=torch.uint8)

    def __len__(self) -> int:
        return int(self.shape[0])

    def mapped(self, convert: Callable[[Tensor], Tensor], channels: int) -> StoredImages:
        """Images to which ``convert``, which returns this number of channels, is applied on reading."""
        count, _, height, width = self.shape
        return StoredImages(lambda rows: convert(self._read(rows)), (count, channels, height, width))


Images = Tensor | StoredImages
"""Images (N, C, H, W): uint8, or int32 for rows of a table."""


@dataclass(frozen=True, eq=False)
class ImageData:
    """Labelled images; ``DataError`` when shapes or types do not fit together, or there are no images.

    Attributes:
        images: (N, C, H, W), uint8, C is 1 or 3; a tensor, or ``StoredImages`` where they would not fit into memory. Rows of
            a table are int32 (N, 1, F, 1): see ``clients.data.tables``.
        labels: (N,), int64.
        sensitive: (N,), int64: a second, private attribute of each image; None where the data set has none.
        vectors: (N, K), int64, 0 or 1: all labels of each image, where it may have several; ``labels`` then holds the first
            of them, by which selections are stratified, and is no class. Else None.
    """

    images: Images
    labels: Tensor
    sensitive: Tensor | None = None
    vectors: Tensor | None = None

    def __post_init__(self) -> None:
        shape = tuple(self.images.shape)
        row = self.images.dtype == torch.int32 and len(shape) == 4 and shape[1] == shape[3] == 1
        if not row and (self.images.dtype != torch.uint8 or len(shape) != 4 or shape[1] not in (1, 3)):
            raise DataError(f"images are {self.images.dtype} {shape}; expected uint8 (N, 1 or 3, H, W)")
        for what, own in (("labels", self.labels), ("sensitive labels", self.sensitive)):
            if own is not None and (own.dtype != torch.int64 or tuple(own.shape) != shape[:1]):
                raise DataError(f"{what} are {own.dtype} {tuple(own.shape)}; expected int64 {shape[:1]}")
        many = self.vectors
        if many is not None and (many.dtype != torch.int64 or many.ndim != 2 or len(many) != len(self.labels)):
            raise DataError(
                f"label vectors are {many.dtype} {tuple(many.shape)}; expected int64 ({len(self.labels)}, K)"
            )
        if 0 in shape:
            raise DataError("there are no images")

    def __len__(self) -> int:
        return len(self.labels)

    def truth(self, rows: Tensor) -> Tensor:
        """Ground truth of the images at ``rows`` (n,): classes (n,), or label vectors (n, K)."""
        return (self.labels if self.vectors is None else self.vectors)[rows]

    def strata(self) -> Labels:
        """See ``strata``."""
        return strata(self.labels.numpy(), None if self.sensitive is None else self.sensitive.numpy())


def with_channels(part: ImageData, channels: int) -> ImageData:
    """Convert to grey (luma of ITU-R BT.601) or to three equal colours; unchanged with ``channels`` already."""
    if part.images.shape[1] == channels:
        return part
    if isinstance(part.images, StoredImages):
        return replace(part, images=part.images.mapped(lambda images: _in_channels(images, channels), channels))
    return replace(part, images=_in_channels(part.images[:], channels))


def _in_channels(images: Tensor, channels: int) -> Tensor:
    if channels == 1:
        weights = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
        return (images.float() * weights).sum(1, keepdim=True).round().clamp(0, 255).to(torch.uint8)
    return images.expand(-1, channels, -1, -1)


@dataclass(frozen=True, eq=False)
class Described(Generic[P]):
    """Description of a classification data set before its images are read: training part ``P``, test part and metadata.

    Attributes:
        test: Test images, of the same shape as those of training.
        mean: Per channel, as ``std``, of images in [0, 1], for the normalisation: constants that every client shares.
        columns: Names of a table's columns; empty where examples are images.
        cardinalities: Categories of each column.
        notes: What was left out of it, a clause each.
    """

    train: P
    test: P
    class_names: tuple[str, ...]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    columns: tuple[str, ...] = ()
    cardinalities: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False)
class ImageDataset(Described[ImageData]):
    """A data set for classification; its tensors are shared and must not be written to. ``name`` is what it was loaded as."""

    name: str = field(kw_only=True)

    @property
    def num_classes(self) -> int:
        """Labels are 0 to num_classes - 1."""
        return len(self.class_names)

    @property
    def multi_label(self) -> bool:
        """Whether an image may have several of the ``num_classes`` labels, or none."""
        return self.train.vectors is not None

    @property
    def input_shape(self) -> ImageShape:
        """(C, H, W) of one image."""
        _, channels, height, width = self.train.images.shape
        return channels, height, width


@dataclass(frozen=True)
class Part:
    """Training or test part of a source: labels are loaded at once, images on access.

    Attributes:
        labels: (N,).
        read: (indices, image size or 0) -> uint8 images (n, C, H, W).
        shape: (indices, image size or 0) -> (C, H, W) of those images, found from as few of them as possible.
        sensitive: (N,), a second attribute from 0, over whose combinations with the labels the part is balanced; or None.
        vectors: (N, K), all labels of each image, where it may have several; see ``ImageData``.
    """

    labels: Labels
    read: Callable[[Rows, int], Tensor]
    shape: Callable[[Rows, int], ImageShape]
    sensitive: Labels | None = None
    vectors: Labels | None = None

    def images(self, indices: Rows, size: int, memory: float) -> Images:
        """The images at ``indices``: in memory if their bytes are at most ``memory`` GiB, otherwise read on access."""
        channels, height, width = self.shape(indices, size)
        if len(indices) * channels * height * width <= memory * 2**30:
            return self.read(indices, size)
        return StoredImages(lambda rows: self.read(indices[rows], size), (len(indices), channels, height, width))


class Source(Described[Part]):
    """A data set whose images have not been read yet; ``mean`` and ``std`` hold one value per channel, or one for all."""


def array_part(images: Levels | NDArray[np.int32], labels: NDArray[np.integer]) -> Part:
    """A part whose images, or rows of a table (N, C, H, W), are in memory already."""
    tensor = torch.from_numpy(np.ascontiguousarray(images))
    if len(images) != len(labels):
        raise DataError(f"there are {len(images)} examples but {len(labels)} labels")

    def read(indices: Rows, size: int) -> Tensor:
        everything = len(indices) == len(tensor) and bool((np.diff(indices) == 1).all())
        return resize(tensor if everything else tensor[torch.from_numpy(indices)], size)

    def shape(_: Rows, size: int) -> ImageShape:
        channels, height, width = images.shape[1:]
        return channels, size or height, size or width

    return Part(labels.astype(np.int64), read, shape)


def resize(images: Tensor, size: int) -> Tensor:
    """Cuts uint8 images (N, C, H, W) to their central square and scales it to size x size; 0 leaves them as they are.

    Bilinear with antialiasing: a triangle filter, as wide as the scale when shrinking. Rounded after each direction.
    """
    height, width = images.shape[-2:]
    if size == 0 or (height, width) == (size, size):
        return images
    if images.dtype == torch.int32:
        raise DataError(f"image-size is {size}; allowed for rows of a table: 0, as there is nothing to scale")
    side = min(height, width)
    top, left = (height - side) // 2, (width - side) // 2
    square = images[..., top : top + side, left : left + side]
    return F.interpolate(square, (size, size), mode="bilinear", antialias=True)


def strata(labels: Labels, sensitive: Labels | None) -> Labels:
    """A number (N,) for each pair of a class and a value of the sensitive attribute; the classes where there is none."""
    return labels if sensitive is None else (int(labels.max()) + 1) * sensitive + labels


def stratified_prefix(labels: Labels, limit: int) -> Rows:
    """Indices, sorted, of ``limit`` examples with the class proportions of the whole; all of them when ``limit`` is 0.

    The r-th of the n examples of a class has the key (r + 1/2) / n, and the smallest keys are taken: no randomness, and a
    smaller selection is part of a larger one.
    """
    if limit == 0 or limit >= len(labels):
        return np.arange(len(labels))
    rank, count = ranks_in_class(labels)
    return np.sort(np.lexsort((labels, (rank + 0.5) / count))[:limit])


def ranks_in_class(labels: Labels) -> tuple[Rows, Rows]:
    """For every example, how many of its class come before it, and how many there are in its class."""
    counts = np.bincount(labels)
    order = np.argsort(labels, kind="stable")
    rank = np.empty(len(labels), dtype=np.intp)
    rank[order] = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    return rank, counts[labels]


FINGERED = 16
"""Images of each part that a fingerprint reads."""


def fingerprint(data: ImageDataset) -> str:
    """16 hexadecimal digits of all labels and a few images: equal in two processes that read the same examples."""
    digest = hashlib.blake2b(digest_size=8)
    for part in (data.train, data.test):
        digest.update(part.labels.numpy().tobytes())
        at = torch.linspace(0, len(part) - 1, min(len(part), FINGERED)).long().unique()  # type: ignore[no-untyped-call]
        digest.update(part.images[at].contiguous().numpy().tobytes())
    return digest.hexdigest()
