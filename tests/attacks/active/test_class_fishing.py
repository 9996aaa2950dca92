"""Class fishing leaves of a batch exactly the gradient of the examples of one class."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from attacks import AttackError, ClassFishing, InvertingGradients, score
from attacks.normalisation import normalise
from tests.attacks.active.answers import agreed, answered, photos

OTHERS = torch.tensor([1, 2, 9, 4, 4, 7, 8])


def labels_with(*fished: int) -> torch.Tensor:
    return torch.cat([torch.tensor(fished, dtype=torch.long), OTHERS])


@pytest.mark.parametrize("model", ["mlp", "cnn", "lenet"])
@pytest.mark.parametrize("count", [1, 2])
def test_what_is_fished_is_the_gradient_of_that_class_alone(model: str, count: int) -> None:
    """Against autograd on these examples only."""
    attack, images = ClassFishing(target=3), photos(len(OTHERS) + count, seed=2)
    sent = attack.manipulated(agreed(model), torch.Generator())
    numbers: dict[str, float] = {}
    seen = attack.fished(answered(sent, images, labels_with(*[3] * count)), numbers)
    assert numbers["fished"] == count == seen.num_examples
    found = seen.gradient()
    loss = F.cross_entropy(sent(normalise(images[:count], seen)), torch.full((count,), 3))
    for (name, _), wanted in zip(
        sent.named_parameters(), torch.autograd.grad(loss, list(sent.parameters())), strict=True
    ):
        assert F.cosine_similarity(found[name].flatten(), wanted.flatten(), dim=0) > 0.999, name
        assert found[name].norm() == pytest.approx(float(wanted.norm()), rel=0.01), name


def test_the_honest_model_mixes_all_classes() -> None:
    """Without the manipulation the body's gradient is that of the whole batch."""
    images, known = photos(8, seed=2), agreed("cnn")
    mixed = answered(known.model, images, labels_with(3)).gradient()["0.weight"]
    alone = answered(known.model, images[:1], torch.tensor([3])).gradient()["0.weight"]
    assert F.cosine_similarity(mixed.flatten(), alone.flatten(), dim=0) < 0.9


@pytest.mark.long
def test_inverts_one_image_of_a_batch_as_if_it_were_alone() -> None:
    images, attack = photos(8, seed=3), ClassFishing(target=3, iterations=200)
    sent = attack.manipulated(agreed("lenet"), torch.Generator())
    guess = attack(answered(sent, images, labels_with(3)), torch.Generator().manual_seed(0))
    assert not guess.failure
    assert guess.labels.tolist() == [3, *[-1] * 7]
    fished = score(type(guess)(guess.images[:1], guess.labels[:1]), images[:1])["psnr"][0]
    honest = InvertingGradients(iterations=200)(
        answered(agreed("lenet").model, images, labels_with(3)), torch.Generator().manual_seed(0)
    )
    mixed = max(
        score(type(guess)(honest.images[at : at + 1], guess.labels[:1]), images[:1])["psnr"][0] for at in range(8)
    )
    assert fished > mixed + 3
    assert torch.equal(guess.images[1:], torch.full_like(guess.images[1:], 0.5))


def test_says_that_nobody_bit() -> None:
    attack = ClassFishing(target=3)
    seen = answered(attack.manipulated(agreed("cnn"), torch.Generator()), photos(7, 1), OTHERS)
    guess = attack(seen, torch.Generator())
    assert guess.failure == "does not apply: no example of class 3 is in the batch"
    assert guess.diagnostics["fished"] == 0


def test_does_not_apply_to_unknown_classes_or_several_steps() -> None:
    with pytest.raises(AttackError, match="does not apply: target is 10; allowed: a class of the model, 0 to 9"):
        ClassFishing(target=10).manipulated(agreed("cnn"), torch.Generator())
    attack = ClassFishing(target=3, iterations=2)
    sent = attack.manipulated(agreed("cnn"), torch.Generator())
    guess = attack(answered(sent, photos(8, 1), labels_with(3), local_steps=2), torch.Generator())
    assert guess.failure.startswith("does not apply: the update has 2 local steps")


def test_says_what_it_allows() -> None:
    for name, value in (("target", -1), ("bias", 0.0), ("iterations", 0), ("restarts", 0)):
        with pytest.raises(ValueError, match=f"{name} is {value!r}; allowed: "):
            ClassFishing(**{name: value})  # type: ignore[arg-type]
