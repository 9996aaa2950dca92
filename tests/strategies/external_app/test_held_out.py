"""Guesses about updates of all that a node trains on: they are told from chance among images that it holds out."""

import torch
from torch.utils.data import TensorDataset

from clients.external_app.client import OwnExamples, card_of, examples_of, read_data
from clients.secrets.draws import Draws
from strategies.external_app.settings import AuditSettings
from tests.strategies.external_app.app import MEAN, STD, Net, digits
from tests.strategies.external_app.audits import node_of

EACH = 3


def shown(node: int, count: int) -> TensorDataset:
    return TensorDataset(*(one[:count] for one in digits(node_of(node)).tensors))


def test_held_out_images_are_no_training_images() -> None:
    """A test of membership has others, and null guesses of classes and means count trained images alone."""
    own, strangers = shown(0, EACH), shown(9, 7)
    images, labels, count = read_data((own, strangers))
    card = card_of(images, Net(), MEAN, STD)
    task = AuditSettings(Net).plan().at(1)
    data = OwnExamples(task, 0, examples_of(images, labels, card), card, Draws.simulated(0, 0), count)
    assert (data.num_train, data.num_test) == (EACH, 7)
    assert torch.equal(data.test_plain(torch.tensor([6])).images[0], strangers[6][0])
    assert torch.equal(data.own_images(torch.tensor([EACH]))[0], strangers[0][0])
    assert torch.equal(data.originals().images, own.tensors[0])
    assert (len(data.train_labels()), len(data.test_labels())) == (EACH, 7)
