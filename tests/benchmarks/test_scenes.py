"""Scenes: boxes are exactly the garments' visible pixels, and parts share nothing."""

from __future__ import annotations

import detection_scenes
import pytest
import torch
from detection_scenes import PARTS, Scenes, background, compose, paste, tight_boxes
from torch import Tensor
from torchvision.ops import masks_to_boxes

from clients.data.images import ImageData
from clients.data.packaged import PHOTOS
from defenses.random_draws import generator_for

pytestmark = pytest.mark.long


SIZE = 96


def garments(count: int) -> ImageData:
    """Shapes with a hole and a gap, on a background that is nearly black, as Fashion-MNIST's is: (count, 1, 28, 28)."""
    generator = generator_for("garments")
    images = torch.randint(0, 9, (count, 1, 28, 28), generator=generator, dtype=torch.uint8)
    for at in range(count):
        top, left = torch.randint(0, 9, (2,), generator=generator).tolist()
        shape = torch.randint(40, 256, (18, 12), generator=generator, dtype=torch.uint8)
        shape[5:8, 4:6] = 0
        shape[12:, 5:7] = 0
        images[at, 0, top : top + 18, left : left + 12] = shape
    return ImageData(images, torch.arange(count) % 10)


def scenes(part: str = "train", seed: int = 0) -> Scenes:
    return compose(12, SIZE, garments(30), torch.arange(30), part, generator_for("scenes", seed))


def test_boxes_are_torchvision_s_of_what_is_visible_of_each_garment() -> None:
    crops = list(garments(4).images[:, 0].float() / 255)
    for seed in range(8):
        _, owner = paste(torch.zeros(3, SIZE, SIZE), crops, generator_for("paste", seed))
        there = [at for at in range(4) if (owner == at).any()]
        expected = masks_to_boxes(torch.stack([owner == at for at in there]))
        expected[:, 2:] += 1
        assert torch.equal(tight_boxes(owner, there), expected)
    assert tight_boxes(owner, []).shape == (0, 4)


def test_a_garment_covers_the_background_where_it_is_and_nowhere_else() -> None:
    plain = torch.rand(3, SIZE, SIZE, generator=generator_for("plain"))
    before = plain.clone()
    scene, owner = paste(plain, list(garments(3).images[:, 0].float() / 255), generator_for("paste"))
    assert torch.equal(plain, before)
    assert torch.equal(scene[:, owner < 0], plain[:, owner < 0])
    assert (scene[:, owner >= 0] != plain[:, owner >= 0]).any(0).float().mean() > 0.99
    assert float(scene.min()) >= 0
    assert float(scene.max()) <= 1


def test_parts_see_no_pixel_of_another_part(monkeypatch: pytest.MonkeyPatch) -> None:
    """In place of each photograph one that says which photograph, and which quarter, is seen."""

    def marked(name: str) -> Tensor:
        photo = torch.full((3, 300, 450), list(PHOTOS).index(name) / len(PHOTOS))
        for number, (rows, columns) in enumerate(((0, 0), (0, 225), (150, 0), (150, 225))):
            photo[0, rows : rows + 150, columns : columns + 225] = number / 4
        return photo

    monkeypatch.setattr(detection_scenes, "_photo", marked)
    quarters: dict[tuple[str, float], set[float]] = {}
    for part in PARTS:
        for seed in range(60):
            square = background(part, 32, generator_for("background", seed))
            assert float(square.flatten(1).std(1).max()) < 1e-6
            quarters.setdefault((part, round(float(square[1, 0, 0]), 3)), set()).add(round(float(square[0, 0, 0]), 3))
    photos = {photo for _, photo in quarters}
    assert len(photos) == len(PHOTOS)
    for photo in photos:
        of_each = [quarters[part, photo] for part in PARTS]
        assert sorted(next(iter(one)) for one in of_each) == [0, 0.25, 0.5, 0.75]
        assert all(len(one) == 1 for one in of_each)
