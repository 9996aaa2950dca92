"""Attribute inference from the tokens of a split transformer."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from statistics import mean

import pytest
import torch
from scipy import stats
from torch import Tensor

from attacks import AttributeInference, Knowledge
from attacks.attributes.inference import ARCHITECTURES
from attacks.queries.base import Query
from attacks.scoring.metrics import attribute_hits
from attacks.sender import Sender, smash
from clients.models.split.halves import EdgeHalf, ServerHalf
from clients.models.split.split_adversaries import SplitAdversaryBuilder
from clients.models.split.split_models import SplitShape, build_split_model
from defenses import FeatureNoise, ImageNoise, PatchShuffle, VisualMixer
from defenses.base import Batch, SmashedDefense
from defenses.pipeline import Pipeline
from tests.attacks.queries.query_wire import MEAN, SHAPE, STD, Negate, pictures, seeded

SIZES = SplitShape(patch_size=4, width=16, depth=2, heads=2, edge_blocks=1)


@cache
def halves() -> tuple[EdgeHalf, ServerHalf]:
    edge, server = build_split_model("vit", num_classes=3, input_shape=SHAPE, shape=SIZES, seed=1)
    return edge.eval().requires_grad_(False), server.eval().requires_grad_(False)


def sender(*defenses: SmashedDefense) -> Sender:
    return Sender(halves()[0], Pipeline(defenses), MEAN, STD)


def small(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """Pictures without a square, bright (1) or dark (0) all over: told by any token, wherever a shuffle puts it."""
    images, value = pictures(count, seed)
    return (images * 0.3 + 0.4 * value.view(-1, 1, 1, 1).float()).clamp(0, 1), value


@cache
def fitted(architecture: str, training: str, *defenses: SmashedDefense) -> AttributeInference:
    images, value = small(160, seed=5)
    builder = SplitAdversaryBuilder("vit", SHAPE, SIZES, halves()[1].state_dict())
    known = Knowledge(
        Batch(images, torch.zeros(160, 3)), Pipeline(defenses), MEAN, STD, lambda *_: halves()[1],
        sender=sender(*defenses), sensitive=value, adversary=builder,
    )  # fmt: skip
    return AttributeInference(architecture, training, iterations=60, batch_size=16).fit(known, seeded(2))


def sent(images: Tensor, *defenses: SmashedDefense) -> Query:
    features, latent = sender(*defenses).query(images, seeded(3))
    return Query(features, latent, *halves(), SHAPE, MEAN, STD, Pipeline(defenses))


def accuracy(attack: AttributeInference, *defenses: SmashedDefense) -> float:
    images, value = small(100, seed=6)
    return mean(attribute_hits(attack(sent(images, *defenses), seeded(0)), value))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_it_reads_an_attribute_that_every_token_tells(architecture: str) -> None:
    assert accuracy(fitted(architecture, "retrained")) > 0.9


def test_shuffled_tokens_tell_as_much_and_only_the_retrained_adversary_sees_through_what_can_be_undone() -> None:
    assert accuracy(fitted("split", "static"), PatchShuffle()) > 0.9, (
        "a shuffle changes no token, and nobody needs their order"
    )
    assert accuracy(fitted("split", "static"), Negate()) < 0.7
    assert accuracy(fitted("split", "retrained", Negate()), Negate()) > 0.9


def test_it_is_at_chance_on_noise() -> None:
    images, value = small(400, seed=7)
    seen = sent(images)
    noise = torch.randn(seen.features.shape, generator=seeded(8)) * seen.features.std() + seen.features.mean()
    hits = sum(attribute_hits(fitted("split", "retrained")(replace(seen, features=noise), seeded(0)), value))
    assert stats.binomtest(round(hits), 400, 0.5).pvalue > 0.001


def test_tokens_of_another_length_are_never_read() -> None:
    images, value = small(4, seed=1)
    seen = sent(images)
    guess = fitted("split", "retrained")(replace(seen, features=seen.features[..., :8]), seeded(0))
    assert "allowed: (16, 16)" in guess.failure
    assert attribute_hits(guess, value) == [0.0] * 4


def test_auxiliary_images_are_sent_as_clients_send_test_images() -> None:
    """Through every stage: tokens before the blocks and behind them, and images only where test images are protected."""
    images, _ = small(6, seed=2)
    for defenses in ((), (PatchShuffle(),), (FeatureNoise(std=0.5),), (VisualMixer(),), (ImageNoise(std=0.5),)):
        pipeline = Pipeline(defenses)
        key = ("attacker", int(torch.randint(1 << 62, (), generator=seeded(3))))
        shown = pipeline.protect_test(Batch(images, torch.zeros(6, 1)), key).images
        expected = smash(halves()[0], pipeline, shown, sender(), key)
        assert torch.equal(Sender(halves()[0], pipeline, MEAN, STD).query(images, seeded(3))[0], expected)
        assert torch.equal(shown, images) == (defenses not in ((VisualMixer(),), (ImageNoise(std=0.5),)))
    assert torch.equal(sender(PatchShuffle()).features(images), sender().features(images)), "unprotected ones"
