"""The rules by which records are told apart, against their formulas written out with numpy, scipy and torch."""

import copy
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import special, stats
from torch.nn import functional as F

from attacks.membership import rules
from attacks.membership.loss_threshold import LossThreshold, Membership, confidence_of, loss_of, predict
from attacks.membership.online_rules import OnlineTest, online_scores
from attacks.membership.quantile import QuantileRegression
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
    found = [one.numpy() for one in rules.GaussianRule(*prior).prediction(*tensors(REFERENCES, outside))]
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


def test_pairwise_ratios_are_counted_as_in_the_papers_definition() -> None:
    draw = np.random.default_rng(3)
    population, theirs = draw.normal(2, 3, (6, 50)), draw.normal(2, 3, 50)

    def marginal(references: np.ndarray, record: int, outside: np.ndarray, correction: float) -> float:
        mean = np.mean([special.expit(value) for value in references[outside[:, record], record]])
        return ((1 + correction) * mean + 1 - correction) / 2

    every = np.ones((6, 50), dtype=bool)
    for correction, gamma in ((0.0, 1.0), (0.3, 2.0), (1.0, 1.0)):
        own = [special.expit(OWN[x]) / marginal(REFERENCES, x, OUTSIDE, correction) for x in range(40)]
        other = [special.expit(theirs[z]) / marginal(population, z, every, correction) for z in range(50)]
        wins = np.array([sum(one >= gamma * ratio for ratio in other) for one in own])
        rule = rules.PairwiseRule(rules.log_ratio(*tensors(theirs, population), correction), correction, gamma)
        np.testing.assert_array_equal(np.floor(scores_of(rule, OWN, REFERENCES, OUTSIDE) * 50), wins)
    # Ties are broken by the record's own ratio.
    scores = scores_of(rules.PairwiseRule(torch.full((3,), -50.0), 0.3, 1), np.array([-1.0, 0, 1]), np.zeros((2, 3)))
    assert (np.diff(scores) > 0).all()
    assert (scores >= 1).all()
    # A record on which all shadow models agree has a finite score.
    for rule in (rules.GaussianRule(0, 0, 1, 0), rules.PairwiseRule(torch.zeros(5), 0.3, 2)):
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


# ---- with shadow models that have seen the record

RECORDS = 60
INSIDE = np.stack([np.r_[np.ones(4, bool), np.zeros(4, bool)][DRAW.permutation(8)] for _ in range(RECORDS)], 1)
KNOWN = DRAW.normal(2, 3, (8, RECORDS)) + 4 * INSIDE
ASKED = DRAW.normal(4, 3, RECORDS)


def online(rule: str, inside: np.ndarray = INSIDE) -> np.ndarray:
    return online_scores(rule, *tensors(ASKED, KNOWN, inside)).numpy()


def test_online_scores_are_ratios_of_two_densities() -> None:
    expected: dict[str, list[np.ndarray]] = {"each": [], "fixed": [], "shrunk": []}
    for held in (INSIDE, ~INSIDE):
        groups = [KNOWN[held[:, record], record] for record in range(RECORDS)]
        means = [group.mean() for group in groups]
        expected["each"].append(stats.norm.logpdf(ASKED, means, [group.std() for group in groups]))
        pooled = np.sqrt(np.mean([np.var(group, ddof=1) for group in groups]))
        expected["fixed"].append(stats.norm.logpdf(ASKED, means, pooled))
        given = tensors(KNOWN, held)
        middle, scale, freedom = (
            one.numpy() for one in rules.GaussianRule(*rules.estimate_prior(*given)).prediction(*given)
        )
        expected["shrunk"].append(stats.t.logpdf(ASKED, freedom, middle, scale))
    for rule, (one, other) in expected.items():
        np.testing.assert_allclose(online(rule), one - other, rtol=1e-5)
    # The ratio is that to the mean over models with and without the record, in equal parts; also where 2 of 8 models have it.
    probabilities = special.expit(KNOWN)
    for inside in (INSIDE, INSIDE & (INSIDE.cumsum(0) <= 2)):
        halves = [(probabilities * held).sum(0) / held.sum(0) for held in (inside, ~inside)]
        np.testing.assert_allclose(online("ratio", inside), np.log(special.expit(ASKED) / np.mean(halves, axis=0)))


def test_records_are_dealt_out_evenly() -> None:
    for members, trained, models, least, most in (
        (0, 50, 8, 4, 4), (0, 40, 8, 3, 4), (30, 50, 8, 2, 3), (0, 5, 40, 2, 2), (25, 50, 8, 2, 2), (0, 75, 8, 6, 6),
    ):  # fmt: skip
        inside = OnlineTest("ratio", models, members, 3).assigned(100, trained)
        each = inside.sum(0)
        assert (int(each.min()), int(each.max())) == (least, most)
        assert inside.sum(1).tolist() == [members or trained] * models
        assert len({tuple(column) for column in inside.T.tolist()}) > 10, "not the same models for all"
        assert torch.equal(inside, OnlineTest("ratio", models, members, 3).assigned(100, trained))
        assert not torch.equal(inside, OnlineTest("ratio", models, members, 4).assigned(100, trained))


def test_too_few_shadow_models_are_refused_with_the_least_number() -> None:
    for members, records, least in ((400, 3000, 15), (24, 100, 9), (76, 100, 9), (600, 700, 14)):
        message = rf"num_shadows is 8; allowed: {least} or more.* {members} of the {records} "
        for test in (OnlineTest("ratio", 8, members, 0), OnlineTest("ratio", 8, 0, 0)):
            with pytest.raises(AttackError, match=message):
                test.assigned(records, members)
        each = OnlineTest("ratio", least, 0, 0).assigned(records, members).sum(0)
        assert 2 <= int(each.min()) <= int(each.max()) <= least - 2
    with pytest.raises(AttackError, match="two records"):
        OnlineTest("ratio", 4, 0, 0).assigned(1, 1)
    for members in (100, 101):
        with pytest.raises(AttackError, match=f"num_members is {members}; allowed: 1 to 99"):
            OnlineTest("ratio", 4, members, 0).assigned(100, 50)


def test_a_test_is_read_as_it_was_sent_and_other_numbers_are_refused() -> None:
    test = OnlineTest("shrunk", 8, 400, 2**31 - 1)
    assert OnlineTest.of(test.to_tensor()) == test
    good = test.to_tensor().tolist()
    for at, value in ((0, 4), (0, -1), (1, 3), (1, 10**6), (2, -1), (2, 2**40), (3, -1)):
        with pytest.raises(AttackError, match="no online test sends"):
            OnlineTest.of(torch.tensor([value if place == at else one for place, one in enumerate(good)]))
    for wrong in (torch.zeros(3, dtype=torch.int64), torch.zeros(4), torch.zeros(2, 2, dtype=torch.int64)):
        with pytest.raises(AttackError, match="four whole numbers"):
            OnlineTest.of(wrong)


# ---- by losses and by regression


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


def regressed(attack: QuantileRegression, images: torch.Tensor, *given: torch.Tensor) -> Sequence:
    """The rule and its loss on held-out records, from the classes and confidences of the images."""
    return attack._regress(images, *(one[None] for one in given), 2, seeded())


@pytest.mark.numeric
def test_mean_spread_and_quantiles_of_each_class_are_found() -> None:
    """Images without content: the best Gaussian of a class has the mean and the deviation of its values, in closed form."""
    middle, log_scale, values = np.random.default_rng(0).normal(0, 2, (3, 50))
    expected = -stats.norm.logpdf(values, middle, np.exp(log_scale)).mean() - np.log(2 * np.pi) / 2
    assert float(rules.gaussian_loss(*tensors(middle, log_scale, values))) == pytest.approx(expected)
    draw, classes = np.random.default_rng(1), np.arange(4000) % 2
    centers, spreads = np.array([-3.0, 5.0]), np.array([0.5, 2.0])
    values, fresh = draw.normal(centers[classes], spreads[classes], (2, 4000))
    images = torch.zeros(4000, 1, 4, 4)
    attack = QuantileRegression(iterations=600, hidden=4)
    rule, loss = regressed(attack, images, torch.from_numpy(classes), torch.from_numpy(values))
    for kind in range(2):
        low, high = rule(torch.tensor([0.0, 1.0], dtype=torch.float64), images[:2], torch.full((2,), kind)).numpy()
        spread = 1 / (high - low)
        assert spread == pytest.approx(values[classes == kind].std(), rel=0.1)
        assert -low * spread == pytest.approx(values[classes == kind].mean(), abs=0.15)
    scores = rule(torch.from_numpy(fresh), images, torch.from_numpy(classes)).numpy()
    for level in (0.5, 0.9, 0.99):
        above = (scores > stats.norm.ppf(level)).mean()
        assert above == pytest.approx(1 - level, abs=5 * np.sqrt(level * (1 - level) / 4000) + 0.01)
    assert loss == pytest.approx(0.5 + np.log(spreads / values.std(ddof=1)).mean(), abs=0.1)


def test_the_scores_are_residuals_of_the_clients_own_confidences() -> None:
    guess, (images, classes) = attacked("quantile", overfit), split()[1]
    assert guess.model is not None
    assert guess.quantile is not None
    shown = normalise(images)
    own = confidence_of(predict(guess.model, shown), classes)
    middle, log_scale = guess.quantile.expected(guess.quantile.features(shown), classes)
    center, unit = guess.quantile.unit
    expected = (own - (center + unit * middle)) / (unit * log_scale.exp())
    torch.testing.assert_close(guess.scores(shown, classes), expected.double(), rtol=1e-4, atol=1e-4)
