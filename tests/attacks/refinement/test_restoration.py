"""Networks that learn to restore images: from what defences leave, and from the noise of an inversion."""

import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import ClientUpdate, InvertingGradients, LearnedDenoiser
from attacks.base import Knowledge
from attacks.guesses import Reconstruction
from attacks.image_measures import mse, psnr
from attacks.learned.learning_to_invert import noise_like
from attacks.observations import AttackError
from attacks.refinement.base import Chain
from attacks.refinement.denoising import noisy
from attacks.refinement.restoration import LearnedRestorer
from attacks.refinement.unshuffle import WindowMean
from clients.data.datasets import load_dataset
from clients.data.images import to_float
from defenses import ATS, Batch, Blur, GaussianNoise, ImageNoise, InstaHide, Pipeline, VisualMixer
from tests.attacks.wire import CLASSES, MEAN, STD, classes, generators, observe, pictures, sigmoid_net
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


def test_trains_against_any_input_defence_repeats_itself_and_needs_enough_images() -> None:
    state = torch.get_rng_state()
    for defense in (InstaHide(num_mixed=1, max_weight=1.0), Blur(), ATS(), ImageNoise(std=0.2)):
        learned = replace(QUICK, iterations=2).fit(knowledge(defense, count=32, channels=3), seeded())
        images = refine(learned, pictures(2, channels=3)).images
        assert images.shape == (2, 3, 12, 12), defense
        assert torch.isfinite(images).all(), defense
    short = replace(QUICK, iterations=5)
    nets = [short.fit(knowledge(MIXER, count=32), seeded(n)).learned.network.state_dict() for n in (1, 1, 2)]
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(nets[0][key], nets[1][key]) for key in nets[0])
    assert not all(torch.equal(nets[0][key], nets[2][key]) for key in nets[0])
    with pytest.raises(AttackError, match="16 auxiliary"):
        QUICK.fit(knowledge(MIXER, count=15), seeded())


# ---- a denoiser that knows digits

COUNT = 16
NOISE = GaussianNoise(std=2e-2, per="update")


@cache
def digits() -> Tensor:
    found = load_dataset("mnist-5k", train_limit=416).train.images
    images = to_float(found[torch.randperm(len(found), generator=seeded(3))])
    return F.avg_pool2d(images[..., 2:26, 2:26], 2)


def of_digits(count: int = 400) -> Knowledge:
    images = digits()[COUNT : COUNT + count]
    targets = F.one_hot(classes(len(images), seed=6), CLASSES).float()
    return Knowledge(Batch(images, targets), Pipeline(), MEAN, STD, lambda *_: sigmoid_net())


def victims() -> list[ClientUpdate]:
    images, labels, found = digits()[:COUNT], classes(COUNT, seed=10), []
    for at in range(COUNT):
        one = observe(sigmoid_net(seed=5), images[at : at + 1], labels[at : at + 1])
        found.append(replace(one, update=NOISE.protect_update(one.update, seeded(900 + at))))
    return found


@pytest.mark.long
@pytest.mark.numeric
def test_a_denoiser_improves_guesses_from_noisy_updates_and_paints_nothing_from_noise() -> None:
    attack, truth = LearnedDenoiser(iterations=200).fit(of_digits(), seeded(1)), digits()[:COUNT]
    first, streams = InvertingGradients(iterations=60, restarts=1), [seeded(at) for at in range(COUNT)]
    seen = victims()
    silent = [replace(one, update=noise_like(one.update, seeded(at))) for at, one in enumerate(seen)]
    mean_image = psnr(digits()[COUNT:].mean(0).expand_as(truth), truth)
    scores = []
    for updates in (seen, silent):
        plain = first.attack_many(updates, streams)
        refined = Chain((first, attack)).refine_many(updates, plain, streams)
        scores.append([psnr(torch.cat([guess.images for guess in of]), truth) for of in (plain, refined)])
    (before, after), (_, painted) = scores
    for gain in (after - before, after - mean_image, mean_image - painted + 0.5):
        assert gain.mean() - 2 * gain.std() / COUNT**0.5 > 0.5
    told = attack.learned.diagnostics
    assert told["holdout_psnr"] > told["holdout_psnr_noisy"] + 1
    assert told["holdout_psnr_noise"] < told["holdout_psnr_mean_image"] + 0.2


@pytest.mark.numeric
def test_noise_has_the_strength_that_was_asked_for_at_every_grain() -> None:
    grey = torch.full((300, 1, 12, 12), 0.5)
    change = noisy(grey, torch.full((300,), 0.05), seeded()) - grey
    assert float(change.std()) == pytest.approx(0.05, rel=0.05)
    across = (change[..., 1:] * change[..., :-1]).flatten(1).mean(1) / 0.05**2
    # Neighbours share 0, 1/2 or 3/4 of their grains; all three occur.
    assert min(int(((across - of).abs() < 0.12).sum()) for of in (0, 0.5, 0.75)) > 30
    assert torch.equal(noisy(grey, torch.zeros(300), seeded()), grey)


def test_a_denoiser_goes_by_no_defence_and_refuses_what_it_cannot_learn_from() -> None:
    quick = LearnedDenoiser(**LearnedDenoiser.profile.quick)
    assert (quick.learns_from_defenses, quick.profile.learns_from_model) == (False, False)
    chain = Chain((InvertingGradients(), quick))
    assert (chain.learns_prior, chain.threat_class) == (True, "D")
    assert not Chain((InvertingGradients(),)).learns_prior
    with pytest.raises(AttackError, match="at least 16 auxiliary examples, got 15"):
        quick.fit(of_digits(15), seeded())
    told = refine(quick.fit(of_digits(24), seeded()), torch.rand(2, 1, 8, 12, generator=seeded()))
    assert "images have shape (1, 8, 12), auxiliary ones (1, 12, 12)" in told.failure
    assert torch.equal(told.images, torch.full((2, 1, 8, 12), 0.5))
