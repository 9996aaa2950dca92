"""Tiles of photographs in place of CIFAR-10, which Flower's examples download.

``audit_apps.py`` copies this file into an app and redirects the app's imports to it. The interfaces are those of ``flwr_datasets``
and ``datasets``, as far as the examples use them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from datasets import ClassLabel, Dataset, Features, Image
from numpy.typing import NDArray
from PIL.Image import fromarray

from clients.data.packaged import photos

SIZES = {"train": 200, "test": 100}
"""Images that each part is cut to."""
SEED = 42
"""Of the order of the images."""


def arrays(part: str) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images (N, 3, H, W) and classes (N,) of a part, "train" or "test"."""
    source = photos()
    whole = source.train if part == "train" else source.test
    order = np.random.default_rng(SEED).permutation(len(whole.labels))[: SIZES[part]]
    return whole.read(order, 0).numpy(), whole.labels[order]


def load_dataset(_name: str, split: str) -> Dataset:
    """In place of ``datasets.load_dataset``."""
    images, labels = arrays(split)
    shown = [fromarray(one.transpose(1, 2, 0)) for one in images]
    return Dataset.from_dict(
        {"img": shown, "label": labels.tolist()}, features=Features({"img": Image(), "label": ClassLabel(10)})
    )


class FederatedDataset:
    """In place of ``flwr_datasets.FederatedDataset``; the partitioners are Flower's own."""

    def __init__(self, *, dataset: str, partitioners: Mapping[str, Any]) -> None:
        self._partitioner = partitioners["train"]
        self._partitioner.dataset = load_dataset(dataset, "train")

    def load_partition(self, partition_id: int) -> Dataset:
        """The training images of a client."""
        return self._partitioner.load_partition(partition_id)
