"""SPEAR++ against SPEAR, beyond it, and where it does not apply."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks import AttackError, ClientUpdate, Spear, SpearPlusPlus
from attacks.exact.linear_layer import unscaled_gradient
from attacks.normalisation import normalise
from tests.attacks.exact.test_spear import largest_error, sent, smooth, stream, without_bias
from tests.attacks.wire import CLASSES, classes, drawings, observe, pictures, relu_net


def deep(width: int, pixels: int = 400, seed: int = 1) -> nn.Module:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        layers = [nn.Linear(pixels, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, CLASSES)]
        return nn.Sequential(nn.Flatten(), *layers).double()


def after(steps: int, batch: int, rate: float = 0.01) -> ClientUpdate:
    """The update of several steps of plain SGD on a whole batch."""
    model, images, labels = deep(400), drawings(batch), classes(batch)
    seen = observe(model, images, labels)
    before = {name: value.detach() for name, value in model.named_parameters()}
    weights, inputs = dict(before), normalise(images, seen).double()
    for _ in range(steps):
        leaves = {name: value.clone().requires_grad_() for name, value in weights.items()}
        loss = F.cross_entropy(torch.func.functional_call(model, leaves, (inputs,)), labels)
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        weights = {name: (weights[name] - rate * slope) for name, slope in zip(leaves, slopes, strict=True)}
    update = {name: value - before[name] for name, value in weights.items()}
    return replace(seen, update=update, local_steps=steps, learning_rate=rate)


@pytest.mark.parametrize(("batch", "width"), [(1, 20), (2, 20), (4, 60), (8, 120)])
def test_it_agrees_with_spear_on_small_batches(batch: int, width: int) -> None:
    seen = sent(batch, width)
    theirs = Spear(max_samples=20_000, max_descents=256)(seen, stream())
    guess = SpearPlusPlus()(seen, stream())
    assert largest_error(guess, theirs.images) < 1e-4
    assert largest_error(guess, pictures(batch, seed=3)) < 1e-4
    assert sorted(guess.labels.tolist()) == sorted(theirs.labels.tolist())
    assert abs(guess.diagnostics["gradient_distance"]) < 1e-6


def test_a_batch_beyond_the_reach_of_samples_is_exact() -> None:
    """The same budget of work: 32 examples need 2^31 samples, and the learning a few starts."""
    batch, model = 32, deep(600)
    seen = observe(model, drawings(batch), classes(batch))
    few = Spear(search="samples", max_samples=20_000)(seen, stream())
    assert "of 32 examples in" in few.failure
    guess = SpearPlusPlus()(seen, stream())
    assert largest_error(guess, drawings(batch)) < 1e-3
    assert guess.diagnostics["starts"] < 20


def test_several_steps_leave_the_inputs_exact() -> None:
    seen = after(5, 8)
    assert "5 local steps" in Spear()(seen, stream()).failure
    guess = SpearPlusPlus()(seen, stream())
    assert largest_error(guess, drawings(8)) < 1e-3
    assert guess.diagnostics["rank"] == 8


def test_noise_that_leaves_the_singular_values_leaves_the_images() -> None:
    batch, model = 6, deep(600)
    seen = observe(model, drawings(batch), classes(batch))
    size = float(seen.update["1.weight"].square().mean().sqrt())

    def noisy(share: float) -> ClientUpdate:
        noise = {n: torch.randn(u.shape, generator=stream(7), dtype=u.dtype) for n, u in seen.update.items()}
        return replace(seen, update={n: u + share * size * noise[n] for n, u in seen.update.items()})

    assert Spear()(noisy(0.05), stream()).failure.startswith("does not apply")
    assert largest_error(SpearPlusPlus()(noisy(0.005), stream()), drawings(batch)) < 0.1
    assert SpearPlusPlus()(noisy(50.0), stream()).failure.startswith("does not apply")


@pytest.mark.parametrize(
    ("model", "changes", "why"),
    [
        (without_bias(), {}, "has no bias"),
        (smooth(), {}, "no ReLU follows layer '1'"),
        (relu_net(9), {}, "too few for 4 examples"),
        (relu_net(60), {"local_steps": 3, "weight_decay": 0.1}, "weight decay of several local steps"),
    ],
)
def test_where_it_does_not_apply_it_says_so(model: nn.Module, changes: dict[str, Any], why: str) -> None:
    guess = SpearPlusPlus()(observe(model, pictures(4), classes(4), **changes), stream())
    assert guess.failure.startswith("does not apply")
    assert why in guess.failure


def test_too_few_directions_end_in_a_failure_that_says_how_many_were_found() -> None:
    guess = SpearPlusPlus(max_starts=1)(sent(14, 60), stream())
    assert "of 14 examples in" in guess.failure


def test_an_update_of_one_step_keeps_its_weight_decay() -> None:
    seen = observe(relu_net(60), pictures(2), classes(2), weight_decay=0.1)
    assert unscaled_gradient(seen).keys() == seen.update.keys()
    with pytest.raises(AttackError, match="several local steps"):
        unscaled_gradient(replace(seen, local_steps=2))
