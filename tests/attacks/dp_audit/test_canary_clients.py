"""Canary clients: directions, scores that can be computed by hand, and bounds of mechanisms whose epsilon is known."""

import math

import pytest
import torch

from attacks.dp_audit.canary_clients import SHAPES, TURNING, PlacedClient, audit_client_dp, client_parts, directions
from attacks.dp_audit.verdict import ALL, audited
from defenses import ClientDP
from defenses.random_draws import generator_for
from defenses.smashed.gaussian_mechanism import gaussian_epsilon
from defenses.tensors import Update

DELTA = 1e-5


def test_directions_have_length_one_and_are_as_long_in_every_tensor() -> None:
    found = directions(SHAPES, 50, generator_for(0))
    lengths = torch.stack([tensor.norm(dim=1) for tensor in found.values()])
    torch.testing.assert_close(lengths, torch.full((4, 50), 0.5, dtype=torch.float64))
    among = found["0.weight"] @ found["0.weight"].T * 4
    assert (among - torch.eye(50)).abs().max() < 0.4


def test_without_a_mechanism_scores_are_the_length_times_the_rounds_and_some_clients_turn() -> None:
    seen: dict[tuple[int, int], Update] = {}

    def kept(update: Update, client: int, server_round: int) -> Update:
        seen[client, server_round] = update
        return update

    parts = client_parts(kept, SHAPES, clients=40, rounds=3, length=2.0, seed=1)
    assert list(parts) == [ALL, TURNING, *SHAPES]
    assert parts[ALL].weight == sum(part.weight for name, part in parts.items() if name != ALL)
    signs = torch.where(parts[ALL].coins, 1.0, -1.0).double()
    torch.testing.assert_close(parts[ALL].scores, 6.0 * signs, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(parts["2.bias"].scores, 1.5 * signs, rtol=1e-5, atol=1e-5)
    turned = [torch.equal(seen[client, 2]["2.bias"], -seen[client, 1]["2.bias"]) for client in range(40)]
    assert 5 < sum(turned) == len(parts[TURNING].scores) < 35
    for client, turns in enumerate(turned):
        assert torch.equal(seen[client, 3]["2.bias"], seen[client, 1]["2.bias"])
        assert turns or torch.equal(seen[client, 2]["2.bias"], seen[client, 1]["2.bias"])


def test_a_placed_client_sends_its_direction_or_the_opposite_and_is_scored_along_it() -> None:
    placed = [PlacedClient.of({**SHAPES, "empty": (0,)}, 1, partition) for partition in range(12)]
    assert {client.turns for client in placed} == {False, True}
    for client in placed:
        for coin, server_round, sign in ((True, 1, 1), (False, 1, -1), (True, 2, -1 if client.turns else 1)):
            update = client.update(coin, 2.0, server_round)
            assert {name: tuple(tensor.shape) for name, tensor in update.items()} == SHAPES
            along = sum(float((update[name] * client.along[name]).sum()) for name in SHAPES)
            assert along == pytest.approx(2.0 * sign, rel=1e-5)
            expected = [0.5 if coin else -0.5] * 4
            assert client.scores(update, server_round).tolist() == pytest.approx(expected, rel=1e-5)


def test_noise_that_is_reused_cancels_from_clients_that_turn() -> None:
    def reused(update: Update, client: int, _: int) -> Update:
        generator = generator_for("reused", client)
        return {name: value + 50 * torch.randn(value.shape, generator=generator) for name, value in update.items()}

    parts = client_parts(reused, SHAPES, clients=60, rounds=2, length=1.0, seed=0)
    assert ((parts[TURNING].scores > 0) == parts[TURNING].coins).all()
    assert not ((parts[ALL].scores > 0) == parts[ALL].coins).all()


@pytest.mark.numeric
def test_the_bound_of_a_correct_defence_lies_below_its_claim_and_most_of_the_way_up() -> None:
    found = audit_client_dp(ClientDP(target_epsilon=8.0, rounds=1), clients=400, rounds=1)
    assert found.claimed == pytest.approx(8.0, rel=1e-6)
    assert 0.5 < found.shown.epsilon < found.shown_gaussian.epsilon < 8.0
    assert found.shown_gaussian.epsilon > 2.5
    assert not found.refuted
    assert set(found.by_part) == {ALL, TURNING, *SHAPES}
    assert (found.shown.confidence, found.shown.assumption, found.shown.powerless) == (0.975, "", False)


@pytest.mark.numeric
def test_scores_have_the_separation_that_the_account_says_and_a_claim_below_is_refuted() -> None:
    """Over 2 rounds, sign times score is N(2 C, 2 z^2 C^2), so that mu = 2 mean / deviation."""
    defense, mu = ClientDP(max_norm=0.25, noise_multiplier=1.0), 2 * math.sqrt(2)
    states: dict[str, object] = {}

    def release(update: Update, client: int, server_round: int) -> Update:
        return defense.protect_update(update, generator_for("separation", client, server_round))

    for _ in range(2):
        states = defense.recorded(states)
    parts = client_parts(release, SHAPES, clients=800, rounds=2, length=10.0, seed=0)
    signed = torch.where(parts[ALL].coins, parts[ALL].scores, -parts[ALL].scores)
    # The estimate of mu from 800 clients has a standard deviation of 0.12.
    assert 2 * float(signed.mean() / signed.std()) == pytest.approx(mu, abs=0.5)
    truth = gaussian_epsilon(mu, DELTA)
    assert defense.privacy(states)["epsilon"] == pytest.approx(truth)
    assert not audited(parts, truth, DELTA, 0.95).refuted
    assert audited(parts, truth / 4, DELTA, 0.95).refuted


def test_few_clients_have_no_power_without_noise_every_coin_is_known_and_a_seed_repeats_an_audit() -> None:
    few = audit_client_dp(ClientDP(), clients=6, rounds=1)
    assert few.shown.powerless
    assert "too few canaries" in str(few.shown)
    found = audit_client_dp(ClientDP(noise_multiplier=0.0), clients=50, rounds=1)
    assert found.claimed == math.inf
    assert found.by_part[ALL][1].correct == found.by_part[ALL][1].guesses == 50
    assert not found.refuted
    first, again, other = (audit_client_dp(ClientDP(), clients=40, rounds=1, seed=seed) for seed in (3, 3, 4))
    assert first == again
    assert first.by_part != other.by_part
    # Lengths count in clipping norms.
    short = {"clients": 40, "rounds": 1, "norm": 0.5}
    assert audit_client_dp(ClientDP(max_norm=4.0), **short).by_part == audit_client_dp(ClientDP(), **short).by_part
    for wrong in ({"clients": 0}, {"rounds": 0}, {"norm": 0.0}, {"norm": math.nan}):
        with pytest.raises(ValueError, match="allowed: 1 or more of each"):
            audit_client_dp(ClientDP(), **{"clients": 10, "rounds": 1} | wrong)  # type: ignore[arg-type]
