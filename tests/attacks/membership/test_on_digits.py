"""Membership tests on digits: where they must work, where they must not, and what crosses the wire to the client."""

import pickle
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks import LiRA, LossThreshold, ShadowModels
from attacks.base import Knowledge
from attacks.membership.likelihood import RMIA
from attacks.membership.loss_threshold import Membership
from attacks.observations import AttackError, ClientUpdate
from attacks.scoring.roc import auc
from defenses.base import Batch
from defenses.pipeline import Pipeline
from tests.attacks.membership import remembering
from tests.attacks.membership.remembering import MEMBERS, OTHERS, Trainer, network, normalise, overfit, seeded, split

SHADOWS: dict[str, Any] = {"num_shadows": 4, "num_members": MEMBERS}
ATTACKS: dict[str, Any] = {
    "threshold": LossThreshold(), "network": ShadowModels(num_members=MEMBERS),
    "each": LiRA(**SHADOWS, variance="each"), "fixed": LiRA(**SHADOWS, variance="fixed"), "shrunk": LiRA(**SHADOWS),
    "pairs": RMIA(**SHADOWS),
}  # fmt: skip
SENT = {"threshold": set(), "network": {"network"}, "pairs": {"references", "pairwise"}}
CHANCE = 4 * 0.032
"""Four standard deviations of the AUC of 100 against 400 records of one distribution, sqrt(501 / (12 * 40000)) each."""


@cache
def observed(train: Trainer) -> ClientUpdate:
    return remembering.observe(network(0), train, *split()[0])


@cache
def fitted(name: str, train: Trainer) -> Any:
    return ATTACKS[name].fit(remembering.knowledge(split()[3], train), seeded())


@cache
def attacked(name: str, train: Trainer) -> Membership:
    guess: Membership = fitted(name, train)(observed(train), seeded(1))
    return guess


@cache
def scored(name: str, train: Trainer) -> tuple[Tensor, ...]:
    """Scores of members, of others, and of records that no client has."""
    guess = attacked(name, train)
    assert not guess.failure
    images, classes = (torch.cat(part) for part in zip(*split()[:3], strict=True))
    return guess.scores(normalise(images), classes).split([MEMBERS, OTHERS, MEMBERS])


@pytest.mark.numeric
def test_an_overfitted_model_gives_its_members_away_and_nobody_else() -> None:
    for name in ATTACKS:
        members, others, fresh = scored(name, overfit)
        assert auc(members, others) > 0.65, name
        assert abs(auc(fresh, others) - 0.5) < CHANCE, name
        scores = torch.cat([members, others])[torch.randperm(MEMBERS + OTHERS, generator=seeded(3))]
        assert abs(auc(scores[:MEMBERS], scores[MEMBERS:]) - 0.5) < CHANCE, f"{name}: order gives membership away"
        if name != "threshold":
            assert attacked(name, overfit).diagnostics["shadow-auc"] > 0.65, name


def near_chance_under_privacy(name: str) -> bool:
    """The area is at most 0.544 (see ``clip_and_noise``)."""
    members, others, _ = scored(name, remembering.clip_and_noise)
    return 0.5 - CHANCE < auc(members, others) < 0.544 + CHANCE


@pytest.mark.numeric
def test_the_loss_threshold_is_near_chance_under_differential_privacy() -> None:
    assert near_chance_under_privacy("threshold")


@pytest.mark.long
@pytest.mark.numeric
def test_attacks_with_shadow_models_are_near_chance_under_differential_privacy() -> None:
    for name in ("network", "pairs", "shrunk"):
        assert near_chance_under_privacy(name), name
    # Of 100 against 100 records of a held-out shadow model: a standard deviation of 0.041.
    assert attacked("network", remembering.clip_and_noise).diagnostics["shadow-auc"] < 0.544 + 4 * 0.041


@pytest.mark.numeric
def test_is_at_chance_when_the_update_is_fresh_noise() -> None:
    (members, classes), (others, theirs), _, _ = split()
    seen, generator = observed(overfit), seeded(8)
    noise = {n: value.std() * torch.randn(value.shape, generator=generator) for n, value in seen.update.items()}
    for name in ATTACKS:
        guess = fitted(name, overfit)(replace(seen, update=noise), seeded())
        area = auc(guess.scores(normalise(members), classes), guess.scores(normalise(others), theirs))
        assert abs(area - 0.5) < CHANCE, name


def test_a_test_crosses_the_wire_as_tensors() -> None:
    images, classes = split()[1]
    for name in ATTACKS:
        guess, model = attacked(name, overfit), network(99)
        tensors = guess.to_tensors()
        assert {key.split("/")[0] for key in tensors} == {"model"} | SENT.get(name, {"references", "gaussian"}), name
        again = Membership.from_tensors(pickle.loads(pickle.dumps(tensors)), model)
        assert torch.equal(again.scores(normalise(images), classes), guess.scores(normalise(images), classes)), name
        assert again.kind == guess.kind
        untouched = network(99).state_dict()
        assert all(torch.equal(value, untouched[key]) for key, value in model.state_dict().items()), name


def test_tensors_that_do_not_fit_are_refused() -> None:
    sent = {name: attacked(name, overfit).to_tensors() for name in ("network", "shrunk", "pairs")}
    own, rule, pairs = sent.values()
    first, reference = next(iter(own)), next(key for key in rule if key.startswith("references/"))

    def without(tensors: dict[str, Tensor], beginning: str) -> dict[str, Tensor]:
        return {key: value for key, value in tensors.items() if not key.startswith(beginning)}

    one = torch.ones(1)
    for case, message in (
        (without(own, first), "missing or unknown"), (own | {first: torch.ones(3, 3, 3)}, "shape"),
        (own | {first: torch.full_like(own[first], torch.nan)}, "NaN"), (own | {"other/x": one}, "names no part"),
        (without(own, "network/hidden.weight"), "no matrix"), (without(rule, "references/"), "a rule needs references"),
        (rule | {reference: rule[reference][:2]}, "different numbers of models"),
        (rule | {"gaussian/prior": torch.full((4,), torch.inf)}, "NaN"),
        (pairs | {"pairwise/ratios": torch.zeros(2, 2)}, "no vector"),
        (pairs | {"pairwise/correction": torch.tensor(-1.0)}, "allowed: 0 to 1"),
    ):  # fmt: skip
        with pytest.raises(AttackError, match=message):
            Membership.from_tensors(case, network(0))


def test_a_broken_update_fails_alone_and_scores_no_record() -> None:
    """Equal scores for all would be an AUC of 0.5, which reads as privacy."""
    good, records = observed(overfit), split()[0]
    weight = good.update["1.weight"]
    broken = [good.update | {"1.weight": bad} for bad in (weight.T, weight * torch.nan, weight / 0)]
    seen = [good, *(replace(good, update=update) for update in ({}, *broken))]
    for name in ATTACKS:
        guesses = fitted(name, overfit).attack_many(seen, [seeded()] * len(seen))
        assert [bool(guess.failure) for guess in guesses] == [False, True, True, True, True], name
        for guess in guesses[1:]:
            assert guess.to_tensors() == {}
            with pytest.raises(AttackError, match="scores no record"):
                guess.scores(*records)
    with pytest.raises(AttackError, match="sent no test"):
        Membership.from_tensors({}, network(0)).scores(*records)


def test_records_are_asked_as_deployed_and_all_attacks_share_their_shadow_models() -> None:
    """What is trained on comes as it is, because training protects it itself; what is asked comes as deployed."""
    auxiliary, batches, shown = split()[3], list[Batch](), list[Tensor]()

    class Watching(nn.Linear):
        def forward(self, images: Tensor) -> Tensor:
            shown.append(images)
            return super().forward(images.flatten(1))

    def train(batch: Batch, seed: int) -> nn.Module:
        batches.append(batch)
        return Watching(784, 10)

    known = Knowledge(auxiliary, Pipeline((remembering.Inverted(),)), remembering.MEAN, remembering.STD, train)
    ShadowModels(num_shadows=2, num_members=30, iterations=2).fit(known, seeded())
    for batch, images in zip(batches, shown, strict=True):
        torch.testing.assert_close(images[:30], normalise(1 - batch.images))
        assert len({tuple(image.flatten().tolist()) for image in images}) > 55, "members and others differ"
    shown.clear()
    RMIA(num_shadows=2, num_members=30).fit(known, seeded())
    assert [len(batch) for batch in batches] == [30] * 4
    assert not torch.equal(batches[0].images, batches[1].images)
    assert all(torch.equal(batches[at].images, batches[at + 2].images) for at in range(2))
    torch.testing.assert_close(torch.cat(shown), normalise(1 - auxiliary.images).repeat(2, 1, 1, 1))


def test_knowledge_that_is_not_enough_and_settings_out_of_range_are_refused() -> None:
    known = remembering.knowledge(split()[3], overfit)
    with pytest.raises(AttackError, match="auxiliary examples"):
        RMIA(num_members=201).fit(known, seeded())
    with pytest.raises(ValueError, match="num_shadows is 1"):  # a variance of each record needs two
        LiRA(num_shadows=1)
    assert LiRA(num_shadows=1, variance="fixed").num_shadows == 1
