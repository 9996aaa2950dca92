"""A tiny split federation for attacks that learn to decode smashed data: digits, a random client half, observations."""

from dataclasses import replace
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import mse
from attacks.sender import Sender
from attacks.smashed.base import SmashedData
from clients.data.datasets import load_dataset
from clients.models.split.split_models import SplitShape, build_split_model
from defenses.base import Batch, Defense
from defenses.pipeline import Pipeline
from tests.attacks.wire import stream as seeded
from tests.attacks.wire import untrained

AUXILIARY, TARGETS, BATCH = 240, 16, 32
SHAPE = (1, 28, 28)
MEAN, STD = (0.13,), (0.31,)


class Unreadable:
    """Stands where an attack must not look."""

    def __getattribute__(self, name: str) -> Any:
        raise AssertionError(f"the attack read {name} of what it must not see")

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("the attack read what it must not see")


@cache
def digits() -> tuple[Tensor, Tensor]:
    """Auxiliary images, and others that belong to a client."""
    images = load_dataset("mnist-5k").train.images.float() / 255
    images = images[torch.randperm(len(images), generator=seeded())]
    return images[:AUXILIARY], images[AUXILIARY : AUXILIARY + 400]


def sender(*defenses: Defense, width: int = 32, edge_blocks: int = 1) -> Sender:
    shape = SplitShape(7, width, 2, 2, edge_blocks)
    edge, _ = build_split_model("vit", num_classes=10, input_shape=SHAPE, shape=shape, seed=3)
    return Sender(edge.eval().requires_grad_(False), Pipeline(defenses), MEAN, STD)


def knowledge(client: Sender | None, count: int = AUXILIARY, pipeline: Pipeline | None = None) -> Knowledge:
    auxiliary = Batch(digits()[0][:count], torch.ones(count, 1))
    return Knowledge(auxiliary, pipeline or Pipeline(), MEAN, STD, untrained, client)


def observe(client: Sender, transmissions: int = 1, targets: int = TARGETS, **changes: Any) -> SmashedData:
    """A client sends the same targets several times, each time with other images as the rest of the batch."""
    own, stream = digits()[1], seeded(11)
    rounds = []
    for _ in range(transmissions):
        rest = own[targets:][torch.randperm(len(own) - targets, generator=stream)[: BATCH - targets]]
        with torch.no_grad():
            rounds.append(client.send(torch.cat([own[:targets], rest]), stream))
    seen = SmashedData(torch.stack(rounds), targets, client.edge, nn.Identity(), SHAPE, MEAN, STD, orders=Unreadable())
    return replace(seen, **changes)


def error(guess: Reconstruction) -> float:
    assert not guess.failure
    return float(mse(guess.images, digits()[1][: len(guess.images)]).mean())


def error_of_mean_image() -> float:
    truth = digits()[1][:TARGETS]
    return float(mse(digits()[0].mean(0).expand_as(truth), truth).mean())
