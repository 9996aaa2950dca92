"""The pictures to protect: of a folder, or of a named data set, which is first written to a temporary folder."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from clients.data.datasets import dataset_names, is_multi_label, is_table, load_dataset
from clients.data.images import ImageData, ImageDataset, MissingDataError, to_float
from clients.process.own_code import is_own
from simulations.protect.pictures import find, write
from simulations.runtime.own_code_trials import try_dataset
from simulations.settings.errors import ConfigError


@dataclass(frozen=True)
class Pictures:
    """The pictures to protect.

    Attributes:
        name: Of the folder or data set, for the manifest.
        place: Full path of the folder, or of the data set's files where one was named.
        names: Of the files.
        data: The data set; None for a user's folder, which is never touched.
    """

    name: str
    place: str
    names: list[str]
    data: ImageDataset | None = field(default=None, repr=False)

    def folder(self, temporary: str) -> Path:
        """The folder of the files; those of a data set are written to ``temporary``."""
        if self.data is None:
            return Path(self.place)
        for name, part, at in _examples(self.data):
            write(Path(temporary) / name, to_float(part.images[torch.tensor([at])][0]))
        return Path(temporary)


def pictures_of(source: str, out: Path, data_dir: str) -> Pictures:
    """The pictures of a folder, or of the data set of that name with its files in ``data_dir``.

    Raises:
        ConfigError: When it is neither, holds no pictures, or the copies would come to lie among the originals.
    """
    folder, target = Path(source), out.resolve()
    if folder.is_dir():
        if data_dir:
            raise ConfigError(f"data-dir is {data_dir}, and IN, {source}, is a folder; it is for named data sets")
        root = folder.resolve()
        if target == root or target.is_relative_to(root) or root.is_relative_to(target):
            raise ConfigError(f"OUT: {out} and IN, {source}, lie in each other; originals and copies must not mix")
        return Pictures(root.name, str(root), find(root))
    if source.partition(":")[0] not in dataset_names() and not is_own(source, dataset_names()):
        what = "is a file" if folder.exists() else "is no folder"
        raise ConfigError(f"IN: {source!r} {what} and no data set; known data sets: {', '.join(dataset_names())}")
    if is_table(source):
        raise ConfigError(f"IN: {source!r} is a table; protect takes folders of pictures and data sets of images")
    if is_multi_label(source):
        raise ConfigError(
            f"IN: {source!r} has several labels for each image, and copies lie in folders of one class; name one attribute, such "
            "as celeba:Smiling"
        )
    try_dataset("IN", source)
    try:
        data = load_dataset(source, data_dir=data_dir)
    except MissingDataError as error:
        raise ConfigError(str(MissingDataError(error.found))) from error
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    names = sorted(name for name, _, _ in _examples(data))
    return Pictures(Path(source).name, str(Path(data_dir).resolve()) if data_dir else "", names, data)


def _examples(data: ImageDataset) -> Iterator[tuple[str, ImageData, int]]:
    """Name, train/CLASS/NUMBER.png or test/CLASS/NUMBER.png, part and position of each image."""
    for part, kind in ((data.train, "train"), (data.test, "test")):
        for at, label in enumerate(part.labels.tolist()):
            yield f"{kind}/{data.class_names[label].replace('/', '-')}/{at:06d}.png", part, at
