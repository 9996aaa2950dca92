"""Manipulated models: images alone in a bin or a neuron are read, and class fishing leaves the gradient of one class."""

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from attacks import AttackError, ClassFishing, ImprintLayer, TrapWeights, score
from attacks.active.base import AgreedModel
from attacks.active.first_layer import ACTIVATION
from attacks.normalisation import normalise
from tests.attacks.active.answers import MEAN, SHAPE, STD, agreed, answered, knowledge, labels_of, photos, probed
from tests.attacks.limits import assert_limits
from tests.attacks.wire import stream

READ = 40.0  # dB


def fitted(cls: Any = ImprintLayer, **changes: object) -> Any:
    return cls(**changes).fit(knowledge(), stream(3))


def read(guess: Any, images: torch.Tensor) -> int:
    assert not guess.failure
    assert len(guess.images) == len(images)
    return sum(psnr > READ for psnr in score(guess, images)["psnr"])


def alone_in_bins(attack: ImprintLayer, images: torch.Tensor) -> int:
    """The oracle: how many of the images no other shares a bin with."""
    assert attack.learned is not None
    direction, thresholds = attack.learned
    bins = torch.bucketize(images.flatten(1).double() @ direction, thresholds)
    return sum(count == 1 for count in Counter(bins.tolist()).values())


@pytest.mark.numeric
def test_reads_those_that_are_alone_in_a_bin() -> None:
    """All but a few: a faint gradient leaves an image below 40 dB, and of two in a bin one may all but hide the other."""
    exact = alone = 0
    attack = fitted(bins=64)
    for count in (1, 8, 32):
        images = photos(count, seed=count)
        guess = probed(attack, images, labels_of(count, seed=1))
        found, expected = read(guess, images), alone_in_bins(attack, images)
        assert count > 1 or found == expected == 1
        assert guess.diagnostics["bins_read"] >= found
        exact, alone = exact + found, alone + expected
    assert abs(exact - alone) <= 0.2 * alone


def on(attack: TrapWeights, images: torch.Tensor) -> torch.Tensor:
    """(B, 200): which neurons of the manipulated layer each image turns on."""
    known = agreed()
    return attack.manipulated(known, stream())[1](normalise(images, known).flatten(1)) > 0  # type: ignore[index]


@pytest.mark.numeric
def test_a_trapped_neuron_is_on_for_the_wanted_share_of_new_images_and_an_honest_one_for_half() -> None:
    """400 images; they differ much in how many neurons they turn on, so the mean is no sharp number."""
    found = on(fitted(TrapWeights), photos(400, seed=1)).double().mean()
    assert float(found) == pytest.approx(ACTIVATION, rel=0.5)
    known = agreed()
    half = known.model[1](normalise(photos(200, 1), known).flatten(1)) > 0  # type: ignore[index]
    assert 0.3 < float(half.double().mean()) < 0.7


@pytest.mark.numeric
def test_trap_weights_show_every_image_that_a_neuron_is_on_for_alone() -> None:
    """The oracle counts in the forward pass which images are alone in some neuron, twice so that the attack can be sure."""
    attack = fitted(TrapWeights)
    for count in (1, 4, 16):
        images = photos(count, seed=20 + count)
        active = on(attack, images)
        alone = active[:, active.sum(0) == 1].sum(1)
        exact = read(probed(attack, images, labels_of(count, seed=1)), images)
        # Faint gradients leave some below 40 dB.
        assert 0.5 * int((alone > 1).sum()) <= exact <= int((alone > 0).sum())
        assert exact > 0


@pytest.mark.numeric
def test_an_honest_model_shows_fewer_of_a_batch_than_a_manipulated_one() -> None:
    """An honest layer gives bins nothing but mixtures, and gives a few images away to a reader of single neurons."""
    attack, found = fitted(TrapWeights), Counter[str]()
    for seed in range(4):
        images, labels = photos(16, seed=70 + seed), labels_of(16, seed)
        honest = answered(agreed().model, images, labels)
        found["bins of the honest"] += read(fitted(bins=64)(honest, stream()), images)
        found["honest"] += read(attack(honest, stream()), images)
        found["manipulated"] += read(probed(attack, images, labels), images)
    assert found["bins of the honest"] == 0
    assert found["manipulated"] > 1.5 * found["honest"], found


def test_leaves_the_agreed_model_and_its_architecture_alone() -> None:
    for attack in (fitted(), fitted(TrapWeights)):
        known = agreed()
        before = {name: value.clone() for name, value in known.model.state_dict().items()}
        sent = attack.manipulated(known, stream())
        assert all(torch.equal(value, known.model.state_dict()[name]) for name, value in before.items())
        assert {n: v.shape for n, v in sent.state_dict().items()} == {n: v.shape for n, v in before.items()}
        assert not torch.equal(sent.state_dict()["1.weight"], before["1.weight"])


def test_where_it_does_not_apply_it_says_so() -> None:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(3 * 16 * 16, 10))
    unseen = "does not apply: no linear layer of the agreed"
    for attack, known, why in (
        *((fitted(), agreed(model), unseen) for model in ("cnn", "resnet20", "lenet")),
        (fitted(), AgreedModel(flat, SHAPE, MEAN, STD), "does not apply"),
        (fitted(bins=201), agreed(), r"does not apply: .*200 neurons, and bins is 201; allowed: 2 to 200"),
        (fitted(TrapWeights), agreed("cnn"), unseen),
        (ImprintLayer(), agreed(), "call fit first"),
    ):
        with pytest.raises(AttackError, match=why):
            attack.manipulated(known, stream())
    assert_limits(ImprintLayer, bins=(1, 2))
    assert_limits(ImprintLayer, bins=(10**6 + 1, 10**6))


# ---- class fishing


OTHERS = torch.tensor([1, 2, 9, 4, 4, 7, 8])


def labels_with(*fished: int) -> torch.Tensor:
    return torch.cat([torch.tensor(fished, dtype=torch.long), OTHERS])


@pytest.mark.numeric
def test_what_is_fished_is_the_gradient_of_that_class_alone() -> None:
    for model, count in (("mlp", 1), ("mlp", 2), ("cnn", 2), ("lenet", 1)):
        attack, images = ClassFishing(target=3), photos(len(OTHERS) + count, seed=2)
        sent = attack.manipulated(agreed(model), torch.Generator())
        numbers: dict[str, float] = {}
        seen = attack.fished(answered(sent, images, labels_with(*[3] * count)), numbers)
        assert numbers["fished"] == count == seen.num_examples
        found = seen.gradient()
        loss = F.cross_entropy(sent(normalise(images[:count], seen)), torch.full((count,), 3))
        slopes = torch.autograd.grad(loss, list(sent.parameters()))
        for (name, _), wanted in zip(sent.named_parameters(), slopes, strict=True):
            assert F.cosine_similarity(found[name].flatten(), wanted.flatten(), dim=0) > 0.995, name
            assert found[name].norm() == pytest.approx(float(wanted.norm()), rel=0.02), name


def test_class_fishing_says_where_it_does_not_apply() -> None:
    attack, known, stream = ClassFishing(target=3, iterations=2), agreed("cnn"), torch.Generator()
    with pytest.raises(AttackError, match="does not apply: target is 10; allowed: a class of the model, 0 to 9"):
        ClassFishing(target=10).manipulated(known, stream)
    sent = attack.manipulated(known, stream)
    guess = attack(answered(sent, photos(8, 1), labels_with(3)), stream)
    assert (guess.failure, guess.labels.tolist()) == ("", [3, *[-1] * 7])
    assert torch.equal(guess.images[1:], torch.full_like(guess.images[1:], 0.5))
    assert not torch.equal(guess.images[0], guess.images[1])
    for seen, why in (
        (answered(sent, photos(7, 1), OTHERS), "does not apply: no example of class 3 is in the batch"),
        (answered(sent, photos(8, 1), labels_with(3), local_steps=2), "does not apply: the update has 2 local steps"),
    ):
        guess = attack(seen, stream)
        assert guess.failure.startswith(why)
        assert guess.diagnostics.get("fished", 0) == 0
    assert_limits(ClassFishing, target=(-1, 0), iterations=(0, 1))
