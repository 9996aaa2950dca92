from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attacks.image_measures import mse, psnr
from attacks.observations import AttackError
from attacks.smashed.tokens.jigsaw import TokenJigsaw
from defenses.smashed.feature_noise import FeatureNoise
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from tests.attacks.smashed_wire import assert_reads_three_images_of_six, knowledge, observe, seeded
from tests.attacks.wire import pictures

QUICK = TokenJigsaw(iterations=100)


@pytest.fixture(scope="module")
def fitted():
    return QUICK.fit(knowledge(PatchShuffle()), seeded(1))


@pytest.mark.long
def test_a_patch_shuffle_is_undone(fitted):
    observation, clean, _ = observe(PatchShuffle(), targets=6)
    guess = fitted(observation, seeded())
    mean = pictures(256, seed=5).mean(0).expand_as(clean)
    assert mse(guess.images, clean).mean() < 0.5 * mse(mean, clean).mean()
    assert psnr(guess.images, clean).max() > 25
    assert guess.labels.tolist() == [-1] * 6
    assert guess.diagnostics["order_accuracy"] > 0.5


@pytest.mark.long
def test_what_one_transmission_cannot_tell_is_guessed_as_the_mean():
    attack = QUICK.fit(knowledge(BatchShuffle(k=0.67)), seeded(1))
    observation, clean, _ = observe(BatchShuffle(k=0.67), targets=6)
    guess = attack(observation, seeded())
    mean = pictures(256, seed=5).mean(0).expand_as(clean)
    assert mse(guess.images, clean).mean() < 1.1 * mse(mean, clean).mean()


@pytest.mark.long
def test_noise_tells_nothing(fitted):
    observation, clean, _ = observe(PatchShuffle(), targets=6)
    noise = torch.randn(observation.features.shape, generator=seeded(4)) * observation.features.std()
    guess = fitted(replace(observation, features=noise), seeded())
    mean = pictures(256, seed=5).mean(0).expand_as(clean)
    assert mse(guess.images, clean).mean() > mse(mean, clean).mean()


@pytest.mark.long
def test_learns_from_features_with_noise():
    defenses = (PatchShuffle(), FeatureNoise(std=0.1))
    observation, clean, _ = observe(*defenses, targets=6)
    guess = QUICK.fit(knowledge(*defenses), seeded(1))(observation, seeded())
    mean = pictures(256, seed=5).mean(0).expand_as(clean)
    assert mse(guess.images, clean).mean() < mse(mean, clean).mean()


@pytest.mark.long
def test_never_reads_the_order(fitted):
    observation, _, orders = observe(PatchShuffle())
    one, two = (fitted(replace(observation, orders=o), seeded()) for o in (None, orders.flip(-1)))
    assert torch.equal(one.images, two.images)
    assert not fitted.reveals_order


def test_large_batches_are_cut_to_what_fits():
    attack = replace(QUICK, iterations=2, max_tokens=27).fit(knowledge(BatchShuffle(k=0.4)), seeded())
    assert_reads_three_images_of_six(attack)


def test_repeats():
    observation, _, _ = observe(PatchShuffle())
    attack = replace(QUICK, iterations=3)
    one, two = (attack.fit(knowledge(PatchShuffle()), seeded())(observation, seeded()) for _ in range(2))
    assert torch.equal(one.images, two.images)


@pytest.mark.long
def test_failures_are_guesses_and_say_why(fitted):
    observation, _, _ = observe(PatchShuffle())
    with pytest.raises(AttackError, match="call fit"):
        QUICK(observation, seeded())
    narrow = replace(observation, features=observation.features[..., :7])
    broken = replace(observation, features=observation.features * float("nan"))
    guesses = fitted.attack_many([narrow, broken, observation], [seeded()] * 3)
    assert [bool(guess.failure) for guess in guesses] == [True, True, False]
    with pytest.raises(AttackError, match="split learning"):
        QUICK.fit(replace(knowledge(), sender=None), seeded())


def test_configuration():
    assert repr(TokenJigsaw()) == "TokenJigsaw()"
    assert eval(repr(QUICK)) == QUICK
    for values in ({"iterations": 0}, {"width": 6}, {"batch_size": 1}, {"max_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(values))):
            TokenJigsaw(**values)
