"""What each client of an app held, computed from the data set that the app was given, without the app and the audit."""

from __future__ import annotations

from typing import Any

import numpy as np
from apps import App
from claims import Holding, Pixels
from datasets import Dataset
from flwr_datasets.partitioner import DirichletPartitioner, IidPartitioner
from numpy.typing import NDArray
from offline_data import SEED, arrays
from PIL.Image import fromarray


def holdings(app: App, clients: int) -> dict[int, Holding]:
    """Client -> what it holds, by the app's own partition and splits (``App.truth``)."""
    images, labels = arrays(app.data_name, "train")
    if app.truth == "files":  # the first six classes, as that data set has no more
        kept = labels < 6
        images, labels = images[kept], labels[kept]
    shown = np.stack([_shown(app.truth, one) for one in images])
    table = Dataset.from_dict({"at": list(range(len(labels))), "label": labels.tolist()})
    found = {}
    for client in range(clients):
        trained, held_out = _split(app.truth, _share(app.truth, table, client, clients))
        found[client] = Holding(shown[trained], shown[held_out])
    return found


def _share(truth: str, table: Dataset, client: int, clients: int) -> Dataset:
    partitioner: Any = IidPartitioner(num_partitions=clients)
    if truth == "dirichlet":
        partitioner = DirichletPartitioner(num_partitions=clients, partition_by="label", alpha=1.0, seed=SEED)
    partitioner.dataset = table
    return partitioner.load_partition(client)


def _split(truth: str, share: Dataset) -> tuple[list[int], list[int]]:
    if truth == "whole":
        return share["at"][:], []
    parts = share.train_test_split(test_size=0.2, seed=SEED)
    trained = parts["train"]
    if truth == "three parts":
        trained = trained.train_test_split(train_size=0.75, seed=SEED)["train"]
    return trained["at"][:], parts["test"]["at"][:]


def _shown(truth: str, image: NDArray[np.uint8]) -> Pixels:
    """An image as the app's transforms without randomness make it."""
    if truth == "three parts":  # enlarged by torchvision, and grey in three channels
        from torchvision.transforms.functional import resize, to_tensor

        return resized_three(to_tensor(resize(fromarray(image[0]), 64)).numpy())
    if truth == "files":  # enlarged, axes as MONAI reads pictures, scaled to its own range
        found = np.asarray(fromarray(image[0]).resize((64, 64)), np.float64).T[None]
        return (found - found.min()) / (found.max() - found.min())
    return image / 255.0


def resized_three(grey: NDArray[np.float32]) -> Pixels:
    """(1, H, W) -> (3, H, W)."""
    return np.repeat(grey.astype(np.float64), 3, axis=0)
