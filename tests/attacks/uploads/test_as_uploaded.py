"""Looking at uploaded images: the guess is what came, and refinements go on from it without an inversion."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import AsUploaded, Reconstruction
from attacks.base import Knowledge
from attacks.refinement.base import Chain
from attacks.spec import parse_attacks
from attacks.uploads.base import UploadedImages
from defenses.base import Batch
from defenses.pipeline import Pipeline
from defenses.spec import parse

SIDE = 16


def uploads(count: int = 2, size: int = 3) -> list[UploadedImages]:
    stream = torch.Generator().manual_seed(4)
    images = torch.rand(count, size, 3, SIDE, SIDE, generator=stream)
    return [UploadedImages(one, torch.arange(size) + at) for at, one in enumerate(images)]


def streams(count: int, seed: int = 0) -> list[torch.Generator]:
    return [torch.Generator().manual_seed(seed + at) for at in range(count)]


def guesses(attack: Chain | AsUploaded, seen: list[UploadedImages], seed: int = 0) -> list[Reconstruction]:
    return attack.attack_many(seen, streams(len(seen), seed))  # type: ignore[arg-type]


def test_the_guess_is_what_was_uploaded_in_its_order() -> None:
    seen = uploads()
    found = guesses(AsUploaded(), seen)
    assert len(found) == 2
    for guess, one in zip(found, seen, strict=True):
        assert torch.equal(guess.images, one.images)
        assert torch.equal(guess.labels, one.labels)
        assert (guess.failure, guess.diagnostics) == ("", {})
    assert not torch.equal(found[0].images, found[1].images)


def test_nothing_is_drawn_for_it() -> None:
    seen, drawn = uploads(), streams(2)
    before = [one.get_state() for one in drawn]
    AsUploaded().attack_many(seen, drawn)
    assert all(torch.equal(one.get_state(), old) for one, old in zip(drawn, before, strict=True))


def test_values_beyond_the_range_of_images_are_clamped_and_the_upload_stays_as_it_is() -> None:
    images = torch.tensor([-0.5, 0.25, 1.5, 1.0], dtype=torch.float64).view(1, 1, 2, 2)
    kept = images.clone()
    (guess,) = guesses(AsUploaded(), [UploadedImages(images, torch.tensor([3]))])
    assert guess.images.flatten().tolist() == [0.0, 0.25, 1.0, 1.0]
    assert guess.images.dtype == torch.float32
    assert torch.equal(images, kept)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_an_upload_that_is_not_finite_fails_alone_and_is_grey(bad: float) -> None:
    broken, good = uploads()
    broken.images[1, 0, 3, 3] = bad
    first, second = guesses(AsUploaded(), [broken, good])
    assert first.failure == "the uploaded images are not finite"
    assert torch.equal(first.images, torch.full_like(good.images, 0.5))
    assert torch.equal(first.labels, broken.labels)
    assert not second.failure
    assert torch.equal(second.images, good.images)
    # A refinement leaves it failed.
    (chain,) = parse_attacks("AsUploaded() | WindowMean(window=4)", "AsUploaded()")
    refined = guesses(chain, [broken, good])
    assert [bool(one.failure) for one in refined] == [True, False]
    assert torch.equal(refined[0].images, first.images)


def test_text_and_pickle_give_the_same_attack() -> None:
    attack = AsUploaded()
    assert repr(attack) == "AsUploaded()"
    assert parse_attacks(repr(attack), "AsUploaded()") == [attack]
    again = pickle.loads(pickle.dumps(attack))
    assert again == attack
    (seen,) = uploads(1)
    assert torch.equal(guesses(again, [seen])[0].images, seen.images)
    with pytest.raises(ValueError, match="AsUploaded"):
        parse_attacks("AsUploaded(iterations=3)", "AsUploaded()")


# Refinements ----------------------------------------------------------------------------------------------------------------


def window_means(images: Tensor, size: int) -> Tensor:
    """By hand: means of blocks, channel by channel, each back over its block."""
    return F.interpolate(F.avg_pool2d(images, size), scale_factor=size, mode="nearest")


def test_a_refinement_goes_on_from_the_uploaded_images() -> None:
    (chain,) = parse_attacks("AsUploaded() | WindowMean(window=4)", "AsUploaded()")
    seen = uploads()
    for guess, one in zip(guesses(chain, seen), seen, strict=True):
        torch.testing.assert_close(guess.images, window_means(one.images, 4), atol=1e-6, rtol=0)
        assert torch.equal(guess.labels, one.labels)
        assert not guess.failure


def test_a_refinement_that_learns_takes_the_windows_of_the_defence() -> None:
    """Of one size nothing need be inferred: the means are those of the original images, which the shuffle keeps."""
    defense = "VisualMixer(window_lower=4, window_upper=4)"
    stream = torch.Generator().manual_seed(6)
    own = Batch(torch.rand(24, 3, SIDE, SIDE, generator=stream), F.one_hot(torch.arange(24) % 10, 10).float())

    def never(batch: Batch, seed: int) -> torch.nn.Module:
        raise AssertionError("nothing here trains a model")

    (chain,) = parse_attacks("AsUploaded() | WindowMean()", "AsUploaded()")
    pipeline: Pipeline = parse(defense)
    fitted = chain.fit(Knowledge(own, pipeline, (0.5,) * 3, (0.5,) * 3, never), stream)
    original = uploads(1)[0]
    shown = pipeline.protect_batch(pipeline.protect_once(Batch(original.images, own.targets[:3]), ("a",)), ("b",))
    assert not torch.equal(shown.images, original.images)
    (guess,) = guesses(fitted, [UploadedImages(shown.images, original.labels)])
    torch.testing.assert_close(guess.images, window_means(original.images, 4), atol=1e-5, rtol=0)
