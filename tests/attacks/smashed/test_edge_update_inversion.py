from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attacks.image_measures import mse, psnr
from attacks.normalisation import normalise
from attacks.observations import AttackError
from attacks.smashed.base import EdgeStep
from attacks.smashed.edge_update_inversion import EdgeUpdateInversion
from attacks.smashed.tokens.positions import to_patches
from defenses.pipeline import Pipeline
from defenses.smashed.feature_noise import FeatureDP, FeatureNoise
from defenses.smashed.patch_shuffle import PatchShuffle
from defenses.smashed.spectral_shuffle import SpectralShuffle
from tests.attacks.smashed_wire import PATCH, Known, halves, knowledge, observe, seeded

RATE, DECAY = 0.1, 5e-4
QUICK = EdgeUpdateInversion(iterations=80)
LOUD = FeatureNoise(std=2.0)


def stepped(*defenses, batch=2, blocks=1, width=32):
    """An observation with the client half's step, computed as PyTorch's own SGD takes it."""
    observation, clean, orders = observe(*defenses, batch=batch, targets=batch, blocks=blocks, width=width)
    edge = halves(Pipeline(defenses), blocks, width)[0]
    returned = torch.randn(observation.features.shape[1:], generator=seeded(8))
    before = {name: weight.detach().clone() for name, weight in edge.named_parameters()}
    optimizer = torch.optim.SGD(edge.parameters(), RATE, weight_decay=DECAY)
    pipeline, key = Pipeline(defenses), ("client", 0)
    tokens = pipeline.protect_tokens(edge.embed(normalise(clean, Known())), key)
    pipeline.protect_features(edge.encode(tokens), key).backward(returned)
    optimizer.step()
    update = {name: (weight.detach() - before[name]) for name, weight in edge.named_parameters()}
    edge.load_state_dict(before)
    optimizer.zero_grad()
    return replace(observation, step=EdgeStep(update, returned, RATE, DECAY)), clean, orders


def attacked(attack, observation, *defenses, blocks=1):
    return attack.fit(knowledge(*defenses, blocks=blocks), seeded())(observation, seeded())


def test_linear_equations_are_solved_exactly_whatever_the_noise():
    # 2 images of 9 tokens give 18 unknown rows, and there are 32 equations for each pixel.
    observation, clean, _ = stepped(FeatureNoise(std=100.0), blocks=0)
    guess = attacked(QUICK, observation, FeatureNoise(std=100.0), blocks=0)
    assert psnr(guess.images, clean).min() > 40
    assert guess.diagnostics["closed_form"] == 1
    assert abs(guess.diagnostics["gradient_distance"]) < 1e-4


def test_equations_improve_what_noisy_features_show_when_they_are_too_few():
    observation, clean, _ = stepped(FeatureNoise(std=0.3), batch=6, blocks=0)  # 54 unknown rows, 32 equations
    nothing = {name: torch.zeros_like(value) for name, value in observation.step.update.items()}
    seen = attacked(QUICK, observation, FeatureNoise(std=0.3), blocks=0)
    silent = replace(observation, step=EdgeStep(nothing, torch.zeros_like(observation.step.gradient), RATE, 0.0))
    alone = attacked(QUICK, silent, FeatureNoise(std=0.3), blocks=0)
    assert mse(seen.images, clean).mean() < 0.7 * mse(alone.images, clean).mean()


def test_a_shuffle_stays_a_puzzle_of_the_right_patches():
    observation, clean, orders = stepped(PatchShuffle(), LOUD, blocks=0)
    guess = attacked(QUICK, observation, PatchShuffle(), LOUD, blocks=0)
    sent = to_patches(clean, PATCH).flatten(0, 1)[orders[0]]
    assert torch.allclose(to_patches(guess.images, PATCH), sent, atol=1e-2)


def test_a_client_half_with_blocks_is_searched():
    observation, clean, _ = stepped()
    guess = attacked(QUICK, observation)
    assert psnr(guess.images, clean).min() > 25
    assert guess.diagnostics["closed_form"] == 0
    assert guess.diagnostics["gradient_distance"] < 0.05


def test_the_update_tells_what_noisy_features_hide():
    observation, clean, _ = stepped(LOUD)
    both = attacked(replace(QUICK, feature_weight=0.01), observation, LOUD)
    features = attacked(replace(QUICK, feature_weight=1e6), observation, LOUD)
    assert mse(both.images, clean).mean() < 0.7 * mse(features.images, clean).mean()


def test_noise_tells_nothing():
    observation, clean, _ = stepped(LOUD)
    step = observation.step
    noise = {n: torch.randn(u.shape, generator=seeded(i)) * u.std() for i, (n, u) in enumerate(step.update.items())}
    lost = replace(
        observation,
        step=replace(step, update=noise),
        features=torch.randn(observation.features.shape, generator=seeded(4)),
    )
    guess = attacked(QUICK, lost, LOUD)
    assert psnr(guess.images, clean).max() < 12
    assert guess.diagnostics["gradient_distance"] > 0.5


@pytest.mark.parametrize("defense", [SpectralShuffle(), FeatureDP(clip=1.0, noise_multiplier=0.0)])
def test_what_is_no_plain_embedding_is_searched(defense):
    observation, _, _ = stepped(defense, blocks=0)
    guess = attacked(replace(QUICK, iterations=3), observation, defense, blocks=0)
    assert not guess.failure
    assert guess.diagnostics["closed_form"] == 0


def test_repeats_and_leaves_the_client_half_alone():
    observation, _, orders = stepped(PatchShuffle())
    before = [weight.clone() for weight in observation.edge.parameters()]
    attack = replace(QUICK, iterations=5)
    one, two = (attacked(attack, replace(observation, orders=o), PatchShuffle()) for o in (None, orders))
    assert torch.equal(one.images, two.images)
    assert all(map(torch.equal, before, observation.edge.parameters()))


def test_failures_are_guesses_and_say_why():
    observation, _, _ = stepped()
    fitted = QUICK.fit(knowledge(), seeded())
    with pytest.raises(AttackError, match="call fit"):
        QUICK(observation, seeded())
    assert "not trained" in fitted(replace(observation, step=None), seeded()).failure
    step = observation.step
    assert "lacks" in fitted(replace(observation, step=replace(step, update={})), seeded()).failure
    short = replace(step, gradient=step.gradient[:1])
    assert "does not fit" in fitted(replace(observation, step=short), seeded()).failure
    raw = SpectralShuffle(fft_stage="pixel")
    bare, _, _ = observe(raw, blocks=0, targets=2)
    bare = replace(bare, step=EdgeStep({}, torch.zeros_like(bare.features[0]), RATE, DECAY))
    assert "no weights" in attacked(QUICK, bare, raw, blocks=0).failure
    with pytest.raises(AttackError, match="split learning"):
        QUICK.fit(replace(knowledge(), sender=None), seeded())


def test_configuration():
    assert EdgeUpdateInversion().needs_step
    assert repr(EdgeUpdateInversion()) == "EdgeUpdateInversion()"
    assert eval(repr(QUICK)) == QUICK
    for values in ({"iterations": 0}, {"learning_rate": 0}, {"feature_weight": -1}):
        with pytest.raises(ValueError, match=next(iter(values))):
            EdgeUpdateInversion(**values)
