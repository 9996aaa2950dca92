"""Places of canaries in a model, gradients that they get, and what updates say about them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from attacks.dp_audit.example_gradients import EMPTY, NO_CANARY, set_gradients
from attacks.dp_audit.placed_canaries import TURNING, PlacedCanaries, audited_defense, gradient_parts
from attacks.dp_audit.verdict import ALL
from attacks.observations import AttackError
from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE
from defenses.spec import parse

SIZES = {"weight": 400, "bias": 4, "head": 40}


def placed(count: int = 60, neighbours: str = REPLACE_ONE, partition: int = 0) -> PlacedCanaries:
    return PlacedCanaries.of(SIZES, count, neighbours, 7, partition)


def test_every_tensor_has_as_many_canaries_as_its_size_allows() -> None:
    found = placed()
    assert torch.bincount(found.tensors()).tolist() == [28, 4, 28]
    assert len(found.weights.unique()) == len(found) == 60
    assert (found.weights.diff() > 0).all()
    assert found.tensors().tolist() == [0] * 28 + [1] * 4 + [2] * 28
    assert len(placed(444)) == 444
    assert 0.25 < found.turns.float().mean() < 0.75


def test_places_depend_on_the_client_who_has_one_kind_of_canary_where_the_number_is_hidden() -> None:
    assert torch.equal(placed().weights, placed().weights)
    assert not torch.equal(placed().weights, placed(partition=1).weights)
    kinds = [(len(placed(60, ADD_OR_REMOVE, at)), placed(60, ADD_OR_REMOVE, at).lone) for at in range(4)]
    assert kinds == [(60, False), (0, True), (60, False), (0, True)]
    assert [placed(60, REPLACE_ONE, at).lone for at in range(2)] == [True, True]


def test_scores_are_what_moved_a_weight_with_the_sign_of_the_round() -> None:
    found = placed()
    update = {name: torch.arange(float(size)) for name, size in SIZES.items()}
    flat = torch.cat(list(update.values()))[found.weights].double()
    assert torch.equal(found.scores(update, 1), -flat)
    assert torch.equal(found.scores(update, 2), torch.where(found.turns, flat, -flat))


def test_the_gradient_of_a_canary_is_zero_but_at_its_weight() -> None:
    model = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2))
    model[0].bias.requires_grad_(False)
    trained = [one for one in model.parameters() if one.requires_grad]
    for parameter in trained:
        parameter.grad_sample = torch.ones(4, *parameter.shape)  # type: ignore[attr-defined]
    numbers = torch.tensor([NO_CANARY, 5, EMPTY, 7])  # the last weight of the first tensor, the second of the next
    set_gradients(model, numbers, torch.tensor([9.0, 2.0, 9.0, -3.0]))
    flat = torch.cat([one.grad_sample.flatten(1) for one in trained], 1)  # type: ignore[attr-defined]
    expected = torch.zeros(4, 12)
    expected[0], expected[1, 5], expected[3, 7] = 1, 2, -3
    assert torch.equal(flat, expected)
    with pytest.raises(AttackError, match="no gradients per example"):
        set_gradients(nn.Linear(2, 2), torch.tensor([1]), torch.ones(1))


def test_parts_pool_clients_and_know_the_tensor_of_each_canary() -> None:
    clients = {
        at: (placed(partition=at), torch.full((60,), float(at)), torch.ones(60, dtype=torch.bool)) for at in (0, 1)
    }
    parts = gradient_parts(clients)
    assert list(parts) == [ALL, TURNING, *SIZES]
    assert [len(part.scores) for part in parts.values()][2:] == [56, 8, 56]
    assert len(parts[ALL].scores) == 120
    assert parts[ALL].weight == sum(part.weight for name, part in parts.items() if name != ALL)
    assert gradient_parts({1: (placed(0), torch.zeros(0), torch.zeros(0, dtype=torch.bool))}) == {}


def test_only_a_pipeline_with_dp_sgd_is_audited() -> None:
    assert audited_defense(parse("ImageNoise(std=0.1)")) is None
    found = audited_defense(parse("ImageNoise(std=0.1) | DPSGD(target_epsilon=2.0)"))
    assert found is not None
    assert found.target_epsilon == 2.0
