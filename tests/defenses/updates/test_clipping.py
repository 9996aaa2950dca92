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


def clipped(max_norm: float, **update: torch.Tensor) -> Update:
    return Clip(max_norm).protect_update(update, generator_for(0))


@given(scale=st.floats(1e-6, 1e6), max_norm=st.floats(1e-3, 1e3))
def test_norm_is_bounded_over_all_parameters_together_and_direction_kept(scale: float, max_norm: float) -> None:
    generator = torch.Generator().manual_seed(0)
    shapes = {"conv": (4, 3, 3, 3), "bias": (4,), "scale": ()}
    update = {name: scale * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    both = (
        torch.cat([tensor.flatten().double() for tensor in one.values()])
        for one in (update, clipped(max_norm, **update))
    )
    before, after = both
    if before.norm() < max_norm:
        assert torch.equal(before, after)
    assert after.norm().item() == pytest.approx(min(before.norm().item(), max_norm), rel=1e-5)
    assert torch.cosine_similarity(before, after, dim=0).item() == pytest.approx(1, abs=1e-6)


def test_worked_examples() -> None:
    three_four = clipped(2.5, a=torch.tensor(3.0), b=torch.tensor([[4.0]]))
    assert (three_four["a"].item(), three_four["b"].item()) == (1.5, 2.0)
    assert not any(tensor.any() for tensor in clipped(1.0, w=torch.zeros(3), s=torch.tensor(0.0)).values())
    # The squares overflow single precision.
    assert clipped(1.0, w=torch.full((4,), 1e30))["w"].tolist() == pytest.approx([0.5] * 4)
    for largest, left in ((2.0, 0.25), (4.0, 0.125), (math.inf, 0.0)):  # each entry times the bound over the norm
        found = clipped(2.0, w=torch.tensor(largest), s=torch.tensor(0.25))
        assert found["s"].item() == pytest.approx(left, rel=0.01)
