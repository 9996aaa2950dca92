"""Scenes: boxes are exactly the garments' visible pixels, and parts share nothing."""

from __future__ import annotations

import detection_scenes
import pytest
import torch
from detection_scenes import MOST, PARTS, SIDES, Scenes, _shared, background, compose, paste, scaled, tight_boxes
from torch import Tensor
from torchvision.ops import masks_to_boxes

from clients.data.images import ImageData
from clients.data.packaged import PHOTOS
from defenses.random_draws import generator_for

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


@pytest.fixture
def dark(monkeypatch: pytest.MonkeyPatch) -> None:
    """A background that no garment's pixel equals."""
    monkeypatch.setattr(detection_scenes, "background", lambda _, size, __: torch.full((3, size, size), -1.0))


@pytest.mark.usefixtures("dark")
def test_boxes_are_exactly_the_pixels_that_are_no_background() -> None:
    """Found again in the scene alone: of one garment all such pixels, of several each is in a box and touches its four sides."""
    found = scenes()
    for image, boxes in zip(found.images, found.boxes, strict=True):
        seen = (image >= 0).all(0)
        covered = torch.zeros_like(seen)
        for left, top, right, bottom in boxes.int().tolist():
            inside = seen[top:bottom, left:right]
            assert inside[0].any()
            assert inside[-1].any()
            assert inside[:, 0].any()
            assert inside[:, -1].any()
            covered[top:bottom, left:right] = True
        assert not (seen & ~covered).any()
        if len(boxes) == 1:
            expected = masks_to_boxes(seen[None])
            expected[:, 2:] += 1  # torchvision's last pixel is inside
            assert torch.equal(boxes, expected)


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


def test_garments_are_cut_tight_and_scaled_with_their_proportions() -> None:
    crop = torch.zeros(28, 28)
    crop[4:24, 10:20] = 0.5
    crop[0, 0] = 8 / 255  # what is left of the background
    grey, mask = scaled(crop, 40)
    assert grey.shape == mask.shape == (40, 20)
    assert mask.all()
    assert torch.allclose(grey, torch.tensor(0.5))


def test_scenes_hold_one_to_four_garments_of_the_asked_sizes_and_labels() -> None:
    found = scenes()
    assert found.images.shape == (12, 3, SIZE, SIZE)
    assert {len(boxes) for boxes in found.boxes} <= set(range(1, MOST + 1))
    assert found.num_objects == sum(len(boxes) for boxes in found.boxes)
    for boxes, labels in zip(found.boxes, found.labels, strict=True):
        assert len(boxes) == len(labels)
        assert ((labels >= 1) & (labels <= 10)).all()
        assert boxes.min() >= 0
        assert boxes.max() <= SIZE
        # Rounded to a pixel; smaller where another garment covers a side of it.
        assert (boxes[:, 2:] - boxes[:, :2]).max() <= round(SIDES[1] * SIZE)


def test_the_same_stream_gives_the_same_scenes() -> None:
    one, same, other = scenes(), scenes(), scenes(seed=1)
    assert torch.equal(one.images, same.images)
    assert all(torch.equal(a, b) for a, b in zip(one.boxes + one.labels, same.boxes + same.labels, strict=True))
    assert not torch.equal(one.images, other.images)


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


@pytest.mark.parametrize(
    ("other", "expected"),
    [((0, 0, 10, 10), 1), ((10, 0, 20, 10), 0), ((5, 0, 25, 10), 0.5), ((2, 2, 4, 4), 1), ((20, 20, 30, 30), 0)],
)
def test_what_two_boxes_share_is_of_the_smaller(other: tuple[int, int, int, int], expected: float) -> None:
    assert _shared((0, 0, 10, 10), other) == _shared(other, (0, 0, 10, 10)) == expected
