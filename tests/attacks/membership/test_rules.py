"""The rules by which records are told apart, against their formulas written out with numpy, scipy and torch."""

import copy

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch.nn import functional as F

from attacks.membership import rules
from attacks.membership.loss_threshold import LossThreshold, Membership, confidence_of, loss_of
from attacks.observations import AttackError
from tests.attacks.membership.remembering import network, normalise, observe, overfit, seeded, split
from tests.attacks.membership.test_on_digits import attacked

DRAW = np.random.default_rng(0)
REFERENCES = DRAW.normal(2, 3, (6, 40))
OWN = DRAW.normal(4, 3, 40)
OUTSIDE = DRAW.random((6, 40)) < 0.6
OUTSIDE[0] |= ~OUTSIDE.any(0)


def tensors(*arrays: np.ndarray) -> list[torch.Tensor]:
    return [torch.from_numpy(array) for array in arrays]


def scores_of(rule: torch.nn.Module, *arrays: np.ndarray) -> np.ndarray:
    return np.asarray(rule(*tensors(*arrays)).numpy())


def test_each_record_alone_orders_as_the_papers_tail_probability_and_a_fixed_variance_leaves_the_distance() -> None:
    scores = scores_of(rules.GaussianRule(0, 0, 1, 0), OWN, REFERENCES)
    tail = stats.norm.cdf(OWN, REFERENCES.mean(0), REFERENCES.std(0))
    assert stats.spearmanr(scores, tail).statistic == pytest.approx(1)
    np.testing.assert_allclose(scores * np.sqrt(7 / 6), (OWN - REFERENCES.mean(0)) / REFERENCES.std(0))

    scores = scores_of(rules.GaussianRule(0, 0, 4, rules.SURE), OWN, REFERENCES)
    np.testing.assert_allclose(scores * 2 * np.sqrt(7 / 6), OWN - REFERENCES.mean(0), rtol=1e-9)


def test_a_prior_is_updated_by_one_shadow_model_after_the_other() -> None:
    prior, outside = rules.Prior(1.5, 0.7, 5.0, 3.0), OUTSIDE
    # The score is linear in the record's own confidence: two of them give middle and scale.
    two = [scores_of(rules.GaussianRule(*prior), np.full(40, own), REFERENCES, outside) for own in (0.0, 1.0)]
    scale = 1 / (two[1] - two[0])
    found = [-two[0] * scale, scale]
    for record in range(40):
        mean, weight, variance, freedom = prior
        for value in REFERENCES[outside[:, record], record]:
            total = freedom * variance + weight / (weight + 1) * (value - mean) ** 2
            mean, weight, freedom = (weight * mean + value) / (weight + 1), weight + 1, freedom + 1
            variance = total / freedom
        expected = mean, np.sqrt(variance * (1 + 1 / weight))
        np.testing.assert_allclose([one[record] for one in found], expected)
    # The last record's prediction, integrated over its variance.
    grid = np.linspace(1e-4, 1 - 1e-4, 20001)
    variances = freedom * variance / stats.chi2.ppf(grid, freedom)
    mixed = np.trapezoid(stats.norm.pdf(7.0, mean, np.sqrt(variances * (1 + 1 / weight))), grid)
    assert stats.t.pdf(7.0, freedom, found[0][-1], found[1][-1]) == pytest.approx(mixed, rel=1e-2)


def test_pairwise_ratios_are_counted_as_in_the_papers_definition() -> None:
    draw = np.random.default_rng(3)
    population, theirs = draw.normal(2, 3, (6, 50)), draw.normal(2, 3, 50)

    def marginal(references: np.ndarray, record: int, outside: np.ndarray, correction: float) -> float:
        mean = np.mean([special.expit(value) for value in references[outside[:, record], record]])
        return ((1 + correction) * mean + 1 - correction) / 2

    every = np.ones((6, 50), dtype=bool)
    for correction in (0.0, 0.3, 1.0):
        own = [special.expit(OWN[x]) / marginal(REFERENCES, x, OUTSIDE, correction) for x in range(40)]
        other = [special.expit(theirs[z]) / marginal(population, z, every, correction) for z in range(50)]
        wins = np.array([sum(one >= rules.GAMMA * ratio for ratio in other) for one in own])
        rule = rules.PairwiseRule(rules.log_ratio(*tensors(theirs, population), correction), correction)
        np.testing.assert_array_equal(np.floor(scores_of(rule, OWN, REFERENCES, OUTSIDE) * 50), wins)
    # Ties are broken by the record's own ratio.
    scores = scores_of(rules.PairwiseRule(torch.full((3,), -50.0), 0.3), np.array([-1.0, 0, 1]), np.zeros((2, 3)))
    assert (np.diff(scores) > 0).all()
    assert (scores >= 1).all()
    # A record on which all shadow models agree has a finite score.
    for rule in (rules.GaussianRule(0, 0, 1, 0), rules.PairwiseRule(torch.zeros(5), 0.3)):
        assert np.isfinite(scores_of(rule, np.array([1.0, 2.0, 3.0]), np.full((4, 3), 2.0))).all()


@pytest.mark.numeric
def test_the_prior_of_many_records_is_found_again() -> None:
    """20,000 records drawn from a prior; each has its own mean and variance and is seen by two to eight models."""
    draw, count = np.random.default_rng(1), 20_000
    variances = 8.0 * 6 / draw.chisquare(6, count)
    means = draw.normal(3, np.sqrt(variances / 0.5))
    confidences = draw.normal(means, np.sqrt(variances), (8, count))
    outside = np.arange(8)[:, None] < draw.integers(2, 9, count)
    found = rules.estimate_prior(*tensors(confidences, outside))
    assert found.variance == pytest.approx(8, rel=0.05)
    assert found.variance_weight == pytest.approx(6, rel=0.1)
    assert found.mean == pytest.approx(3, abs=0.1)
    assert found.mean_weight == pytest.approx(0.5, rel=0.1)
    assert rules.pooled_variance(*tensors(confidences, outside)) == pytest.approx(variances.mean(), rel=0.05)
    # Records of one variance and mean give a prior that no shadow model moves.
    same = torch.from_numpy(draw.normal(1, 2, (5, 4000)))
    found = rules.estimate_prior(same, torch.ones(5, 4000, dtype=torch.bool))
    assert found.variance == pytest.approx(4, rel=0.05)
    assert found.variance_weight > 50
    assert found.mean_weight > 50
    for value in (1e-6, 0.1, 1.0, 30.0, 1e4):
        assert special.polygamma(1, rules.inverse_trigamma(value)) == pytest.approx(value, rel=1e-6)
    outside = torch.eye(3, 4).bool()
    with pytest.raises(AttackError, match="two records"):
        rules.estimate_prior(torch.zeros(3, 4), outside)
    assert rules.pooled_variance(torch.zeros(3, 4), outside) == 1


def test_the_loss_threshold_is_the_cross_entropy_of_the_local_model() -> None:
    (images, classes), start = split()[0], network(4)
    local, shown = overfit(copy.deepcopy(start), images, classes), normalise(images)
    guess = LossThreshold()(observe(start, overfit, images, classes), seeded())
    expected = -F.cross_entropy(local(shown), classes, reduction="none").detach()
    torch.testing.assert_close(guess.scores(shown, classes).float(), expected, atol=1e-5, rtol=1e-4)


def test_losses_stay_distinct_where_probabilities_round_to_one() -> None:
    logits = torch.tensor([[50.0, 0.0, 0.0], [60.0, 0.0, 0.0], [0.3, 0.1, -2.0]]).double()
    classes = torch.zeros(3).long()
    loss = loss_of(logits, classes)
    assert loss[0] == pytest.approx(2 * torch.tensor(-50.0).double().exp().item())
    assert 0 < loss[1] < loss[0]
    p = logits[2].softmax(0)[0]
    assert float(confidence_of(logits, classes)[2]) == pytest.approx(float((p / (1 - p)).log()))
    torch.testing.assert_close(loss, F.cross_entropy(logits, classes, reduction="none"))


def test_overflowing_logits_still_rank() -> None:
    model = network(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e30)
    for guess in (Membership(model), Membership(model, attacked("network", overfit).network)):
        assert torch.isfinite(guess.scores(*split()[0])).all()
