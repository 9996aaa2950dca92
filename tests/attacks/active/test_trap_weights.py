"""Trap weights turn a neuron on for the wanted share of images, and show those that a neuron is on for alone."""

from __future__ import annotations

import pytest
import torch

from attacks import AttackError, TrapWeights, null_baselines, score
from attacks.normalisation import normalise
from tests.attacks.active.answers import agreed, answered, knowledge, labels_of, photos, probed

READ = 40.0  # dB


def fitted(**changes: object) -> TrapWeights:
    return TrapWeights(**changes).fit(knowledge(), torch.Generator().manual_seed(3))  # type: ignore[arg-type]


def on(attack: TrapWeights, images: torch.Tensor) -> torch.Tensor:
    """(B, 200): which neurons of the manipulated layer each image turns on."""
    known = agreed()
    sent = attack.manipulated(known, torch.Generator().manual_seed(0))
    return sent[1](normalise(images, known).flatten(1)) > 0  # type: ignore[index]


@pytest.mark.parametrize("share", [0.02, 0.1, 0.3])
def test_a_neuron_is_on_for_the_wanted_share_of_images_it_never_saw(share: float) -> None:
    """400 new images; images differ much in how many neurons they turn on, so the mean is no sharp number."""
    assert float(on(fitted(activation=share), photos(400, seed=1)).double().mean()) == pytest.approx(share, rel=0.35)


def test_an_honest_layer_is_on_for_half() -> None:
    known = agreed()
    half = known.model[1](normalise(photos(200, 1), known).flatten(1)) > 0  # type: ignore[index]
    assert 0.3 < float(half.double().mean()) < 0.7


@pytest.mark.parametrize("count", [1, 4, 16])
def test_shows_every_image_that_a_neuron_is_on_for_alone(count: int) -> None:
    """The oracle counts in the forward pass which images are alone in some neuron, twice so that the attack can be sure."""
    attack, images = fitted(), photos(count, seed=20 + count)
    active = on(attack, images)
    alone = active[:, active.sum(0) == 1].sum(1)
    guess = probed(attack, images, labels_of(count, seed=1))
    exact = sum(psnr > READ for psnr in score(guess, images)["psnr"])
    assert int((alone > 1).sum()) <= exact <= int((alone > 0).sum())
    assert exact > 0
    assert len(guess.images) == count


def test_an_honest_model_shows_fewer_of_a_batch_than_a_manipulated_one() -> None:
    """Over 4 batches of 16. An honest layer gives a few away as well, as the paper says."""
    attack, read = fitted(), {"honest": 0, "manipulated": 0}
    for seed in range(4):
        images, labels = photos(16, seed=70 + seed), labels_of(16, seed)
        honest = attack(answered(agreed().model, images, labels), torch.Generator())
        guesses = {"honest": honest, "manipulated": probed(attack, images, labels)}
        for name, guess in guesses.items():
            read[name] += sum(psnr > READ for psnr in score(guess, images)["psnr"])
    assert read["manipulated"] > 2 * read["honest"], read


def test_is_no_better_than_grey_on_noise() -> None:
    attack, images = fitted(), photos(8, seed=6)
    seen = answered(attack.manipulated(agreed(), torch.Generator().manual_seed(0)), images, labels_of(8, 1))
    generator = torch.Generator().manual_seed(4)
    for name, value in seen.update.items():
        seen.update[name] = torch.randn(value.shape, generator=generator)
    blind = score(attack(seen, torch.Generator()), images)["psnr"]
    grey = score(null_baselines(images, images.mean(0))["grey"], images)["psnr"]
    assert sum(blind) < sum(grey) + 8


def test_does_not_apply_without_the_layer_or_the_neurons() -> None:
    with pytest.raises(AttackError, match="does not apply: no linear layer of the agreed"):
        fitted().manipulated(agreed("cnn"), torch.Generator())
    with pytest.raises(AttackError, match=r"does not apply: .*200 neurons, and rows is 300; allowed: 0 to 200"):
        fitted(rows=300).manipulated(agreed(), torch.Generator())


def test_says_what_it_allows() -> None:
    for name, value in (("activation", 0.0), ("rows", -1), ("scale", 0.0)):
        with pytest.raises(ValueError, match=f"{name} is {value!r}; allowed: "):
            TrapWeights(**{name: value})  # type: ignore[arg-type]
