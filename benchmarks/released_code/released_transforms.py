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

# Largest difference in whole grey levels: Pillow also rounds what it blends with (luma, mean, smoothed image), and its tables.
ALLOWED = {"contrast": 1, "color": 1, "sharpness": 1, "brightness": 1, "autocontrast": 1, "shearY": 1}
MOVED = 0.002
"""Share of a turned image's pixels that may come from a neighbour: Pillow computes positions in 16.16 fixed point."""


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
    name = LIBRARY[index].name
    found, expected = [], []
    for sign in (1.0, -1.0):
        found.append(to_levels(apply_transform(to_images(images), index, torch.full((len(images),), sign))))
        expected.append(np.stack([released(image, (theirs,), (sign,)) for image in images]).astype(int))
    difference = np.abs(np.concatenate(found) - np.concatenate(expected))
    bit_equal = int((difference.reshape(len(difference), -1).max(1) == 0).sum())
    unequal = float((difference > 0).mean())
    told = f"{bit_equal} of {len(difference)} images bit-equal"
    if unequal:
        told += f"; {unequal:.1%} of the values differ, by at most {difference.max()}"
    if name == "rotate":
        return Row(what, _inputs(images), told, unequal <= MOVED)
    agrees = bool(difference.max() <= ALLOWED.get(name, 0))
    note = "Within Pillow's own rounding." if unequal and agrees else ""
    return Row(what, _inputs(images), told, agrees, LEVEL_3 if index == theirs == 43 else "", note)


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
    errors: dict[str, list[float]] = {"left to right": [], "right to left": [], "rounded": []}
    for policy, signs in chosen:
        theirs = np.stack([released(image, policy, signs.tolist()) for image in images]).astype(int)
        ours = to_levels(apply_policy(to_images(images), policy, signs))
        reverse = to_levels(apply_policy(to_images(images), policy[::-1], signs.flip(0)))
        rounded = to_images(images)
        for index, sign in zip(policy, signs, strict=True):
            rounded = apply_policy(rounded, (index,), sign[None])
            rounded = torch.from_numpy(to_levels(rounded)).permute(0, 3, 1, 2).float() / 255
        for name, other in (("left to right", ours), ("right to left", reverse), ("rounded", to_levels(rounded))):
            errors[name].append(float(np.abs(other - theirs).mean()))
    mean, reversed_, rounded_ = (float(np.mean(errors[name])) for name in errors)
    inputs = f"{len(chosen)} random policies of three, {len(images)} images each"
    yield Row(
        "policies, left to right", inputs, f"mean {mean:.2f} grey levels; applied in the reverse order {reversed_:.2f}",
        mean < 1 and mean < reversed_ / 4, NOT_ROUNDED,
    )  # fmt: skip
    yield Row(
        "policies, ours cut to grey levels after each step", inputs, f"mean {rounded_:.2f} grey levels", rounded_ < 1
    )


def grey(modules: Importer) -> Iterator[Row]:
    """Grey images: the released pipeline goes through RGB and back, ours transforms one channel."""
    released, images = ReleasedTransforms(modules), pictures()
    levels = np.stack([np.asarray(Image.fromarray(image).convert("L")) for image in images])
    worst = {}
    for index, (name, *_) in enumerate(LIBRARY):
        if index == 43:
            continue
        for sign in (1.0, -1.0):
            ours = to_levels(apply_transform(to_images(levels[..., None]), index, torch.full((len(levels),), sign)))
            theirs = [
                np.asarray(Image.fromarray(released(np.repeat(one[..., None], 3, 2), (index,), (sign,))).convert("L"))
                for one in levels
            ]
            difference = np.abs(ours[..., 0] - np.stack(theirs).astype(int))
            # A turned pixel may come from a neighbour; the row of "rotate" says how often.
            difference = difference if name != "rotate" else difference[:, :0]
            worst[index] = max(worst.get(index, 0), int(difference.max(initial=0)))
    allowed = all(worst[index] <= ALLOWED.get(LIBRARY[index].name, 0) for index in worst)
    exact = sum(value == 0 for value in worst.values())
    yield Row(
        "transforms of one channel, through RGB and back", f"49 transforms without 43, {len(levels)} grey images, both signs",
        f"{exact} transforms bit-equal; others differ by at most {max(worst.values())} (rotate not counted)", allowed,
    )  # fmt: skip
