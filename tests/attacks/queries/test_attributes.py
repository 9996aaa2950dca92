"""Attribute inference from maps: it reads what can be read, and only a retrained adversary sees through a defence."""

import math
from functools import cache
from statistics import mean
from typing import get_args

import pytest
import torch

from attacks import AttackError, AttributeInference, Attributes, score
from attacks.scoring.metrics import attribute_hits
from attacks.sender import Sender, smash
from clients.models.split.halves import EdgeHalf
from clients.models.split.split_models import SplitShape, build_split_model
from defenses import FeatureNoise, ImageNoise, PatchShuffle, VisualMixer
from defenses.base import Batch, SmashedDefense
from defenses.checks import Architecture
from defenses.pipeline import Pipeline
from tests.attacks.queries.query_wire import MEAN, SHAPE, STD, Negate, knowledge, pictures, query, seeded

STEPS = {"iterations": 60, "batch_size": 16}
SIZES = SplitShape(patch_size=4, width=16, depth=2, heads=2, edge_blocks=1)


@cache
def edge() -> EdgeHalf:
    return (
        build_split_model("vit", num_classes=3, input_shape=SHAPE, shape=SIZES, seed=1)[0].eval().requires_grad_(False)
    )


@cache
def fitted(architecture: str, training: str, *defenses: SmashedDefense) -> AttributeInference:
    return AttributeInference(architecture, training, **STEPS).fit(knowledge(*defenses), seeded(2))


def accuracy(attack: AttributeInference, *defenses: SmashedDefense) -> float:
    images, value = pictures(100, seed=6)
    return mean(attribute_hits(attack(query(images, *defenses), seeded(0)), value))


@pytest.mark.numeric
def test_it_reads_an_attribute_that_a_glance_tells() -> None:
    for case in (*((architecture, "retrained") for architecture in get_args(Architecture)), ("split", "static")):
        attack = fitted(*case)
        assert accuracy(attack) > 0.85, case
        assert attack.learned.diagnostics["holdout_accuracy"] > 0.8, case


@pytest.mark.numeric
def test_only_the_retrained_adversary_sees_through_what_can_be_undone() -> None:
    assert accuracy(fitted("split", "static", Negate()), Negate()) < 0.75
    assert accuracy(fitted("split", "retrained", Negate()), Negate()) > 0.85
    both = fitted("split", "static"), fitted("split", "static", Negate())
    plain, defended = (attack.learned.network.state_dict() for attack in both)
    assert all(torch.equal(plain[name], defended[name]) for name in plain), "static training never meets the defence"


def test_auxiliary_images_are_sent_as_clients_send_test_images() -> None:
    """Through every stage: tokens before the blocks and behind them, and images only where test images are protected."""
    images, _ = pictures(6, seed=2)
    sender = Sender(edge(), Pipeline(), MEAN, STD)
    for defenses in ((), (PatchShuffle(),), (FeatureNoise(std=0.5),), (VisualMixer(),), (ImageNoise(std=0.5),)):
        pipeline = Pipeline(defenses)
        key = ("attacker", int(torch.randint(1 << 62, (), generator=seeded(3))))
        shown = pipeline.protect_test(Batch(images, torch.zeros(6, 1)), key).images
        expected = smash(edge(), pipeline, shown, sender, key)
        assert torch.equal(Sender(edge(), pipeline, MEAN, STD).query(images, seeded(3))[0], expected)
        assert torch.equal(shown, images) == (defenses not in ((VisualMixer(),), (ImageNoise(std=0.5),)))
    assert torch.equal(Sender(edge(), Pipeline((PatchShuffle(),)), MEAN, STD).features(images), sender.features(images))


def test_knowledge_that_is_not_enough_and_training_that_diverges_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AttributeInference, "learning_rate", 1e12)
    for settings, changes, message in (
        (STEPS, {"sensitive": None}, "no sensitive attribute"),
        (STEPS, {"sensitive": torch.ones(160, dtype=torch.int64)}, "the same sensitive attribute"),
        (STEPS, {"adversary": None}, "no adversary can be built"),
        ({"iterations": 20}, {"count": 16}, "diverged"),
    ):
        with pytest.raises(AttackError, match=message):
            AttributeInference(**settings).fit(knowledge(**changes), seeded(0))


def test_guesses_of_other_images_have_no_score() -> None:
    with pytest.raises(ValueError, match="2 guessed attributes of 3 images"):
        score(Attributes(torch.zeros(2, 2)), torch.zeros(3, dtype=torch.int64))
    assert Attributes(torch.tensor([[0.0, 1.0], [math.nan, 1.0], [2.0, 1.0]])).values.tolist() == [1, -1, 0]
