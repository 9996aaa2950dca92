"""Queries for tests: a small cut classifier, pictures with an attribute that a glance tells, and a defence that one can undo."""

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import Knowledge
from attacks.queries.base import Query
from attacks.sender import Sender
from clients.models.classifiers import build_model
from clients.models.cuts import AdversaryBuilder, halves
from defenses.base import Batch, SmashedDefense
from defenses.pipeline import Pipeline
from tests.attacks.wire import stream as seeded

SHAPE = (1, 16, 16)
MEAN, STD = (0.4,), (0.3,)
NAME, CUT, WIDTH = "vgg_small", "conv2", 4


@dataclass(frozen=True, repr=False)
class Negate(SmashedDefense):
    """Features with the other sign: who knows of it loses nothing, who does not is lost."""

    def protect_features(self, features: Tensor, generator: torch.Generator) -> Tensor:
        return -features


def whole() -> nn.Module:
    return build_model(NAME, num_classes=3, input_shape=SHAPE, width=WIDTH, seed=1).eval().requires_grad_(False)


def pictures(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Smooth pictures (N, 1, 16, 16) with a bright square, and whether it is on the right (N,): balanced, in random order."""
    generator = seeded(seed)
    images = F.interpolate(torch.rand(count, 1, 4, 4, generator=generator) * 0.6, (16, 16), mode="bilinear")
    right = (torch.randperm(count, generator=generator) % 2).long()
    rows = torch.randint(0, 11, (count,), generator=generator).tolist()
    for image, side, row in zip(images, right.tolist(), rows, strict=True):
        image[0, row : row + 5, 2 + 8 * side : 6 + 8 * side] = 1
    return images, right


def sender(*defenses: SmashedDefense) -> Sender:
    return Sender(halves(whole(), NAME, CUT)[0], Pipeline(defenses), MEAN, STD)


def knowledge(*defenses: SmashedDefense, count: int = 160, **changes: Any) -> Knowledge:
    images, right = pictures(count, seed=5)
    builder = AdversaryBuilder(NAME, CUT, SHAPE, width=WIDTH, weights=whole().state_dict())
    values: dict[str, Any] = {
        "auxiliary": Batch(images, torch.zeros(count, 3)), "pipeline": Pipeline(defenses), "mean": MEAN, "std": STD,
        "train": lambda batch, seed: whole(), "sender": sender(*defenses), "sensitive": right, "adversary": builder,
    }  # fmt: skip
    return Knowledge(**(values | changes))


def query(images: Tensor, *defenses: SmashedDefense) -> Query:
    client, server = halves(whole(), NAME, CUT)
    features, latent = sender(*defenses).query(images, seeded(3))
    return Query(features, latent, client, server, SHAPE, MEAN, STD, Pipeline(defenses))
