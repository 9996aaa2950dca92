"""A network that learns to restore images from what defences leave."""

import pickle
from dataclasses import replace

import pytest
import torch

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import mse
from attacks.observations import AttackError
from attacks.refinement.restoration import LearnedRestorer
from attacks.refinement.unshuffle import WindowMean
from defenses import Batch, Pipeline, VisualMixer
from tests.attacks.wire import MEAN, STD, generators, pictures
from tests.attacks.wire import stream as seeded

MIXER = VisualMixer(window_lower=4, window_upper=8)  # windows of 4 everywhere at side 12
QUICK = LearnedRestorer(iterations=120, width=8, batch_size=16)


def corners(count, seed, channels=1):
    """Pictures that are smooth over a window of 4, so that its neighbours tell how it was: corners of larger ones."""
    return pictures(count, side=24, channels=channels, seed=seed)[..., :12, :12]


def knowledge(*defenses, count=120, channels=1):
    auxiliary = Batch(corners(count, 5, channels), torch.ones(count, 1))
    return Knowledge(auxiliary, Pipeline(defenses), MEAN, STD, lambda *_: pytest.fail("trains"))


def refine(attack, images):
    guess = Reconstruction(images, torch.zeros(len(images), dtype=torch.int64), {"cost": 1.0})
    return attack.refine_many([None], [guess], generators(1))[0]


@pytest.mark.long
@pytest.mark.numeric
def test_beats_the_window_means_on_images_it_never_saw_and_reads_nothing_from_noise() -> None:
    fitted, clean = QUICK.fit(knowledge(MIXER), seeded()), corners(24, 9)
    shuffled = Pipeline((MIXER,)).protect_once(Batch(clean, torch.ones(24, 1)), ("client", 1)).images
    restored, means = refine(fitted, shuffled), refine(WindowMean().fit(knowledge(MIXER), seeded()), shuffled).images
    assert mse(restored.images, clean).mean() < 0.8 * mse(means, clean).mean() < mse(shuffled, clean).mean()
    assert restored.diagnostics["holdout_psnr"] > restored.diagnostics["holdout_psnr_unrestored"] + 3
    assert restored.diagnostics["cost"] == 1.0
    blind, mean = refine(fitted, torch.rand(clean.shape, generator=seeded(3))).images, corners(120, 5).mean(0)
    assert 0 <= blind.min() <= blind.max() <= 1
    assert mse(blind, clean).mean() > mse(mean.expand_as(clean), clean).mean()
    assert torch.equal(refine(pickle.loads(pickle.dumps(fitted)), shuffled).images, restored.images)


def test_the_network_follows_from_the_generator_alone() -> None:
    state, short = torch.get_rng_state(), replace(QUICK, iterations=2)
    first, again, other = (
        short.fit(knowledge(MIXER, count=32), seeded(seed)).learned.network.state_dict() for seed in (1, 1, 2)
    )
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not all(torch.equal(first[name], other[name]) for name in first)


def test_it_restores_images_of_colours_and_needs_enough_of_its_own() -> None:
    learned = replace(QUICK, iterations=2).fit(knowledge(MIXER, count=32, channels=3), seeded())
    images = refine(learned, pictures(2, channels=3)).images
    assert images.shape == (2, 3, 12, 12)
    assert torch.isfinite(images).all()
    with pytest.raises(AttackError, match="16 auxiliary"):
        QUICK.fit(knowledge(MIXER, count=15), seeded())
