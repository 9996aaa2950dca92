"""Smashed data of small pictures, as clients of a split federation would send them."""

import functools
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from attacks.base import Knowledge
from attacks.sender import Sender, smash
from attacks.smashed.base import SmashedData
from clients.models.split.halves import EdgeHalf, ServerHalf
from clients.models.split.split_models import SplitShape, build_split_model
from defenses.base import Batch, Defense
from defenses.pipeline import Pipeline
from defenses.smashed.patch_shuffle import BatchShuffle
from tests.attacks.wire import MEAN, STD, pictures, untrained
from tests.attacks.wire import stream as seeded

SIDE, PATCH, CLASSES = 12, 4, 5
TOKENS = (SIDE // PATCH) ** 2
SHAPE = (1, SIDE, SIDE)


class Known:
    mean, std = MEAN, STD


@functools.cache
def halves(pipeline: Pipeline, blocks: int = 1, width: int = 32) -> tuple[EdgeHalf, ServerHalf]:
    """Both halves for these defences, in eval mode."""
    shape = SplitShape(PATCH, width, 3, 2, blocks, pipeline.widening)
    edge, server = build_split_model("vit", num_classes=CLASSES, input_shape=SHAPE, shape=shape, seed=0)
    return edge.eval(), server.eval()


def observe(
    *defenses: Defense,
    blocks: int = 1,
    width: int = 32,
    batch: int = 6,
    targets: int = 2,
    transmissions: int = 1,
    told: bool = False,
    **changes: Any,
) -> tuple[SmashedData, Tensor, Tensor]:
    """What was sent, the targets (targets, 1, 12, 12), and the orders (transmissions, batch, 9)."""
    pipeline = Pipeline(defenses)
    edge, server = halves(pipeline, blocks, width)
    clean, others = pictures(targets, seed=90), pictures(transmissions * (batch - targets), seed=91)
    features, orders = [], []
    for number, rest in enumerate(others.view(transmissions, batch - targets, *SHAPE)):
        key = ("client", number)
        with torch.no_grad():
            features.append(smash(edge, pipeline, torch.cat([clean, rest]), Known(), key))
        orders.append(pipeline.token_order(batch, TOKENS, key))
    seen = SmashedData(torch.stack(features), targets, edge, server, SHAPE, MEAN, STD)
    told_orders = {"orders": torch.stack(orders)} if told else {}
    return replace(seen, **told_orders | changes), clean, torch.stack(orders)


def knowledge(*defenses: Defense, blocks: int = 1, width: int = 32, count: int = 256) -> Knowledge:
    """Auxiliary pictures that no client holds."""
    pipeline = Pipeline(defenses)
    auxiliary = Batch(pictures(count, seed=5), torch.ones(count, 1))

    sender = Sender(halves(pipeline, blocks, width)[0], pipeline, MEAN, STD)
    return Knowledge(auxiliary, pipeline, MEAN, STD, untrained, sender)


def assert_reads_three_images_of_six(attack: Any) -> None:
    """An attack on at most 27 tokens of batches of ``BatchShuffle`` uses the first three images, and guesses both targets."""
    observation, clean, _ = observe(BatchShuffle(k=0.4), targets=2, batch=6)
    shown = attack(observation, seeded()).images
    others = observation.features.clone()
    others[:, 3:] = 0
    assert torch.equal(attack(replace(observation, features=others), seeded()).images, shown)
    assert shown.shape == clean.shape
