from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch

from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import mse
from attacks.networks.unet import UNet
from attacks.observations import AttackError
from attacks.refinement.restoration import LearnedRestorer, protect_afresh
from attacks.refinement.unshuffle import WindowMean
from defenses import ATS, Batch, Blur, Clip, ImageNoise, InstaHide, Pipeline, VisualMixer
from tests.attacks.wire import MEAN, STD, generators, pictures

pytestmark = pytest.mark.long

MIXER = VisualMixer(window_lower=4, window_upper=8)  # windows of 4 everywhere at side 12
QUICK = LearnedRestorer(iterations=120, width=8, batch_size=16)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def corners(count, seed, side=12, channels=1):
    """Pictures that are smooth over a window of 4, so that its neighbours tell how it was: corners of larger ones."""
    return pictures(count, side=2 * side, channels=channels, seed=seed)[..., :side, :side]


def knowledge(*defenses, count=120, side=12, channels=1):
    images = corners(count, 5, side, channels)
    auxiliary = Batch(images, torch.ones(count, 1))

    def train(*_):
        raise AssertionError("the restorer trains no model of the clients'")

    return Knowledge(auxiliary, Pipeline(defenses), MEAN, STD, train)


def seeded(number=0):
    return torch.Generator().manual_seed(number)


def guess(images):
    return Reconstruction(images, torch.zeros(len(images), dtype=torch.int64), {"cost": 1.0})


def refine(attack, images):
    return attack.refine_many([None], [guess(images)], generators(1))[0]


@pytest.fixture(scope="module")
def fitted():
    return QUICK.fit(knowledge(MIXER), seeded())


@pytest.fixture(scope="module")
def victims():
    """Clean images that no attacker saw, and the same shuffled with a client's key."""
    clean = corners(24, 9)
    return clean, Pipeline((MIXER,)).protect_once(Batch(clean, torch.ones(24, 1)), ("client", 1)).images


def test_beats_the_window_means_on_images_it_never_saw(fitted, victims):
    clean, shuffled = victims
    restored = refine(fitted, shuffled)
    means = refine(WindowMean(window=4), shuffled).images
    assert mse(restored.images, clean).mean() < 0.8 * mse(means, clean).mean() < mse(shuffled, clean).mean()
    assert restored.diagnostics["holdout_psnr"] > restored.diagnostics["holdout_psnr_unrestored"] + 3
    assert restored.diagnostics["cost"] == 1.0
    assert not restored.failure


def test_knows_nothing_about_images_that_it_gets_noise_for(fitted, victims):
    clean, mean = victims[0], corners(120, 5).mean(0)
    restored = refine(fitted, torch.rand(clean.shape, generator=seeded(3))).images
    assert restored.min() >= 0
    assert restored.max() <= 1
    assert mse(restored, clean).mean() > mse(mean.expand_as(clean), clean).mean()


@pytest.mark.parametrize(
    "defense",
    [InstaHide(num_mixed=1, max_weight=1.0), Blur(), ATS(), ImageNoise(std=0.2)],
    ids=lambda d: type(d).__name__,
)
def test_trains_against_any_input_defence(defense):
    learned = replace(QUICK, iterations=3).fit(knowledge(defense, count=32, channels=3), seeded())
    images = refine(learned, pictures(2, channels=3)).images
    assert images.shape == (2, 3, 12, 12)
    assert torch.isfinite(images).all()


def test_sign_flips_are_undone():
    """Without mixing, InstaHide keeps |2x - 1|; of pictures that are never dark this is 2x - 1 itself."""
    known = knowledge(InstaHide(num_mixed=1, max_weight=1.0))
    bright = Batch((known.auxiliary.images + 1) / 2, known.auxiliary.targets)
    report = QUICK.fit(replace(known, auxiliary=bright), seeded()).learned.diagnostics
    assert report["holdout_psnr"] > 20
    assert report["holdout_psnr_unrestored"] < 10


def test_fit_repeats_itself_and_leaves_the_global_stream_alone():
    short = replace(QUICK, iterations=4)
    state = torch.get_rng_state()
    nets = [short.fit(knowledge(MIXER, count=32), seeded(n)).learned.network.state_dict() for n in (1, 1, 2)]
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(nets[0][key], nets[1][key]) for key in nets[0])
    assert not all(torch.equal(nets[0][key], nets[2][key]) for key in nets[0])


@pytest.mark.parametrize("iterations", [1, 2, 5, 6])
def test_few_iterations_have_a_schedule_too(iterations):
    learned = replace(QUICK, iterations=iterations).fit(knowledge(VisualMixer(), count=32), seeded())
    assert all(torch.isfinite(tensor).all() for tensor in learned.learned.network.state_dict().values())


def test_protection_is_fresh_every_time():
    batch, stream = knowledge(MIXER, count=4).auxiliary, seeded()
    first, second = (protect_afresh(Pipeline((MIXER,)), batch, stream).images for _ in range(2))
    assert not torch.equal(first, second)
    assert torch.equal(first.flatten().sort().values, second.flatten().sort().values)


def test_survives_pickle(fitted, victims):
    again = pickle.loads(pickle.dumps(fitted))
    assert again == fitted == QUICK
    assert repr(fitted) == repr(QUICK)
    assert torch.equal(refine(again, victims[1]).images, refine(fitted, victims[1]).images)


def test_without_an_input_defence_there_is_nothing_to_undo():
    images = pictures(2)
    result = refine(QUICK.fit(knowledge(Clip(max_norm=1.0)), seeded()), images)
    assert result.images is images
    assert result.diagnostics["nothing_to_undo"] == 1


def test_must_be_fitted_on_enough(fitted):
    with pytest.raises(AttackError, match="auxiliary"):
        refine(QUICK, pictures(1))
    with pytest.raises(AttackError, match="16 auxiliary"):
        QUICK.fit(knowledge(MIXER, count=15), seeded())


def test_one_bad_guess_harms_no_other(fitted, victims):
    good, failed = guess(victims[1][:1]), replace(guess(pictures(1)), failure="before")
    wrong = guess(pictures(1, side=8))
    results = fitted.refine_many([None] * 3, [failed, wrong, good], generators(3))
    assert results[0] is failed
    assert "shape" in results[1].failure
    assert torch.equal(results[1].images, torch.full((1, 1, 8, 8), 0.5))
    assert torch.equal(results[2].images, refine(fitted, victims[1][:1]).images)


@pytest.mark.parametrize("shape", [(2, 1, 28, 28), (1, 3, 32, 32), (3, 1, 12, 12), (1, 3, 7, 10)])
def test_network_is_the_identity_before_training(shape):
    images = torch.rand(shape, generator=seeded())
    network = UNet(2 * shape[1], shape[1], 4, seeded())
    assert torch.equal(network(torch.cat([images, images], 1)), images)


@pytest.mark.parametrize("change", [{"iterations": 0}, {"width": 0}, {"learning_rate": 0.0}, {"input_noise": -0.1}])
def test_refuses_bad_values(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        LearnedRestorer(**change)
