"""Data sets by name, read from installed packages or from files, and from the network only with ``download``."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from clients.data import composed, packaged, public_tables
from clients.data.files import file_sets, picture_files
from clients.data.files.file_sets import Place
from clients.data.hugging_face import hugging_face, require_hub_name
from clients.data.images import (
    IMAGE_MEMORY,
    DataError,
    ImageData,
    ImageDataset,
    Part,
    Source,
    strata,
    stratified_prefix,
    with_channels,
)
from clients.data.own import GROUP, own_source
from clients.process.own_code import installed, is_own, origin
from defenses.registry import RegistryError
from defenses.spec import suggest

HUB = "hf"
"""Begins the names of data sets of Hugging Face."""
DEFAULT_DIR = Path("~/.cache/fedveil")


@dataclass(frozen=True)
class DataSource:
    """The description of a data set before it is read.

    Attributes:
        about: One line with its source.
        option: What follows the colon where nothing does; "" for a data set without options.
        attributes: By the option in use: 1 where examples have a class alone, 2 where they carry a sensitive attribute
            besides, more where each has a vector of labels.
        is_table: Examples are rows of a table, not images.
    """

    load: Callable[[Place], Source]
    about: str
    option: str = ""
    attributes: Callable[[str], int] = lambda _: 1
    is_table: bool = False


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
    """Read a data set; the result is cached per process and its tensors must not be written to.

    Args:
        name: See ``dataset_names``; or ``file.py:function`` or ``package.module:function`` (``clients.data.own``). An option
            follows a colon: ``celeba:Male``, ``lfw:50``. With two attributes, ``celeba:Male,Smiling``, examples carry sensitive
            labels and are balanced over the combinations; with more, or ``celeba:all``, each example has a vector of labels.
        data_dir: Directory of the files; "" means ``~/.cache/fedveil`` (and, for fashion-mnist, the system's copy).
        download: Fetch missing files into it with torchvision or scikit-learn, which check their digests.
        image_size: Side in pixels; pictures are cut to their central square and scaled. 0 keeps their size.
        train_limit: At most so many training images, with the class proportions of all (the first lines of criteo's file); 0 for
            all.
        test_limit: Likewise for test images.
        image_memory: GiB of decoded images that a part may hold in memory; images of a larger part are read on access.

    Raises:
        DataError: When the name is unknown, or files are missing, damaged or inconsistent.
    """
    for what, value in (("image-size", image_size), ("train-limit", train_limit), ("test-limit", test_limit)):
        if value < 0:
            raise DataError(f"{what} is {value}; allowed: 0 (no limit) or more")
    require_name(name)
    base, _, option = name.partition(":")
    root = Path(data_dir or DEFAULT_DIR).expanduser().absolute()
    try:
        missing = data_dir and not download and not root.is_dir()
    except OSError as error:  # such as a name that is too long
        raise DataError(f"{name}: data-dir {root}: {error.strerror}") from error
    if missing:
        raise DataError(f"{name}: data-dir {root} is not a directory")
    try:
        limits = (train_limit, test_limit)
        if is_own(name, _sources()):
            source = own_source(name)
        else:
            described = _sources()[base]
            source = described.load(Place(name, root, bool(data_dir), download, option or described.option, limits))
        parts = [
            _read(name, what, part, limit, image_size, len(source.class_names), image_memory)
            for what, part, limit in (("train", source.train, train_limit), ("test", source.test, test_limit))
        ]
    except OSError as error:
        raise DataError(f"{name}: {error}") from error
    if any((part.sensitive is not None) != has_sensitive_attribute(name) for part in parts):
        # Attacks on attributes are chosen, and refused, by the description: a wrong one would leave them out without a word.
        said = "a" if has_sensitive_attribute(name) else "no"
        raise DataError(f"{name}: it is described with {said} sensitive attribute, unlike what was read")
    return _assemble(name, source, parts[0], parts[1])


def dataset_names() -> dict[str, str]:
    """Name -> one line with its source, for listings."""
    return {name: source.about for name, source in _sources().items()}


def require_name(name: str) -> None:
    """Raise ``DataError``, with the nearest name, unless the name can be that of a data set; nothing is read."""
    base, _, option = name.partition(":")
    if base == HUB:
        require_hub_name(option)
    elif not is_own(name, _sources()) and (base not in _sources() or (option and not _sources()[base].option)):
        raise DataError(f"unknown data set {name!r}{suggest(base, _sources())}; known: {', '.join(dataset_names())}")


def reads_data_dir(name: str) -> bool:
    """Check by its name whether a data set is, or may be, read from files in ``data_dir``."""
    base = name.partition(":")[0]
    return base in _SOURCES and base not in WITHOUT_FILES


def is_public(name: str) -> bool:
    """Check by its name whether a data set is one of ours that anyone can have: no user's pictures or code, and no hub."""
    return name.partition(":")[0] in _SOURCES.keys() - {"folder", HUB}


def has_sensitive_attribute(name: str) -> bool:
    """Check, without reading a data set, whether its examples carry a second attribute."""
    return _attributes(name) == 2


def is_multi_label(name: str) -> bool:
    """Check, without reading a data set, whether its examples may have several labels at once."""
    return _attributes(name) > 2


def _attributes(name: str) -> int:
    base, _, option = name.partition(":")
    source = _sources().get(base)
    return source.attributes(option or source.option) if source else 1


def is_table(name: str) -> bool:
    """Whether a data set's examples are rows of a table (see ``clients.data.tables``), not images."""
    base = name.partition(":")[0]
    return base in _sources() and _sources()[base].is_table


def _sources() -> dict[str, DataSource]:
    """Built-in data sets, and those of other packages (entry points ``fedveil.datasets``), which may not take the same names."""
    sources = dict(_SOURCES)
    for name, point in installed(GROUP).items():
        if name in sources:
            raise RegistryError(f"dataset {name!r}: {origin(point)} has the name of ours; it must be renamed there")
        sources[name] = DataSource(lambda _, place=point.value: own_source(place), origin(point))  # type: ignore[misc]
    return sources


def _read(name: str, what: str, part: Part, limit: int, image_size: int, num_classes: int, memory: float) -> ImageData:
    labels = part.labels
    if len(labels) == 0:
        raise DataError(f"{name}: there are no examples")
    if labels.min() < 0 or labels.max() >= num_classes:
        raise DataError(f"{name}: labels run from {labels.min()} to {labels.max()}, expected 0 to {num_classes - 1}")
    if part.sensitive is not None and limit > len(labels):
        raise DataError(
            f"{name}: {what}-limit is {limit}, but there are {len(labels)} balanced examples; 0 takes them all"
        )
    # A limit keeps the balance over both attributes.
    indices = stratified_prefix(strata(labels, part.sensitive), limit)
    chosen = [None if of is None else torch.from_numpy(of[indices]) for of in (part.sensitive, part.vectors)]
    return ImageData(part.images(indices, image_size, memory), torch.from_numpy(labels[indices]), *chosen)


def _assemble(name: str, source: Source, train: ImageData, test: ImageData) -> ImageDataset:
    """Brings both parts to the same number of channels, and refuses different sizes."""
    shapes = [tuple(part.images.shape[2:]) for part in (train, test)]
    if shapes[0] != shapes[1]:
        raise DataError(f"{name}: training images are {shapes[0]} and test images {shapes[1]} pixels; set image-size")
    channels = max(train.images.shape[1], test.images.shape[1])
    train, test = (with_channels(part, channels) for part in (train, test))
    mean, std = (values * channels if len(values) == 1 else values for values in (source.mean, source.std))
    return ImageDataset(**vars(source) | {"train": train, "test": test, "mean": mean, "std": std}, name=name)


WITHOUT_FILES = frozenset({"mnist-5k", "photos", "faces", "photo-face"})
"""Data sets of ours that come with fedveil and its packages."""

_SOURCES: dict[str, DataSource] = {
    "mnist-5k": DataSource(
        lambda _: packaged.mnist_5k(),
        "5,000 handwritten digits 28x28 of MNIST, 3,800 train and 1,200 test; needs no files",
    ),
    "photos": DataSource(
        lambda _: packaged.photos(),
        "colour tiles 32x32 of eight photographs of the scikit-image package, from three scales; needs no files",
    ),
    "faces": DataSource(
        lambda _: packaged.faces(),
        "grey pictures 25x25 of the scikit-image package, a face or none, 160 + 40 only; needs no files",
    ),
    "garment-digit": DataSource(
        lambda place: composed.garment_digit(place.name, file_sets.fashion(place), place.option),
        "a garment of fashion-mnist and a digit of mnist-5k in a frame 56x56; the digit is a sensitive attribute",
        attributes=lambda _: 2,
        option="06-24,02468-13579",
    ),
    "photo-face": DataSource(
        lambda place: composed.photo_face(place.name, place.option),
        "a face or none, 25x25, on colour tiles of photographs, 64x64, 160 + 40 only; the face is sensitive",
        attributes=lambda _: 2,
        option="125-346",
    ),
    "mnist": DataSource(
        lambda place: file_sets.idx(place, "MNIST", ",".join("0123456789"), 0.1307, 0.3081),
        "MNIST, 60,000 + 10,000 digits 28x28 (LeCun et al. 1998); IDX files",
    ),
    "fashion-mnist": DataSource(
        file_sets.fashion,
        "Fashion-MNIST, 60,000 + 10,000 garments 28x28 (Xiao et al. 2017); IDX files",
    ),
    "cifar10": DataSource(
        file_sets.cifar10,
        "CIFAR-10, 50,000 + 10,000 colour images 32x32 (Krizhevsky 2009); cifar-10-batches-py",
    ),
    "cifar100": DataSource(
        file_sets.cifar100,
        "CIFAR-100, likewise with 100 classes; cifar-100-python",
    ),
    "celeba": DataSource(
        file_sets.celeba,
        "CelebA faces by one attribute, celeba:Smiling by default, by two, or (split only) by three or more at once, "
        "celeba:all for all 40 (Liu et al. 2015); wants an image-size",
        attributes=lambda option: 40 if option == picture_files.ALL else option.count(",") + 1,
        option="Smiling",
    ),
    "lfw": DataSource(
        file_sets.lfw,
        "Labeled Faces in the Wild by person, of lfw:30 pictures or more by default (Huang et al. 2007); the download wants "
        "fedveil[lfw]",
        option="30",
    ),
    "folder": DataSource(
        file_sets.folder,
        "your own pictures in data-dir: a folder per class, or train and test with a folder per class each; folder:skip leaves "
        "out those that cannot be read, and counts them",
        option=file_sets.REFUSE,
    ),
    HUB: DataSource(
        hugging_face,
        "images of Hugging Face, hf:owner/name: in data-dir/owner/name (save_to_disk), or with download=true; wants "
        "fedveil[huggingface]",
        option="/",
    ),
    "census": DataSource(
        lambda place: public_tables.census(place.root if place.given else None),
        "a table: 199,523 + 99,762 people, 40 columns, income over 50,000 or not (UCI, KDD); fedveil[tabular]",
        is_table=True,
    ),
    "criteo": DataSource(
        file_sets.criteo,
        "a table: clicks on advertisements, train.txt of Kaggle's contest, criteo:categorical (26) or criteo:all (39)",
        option="categorical",
        is_table=True,
    ),
}
