"""Data sets that come as pictures in folders: a folder per class, CelebA, and Labeled Faces in the Wild."""

import hashlib
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from clients.data.composed import balanced
from clients.data.files.decoding import FullScale, decode, full_scale, scale_text
from clients.data.images import DataError, Labels, Part, Rows, Source, resize
from defenses.tensors import ImageShape

TEST_SHARE = 0.2
ALL = "all"
"""Option of CelebA that names all attributes."""
PARTS = {"train", "training", "val", "valid", "validation", "test", "testing"}
"""Names of folders that hold classes where they hold folders."""
HALF = (0.5,)
"""Mean and standard deviation where the data set has no constants of its own: images then enter the model in [-1, 1].
Statistics of the pictures would differ from client to client, and reveal something about its pictures."""


def folder(root: Path, skip_broken: bool = False) -> Source:
    """A folder per class, or such folders inside ``train`` and ``test``; grey when every picture is, else RGB.

    Without ``train`` and ``test``, a fifth of each class (rounded) tests: those whose file names have the smallest hash, so
    that few pictures change sides when others come or go. Class names are the sorted folder names; an empty folder counts, so
    that clients who lack a class can agree with the others. With ``skip_broken`` pictures that cannot be read are left out and
    counted in the notes, for which each is decoded once more; else the first that is met ends the run.

    Raises:
        DataError: When there are no class folders or no pictures.
    """
    subfolders = {path.name: path for path in _folders(root)}
    if subfolders.keys() == {"train", "test"}:
        parts = [class_pictures(subfolders[name]) for name in ("train", "test")]
        names = sorted({name for part in parts for name in part})
        split = [{name: part.get(name, []) for name in names} for part in parts]
    else:
        if parts_of := [name for name, path in subfolders.items() if name.lower() in PARTS and _folders(path)]:
            raise DataError(
                f"{root} holds {', '.join(sorted(subfolders))}, and {parts_of[0]} looks like a part of the data, not like a class: "
                "expected train and test alone, each with a folder per class, or a folder per class"
            )
        every = class_pictures(root)
        names, split = sorted(every), [{name: cut_by_hash(every[name])[side] for name in every} for side in (0, 1)]
    if not names:
        raise DataError(f"{root} has no folders; expected one folder per class with pictures in it")
    if not skip_broken:
        return _source(root, split[0], split[1], names)
    broken = {path: why for side in split for paths in side.values() for path in paths if (why := _why_broken(path))}
    whole = [{name: [path for path in paths if path not in broken] for name, paths in side.items()} for side in split]
    if gone := [name for name in names if split[0][name] and not whole[0][name]]:
        raise DataError(f"{root}: no training picture of {gone[0]} can be read: {broken[split[0][gone[0]][0]]}")
    source = _source(root, whole[0], whole[1], names)
    return replace(source, notes=(*source.notes, *_left_out(broken)))


def _why_broken(path: Path) -> str:
    try:
        decode(path)
    except DataError as error:
        return str(error)
    return ""


def _left_out(broken: Mapping[Path, str]) -> tuple[str, ...]:
    if not broken:
        return ()
    left_out = (
        "1 picture that cannot be read is" if len(broken) == 1 else f"{len(broken)} pictures that cannot be read are"
    )
    return (f"{left_out} left out; the first: {next(iter(broken.values()))}",)


def cut_by_hash(paths: Sequence[Path]) -> tuple[list[Path], list[Path]]:
    """Training and test pictures of one class, each sorted by name."""
    order = sorted(paths, key=lambda path: hashlib.blake2b(os.fsencode(path.name)).digest())
    count = round(TEST_SHARE * len(order))
    return sorted(order[count:]), sorted(order[:count])


def lfw(root: Path, min_pictures: int) -> Source:
    """Faces of the people who have at least ``min_pictures``; the class is the person. ``DataError`` for fewer than two people.

    The official lists split by person, for verification; here every person's pictures are split as ``folder`` does.

    Source: Huang et al. 2007, Labeled Faces in the Wild.
    """
    people = {name: paths for name, paths in class_pictures(root, {".jpg"}).items() if len(paths) >= min_pictures}
    if len(people) < 2:
        raise DataError(
            f"{root}: {len(people)} people have {min_pictures} pictures or more, need at least 2; choose fewer pictures"
        )
    split = [{name: cut_by_hash(people[name])[side] for name in people} for side in (0, 1)]
    return _source(root, split[0], split[1], sorted(people))


def celeba(root: Path, attribute: str) -> Source:
    """Aligned faces of celebrities; class 1 has the attribute and class 0 has not. With many attributes each is a label of its own.

    Reads ``list_attr_celeba.txt``, ``list_eval_partition.txt`` and ``img_align_celeba/`` in ``root``, with the official training
    (0) and test (2) parts.

    Args:
        root: The folder of these.
        attribute: One of the 40, or two with a comma between: the second is the sensitive one then, and each part holds equally
            many pictures of the four combinations, as many as of the rarest, the first in the order of the list. Three or more, or
            ``ALL``: a vector of labels for every picture, in the order in which the attributes are named.

    Raises:
        DataError: When a list is damaged, an attribute is unknown, two are equal, or a combination does not occur.

    Source: Liu et al. 2015, Deep Learning Face Attributes in the Wild.
    """
    lists = [root / "list_attr_celeba.txt", root / "list_eval_partition.txt"]
    first, header, *lines = [*_lines(lists[0]), "", ""]
    if "," in first or "," in header:
        raise DataError(
            f"{lists[0]} has commas between its columns, as copies at Kaggle have; expected the authors' file: a line with the "
            "number of pictures, a line of names, and blanks between columns"
        )
    attributes = header.split()
    wanted = _wanted(attribute, attributes)
    if missing := [name for name in wanted if name not in attributes]:
        raise DataError(f"CelebA has no attribute {missing[0]!r}; {lists[0]} has: {', '.join(attributes) or 'none'}")
    values = _columns(lists[0], lines, [1 + attributes.index(name) for name in wanted], {"-1": 0, "1": 1})
    sides = {
        name: side for name, (side,) in _columns(lists[1], _lines(lists[1]), [1], {"0": 0, "1": 1, "2": 2}).items()
    }
    if values.keys() != sides.keys():
        raise DataError(f"{lists[0]} and {lists[1]} list different pictures ({len(values)} and {len(sides)})")
    parts = []
    for side, what in ((0, "training"), (2, "test")):
        names = [name for name in sides if sides[name] == side]
        labels = np.array([values[name] for name in names], dtype=np.int64).reshape(len(names), len(wanted))
        rows = np.arange(len(names))
        if len(wanted) == 2:
            rows = balanced(f"celeba:{attribute}, {what} part", labels[:, 0], labels[:, 1])
        part = picture_part([root / "img_align_celeba" / names[row] for row in rows], labels[rows, 0])
        more = {1: {}, 2: {"sensitive": labels[rows, -1]}}.get(len(wanted), {"vectors": labels[rows]})
        parts.append(replace(part, **more))
    titles = tuple(wanted) if len(wanted) > 2 else (f"not {wanted[0]}", wanted[0])
    return Source(parts[0], parts[1], titles, HALF, HALF)


def _wanted(option: str, attributes: Sequence[str]) -> list[str]:
    names = list(attributes) if option == ALL else option.split(",")
    if len(set(names)) != len(names) or (option == ALL and len(names) < 3):
        raise DataError(
            f"celeba:{option}: expected an attribute, two or more different ones with commas between, or {ALL} for those of the "
            f"list, which has {len(attributes)}"
        )
    return names


def _lines(path: Path) -> list[str]:
    # Not splitlines: names may hold what else ends a line for Python.
    return path.read_text(encoding="utf-8", errors="replace").split("\n")


def _columns(path: Path, lines: Sequence[str], columns: Sequence[int], meaning: dict[str, int]) -> dict[str, list[int]]:
    """First word of a line -> the meanings of those in these columns."""
    by_word, last = {}, max(columns)
    for line in filter(str.strip, lines):
        words = line.split()
        if len(words) <= last or not all(words[column] in meaning for column in columns):
            raise DataError(f"{path}: cannot read {line[:60]!r}")
        by_word[words[0]] = [meaning[words[column]] for column in columns]
    return by_word


def _source(root: Path, train: dict[str, list[Path]], test: dict[str, list[Path]], names: Sequence[str]) -> Source:
    paths = [[path for name in names for path in side[name]] for side in (train, test)]
    scale, parts = full_scale(itertools.chain(*paths)), []
    for side, own in zip((train, test), paths, strict=True):
        parts.append(picture_part(own, np.repeat(np.arange(len(names)), [len(side[name]) for name in names]), scale))
    if not len(parts[0].labels) or not len(parts[1].labels):
        counts = f"{len(parts[0].labels)} training and {len(parts[1].labels)} test pictures"
        raise DataError(f"{root} has {counts} in {len(names)} class folders; both parts need at least one")
    notes = (f"{root}: {scale_text(scale)} in pictures beyond 8 bits, as their levels use these bits",) if scale else ()
    return Source(parts[0], parts[1], tuple(names), HALF, HALF, notes=notes)


def _folders(root: Path) -> list[Path]:
    return sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))


def class_pictures(root: Path, suffixes: set[str] | None = None) -> dict[str, list[Path]]:
    """Folder name -> its pictures, at any depth; files without the ending of a picture are skipped."""
    if suffixes is None:
        from PIL import Image

        suffixes = {suffix for suffix, kind in Image.registered_extensions().items() if kind in Image.OPEN}
    return {
        each.name: sorted(
            p for p in each.rglob("*") if p.suffix.lower() in suffixes and not p.name.startswith(".") and p.is_file()
        )
        for each in _folders(root)
    }


def picture_part(paths: Sequence[Path], labels: Labels, scale: FullScale | None = None) -> Part:
    """A part whose pictures are decoded one by one on reading, so that only scaled pictures stay in memory."""
    shapes: dict[int, ImageShape] = {}
    first: dict[int, Path] = {}

    def shape(indices: Rows, size: int) -> ImageShape:
        """Three channels unless all pictures are grey: looked for until the first that is not."""
        if size not in shapes:
            height, width = resize(decode(paths[indices[0]], scale), size).shape[-2:]
            coloured = any(decode(paths[index], scale).shape[1] == 3 for index in indices)
            shapes[size], first[size] = ((3 if coloured else 1), height, width), paths[indices[0]]
        return shapes[size]

    def read(indices: Rows, size: int) -> Tensor:
        channels, height, width = shapes[size]
        images = torch.empty(len(indices), channels, height, width, dtype=torch.uint8)
        for row, index in enumerate(indices):
            image = resize(decode(paths[index], scale), size)
            if image.shape[-2:] != images.shape[-2:]:
                extent = "x".join(map(str, image.shape[-2:]))
                raise DataError(
                    f"{first[size]} is {height}x{width} but {paths[index]} is {extent} pixels; "
                    "set image-size to scale all pictures to one size"
                )
            images[row] = image[0]
        return images

    return Part(labels, read, shape)
