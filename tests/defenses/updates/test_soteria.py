"""Soteria: scores by a slow obvious loop, the columns that they choose, and nothing else of the training."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from defenses import DefenseError, Soteria, Training
from defenses.random_draws import generator_for
from defenses.spec import parse


def network(activation: type[nn.Module] = nn.Sigmoid, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 3, 3, stride=2), activation(), nn.Flatten(), nn.Linear(27, 11), activation()]
        return nn.Sequential(*layers, nn.Linear(11, 4)).train()


def examples(count: int = 3) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(count)
    return torch.randn(count, 1, 8, 8, generator=stream), F.one_hot(torch.arange(count) % 4, 4).float()


def training(model: nn.Module) -> Training:
    return Training(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=0.1),
        loader=DataLoader(TensorDataset(*examples())),
        loss=lambda model, images, targets: F.cross_entropy(model(images), targets),
        epochs=1,
        total_epochs=1,
    )


def gradients(model: nn.Module, defense: Soteria | None, count: int = 3) -> dict[str, Tensor]:
    made = training(model)
    if defense is not None:
        made = defense.protect_training(made, generator_for(0))
    model.zero_grad()
    made.loss(model, *examples(count)).backward()
    return {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}


def slow_scores(model: nn.Sequential, images: Tensor) -> Tensor:
    """One image and one entry at a time."""
    total = torch.zeros(11)
    for image in images:
        one = image[None].clone().requires_grad_()
        representation = model[:-1](one)[0]
        for i, entry in enumerate(representation):
            (slope,) = torch.autograd.grad(entry, one, retain_graph=True)
            total[i] += slope.square().sum().sqrt() / (abs(float(entry.detach())) + 0.1)
    return total


@pytest.mark.parametrize("count", [1, 3])
def test_it_prunes_the_columns_with_the_lowest_scores_and_nothing_else(count: int) -> None:
    model = network()
    scores = slow_scores(model, examples(count)[0])
    pruned = scores.argsort()[:8]  # floor(0.8 * 11)
    plain, found = gradients(model, None, count), gradients(model, Soteria(), count)
    expected = dict(plain) | {"5.weight": plain["5.weight"].index_fill(1, pruned, 0.0)}
    assert list(found) == list(plain)
    for name, value in expected.items():
        torch.testing.assert_close(found[name], value)
    assert (found["5.weight"] == 0).all(0).sum() == 8
    assert (plain["5.weight"] != 0).all()


def test_a_layer_can_be_named() -> None:
    found = gradients(network(), Soteria(fraction=0.5, layer="3"))
    assert (found["3.weight"] == 0).all(0).sum() == 13  # floor(27 / 2)
    assert (found["5.weight"] != 0).all()


@pytest.mark.parametrize(("fraction", "zero"), [(0.0, 0), (1.0, 11), (0.29, 3)])
def test_limits(fraction: float, zero: int) -> None:
    model = network()
    plain, found = gradients(model, None), gradients(model, Soteria(fraction=fraction))
    assert int((found["5.weight"] == 0).all(0).sum()) == zero
    if not zero:
        assert all(torch.equal(found[name], value) for name, value in plain.items())


def test_the_loss_is_the_same_and_no_hook_outlives_it() -> None:
    model = network()
    made = training(model)
    guarded = Soteria().protect_training(made, generator_for(0))
    images, targets = examples()
    kept = images.clone()
    assert float(guarded.loss(model, images, targets)) == pytest.approx(float(made.loss(model, images, targets)))
    assert torch.equal(images, kept)
    assert not images.requires_grad
    assert not any(module._forward_hooks for module in model.modules())
    assert (guarded.optimizer, guarded.loader, guarded.model) == (made.optimizer, made.loader, made.model)


def test_batch_norm_sees_each_batch_once() -> None:
    model = network()
    normed = nn.Sequential(model[0], nn.BatchNorm2d(3), *model[1:]).train()
    made = Soteria().protect_training(training(normed), generator_for(0))
    made.loss(normed, *examples()).backward()
    assert int(normed[1].num_batches_tracked) == 1


def test_zeros_of_a_relu_are_pruned_first() -> None:
    model = network(nn.ReLU)
    images = examples(1)[0].requires_grad_()
    representation = model[:-1](images)
    dead = (representation == 0)[0]
    assert 0 < int(dead.sum()) < 11
    kept = Soteria(fraction=float(dead.sum()) / 11).kept(representation, images)
    assert torch.equal(kept, ~dead)


def test_it_refuses_what_has_no_such_layer() -> None:
    with pytest.raises(DefenseError, match=r"fully connected layers are 3, 5"):
        Soteria(layer="fc").protect_training(training(network()), generator_for(0))
    bare = nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten())
    with pytest.raises(DefenseError, match="are none"):
        Soteria().protect_training(training(bare), generator_for(0))
    tokens = nn.Sequential(nn.Flatten(2), nn.Linear(64, 4), nn.Flatten())
    made = Soteria().protect_training(replace(training(network()), model=tokens), generator_for(0))
    with pytest.raises(DefenseError, match="one vector each"):
        made.loss(tokens, *examples())


def test_a_bound_for_each_example_does_not_hold_beside_it() -> None:
    with pytest.raises(DefenseError, match="mixes several examples"):
        parse("Soteria() | DPSGD(noise_multiplier=1.0)")
