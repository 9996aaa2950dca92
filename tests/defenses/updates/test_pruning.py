"""Pruning against a slow reference, with ties."""

from __future__ import annotations

from fractions import Fraction

import torch
from hypothesis import given
from hypothesis import strategies as st

from defenses.random_draws import generator_for
from defenses.updates.pruning import Pruning, prune_smallest


@given(values=st.lists(st.integers(-3, 3).map(lambda n: n / 2), min_size=1, max_size=40), percent=st.integers(0, 100))
def test_the_smallest_go_and_exactly_so_many(values: list[float], percent: int) -> None:
    pruned = prune_smallest(torch.tensor(values), percent / 100).tolist()
    num_pruned = int(Fraction(percent, 100) * len(values))
    order = sorted(range(len(values)), key=lambda i: (abs(values[i]), i))
    assert pruned == [0.0 if i in order[:num_pruned] else value for i, value in enumerate(values)]


def test_every_tensor_is_pruned_on_its_own_by_an_exact_count() -> None:
    update = {
        "large": torch.arange(1.0, 11) * 1000, "small": torch.arange(1.0, 11) / 1000, "scalar": torch.tensor(1e-9),
    }  # fmt: skip
    pruned = Pruning(fraction=0.7).protect_update(update, generator_for(0))
    assert {name: int((tensor != 0).sum()) for name, tensor in pruned.items()} == {"large": 3, "small": 3, "scalar": 1}
    tensor = torch.randn(20, 5, generator=torch.Generator().manual_seed(0)) + 10
    for percent in (0, 7, 29, 57, 58, 70, 95, 99, 100):
        assert (prune_smallest(tensor, percent / 100) != 0).sum() == 100 - percent
