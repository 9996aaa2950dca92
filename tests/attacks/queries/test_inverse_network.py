"""The inverse network: it inverts what can be inverted, learns from what it is shown, and says how well it does."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch

from attacks import AttackError
from attacks.image_measures import psnr
from attacks.queries.inverse_network import InverseNetwork, MapDecoder
from defenses.base import SmashedDefense
from tests.attacks.queries.query_wire import Negate, knowledge, pictures, query, seeded


@cache
def fitted(training: str, *defenses: SmashedDefense) -> InverseNetwork:
    return InverseNetwork(training, iterations=150, width=16).fit(knowledge(*defenses), seeded(2))


def quality(attack: InverseNetwork, *defenses: SmashedDefense) -> float:
    images, _ = pictures(16, seed=6)
    return float(psnr(attack(query(images, *defenses), seeded(0)).images, images).mean())


@pytest.mark.long
def test_it_beats_the_mean_image_by_far_and_says_so() -> None:
    learned = fitted("retrained").learned.diagnostics
    assert learned["holdout_psnr"] > learned["holdout_psnr_mean_image"] + 5
    # What it says of auxiliary images holds for others.
    assert quality(fitted("retrained")) == pytest.approx(learned["holdout_psnr"], abs=1.5)


@pytest.mark.long
def test_only_the_retrained_network_sees_through_what_can_be_undone() -> None:
    assert quality(fitted("retrained", Negate()), Negate()) > quality(fitted("static", Negate()), Negate()) + 5
    assert quality(fitted("static", Negate())) == quality(fitted("static"))


def test_on_noise_it_does_not_find_the_images() -> None:
    images, _ = pictures(16, seed=7)
    seen = query(images)
    noise = torch.randn(seen.features.shape, generator=seeded(7)) * seen.features.std() + seen.features.mean()
    found = fitted("retrained")(replace(seen, features=noise), seeded(0)).images
    assert psnr(found, images).mean() < psnr(images.mean(0).expand_as(images), images).mean() + 1


@pytest.mark.parametrize(
    ("image", "features"), [((1, 16, 16), (4, 16, 16)), ((3, 17, 13), (2, 5, 4)), ((1, 56, 56), (8, 7, 7))]
)
def test_images_of_any_size_come_out_in_their_range(image: tuple[int, ...], features: tuple[int, ...]) -> None:
    sample = torch.randn(5, *features, generator=seeded(0)) * 100
    found = MapDecoder(sample, image, 8, seeded(1))(sample)
    assert found.shape == (5, *image)
    assert 0 <= found.min() < found.max() <= 1


def test_a_dead_channel_is_not_blown_up() -> None:
    sample = torch.randn(5, 2, 4, 4, generator=seeded(0))
    sample[:, 1] = 0
    found = MapDecoder(sample, (1, 8, 8), 8, seeded(1))(sample + 1e-4)
    assert torch.isfinite(found).all()
    assert (found - MapDecoder(sample, (1, 8, 8), 8, seeded(1))(sample)).abs().max() < 0.1


def test_it_repeats_itself_whatever_the_global_state() -> None:
    learned = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        learned.append(
            InverseNetwork(iterations=3, width=4).fit(knowledge(count=16), seeded(4)).learned.network.state_dict()
        )
    assert all(torch.equal(learned[0][name], learned[1][name]) for name in learned[0])


def test_knowledge_that_is_not_enough_is_refused() -> None:
    for changes, message in (
        ({"count": 15}, "15 auxiliary examples are too few"),
        ({"sender": None}, "edge-cloud"),
    ):
        with pytest.raises(AttackError, match=message):
            InverseNetwork().fit(knowledge(**changes), seeded(0))


def test_a_guess_that_failed_is_grey_and_says_why() -> None:
    images, _ = pictures(2, seed=8)
    seen = query(images)
    with pytest.raises(AttackError, match="call fit first"):
        InverseNetwork()(seen, seeded(0))
    guess = fitted("retrained")(replace(seen, features=seen.features[..., :3]), seeded(0))
    assert "allowed: (4, 16, 16)" in guess.failure
    assert torch.equal(guess.images, torch.full_like(images, 0.5))


@pytest.mark.parametrize(
    "settings", [{"training": "never"}, {"iterations": 0}, {"width": 0}, {"batch_size": 0}, {"learning_rate": -1.0}]
)
def test_settings_out_of_range_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(settings))):
        InverseNetwork(**settings)
