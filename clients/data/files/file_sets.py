"""Data sets in the files that their authors publish: where each is searched, how it is downloaded, and its reader."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from clients.data import public_tables
from clients.data.files import picture_files
from clients.data.files.array_files import read_cifar, read_idx, read_pickle
from clients.data.images import DataError, MissingDataError, Part, Source, array_part

SYSTEM_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")

REFUSE, SKIP = "refuse", "skip"
"""Options of ``folder``: what a picture that cannot be read does."""

FASHION_CLASSES = "T-shirt/top,Trouser,Pullover,Dress,Coat,Sandal,Shirt,Sneaker,Bag,Ankle boot"


@dataclass(frozen=True)
class Place:
    """Folder in which a data set is searched, or to which it is downloaded.

    Attributes:
        root: The user's directory (``given``), or the default one.
        option: What follows the colon of the name.
        limits: Training and test examples that are wanted, 0 for all; a loader may read more.
    """

    name: str
    root: Path
    given: bool
    download: bool
    option: str
    limits: tuple[int, int] = (0, 0)

    def find(
        self, candidates: list[Path], wanted: str, fetch: Callable[[str], object] | None, elsewhere: str = ""
    ) -> Path:
        """The first candidate that exists, after a download if there is none and it is allowed.

        ``wanted`` is what is looked for, in words; a folder when it ends in a slash, else a file; ``elsewhere`` where else it
        may lie. ``fetch`` downloads the data set into a directory; None when that would not help.

        Raises:
            MissingDataError: When there is none.
        """
        exists = Path.is_dir if wanted.endswith("/") else Path.is_file
        path = next(filter(exists, candidates), None)
        if path is None and self.download and fetch is not None:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                fetch(str(self.root))
            except Exception as error:  # Downloaders raise anything; the message is what helps.
                raise DataError(f"{self.name}: the download to {self.root} failed: {error}") from error
            path = next(filter(exists, candidates), None)
        if path is None:
            missing = f"{self.name}: there is no {wanted} under {self.root}{elsewhere and f' nor {elsewhere}'}"
            raise MissingDataError(missing, download="download=true" if fetch else "")
        return path


def _torchvision(dataset: str) -> Callable[[str], object]:
    def fetch(root: str) -> object:
        from torchvision import datasets  # type: ignore[import-untyped]

        return getattr(datasets, dataset)(root, download=True)

    return fetch


def idx(place: Place, dataset: str, names: str, mean: float, std: float) -> Source:
    """MNIST and its relatives: four IDX files, in ``data_dir`` or where torchvision puts them."""
    fetch = _torchvision(dataset)
    roots, elsewhere = [place.root, place.root / dataset / "raw", place.root / "raw"], ""
    if dataset == "FashionMNIST" and not place.given:
        roots.append(SYSTEM_FASHION_MNIST)
        elsewhere = f"in {SYSTEM_FASHION_MNIST}, where Debian's package dataset-fashion-mnist puts it"
    parts = []
    for stem in ("train", "t10k"):
        files = []
        for kind, ndim in (("images", 3), ("labels", 1)):
            endings = [f"{stem}-{kind}{dot}idx{ndim}-ubyte{gz}" for dot in "-." for gz in ("", ".gz")]
            path = place.find([root / end for root in roots for end in endings], endings[0] + "[.gz]", fetch, elsewhere)
            files.append(read_idx(path, ndim))
        parts.append(array_part(files[0][:, None], files[1]))
    return Source(parts[0], parts[1], tuple(names.split(",")), (mean,), (std,))


def fashion(place: Place) -> Source:
    """Fashion-MNIST: four IDX files."""
    return idx(place, "FashionMNIST", FASHION_CLASSES, 0.2860, 0.3530)


def cifar10(place: Place) -> Source:
    """CIFAR-10: batches as pickled by its authors."""
    names = (*(f"data_batch_{at}" for at in range(1, 6)), "test_batch", "batches.meta")
    titles, train, test = _cifar(place, "CIFAR10", "cifar-10-batches-py", names, ("labels", "label_names"), 10)
    return Source(train, test, titles, (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616))


def cifar100(place: Place) -> Source:
    """CIFAR-100: batches as pickled by its authors."""
    keys = ("fine_labels", "fine_label_names")
    titles, train, test = _cifar(place, "CIFAR100", "cifar-100-python", ("train", "test", "meta"), keys, 100)
    return Source(train, test, titles, (0.5071, 0.4865, 0.4409), (0.2673, 0.2564, 0.2762))


def _cifar(
    place: Place, dataset: str, folder: str, names: tuple[str, ...], keys: tuple[str, str], num_classes: int
) -> tuple[tuple[str, ...], Part, Part]:
    """Class names, training part and test part; ``names`` are training batches, test batch and file of names."""
    fetch = _torchvision(dataset)
    first = place.find([place.root / folder / names[0], place.root / names[0]], f"{folder}/{names[0]}", fetch)
    files = [place.find([first.parent / name], f"{first.parent.name}/{name}", fetch) for name in names]
    titles = tuple(read_pickle(files[-1]).get(keys[1], ()))
    if len(titles) != num_classes:
        raise DataError(f"{files[-1]} names {len(titles)} classes, expected {num_classes}")
    return titles, array_part(*read_cifar(files[:-2], keys[0])), array_part(*read_cifar(files[-2:-1], keys[0]))


def celeba(place: Place) -> Source:
    """CelebA: pictures beside two lists, by the attributes that the option names."""
    wanted, fetch = "img_align_celeba", _torchvision("CelebA")
    pictures = place.find([place.root / "celeba" / wanted, place.root / wanted], f"celeba/{wanted}/", fetch)
    for file in ("list_attr_celeba.txt", "list_eval_partition.txt"):
        place.find([pictures.parent / file], f"{pictures.parent.name}/{file}", fetch)
    return picture_files.celeba(pictures.parent, place.option)


def lfw(place: Place) -> Source:
    """Labeled Faces in the Wild: folders of people with at least the option's number of pictures."""

    def fetch(root: str) -> None:
        # torchvision can no longer download it. The limits keep what scikit-learn decodes on the way small.
        try:
            from sklearn.datasets import fetch_lfw_people  # type: ignore[import-untyped]
        except ImportError as error:
            raise DataError("scikit-learn is not installed: pip install 'fedveil[lfw]'") from error
        fetch_lfw_people(data_home=root, min_faces_per_person=500, resize=0.1)

    if not place.option.isdecimal() or int(place.option) < 2:
        raise DataError(f"{place.name}: expected lfw:K with a whole number K of pictures per person, at least 2")
    variants = ("lfw_funneled", "lfw-deepfunneled", "lfw")
    parents = (place.root, place.root / "lfw_home", place.root / "lfw-py")
    where = [parent / variant for variant in variants for parent in parents]
    return picture_files.lfw(place.find(where, "lfw_funneled/", fetch), int(place.option))


def criteo(place: Place) -> Source:
    """Criteo's click log, by the columns that the option names."""
    candidates = [place.root / "criteo" / "train.txt", place.root / "train.txt"]
    return public_tables.criteo(place.find(candidates, "train.txt", None), place.option, place.limits)


def folder(place: Place) -> Source:
    """The user's own pictures, a folder per class."""
    if not place.given:
        raise DataError("folder: set data-dir to a directory with a folder per class")
    if place.option not in (REFUSE, SKIP):
        raise DataError(f"{place.name}: pictures that cannot be read are met by folder:{REFUSE} or folder:{SKIP}")
    return picture_files.folder(place.root, skip_broken=place.option == SKIP)
