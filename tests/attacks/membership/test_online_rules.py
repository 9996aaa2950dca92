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


def test_the_ratio_is_that_to_the_mean_over_all_shadow_models() -> None:
    expected = np.log(special.expit(OWN) / special.expit(REFERENCES).mean(0))
    np.testing.assert_allclose(scored("ratio"), expected)


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
    ("members", "models", "least", "most"), [(0, 8, 4, 4), (30, 8, 2, 3), (5, 8, 2, 2), (75, 8, 6, 6)]
)
def test_records_are_dealt_out_evenly(members: int, models: int, least: int, most: int) -> None:
    inside = OnlineTest("ratio", models, members, 3).assigned(100)
    each, sizes = inside.sum(0), inside.sum(1)
    assert (int(each.min()), int(each.max())) == (least, most)
    assert int(sizes.max() - sizes.min()) <= 1
    if members == 30:
        assert float(sizes.double().mean()) == pytest.approx(30, abs=2)
    patterns = {tuple(column) for column in inside.T.tolist()}
    assert len(patterns) > 10, "not the same models for all"
    assert torch.equal(inside, OnlineTest("ratio", models, members, 3).assigned(100))
    assert not torch.equal(inside, OnlineTest("ratio", models, members, 4).assigned(100))


def test_fewer_than_two_records_are_refused() -> None:
    with pytest.raises(AttackError, match="two records"):
        OnlineTest("ratio", 4, 0, 0).assigned(1)


@pytest.mark.parametrize("members", [76, 10**6])
def test_more_training_records_than_a_shadow_model_can_have_are_refused(members: int) -> None:
    with pytest.raises(
        AttackError, match=f"num_members is {members}, and 100 records are in question; allowed: at most 75"
    ):
        OnlineTest("ratio", 8, members, 0).assigned(100)


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
