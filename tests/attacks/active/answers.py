"""What a client answers to a manipulated model: one step of SGD in single precision, as a difference of weights."""

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import Knowledge
from attacks.active.base import ActiveAttack, AgreedModel, ManipulatedProbe
from attacks.normalisation import normalise
from clients.models.classifiers import build_model
from defenses.base import Batch
from defenses.pipeline import Pipeline
from tests.attacks.wire import pictures

SHAPE = (3, 16, 16)
MEAN, STD = (0.5, 0.45, 0.4), (0.25, 0.2, 0.3)
CLASSES = 10
RATE = 0.01


def photos(count: int, seed: int) -> Tensor:
    """Smooth colour pictures of differing brightness (count, 3, 16, 16)."""
    dim = torch.rand(count, 1, 1, 1, generator=torch.Generator().manual_seed(seed + 1))
    return pictures(count, SHAPE[1], SHAPE[0], seed) * (0.4 + 0.6 * dim)


def labels_of(count: int, seed: int) -> Tensor:
    return torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(seed))


def knowledge(count: int = 400, seed: int = 99) -> Knowledge:
    targets = F.one_hot(labels_of(count, seed), CLASSES).float()
    return Knowledge(Batch(photos(count, seed), targets), Pipeline(()), MEAN, STD, lambda batch, seed: nn.Identity())


def agreed(model: str = "mlp", seed: int = 0) -> AgreedModel:
    built = build_model(model, num_classes=CLASSES, input_shape=SHAPE, seed=seed)
    return AgreedModel(built, SHAPE, MEAN, STD)


def answered(model: nn.Module, images: Tensor, labels: Tensor, **changes: Any) -> ManipulatedProbe:
    """One step on ``images`` (B, C, H, W) in [0, 1]."""
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), RATE)
    seen = replace(ManipulatedProbe(model, {}, SHAPE, MEAN, STD, len(images), len(images), 1, RATE), **changes)
    F.cross_entropy(local(normalise(images, seen)), labels).backward()
    optimizer.step()
    before = dict(model.named_parameters())
    update = {name: (after - before[name]).detach() for name, after in local.named_parameters()}
    return replace(seen, update=update)


def probed(attack: ActiveAttack, images: Tensor, labels: Tensor, model: str = "mlp", seed: int = 0) -> Any:
    """The guess of a fitted attack on a client with these images."""
    sent = attack.manipulated(agreed(model, seed), torch.Generator().manual_seed(seed))
    return attack(answered(sent, images, labels), torch.Generator().manual_seed(seed))
