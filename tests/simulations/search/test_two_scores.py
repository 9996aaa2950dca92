"""The rank correlation of both privacy scores, against closed forms and its own sampling distribution."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from simulations.search.folder import CANDIDATE, Scored
from simulations.search.scorer import Scores
from simulations.search.settings import Search
from simulations.search.two_scores import TwoScores, rank_correlation


def test_scores_of_one_order_agree_fully_and_of_opposite_orders_not_at_all() -> None:
    rising = [0.1, 0.2, 0.4, 0.8, 1.6]
    alike, opposite = rank_correlation(rising, [x**3 for x in rising]), rank_correlation(rising, [-x for x in rising])
    assert alike is not None
    assert opposite is not None
    assert (alike.value, alike.low, alike.high, alike.n) == pytest.approx((1, 1, 1, 5))
    assert (opposite.value, opposite.low, opposite.high) == pytest.approx((-1, -1, -1))


def test_ranks_that_say_nothing_are_not_compared() -> None:
    for first, second in (([0.1, 0.2], [0.3, 0.1]), ([0.1] * 9, list(range(9))), ([], [])):
        assert rank_correlation(first, second) is None


@pytest.mark.numeric
@pytest.mark.long
def test_the_interval_holds_the_truth_in_about_the_share_of_cases_that_it_claims() -> None:
    """Of a bivariate normal distribution, whose rank correlation is 6 / pi * arcsin(rho / 2)."""
    generator, rho, held, trials = np.random.default_rng(1), 0.5, 0, 200
    truth = 6 / np.pi * np.arcsin(rho / 2)
    for _ in range(trials):
        first, second = generator.multivariate_normal((0, 0), ((1, rho), (rho, 1)), 60).T
        found = rank_correlation(first.tolist(), second.tolist())
        assert found is not None
        assert found.value == pytest.approx(spearmanr(first, second).statistic)
        held += found.low <= truth <= found.high
    # 95 % of 200 is 190; below 176 a true share of 0.92 would fall in one case of a hundred.
    assert held >= 176


def candidate(index: int, privacy: float | None, other: float | None) -> Scored:
    return Scored(CANDIDATE, (index,), Scores(-1.0, privacy, other, (0.5,) if privacy else ()))


def test_policies_without_privacy_scores_do_not_count_and_the_other_choice_shares_no_transform() -> None:
    known = [candidate(1, 0.1, 0.9), candidate(2, 0.2, 0.8), candidate(3, 0.3, 0.7), candidate(4, 0.4, 0.6)]
    two = TwoScores.of([*known, candidate(5, None, None)], known[:3], "1+2", 3, Search(policies=2))
    assert len(two.scored) == 4
    assert two.agreement is not None
    assert (two.agreement.value, two.agreement.n) == (pytest.approx(-1), 4)
    assert two.by_other == "3+2"
    assert "would have chosen 3+2." in two.verdict
    assert TwoScores.of(known, known, "4+3", 3, Search(policies=2)).verdict.endswith(
        "would have chosen the same policies."
    )
