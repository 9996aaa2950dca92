"""Image data sets by their names at Hugging Face: from a folder, from the cache of the package ``datasets``, or fetched."""

from __future__ import annotations

import os
import re
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from clients.data.files.file_sets import Place
from clients.data.images import DataError, MissingDataError, Source
from clients.data.own import source_of
from clients.wire.texts import shown

if TYPE_CHECKING:
    from datasets import Dataset  # type: ignore[import-untyped]

HUB_NAME = re.compile(
    r"(?=.{3,96}$)(?!buckets/|.*(?:--|\.\.))[a-z0-9][\w.-]*/[a-z0-9][\w.-]*(?<![.-])", re.ASCII | re.IGNORECASE
)
"""The names of data sets that Hugging Face gives; "buckets/" begins those of its storage."""
TEST_PARTS = ("test", "validation")
"""What may stand for the test part, in order: some publish theirs without classes under another name."""


def require_hub_name(name: str) -> None:
    """Raise ``DataError`` for anything but ``owner/name`` at Hugging Face.

    The package ``datasets`` takes any other text for a folder, an address or a reader of files.
    """
    if not HUB_NAME.fullmatch(name):
        raise DataError(
            f"dataset is {shown(f'hf:{name}')}; allowed: hf:owner/name, such as hf:zalando-datasets/fashion_mnist"
        )


def hugging_face(place: Place) -> Source:
    """A data set ``hf:owner/name`` with a column of images and one of class labels, in parts for training and for test.

    It is read from ``data-dir``, as ``save_to_disk`` writes it below ``owner/name``; with ``download`` also from the cache of
    ``datasets`` (``HF_DATASETS_CACHE``) and from the network. ``datasets`` runs no code of a repository.

    Raises:
        DataError: When it is nowhere, or has no such parts or columns.
    """
    require_hub_name(place.option)
    parts = _read(place, place.option)
    train, test = parts.get("train"), next((parts[part] for part in TEST_PARTS if part in parts), None)
    if train is None or test is None:
        raise DataError(
            f"{place.name} has the parts {', '.join(map(str, parts)) or 'none'}; train, and test or validation, are expected"
        )
    image, label = _columns(place.name, train)
    return source_of(place.name, _Rows(train, image, label), _Rows(test, image, label))


def _read(place: Place, name: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise DataError('the package datasets is not installed: pip install "fedveil[huggingface]"') from error

    stored, root = place.root / name, place.root.resolve()
    below = (path.resolve() for path in (stored, *stored.rglob("*")))
    offered = stored.is_dir() and all(path.is_relative_to(root) and (path.is_file() or path.is_dir()) for path in below)
    if not offered and not place.download:
        without = " of files alone and without a link out of data-dir" if stored.is_dir() else ""
        raise MissingDataError(f"{place.name}: there is no folder {stored}{without}", download="download=true")
    if not offered and os.path.lexists(name):
        raise DataError(
            f"{place.name}: {name} lies below the working directory too, and would be read in its place; work elsewhere, or save "
            f"the data set to {stored}"
        )
    try:
        return datasets.load_from_disk(str(stored)) if offered else datasets.load_dataset(name)
    except Exception as error:  # of readers and of the network: they raise anything
        said = " ".join(str(error).split())[:300] or type(error).__name__
        raise DataError(
            f"{place.name}: it cannot be read from {stored if offered else 'Hugging Face'}: {said}"
        ) from error


def _columns(name: str, data: Dataset) -> tuple[str, str]:
    import datasets

    keys = []
    for kind, what in ((datasets.Image, "images"), (datasets.ClassLabel, "class labels")):
        columns = [key for key, feature in data.features.items() if isinstance(feature, kind)]
        if len(columns) != 1:
            raise DataError(
                f"{name} has {len(columns)} columns of {what} among {', '.join(data.features)}; exactly one is expected; "
                "read others by a function of your own, dataset = file.py:function"
            )
        keys.append(columns[0])
    return keys[0], keys[1]


class _Rows:
    def __init__(self, data: Dataset, image: str, label: str) -> None:
        self._image, self._feature = image, data.features[image]
        self._data = data.select_columns([image]).cast_column(image, replace(self._feature, decode=False))
        self.targets = data[label][:]  # of all, without decoding an image
        self.classes = data.features[label].names

    def __len__(self) -> int:
        return len(self._data)

    def __getitem__(self, at: int) -> tuple[Any, int]:
        encoded = self._data[at][self._image]["bytes"]
        if encoded is None:  # else the library reads whatever file the entry names
            raise DataError("the entry names a file and holds no image; save_to_disk writes data sets that hold theirs")
        return self._feature.decode_example({"bytes": encoded, "path": None}), self.targets[at]
