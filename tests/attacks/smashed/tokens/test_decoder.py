from __future__ import annotations

import pickle
from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F

from attacks.networks.decoder import DecoderNetwork, Layout
from attacks.observations import AttackError
from attacks.smashed.adaptive_decoder import AdaptiveDecoder
from attacks.smashed.feature_averaging import FeatureAveraging
from attacks.smashed.pix2pix import Pix2Pix
from attacks.smashed.tokens.decoder import TokenDecoder
from defenses.images.blur import Blur
from defenses.smashed.patch_shuffle import BatchShuffle, PatchShuffle
from defenses.spec import parse_statements
from tests.attacks.decoding import SHAPE, TARGETS, error, error_of_mean_image, knowledge, observe, seeded, sender
from tests.attacks.wire import generators

SMALL = TokenDecoder(iterations=80, width=32, depth=2, learning_rate=3e-3)
SHORT = {"iterations": 2, "width": 8, "batch_size": 8}
EVERY = [
    TokenDecoder(**SHORT),
    AdaptiveDecoder(**SHORT, transmissions=3, num_images=24),
    FeatureAveraging(**SHORT, transmissions=3, num_images=24),
    Pix2Pix(**SHORT),
]


@pytest.fixture(scope="module")
def fitted():
    return SMALL.fit(knowledge(sender()), seeded())


@pytest.fixture(scope="module")
def shuffled():
    return replace(SMALL, iterations=5).fit(knowledge(sender(PatchShuffle())), seeded())


def test_decodes_digits_it_never_saw(fitted):
    guess = fitted(observe(sender()), seeded())
    assert error(guess) < 0.5 * error_of_mean_image()
    assert guess.diagnostics["holdout_psnr"] > guess.diagnostics["holdout_psnr_mean_image"] + 3
    assert guess.images.shape == (TARGETS, *SHAPE)
    assert guess.images.min() >= 0
    assert guess.images.max() <= 1
    assert torch.equal(guess.labels, torch.full((TARGETS,), -1))


def test_knows_nothing_about_images_that_it_gets_noise_for(fitted):
    seen = observe(sender())
    noise = seen.features.std() * torch.randn(seen.features.shape, generator=seeded(5)) + seen.features.mean()
    assert error(fitted(replace(seen, features=noise), seeded())) > 0.98 * error_of_mean_image()


def test_guesses_another_digit_from_the_features_of_another(fitted):
    seen = observe(sender())
    moved = replace(seen, features=seen.features.roll(1, 1))
    assert error(fitted(moved, seeded())) > error_of_mean_image()


def test_reads_shuffled_tokens_as_a_set(shuffled, fitted):
    seen = observe(sender(PatchShuffle()))
    again = replace(seen, features=seen.features.flip(2))
    assert torch.allclose(shuffled(seen, seeded()).images, shuffled(again, seeded()).images, atol=1e-5)
    # Where tokens stay in their slots, these mean something.
    assert not torch.allclose(fitted(seen, seeded()).images, fitted(again, seeded()).images, atol=1e-2)


@pytest.mark.long
def test_moves_the_content_of_shuffled_tokens_to_its_position():
    """Patches that say where they belong (a ramp over the image) can be put back: nothing else tells their positions."""
    ramp = torch.linspace(0.1, 0.9, 16).repeat_interleave(49).view(1, 16, 49).transpose(1, 2)
    layout = Layout((4, 4), 7, 1)
    images = (F.fold(ramp, (28, 28), 7, stride=7) + 0.02 * torch.randn(240, 1, 28, 28, generator=seeded())).clamp(0, 1)
    client = sender(PatchShuffle(), edge_blocks=0, raw_patches=True)
    known = knowledge(client)
    known = replace(known, auxiliary=replace(known.auxiliary, images=images))
    report = replace(SMALL, iterations=100).fit(known, seeded()).learned.diagnostics
    means = images.mean((1, 2, 3), keepdim=True).expand_as(images)
    assert layout.fold(ramp.transpose(1, 2)).shape == (1, 1, 28, 28)
    assert report["holdout_psnr"] > -10 * torch.log10((images - means).square().mean()) + 6


@pytest.mark.parametrize("defense", [BatchShuffle(k=0.5), Blur()], ids=lambda d: type(d).__name__)
@pytest.mark.parametrize("attack", EVERY, ids=lambda a: type(a).__name__)
def test_every_decoder_trains_against_any_defence(attack, defense):
    client = sender(defense, width=16)
    guess = attack.fit(knowledge(client, count=40), seeded())(observe(client, attack.transmissions, 3), seeded())
    assert not guess.failure
    assert guess.images.shape == (3, *SHAPE)
    assert torch.isfinite(guess.images).all()
    assert 0 <= guess.images.min() <= guess.images.max() <= 1


@pytest.mark.parametrize("attack", EVERY, ids=lambda a: type(a).__name__)
def test_every_fit_repeats_itself_and_leaves_the_global_stream_alone(attack):
    known, state = knowledge(sender(PatchShuffle(), width=16), count=24), torch.get_rng_state()
    nets = [attack.fit(known, seeded(n)).learned.network.state_dict() for n in (1, 1, 2)]
    assert torch.equal(state, torch.get_rng_state())
    assert all(torch.equal(nets[0][key], nets[1][key]) for key in nets[0])
    assert not all(torch.equal(nets[0][key], nets[2][key]) for key in nets[0])


@pytest.mark.parametrize("attack", EVERY, ids=lambda a: type(a).__name__)
def test_every_text_and_pickle_give_it_back(attack):
    client = sender(width=16)
    learned = attack.fit(knowledge(client, count=24), seeded())
    assert parse_statements(repr(learned), {type(attack).__name__: type(attack)}, "attack") == [[attack]]
    again, seen = pickle.loads(pickle.dumps(learned)), observe(client, attack.transmissions)
    assert again == learned == attack
    assert torch.equal(again(seen, seeded()).images, learned(seen, seeded()).images)


@pytest.mark.parametrize("attack", EVERY, ids=lambda a: type(a).__name__)
def test_every_decoder_must_be_fitted_on_enough(attack):
    with pytest.raises(AttackError, match="call fit first"):
        attack(observe(sender(width=16), attack.transmissions), seeded())
    with pytest.raises(AttackError, match="16 auxiliary"):
        attack.fit(knowledge(sender(width=16), count=15), seeded())
    with pytest.raises(AttackError, match="clients hold no half"):
        attack.fit(knowledge(None), seeded())


def test_one_bad_observation_harms_no_other(fitted):
    good = observe(sender())
    broken = replace(good, features=torch.full_like(good.features, torch.nan))
    narrow = replace(good, features=good.features[..., :-1])
    results = fitted.attack_many([broken, good, narrow, replace(good, features=good.features[:0])], generators(4))
    assert "NaN" in results[0].failure
    assert "shape" in results[2].failure
    assert "transmissions" in results[3].failure
    assert torch.equal(results[2].images, torch.full((TARGETS, *SHAPE), 0.5))
    assert torch.equal(results[1].images, fitted(good, seeded()).images)


def test_guesses_do_not_depend_on_the_rest_of_the_batch(fitted):
    seen = observe(sender())
    alone = replace(seen, features=seen.features[:, :TARGETS])
    assert torch.equal(fitted(alone, seeded()).images, fitted(seen, seeded()).images)


def test_patches_are_put_together_row_by_row():
    images = torch.rand(2, 3, 8, 12, generator=seeded())
    layout = Layout((2, 3), 4, 3)
    patches = torch.stack([images[..., r : r + 4, c : c + 4].flatten(1) for r in (0, 4) for c in (0, 4, 8)], 1)
    assert torch.equal(layout.fold(patches), images)


@pytest.mark.parametrize("as_set", [False, True])
def test_features_of_any_scale_start_alike(as_set):
    """Standardised inputs: a client half whose features are a thousand times as large gives the same first guess."""
    sample, layout = torch.randn(4, 6, 5, generator=seeded()), Layout((2, 3), 2, 1)
    sample[..., 0] = 1.0  # a feature that never changes
    sizes = {"width": 8, "depth": 1, "heads": 2, "as_set": as_set}
    guesses = [
        DecoderNetwork(scale * sample + 7, layout, **sizes, generator=seeded())(scale * sample + 7)
        for scale in (1.0, 1000.0)
    ]
    assert torch.isfinite(guesses[0]).all()
    assert torch.allclose(*guesses, atol=1e-3)


@pytest.mark.parametrize(
    "change",
    [
        {"iterations": 0},
        {"width": 0},
        {"batch_size": 7},
        {"batch_size": 0},
        {"learning_rate": 0.0},
        {"depth": 0},
        {"heads": 5},
    ],
)
def test_refuses_bad_values(change):
    with pytest.raises(ValueError, match=next(iter(change))):
        TokenDecoder(**change)
