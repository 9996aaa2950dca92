"""Canaries: places, gradients and scores of those in gradients; canary clients against mechanisms whose epsilon is known."""

import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from attacks.dp_audit.canary_clients import PlacedClient, parts_of
from attacks.dp_audit.placed_canaries import (
    EMPTY,
    NO_CANARY,
    TURNING,
    PlacedCanaries,
    audited_defense,
    gradient_parts,
    set_gradients,
)
from attacks.dp_audit.verdict import ALL, CanaryPart, audited
from attacks.observations import AttackError
from defenses import ClientDP
from defenses.neighbours import ADD_OR_REMOVE, REPLACE_ONE
from defenses.random_draws import generator_for
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.spec import parse
from defenses.tensors import Update
from defenses.training.dp_sgd import DPSGD
from strategies.federated.dp_audit import CanaryAudit

PUBLIC: dict[str, Any] = {"neighbours": "add-or-remove", "sample_rate": 0.5}


def test_in_a_federation_0_lies_half_way_between_both_coins_too() -> None:
    """Of 4 steps a canary is in 2 on average, and adds 2 / 8 to each: half of it is 0.25. A canary of the other sign needs none."""
    audit = object.__new__(CanaryAudit)
    audit.plan = SimpleNamespace(batch_size=8)  # type: ignore[assignment]
    for changes, expected in ((PUBLIC, 0.25), ({}, 0.0)):
        audit._defense = DPSGD(max_grad_norm=2.0, **changes)
        assert audit._middle(4) == expected


SIZES = {"weight": 400, "bias": 4, "head": 40}


def placed(count: int = 60, neighbours: str = REPLACE_ONE, partition: int = 0) -> PlacedCanaries:
    return PlacedCanaries.of(SIZES, count, neighbours, 7, partition)


def test_every_tensor_has_as_many_canaries_as_its_size_allows_whose_scores_have_the_sign_of_the_round() -> None:
    found = placed()
    assert found.tensors().tolist() == [0] * 28 + [1] * 4 + [2] * 28
    assert len(found) == 60
    assert (found.weights.diff() > 0).all()
    assert len(placed(444)) == 444
    assert 0.2 < found.turns.float().mean() < 0.8
    update = {name: torch.arange(float(size)) for name, size in SIZES.items()}
    flat = torch.cat(list(update.values()))[found.weights].double()
    assert torch.equal(found.scores(update, 1), -flat)
    assert torch.equal(found.scores(update, 2), torch.where(found.turns, flat, -flat))


def test_places_depend_on_the_client_who_has_one_kind_of_canary_where_the_number_is_hidden() -> None:
    assert torch.equal(placed().weights, placed().weights)
    assert not torch.equal(placed().weights, placed(partition=1).weights)
    kinds = [(len(placed(60, ADD_OR_REMOVE, at)), placed(60, ADD_OR_REMOVE, at).lone) for at in range(4)]
    assert kinds == [(60, False), (0, True), (60, False), (0, True)]
    assert [placed(60, REPLACE_ONE, at).lone for at in range(2)] == [True, True]
    # Only a pipeline with DP-SGD is audited.
    assert audited_defense(parse("ImageNoise(std=0.1)")) is None
    found = audited_defense(parse("ImageNoise(std=0.1) | DPSGD(target_epsilon=2.0)"))
    assert found.target_epsilon == 2.0


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
    coins = torch.ones(60, dtype=torch.bool)
    clients = {at: (placed(partition=at), torch.full((60,), float(at)), coins) for at in (0, 1)}
    parts = gradient_parts(clients)
    assert list(parts) == [ALL, TURNING, *SIZES]
    assert [len(part.scores) for part in parts.values()][2:] == [56, 8, 56]
    assert parts[ALL].scores.tolist() == [0.0] * 60 + [1.0] * 60
    assert parts[ALL].coins.all()
    assert parts[ALL].weight == sum(part.weight for name, part in parts.items() if name != ALL)
    assert gradient_parts({1: (placed(0), torch.zeros(0), torch.zeros(0, dtype=torch.bool))}) == {}


DELTA = 1e-5
SHAPES = {"0.weight": (24, 16), "0.bias": (24,), "2.weight": (8, 24), "2.bias": (8,)}
Release = Callable[[Update, int, int], Update]


def scored(release: Release, clients: int, rounds: int, length: float) -> dict[str, CanaryPart]:
    """Views of canary clients whose updates a mechanism releases: (update, client, round) -> update."""
    placed = [PlacedClient.of(SHAPES, 0, client) for client in range(clients)]
    coins = torch.rand(clients, generator=generator_for("coins")) < 0.5
    scores = torch.zeros(clients, len(SHAPES), dtype=torch.float64)
    for at, client in enumerate(placed):
        for number in range(1, rounds + 1):
            scores[at] += client.scores(release(client.update(bool(coins[at]), length, number), at, number), number)
    return parts_of(dict(zip(SHAPES, scores.T, strict=True)), coins, torch.tensor([one.turns for one in placed]))


def test_without_a_mechanism_scores_are_the_length_times_the_rounds() -> None:
    parts = scored(lambda update, *_: update, clients=40, rounds=3, length=2.0)
    assert list(parts) == [ALL, TURNING, *SHAPES]
    assert parts[ALL].weight == sum(part.weight for name, part in parts.items() if name != ALL)
    signs = torch.where(parts[ALL].coins, 1.0, -1.0).double()
    torch.testing.assert_close(parts[ALL].scores, 6.0 * signs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parts["2.bias"].scores, 1.5 * signs, rtol=1e-5, atol=1e-5)
    assert 5 < len(parts[TURNING].scores) < 35


def test_noise_that_is_reused_cancels_from_clients_that_turn() -> None:
    def reused(update: Update, client: int, _: int) -> Update:
        generator = generator_for("reused", client)
        return {name: value + 50 * torch.randn(value.shape, generator=generator) for name, value in update.items()}

    parts = scored(reused, clients=60, rounds=2, length=1.0)
    assert ((parts[TURNING].scores > 0) == parts[TURNING].coins).all()
    assert not ((parts[ALL].scores > 0) == parts[ALL].coins).all()


@pytest.mark.numeric
def test_scores_have_the_separation_that_the_account_says_and_a_claim_below_is_refuted() -> None:
    """Over 2 rounds, sign times score is N(2 C, 2 z^2 C^2), so that mu = 2 mean / deviation."""
    defense, mu = ClientDP(max_norm=0.25, noise_multiplier=1.0), 2 * math.sqrt(2)
    states: dict[str, object] = {}

    def release(update: Update, client: int, server_round: int) -> Update:
        return defense.protect_update(update, generator_for("separation", client, server_round))

    for _ in range(2):
        states = defense.recorded(states)
    parts = scored(release, clients=800, rounds=2, length=10.0)
    signed = torch.where(parts[ALL].coins, parts[ALL].scores, -parts[ALL].scores)
    # The estimate of mu from 800 clients has a standard deviation of 0.12.
    assert 2 * float(signed.mean() / signed.std()) == pytest.approx(mu, abs=0.5)
    truth = gaussian_epsilon(mu, DELTA)
    assert defense.privacy(states)["epsilon"] == pytest.approx(truth)
    assert not audited(parts, truth, DELTA, 0.95).refuted
    assert audited(parts, truth / 4, DELTA, 0.95).refuted
