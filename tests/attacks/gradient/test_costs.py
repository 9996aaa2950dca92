"""Distances between gradients: closed forms against autograd, and a cost of another package through a whole attack."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import GradientInversion
from attacks.gradient.costs import COSTS, Cost
from defenses.tensors import Update
from tests.attacks.gradient.clients import random, updates
from tests.attacks.wire import generators, sigmoid_net

TRIALS, SHAPES = 3, {"weight": (4, 5), "bias": (4,), "scale": ()}
ENTRIES = sum(math.prod(shape) for shape in SHAPES.values())
CLOSED = [name for name, cost in COSTS.items() if cost.closed_form]


def layerwise_cosine(dummy: Update, target: Update) -> Tensor:
    """Mean of the cosine distances of the layers, which no concatenated vector tells apart."""
    distances = [1 - F.cosine_similarity(dummy[name].flatten(), target[name].flatten(), 0) for name in dummy]
    return torch.stack(distances).mean()


@dataclass(frozen=True, repr=False)
class ForeignInversion(GradientInversion):
    costs: ClassVar[Mapping[str, Cost]] = {**COSTS, "layers": Cost(layerwise_cosine, scale_free=True)}

    cost: str = "layers"


def named(row: Tensor) -> Update:
    parts = torch.split(row, [math.prod(shape) for shape in SHAPES.values()], -1)
    return {name: part.reshape(shape) for (name, shape), part in zip(SHAPES.items(), parts, strict=True)}


def gradients() -> tuple[Tensor, Tensor]:
    target = random(TRIALS, ENTRIES, seed=2)
    return random(TRIALS, ENTRIES, seed=1), target * (random(TRIALS, ENTRIES, seed=3) > -0.5)


def test_values_and_gradients_are_those_of_plain_autograd() -> None:
    dummy, target = gradients()
    by_hand = {
        "cosine": lambda a, b: 1 - F.cosine_similarity(a, b, 0),
        "masked-cosine": lambda a, b: 1 - F.cosine_similarity(a[b != 0], b[b != 0], 0),
        "l2": lambda a, b: ((a - b) ** 2).sum(),
        "l1": lambda a, b: (a - b).abs().sum(),
    }
    for name, cost in ForeignInversion.costs.items():
        for way in (cost, replace(cost, closed_form=None)):
            values, found = way.with_gradient(dummy, target, named)
            for row in range(TRIALS):
                one = dummy[row].clone().requires_grad_()
                value = cost.distance(named(one), named(target[row]))
                assert values[row].item() == pytest.approx(value.item(), rel=1e-12), name
                torch.testing.assert_close(found[row], torch.autograd.grad(value, one)[0], msg=name)
                if name in by_hand:
                    assert value.item() == pytest.approx(by_hand[name](dummy[row], target[row]).item()), name


def test_closed_forms_lose_no_digits_of_long_rows_and_none_of_tiny_or_huge_ones() -> None:
    """A wide network has millions of entries: added one after the other, float32 keeps four digits of their squares."""
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(2, 1_000_000, generator=generator) + 1
    dummy = target + 0.1 * torch.randn(2, 1_000_000, generator=generator)
    for name in CLOSED:
        closed_form = COSTS[name].closed_form
        expected, _ = closed_form(dummy.double(), target.double())
        tolerance = 2e-6 * (1 if COSTS[name].scale_free else expected.max().item())
        torch.testing.assert_close(closed_form(dummy, target)[0].double(), expected, rtol=0, atol=tolerance)
        if not COSTS[name].scale_free:
            continue
        few, others = (one.float() for one in gradients())
        for scale in (1e-13, 1e10):  # products of squares leave the range of float32
            values, found = closed_form(few * scale, others * scale)
            same, slopes = closed_form(few.double() * scale, others.double() * scale)
            torch.testing.assert_close(values.double(), same, rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(found.double() * scale, slopes * scale, rtol=1e-3, atol=1e-5)


def test_a_cost_that_says_so_ignores_the_scale_and_no_other_does() -> None:
    dummy, target = (named(rows[0]) for rows in gradients())
    for name, cost in ForeignInversion.costs.items():
        tripled = [({key: 3 * value for key, value in dummy.items()}, target), (dummy, named(3 * gradients()[1][0]))]
        for pair in tripled:
            assert torch.allclose(cost.distance(dummy, target), cost.distance(*pair)) == cost.scale_free, name


def test_only_a_cost_that_ignores_the_scale_goes_on_without_a_learning_rate() -> None:
    (seen,), _ = updates(sigmoid_net(), 1)
    # The wrong sign, as of a trained model: no rate explains it.
    backwards = {name: -value for name, value in seen.update.items()}
    unknown = replace(seen, update=backwards, learning_rate=None)
    for name, cost in ForeignInversion.costs.items():
        guess = ForeignInversion(cost=name, iterations=3)(unknown, generators(1)[0])
        assert ("" if cost.scale_free else "estimate failed") in guess.failure, name
        assert bool(guess.failure) is not cost.scale_free
        assert "learning_rate" not in guess.diagnostics
