"""Data sets in place of those that Flower's examples download: fedveil's digits and tiles of photographs, under the same names.

``matrix.py`` copies this file into an app and redirects the app's imports to it. The interfaces are those of ``flwr_datasets`` and
``datasets``, as far as the examples use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, DatasetDict, Features, Image
from numpy.typing import NDArray
from PIL.Image import fromarray

from clients.data.packaged import mnist_5k, photos

SIZES = {"train": 200, "test": 100}
"""Images that each part is cut to."""
NAMES = {
    "uoft-cs/cifar10": (photos, "img", 10),
    "nelorth/oxford-flowers": (photos, "image", 102),
    "zalando-datasets/fashion_mnist": (mnist_5k, "image", 10),
    "ylecun/mnist": (mnist_5k, "image", 10),
}
"""Name of a data set -> what stands in for it, the column of its images, and its number of classes."""
SEED = 42
"""Of the order of the images."""


def arrays(name: str, part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, C, H, W) and classes (N,) of a part, "train" or "test"."""
    source = NAMES[name][0]()
    whole = source.train if part == "train" else source.test
    order = np.random.default_rng(SEED).permutation(len(whole.labels))[: SIZES[part]]
    return whole.read(order, 0).numpy(), whole.labels[order]


def pictures(name: str, part: str) -> Dataset:
    """A part as ``datasets`` holds it: a column of pictures, and ``label``."""
    _, column, classes = NAMES[name]
    images, labels = arrays(name, part)
    shown = [fromarray(one[0] if len(one) == 1 else one.transpose(1, 2, 0)) for one in images]
    features = Features({column: Image(), "label": ClassLabel(classes)})
    return Dataset.from_dict({column: shown, "label": labels.tolist()}, features=features)


def load_dataset(name: str, split: str = "") -> Any:
    """In place of ``datasets.load_dataset``."""
    return pictures(name, split) if split else DatasetDict({part: pictures(name, part) for part in SIZES})


class FederatedDataset:
    """In place of ``flwr_datasets.FederatedDataset``; the partitioners are Flower's own."""

    def __init__(self, *, dataset: str, partitioners: Mapping[str, Any], **_: Any) -> None:
        self._partitioner = partitioners["train"]
        self._partitioner.dataset = pictures(dataset, "train")

    def load_partition(self, partition_id: int, split: str = "train") -> Dataset:
        """The training images of a client."""
        assert split == "train"
        return self._partitioner.load_partition(partition_id)


def load_from_disk(place: tuple[str, Mapping[str, Any]]) -> DatasetDict:
    """In place of ``datasets.load_from_disk``, by name and ``node_config``: four fifths of a client's images for training."""
    from flwr_datasets.partitioner import IidPartitioner

    name, node = place
    data = FederatedDataset(dataset=name, partitioners={"train": IidPartitioner(num_partitions=node["num-partitions"])})
    return data.load_partition(node["partition-id"]).train_test_split(test_size=0.2, seed=SEED)


def picture_files(name: str, classes: int, side: int) -> tuple[list[str], list[int]]:
    """Paths of pictures on disk, enlarged to ``side`` pixels, and their classes, of the first ``classes`` only."""
    images, labels = arrays(name, "train")
    folder = Path(__file__).parent / "pictures"
    folder.mkdir(exist_ok=True)
    kept = [at for at, label in enumerate(labels) if label < classes]
    paths = [folder / f"{at}.png" for at in kept]
    for at, path in zip(kept, paths, strict=True):
        if not path.exists():
            fromarray(images[at][0]).resize((side, side)).save(path)
    return list(map(str, paths)), labels[kept].tolist()
