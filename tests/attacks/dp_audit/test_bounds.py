"""Bounds of epsilon against another library's values, closed forms, and mechanisms whose epsilon is known; verdicts on claims."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.stats import binomtest, norm

from attacks.dp_audit.bounds import guesses_bound, one_run_bound, one_run_gaussian_bound, one_run_p_value, strongest
from attacks.dp_audit.verdict import CanaryPart, audited, bound_from_scores, right_guesses
from defenses.smashed.gaussian_mechanism import gaussian_epsilon

DELTA = 1e-5


def drawn(mu: float, count: int = 2000, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Scores N(mu / 2, 1) for a coin of 1 and N(-mu / 2, 1) for a coin of 0."""
    generator = torch.Generator().manual_seed(seed)
    coins = torch.rand(count, generator=generator) < 0.5
    return torch.randn(count, generator=generator) + mu * (coins.double() - 0.5), coins


def test_bounds_agree_with_jax_privacy() -> None:
    """jax-privacy 2.0.0: epsilon_one_run and epsilon_one_run_fdp (their sums in benchmarks/speed.py)."""
    for counts, delta, one_run, gaussian in (
        ((200, 10, 3), 1e-5, 0.0, 0.0), ((200, 100, 64), 1e-5, 0.2149794, 0.3758725),
        ((2000, 1000, 700), 1e-5, 0.7314691, 1.2231968), ((2000, 100, 100), 1e-5, 3.4376452, 5.0957642),
        ((200, 100, 87), 1e-3, 1.3012577, 1.8581777), ((2000, 100, 91), 1e-3, 0.0, 1.6406109),
    ):  # fmt: skip
        assert one_run_bound(*counts, delta=delta).epsilon == pytest.approx(one_run, abs=1e-6)
        assert one_run_gaussian_bound(*counts, delta=delta).epsilon == pytest.approx(gaussian, abs=1e-6)


def test_the_bound_of_guesses_is_that_of_an_exact_binomial_interval() -> None:
    for correct, canaries in ((60, 100), (700, 1000), (1000, 1000), (480, 1000), (0, 10)):
        found = guesses_bound(canaries, correct, delta=DELTA, confidence=0.99)
        for right, epsilon in ((correct, found.epsilon), (canaries, found.largest)):
            lowest = binomtest(right, canaries, alternative="greater").proportion_ci(0.99, "exact").low
            expected = gaussian_epsilon(2 * norm.ppf(lowest), DELTA) if lowest > 0.5 else 0
            assert epsilon == pytest.approx(expected, abs=1e-9)


def test_p_value_is_the_sum_of_its_definition_and_no_claim_below_the_bound_survives() -> None:
    canaries, guesses, correct, epsilon, delta = 50, 20, 16, 0.7, 1e-3
    law = stats.binom(guesses, 1 / (1 + math.exp(-epsilon)))
    terms = [sum(law.pmf(correct - j) for j in range(1, i + 1)) / i for i in range(1, correct + 1)]
    expected = law.sf(correct - 1) + 2 * canaries * delta * max(terms)
    assert one_run_p_value(canaries, guesses, correct, epsilon, delta) == pytest.approx(expected, rel=1e-12)
    assert one_run_p_value(canaries, guesses, 0, epsilon, delta) == 1
    # Without delta all right guesses have a closed form.
    found, right = one_run_bound(1000, 1000, 1000, delta=0), 0.05 ** (1 / 1000)
    assert found.epsilon == found.largest == pytest.approx(math.log(right / (1 - right)), abs=1e-8)
    # The search ends at the first crossing only if the bound on the probability rises with epsilon.
    for counts in ((100, 50, 40), (1000, 1000, 700), (3000, 30, 30), (5000, 500, 450)):
        found = one_run_bound(*counts, delta=DELTA)
        assert found.epsilon > 0.3
        grid = np.linspace(0, found.epsilon - 1e-6, 100)
        assert all(one_run_p_value(*counts, float(epsilon), DELTA) <= 0.05 for epsilon in grid)
        assert one_run_p_value(*counts, found.epsilon + 1e-6, DELTA) > 0.05


@pytest.mark.numeric
def test_bounds_exceed_the_truth_in_at_most_one_of_twenty_runs() -> None:
    """300 runs: 5 % is 15, and 30 is beyond 99.9 % of what a true 5 % gives. All but the last bound are far from it."""
    mu, missed, shown = 1.0, np.zeros(3, int), np.zeros(3)
    truth = gaussian_epsilon(mu, DELTA)
    for seed in range(300):
        scores, coins = drawn(mu, 500, seed)
        found = [
            bound_from_scores(scores, coins, delta=DELTA, shares=(0.4,)).epsilon,
            bound_from_scores(scores, coins, delta=DELTA, shares=(0.4,), method=one_run_gaussian_bound).epsilon,
            guesses_bound(500, int(((scores > 0) == coins).sum()), delta=DELTA).epsilon,
        ]
        missed += np.array(found) > truth
        shown += np.array(found) / 300
    assert missed.max() <= 30
    assert 0 < shown[0] < shown[1] < truth
    assert shown[0] < shown[2] < truth


def test_a_bound_states_its_power() -> None:
    few = one_run_bound(4, 4, 4, delta=DELTA)
    assert few.powerless
    assert f"could not have shown more than {few.largest:.2f}" in str(few)
    many = one_run_gaussian_bound(1000, 100, 90, delta=DELTA)
    assert not many.powerless
    assert "95 % confidence; 90 of 100 guesses right, 1000 canaries; assumes that" in str(many)
    assert 0 <= one_run_gaussian_bound(100_000, 50_000, 50_000, delta=DELTA).epsilon < 500


def test_the_strongest_of_several_bounds_pays_for_the_choice() -> None:
    bounds = [one_run_bound(1000, k, k, delta=DELTA, confidence=0.975) for k in (10, 200)]
    best = strongest(bounds, 0.95)
    assert (best.epsilon, best.confidence, best.compared) == (bounds[1].epsilon, 0.95, 2)
    scores, coins = drawn(2.0, 400)
    given = {"delta": DELTA, "confidence": 1 - 0.06 / 3}
    each = [one_run_bound(400, few, right_guesses(scores, coins, few), **given) for few in (4, 40, 200)]
    found = bound_from_scores(scores, coins, delta=DELTA, confidence=0.94)
    assert found.epsilon == pytest.approx(max(one.epsilon for one in each))
    assert (found.confidence, found.compared) == (0.94, 3)


def test_guesses_name_the_highest_and_the_lowest_scores_and_equal_ones_by_position_alone() -> None:
    scores = torch.tensor([0.1, torch.inf, -1.0, 0.5, -torch.inf])
    coins = torch.tensor([True, True, False, False, True])
    assert [right_guesses(scores, coins, count) for count in range(6)] == [0, 1, 1, 1, 2, 3]
    assert right_guesses(torch.zeros(5), coins, 5) == 3  # the first three are guessed 1, the last two 0


def test_bad_values_are_refused() -> None:
    two, coins = torch.zeros(2), torch.zeros(2).bool()
    bound = one_run_bound(10, 1, 1, delta=0)
    for call, message in (
        (lambda: one_run_bound(5, 2, 3, delta=0), "3 right of 2 guesses about 5 canaries"),
        (lambda: one_run_bound(5, 2, 1, delta=1), "delta is 1"),
        (lambda: one_run_gaussian_bound(5, 2, 1, delta=0), "delta is 0"),
        (lambda: guesses_bound(2, 1, delta=DELTA, confidence=1), "confidence is 1"),
        (lambda: one_run_p_value(5, 2, 1, -1, 0), "epsilon is -1"),
        (lambda: right_guesses(torch.tensor([math.nan]), torch.tensor([True]), 1), "NaN"),
        (lambda: right_guesses(two, two, 1), "two vectors"),
        (lambda: right_guesses(two, coins, 3), "guesses is 3"),
        (lambda: bound_from_scores(two, coins, delta=0, shares=()), "shares is"),
        (lambda: bound_from_scores(two, coins, delta=0, shares=(0.0,)), "shares is"),
        (lambda: strongest([bound] * 2, 0.95), r"wrong with probability 0\.1 together; allowed: 0\.05"),
        (lambda: strongest([bound, one_run_bound(10, 1, 1, delta=DELTA)], 0.9), "same delta"),
        (lambda: strongest([], 0.95), "0 bounds"),
    ):
        with pytest.raises(ValueError, match=message):
            call()


@pytest.mark.numeric
def test_a_claim_below_the_truth_is_refuted_by_its_part_and_the_truth_is_not() -> None:
    parts = {"leaks": CanaryPart(*drawn(1.0), centred=True), "hides": CanaryPart(*drawn(0.0, seed=1), centred=True)}
    truth = gaussian_epsilon(1.0, DELTA)
    wrong, right = (audited(parts, claim, DELTA, 0.95) for claim in (truth / 2, truth))
    assert (wrong.refuted, wrong.refuted_by, wrong.strongest[0]) == (True, ["leaks"], "leaks")
    assert (right.refuted, right.refuted_by) == (False, [])
    assert 0.6 * truth < right.shown_gaussian.epsilon < truth


def test_the_error_of_an_audit_is_divided_by_weight_directions_and_methods() -> None:
    """Against bounds that are taken one by one, each with its share of an error of 0.08, half of it for each method."""
    (scores, coins), share = drawn(2.0, 200), 0.04 / 5
    few = scores[:149], coins[:149]
    parts = {
        "centred": CanaryPart(scores, coins, centred=True, weight=3.0),
        "few": CanaryPart(*few),
        "either": CanaryPart(-scores, coins, directed=False),
    }

    def each(scores: torch.Tensor, coins: torch.Tensor, error: float, shares: tuple[float, ...]) -> list[float]:
        given = {"delta": DELTA, "confidence": 1 - error, "shares": shares}
        methods = (one_run_bound, one_run_gaussian_bound)
        return [bound_from_scores(scores, coins, method=method, **given).epsilon for method in methods]

    every, right = (0.02, 0.2, 1.0), int(((scores > 0) == coins).sum())
    guessed = guesses_bound(200, right, delta=DELTA, confidence=1 - 1.5 * share).epsilon
    expected = {
        "centred": [each(scores, coins, 3 * share, every)[0], max(each(scores, coins, 1.5 * share, every)[1], guessed)],
        "few": each(*few, share, (1.0,)),
        "either": each(scores, coins, share / 2, every),
    }
    found = audited(parts, 1.0, DELTA, 0.92)
    for name, epsilons in expected.items():
        assert [bound.epsilon for bound in found.by_part[name]] == pytest.approx(epsilons), name
        errors = [1 - bound.confidence for bound in found.by_part[name]]
        assert errors == pytest.approx([share * parts[name].weight] * 2), name
    for at, shown in enumerate((found.shown, found.shown_gaussian)):
        assert shown.confidence == 0.96
        assert shown.epsilon == pytest.approx(max(epsilons[at] for epsilons in expected.values()))
