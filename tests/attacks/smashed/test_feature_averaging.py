from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attacks.smashed.feature_averaging import FeatureAveraging
from attacks.smashed.tokens.decoder import TokenDecoder
from defenses.smashed.feature_noise import FeatureNoise
from tests.attacks.decoding import error, error_of_mean_image, knowledge, observe, seeded, sender

SMALL = {"iterations": 80, "width": 32, "depth": 2, "learning_rate": 3e-3}
NOISE = FeatureNoise(std=4.0)


@pytest.fixture(scope="module")
def averaging():
    return FeatureAveraging(**SMALL, transmissions=16).fit(knowledge(sender(NOISE)), seeded())


@pytest.mark.long
def test_sixteen_transmissions_beat_one(averaging):
    seen = observe(sender(NOISE), 16)
    single = TokenDecoder(**SMALL).fit(knowledge(sender(NOISE)), seeded())
    assert error(averaging(seen, seeded())) < 0.7 * error(single(seen, seeded()))
    assert error(averaging(seen, seeded())) < 0.8 * error_of_mean_image()


def test_knows_nothing_about_images_that_it_gets_noise_for(averaging):
    seen = observe(sender(NOISE), 16)
    noise = 4 * torch.randn(seen.features.shape, generator=seeded(5))
    assert error(averaging(replace(seen, features=noise), seeded())) > 0.98 * error_of_mean_image()


def test_needs_its_transmissions(averaging):
    assert FeatureAveraging().transmissions == 60
    assert (
        "needs the 16 transmissions that it was fitted for, there are 2"
        in averaging(observe(sender(NOISE), 2), seeded()).failure
    )


def test_only_the_mean_counts(averaging):
    seen = observe(sender(NOISE), 16)
    same = replace(seen, features=seen.features.mean(0, keepdim=True).expand(16, -1, -1, -1))
    assert torch.allclose(averaging(same, seeded()).images, averaging(seen, seeded()).images, atol=1e-5)
