"""Guesses about updates of all that a node trains on: they are told from chance among images that it holds out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from flwr.app import Context
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from clients.external_app.client import read_data
from tests.strategies.external_app.app import MEAN, STD, Net, digits

EACH = 3


def trained(context: Context) -> TensorDataset:
    return TensorDataset(*(one[:EACH] for one in digits(context).tensors))


def strangers(count: int) -> TensorDataset:
    generator = torch.Generator().manual_seed(100)
    small = torch.rand(count, 1, 4, 4, generator=generator)
    images = F.interpolate(small, size=8, mode="bilinear").clamp(0, 1)
    return TensorDataset(images, torch.randint(10, (count,), generator=generator))


def test_held_out_images_are_no_training_images(tmp_path: Path) -> None:
    """A test of membership has others, and null guesses of classes and means count trained images alone."""
    from clients.external_app.client import OwnExamples, card_of, examples_of
    from clients.secrets.draws import Draws
    from strategies.external_app.settings import AuditSettings

    images, labels, count = read_data((trained_of(0), strangers(7)))
    card = card_of(images, Net(), MEAN, STD)
    task = AuditSettings(Net).plan().at(1)
    data = OwnExamples(task, 0, examples_of(images, labels, card), card, Draws.simulated(0, 0), count)
    assert (data.num_train, data.num_test) == (EACH, 7)
    assert torch.equal(data.test_plain(torch.tensor([6])).images[0], strangers(7)[6][0])
    assert torch.equal(data.own_images(torch.tensor([EACH]))[0], strangers(7)[0][0])
    assert torch.equal(data.originals().images, trained_of(0).tensors[0])
    assert (len(data.train_labels()), len(data.test_labels())) == (EACH, 7)


def trained_of(partition: int) -> TensorDataset:
    context: Any = type("Node", (), {"node_config": {"partition-id": partition}})
    return trained(context)
