"""Membership inference on digits: where it must work, where it must not, and what crosses the wire to the client."""

from __future__ import annotations

import copy
import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.base import Knowledge
from attacks.membership.loss_threshold import LossThreshold, Membership, confidence_of, loss_of
from attacks.membership.shadow_models import ShadowModels
from attacks.observations import AttackError
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


@cache
def attacked(seed: int, train: Trainer) -> dict[str, Membership]:
    """Both attacks on one client, whose model starts from the weights of ``seed``."""
    members, _, _, auxiliary = split(seed)
    seen = observe(network(seed), train, *members)
    shadows = ShadowModels(num_members=MEMBERS).fit(knowledge(auxiliary, train), torch.Generator().manual_seed(seed))
    return {type(a).__name__: a(seen, torch.Generator().manual_seed(0)) for a in (LossThreshold(), shadows)}


NAMES = ("LossThreshold", "ShadowModels")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_an_overfitted_model_gives_its_members_away(name, seed):
    members, others, _, _ = split(seed)
    guess = attacked(seed, overfit)[name]
    assert not guess.failure
    assert area(guess, members, others) > 0.75


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_is_at_chance_on_members_it_was_not_trained_on(name, seed):
    """100 against 400 records of one distribution: the area has a standard deviation of sqrt(501 / (12 * 40000)) = 0.032."""
    _, others, fresh, _ = split(seed)
    assert abs(area(attacked(seed, overfit)[name], fresh, others) - 0.5) < 3 * 0.032


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", [0, 1])
def test_is_near_chance_under_differential_privacy(name, seed):
    """The area is at most 0.544 (see ``clip_and_noise``), give or take three standard deviations of 0.032."""
    members, others, _, _ = split(seed)
    assert 0.5 - 3 * 0.032 < area(attacked(seed, clip_and_noise)[name], members, others) < 0.544 + 3 * 0.032


def test_shadow_models_know_whether_there_was_anything_to_learn():
    """The area on a shadow model that was held out, of 100 against 100 records: a standard deviation of 0.041 at chance."""
    for seed in (0, 1):
        assert attacked(seed, overfit)["ShadowModels"].diagnostics["shadow-auc"] > 0.75
        assert attacked(seed, clip_and_noise)["ShadowModels"].diagnostics["shadow-auc"] < 0.544 + 3 * 0.041


@pytest.mark.parametrize("name", NAMES)
def test_is_at_chance_when_the_update_is_fresh_noise(name):
    members, others, _, _ = split(0)
    seen = observe(network(0), overfit, *members)
    generator = torch.Generator().manual_seed(8)
    noise = {n: value.std() * torch.randn(value.shape, generator=generator) for n, value in seen.update.items()}
    attack = LossThreshold()
    if name == "ShadowModels":
        attack = replace(ShadowModels(), learned=attacked(0, overfit)[name].network)
    assert abs(area(attack(replace(seen, update=noise), generator), members, others) - 0.5) < 3 * 0.032
    assert area(attack(seen, generator), members, others) > 0.75


def test_the_loss_threshold_is_the_cross_entropy_of_the_local_model():
    members, _, _, _ = split(0)
    start = network(4)
    local = overfit(copy.deepcopy(start), *members)
    guess = LossThreshold()(observe(start, overfit, *members), torch.Generator())
    with torch.no_grad():
        expected = -F.cross_entropy(local(normalise(members[0])), members[1], reduction="none")
    torch.testing.assert_close(guess.scores(normalise(members[0]), members[1]).float(), expected, atol=1e-5, rtol=1e-4)


def test_losses_stay_distinct_where_probabilities_round_to_one():
    logits, classes = (
        torch.tensor([[50.0, 0.0, 0.0], [60.0, 0.0, 0.0], [0.3, 0.1, -2.0]]).double(),
        torch.zeros(3).long(),
    )
    loss = loss_of(logits, classes)
    assert loss[0] == pytest.approx(2 * torch.tensor(-50.0).double().exp().item())
    assert 0 < loss[1] < loss[0]
    p = logits[2].softmax(0)[0]
    assert float(confidence_of(logits, classes)[2]) == pytest.approx(float((p / (1 - p)).log()))
    torch.testing.assert_close(loss, F.cross_entropy(logits, classes, reduction="none"))


@pytest.mark.parametrize("name", NAMES)
def test_a_test_crosses_the_wire_as_tensors(name):
    guess, (images, classes) = attacked(0, overfit)[name], split(0)[1]
    tensors = guess.to_tensors()
    assert {key.split("/")[0] for key in tensors} == {"model"} | ({"network"} if name == "ShadowModels" else set())
    model = network(99)
    again = Membership.from_tensors(pickle.loads(pickle.dumps(tensors)), model)
    assert torch.equal(again.scores(normalise(images), classes), guess.scores(normalise(images), classes))
    untouched = network(99).state_dict()
    assert all(torch.equal(value, untouched[key]) for key, value in model.state_dict().items())


def test_tensors_that_do_not_fit_are_refused():
    tensors = attacked(0, overfit)["ShadowModels"].to_tensors()
    first = next(iter(tensors))
    lacking = {key: value for key, value in tensors.items() if key != first}
    bad = {
        "missing or unknown": [
            lacking,
            tensors | {"model/more": torch.ones(1)},
            tensors | {"network/x": torch.ones(1)},
        ],
        "shape": [tensors | {first: torch.ones(3, 3, 3)}],
        "NaN": [tensors | {first: torch.full_like(tensors[first], torch.nan)}],
        "names no part": [tensors | {"other/x": torch.ones(1)}],
        "no matrix": [{key: value for key, value in tensors.items() if key != "network/hidden.weight"}],
    }
    for message, cases in bad.items():
        for case in cases:
            with pytest.raises(AttackError, match=message):
                Membership.from_tensors(case, network(0))


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_update_fails_alone_and_scores_everyone_zero(name):
    members, others, _, _ = split(0)
    attack = LossThreshold()
    if name == "ShadowModels":
        attack = replace(ShadowModels(), learned=attacked(0, overfit)[name].network)
    good = observe(network(0), overfit, *members)
    key = "1.weight"
    broken = [
        {},
        {n: v for n, v in good.update.items() if n != key},
        good.update | {key: good.update[key].T},
        good.update | {key: good.update[key] * torch.nan},
        good.update | {key: good.update[key] / 0},
    ]
    seen = [good, *(replace(good, update=update) for update in broken)]
    guesses = attack.attack_many(seen, [torch.Generator()] * len(seen))
    assert [bool(guess.failure) for guess in guesses] == [False] + [True] * len(broken)
    for guess in guesses[1:]:
        # Equal scores for all would be an AUC of 0.5, which reads as privacy.
        with pytest.raises(AttackError, match="scores no record"):
            area(guess, members, others)
        assert guess.to_tensors() == {}
        with pytest.raises(AttackError, match="sent no test"):
            area(Membership.from_tensors({}, network(0)), members, others)
    assert Membership.from_tensors({}, network(0)).failure


def test_overflowing_logits_still_rank():
    model = network(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e30)
    for guess in (Membership(model), Membership(model, attacked(0, overfit)["ShadowModels"].network)):
        assert torch.isfinite(guess.scores(*split(0)[0])).all()


def test_shadow_models_must_be_fitted_and_repeat_themselves():
    members, others, _, auxiliary = split(0)
    seen = observe(network(0), overfit, *members)
    with pytest.raises(AttackError, match="auxiliary data"):
        ShadowModels()(seen, torch.Generator())
    small = ShadowModels(num_shadows=1, num_members=20, iterations=20)
    known = knowledge(auxiliary, overfit)
    fits = [small.fit(known, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    first, same, different = (fit(seen, torch.Generator()).scores(*others) for fit in fits)
    assert torch.equal(first, same)
    assert not torch.equal(first, different)
    assert small.learned is None
    assert repr(fits[0]) == repr(small)
    assert torch.equal(pickle.loads(pickle.dumps(fits[0]))(seen, torch.Generator()).scores(*others), first)
    with pytest.raises(AttackError, match="auxiliary examples"):
        ShadowModels(num_members=201).fit(known, torch.Generator())


@pytest.mark.parametrize("at_inference", [True, False])
def test_shadow_models_see_records_as_deployed(at_inference):
    shown: list[Tensor] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(784, 10))

        def forward(self, images: Tensor) -> Tensor:
            shown.append(images)
            return images.flatten(1) @ self.weight

    batches: list[Batch] = []

    def train(batch: Batch, seed: int) -> nn.Module:
        batches.append(batch)
        return Watching()

    auxiliary = split(0)[3]
    pipeline = Pipeline((Inverted(),) if at_inference else ())
    known = Knowledge(auxiliary, pipeline, MEAN, STD, train)
    ShadowModels(num_shadows=2, num_members=30, iterations=2).fit(known, torch.Generator().manual_seed(0))
    assert [len(batch) for batch in batches] == [30, 30]
    for batch, images in zip(batches, shown, strict=True):
        assert len(images) == 60
        # What is trained on comes as it is (training protects it itself); what is asked comes as deployed.
        asked = 1 - batch.images if at_inference else batch.images
        torch.testing.assert_close(images[:30], normalise(asked))
        rows = {tuple(image.flatten().tolist()) for image in images}
        assert len(rows) > 55  # members and non-members are different records
    assert not torch.equal(batches[0].images, batches[1].images)


@pytest.mark.parametrize(
    "bad", [{"num_shadows": 0}, {"num_members": 1}, {"hidden": 0}, {"learning_rate": 0.0}, {"weight_decay": -1}]
)
def test_bad_hyper_parameters_are_refused(bad):
    with pytest.raises(ValueError, match=next(iter(bad))):
        ShadowModels(**bad)
