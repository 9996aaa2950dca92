"""OnlineLiRA and OnlineRMIA on digits: where they must work, where they must not, and what crosses the wire."""

from __future__ import annotations

import pickle
from functools import cache

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks.membership.loss_threshold import ONLINE, Membership
from attacks.membership.online import OnlineAttack, OnlineLiRA, OnlineRMIA
from attacks.observations import AttackError
from attacks.scoring.roc import auc
from defenses.base import Batch
from tests.attacks.membership.remembering import (
    MEMBERS,
    OTHERS,
    Trainer,
    clip_and_noise,
    network,
    normalise,
    observe,
    overfit,
    split,
)

ATTACKS: dict[str, OnlineAttack] = {
    "each": OnlineLiRA(num_shadows=12, variance="each"),
    "fixed": OnlineLiRA(num_shadows=12, variance="fixed"),
    "shrunk": OnlineLiRA(num_shadows=12),
    "ratio": OnlineRMIA(num_shadows=12),
    "large": OnlineLiRA(num_shadows=4, num_members=300),
}
DEVIATION = 0.032
"""Standard deviation of the AUC of 100 against 400 records of one distribution."""


def candidates() -> Batch:
    """Members, non-members, and records that no client has."""
    images, classes = (torch.cat(part) for part in zip(*split(0)[:3], strict=True))
    return Batch(images, F.one_hot(classes, 10).float())


@cache
def attacked(name: str, train: Trainer) -> Membership:
    return ATTACKS[name](observe(network(0), train, *split(0)[0]), torch.Generator().manual_seed(1))


@cache
def scored(name: str, train: Trainer) -> tuple[Tensor, ...]:
    """Scores of members, of others, and of records that no client has."""

    def trained(batch: Batch, seed: int) -> nn.Module:
        return train(network(seed % 1000), batch.images, batch.targets.argmax(1))

    plain = candidates()
    return (
        attacked(name, train)
        .scores_among(plain, normalise(plain.images), trained, MEMBERS)
        .split([MEMBERS, OTHERS, MEMBERS])
    )


@pytest.mark.parametrize("name", ATTACKS)
def test_an_overfitted_model_gives_its_members_away(name: str) -> None:
    members, others, fresh = scored(name, overfit)
    assert auc(members, others) > 0.7
    assert abs(auc(fresh, others) - 0.5) < 3 * DEVIATION


def test_is_near_chance_under_differential_privacy() -> None:
    """The area is at most 0.544 (see ``clip_and_noise``), give or take three standard deviations."""
    members, others, _ = scored("shrunk", clip_and_noise)
    assert 0.5 - 3 * DEVIATION < auc(members, others) < 0.544 + 3 * DEVIATION


def test_shadow_models_train_on_the_records_in_question_and_on_nothing_else() -> None:
    plain, batches = candidates(), list[Batch]()

    def train(batch: Batch, seed: int) -> nn.Module:
        batches.append(batch)
        return network(seed % 1000)

    attacked("shrunk", overfit).scores_among(plain, normalise(plain.images), train, MEMBERS)
    assert [len(one) for one in batches] == [MEMBERS] * 12, "as many as the client's model"
    known = {image.numpy().tobytes() for image in plain.images}
    seen = [{image.numpy().tobytes() for image in batch.images} for batch in batches]
    assert set.union(*seen) == known


def test_a_test_crosses_the_wire_without_records_or_shadow_models() -> None:
    guess = attacked("shrunk", overfit)
    tensors = guess.to_tensors()
    assert {key.split("/")[0] for key in tensors} == {"model", "online"}
    again = Membership.from_tensors(pickle.loads(pickle.dumps(tensors)), network(99))
    assert again.online == guess.online
    assert again.kind == "online shrunk"
    with pytest.raises(AttackError, match="no online test"):
        Membership.from_tensors(tensors | {ONLINE: torch.tensor([9, 8, 0, 0])}, network(99))


def test_scores_of_single_records_are_refused_and_a_failed_test_scores_none() -> None:
    images, classes = split(0)[0]
    with pytest.raises(AttackError, match="scores_among"):
        attacked("ratio", overfit).scores(normalise(images), classes)
    with pytest.raises(AttackError, match="scores no record"):
        Membership(None, failure="no").scores_among(candidates(), images, lambda batch, seed: network(0), 1)


def test_is_an_upper_bound_and_needs_models_with_and_without_a_record() -> None:
    pool = "shadow models train on the client's members and the scored non-members"
    assert OnlineLiRA().upper_bound == OnlineRMIA(num_members=400).upper_bound == pool
    assert not OnlineLiRA().needs_auxiliary
    with pytest.raises(ValueError, match="num_shadows is 3"):
        OnlineLiRA(num_shadows=3)
    with pytest.raises(ValueError, match="variance"):
        OnlineLiRA(variance="ratio")
