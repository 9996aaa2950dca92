"""Images that are one up to float errors, against a comparison of every value with every other."""

from __future__ import annotations

import pytest
import torch

from clients.scoring.same_images import KnownImages


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 9, 7), (1, 2, 2)])
def test_what_is_known_is_what_differs_by_less_than_half_a_grey_level(shape: tuple[int, int, int]) -> None:
    generator = torch.Generator().manual_seed(0)
    images = torch.rand(30, *shape, generator=generator)
    mean, std = 0.1307, 0.3081
    again = (((images - mean) / std) * std + mean).clamp(0, 1)
    assert not torch.equal(again, images), "else nothing is tested"
    other = images.clone()
    other[:, 0, 0, 0] += torch.where(images[:, 0, 0, 0] > 0.5, -1.0, 1.0) / 255  # by one grey level, in one place
    asked = torch.cat([images, again, other, torch.rand(30, *shape, generator=generator)])
    every = (asked[:, None] - images[None]).abs().flatten(2).amax(2).amin(1) < 0.5 / 255
    known = KnownImages(images)
    assert [image in known for image in asked] == every.tolist()
    assert every.tolist() == [True] * 60 + [False] * 60


def test_each_is_kept_once() -> None:
    images = torch.rand(200, 1, 8, 8, generator=torch.Generator().manual_seed(1))
    known = KnownImages(images[:0])
    assert [known.adds(image) for image in images] == [True] * 200, "more than there was room for at first"
    assert not any(known.adds(image + 1e-6) for image in images)
