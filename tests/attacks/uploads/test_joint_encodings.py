"""Many encodings of the same images: a closed form where all is told, and what is found where nothing is."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import AttackError, JointEncodingInversion, Knowledge, Reconstruction, score
from attacks.uploads.base import UploadedCollection
from attacks.uploads.joint_encodings import count_classes
from attacks.uploads.magnitude_system import MagnitudeSystem, project_onto_shares, signs_of
from defenses import parse
from defenses.base import Batch
from defenses.images.instahide import InstaHide, bounded_convex_weights
from defenses.random_draws import generator_for
from tests.attacks.wire import CLASSES, MEAN, STD

COUNT, PASSES, SIDE, BATCH = 12, 24, 8, 6
SHAPE = (1, SIDE, SIDE)


def drawn(count: int, seed: int) -> Batch:
    """Pictures of CLASSES kinds: a pattern of the kind, and much of their own."""
    stream = torch.Generator().manual_seed(seed)
    kinds = torch.rand(CLASSES, 1, 4, 4, generator=torch.Generator().manual_seed(77))
    classes = torch.arange(count) % CLASSES
    coarse = 0.5 * kinds[classes] + 0.5 * torch.rand(count, 1, 4, 4, generator=stream)
    images = F.interpolate(coarse, (SIDE, SIDE), mode="bicubic").mul(1.4).sub(0.2).clamp(0, 1)
    return Batch(images, F.one_hot(classes, CLASSES).float())


@cache
def uploaded(passes: int = PASSES, seed: int = 0) -> UploadedCollection:
    """The defence itself, on batches of an order that is new in every pass."""
    own, found = drawn(COUNT, 3), []
    stream = generator_for("uploads", seed)
    for _ in range(passes):
        order = torch.randperm(COUNT, generator=stream)
        for rows in order.split(BATCH):
            found.append(InstaHide().protect_batch(Batch(own.images[rows], own.targets[rows]), stream))
    return UploadedCollection(
        torch.cat([one.images for one in found]), torch.cat([one.targets for one in found]), passes
    )


def knowledge(pipeline: str = "InstaHide()", count: int = 200) -> Knowledge:
    def train(batch: Batch, seed: int) -> Any:
        raise AssertionError("nothing here trains a model")

    return Knowledge(drawn(count, 4), parse(pipeline), MEAN, STD, train)


def attack(**changes: Any) -> JointEncodingInversion:
    return JointEncodingInversion(**{"iterations": 60, "restarts": 1} | changes).fit(knowledge(), torch.Generator())


def psnr(guess: Reconstruction) -> Tensor:
    return torch.tensor(score(guess, drawn(COUNT, 3).images)["psnr"])


def told(count: int = 10, equations: int = 160, pixels: int = 9) -> tuple[Tensor, Tensor]:
    """Weights (M, N) as InstaHide draws them, and images (N, D) in [-1, 1]."""
    stream = torch.Generator().manual_seed(1)
    chosen = torch.stack([torch.randperm(count, generator=stream)[:4] for _ in range(equations)])
    weights = torch.zeros(equations, count, dtype=torch.float64)
    weights.scatter_(1, chosen, bounded_convex_weights(equations, 4, 0.65, stream))
    return weights, 2 * torch.rand(count, pixels, generator=stream, dtype=torch.float64) - 1


def system_of(weights: Tensor, images: Tensor, prior: Tensor | None = None) -> MagnitudeSystem:
    count = weights.shape[1]
    prior = torch.zeros_like(images) if prior is None else prior
    return MagnitudeSystem((weights @ images).abs(), weights, torch.arange(count), prior, (1, 3, 3))


def test_with_weights_and_signs_told_least_squares_is_exact() -> None:
    weights, images = told()
    found = system_of(weights, images).images(weights, signs_of(weights @ images), 0.0)
    expected = np.linalg.lstsq(weights.numpy(), (weights @ images).numpy(), rcond=None)[0]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-10)
    torch.testing.assert_close(found, images, atol=1e-10, rtol=0)


def test_with_weights_alone_told_the_search_finds_the_signs() -> None:
    weights, images = told()
    # A faint hint of the truth's sign decides between an image and its negative, which explain the system equally well.
    system = system_of(weights, images, 0.1 * images)
    start = system.images(weights, signs_of(weights @ system.prior.flip(1)), 1e-6)
    found = system.searched(weights, start, 1e-6, torch.Generator().manual_seed(0))
    assert system.error(weights, found) < 1e-8 < system.error(weights, start)
    torch.testing.assert_close(found, images, atol=1e-4, rtol=0)


def test_with_images_told_the_weights_are_found() -> None:
    weights, images = told(pixels=30)
    classes = torch.arange(10) // 2
    shares = torch.zeros(len(weights), 5, dtype=torch.float64).index_add_(1, classes, weights)
    system = MagnitudeSystem((weights @ images).abs(), shares, classes, torch.zeros_like(images), (1, 5, 6))
    found = system.weights(system.even_weights(), images, signs_of(weights @ images), 400)
    torch.testing.assert_close(found, weights, atol=1e-3, rtol=0)


def test_shares_are_kept_and_the_projection_is_the_nearest() -> None:
    stream = torch.Generator().manual_seed(2)
    classes, shares = torch.tensor([0, 0, 0, 2]), torch.tensor([[0.4, 0.0, 0.6], [0.0, 0.5, 0.5]])
    given = torch.randn(2, 4, generator=stream)
    found = project_onto_shares(given, shares, classes)
    torch.testing.assert_close(found, torch.tensor([[0, 0, 0, 0.6], [0, 0, 0, 0.5]]) + found * (classes == 0))
    assert (found >= 0).all()
    torch.testing.assert_close(found[:, :3].sum(1), shares[:, 0])
    grid = torch.cartesian_prod(torch.linspace(0, 0.4, 81), torch.linspace(0, 0.4, 81))
    grid = torch.cat([grid, 0.4 - grid.sum(1, keepdim=True)], 1)
    grid = grid[grid[:, 2] >= 0]
    nearest = grid[(grid - given[0, :3]).square().sum(1).argmin()]
    torch.testing.assert_close(found[0, :3], nearest, atol=6e-3, rtol=0)


def test_numbers_of_classes_are_read_from_the_labels() -> None:
    assert count_classes(uploaded()).tolist() == drawn(COUNT, 3).targets.argmax(1).sort().values.tolist()


def test_many_encodings_together_give_the_images() -> None:
    """Every image is found far better than the class means, which are all that labels alone would give."""
    guess = attack().attack_many([uploaded()], [torch.Generator().manual_seed(0)])[0]
    classes = count_classes(uploaded())
    own = drawn(200, 4)
    means = torch.stack([own.images[own.targets.argmax(1) == c].mean(0) for c in range(CLASSES)])
    null = psnr(Reconstruction(means[classes], classes))
    assert (psnr(guess) > 30).sum() >= 10
    assert psnr(guess).mean() > null.mean() + 10
    assert guess.labels.tolist() == classes.tolist()
    assert guess.diagnostics["equations"] == PASSES


def test_encodings_of_other_images_each_time_give_nothing() -> None:
    """Fresh noise of the same magnitudes: nothing is common to the passes."""
    seen = uploaded()
    order = torch.randperm(seen.images.numel(), generator=torch.Generator().manual_seed(5))
    noise = replace(seen, images=seen.images.flatten()[order].view_as(seen.images))
    guess = attack(iterations=20).attack_many([noise], [torch.Generator().manual_seed(0)])[0]
    mean = drawn(COUNT, 3).images.mean(0).expand(COUNT, *SHAPE)
    assert psnr(guess).mean() < psnr(Reconstruction(mean, guess.labels)).mean() + 1


def test_it_repeats_itself_and_draws_from_its_generator_alone() -> None:
    small = attack(iterations=8)
    seen = uploaded()
    first, again, other = (
        small.attack_many([seen], [torch.Generator().manual_seed(seed)])[0].images for seed in (0, 0, 1)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_without_the_defence_the_first_pass_is_the_guess() -> None:
    own = drawn(COUNT, 3)
    seen = UploadedCollection(torch.cat([own.images, own.images]), torch.cat([own.targets, own.targets]), 2)
    fitted = JointEncodingInversion().fit(knowledge(""), torch.Generator())
    assert torch.equal(fitted.attack_many([seen], [torch.Generator()])[0].images, own.images)


def test_what_cannot_be_attacked_fails_alone_and_says_why() -> None:
    seen = uploaded(2)
    cases = [
        uploaded(1),
        replace(seen, images=seen.images[..., :4]),
        replace(seen, images=seen.images * float("nan")),
        seen,
    ]
    guesses = attack(iterations=2).attack_many(cases, [torch.Generator().manual_seed(at) for at in range(4)])
    reasons = ["a single encoding", "images have shape (1, 8, 4)", "not finite", ""]
    for guess, reason in zip(guesses, reasons, strict=True):
        assert bool(guess.failure) == bool(reason)
        assert reason in guess.failure
        assert len(guess.images) == COUNT
    with pytest.raises(AttackError, match="call fit first"):
        JointEncodingInversion().attack_many(cases, [torch.Generator()] * 4)
    with pytest.raises(AttackError, match="there are none"):
        JointEncodingInversion().fit(knowledge(count=0), torch.Generator())
