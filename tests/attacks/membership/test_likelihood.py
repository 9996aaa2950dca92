"""LiRA and RMIA on digits: where they must work, where they must not, and what crosses the wire to the client."""

from __future__ import annotations

import pickle
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attacks.base import Knowledge
from attacks.membership.likelihood import LikelihoodAttack
from attacks.membership.lira import LiRA
from attacks.membership.loss_threshold import Membership
from attacks.membership.rmia import CORRECTIONS, RMIA
from attacks.membership.shadow_models import ShadowModels
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

ATTACKS: dict[str, LikelihoodAttack] = {
    "each": LiRA(num_shadows=4, num_members=MEMBERS, variance="each"),
    "fixed": LiRA(num_shadows=4, num_members=MEMBERS, variance="fixed"),
    "shrunk": LiRA(num_shadows=4, num_members=MEMBERS),
    "rmia": RMIA(num_shadows=4, num_members=MEMBERS),
}
NAMES = tuple(ATTACKS)
DEVIATION = 0.032
"""Standard deviation of the AUC of 100 against 400 records of one distribution."""


@cache
def fitted(name: str, seed: int, train: Trainer) -> LikelihoodAttack:
    return ATTACKS[name].fit(knowledge(split(seed)[3], train), torch.Generator().manual_seed(seed))


@cache
def attacked(name: str, seed: int, train: Trainer) -> Membership:
    seen = observe(network(seed), train, *split(seed)[0])
    return fitted(name, seed, train)(seen, torch.Generator())


@pytest.mark.parametrize("name", NAMES)
def test_an_overfitted_model_gives_its_members_away(name: str) -> None:
    members, others, _, _ = split(0)
    guess = attacked(name, 0, overfit)
    assert not guess.failure
    assert area(guess, members, others) > 0.7
    assert guess.diagnostics["shadow-auc"] > 0.7


@pytest.mark.parametrize("name", NAMES)
def test_is_at_chance_on_records_that_no_model_was_trained_on(name: str) -> None:
    _, others, fresh, _ = split(0)
    assert abs(area(attacked(name, 0, overfit), fresh, others) - 0.5) < 3 * DEVIATION


@pytest.mark.parametrize("name", NAMES)
def test_is_at_chance_on_members_that_are_drawn_at_random(name: str) -> None:
    """The same scores, with membership shuffled: nothing in the order of the records gives it away."""
    members, others, _, _ = split(0)
    guess = attacked(name, 0, overfit)
    scores = torch.cat([guess.scores(normalise(images), classes) for images, classes in (members, others)])
    drawn = torch.randperm(len(scores), generator=torch.Generator().manual_seed(3))
    assert abs(auc(scores[drawn[:MEMBERS]], scores[drawn[MEMBERS:]]) - 0.5) < 3 * DEVIATION


@pytest.mark.parametrize("name", ["shrunk", "rmia"])
def test_is_near_chance_under_differential_privacy(name: str) -> None:
    """The area is at most 0.544 (see ``clip_and_noise``), give or take three standard deviations."""
    members, others, _, _ = split(0)
    found = area(attacked(name, 0, clip_and_noise), members, others)
    assert 0.5 - 3 * DEVIATION < found < 0.544 + 3 * DEVIATION


@pytest.mark.parametrize("name", NAMES)
def test_a_test_crosses_the_wire_as_tensors(name: str) -> None:
    guess, (images, classes) = attacked(name, 0, overfit), split(0)[1]
    tensors = guess.to_tensors()
    rule = "pairwise" if name == "rmia" else "gaussian"
    assert {key.split("/")[0] for key in tensors} == {"model", "references", rule}
    model = network(99)
    again = Membership.from_tensors(pickle.loads(pickle.dumps(tensors)), model)
    assert len(again.references) == 4
    assert torch.equal(again.scores(normalise(images), classes), guess.scores(normalise(images), classes))
    untouched = network(99).state_dict()
    assert all(torch.equal(value, untouched[key]) for key, value in model.state_dict().items())


def test_tensors_that_do_not_fit_are_refused() -> None:
    rule, pairs = attacked("shrunk", 0, overfit).to_tensors(), attacked("rmia", 0, overfit).to_tensors()
    reference = next(key for key in rule if key.startswith("references/"))
    without = {key: value for key, value in rule.items() if not key.startswith("references/")}
    settings = pairs["pairwise/settings"]
    bad: dict[str, list[dict[str, Tensor]]] = {
        "a rule needs references": [without, {key: one for key, one in rule.items() if key != "gaussian/prior"}],
        "different numbers of models": [rule | {reference: rule[reference][:2]}],
        "missing or unknown": [{key: one for key, one in rule.items() if key != reference}],
        "NaN": [
            rule | {reference: rule[reference] * torch.nan},
            rule | {"gaussian/prior": torch.full((4,), torch.inf)},
        ],
        "shape": [rule | {"gaussian/prior": torch.ones(5)}],
        "no vector": [pairs | {"pairwise/ratios": torch.zeros(0)}, pairs | {"pairwise/ratios": torch.zeros(2, 2)}],
        "allowed: 0 to 1": [pairs | {"pairwise/settings": settings - 3}],
    }
    for message, cases in bad.items():
        for case in cases:
            with pytest.raises(AttackError, match=message):
                Membership.from_tensors(case, network(0))


@pytest.mark.parametrize("name", NAMES)
def test_a_broken_update_fails_alone(name: str) -> None:
    attack, good = fitted(name, 0, overfit), observe(network(0), overfit, *split(0)[0])
    broken = observe(network(0), overfit, *split(0)[0])
    broken.update.clear()
    guesses = attack.attack_many([good, broken], [torch.Generator()] * 2)
    assert [bool(guess.failure) for guess in guesses] == [False, True]
    with pytest.raises(AttackError, match="scores no record"):
        guesses[1].scores(*split(0)[0])


def test_must_be_fitted_and_repeats_itself() -> None:
    members, others, _, auxiliary = split(0)
    seen, known = observe(network(0), overfit, *members), knowledge(auxiliary, overfit)
    small = RMIA(num_shadows=2, num_members=20)
    with pytest.raises(AttackError, match="auxiliary data"):
        small(seen, torch.Generator())
    fits = [small.fit(known, torch.Generator().manual_seed(seed)) for seed in (1, 1, 2)]
    first, same, different = (fit(seen, torch.Generator()).scores(*others) for fit in fits)
    assert torch.equal(first, same)
    assert not torch.equal(first, different)
    assert small.learned is None
    assert repr(fits[0]) == repr(small)
    with pytest.raises(AttackError, match="auxiliary examples"):
        RMIA(num_members=201).fit(known, torch.Generator())


def test_one_shadow_model_is_enough_with_one_variance_or_pairs() -> None:
    members, others, _, auxiliary = split(0)
    known, seen = knowledge(auxiliary, overfit), observe(network(0), overfit, *members)
    for attack in (
        LiRA(num_shadows=1, num_members=MEMBERS, variance="fixed"),
        RMIA(num_shadows=1, num_members=MEMBERS),
    ):
        guess = attack.fit(known, torch.Generator().manual_seed(0))(seen, torch.Generator())
        assert "shadow-auc" not in guess.diagnostics
        assert area(guess, members, others) > 0.6
    for variance in ("each", "shrunk"):
        with pytest.raises(ValueError, match="num_shadows"):
            LiRA(num_shadows=1, variance=variance)


def test_the_server_chooses_the_correction_on_its_shadow_models_alone() -> None:
    attack = fitted("rmia", 0, overfit)
    assert attack.learned is not None
    assert attack.learned.choices["correction"] in CORRECTIONS
    fixed = RMIA(num_shadows=2, num_members=20, correction=0.4)
    learned = fixed.fit(knowledge(split(0)[3], overfit), torch.Generator()).learned
    assert learned is not None
    assert learned.choices == {"correction": 0.4}


@pytest.mark.parametrize("at_inference", [True, False])
def test_shadow_models_are_those_of_shadow_models_and_see_records_as_deployed(at_inference: bool) -> None:
    """The same generator gives both attacks the same shadow models, trained on the same records."""
    batches: list[Batch] = []
    shown: list[Tensor] = []

    class Watching(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.zeros(784, 10))

        def forward(self, images: Tensor) -> Tensor:
            shown.append(images)
            return images.flatten(1) @ self.weight

    def train(batch: Batch, seed: int) -> nn.Module:
        batches.append(batch)
        return Watching()

    auxiliary = split(0)[3]
    known = Knowledge(auxiliary, Pipeline((Inverted(),) if at_inference else ()), MEAN, STD, train)
    given: dict[str, Any] = {"num_shadows": 2, "num_members": 30}
    ShadowModels(**given, iterations=2).fit(known, torch.Generator().manual_seed(0))
    shown.clear()
    RMIA(**given).fit(known, torch.Generator().manual_seed(0))
    assert len(batches) == 4
    for first, second in zip(batches[:2], batches[2:], strict=True):
        assert torch.equal(first.images, second.images)
    every = torch.cat(shown).split(len(auxiliary))
    assert len(every) == 2
    asked = 1 - auxiliary.images if at_inference else auxiliary.images
    for images in every:
        torch.testing.assert_close(images, normalise(asked))


@pytest.mark.parametrize(
    ("cls", "bad"),
    [(LiRA, {"variance": "none"}), (RMIA, {"correction": -0.5}), (RMIA, {"correction": 1.5}), (RMIA, {"gamma": 0.0}),
     (LiRA, {"num_shadows": 0}), (RMIA, {"num_members": 1})],
)  # fmt: skip
def test_bad_hyper_parameters_are_refused(cls: Any, bad: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(bad))):
        cls(**bad)
