"""Soteria: scores by a slow obvious loop, the columns that they choose, and nothing else of the training."""

import itertools

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from defenses import DefenseError, Soteria
from defenses.random_draws import generator_for
from tests.defenses.training.test_dp_sgd import set_up


def network(activation: type[nn.Module] = nn.Sigmoid, seed: int = 0) -> nn.Sequential:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Conv2d(1, 3, 3, stride=2), activation(), nn.Flatten(), nn.Linear(27, 11), activation()]
        return nn.Sequential(*layers, nn.Linear(11, 4)).train()


def examples(count: int = 3) -> tuple[Tensor, Tensor]:
    stream = torch.Generator().manual_seed(count)
    return torch.randn(count, 1, 8, 8, generator=stream), F.one_hot(torch.arange(count) % 4, 4).float()


def gradients(model: nn.Module, defense: Soteria | None, count: int = 3) -> dict[str, Tensor]:
    made = set_up(model=model)
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


def test_it_prunes_the_columns_with_the_lowest_scores_and_nothing_else() -> None:
    for count, activation in itertools.product((1, 3), (nn.Sigmoid, nn.Tanh)):  # of which one has entries below 0
        model = network(activation)
        scores = slow_scores(model, examples(count)[0])
        pruned = scores.argsort()[:8]  # floor(0.8 * 11)
        plain, found = gradients(model, None, count), gradients(model, Soteria(), count)
        expected = dict(plain) | {"5.weight": plain["5.weight"].index_fill(1, pruned, 0.0)}
        assert list(found) == list(plain)
        for name, value in expected.items():
            torch.testing.assert_close(found[name], value, msg=f"{count} {activation} {name}")
        assert (found["5.weight"] == 0).all(0).sum() == 8
        assert (plain["5.weight"] != 0).all()
        images = examples(count)[0].requires_grad_()
        torch.testing.assert_close(Soteria.scores(model[:-1](images), images), scores)


def test_a_layer_can_be_named_and_limits_are_exact() -> None:
    found = gradients(network(), Soteria(fraction=0.5, layer="3"))
    assert (found["3.weight"] == 0).all(0).sum() == 13  # floor(27 / 2)
    assert (found["5.weight"] != 0).all()
    for fraction, zero in ((0.0, 0), (1.0, 11), (3 / 11, 3)):
        found = gradients(network(), Soteria(fraction=fraction))
        assert int((found["5.weight"] == 0).all(0).sum()) == zero


def test_the_loss_is_the_same_no_hook_outlives_it_and_batch_norm_sees_each_batch_once() -> None:
    model = network()
    model.insert(1, nn.BatchNorm2d(3))
    made = set_up(model=model)
    guarded = Soteria().protect_training(made, generator_for(0))
    images, targets = examples()
    kept, plain = images.clone(), float(made.loss(model, images, targets).detach())
    assert float(guarded.loss(model, images, targets).detach()) == pytest.approx(plain)
    assert int(model[1].num_batches_tracked) == 2
    assert torch.equal(images, kept)
    assert not images.requires_grad
    assert not any(module._forward_hooks for module in model.modules())
    assert (guarded.optimizer, guarded.loader, guarded.model) == (made.optimizer, made.loader, made.model)


def test_it_refuses_what_has_no_such_layer() -> None:
    bare = nn.Sequential(nn.Conv2d(1, 4, 8), nn.Flatten())
    for defense, model, message in (
        (Soteria(layer="fc"), network(), r"fully connected layers are 3, 5"), (Soteria(), bare, "are none"),
    ):  # fmt: skip
        with pytest.raises(DefenseError, match=message):
            defense.protect_training(set_up(model=model), generator_for(0))
    tokens = nn.Sequential(nn.Flatten(2), nn.Linear(64, 4), nn.Flatten())
    made = Soteria().protect_training(set_up(model=tokens), generator_for(0))
    with pytest.raises(DefenseError, match="one vector each"):
        made.loss(tokens, *examples())
