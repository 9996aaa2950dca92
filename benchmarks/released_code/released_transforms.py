"""The 50 transforms, policies and networks' inputs of ATS, beside those of its authors' repository."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from PIL import Image
from released_checkouts import Importer
from released_rows import Row
from torch import Tensor

from clients.data.datasets import load_dataset
from defenses.images.ats import Policy
from defenses.images.transforms import LIBRARY, apply_transform

PHOTOS, NOISE = 24, 8
NOT_ROUNDED = "Ours does not round to 256 grey levels between steps."
LEVEL_3 = "The paper's Table 5 has level 4, the released list level 3."
SAME_AS_43 = 24
"""A transform that is what the released list has as number 43."""

ALLOWED = {
    "contrast": (1, 0.2),
    "color": (1, 0.12),
    "sharpness": (1, 0.25),
    "brightness": (1, 0.02),
    "autocontrast": (1, 0.005),
    "shearY": (1, 0.002),
    "rotate": (255, 0.002),
}
"""Transform -> largest difference in whole grey levels, and the largest share of values that may differ; others are bit-equal.

Pillow also rounds what it blends with (luma, mean, smoothed image), and its tables. Pixels of a turned image may come from a
neighbour: Pillow computes positions in 16.16 fixed point.
"""
STEP_SHARE = 2.0
"""Times the shares of ``ALLOWED`` in a step of a policy, whose images earlier steps have changed."""


def pictures() -> np.ndarray:
    """(n, 32, 32, 3) uint8: photographs of the packaged data set, spread over its classes, and noise."""
    photos = load_dataset("photos").train.images
    chosen = photos[torch.arange(PHOTOS) * len(photos) // PHOTOS].permute(0, 2, 3, 1).numpy()
    noise = np.random.default_rng(0).integers(0, 256, (NOISE, 32, 32, 3)).astype(np.uint8)
    return np.concatenate([chosen, noise])


def to_images(levels: np.ndarray) -> Tensor:
    """(n, H, W, C) uint8 -> (n, C, H, W) in [0, 1]."""
    return torch.from_numpy(levels.copy()).permute(0, 3, 1, 2).float() / 255


def to_levels(images: Tensor) -> np.ndarray:
    """(n, C, H, W) in [0, 1] -> (n, H, W, C) whole grey levels, int64, cut down as Pillow cuts them."""
    return (images.double() * 255 + 1e-3).floor().long().permute(0, 2, 3, 1).numpy()


class ReleasedTransforms:
    """The released list of transforms, with the sign of each draw given.

    Args:
        modules: Imports from an open checkout of the authors' repository.
    """

    def __init__(self, modules: Importer) -> None:
        self._autoaugment = modules("autoaugment")
        self.entries: list[Callable[[Any], Any]] = modules("policy").policies

    def __call__(self, picture: np.ndarray, policy: Sequence[int], signs: Sequence[float]) -> np.ndarray:
        """A picture (H, W, 3) uint8 after the transforms of a policy, each with its sign."""
        image = Image.fromarray(picture)
        for index, sign in zip(policy, signs, strict=True):
            self._autoaugment.random = SimpleNamespace(choice=lambda _, sign=sign: int(sign))
            image = self.entries[index](image)
        return np.asarray(image)


def transforms(modules: Importer) -> Iterator[Row]:
    """A row for each of the 50."""
    released, images = ReleasedTransforms(modules), pictures()
    for index, (name, level, _) in enumerate(LIBRARY):
        yield _transform(released, images, index, index, f"transform {index}: {name} {level}")
    yield _transform(released, images, SAME_AS_43, 43, f"transform {SAME_AS_43}: translateY 3, and the released 43")


def _transform(released: ReleasedTransforms, images: np.ndarray, index: int, theirs: int, what: str) -> Row:
    difference = _difference(released, images, index, theirs)
    bit_equal = int((difference.reshape(len(difference), -1).max(1) == 0).sum())
    unequal = float((difference > 0).mean())
    told = f"{bit_equal} of {len(difference)} images bit-equal"
    if unequal:
        told += f"; {unequal:.1%} of the values differ, by at most {difference.max()}"
    agrees = _within(LIBRARY[index].name, difference)
    note = "Within Pillow's own rounding." if unequal and agrees else ""
    if not index == theirs == 43:
        return Row(what, _inputs(images), told, agrees, note=note)
    # The reason is checked: our transform of the released level does what the released one does.
    same = not _difference(released, images, SAME_AS_43, theirs).any()
    return Row(what, _inputs(images), told, agrees, LEVEL_3, note, explained=same)


def _within(name: str, difference: np.ndarray, times: float = 1.0) -> bool:
    """Whether the size of the differences is ``ALLOWED`` for this transform, and so many ``times`` their share."""
    levels, share = ALLOWED.get(name, (0, 0.0))
    return bool(difference.max(initial=0) <= levels and (difference > 0).mean() <= times * share)


def _difference(released: ReleasedTransforms, images: np.ndarray, index: int, theirs: int) -> np.ndarray:
    """Grey levels between our transform ``index`` and the released ``theirs``: (2 n, H, W, 3), both signs."""
    found, expected = [], []
    for sign in (1.0, -1.0):
        found.append(to_levels(apply_transform(to_images(images), index, torch.full((len(images),), sign))))
        expected.append(np.stack([released(image, (theirs,), (sign,)) for image in images]).astype(int))
    difference: np.ndarray = np.abs(np.concatenate(found) - np.concatenate(expected))
    return difference


def _inputs(images: np.ndarray) -> str:
    return f"{len(images)} images, both signs"


def random_policies(count: int) -> list[tuple[Policy, Tensor]]:
    """Policies of three different transforms without number 43, each with signs (3,)."""
    generator = torch.Generator().manual_seed(0)
    allowed = torch.tensor([index for index in range(len(LIBRARY)) if index != 43])
    drawn = [allowed[torch.randperm(len(allowed), generator=generator)[:3]] for _ in range(count)]
    signs = torch.randint(2, (count, 3), generator=generator).float() * 2 - 1
    return [(tuple(policy.tolist()), sign) for policy, sign in zip(drawn, signs, strict=True)]


def apply_policy(images: Tensor, policy: Policy, signs: Tensor) -> Tensor:
    """Our transforms of a policy from left to right, (n, C, H, W) in [0, 1]."""
    for index, sign in zip(policy, signs.tolist(), strict=True):
        images = apply_transform(images, index, torch.full((len(images),), sign))
    return images


def policies(modules: Importer) -> Iterator[Row]:
    """Policies of three transforms: their order, and what rounding between steps costs."""
    released, images, chosen = ReleasedTransforms(modules), pictures(), random_policies(100)
    errors: dict[str, list[float]] = {"left to right": [], "right to left": []}
    steps: list[tuple[str, np.ndarray]] = []
    for policy, signs in chosen:
        theirs = np.stack([released(image, policy, signs.tolist()) for image in images]).astype(int)
        ours = to_levels(apply_policy(to_images(images), policy, signs))
        reverse = to_levels(apply_policy(to_images(images), policy[::-1], signs.flip(0)))
        for name, other in (("left to right", ours), ("right to left", reverse)):
            errors[name].append(float(np.abs(other - theirs).mean()))
        before = images
        for index, sign in zip(policy, signs, strict=True):
            after = np.stack([released(image, (index,), (float(sign),)) for image in before])
            ours = to_levels(apply_policy(to_images(before), (index,), sign[None]))
            steps.append((LIBRARY[index].name, np.abs(ours - after.astype(int))))
            before = after
    mean, reversed_ = (float(np.mean(errors[name])) for name in errors)
    worst = max(errors["left to right"])
    within = sum(_within(name, difference, STEP_SHARE) for name, difference in steps)
    largest = max(int(difference.max()) for name, difference in steps if name != "rotate")
    inputs = f"{len(chosen)} random policies of three, {len(images)} images each"
    # The reason is checked: each step alone is within rounding (the next row), and the order is not the reverse one.
    in_order = mean < 1 and mean < reversed_ / 4 and worst < reversed_ / 2
    yield Row(
        "policies, left to right", inputs,
        f"mean {mean:.2f} grey levels, worst policy {worst:.2f}; applied in the reverse order {reversed_:.2f}",
        worst <= 1, NOT_ROUNDED, explained=in_order and within == len(steps),
    )  # fmt: skip
    yield Row(
        "policies, each step of ours from the released image before it", inputs,
        f"{within} of {len(steps)} steps within the rounding of their transform, at most {largest}", within == len(steps),
    )  # fmt: skip


def grey(modules: Importer) -> Iterator[Row]:
    """Grey images: the released pipeline goes through RGB and back, ours transforms one channel."""
    released, images = ReleasedTransforms(modules), pictures()
    levels = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in images])
    exact, largest, within = 0, 0, True
    for index, (name, *_) in enumerate(LIBRARY):
        if index == 43:
            continue
        differences = []
        for sign in (1.0, -1.0):
            ours = to_levels(apply_transform(to_images(levels[..., None]), index, torch.full((len(levels),), sign)))
            theirs = [
                np.asarray(Image.fromarray(released(np.repeat(one[..., None], 3, 2), (index,), (sign,))).convert("L"))
                for one in levels
            ]
            differences.append(np.abs(ours[..., 0] - np.stack(theirs).astype(int)))
        difference = np.concatenate(differences)
        exact, largest = exact + (not difference.any()), max(largest, int(difference.max()))
        within = within and _within(name, difference)
    yield Row(
        "transforms of one channel, through RGB and back", f"49 transforms without 43, {len(levels)} grey images, both signs",
        f"{exact} transforms bit-equal; others differ by at most {largest}", within,
    )  # fmt: skip
