"""Clipping: the bound, the direction, and the zero update."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from defenses.base import Update
from defenses.random_draws import generator_for
from defenses.updates.clipping import Clip


def update_of(scale: float) -> Update:
    generator = torch.Generator().manual_seed(0)
    shapes = {"conv": (4, 3, 3, 3), "bias": (4,), "scale": ()}
    return {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}


def flat(update: Update) -> torch.Tensor:
    return torch.cat([tensor.flatten().double() for tensor in update.values()])


@given(scale=st.floats(1e-6, 1e6), max_norm=st.floats(1e-3, 1e3))
def test_norm_is_bounded_over_all_parameters_together_and_direction_kept(scale: float, max_norm: float):
    update = update_of(scale)
    before, after = flat(update), flat(Clip(max_norm).protect_update(update, generator_for(0)))
    assert after.norm().item() == pytest.approx(min(before.norm().item(), max_norm), rel=1e-5)
    assert torch.cosine_similarity(before, after, dim=0).item() == pytest.approx(1, abs=1e-6)


def test_below_the_bound_nothing_changes_at_all():
    update = update_of(1e-3)
    clipped = Clip(1.0).protect_update(update, generator_for(0))
    assert all(torch.equal(clipped[name], update[name]) for name in update)


def test_zero_update_stays_zero():
    clipped = Clip(1.0).protect_update({"w": torch.zeros(3), "s": torch.tensor(0.0)}, generator_for(0))
    assert torch.equal(flat(clipped), torch.zeros(4, dtype=torch.float64))


def test_a_norm_of_five_is_that_of_three_and_four():
    clipped = Clip(2.5).protect_update({"a": torch.tensor(3.0), "b": torch.tensor([[4.0]])}, generator_for(0))
    assert (clipped["a"].item(), clipped["b"].item()) == (1.5, 2.0)
    assert Clip(2.5).protect_update({}, generator_for(0)) == {}


def test_norm_does_not_overflow_single_precision():
    clipped = Clip(1.0).protect_update({"w": torch.full((4,), 1e30)}, generator_for(0))
    assert clipped["w"].tolist() == pytest.approx([0.5] * 4)


@pytest.mark.parametrize(("largest", "left"), [(2.0, 0.25), (4.0, 0.125), (math.inf, 0.0)])
def test_every_entry_is_scaled_by_the_bound_over_the_norm(largest: float, left: float):
    clipped = Clip(2.0).protect_update({"w": torch.tensor(largest), "s": torch.tensor(0.25)}, generator_for(0))
    assert clipped["s"].item() == pytest.approx(left, rel=0.01)
