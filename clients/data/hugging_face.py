"""Image data sets by their names at Hugging Face: from a folder, from the cache of the package ``datasets``, or fetched."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from clients.data.files.file_sets import Place
from clients.data.images import DataError, MissingDataError, Source
from clients.data.own import source_of

if TYPE_CHECKING:
    from datasets import Dataset  # type: ignore[import-untyped]

TEST_PARTS = ("test", "validation")
"""What may stand for the test part, in order: some publish theirs without classes under another name."""


def hugging_face(place: Place) -> Source:
    """A data set ``hf:owner/name`` with a column of images and one of class labels, in parts for training and for test.

    It is looked for in ``data-dir``, as ``save_to_disk`` writes it below ``owner/name``, then in the cache of ``datasets``
    (``HF_DATASETS_CACHE``), and with ``download`` in the network. ``datasets`` runs no code of a repository.

    Raises:
        DataError: When it is nowhere, or has no such parts or columns.
    """
    name = place.option
    if name.count("/") > 1 or not all(part and part.strip(".") for part in name.split("/")):
        raise DataError(f"dataset is {place.name!r}; allowed: hf:owner/name, such as hf:zalando-datasets/fashion_mnist")
    found = _read(place, name)
    train, test = found.get("train"), next((found[part] for part in TEST_PARTS if part in found), None)
    if train is None or test is None:
        raise DataError(
            f"{place.name} has the parts {', '.join(map(str, found)) or 'none'}; train, and test or validation, are expected"
        )
    image, label = _columns(place.name, train)
    return source_of(place.name, _Rows(train, image, label), _Rows(test, image, label))


def _read(place: Place, name: str) -> Any:
    import datasets

    stored = place.root / name
    try:
        if stored.is_dir():
            return datasets.load_from_disk(str(stored))
        with _offline(not place.download):
            return datasets.load_dataset(name)
    except Exception as error:  # of readers and of the network: they raise anything
        said = " ".join(str(error).split())[:300] or type(error).__name__
        if stored.is_dir():
            raise DataError(f"{place.name}: {stored} cannot be read: {said}") from error
        where = f"neither {stored} nor the cache {datasets.config.HF_DATASETS_CACHE} holds it"
        raise MissingDataError(f"{place.name}: {where} ({said})", download="download=true") from error


@contextmanager
def _offline(wanted: bool) -> Iterator[None]:
    """Let ``datasets`` read only its cache, so that it never uses the network on its own."""
    import datasets

    before = datasets.config.HF_HUB_OFFLINE
    datasets.config.HF_HUB_OFFLINE = wanted or before
    try:
        yield
    finally:
        datasets.config.HF_HUB_OFFLINE = before


def _columns(name: str, data: Dataset) -> tuple[str, str]:
    """The one column of images, and the one of class labels."""
    import datasets

    found = []
    for kind, what in ((datasets.Image, "images"), (datasets.ClassLabel, "class labels")):
        columns = [key for key, feature in data.features.items() if isinstance(feature, kind)]
        if len(columns) != 1:
            raise DataError(
                f"{name} has {len(columns)} columns of {what} among {', '.join(data.features)}; exactly one is expected; "
                "read others by a function of your own, dataset = file.py:function"
            )
        found.append(columns[0])
    return found[0], found[1]


class _Rows:
    def __init__(self, data: Dataset, image: str, label: str) -> None:
        self._data, self._image = data, image
        self.targets = data[label][:]  # of all, without decoding an image
        self.classes = data.features[label].names

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        return self._data[at][self._image], self.targets[at]
