"""Class fishing leaves of a batch exactly the gradient of the examples of one class."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from attacks import AttackError, ClassFishing, InvertingGradients
from attacks.image_measures import psnr
from attacks.normalisation import normalise
from tests.attacks.active.answers import agreed, answered, photos
from tests.attacks.limits import assert_limits

OTHERS = torch.tensor([1, 2, 9, 4, 4, 7, 8])


def labels_with(*fished: int) -> torch.Tensor:
    return torch.cat([torch.tensor(fished, dtype=torch.long), OTHERS])


@pytest.mark.numeric
def test_what_is_fished_is_the_gradient_of_that_class_alone() -> None:
    """Against autograd on these examples only."""
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


@pytest.mark.numeric
def test_the_honest_model_mixes_all_classes() -> None:
    """Without the manipulation the body's gradient is that of the whole batch."""
    images, known = photos(8, seed=2), agreed("cnn")
    mixed = answered(known.model, images, labels_with(3)).gradient()["0.weight"]
    alone = answered(known.model, images[:1], torch.tensor([3])).gradient()["0.weight"]
    assert F.cosine_similarity(mixed.flatten(), alone.flatten(), dim=0) < 0.9


@pytest.mark.long
@pytest.mark.numeric
def test_inverts_one_image_of_a_batch_as_if_it_were_alone() -> None:
    images, attack, stream = photos(8, seed=3), ClassFishing(target=3, iterations=200), torch.Generator()
    sent = attack.manipulated(agreed("lenet"), stream)
    guess = attack(answered(sent, images, labels_with(3)), stream.manual_seed(0))
    assert not guess.failure
    assert guess.labels.tolist() == [3, *[-1] * 7]
    assert torch.equal(guess.images[1:], torch.full_like(guess.images[1:], 0.5))
    honest = InvertingGradients(iterations=200)(
        answered(agreed("lenet").model, images, labels_with(3)), stream.manual_seed(0)
    )
    mixed = psnr(honest.images, images[:1].expand_as(images)).max()
    assert psnr(guess.images[:1], images[:1]) > mixed + 2


def test_where_it_does_not_apply_it_says_so() -> None:
    attack, known, stream = ClassFishing(target=3, iterations=2), agreed("cnn"), torch.Generator()
    with pytest.raises(AttackError, match="does not apply: target is 10; allowed: a class of the model, 0 to 9"):
        ClassFishing(target=10).manipulated(known, stream)
    sent = attack.manipulated(known, stream)
    for seen, why in (
        (answered(sent, photos(7, 1), OTHERS), "does not apply: no example of class 3 is in the batch"),
        (answered(sent, photos(8, 1), labels_with(3), local_steps=2), "does not apply: the update has 2 local steps"),
    ):
        guess = attack(seen, stream)
        assert guess.failure.startswith(why)
        assert guess.diagnostics.get("fished", 0) == 0
    assert_limits(ClassFishing, target=(-1, 0), bias=(0.0, 1.0), iterations=(0, 1), restarts=(0, 1))
