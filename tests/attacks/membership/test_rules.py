"""The rules of LiRA and RMIA against their formulas, written out with numpy and scipy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

from attacks.membership.priors import Prior, estimate_prior, inverse_trigamma, pooled_variance
from attacks.membership.rules import SURE, GaussianRule, PairwiseRule, log_ratio
from attacks.observations import AttackError

DRAW = np.random.default_rng(0)
REFERENCES = DRAW.normal(2, 3, (6, 40))
OWN = DRAW.normal(4, 3, 40)
OUTSIDE = DRAW.random((6, 40)) < 0.6
OUTSIDE[0] |= ~OUTSIDE.any(0)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def scores_of(rule: torch.nn.Module, *arrays: np.ndarray) -> np.ndarray:
    return np.asarray(rule(*tensors(*arrays)).numpy())


def test_each_record_alone_orders_as_the_papers_tail_probability() -> None:
    scores = scores_of(GaussianRule(0, 0, 1, 0), OWN, REFERENCES)
    tail = stats.norm.cdf(OWN, REFERENCES.mean(0), REFERENCES.std(0))
    assert stats.spearmanr(scores, tail).statistic == pytest.approx(1)
    np.testing.assert_allclose(scores * np.sqrt(7 / 6), (OWN - REFERENCES.mean(0)) / REFERENCES.std(0))


def test_a_fixed_variance_leaves_the_distance_to_the_mean() -> None:
    scores = scores_of(GaussianRule(0, 0, 4, SURE), OWN, REFERENCES)
    np.testing.assert_allclose(scores * 2 * np.sqrt(7 / 6), OWN - REFERENCES.mean(0), rtol=1e-9)


@pytest.mark.parametrize("masked", [True, False])
def test_a_prior_is_updated_by_one_shadow_model_after_the_other(masked: bool) -> None:
    """Conjugate updates by single observations, and the predictive density against numerical integration."""
    prior = Prior(1.5, 0.7, 5.0, 3.0)
    outside = OUTSIDE if masked else np.ones_like(OUTSIDE)
    found = [one.numpy() for one in GaussianRule(*prior).prediction(*tensors(REFERENCES, outside))]
    for record in range(40):
        mean, weight, variance, freedom = prior
        for value in REFERENCES[outside[:, record], record]:
            total = freedom * variance + weight / (weight + 1) * (value - mean) ** 2
            mean, weight, freedom = (weight * mean + value) / (weight + 1), weight + 1, freedom + 1
            variance = total / freedom
        expected = mean, np.sqrt(variance * (1 + 1 / weight)), freedom
        np.testing.assert_allclose([one[record] for one in found], expected)
    # The last record's prediction, integrated over its variance.
    grid = np.linspace(1e-4, 1 - 1e-4, 20001)
    variances = freedom * variance / stats.chi2.ppf(grid, freedom)
    mixed = np.trapezoid(stats.norm.pdf(7.0, mean, np.sqrt(variances * (1 + 1 / weight))), grid)
    assert stats.t.pdf(7.0, found[2][-1], found[0][-1], found[1][-1]) == pytest.approx(mixed, rel=1e-2)


def test_a_record_on_which_all_shadow_models_agree_has_a_finite_score() -> None:
    same = np.full((4, 3), 2.0)
    for rule in (GaussianRule(0, 0, 1, 0), PairwiseRule(torch.zeros(5), 0.3, 2)):
        assert np.isfinite(scores_of(rule, np.array([1.0, 2.0, 3.0]), same)).all()


@pytest.mark.parametrize("correction", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("gamma", [1.0, 2.0])
def test_pairwise_ratios_are_counted_as_in_the_papers_definition(correction: float, gamma: float) -> None:
    population, theirs = DRAW.normal(2, 3, (6, 50)), DRAW.normal(2, 3, 50)

    def marginal(references: np.ndarray, record: int, outside: np.ndarray) -> float:
        mean = np.mean([special.expit(value) for value in references[outside[:, record], record]])
        return ((1 + correction) * mean + 1 - correction) / 2

    every = np.ones((6, 50), dtype=bool)
    wins = np.array([
        [
            special.expit(OWN[x]) / marginal(REFERENCES, x, OUTSIDE)
            >= gamma * special.expit(theirs[z]) / marginal(population, z, every)
            for z in range(50)
        ]
        for x in range(40)
    ])  # fmt: skip
    rule = PairwiseRule(log_ratio(*tensors(theirs, population), correction), correction, gamma)
    scores = scores_of(rule, OWN, REFERENCES, OUTSIDE)
    np.testing.assert_array_equal(np.floor(scores * 50), wins.sum(1))


def test_ties_are_broken_by_the_records_own_ratio() -> None:
    rule = PairwiseRule(torch.full((3,), -50.0), 0.3, 1)
    own = np.array([-1.0, 0.0, 1.0])
    scores = scores_of(rule, own, np.zeros((2, 3)))
    assert (np.diff(scores) > 0).all()
    assert (scores >= 1).all()


def test_the_prior_of_many_records_is_found_again() -> None:
    """20,000 records drawn from a prior; each has its own mean and variance and is seen by two to eight models."""
    draw, count = np.random.default_rng(1), 20_000
    variances = 8.0 * 6 / draw.chisquare(6, count)
    means = draw.normal(3, np.sqrt(variances / 0.5))
    confidences = draw.normal(means, np.sqrt(variances), (8, count))
    outside = np.arange(8)[:, None] < draw.integers(2, 9, count)
    found = estimate_prior(*tensors(confidences, outside))
    assert found.variance == pytest.approx(8, rel=0.05)
    assert found.variance_weight == pytest.approx(6, rel=0.1)
    assert found.mean == pytest.approx(3, abs=0.1)
    assert found.mean_weight == pytest.approx(0.5, rel=0.1)
    assert pooled_variance(*tensors(confidences, outside)) == pytest.approx(variances.mean(), rel=0.05)


def test_records_of_one_variance_and_mean_give_a_prior_that_no_shadow_model_moves() -> None:
    confidences = torch.from_numpy(np.random.default_rng(2).normal(1, 2, (5, 4000)))
    found = estimate_prior(confidences, torch.ones(5, 4000, dtype=torch.bool))
    assert found.variance == pytest.approx(4, rel=0.05)
    assert found.variance_weight > 100
    assert found.mean_weight > 50


def test_a_prior_needs_records_outside_of_two_models() -> None:
    outside = torch.eye(3, 4).bool()
    with pytest.raises(AttackError, match="two records"):
        estimate_prior(torch.zeros(3, 4), outside)
    assert pooled_variance(torch.zeros(3, 4), outside) == 1


@pytest.mark.parametrize("value", [1e-6, 0.1, 1.0, 30.0, 1e4])
def test_trigamma_is_inverted(value: float) -> None:
    assert special.polygamma(1, inverse_trigamma(value)) == pytest.approx(value, rel=1e-6)
