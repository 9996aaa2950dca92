from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch

from attacks.image_measures import mse, psnr
from attacks.observations import AttackError
from attacks.smashed.feature_inversion import AssumedSender, FeatureInversion, without_noise
from attacks.smashed.tokens.positions import to_patches
from defenses.base import SmashedDefense
from defenses.fitting import FitContext, version_of
from defenses.pipeline import Pipeline
from defenses.smashed.feature_noise import FeatureDP, FeatureNoise
from defenses.smashed.feature_pca import FeaturePCA
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from defenses.smashed.spectral_shuffle import SpectralShuffle
from tests.attacks.smashed_wire import PATCH, Known, halves, knowledge, observe, seeded

QUICK = FeatureInversion(iterations=150)


def invert(attack, *defenses, told=False, **sizes):
    observation, clean, _ = observe(*defenses, told=told, **sizes)
    blocks = sizes.get("blocks", 1)
    return attack.fit(knowledge(*defenses, blocks=blocks), seeded(1))(observation, seeded(2)), clean


def test_undefended_features_are_broken():
    guess, clean = invert(QUICK)
    assert psnr(guess.images, clean).min() > 25
    assert guess.diagnostics["relative_loss"] < 1e-3
    assert guess.labels.tolist() == [-1, -1]


@pytest.mark.parametrize("defense", [PatchShuffle(), BatchShuffle(k=0.4)])
def test_the_true_order_makes_a_shuffle_as_broken_as_none(defense):
    guess, clean = invert(replace(QUICK, permutation="oracle"), defense, told=True)
    assert psnr(guess.images, clean).min() > 25


def test_a_wrong_order_recovers_the_patches_in_wrong_positions():
    guess, clean = invert(QUICK, PatchShuffle())
    assert psnr(guess.images, clean).max() < 20
    found, true = (to_patches(images, PATCH) for images in (guess.images, clean))
    nearest = torch.cdist(true, found).min(2).values / PATCH  # root mean square of a pixel
    assert nearest.max() < 0.05


def test_only_the_upper_bound_reads_the_order():
    observation, _, orders = observe(PatchShuffle())
    for permutation in ("fixed", "resampled", "jigsaw"):
        attack = replace(QUICK, permutation=permutation, iterations=3, reader_iterations=2)
        attack = attack.fit(knowledge(PatchShuffle()), seeded())
        assert not attack.reveals_order
        without, told = (attack(replace(observation, orders=o), seeded(3)) for o in (None, orders.flip(-1)))
        assert not without.failure
        assert torch.equal(without.images, told.images)
    oracle = replace(QUICK, permutation="oracle").fit(knowledge(PatchShuffle()), seeded())
    assert oracle.reveals_order
    assert "was not given the true order" in oracle(observation, seeded()).failure


def test_orders_drawn_afresh_tell_less_than_the_true_one():
    guess, clean = invert(replace(QUICK, permutation="resampled"), PatchShuffle())
    assert psnr(guess.images, clean).max() < 20
    assert guess.diagnostics["relative_loss"] > 0.1


@pytest.mark.long
def test_a_learned_order_beats_a_fixed_one():
    jigsaw, clean = invert(replace(QUICK, permutation="jigsaw", reader_iterations=100), PatchShuffle())
    fixed, _ = invert(QUICK, PatchShuffle())
    assert mse(jigsaw.images, clean).mean() < 0.5 * mse(fixed.images, clean).mean()


@pytest.mark.parametrize("stage", ["post_embed", "pixel"])
def test_the_spectral_transform_is_followed(stage):
    attack = replace(QUICK, permutation="oracle")
    guess, clean = invert(attack, SpectralShuffle(fft_stage=stage), told=True, blocks=0)
    assert psnr(guess.images, clean).min() > 25


def test_clipping_is_followed_and_noise_left_out():
    guess, clean = invert(QUICK, FeatureDP(clip=1.0, noise_multiplier=0.0))
    assert psnr(guess.images, clean).min() > 25
    quiet = without_noise(Pipeline((PatchShuffle(), FeatureNoise(std=3.0), FeatureDP(clip=2.0))))
    assert str(quiet) == "PatchShuffle() | FeatureNoise(std=0.0) | FeatureDP(clip=2.0, noise_multiplier=0.0)"


@pytest.mark.parametrize("defense", [PatchShuffle(), BatchShuffle(k=0.4)])
def test_the_assumed_sender_sends_what_the_client_sent(defense):
    observation, clean, orders = observe(defense, targets=6)
    assumed = AssumedSender(halves(Pipeline((defense,)))[0], Pipeline((defense,)), Known())
    assert torch.allclose(assumed.features(clean, orders[0]), observation.features[0], atol=1e-5)


def test_noise_tells_nothing():
    observation, clean, _ = observe()
    noise = torch.randn(observation.features.shape, generator=seeded(4)) * observation.features.std()
    guess = QUICK.fit(knowledge(), seeded())(replace(observation, features=noise), seeded())
    assert psnr(guess.images, clean).max() < 12
    assert guess.diagnostics["relative_loss"] > 0.1


def test_total_variation_smooths():
    observation, _, _ = observe(FeatureNoise(std=1.0))
    rough, smooth = (
        replace(QUICK, total_variation=weight).fit(knowledge(), seeded())(observation, seeded()).images
        for weight in (0.0, 1.0)
    )
    assert smooth.diff(dim=-1).abs().mean() < 0.5 * rough.diff(dim=-1).abs().mean()


def test_repeats():
    attack = replace(QUICK, permutation="resampled", iterations=5)
    assert torch.equal(*(invert(attack, PatchShuffle())[0].images for _ in range(2)))


def test_failures_are_guesses_and_say_why():
    observation, _, _ = observe()
    with pytest.raises(AttackError, match="call fit"):
        QUICK(observation, seeded())
    fitted = QUICK.fit(knowledge(), seeded())
    broken = replace(observation, features=torch.full_like(observation.features, float("nan")))
    narrow = replace(observation, features=observation.features[..., :7])
    guesses = fitted.attack_many([broken, observation, narrow], [seeded()] * 3)
    assert [bool(guess.failure) for guess in guesses] == [True, False, True]
    assert (guesses[0].images == 0.5).all()
    with pytest.raises(AttackError, match="split learning"):
        QUICK.fit(replace(knowledge(), sender=None), seeded())


def test_configuration():
    assert repr(FeatureInversion()) == "FeatureInversion()"
    attack = FeatureInversion(permutation="jigsaw", iterations=7)
    assert eval(repr(attack)) == attack
    assert attack.needs_auxiliary
    assert not QUICK.needs_auxiliary
    bad = [{"permutation": "x"}, {"iterations": 0}, {"learning_rate": 0}, {"total_variation": -1}]
    for values in bad:
        with pytest.raises(ValueError, match=next(iter(values))):
            FeatureInversion(**values)


def test_what_a_stage_has_learned_stays_when_noise_is_left_out():
    images = torch.randn(6, 2, 4, 4, generator=seeded())
    context = FitContext(torch.nn.Identity(), torch.nn.Identity(), None, images, torch.zeros(6), torch.zeros(2))
    fitted = Pipeline((FeaturePCA(components=3), FeatureNoise(std=3.0))).fit(context, ("fit",))
    quiet = without_noise(fitted)
    assert version_of(quiet.state()) == version_of(fitted.state())
    assert quiet.defenses == (FeaturePCA(components=3), FeatureNoise(std=0.0))


@dataclass(frozen=True, repr=False)
class SpreadPCA(FeaturePCA):
    """What it learns has a spread, which is no noise."""

    std: float = 1.0


@dataclass(frozen=True, repr=False)
class FeatureLaplace(SmashedDefense):
    """Noise of another law, whose strength has another name."""

    scale: float = 5.0
    at_inference: ClassVar[bool] = True

    def without_noise(self) -> FeatureLaplace:
        return replace(self, scale=0.0)


def test_a_defence_says_itself_what_is_left_of_it_without_noise():
    images = torch.randn(6, 2, 4, 4, generator=seeded())
    context = FitContext(torch.nn.Identity(), torch.nn.Identity(), None, images, torch.zeros(6), torch.zeros(2))
    fitted = Pipeline((SpreadPCA(components=3),)).fit(context, ("fit",))
    quiet = without_noise(fitted)
    assert quiet.fitted
    assert quiet.defenses == (SpreadPCA(components=3, std=1.0),)
    assert without_noise(Pipeline((FeatureLaplace(scale=5.0),))).defenses == (FeatureLaplace(scale=0.0),)
