"""Online rules against their formulas, written out with numpy and scipy, and the choice of records for shadow models."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import special, stats

from attacks.membership.online_rules import RULES, OnlineTest, online_scores
from attacks.membership.priors import estimate_prior
from attacks.membership.rules import GaussianRule
from attacks.observations import AttackError
from attacks.scoring.roc import auc

DRAW = np.random.default_rng(0)
RECORDS = 60
INSIDE = np.stack([np.r_[np.ones(4, bool), np.zeros(4, bool)][DRAW.permutation(8)] for _ in range(RECORDS)], 1)
REFERENCES = DRAW.normal(2, 3, (8, RECORDS)) + 4 * INSIDE
OWN = DRAW.normal(4, 3, RECORDS)


def scored(rule: str) -> np.ndarray:
    return online_scores(rule, *map(torch.from_numpy, (OWN, REFERENCES, INSIDE))).numpy()


def test_each_record_alone_has_the_papers_ratio_of_two_gaussians() -> None:
    expected = []
    for record in range(RECORDS):
        known, inside = REFERENCES[:, record], INSIDE[:, record]
        sides = [stats.norm.logpdf(OWN[record], part.mean(), part.std()) for part in (known[inside], known[~inside])]
        expected.append(sides[0] - sides[1])
    np.testing.assert_allclose(scored("each"), expected)


def test_one_variance_for_all_records_with_and_one_without() -> None:
    halves = []
    for held in (INSIDE, ~INSIDE):
        groups = [REFERENCES[held[:, record], record] for record in range(RECORDS)]
        pooled = np.sqrt(np.mean([np.var(group, ddof=1) for group in groups]))
        halves.append(stats.norm.logpdf(OWN, [group.mean() for group in groups], pooled))
    np.testing.assert_allclose(scored("fixed"), halves[0] - halves[1], rtol=1e-6)


def test_shrunk_estimates_predict_by_students_t() -> None:
    halves = []
    for held in (torch.from_numpy(INSIDE), torch.from_numpy(~INSIDE)):
        references = torch.from_numpy(REFERENCES)
        rule = GaussianRule(*estimate_prior(references, held))
        middle, scale, freedom = (one.numpy() for one in rule.prediction(references, held))
        halves.append(stats.t.logpdf(OWN, freedom, middle, scale))
    np.testing.assert_allclose(scored("shrunk"), halves[0] - halves[1], rtol=1e-5)


def test_the_ratio_is_that_to_the_mean_over_models_with_and_without_in_equal_parts() -> None:
    """Also where a record is in 2 of 8 models."""
    probabilities = special.expit(REFERENCES)
    expected = np.log(special.expit(OWN) / probabilities.mean(0))
    np.testing.assert_allclose(scored("ratio"), expected)
    inside = INSIDE & (INSIDE.cumsum(0) <= 2)
    halves = [(probabilities * held).sum(0) / held.sum(0) for held in (inside, ~inside)]
    found = online_scores("ratio", *map(torch.from_numpy, (OWN, REFERENCES, inside))).numpy()
    np.testing.assert_allclose(found, np.log(special.expit(OWN) / ((halves[0] + halves[1]) / 2)))
    assert np.abs(found - expected).max() > 0.1


@pytest.mark.parametrize("rule", RULES)
def test_who_has_seen_a_record_counts(rule: str) -> None:
    """Records whose confidence rises with membership by a known amount, and the same under shuffled membership."""
    draw, count = np.random.default_rng(1), 2000
    inside = torch.from_numpy(
        draw.permuted(np.r_[np.ones(4, bool), np.zeros(4, bool)][:, None].repeat(count, 1), axis=0)
    )
    level = draw.normal(0, 3, count)
    references = torch.from_numpy(draw.normal(level, 1, (8, count))) + 2 * inside
    members = torch.from_numpy(draw.random(count) < 0.5)
    own = torch.from_numpy(draw.normal(level, 1)) + 2 * members
    scores = online_scores(rule, own, references, inside)
    assert auc(scores[members], scores[~members]) > 0.75
    drawn = torch.from_numpy(draw.permutation(members.numpy()))
    assert abs(auc(scores[drawn], scores[~drawn]) - 0.5) < 3 / np.sqrt(6 * count / 2)


@pytest.mark.parametrize(
    ("members", "trained", "models", "least", "most"),
    [(0, 50, 8, 4, 4), (0, 40, 8, 3, 4), (30, 50, 8, 2, 3), (0, 5, 40, 2, 2), (25, 50, 8, 2, 2), (0, 75, 8, 6, 6)],
)
def test_records_are_dealt_out_evenly(members: int, trained: int, models: int, least: int, most: int) -> None:
    inside = OnlineTest("ratio", models, members, 3).assigned(100, trained)
    each = inside.sum(0)
    assert (int(each.min()), int(each.max())) == (least, most)
    assert inside.sum(1).tolist() == [members or trained] * models
    patterns = {tuple(column) for column in inside.T.tolist()}
    assert len(patterns) > 10, "not the same models for all"
    assert torch.equal(inside, OnlineTest("ratio", models, members, 3).assigned(100, trained))
    assert not torch.equal(inside, OnlineTest("ratio", models, members, 4).assigned(100, trained))


@pytest.mark.parametrize(("members", "records", "least"), [(400, 3000, 15), (24, 100, 9), (76, 100, 9), (600, 700, 14)])
def test_too_few_shadow_models_are_refused_with_the_least_number(members: int, records: int, least: int) -> None:
    for test in (OnlineTest("ratio", 8, members, 0), OnlineTest("ratio", 8, 0, 0)):
        with pytest.raises(
            AttackError, match=rf"num_shadows is 8; allowed: {least} or more.* {members} of the {records} "
        ):
            test.assigned(records, members)
    each = OnlineTest("ratio", least, 0, 0).assigned(records, members).sum(0)
    assert 2 <= int(each.min()) <= int(each.max()) <= least - 2


def test_fewer_than_two_records_and_models_of_all_records_are_refused() -> None:
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
