"""Where inversions of queries start: behind a normalisation a constant image goes nowhere, and faint noise does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from attacks import QueryInversion
from attacks.guesses import Reconstruction
from attacks.queries import inversion
from attacks.queries.backward import BackwardReconstruction
from attacks.queries.base import Query, QueryAttack
from attacks.sender import Sender
from defenses.pipeline import Pipeline
from tests.attacks.queries.query_wire import MEAN, SHAPE, STD, pictures, seeded

ATTACKS: list[QueryAttack[Reconstruction]] = [
    QueryInversion(iterations=100, total_variation=0.0),
    BackwardReconstruction(iterations=100, learning_rate=0.05, total_variation=0.0),
]


def normalised_query() -> Query:
    """A client half whose groups are single channels, and which sees no border: a constant image has a variance of 0 in each."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(4)
        half = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(8, 8), nn.ReLU()).eval().requires_grad_(False)
        server = nn.Sequential(nn.Flatten(), nn.Linear(8 * 14 * 14, 3)).eval().requires_grad_(False)
    images, _ = pictures(3, seed=3)
    features = Sender(half, Pipeline(), MEAN, STD).features(images)
    return Query(features, features, half, server, SHAPE, MEAN, STD)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_behind_a_normalisation_the_search_moves(attack: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    moved = attack(normalised_query(), seeded(0))
    assert moved.diagnostics["relative_loss"] < 0.1
    for name in ("START_STD", "SMOOTH_STD"):
        monkeypatch.setattr(inversion, name, 0.0)
    still = attack(normalised_query(), seeded(0))
    assert still.diagnostics["relative_loss"] > 5 * moved.diagnostics["relative_loss"]


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda attack: type(attack).__name__)
def test_the_start_repeats_with_the_generator_and_is_another_with_another(attack: Any) -> None:
    first, again, other = (attack(normalised_query(), seeded(seed)).images for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
