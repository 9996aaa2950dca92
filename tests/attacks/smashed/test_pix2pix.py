from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attacks.networks.decoder import Layout
from attacks.smashed.pix2pix import PatchJudge, Pix2Pix, TokenMap
from tests.attacks.decoding import error, error_of_mean_image, knowledge, observe, seeded, sender

SMALL = Pix2Pix(iterations=50, width=4, batch_size=16, learning_rate=4e-3)


@pytest.fixture(scope="module")
def fitted():
    return SMALL.fit(knowledge(sender()), seeded())


@pytest.mark.long
def test_decodes_digits_it_never_saw(fitted):
    assert error(fitted(observe(sender()), seeded())) < 0.5 * error_of_mean_image()


@pytest.mark.long
def test_knows_nothing_about_images_that_it_gets_noise_for(fitted):
    seen = observe(sender())
    noise = seen.features.std() * torch.randn(seen.features.shape, generator=seeded(5)) + seen.features.mean()
    assert error(fitted(replace(seen, features=noise), seeded())) > 0.98 * error_of_mean_image()


def test_tokens_lie_where_their_patches_are():
    sample, layout = torch.randn(2, 6, 5, generator=seeded()), Layout((2, 3), 4, 1)
    spread = TokenMap(sample, layout, 3, seeded())
    changed = sample.clone()
    changed[:, 4] += 1  # second row, second column
    moved = (spread(changed) - spread(sample)).abs().sum((0, 1)) > 0
    assert moved.shape == (8, 12)
    assert moved[4:, 4:8].all()
    assert moved.sum() == 16


def test_the_discriminator_judges_regions_given_the_tokens():
    sample, layout = torch.randn(2, 16, 5, generator=seeded()), Layout((4, 4), 7, 1)
    judge = PatchJudge(sample, layout, 4, seeded())
    images = torch.rand(2, 1, 28, 28, generator=seeded(1))
    logits = judge(sample, images)
    assert logits.shape == (2, 1, 7, 7)
    assert not torch.allclose(logits, judge(sample.roll(1, 1), images))
    assert not torch.allclose(logits, judge(sample, 1 - images))


@pytest.mark.long
def test_the_absolute_error_holds_the_generator_to_the_truth(fitted):
    free = replace(SMALL, l1_weight=0.0).fit(knowledge(sender()), seeded())
    assert fitted.learned.diagnostics["holdout_psnr"] > free.learned.diagnostics["holdout_psnr"] + 3


@pytest.mark.parametrize("change", [{"l1_weight": -1.0}, {"iterations": 0}, {"width": 0}])
def test_refuses_bad_values(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        Pix2Pix(**change)
