"""Verdicts on claims: bounds of a known mechanism, errors that add up, and a rule for either direction."""

from __future__ import annotations

import pytest
import torch
from scipy.stats import binomtest, norm

from attacks.dp_audit.gaussian_bounds import gaussian_bound, guesses_bound
from attacks.dp_audit.verdict import CanaryPart, audited
from defenses.smashed.gaussian_mechanism import gaussian_epsilon

DELTA = 1e-5


def drawn(mu: float, count: int = 2000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores N(mu / 2, 1) for a coin of 1 and N(-mu / 2, 1) for a coin of 0."""
    generator = torch.Generator().manual_seed(seed)
    coins = torch.rand(count, generator=generator) < 0.5
    scores = torch.randn(count, generator=generator) + mu * (coins.double() - 0.5)
    return scores, coins


@pytest.mark.parametrize(("correct", "canaries"), [(60, 100), (700, 1000), (1000, 1000), (480, 1000)])
def test_the_bound_of_guesses_is_that_of_an_exact_binomial_interval(correct: int, canaries: int) -> None:
    found = guesses_bound(canaries, correct, delta=DELTA, confidence=0.99)
    lowest = binomtest(correct, canaries, alternative="greater").proportion_ci(0.99, "exact").low
    expected = gaussian_epsilon(max(0.0, 2 * norm.ppf(lowest)), DELTA)
    assert found.epsilon == pytest.approx(expected, abs=1e-9)
    assert found.epsilon <= found.largest


def test_the_bound_of_guesses_is_tighter_than_that_of_two_rates_and_below_the_truth() -> None:
    for seed in range(5):
        scores, coins = drawn(1.0, seed=seed)
        above = scores > 0
        rates = [int(one.sum()) for one in (above & coins, coins, above & ~coins, ~coins)]
        found = guesses_bound(len(coins), int((above == coins).sum()), delta=DELTA)
        assert gaussian_bound(*rates, delta=DELTA).epsilon < found.epsilon < gaussian_epsilon(1.0, DELTA)


def test_a_claim_below_the_truth_is_refuted_by_its_part_and_the_truth_is_not() -> None:
    parts = {"leaks": CanaryPart(*drawn(1.0), centred=True), "hides": CanaryPart(*drawn(0.0, seed=1), centred=True)}
    truth = gaussian_epsilon(1.0, DELTA)
    wrong = audited(parts, truth / 2, DELTA, 0.95)
    assert wrong.refuted
    assert wrong.refuted_by == ["leaks"]
    assert wrong.strongest[0] == "leaks"
    right = audited(parts, truth, DELTA, 0.95)
    assert not right.refuted
    assert right.refuted_by == []
    assert right.shown.confidence == pytest.approx(0.975)
    assert 0.6 * truth < right.shown_gaussian.epsilon < truth


def test_a_part_of_unknown_direction_is_read_both_ways_at_a_price() -> None:
    scores, coins = drawn(4.0, 200)
    directed, either, turned = (
        audited({"one": part}, 1.0, DELTA, 0.95).shown.epsilon
        for part in (
            CanaryPart(scores, coins),
            CanaryPart(scores, coins, directed=False),
            CanaryPart(-scores, coins, directed=False),
        )
    )
    assert 1.0 < either < directed
    assert turned == either


def test_weight_moves_the_error_to_a_part() -> None:
    scores, coins = drawn(1.0)
    many = {f"other {at}": CanaryPart(*drawn(0.0, 100, at)) for at in range(9)}
    light, heavy = (
        audited({"one": CanaryPart(scores, coins, centred=True, weight=weight), **many}, 1.0, DELTA, 0.95).by_part[
            "one"
        ]
        for weight in (1.0, 9.0)
    )
    assert light[1].epsilon < heavy[1].epsilon
    assert light[1].confidence > heavy[1].confidence
