"""Local training as a function of its images against torch's own SGD, and the memory of trials against counts by hand."""

import itertools
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import grad
from torch.nn import functional as F

import attacks.gradient.trial_gradients.local_steps as local
from attacks.gradient.inversion import GradientInversion
from attacks.gradient.trial_gradients.local_steps import LocalSGD, local_orders, weight_path
from attacks.gradient.trial_gradients.matching import attackable, unrolled_client
from attacks.gradient.trial_gradients.memory import fitting_trials, in_chunks, trial_bytes
from attacks.observations import AttackError
from tests.attacks.gradient.clients import matching, normalised, trained
from tests.attacks.wire import CLASSES, classes, generators, pictures, seeded, sigmoid_net

ORDER = [[0, 2], [1, 3], [3, 0], [2, 1]]


def simulated(model: nn.Module, images: Tensor, soft: Tensor, order: list[list[int]], *sgd: Any) -> dict[str, Tensor]:
    weights = {name: p.detach() for name, p in model.named_parameters()}
    network = local.logits_of(model, dict(model.named_buffers()))
    return local.simulated_training(network, weights, images, soft, order, LocalSGD(*sgd))


def batch(count: int) -> tuple[Tensor, Tensor]:
    return pictures(count, seed=3), F.one_hot(classes(count, seed=3), CLASSES).double()


RECIPES: tuple[dict[str, Any], ...] = (
    {}, {"momentum": 0.9}, {"weight_decay": 0.1}, {"momentum": 0.9, "weight_decay": 0.1},
    {"momentum": 0.9, "nesterov": True}, {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
)  # fmt: skip


def test_equals_torch_sgd() -> None:
    model, (images, soft) = sigmoid_net().double(), batch(4)
    inputs, soft = normalised(images).double(), 0.7 * soft + 0.3 / CLASSES
    for options in RECIPES:
        settings = {"momentum": 0.0, "weight_decay": 0.0, "nesterov": False} | options
        guess = simulated(model, inputs, soft, ORDER, 0.5, *settings.values())
        for name, value in trained(model, images, soft, ORDER, 0.5, **settings).update.items():
            assert torch.allclose(guess[name], value, atol=1e-10), options
            assert value.abs().max() > 1e-4
    # Batches of several sizes, and no step at all.
    assert all(not v.any() for v in simulated(model, inputs, soft, [], 0.5).values())
    uneven = [[0, 1], [2]]
    guess, sent = simulated(model, inputs, soft, uneven, 0.5), trained(model, images, soft, uneven, 0.5)
    assert all(torch.allclose(guess[name], value) for name, value in sent.update.items())


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
    images = normalised(images[..., :2, :2]).double().requires_grad_()

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


def test_unrolls_only_what_fits() -> None:
    seen = trained(sigmoid_net(seed=1).double(), pictures(2, seed=3), torch.tensor([0, 1]), [[0], [1]])
    for settings, unrolled in (
        ({"max_unrolled_steps": 2, "max_images": 2}, 1), ({"max_unrolled_steps": 1}, 0), ({"max_images": 1}, 0),
    ):  # fmt: skip
        attack = GradientInversion(iterations=1, **settings)
        assert attack(seen, generators(1)[0]).diagnostics["unrolled"] == unrolled, settings
        assert "unrolled" not in attack(replace(seen, local_steps=1), generators(1)[0]).diagnostics


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


MODULE = "attacks.gradient.trial_gradients.memory"


def test_every_layer_is_counted_once_per_image_and_the_model_is_left_alone() -> None:
    model = nn.Sequential(
        nn.Conv2d(1, 2, 3, padding=1), nn.BatchNorm2d(2), nn.ReLU(), nn.Flatten(), nn.Linear(2 * 16, 5)
    ).train()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    # Image 16, convolution, norm, ReLU and flatten 32 each, 5 logits.
    activations = 16 + 4 * 32 + 5
    weights = (2 * 9 + 2) + 4 + (32 * 5 + 5)
    for images in (1, 3, 8):
        assert trial_bytes(model, (1, 4, 4), images) == 4 * (10 * images * activations + 8 * weights)
    assert model.training
    assert not any(module._forward_hooks for module in model.modules())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_huge_batches_are_counted_not_allocated_and_what_cannot_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Sequential(nn.Conv2d(3, 64, 3, padding=1), nn.ReLU())
    assert trial_bytes(model, (3, 4096, 4096), 10**6) > 10**15
    needed = trial_bytes(model, (3, 8, 8), 1)
    for free, fits in ((needed, 1), (5 * needed - 1, 4)):
        monkeypatch.setattr(f"{MODULE}.psutil.virtual_memory", lambda free=free: SimpleNamespace(available=free))
        assert fitting_trials(model, (3, 8, 8), 1) == fits
    monkeypatch.setattr(f"{MODULE}.psutil.virtual_memory", lambda: SimpleNamespace(available=needed - 1))
    with pytest.raises(AttackError, match=r"one trial of 1 dummy images of 3x8x8 would need about 0.0 GB, and 0.0"):
        fitting_trials(model, (3, 8, 8), 1)


def test_other_errors_are_not_taken_for_a_lack_of_memory() -> None:
    with pytest.raises(RuntimeError, match="sizes do not match"):
        in_chunks(lambda _: (_ for _ in ()).throw(RuntimeError("sizes do not match")), [1, 2], 2)
