"""QuantileRegression: its loss and quantiles against closed forms, and on digits where it must work and where it must not."""

from __future__ import annotations

import pickle
from functools import cache

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from attacks.base import Knowledge
from attacks.membership.loss_threshold import Membership, confidence_of, predict
from attacks.membership.quantile import QuantileRegression
from attacks.membership.rules import QuantileRule, gaussian_loss
from attacks.observations import AttackError
from attacks.scoring.roc import auc
from defenses.base import Batch
from defenses.pipeline import Pipeline
from tests.attacks.membership.remembering import (
    MEAN,
    MEMBERS,
    STD,
    Inverted,
    Trainer,
    area,
    clip_and_noise,
    knowledge,
    network,
    normalise,
    observe,
    overfit,
    split,
)

DEVIATION = 0.032
"""Standard deviation of the AUC of 100 against 400 records of one distribution."""


def test_the_loss_is_that_of_a_gaussian() -> None:
    draw = np.random.default_rng(0)
    middle, log_scale, values = draw.normal(0, 2, (3, 50))
    expected = -stats.norm.logpdf(values, middle, np.exp(log_scale)).mean() - np.log(2 * np.pi) / 2
    assert float(gaussian_loss(*map(torch.from_numpy, (middle, log_scale, values)))) == pytest.approx(expected)


def regressed(
    attack: QuantileRegression, images: Tensor, classes: Tensor, values: Tensor
) -> tuple[QuantileRule, float]:
    return attack._regress(images, classes[None], values[None], 2, torch.Generator().manual_seed(0))


def test_mean_spread_and_quantiles_of_each_class_are_found() -> None:
    """Images without content: the best Gaussian of a class has the mean and the deviation of its values, in closed form."""
    draw = np.random.default_rng(1)
    classes = np.arange(4000) % 2
    centers, spreads = np.array([-3.0, 5.0]), np.array([0.5, 2.0])
    values, fresh = draw.normal(centers[classes], spreads[classes], (2, 4000))
    images = torch.zeros(4000, 1, 4, 4)
    attack = QuantileRegression(iterations=600, hidden=4)
    rule, loss = regressed(attack, images, torch.from_numpy(classes), torch.from_numpy(values))
    for kind in range(2):
        of = torch.full((2,), kind)
        low, high = rule(torch.tensor([0.0, 1.0], dtype=torch.float64), images[:2], of).numpy()
        spread = 1 / (high - low)
        assert spread == pytest.approx(values[classes == kind].std(), rel=0.1)
        assert -low * spread == pytest.approx(values[classes == kind].mean(), abs=0.15)
    scores = rule(torch.from_numpy(fresh), images, torch.from_numpy(classes)).numpy()
    for level in (0.5, 0.9, 0.99):
        above = (scores > stats.norm.ppf(level)).mean()
        assert above == pytest.approx(1 - level, abs=5 * np.sqrt(level * (1 - level) / 4000) + 0.005)
    unit = values.std(ddof=1)
    assert loss == pytest.approx(0.5 + np.log(spreads / unit).mean(), abs=0.1)


def test_the_image_is_read() -> None:
    draw = np.random.default_rng(2)
    light = torch.from_numpy(draw.random(2000))
    images = light.float().reshape(-1, 1, 1, 1).expand(-1, 1, 4, 4)
    values = 6 * light + torch.from_numpy(draw.normal(0, 0.3, 2000))
    classes = torch.zeros(2000, dtype=torch.long)
    rule, _ = regressed(QuantileRegression(), images, classes, values)
    scores = rule(values, images, classes)
    assert abs(float(np.corrcoef(scores, light)[0, 1])) < 0.2
    assert float(np.corrcoef(values, light)[0, 1]) > 0.9


@pytest.mark.parametrize("seed", range(3))
def test_confidences_that_nothing_predicts_leave_one_gaussian(seed: int) -> None:
    """Where the record says nothing, held-out records keep the network from pretending that it does."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(300, 1, 8, 8, generator=generator)
    classes = torch.zeros(300, dtype=torch.long)
    values = torch.randn(300, generator=generator, dtype=torch.float64)
    rule, loss = regressed(QuantileRegression(), images, classes, values)
    assert loss <= 0.5 + 3 * 0.7 / np.sqrt(60)
    middle, _ = rule.expected(rule.features(images), classes)
    assert float(middle.std()) < 0.5


@cache
def attacked(train: Trainer, relabelled: int = 5) -> Membership:
    members, _, _, auxiliary = split(0)
    known = knowledge(auxiliary, train)
    attack = QuantileRegression(relabelled=relabelled).fit(known, torch.Generator().manual_seed(0))
    return attack(observe(network(0), train, *members), torch.Generator().manual_seed(0))


@pytest.mark.parametrize("relabelled", [0, 5])
def test_an_overfitted_model_gives_its_members_away(relabelled: int) -> None:
    members, others, fresh, _ = split(0)
    guess = attacked(overfit, relabelled)
    assert not guess.failure
    assert area(guess, members, others) > 0.65
    assert abs(area(guess, fresh, others) - 0.5) < 3 * DEVIATION


def test_is_near_chance_under_differential_privacy() -> None:
    members, others, _, _ = split(0)
    found = area(attacked(clip_and_noise), members, others)
    assert 0.5 - 3 * DEVIATION < found < 0.544 + 3 * DEVIATION


def test_is_at_chance_on_members_that_are_drawn_at_random() -> None:
    members, others, _, _ = split(0)
    guess = attacked(overfit)
    scores = torch.cat([guess.scores(normalise(images), classes) for images, classes in (members, others)])
    drawn = torch.randperm(len(scores), generator=torch.Generator().manual_seed(3))
    assert abs(auc(scores[drawn[:MEMBERS]], scores[drawn[MEMBERS:]]) - 0.5) < 3 * DEVIATION


def test_a_test_crosses_the_wire_and_what_does_not_fit_is_refused() -> None:
    guess, (images, classes) = attacked(overfit), split(0)[1]
    tensors = guess.to_tensors()
    assert {key.split("/")[0] for key in tensors} == {"model", "quantile"}
    again = Membership.from_tensors(pickle.loads(pickle.dumps(tensors)), network(99))
    assert again.kind == "quantile"
    assert torch.equal(again.scores(normalise(images), classes), guess.scores(normalise(images), classes))
    bad: dict[str, dict[str, Tensor]] = {
        "is no matrix": tensors | {"quantile/out.weight": torch.zeros(3)},
        "missing or is no matrix": {key: one for key, one in tensors.items() if key != "quantile/hidden.weight"},
        "missing or unknown": {key: one for key, one in tensors.items() if key != "quantile/unit"},
        "quantile/side": tensors | {"quantile/side": torch.tensor([0.0])},
        "NaN": tensors | {"quantile/unit": torch.full((2,), torch.nan)},
    }
    for message, case in bad.items():
        with pytest.raises(AttackError, match=message):
            Membership.from_tensors(case, network(0))
    smaller = tensors | {"quantile/side": torch.tensor([3.0])}
    with pytest.raises(AttackError, match="other images"):
        Membership.from_tensors(smaller, network(0)).scores(normalise(images), classes)


def test_the_scores_are_residuals_of_the_clients_own_confidences() -> None:
    guess, (images, classes) = attacked(overfit), split(0)[1]
    assert guess.model is not None
    assert guess.quantile is not None
    shown = normalise(images)
    own = confidence_of(predict(guess.model, shown), classes)
    middle, log_scale = guess.quantile.expected(guess.quantile.features(shown), classes)
    center, unit = guess.quantile.unit
    expected = (own - (center + unit * middle)) / (unit * log_scale.exp())
    torch.testing.assert_close(guess.scores(shown, classes), expected.double(), rtol=1e-4, atol=1e-4)


def test_sees_records_as_deployed_and_needs_enough_of_them() -> None:
    members, _, _, auxiliary = split(0)
    known = knowledge(auxiliary, overfit, Pipeline((Inverted(),)))
    fitted = QuantileRegression().fit(known, torch.Generator().manual_seed(0))
    assert fitted.learned is not None
    torch.testing.assert_close(fitted.learned.images, normalise(1 - auxiliary.images))
    few = Knowledge(Batch(auxiliary.images[:9], auxiliary.targets[:9]), Pipeline(), MEAN, STD, known.train)
    with pytest.raises(AttackError, match="10 auxiliary examples"):
        QuantileRegression().fit(few, torch.Generator())
    with pytest.raises(ValueError, match="side is 4097; allowed: a whole number from 1 to 4096"):
        QuantileRegression(side=4097)  # which clients would refuse after training
    with pytest.raises(AttackError, match="auxiliary data"):
        QuantileRegression()(observe(network(0), overfit, *members), torch.Generator())
