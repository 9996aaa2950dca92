"""The pictures that a search uses, and their digest: scores on different pictures must not be mixed."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor

from clients.data.images import ImageDataset
from defenses.random_draws import generator_for
from simulations.search.settings import Search
from simulations.settings.errors import ConfigError

CHUNK = 256
"""Pictures that are read at once; a data set may not fit into memory."""


def semi_positions(search: Search, data: ImageDataset) -> Tensor:
    """Training images (n,) that the semi-trained model learns from."""
    return _order(search, data)[: max(1, round(search.semi_share * len(data.train)))]


def score_positions(search: Search, data: ImageDataset) -> Tensor:
    """Training images (n,) for S_pri; the semi-trained model has seen none of them.

    Raises:
        ConfigError: When there are too few.
    """
    rest = _order(search, data)[len(semi_positions(search, data)) :]
    if len(rest) < search.images:
        raise ConfigError(
            f"images is {search.images}, and {len(rest)} of the {len(data.train)} training images of {data.name} are not the "
            "semi-trained model's; lower images or semi-share"
        )
    return rest[: search.images]


def _order(search: Search, data: ImageDataset) -> Tensor:
    return torch.randperm(len(data.train), generator=generator_for("search", search.seed, "images"))


def accuracy_batches(search: Search, data: ImageDataset) -> list[tuple[Tensor, int]]:
    """For each batch of S_acc: training images (n,) of different classes, and the seed of an initialisation."""
    found, labels = [], data.train.labels
    for at in range(search.accuracy_batches):
        generator = generator_for("search", search.seed, "batch", at)
        order = torch.randperm(len(labels), generator=generator)
        first = {int(labels[position]): int(position) for position in order.flip(0)}
        chosen = torch.tensor(list(first.values())[: search.accuracy_batch_size])
        found.append((chosen, int(torch.randint(2**31, (), generator=generator))))
    return found


def digest_of(search: Search, data: ImageDataset) -> str:
    """Digest of all that scores depend on: the labels, which decide the choice, the chosen pictures, and the normalisation."""
    batches = [positions for positions, _ in accuracy_batches(search, data)]
    used = torch.unique(torch.cat([semi_positions(search, data), score_positions(search, data), *batches]))
    digest = hashlib.sha256(repr((data.input_shape, data.num_classes, data.mean, data.std)).encode())
    digest.update(data.train.labels.numpy().tobytes())
    for rows in used.split(CHUNK):
        digest.update(data.train.images[rows].numpy().tobytes())
    return digest.hexdigest()[:32]


def digests_of(search: Search) -> dict[str, str]:
    """Setting that names a data set -> digest of its pictures; ``ValueError`` where it cannot be read."""
    found = {"dataset": digest_of(search, search.plan().load_data())}
    if search.transfer_to:
        found["transfer-to"] = digest_of(search, search.plan(search.transfer_to, search.transfer_dir).load_data())
    return found
