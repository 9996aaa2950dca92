"""Canary clients: directions, scores that can be computed by hand, and bounds of mechanisms whose epsilon is known."""

import math
from collections.abc import Callable

import pytest
import torch

from attacks.dp_audit.canary_clients import PlacedClient, parts_of
from attacks.dp_audit.placed_canaries import TURNING
from attacks.dp_audit.verdict import ALL, CanaryPart, audited
from defenses import ClientDP
from defenses.random_draws import generator_for
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.tensors import Update

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
