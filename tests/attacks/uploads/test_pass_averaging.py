"""Averaging re-shuffled uploads: the picture of window means, at the rate that the closed form says, and nothing else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from attacks import Knowledge, PassAveraging
from attacks.uploads.base import UploadedCollection
from defenses import Pipeline, VisualMixer, parse
from defenses.base import Batch
from defenses.random_draws import generator_for
from tests.attacks.wire import MEAN, STD

COUNT, SIDE, WINDOW = 5, 16, 4


def own(side: int = SIDE) -> Batch:
    images = torch.rand(COUNT, 3, side, side, generator=torch.Generator().manual_seed(0))
    return Batch(images, torch.eye(COUNT))


def uploaded(defense: VisualMixer, passes: int, side: int = SIDE) -> UploadedCollection:
    """In an order that is new in every pass, through the pipeline, as a client protects batches."""
    batch, found = own(side), []
    for turn in range(passes):
        order = torch.randperm(COUNT, generator=generator_for("order", turn)) if turn else torch.arange(COUNT)
        some = Batch(batch.images[order], batch.targets[order])
        found.append(Pipeline((defense,)).protect_batch(some, ("pass", turn)))
    return UploadedCollection(
        torch.cat([one.images for one in found]), torch.cat([one.targets for one in found]), passes
    )


def attack(pipeline: str) -> PassAveraging:
    def train(batch: Batch, seed: int) -> Any:
        raise AssertionError("nothing here trains a model")

    return PassAveraging().fit(Knowledge(own(), parse(pipeline), MEAN, STD, train), torch.Generator())


def guess(defense: VisualMixer, passes: int, side: int = SIDE) -> Tensor:
    (found,) = attack(repr(defense)).attack_many([uploaded(defense, passes, side)], [torch.Generator()])
    assert not found.failure
    assert found.labels.tolist() == list(range(COUNT))
    return found.images


def window_means(images: Tensor, size: int = WINDOW) -> Tensor:
    return F.interpolate(F.avg_pool2d(images, size), scale_factor=size, mode="nearest")


@pytest.mark.parametrize("passes", [8, 64])
def test_the_mean_of_many_shuffles_is_the_window_mean_within_the_closed_form(passes: int) -> None:
    images = own().images
    found = guess(VisualMixer(window_lower=WINDOW, window_upper=WINDOW, reshuffle=True), passes)
    variance = window_means(images.square()) - window_means(images).square()
    expected = float((variance / passes).mean())
    assert float((found - window_means(images)).square().mean()) == pytest.approx(expected, rel=0.2)


def test_sorted_values_of_a_window_are_the_same_in_every_pass() -> None:
    """So that order statistics of many passes tell what those of one tell."""
    seen = uploaded(VisualMixer(window_lower=WINDOW, window_upper=WINDOW, reshuffle=True), 3)
    labels = seen.targets.argmax(1)
    tiles = F.unfold(seen.images.view(-1, 1, SIDE, SIDE), WINDOW, stride=WINDOW).view(3 * COUNT, 3, WINDOW**2, -1)
    values = tiles.sort(2).values
    for label in range(COUNT):
        first, *rest = values[labels == label]
        assert all(torch.equal(first, other) for other in rest)


def test_uploads_of_an_image_find_each_other_where_windows_differ_in_size() -> None:
    mixer = VisualMixer(window_lower=2, window_upper=16, reshuffle=True)
    assert mixer.sizes(32, 32) == [16, 8, 4, 2]
    found, images = guess(mixer, 100, 32), own(32).images
    sides = mixer.window_sides(images)
    expected = images.clone()
    for size in mixer.sizes(32, 32)[1:]:
        expected = torch.where((sides == size)[:, None], window_means(images, size), expected)
    assert float((found - expected).square().mean()) < 0.002


def test_a_shuffle_that_is_drawn_once_averages_to_itself() -> None:
    once = VisualMixer(window_lower=WINDOW, window_upper=WINDOW)
    assert (once.resamples, replace(once, reshuffle=True).resamples) == (False, True)
    fixed, fresh = Pipeline((once,)), Pipeline((replace(once, reshuffle=True),))
    assert (bool(fixed.once), fixed.protects_batches) == (True, False)
    assert (bool(fresh.once), fresh.protects_batches) == (False, True)


def test_without_the_defence_or_with_broken_uploads_the_first_pass_is_all() -> None:
    seen = uploaded(VisualMixer(window_lower=WINDOW, window_upper=WINDOW, reshuffle=True), 2)
    (plain,) = attack("").attack_many([seen], [torch.Generator()])
    assert torch.equal(plain.images, seen.images[:COUNT])
    (broken,) = attack("").attack_many([replace(seen, images=seen.images * float("inf"))], [torch.Generator()])
    assert "not finite" in broken.failure
