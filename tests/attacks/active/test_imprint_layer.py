"""Manipulated models: images alone in a bin or a neuron are read, and class fishing leaves the gradient of one class."""

import copy
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attacks import AttackError, ClassFishing, ImprintLayer, Knowledge, TrapWeights, score
from attacks.active.base import ActiveAttack, AgreedModel, ManipulatedProbe
from attacks.active.first_layer import ACTIVATION
from attacks.normalisation import normalise
from clients.models.classifiers import build_model
from defenses.base import Batch
from defenses.pipeline import Pipeline
from tests.attacks.wire import pictures, stream, untrained

SHAPE = (3, 16, 16)
MEAN, STD = (0.5, 0.45, 0.4), (0.25, 0.2, 0.3)
CLASSES = 10
RATE = 0.01


def photos(count: int, seed: int) -> Tensor:
    """Smooth colour pictures of differing brightness (count, 3, 16, 16)."""
    dim = torch.rand(count, 1, 1, 1, generator=torch.Generator().manual_seed(seed + 1))
    return pictures(count, SHAPE[1], SHAPE[0], seed) * (0.4 + 0.6 * dim)


def labels_of(count: int, seed: int) -> Tensor:
    return torch.randint(CLASSES, (count,), generator=torch.Generator().manual_seed(seed))


def agreed(model: str = "mlp", seed: int = 0) -> AgreedModel:
    built = build_model(model, num_classes=CLASSES, input_shape=SHAPE, seed=seed)
    return AgreedModel(built, SHAPE, MEAN, STD)


def answered(model: nn.Module, images: Tensor, labels: Tensor, **changes: Any) -> ManipulatedProbe:
    """One step on ``images`` (B, C, H, W) in [0, 1]."""
    local = copy.deepcopy(model)
    optimizer = torch.optim.SGD(local.parameters(), RATE)
    seen = replace(ManipulatedProbe(model, {}, SHAPE, MEAN, STD, len(images), len(images), 1, RATE), **changes)
    F.cross_entropy(local(normalise(images, seen)), labels).backward()
    optimizer.step()
    before = dict(model.named_parameters())
    update = {name: (after - before[name]).detach() for name, after in local.named_parameters()}
    return replace(seen, update=update)


def probed(attack: ActiveAttack, images: Tensor, labels: Tensor, model: str = "mlp", seed: int = 0) -> Any:
    """The guess of a fitted attack on a client with these images."""
    sent = attack.manipulated(agreed(model, seed), torch.Generator().manual_seed(seed))
    return attack(answered(sent, images, labels), torch.Generator().manual_seed(seed))


READ = 40.0  # dB


def fitted(cls: Any = ImprintLayer, **changes: object) -> Any:
    own = Batch(photos(400, 99), F.one_hot(labels_of(400, 99), CLASSES).float())
    return cls(**changes).fit(Knowledge(own, Pipeline(()), MEAN, STD, untrained), stream(3))


def read(guess: Any, images: torch.Tensor) -> int:
    assert not guess.failure
    assert len(guess.images) == len(images)
    return sum(psnr > READ for psnr in score(guess, images)["psnr"])


def alone_in_bins(attack: ImprintLayer, images: torch.Tensor) -> int:
    """The oracle: how many of the images no other shares a bin with."""
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
