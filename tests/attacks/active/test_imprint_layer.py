"""The imprint layer reads exactly the images that are alone in a bin, which can be counted by sorting the truth into bins."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from torch import nn

from attacks import AttackError, ImprintLayer, null_baselines, score
from attacks.active.base import AgreedModel
from tests.attacks.active.answers import MEAN, SHAPE, STD, agreed, answered, knowledge, labels_of, photos, probed

READ = 40.0  # dB


def fitted(**changes: object) -> ImprintLayer:
    return ImprintLayer(**changes).fit(knowledge(), torch.Generator().manual_seed(3))  # type: ignore[arg-type]


def alone_in_bins(attack: ImprintLayer, images: torch.Tensor) -> int:
    """The oracle: how many of the images no other shares a bin with."""
    assert attack.learned is not None
    direction, thresholds = attack.learned
    bins = torch.bucketize(images.flatten(1).double() @ direction, thresholds)
    return sum(count == 1 for count in Counter(bins.tolist()).values())


@pytest.mark.parametrize("measurement", ["brightness", "gaussian"])
@pytest.mark.parametrize("count", [1, 8, 32])
def test_reads_exactly_those_that_are_alone_in_a_bin(count: int, measurement: str) -> None:
    attack = fitted(bins=64, measurement=measurement)
    images = photos(count, seed=count)
    guess = probed(attack, images, labels_of(count, seed=1))
    assert not guess.failure
    assert len(guess.images) == count
    exact = sum(psnr > READ for psnr in score(guess, images)["psnr"])
    assert exact == alone_in_bins(attack, images)
    assert guess.diagnostics["bins_read"] >= exact


def test_finds_about_as_many_as_the_bins_let_one_expect() -> None:
    """B (1 - 1/K)^(B - 1) of B images that fall evenly into K bins; here 8 batches of 16 in 32 bins."""
    attack, found = fitted(bins=32), 0
    for seed in range(8):
        images = photos(16, seed=50 + seed)
        guess = probed(attack, images, labels_of(16, seed), seed=seed)
        found += sum(psnr > READ for psnr in score(guess, images)["psnr"])
    expected = 8 * 16 * (1 - 1 / 32) ** 15
    assert abs(found - expected) < 4 * (expected * (1 - expected / 128)) ** 0.5


def test_an_honest_model_gives_it_nothing_but_mixtures() -> None:
    """Without the manipulation the quotients of neighbours are no images: the manipulation does the work."""
    attack, images = fitted(bins=64), photos(8, seed=5)
    guess = attack(answered(agreed().model, images, labels_of(8, 1)), torch.Generator())
    assert sum(psnr > READ for psnr in score(guess, images)["psnr"]) == 0


def test_is_no_better_than_grey_on_noise() -> None:
    attack, images = fitted(bins=64), photos(8, seed=6)
    seen = answered(attack.manipulated(agreed(), torch.Generator().manual_seed(0)), images, labels_of(8, 1))
    generator = torch.Generator().manual_seed(4)
    for name, value in seen.update.items():
        seen.update[name] = torch.randn(value.shape, generator=generator)
    blind = score(attack(seen, torch.Generator()), images)["psnr"]
    grey = score(null_baselines(images, images.mean(0))["grey"], images)["psnr"]
    assert sum(blind) < sum(grey) + 8


@pytest.mark.parametrize("model", ["cnn", "resnet20", "lenet"])
def test_does_not_apply_where_no_linear_layer_sees_the_pixels(model: str) -> None:
    with pytest.raises(AttackError, match="does not apply: no linear layer of the agreed"):
        fitted().manipulated(agreed(model), torch.Generator())


def test_does_not_apply_to_fewer_neurons_than_bins_or_to_one_linear_layer() -> None:
    with pytest.raises(AttackError, match=r"does not apply: .*200 neurons, and bins is 201; allowed: 2 to 200"):
        fitted(bins=201).manipulated(agreed(), torch.Generator())
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    with pytest.raises(AttackError, match="does not apply"):
        fitted().manipulated(AgreedModel(flat, SHAPE, MEAN, STD), torch.Generator())


def test_leaves_the_agreed_model_and_its_architecture_alone() -> None:
    known = agreed()
    before = {name: value.clone() for name, value in known.model.state_dict().items()}
    sent = fitted().manipulated(known, torch.Generator().manual_seed(0))
    assert all(torch.equal(value, known.model.state_dict()[name]) for name, value in before.items())
    assert {n: v.shape for n, v in sent.state_dict().items()} == {n: v.shape for n, v in before.items()}
    assert not torch.equal(sent.state_dict()["1.weight"], before["1.weight"])


def test_says_what_it_allows() -> None:
    with pytest.raises(ValueError, match="bins is 1; allowed: a whole number from 2 to 1000000"):
        ImprintLayer(bins=1)
    with pytest.raises(ValueError, match=r"measurement is 'hue'; allowed: brightness \| gaussian"):
        ImprintLayer(measurement="hue")
    with pytest.raises(AttackError, match="call fit first"):
        ImprintLayer().manipulated(agreed(), torch.Generator())
