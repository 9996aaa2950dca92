"""Attribute inference: it reads what can be read, is at chance on noise, and only a retrained adversary sees through a defence."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from statistics import mean
from typing import Any

import pytest
import torch
from scipy import stats

from attacks import AttackError, AttributeInference, Attributes, Reconstruction, score
from attacks.attributes.inference import ARCHITECTURES
from attacks.scoring.metrics import attribute_hits
from defenses.base import SmashedDefense
from defenses.smashed.feature_noise import FeatureNoise
from tests.attacks.queries.query_wire import Negate, knowledge, pictures, query, seeded

STEPS = {"iterations": 60, "batch_size": 16}


@cache
def fitted(architecture: str, training: str, *defenses: SmashedDefense) -> AttributeInference:
    attack = AttributeInference(architecture, training, **STEPS)
    return attack.fit(knowledge(*defenses), seeded(2))


def accuracy(attack: AttributeInference, *defenses: SmashedDefense) -> float:
    images, right = pictures(100, seed=6)
    return mean(attribute_hits(attack(query(images, *defenses), seeded(0)), right))


@pytest.mark.parametrize("training", ["static", "retrained"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_reads_an_attribute_that_a_glance_tells(architecture: str, training: str) -> None:
    attack = fitted(architecture, training)
    assert accuracy(attack) > 0.9
    assert attack.learned.diagnostics["holdout_accuracy"] > 0.9


def test_only_the_retrained_adversary_sees_through_what_can_be_undone() -> None:
    assert accuracy(fitted("split", "static", Negate()), Negate()) < 0.7
    assert accuracy(fitted("split", "retrained", Negate()), Negate()) > 0.9


def test_static_training_never_meets_the_defence() -> None:
    plain, defended = (
        fitted("split", "static", *defenses).learned.network.state_dict() for defenses in ((), (Negate(),))
    )
    assert all(torch.equal(plain[name], defended[name]) for name in plain)


def test_noise_is_drawn_afresh_at_every_step(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[float] = []
    original = FeatureNoise.protect_features

    def noted(self: FeatureNoise, features: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        protected = original(self, features, generator)
        seen.append(float((protected - features)[0, 0, 0, 0]))
        return protected

    monkeypatch.setattr(FeatureNoise, "protect_features", noted)
    AttributeInference(iterations=12, batch_size=4).fit(knowledge(FeatureNoise(std=1.0), count=20), seeded(0))
    assert len(set(seen)) == len(seen) > 12


def test_it_is_at_chance_on_noise() -> None:
    images, right = pictures(400, seed=7)
    seen = query(images)
    noise = torch.randn(seen.features.shape, generator=seeded(8)) * seen.features.std() + seen.features.mean()
    hits = sum(attribute_hits(fitted("split", "retrained")(replace(seen, features=noise), seeded(0)), right))
    assert stats.binomtest(round(hits), 400, 0.5).pvalue > 0.001


def test_it_repeats_itself_whatever_the_global_state_and_leaves_that_and_the_model_alone() -> None:
    known = knowledge(count=32)
    before = {name: value.clone() for name, value in known.sender.edge.state_dict().items()}
    learned = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        state = torch.get_rng_state()
        learned.append(AttributeInference(iterations=5).fit(known, seeded(4)).learned.network.state_dict())
        assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(learned[0][name], learned[1][name]) for name in learned[0])
    client = known.sender.edge
    assert all(torch.equal(value, before[name]) for name, value in client.state_dict().items())
    assert not any(layer.training for layer in client.modules())


def test_the_majority_is_that_of_the_examples_it_learned_from() -> None:
    mostly = (torch.arange(64) % 8 == 0).long()
    learned = AttributeInference(iterations=1).fit(knowledge(count=64, sensitive=mostly), seeded(4)).learned
    held = torch.randperm(64, generator=seeded(4))[:8]
    assert learned.diagnostics["holdout_majority"] == pytest.approx(1 - mostly[held].float().mean().item())


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"sensitive": None}, "no sensitive attribute"),
        ({"sensitive": torch.ones(160, dtype=torch.int64)}, "the same sensitive attribute"),
        ({"adversary": None}, "no adversary can be built"),
        ({"sender": None}, "allowed: edge-cloud inference"),
        ({"count": 15}, "15 auxiliary examples are too few .* at least 16"),
    ],
)
def test_knowledge_that_is_not_enough_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(AttackError, match=message):
        AttributeInference(**STEPS).fit(knowledge(**changes), seeded(0))


def test_training_that_diverges_is_refused() -> None:
    with pytest.raises(AttackError, match="diverged; lower the learning rate"):
        AttributeInference(iterations=20, learning_rate=1e12).fit(knowledge(count=16), seeded(0))


def test_it_must_be_fitted() -> None:
    with pytest.raises(AttackError, match="call fit first"):
        AttributeInference()(query(pictures(1, seed=1)[0]), seeded(0))


@pytest.mark.parametrize("broken", ["another shape", "NaN"])
def test_a_guess_that_failed_says_why_and_is_never_right(broken: str) -> None:
    images, right = pictures(4, seed=1)
    attack, seen = fitted("split", "retrained"), query(images)
    if broken == "another shape":
        seen = replace(seen, features=seen.features[:, :2])
    else:
        seen = replace(seen, features=seen.features * math.nan)
    guess = attack(seen, seeded(0))
    assert {"another shape": "allowed: (4, 16, 16)", "NaN": "NaN"}[broken] in guess.failure
    assert score(guess, right) == {"attribute-accuracy": [0.0] * 4}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"architecture": "half"}, "architecture .*split . tuned . full"),
        ({"training": "never"}, "training .*static . retrained"),
        ({"batch_size": 1}, "batch_size"),
        ({"iterations": 0}, "iterations"),
        ({"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        AttributeInference(**settings)


# --- the score


def test_guesses_of_another_number_of_images_have_no_score() -> None:
    with pytest.raises(ValueError, match="2 guessed attributes of 3 images"):
        score(Attributes(torch.zeros(2, 2)), torch.zeros(3, dtype=torch.int64))
    with pytest.raises(AttributeError):
        attribute_hits(Reconstruction(torch.zeros(1, 1, 2, 2), torch.zeros(1)), torch.zeros(1))  # type: ignore[arg-type]


def test_one_value_that_is_nan_makes_an_answer_none() -> None:
    logits = torch.tensor([[0.0, 1.0], [math.nan, 1.0], [2.0, 1.0]])
    assert Attributes(logits).values.tolist() == [1, -1, 0]
