"""What clients send after one or several real steps, and how well an attack does on it."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from attacks import Knowledge, null_baselines, score
from attacks.base import Attack
from attacks.gradient.costs import COSTS, Cost
from attacks.gradient.trial_gradients.batch_statistics import Statistics, batch_norms
from attacks.gradient.trial_gradients.matching import GradientMatching, MatchingProblem
from attacks.observations import ClientUpdate
from clients.models.classifiers import build_model
from defenses import Training, parse
from defenses.base import Batch, Defense
from defenses.random_draws import generator_for
from tests.attacks.wire import CLASSES, MEAN, STD, classes, generators, observe, pictures

QUASI_NEWTON: dict[str, Any] = {
    "optimizer": "lbfgs", "signed": False, "learning_rate": 1.0, "line_search": True, "step_decay": False,
}  # fmt: skip


def random(*shape: int, seed: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def normalised(images: Tensor) -> Tensor:
    return (images - MEAN[0]) / STD[0]


def knowledge(pipeline: str = "") -> Knowledge:
    nothing = Batch(torch.zeros(0, 1, 12, 12), torch.zeros(0, 5))
    return Knowledge(nothing, parse(pipeline), MEAN, STD, lambda *_: pytest.fail("trains"))


def updates(model: nn.Module, count: int, batch: int = 1) -> tuple[list[ClientUpdate], Tensor]:
    images, labels = pictures(count * batch), classes(count * batch)
    return [observe(model, *pair) for pair in zip(images.split(batch), labels.split(batch), strict=True)], images


def trained(
    model: nn.Module, images: Tensor, labels: Tensor, order: Sequence[Sequence[int]], rate: float = 0.1, **options: Any
) -> ClientUpdate:
    """What a client sends after torch's SGD on these batches, buffers included, in the mode that ``model`` is in."""
    client = copy.deepcopy(model)
    optimizer = torch.optim.SGD(client.parameters(), lr=rate, **options)
    inputs = normalised(images).to(next(client.parameters()))
    for batch in order:
        optimizer.zero_grad()
        F.cross_entropy(client(inputs[batch]), labels[batch]).backward()
        optimizer.step()
    before = model.state_dict()
    update = {name: v - before[name] for name, v in client.state_dict().items() if v.is_floating_point()}
    told = {"batch_size": len(order[0]), "local_steps": len(order), "learning_rate": rate, **options}
    return replace(observe(copy.deepcopy(model), images, labels), model=model, update=update, **told)


def sent(model: nn.Module, images: Tensor, labels: Tensor) -> ClientUpdate:
    seen = trained(copy.deepcopy(model).train(), images, labels, [list(range(len(images)))])
    return replace(seen, model=model)


def defended(
    defense: Defense, build: Callable[[], nn.Module], count: int = 3, size: int = 1, decay: float = 0.0
) -> tuple[list[ClientUpdate], Tensor]:
    """One step of SGD of each client through the defence's own training, and the images."""
    images, labels = pictures(count), classes(count)
    seen = []
    for at in range(0, count - size + 1, size):
        some, truth = images[at : at + size], labels[at : at + size]
        model, public = build(), build()
        made = Training(
            model=model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=decay),
            loader=DataLoader(TensorDataset(images)),
            loss=lambda model, images, targets: F.cross_entropy(model(images), targets), epochs=1, total_epochs=1,
        )  # fmt: skip
        made = defense.protect_training(made, generator_for("client", at))
        made.loss(model, normalised(some), F.one_hot(truth, CLASSES).float()).backward()
        made.optimizer.step()
        before = dict(public.named_parameters())
        update = {name: (weight - before[name]).detach() for name, weight in model.named_parameters()}
        seen.append(replace(observe(public, some, truth, weight_decay=decay), update=update))
    return seen, images


def blind(seen: Sequence[ClientUpdate]) -> list[ClientUpdate]:
    return [
        replace(one, update={name: random(*v.shape, seed=at).to(v) for name, v in one.update.items()})
        for at, one in enumerate(seen)
    ]


def psnrs(attack: Attack, seen: Sequence[ClientUpdate], images: Tensor, seed: int = 0) -> list[float]:
    guesses = attack.attack_many(seen, generators(len(seen), seed))
    assert not any(guess.failure for guess in guesses)
    parts = images.split(len(images) // len(seen))
    return [value for guess, part in zip(guesses, parts, strict=True) for value in score(guess, part)["psnr"]]


def mean_psnr(attack: Attack, seen: Sequence[ClientUpdate], images: Tensor) -> float:
    values = psnrs(attack, seen, images)
    return sum(values) / len(values)


def null_psnr(name: str, images: Tensor) -> float:
    values = score(null_baselines(images, images.mean(0))[name], images)["psnr"]
    return sum(values) / len(values)


def matching(
    model: nn.Module,
    shape: tuple[int, ...],
    targets: dict[str, Tensor],
    labels: Tensor | None,
    cost: str | Cost = "cosine",
    prior: float = 0.0,
    num_classes: int = CLASSES,
    **more: Any,
) -> GradientMatching:
    distance = COSTS[cost] if isinstance(cost, str) else cost
    return GradientMatching(MatchingProblem(model, shape, num_classes, targets, labels, distance, prior, **more))


def bn_net(momentum: float | None = 0.1) -> nn.Module:
    model = build_model("resnet20", num_classes=CLASSES, input_shape=(1, 12, 12), width=1, norm="batch", seed=0)
    for layer in batch_norms(model).values():
        layer.momentum = momentum
    model(torch.randn(8, 1, 12, 12, generator=torch.Generator().manual_seed(1)))
    return model


def two_layers(seed: int = 0) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        first = [nn.Conv2d(1, 6, 5, 2, 2), nn.BatchNorm2d(6), nn.ReLU()]
        second = [nn.Conv2d(6, 6, 3, 2, 1), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(), nn.Linear(54, CLASSES)]
        return nn.Sequential(*first, *second).double()


def moments(features: Tensor) -> tuple[Tensor, Tensor]:
    return features.mean((0, 2, 3)), features.var((0, 2, 3), correction=0)


def direct_statistics(model: nn.Module, images: Tensor) -> Statistics:
    client, found = copy.deepcopy(model).train(), Statistics()
    for name, layer in batch_norms(client).items():
        layer.register_forward_hook(lambda _, x, __, name=name: found.update({name: moments(x[0])}))
    with torch.no_grad():
        client(normalised(images).to(next(client.parameters())))
    return found


def close(one: Statistics, other: Statistics, tolerance: float = 1e-9) -> bool:
    pairs = [pair for name in other for pair in zip(one[name], other[name], strict=True)]
    return all(torch.allclose(a.to(b), b, rtol=tolerance, atol=tolerance) for a, b in pairs)
