"""A client whose model remembers its digits, or is trained with differential privacy, and what a server knows of it."""

import copy
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from attacks.base import Knowledge
from attacks.observations import ClientUpdate
from clients.data.datasets import load_dataset
from defenses.base import Batch, InputDefense
from defenses.pipeline import Pipeline
from tests.attacks.wire import stream as seeded

MEAN, STD = (0.13,), (0.31,)
MEMBERS, OTHERS, AUXILIARY = 100, 400, 400
STEPS, RATE = 60, 0.1

Trainer = Callable[[nn.Module, Tensor, Tensor], nn.Module]
Records = tuple[Tensor, Tensor]


def normalise(images: Tensor) -> Tensor:
    return (images - MEAN[0]) / STD[0]


@cache
def digits() -> Records:
    """All of mnist-5k, shuffled; one label in five is drawn at random, so that a model can only remember it."""
    data, generator = load_dataset("mnist-5k").train, seeded()
    order = torch.randperm(len(data.labels), generator=generator)
    labels = data.labels[order]
    wrong = torch.rand(len(labels), generator=generator) < 0.2
    labels = torch.where(wrong, torch.randint(10, labels.shape, generator=generator), labels)
    return data.images[order].float() / 255, labels


def split() -> tuple[Records, Records, Records, Batch]:
    """Members, non-members, more non-members, and auxiliary data; (images, classes) each but the last."""
    sizes = [MEMBERS, OTHERS, MEMBERS, AUXILIARY]
    parts = zip(*(part[: sum(sizes)].split(sizes) for part in digits()), strict=True)
    members, others, fresh, (images, classes) = parts
    return members, others, fresh, Batch(images, F.one_hot(classes, 10).float())


def network(seed: int) -> nn.Module:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.ReLU(), nn.Linear(32, 10))


def overfit(model: nn.Module, images: Tensor, classes: Tensor) -> nn.Module:
    """Full-batch SGD until every label is remembered."""
    optimizer = torch.optim.SGD(model.parameters(), RATE, momentum=0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.cross_entropy(model(normalise(images)), classes).backward()
        optimizer.step()
    return model.eval()


def clip_and_noise(model: nn.Module, images: Tensor, classes: Tensor) -> nn.Module:
    """Full-batch DP-SGD from its definition: 60 steps, clipping norm 1, noise multiplier 100.

    Composed, this is a Gaussian mechanism with mu = sqrt(60) / 100 = 0.077 for adding a record, epsilon 0.26 at delta 1e-5.
    Between a member and a non-member one record is replaced by another, mu doubles, and no test has an area above
    Phi(2 mu / sqrt 2) = 0.544 (Dong, Roth, Su 2022, "Gaussian Differential Privacy").
    """
    # From the records, so that the attacker's shadow models draw other noise than the client.
    weights, generator = dict(model.named_parameters()), seeded(int(images.double().sum() * 255))

    def loss(values: dict[str, Tensor], image: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(model, values, (image[None],)), label[None])

    for _ in range(STEPS):
        detached = {name: value.detach() for name, value in weights.items()}
        each = vmap(grad(loss), in_dims=(None, 0, 0))(detached, normalise(images), classes)
        norms = torch.stack([g.flatten(1).norm(dim=1) for g in each.values()]).norm(dim=0)
        share = (1 / norms).clamp(max=1)
        with torch.no_grad():
            for name, value in weights.items():
                total = torch.tensordot(share, each[name], 1)
                value -= RATE * (total + 100 * torch.randn(value.shape, generator=generator)) / len(images)
    return model.eval()


def observe(start: nn.Module, train: Trainer, images: Tensor, classes: Tensor) -> ClientUpdate:
    local = train(copy.deepcopy(start), images, classes)
    old = dict(start.named_parameters())
    update = {name: (value - old[name]).detach() for name, value in local.named_parameters()}
    return ClientUpdate(start, update, (1, 28, 28), MEAN, STD, len(images), len(images), STEPS, RATE)


def knowledge(auxiliary: Batch, train: Trainer, pipeline: Pipeline | None = None) -> Knowledge:
    def trained(batch: Batch, seed: int) -> nn.Module:
        return train(network(seed), batch.images, batch.targets.argmax(1))

    return Knowledge(auxiliary, pipeline or Pipeline(), MEAN, STD, trained)


class Inverted(InputDefense):
    """Shows the negative of every image, at inference too."""

    at_inference = True

    def protect_batch(self, batch, generator):
        return Batch(1 - batch.images, batch.targets)
