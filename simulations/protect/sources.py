"""The pictures to protect: of a folder, or of a named data set, which is first written to a folder."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import torch

from clients.data.datasets import ImageDataset, dataset_names, is_multi_label, is_table, load_dataset, to_float
from clients.data.images import MissingDataError
from clients.process.own_code import is_own
from simulations.protect.pictures import find, size_of, write
from simulations.runtime.own_code_trials import try_dataset
from simulations.settings.errors import ConfigError

SOURCE = ".source"
"""Ends the name of the folder beside the copies of a data set that holds its pictures until the command, or a resumed one, ends."""


@dataclass(frozen=True)
class Pictures:
    """The pictures to protect.

    Attributes:
        name: Of the folder or data set, for the manifest.
        place: Full path of the folder, or of the data set's files where one was named.
        root: Folder of its files.
        names: Of the files.
        data: The data set; None for a user's folder, which is never touched.
    """

    name: str
    place: str
    root: Path
    names: list[str]
    data: ImageDataset | None = field(default=None, repr=False)

    def sizes(self) -> Iterator[tuple[str, tuple[int, int]]]:
        """Name, and width and height in pixels, of each picture; those that cannot be read are left out."""
        if self.data is None:
            yield from ((name, size) for name in self.names if (size := size_of(self.root / name)))
            return
        _, height, width = self.data.input_shape
        yield self.name, (width, height)

    def check(self, *, resume: bool) -> None:
        """Raise ``ConfigError`` where the pictures of a data set would overwrite something."""
        taken = [path for path in (self.root, self._partial) if path.exists()]
        if self.data and taken and not resume:
            raise ConfigError(
                f"{taken[0]} is in the way of the data set's own pictures; remove it, or go on with --resume"
            )

    def write(self) -> None:
        """Write the pictures of a data set, unless a killed command has written all of them."""
        if self.data is None or self.root.is_dir():
            return
        shutil.rmtree(self._partial, ignore_errors=True)
        for name, image in _images(self.data):
            write(self._partial / name, to_float(image[0]))
        self._partial.replace(self.root)

    def remove(self) -> None:
        """Delete the originals: beside the copies they would reveal what the copies hide."""
        if self.data is not None:
            shutil.rmtree(self.root)

    @property
    def _partial(self) -> Path:
        return self.root.with_name(self.root.name + ".part")


def pictures_of(source: str, out: Path, data_dir: str) -> Pictures:
    """The pictures of a folder, or of the data set of that name with its files in ``data_dir``.

    Raises:
        ConfigError: When it is neither, holds no pictures, or the copies would come to lie among the originals.
    """
    folder, target = Path(source), out.resolve()
    if folder.is_dir():
        if data_dir:
            raise ConfigError(f"--data-dir is {data_dir}, and IN, {source}, is a folder; it is for named data sets")
        root = folder.resolve()
        if target == root or target.is_relative_to(root) or root.is_relative_to(target):
            raise ConfigError(f"OUT: {out} and IN, {source}, lie in each other; originals and copies must not mix")
        return Pictures(root.name, str(root), root, find(root))
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
        raise ConfigError(str(MissingDataError(error.found, "--data-dir"))) from error
    except (ValueError, OSError) as error:
        raise ConfigError(str(error)) from error
    place = str(Path(data_dir).resolve()) if data_dir else ""
    return Pictures(Path(source).name, place, target.with_name(target.name + SOURCE), sorted(_names(data)), data)


def _names(data: ImageDataset) -> Iterator[str]:
    """train/CLASS/NUMBER.png and test/CLASS/NUMBER.png."""
    for part, name in ((data.train, "train"), (data.test, "test")):
        for at, label in enumerate(part.labels.tolist()):
            yield f"{name}/{data.class_names[label].replace('/', '-')}/{at:06d}.png"


def _images(data: ImageDataset) -> Iterator[tuple[str, torch.Tensor]]:
    """Name and uint8 image (1, C, H, W) of each."""
    images = (part.images[torch.tensor([at])] for part in (data.train, data.test) for at in range(len(part)))
    return zip(_names(data), images, strict=True)
