"""Real images composed in one frame, so that the primary task is about one object and the sensitive attribute about another.

They stand in for CelebA's attributes where nothing can be downloaded. Which images meet, and where, is drawn from a fixed
seed: every process gets the same examples.
"""

import itertools
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from clients.data.images import DataError, Labels, Levels, Part, Rows, Source, array_part, ranks_in_class
from clients.data.packaged import PHOTOS, face_pictures, mnist_5k, photos

COMBINATIONS = tuple(itertools.product((0, 1), (0, 1)))
"""(primary, sensitive)."""


def binary_attribute(name: str, text: str, titles: Sequence[str]) -> tuple[Labels, tuple[str, str]]:
    """Read an attribute that two groups of classes make: ``06-24`` is 0 for the classes 0 and 6, and 1 for 2 and 4.

    ``name`` of the data set is for messages; an empty title marks a class that must not be used. Returns class -> 0, 1, or -1 for a
    class that is in neither group, (len(titles),), and the names of both groups.
    """
    groups = text.split("-")
    digits = "".join(groups)
    allowed = {str(number): title for number, title in enumerate(titles) if title}
    if len(groups) != 2 or not all(groups) or len(set(digits)) != len(digits) or not set(digits) <= set(allowed):
        known = ", ".join(f"{digit} {title}" for digit, title in allowed.items())
        raise DataError(
            f"{name}: {text!r} is no attribute; expected two groups of different classes such as "
            f"{''.join(list(allowed)[:2])}-{''.join(list(allowed)[2:4])}, from: {known}"
        )
    values = np.full(len(titles), -1, dtype=np.int64)
    for value, group in enumerate(groups):
        values[[int(digit) for digit in group]] = value
    first, second = (" or ".join(titles[int(digit)] for digit in sorted(group)) for group in groups)
    return values, (first, second)


def balanced(name: str, primary: Labels, sensitive: Labels) -> Rows:
    """Rows, sorted, with equally many of each pair of binary attributes (N,); ``DataError`` where a pair is missing."""
    joint = 2 * primary + sensitive
    counts = np.bincount(joint, minlength=4)
    if counts.min() == 0:
        listing = ", ".join(f"{pair}: {count}" for pair, count in zip(COMBINATIONS, counts, strict=True))
        raise DataError(f"{name}: every combination of (primary, sensitive) must occur; there are {listing}")
    return np.flatnonzero(ranks_in_class(joint)[0] < counts.min())


def paired(name: str, primary: Labels, sensitive: Labels, generator: np.random.Generator) -> tuple[Rows, Rows]:
    """Pair examples of two sources so that all four combinations are equally frequent, using no example twice.

    ``primary`` (N,) is the attribute of the first source's examples, ``sensitive`` (M,) that of the second's: 0, 1, or -1 for those
    that are left out. Returns rows of both, as many as they allow; combinations take turns in the order of ``COMBINATIONS``, so
    that every beginning is balanced too. A value with fewer than two examples is a ``DataError``, which names the data set.
    """
    pools = [[generator.permutation(np.flatnonzero(values == v)) for v in (0, 1)] for values in (primary, sensitive)]
    # Each value is in two combinations.
    each = min(len(pool) for source in pools for pool in source) // 2
    if each == 0:
        sizes = [len(pool) for source in pools for pool in source]
        raise DataError(f"{name}: both values of both attributes need two examples at least; there are {sizes}")
    first = np.stack([pools[0][p][s * each : (s + 1) * each] for p, s in COMBINATIONS], 1)
    return first.ravel(), np.stack([pools[1][s][p * each : (p + 1) * each] for p, s in COMBINATIONS], 1).ravel()


SEED = 20_240_229
FRAME = 64
"""Side in pixels of a frame with a face."""
# Tiles of the astronaut can show a face, which would be one too many.
KINDS = tuple("" if kind == "astronaut" else kind for kind in PHOTOS)


def garment_digit(name: str, fashion: Source, option: str) -> Source:
    """A garment and a digit in two quadrants of a black frame of 56x56 pixels; the task is the garment, the digit is sensitive.

    Garments are Fashion-MNIST's and digits those of ``mnist_5k``, grey, as they are; the quadrants are drawn for each frame.
    Training frames hold training images of both, test frames test images. No image is used twice, so that there are at most
    as many frames as digits.

    ``option`` is two attributes (``binary_attribute``) with a comma between, else ``DataError``: ``06-24,02468-13579`` separates
    T-shirt/top or shirt from pullover or coat, and even from odd digits.

    Source: Xiao et al. 2017, Fashion-MNIST; LeCun et al. 1998.
    """
    digits = mnist_5k()
    texts = option.split(",")
    if len(texts) != 2:
        raise DataError(f"{name}: expected {name.partition(':')[0]}:GARMENTS,DIGITS such as 06-24,02468-13579")
    garment, garments = binary_attribute(name, texts[0], fashion.class_names)
    digit, _ = binary_attribute(name, texts[1], digits.class_names)
    generator = np.random.default_rng(SEED)
    parts = []
    for cloth, number in ((fashion.train, digits.train), (fashion.test, digits.test)):
        first, second = paired(name, garment[cloth.labels], digit[number.labels], generator)
        images = cloth.read(first, 0).numpy(), number.read(second, 0).numpy()
        frames = _quadrants(*images, generator)
        parts.append(_part(frames, garment[cloth.labels[first]], digit[number.labels[second]]))
    return _source(parts, garments)


def photo_face(name: str, option: str) -> Source:
    """A small picture of a face, or of no face, on a tile of a photograph, 64x64 in colour; the face is sensitive.

    The task is which kind of photograph the tile is of. Tiles are those of ``photos``, doubled in size; no pixel of a
    photograph is in two of them. The grey pictures, 25x25 and put at a place that is drawn for each frame, are
    scikit-image's: 100 faces of Labeled Faces in the Wild and 100 of its patches without a face. 160 frames train and 40
    test, so that an accuracy has a 95 % interval of about 15 percentage points to either side. Faces in training and test are
    different pictures; whether they are of different people the file does not say.

    ``option`` is an attribute (``binary_attribute``) of kinds of photographs, else ``DataError``: ``125-346`` separates cat,
    coffee and the motorcycle from galaxies, tissue and the retina. The astronaut is not among them: her tiles show a face.

    Source: Huang et al. 2007, Labeled Faces in the Wild; scikit-image's ``lfw_subset``.
    """
    kind, kinds = binary_attribute(name, option, KINDS)
    pictures, faces, tests = face_pictures()
    tiles = photos()
    generator = np.random.default_rng(SEED)
    parts = []
    for tile, chosen in ((tiles.train, ~tests), (tiles.test, tests)):
        first, second = paired(name, kind[tile.labels], faces[chosen], generator)
        frames = tile.read(first, 0).numpy().repeat(FRAME // 32, 2).repeat(FRAME // 32, 3)
        _paste(frames, pictures[chosen][second], generator)
        parts.append(_part(frames, kind[tile.labels[first]], faces[chosen][second]))
    return _source(parts, kinds)


def _quadrants(first: Levels, second: Levels, generator: np.random.Generator) -> Levels:
    """Puts two images (N, 1, H, W) in two different quadrants of a black frame: (N, 1, 2H, 2W)."""
    count, _, height, width = first.shape
    frames = np.zeros((count, 1, 2 * height, 2 * width), dtype=np.uint8)
    places = generator.permuted(np.tile(np.arange(4), (count, 1)), axis=1)
    for row, (quadrant, other) in enumerate(places[:, :2]):
        for image, place in ((first[row], quadrant), (second[row], other)):
            top, left = place // 2 * height, place % 2 * width
            frames[row, :, top : top + height, left : left + width] = image
    return frames


def _paste(frames: Levels, pictures: Levels, generator: np.random.Generator) -> None:
    """Puts grey pictures (N, h, w) at random places of frames (N, 3, H, W), in place."""
    height, width = pictures.shape[1:]
    for frame, picture in zip(frames, pictures, strict=True):
        top = generator.integers(frame.shape[1] - height + 1)
        left = generator.integers(frame.shape[2] - width + 1)
        frame[:, top : top + height, left : left + width] = picture


def _part(frames: Levels, labels: Labels, sensitive: Labels) -> Part:
    return replace(array_part(frames, labels), sensitive=sensitive)


def _source(parts: list[Part], names: tuple[str, str]) -> Source:
    # The pictures are public, so that their statistics reveal nothing about a client.
    frames = parts[0].read(np.arange(len(parts[0].labels)), 0).to(torch.float32) / 255
    mean, std = (tuple(values.tolist()) for values in (frames.mean((0, 2, 3)), frames.std((0, 2, 3))))
    return Source(parts[0], parts[1], names, mean, std)
