"""What a server learns of uploaded images: as they came, averaged over passes, and from many encodings together."""

from dataclasses import replace
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import AsUploaded, AttackError, JointEncodingInversion, Knowledge, PassAveraging, Reconstruction, score
from attacks.refinement.base import Chain
from attacks.spec import parse_attacks
from attacks.uploads.base import UploadedCollection, UploadedImages
from attacks.uploads.joint_encodings import MagnitudeSystem, count_classes, project_onto_shares, signs_of
from defenses import Pipeline, VisualMixer, parse
from defenses.base import Batch
from defenses.images.instahide import InstaHide, bounded_convex_weights
from defenses.random_draws import generator_for
from tests.attacks.wire import CLASSES, MEAN, STD, untrained
from tests.attacks.wire import stream as seeded
from tests.defenses.images.visual_mixer_reference import window_sides

# ---- images as they came


OWNERS, WIDE, WINDOW = 5, 16, 4


def window_means(images: Tensor, size: int = WINDOW) -> Tensor:
    return F.interpolate(F.avg_pool2d(images, size), scale_factor=size, mode="nearest")


def uploads(count: int = 2) -> list[UploadedImages]:
    images = torch.rand(count, 3, 3, WIDE, WIDE, generator=torch.Generator().manual_seed(4))
    return [UploadedImages(one, torch.arange(3) + at) for at, one in enumerate(images)]


def guesses(attack: Chain | AsUploaded, seen: list[UploadedImages]) -> list[Reconstruction]:
    return attack.attack_many(seen, [torch.Generator().manual_seed(at) for at in range(len(seen))])  # type: ignore[arg-type]


def means() -> Chain:
    (found,) = parse_attacks("AsUploaded() | WindowMean()", "AsUploaded()")
    pipeline = parse(f"VisualMixer(window_lower={WINDOW}, window_upper={WINDOW})")
    known = Knowledge(own(), pipeline, (0.0,), (1.0,), untrained)
    return found.fit(known, torch.Generator())


def test_the_guess_is_what_was_uploaded_and_a_refinement_goes_on_from_it() -> None:
    seen = uploads()
    plain, refined = guesses(AsUploaded(), seen), guesses(means(), seen)
    for one, guess, mean in zip(seen, plain, refined, strict=True):
        assert torch.equal(guess.images, one.images)
        torch.testing.assert_close(mean.images, window_means(one.images), atol=1e-6, rtol=0)
        for found in (guess, mean):
            assert torch.equal(found.labels, one.labels)
            assert not found.failure
    assert plain[0].diagnostics == {}


def test_values_beyond_the_range_of_images_are_clamped_and_those_that_are_no_numbers_fail_alone() -> None:
    images = torch.tensor([-0.5, 0.25, 1.5, 1.0], dtype=torch.float64).view(1, 1, 2, 2)
    kept = images.clone()
    (guess,) = guesses(AsUploaded(), [UploadedImages(images, torch.tensor([3]))])
    assert guess.images.flatten().tolist() == [0.0, 0.25, 1.0, 1.0]
    assert guess.images.dtype == torch.float32
    assert torch.equal(images, kept)
    for bad in (float("nan"), float("inf"), -float("inf")):
        broken, good = uploads()
        broken.images[1, 0, 3, 3] = bad
        first, second = guesses(means(), [broken, good])
        assert first.failure == "the uploaded images are not finite"
        assert torch.equal(first.images, torch.full_like(good.images, 0.5))
        assert not second.failure


# ---- re-shuffled uploads: the picture of window means, at the rate that the closed form says


FRESH = VisualMixer(window_lower=WINDOW, window_upper=WINDOW, reshuffle=True)


def own(side: int = WIDE) -> Batch:
    images = torch.rand(OWNERS, 3, side, side, generator=torch.Generator().manual_seed(0))
    return Batch(images, torch.eye(OWNERS))


def reshuffled(defense: VisualMixer, passes: int, side: int = WIDE) -> UploadedCollection:
    """In an order that is new in every pass, through the pipeline, as a client protects batches."""
    batch, found = own(side), []
    for turn in range(passes):
        order = torch.randperm(OWNERS, generator=generator_for("order", turn)) if turn else torch.arange(OWNERS)
        some = Batch(batch.images[order], batch.targets[order])
        found.append(Pipeline((defense,)).protect_batch(some, ("pass", turn)))
    images, targets = (torch.cat([getattr(one, name) for one in found]) for name in ("images", "targets"))
    return UploadedCollection(images, targets, passes)


def averaged(defense: VisualMixer, passes: int, side: int = WIDE) -> Tensor:
    known = Knowledge(own(), parse(repr(defense)), MEAN, STD, untrained)
    seen = [reshuffled(defense, passes, side)]
    (found,) = PassAveraging().fit(known, torch.Generator()).attack_many(seen, [torch.Generator()])
    assert not found.failure
    assert found.labels.tolist() == list(range(OWNERS))
    return found.images


@pytest.mark.numeric
def test_the_mean_of_many_shuffles_is_the_window_mean_within_the_closed_form() -> None:
    images = own().images
    for passes in (8, 64):
        found = averaged(FRESH, passes)
        variance = window_means(images.square()) - window_means(images).square()
        expected = float((variance / passes).mean())
        assert float((found - window_means(images)).square().mean()) == pytest.approx(expected, rel=0.2), passes


@pytest.mark.numeric
def test_uploads_of_an_image_find_each_other_where_windows_differ_in_size() -> None:
    mixer = VisualMixer(window_lower=2, window_upper=16, reshuffle=True)
    assert mixer.sizes(32, 32) == [16, 8, 4, 2]
    found, images = averaged(mixer, 100, 32), own(32).images
    sides, expected = window_sides(mixer.partition(images), 32, 32), images.clone()
    for size in mixer.sizes(32, 32)[1:]:
        expected = torch.where((sides == size)[:, None], window_means(images, size), expected)
    assert float((found - expected).square().mean()) < 0.002


# ---- many encodings of the same images: a closed form where all is told, and what is found where nothing is


COUNT, PASSES, SIDE, BATCH = 12, 24, 8, 6


def drawn(count: int, seed: int) -> Batch:
    kinds, classes = torch.rand(CLASSES, 1, 4, 4, generator=seeded(77)), torch.arange(count) % CLASSES
    coarse = 0.5 * kinds[classes] + 0.5 * torch.rand(count, 1, 4, 4, generator=seeded(seed))
    images = F.interpolate(coarse, (SIDE, SIDE), mode="bicubic").mul(1.4).sub(0.2).clamp(0, 1)
    return Batch(images, F.one_hot(classes, CLASSES).float())


@cache
def uploaded(passes: int = PASSES) -> UploadedCollection:
    own, found, stream = drawn(COUNT, 3), [], generator_for("uploads", 0)
    for _ in range(passes):
        for rows in torch.randperm(COUNT, generator=stream).split(BATCH):
            found.append(InstaHide().protect_batch(Batch(own.images[rows], own.targets[rows]), stream))
    images, targets = (torch.cat([getattr(one, name) for one in found]) for name in ("images", "targets"))
    return UploadedCollection(images, targets, passes)


def knowledge(pipeline: str = "InstaHide()", count: int = 200) -> Knowledge:
    return Knowledge(drawn(count, 4), parse(pipeline), MEAN, STD, untrained)


def jointly(seen: UploadedCollection, iterations: int, seed: int = 0) -> Reconstruction:
    attack = JointEncodingInversion(iterations=iterations, restarts=1).fit(knowledge(), torch.Generator())
    return attack.attack_many([seen], [seeded(seed)])[0]


def psnr(images: Tensor) -> Tensor:
    found = Reconstruction(images, torch.zeros(COUNT, dtype=torch.int64))
    return torch.tensor(score(found, drawn(COUNT, 3).images)["psnr"])


def told(pixels: int) -> tuple[Tensor, Tensor]:
    stream = seeded(1)
    chosen = torch.stack([torch.randperm(10, generator=stream)[:4] for _ in range(160)])
    weights = torch.zeros(160, 10, dtype=torch.float64)
    weights.scatter_(1, chosen, bounded_convex_weights(160, 4, 0.65, stream))
    return weights, 2 * torch.rand(10, pixels, generator=stream, dtype=torch.float64) - 1


def system_of(weights: Tensor, images: Tensor, **changes: Any) -> MagnitudeSystem:
    settings = {"shares": weights, "classes": torch.arange(10), "prior": torch.zeros_like(images)} | changes
    return MagnitudeSystem((weights @ images).abs(), *settings.values(), (1, 3, images.shape[1] // 3))


def test_with_weights_and_signs_told_least_squares_is_exact_and_alone_the_search_finds_the_signs() -> None:
    weights, images = told(9)
    found = system_of(weights, images).images(weights, signs_of(weights @ images), 0.0)
    torch.testing.assert_close(found, images, atol=1e-10, rtol=0)
    # Values of a pixel and their negatives explain the system equally well; a faint hint of the truth decides, or not.
    system = system_of(weights, images, prior=0.1 * images)
    start = system.images(weights, signs_of(weights @ system.prior.flip(1)), 1e-6)
    found = system.searched(weights, start, 1e-6, seeded())
    assert system.error(weights, found) < 1e-8 < system.error(weights, start)
    off = [(found - sign * images).abs().amax(0) for sign in (1, -1)]
    assert torch.minimum(*off).max() < 1e-4


def test_with_images_told_the_weights_are_found() -> None:
    weights, images = told(30)
    classes = torch.arange(10) // 2
    shares = torch.zeros(len(weights), 5, dtype=torch.float64).index_add_(1, classes, weights)
    system = system_of(weights, images, shares=shares, classes=classes)
    found = system.weights(system.even_weights(), images, signs_of(weights @ images), 400)
    torch.testing.assert_close(found, weights, atol=1e-3, rtol=0)


def test_shares_are_kept_and_the_projection_is_the_nearest() -> None:
    classes, shares = torch.tensor([0, 0, 0, 2]), torch.tensor([[0.4, 0.0, 0.6], [0.0, 0.5, 0.5]])
    given = torch.randn(2, 4, generator=seeded(2))
    found = project_onto_shares(given, shares, classes)
    torch.testing.assert_close(found, torch.tensor([[0, 0, 0, 0.6], [0, 0, 0, 0.5]]) + found * (classes == 0))
    assert (found >= 0).all()
    torch.testing.assert_close(found[:, :3].sum(1), shares[:, 0])
    grid = torch.cartesian_prod(torch.linspace(0, 0.4, 81), torch.linspace(0, 0.4, 81))
    grid = torch.cat([grid, 0.4 - grid.sum(1, keepdim=True)], 1)
    grid = grid[grid[:, 2] >= 0]
    nearest = grid[(grid - given[0, :3]).square().sum(1).argmin()]
    torch.testing.assert_close(found[0, :3], nearest, atol=6e-3, rtol=0)


@pytest.mark.numeric
def test_many_encodings_together_give_the_images_and_those_of_other_images_nothing() -> None:
    seen, own = uploaded(), drawn(200, 4)
    found, classes = jointly(seen, 60), count_classes(seen)
    assert classes.tolist() == drawn(COUNT, 3).targets.argmax(1).sort().values.tolist()
    assert found.labels.tolist() == classes.tolist()
    means = torch.stack([own.images[own.targets.argmax(1) == c].mean(0) for c in range(CLASSES)])
    assert psnr(found.images).mean() > psnr(means[classes]).mean() + 3
    assert found.diagnostics["equations"] == PASSES
    # Fresh noise of the same magnitudes: nothing is common to the passes.
    order = torch.randperm(seen.images.numel(), generator=seeded(5))
    noise = jointly(replace(seen, images=seen.images.flatten()[order].view_as(seen.images)), 20)
    mean = drawn(COUNT, 3).images.mean(0, keepdim=True).expand(COUNT, -1, -1, -1)
    assert psnr(noise.images).mean() < psnr(mean).mean() + 1


def test_what_cannot_be_attacked_fails_alone_and_without_the_defence_the_first_pass_is_the_guess() -> None:
    seen, own = uploaded(2), drawn(COUNT, 3)
    cases = {
        "a single encoding": uploaded(1), "images have shape (1, 8, 4)": replace(seen, images=seen.images[..., :4]),
        "not finite": replace(seen, images=seen.images * float("nan")), "": seen,
    }  # fmt: skip
    attack = JointEncodingInversion(iterations=2).fit(knowledge(), torch.Generator())
    for why, found in zip(cases, attack.attack_many(list(cases.values()), [seeded(n) for n in range(4)]), strict=True):
        assert why in found.failure
        assert bool(found.failure) == bool(why)
        assert len(found.images) == COUNT
    with pytest.raises(AttackError, match="there are none"):
        JointEncodingInversion().fit(knowledge(count=0), torch.Generator())
    twice = UploadedCollection(own.images.repeat(2, 1, 1, 1), own.targets.repeat(2, 1), 2)
    fitted = JointEncodingInversion().fit(knowledge(""), torch.Generator())
    assert torch.equal(fitted.attack_many([twice], [seeded()])[0].images, own.images)
