from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attacks.base import Knowledge
from attacks.image_measures import mse, psnr
from attacks.observations import AttackError
from attacks.sender import Sender
from attacks.smashed.base import SmashedData
from attacks.smashed.token_puzzle import TokenPuzzle
from attacks.smashed.tokens.positions import to_patches
from clients.data.packaged import photograph
from clients.models.split.split_models import SplitShape, build_split_model
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.smashed.feature_noise import FeatureNoise
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from defenses.smashed.spectral_shuffle import SpectralShuffle
from tests.attacks.smashed_wire import assert_reads_three_images_of_six, knowledge, observe, seeded
from tests.attacks.wire import pictures

SIDE, PATCH = 48, 8


def photographs(*defenses, transmissions: int = 1) -> tuple[SmashedData, torch.Tensor, Knowledge]:
    """Squares of four photographs as a client sends them in a batch, 36 tokens each, and what the server knows: no image."""
    cuts = {"astronaut": (20, 180), "coffee": (100, 200), "cat": (60, 120), "rocket": (200, 300)}
    clean = torch.stack([
        torch.from_numpy(photograph(name)[top : top + SIDE, left : left + SIDE].copy()).permute(2, 0, 1).float() / 255
        for name, (top, left) in cuts.items()
    ])  # fmt: skip
    pipeline = Pipeline(defenses)
    edge, server = build_split_model(
        "vit", num_classes=4, input_shape=(3, SIDE, SIDE), shape=SplitShape(PATCH, 192, 2, 2, 1), seed=0
    )
    statistics = (0.5, 0.4, 0.6), (0.3, 0.25, 0.2)
    sender = Sender(edge.eval().requires_grad_(False), pipeline, *statistics)
    features = torch.stack([sender.send(clean, seeded(number)) for number in range(transmissions)])
    seen = SmashedData(features, 4, edge, server, (3, SIDE, SIDE), *statistics)
    nothing = Batch(torch.zeros(0, 3, SIDE, SIDE), torch.zeros(0, 4))
    return seen, clean, Knowledge(nothing, pipeline, *statistics, train=lambda *_: server, sender=sender)


def guess_of(attack: TokenPuzzle, *defenses, **more):
    seen, clean, known = photographs(*defenses, **more)
    return attack.fit(known, seeded())(seen, seeded()), clean


def test_a_patch_shuffle_of_photographs_is_undone_without_any_image():
    guess, clean = guess_of(TokenPuzzle(), PatchShuffle())
    assert not guess.failure
    assert (psnr(guess.images, clean) > 40).sum() >= 3
    assert guess.diagnostics["exact"] == 1
    assert guess.diagnostics["kept_share"] == 1
    assert guess.labels.tolist() == [-1] * 4


def test_images_of_a_batch_shuffle_come_from_one_transmission():
    guess, clean = guess_of(TokenPuzzle(), BatchShuffle(k=0.4))
    mean = torch.full_like(clean, 0.5)
    assert guess.diagnostics["kept_share"] == pytest.approx(0.4, abs=0.05)
    assert (mse(guess.images, clean) < 0.2 * mse(mean, clean)).sum() >= 2


def test_tokens_that_recur_are_the_images_own():
    guess, clean = guess_of(TokenPuzzle(), BatchShuffle(k=0.4), transmissions=24)
    mean = torch.full_like(clean, 0.5)
    assert (mse(guess.images, clean) < 0.2 * mse(mean, clean)).sum() >= 3


def test_noise_is_measured_and_allowed_for():
    guess, clean = guess_of(TokenPuzzle(evaluations=10), FeatureNoise(std=0.02))
    assert guess.diagnostics["noise"] == pytest.approx(0.02, rel=0.2)
    assert guess.diagnostics["exact"] == 0
    mean = torch.full_like(clean, 0.5)
    assert (mse(guess.images, clean) < 0.5 * mse(mean, clean)).sum() >= 2


@pytest.mark.parametrize("defense", [SpectralShuffle(), FeatureNoise(std=50.0)])
def test_other_defences_than_shuffles_are_named(defense):
    blocks = 0 if isinstance(defense, SpectralShuffle) else 1
    observation, _, _ = observe(defense, targets=2, blocks=blocks)
    guess = TokenPuzzle().fit(knowledge(defense, blocks=blocks), seeded())(observation, seeded())
    assert guess.failure.startswith("does not apply: ")


def test_noise_tells_nothing():
    observation, clean, _ = observe(PatchShuffle(), targets=6)
    attack = TokenPuzzle(evaluations=5).fit(knowledge(PatchShuffle()), seeded())
    noise = torch.randn(observation.features.shape, generator=seeded(4)) * observation.features.std()
    mean = pictures(256, seed=5).mean(0).expand_as(clean)
    assert mse(attack(replace(observation, features=noise), seeded()).images, clean).mean() > mse(mean, clean).mean()


def test_patches_are_exact_even_where_the_puzzle_is_not_solved():
    observation, clean, _ = observe(PatchShuffle(), targets=6)
    attack = TokenPuzzle().fit(knowledge(PatchShuffle()), seeded())
    found, true = to_patches(attack(observation, seeded()).images, 4), to_patches(clean, 4)
    assert torch.cdist(found, true, compute_mode="donot_use_mm_for_euclid_dist").amin(2).max() < 1e-3


def test_never_reads_the_order_and_repeats():
    observation, _, orders = observe(PatchShuffle())
    attack = TokenPuzzle().fit(knowledge(PatchShuffle()), seeded())
    one, two = (attack(replace(observation, orders=order), seeded()) for order in (None, orders.flip(-1)))
    assert torch.equal(one.images, two.images)
    assert not attack.reveals_order


def test_large_batches_are_cut_to_what_fits():
    attack = TokenPuzzle(max_tokens=27, transmissions=1).fit(knowledge(BatchShuffle(k=0.4)), seeded())
    assert_reads_three_images_of_six(attack)


def test_failures_are_guesses_and_say_why():
    observation, _, _ = observe(PatchShuffle())
    with pytest.raises(AttackError, match="call fit"):
        TokenPuzzle()(observation, seeded())
    attack = TokenPuzzle().fit(knowledge(PatchShuffle()), seeded())
    narrow = replace(observation, features=observation.features[..., :7])
    broken = replace(observation, features=observation.features * float("nan"))
    guesses = attack.attack_many([narrow, broken, observation], [seeded()] * 3)
    assert [bool(guess.failure) for guess in guesses] == [True, True, False]


def test_configuration():
    assert repr(TokenPuzzle()) == "TokenPuzzle()"
    for values in ({"evaluations": 0}, {"transmissions": 0}, {"max_tokens": 0}):
        with pytest.raises(ValueError, match=next(iter(values))):
            TokenPuzzle(**values)
