"""Local training as a function of its images against torch's own SGD, and inversions that unroll it."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional as F

from attacks.gradient.inversion import GradientInversion
from attacks.gradient.trial_gradients.local_steps import (
    LocalSGD,
    local_orders,
    logits_of,
    simulated_training,
    weight_path,
)
from attacks.gradient.trial_gradients.matching import attackable, unrolled_client
from attacks.observations import ClientUpdate
from tests.attacks.gradient.clients import QUASI_NEWTON, matching, mean_psnr, normalised, trained
from tests.attacks.wire import CLASSES, classes, generators, pictures, seeded, sigmoid_net

ORDER = [[0, 2], [1, 3], [3, 0], [2, 1]]
SEARCH: dict[str, Any] = {**QUASI_NEWTON, "cost": "l2", "total_variation": 0.0, "iterations": 80}


def simulated(model: nn.Module, images: Tensor, soft: Tensor, order: list[list[int]], *sgd: Any) -> dict[str, Tensor]:
    weights = {name: p.detach() for name, p in model.named_parameters()}
    network = logits_of(model, dict(model.named_buffers()))
    return simulated_training(network, weights, images, soft, order, LocalSGD(*sgd))[0]


def batch(count: int) -> tuple[Tensor, Tensor]:
    return normalised(pictures(count, seed=3).double()), F.one_hot(classes(count, seed=3), CLASSES).double()


def real_update(model: nn.Module, images: Tensor, soft: Tensor, order: list[list[int]], **options: Any):
    """A client's training loop on soft labels."""
    client = attackable(model, train_mode=False)
    before = {name: p.detach().clone() for name, p in client.named_parameters()}
    optimizer = torch.optim.SGD(client.parameters(), **options)
    for indices in order:
        optimizer.zero_grad()
        F.cross_entropy(client(images[indices]), soft[indices]).backward()
        optimizer.step()
    return {name: p.detach() - before[name] for name, p in client.named_parameters()}


def case(seed: int, batches: str, rate: float = 0.1) -> tuple[ClientUpdate, Tensor]:
    """Two images, alone in their batches, as in "0110" for two epochs."""
    images = pictures(2, seed=seed)
    order = [[int(index)] for index in batches]
    return trained(sigmoid_net(seed=1).double(), images, torch.tensor([0, 1]), order, rate), images


RECIPES: tuple[dict[str, Any], ...] = (
    {},
    {"momentum": 0.9},
    {"weight_decay": 0.1},
    {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": True},
    {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
)


def test_equals_torch_sgd() -> None:
    model, (images, soft) = sigmoid_net().double(), batch(4)
    soft = 0.7 * soft + 0.3 / CLASSES
    for options in RECIPES:
        settings = {"momentum": 0.0, "weight_decay": 0.0, "nesterov": False} | options
        guess = simulated(model, images, soft, ORDER, 0.5, *settings.values())
        for name, value in real_update(model, images, soft, ORDER, lr=0.5, **settings).items():
            assert torch.allclose(guess[name], value, atol=1e-10), options
            assert value.abs().max() > 1e-4
    # Batches of several sizes, and no step at all.
    assert all(not v.any() for v in simulated(model, images, soft, [], 0.5).values())
    uneven = [[0, 1], [2]]
    guess, truth = simulated(model, images, soft, uneven, 0.5), real_update(model, images, soft, uneven, lr=0.5)
    assert all(torch.allclose(guess[name], value) for name, value in truth.items())


def test_the_path_of_one_weight_is_that_of_torch_sgd() -> None:
    for options in RECIPES:
        weight = torch.ones(1, dtype=torch.float64, requires_grad=True)
        optimizer, path = torch.optim.SGD([weight], lr=0.3, **options), []
        for step in range(4):
            weight.grad = torch.full_like(weight, 2.0 if step == 0 else 0.0)
            optimizer.step()
            path.append(weight.item())
        sgd = LocalSGD(0.3, options.get("momentum", 0.0), options.get("weight_decay", 0.0), "nesterov" in options)
        assert weight_path(1.0, 2.0, 4, sgd) == pytest.approx(path), options


def test_is_differentiable_twice() -> None:
    model, (images, soft) = seeded(nn.Sequential(nn.Flatten(), nn.Linear(4, CLASSES))).double(), batch(2)
    images = images[..., :2, :2].contiguous().requires_grad_()

    def size(x: Tensor) -> Tensor:
        update = simulated(model, x, soft, [[0], [1], [1], [0]], 0.5, 0.9, 0.1)
        return sum(value.square().sum() for value in update.values())

    assert torch.autograd.gradcheck(size, images)
    assert torch.autograd.gradgradcheck(size, images)
    # torch.func agrees with autograd.
    assert torch.allclose(grad(size)(images.detach()), torch.autograd.grad(size(images), images)[0])


def test_orders_are_epochs_of_batches() -> None:
    orders = local_orders(5, 2, 8, torch.Generator().manual_seed(0))
    assert orders[:3] == [[0, 1], [2, 3], [4]]
    assert [len(step) for step in orders] == [2, 2, 1, 2, 2, 1, 2, 2]
    assert sorted(index for step in orders[3:6] for index in step) == list(range(5))
    assert local_orders(5, 2, 8, torch.Generator().manual_seed(0)) == orders
    first, second = local_orders(50, 50, 2, torch.Generator().manual_seed(0))
    assert second != first
    assert local_orders(2, 64, 2, torch.Generator())[0] == [0, 1]


# ---- what is matched


def test_the_objective_is_zero_at_the_truth_and_only_when_unrolled() -> None:
    model, images, labels = sigmoid_net().double().eval(), pictures(5), torch.arange(5)
    order = local_orders(5, 2, 7, torch.Generator().manual_seed(0))
    private, truth = attackable(model, train_mode=False), normalised(images).double().flatten()[None]
    for options in RECIPES:
        seen = trained(model, images, labels, order, 0.3, **options)
        targets = {name: value[None] for name, value in seen.gradient().items()}
        for cost, client in itertools.product(("cosine", "l2", "l1"), (unrolled_client(private, seen), None)):
            exact = matching(private, tuple(images.shape), targets, labels[None], cost, client=client)
            loss = abs(float(exact(truth, torch.tensor([0]))[0]))
            assert loss < 1e-10 if client else loss > 1e-4, (options, cost)


@pytest.mark.long
@pytest.mark.numeric
def test_unrolling_beats_the_mean_gradient() -> None:
    for seed, batches in itertools.product((3, 4), ("01", "0110")):
        seen, images = case(seed, batches)
        attack = GradientInversion(**SEARCH | {"cost": "cosine"})
        unrolled, averaged = (mean_psnr(replace(attack, max_unrolled_steps=n), [seen], images) for n in (16, 0))
        assert unrolled > averaged + 5
        assert unrolled > 18


def test_unrolls_only_what_fits() -> None:
    seen, _ = case(3, "01")
    for attack, expected in (
        (GradientInversion(iterations=1), 1),
        (GradientInversion(iterations=1, max_unrolled_steps=2), 1),
        (GradientInversion(iterations=1, max_unrolled_steps=1), 0),
        (GradientInversion(iterations=1, max_images=2), 1),
        (GradientInversion(iterations=1, max_images=1), 0),
    ):
        assert attack(seen, generators(1)[0]).diagnostics["unrolled"] == expected, attack
    one_step = GradientInversion(iterations=1)(replace(seen, local_steps=1), generators(1)[0])
    assert "unrolled" not in one_step.diagnostics
