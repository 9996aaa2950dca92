"""Images for the search and for its confirmation: disjoint parts of one data set."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from clients.data.datasets import load_dataset
from clients.data.images import ImageData, ranks_in_class, stratified_prefix
from defenses.random_draws import generator_for
from simulations.run_folder.run_directory import write_atomically

SEARCH, HELD_OUT = "search", "held_out"
"""Parts of a data set: images that choose a hybrid, and images that the choice never saw."""
SHARES = {SEARCH: 0.4, "validation": 0.2, HELD_OUT: 0.4}
"""Of the training images, in every class alike. The test images of the data set belong to the held-out part."""
FILE = "pools.py"
ABOUT = "pools.json"
CODE = '''"""Data sets of a measured search, which its runs load by FILE.py:NAME; written by fedveil."""

from simulations.search.measured.pools import pool


def search():
    return pool(__file__, "search")


def held_out():
    return pool(__file__, "held_out")
'''


class PoolImages(NamedTuple):
    """A map-style data set, as ``clients.data.own`` reads one.

    Attributes:
        images: (N, C, H, W), uint8.
        labels: (N,), int64.
        classes: Names of the classes.
    """

    images: Tensor
    labels: Tensor
    classes: tuple[str, ...]


class Pool(Sequence[tuple[Tensor, int]]):
    """(image, class) for each of ``PoolImages``."""

    def __init__(self, examples: PoolImages) -> None:
        self._examples, self.classes = examples, list(examples.classes)

    def __len__(self) -> int:
        return len(self._examples.labels)

    def __getitem__(self, at: Any) -> Any:
        return self._examples.images[at], int(self._examples.labels[at])


def write_pools(folder: Path, about: dict[str, Any]) -> dict[str, str]:
    """Write the module that offers both parts as data sets.

    Args:
        folder: Of the search.
        about: Arguments of ``parts_of``.

    Returns:
        Part -> value of the setting ``dataset`` for a run on it.
    """
    write_atomically(folder / ABOUT, json.dumps(about, indent=1))
    write_atomically(folder / FILE, CODE)
    return {part: f"{(folder / FILE).resolve()}:{part}" for part in (SEARCH, HELD_OUT)}


@functools.lru_cache(maxsize=2)
def pool(file: str, part: str) -> tuple[Pool, Pool]:
    """Training and test images of one part; ``file`` is the module that ``write_pools`` wrote."""
    about = json.loads((Path(file).parent / ABOUT).read_text(encoding="utf-8"))
    train, test = parts_of(**about)[part]
    return Pool(train), Pool(test)


def parts_of(
    dataset: str, data_dir: str, image_size: int, train_limit: int, test_limit: int, seed: int
) -> dict[str, tuple[PoolImages, PoolImages]]:
    """Part -> (training, test) images.

    The search trains on 40 % of the training images of a data set, and takes its accuracy on another 20 %. The held-out part
    trains on the remaining 40 %, and takes its accuracy on the test images of the data set.

    Args:
        dataset: Its name.
        data_dir: Directory of its files.
        image_size: Side in pixels; 0 keeps the size.
        train_limit: At most so many training images of each part; 0 for all.
        test_limit: Likewise for the images of an accuracy.
        seed: Of the order in which images are dealt out.
    """
    data = load_dataset(dataset, data_dir=data_dir, image_size=image_size)
    rows = split(data.train.labels.numpy(), seed)

    def of(images: ImageData, chosen: NDArray[np.intp], limit: int) -> PoolImages:
        kept = chosen[stratified_prefix(images.labels.numpy()[chosen], limit)]
        at = torch.from_numpy(kept)
        return PoolImages(images.images[at], images.labels[at], tuple(data.class_names))

    validation = of(data.train, rows["validation"], test_limit)
    tested = of(data.test, np.arange(len(data.test.labels)), test_limit)
    return {
        SEARCH: (of(data.train, rows[SEARCH], train_limit), validation),
        HELD_OUT: (of(data.train, rows[HELD_OUT], train_limit), tested),
    }


def digest_of(about: dict[str, Any]) -> str:
    """Digest of the images and labels of both parts: judgements on different images must not be mixed.

    Args:
        about: Arguments of ``parts_of``.
    """
    digest = hashlib.sha256()
    for part, both in sorted(parts_of(**about).items()):
        for examples in both:
            digest.update(repr((part, tuple(examples.images.shape), examples.classes)).encode())
            digest.update(examples.labels.contiguous().numpy().tobytes())
            digest.update(examples.images.contiguous().numpy().tobytes())
    return digest.hexdigest()[:32]


def split(labels: NDArray[np.integer[Any]], seed: int) -> dict[str, NDArray[np.intp]]:
    """Share out examples by ``SHARES``, each class alike: part -> positions, in a random order.

    Args:
        labels: (N,), classes from 0.
        seed: Of the order.
    """
    order = torch.randperm(len(labels), generator=generator_for("measured-search", seed, "pools")).numpy()
    rank, count = ranks_in_class(labels[order].astype(np.int64))
    place = (rank + 0.5) / count
    ends = np.cumsum(list(SHARES.values()))
    at = np.searchsorted(ends[:-1], place, side="right")
    return {part: order[at == number] for number, part in enumerate(SHARES)}
