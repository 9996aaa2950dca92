"""Check whether protected copies still show their pictures: each copy is reduced and compared with the originals."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from clients.data.images import DataError
from simulations.protect.copies import Copy, Order
from simulations.protect.pictures import read
from simulations.protect.recovered import VIEWS, identified

MOST_COMPARED = 100
"""Pictures of a folder that are compared, evenly spaced."""
GRID = 32
"""Cells along each side of the reduced pictures. A cell is the mean of its pixels, as an eye sees them from a distance."""


@dataclass(frozen=True)
class Compared:
    """One original beside its delivered copy.

    Attributes:
        name: Path in the source folder.
        shape: (C, H, W) of the copy in pixels.
        original: (3, ``GRID``, ``GRID``) in [0, 1], reduced.
        copy: The same of the copy.
    """

    name: str
    shape: tuple[int, ...]
    original: Tensor
    copy: Tensor


@dataclass(frozen=True)
class Identified:
    """Which copies are identified.

    Attributes:
        compared: The pictures that were compared.
        names: Those of them whose copy is closest to its own original.
    """

    compared: tuple[Compared, ...] = ()
    names: frozenset[str] = frozenset()

    @property
    def most(self) -> bool:
        """Whether more than half of the compared copies still show their pictures."""
        return is_most(len(self.names), len(self.compared))

    @property
    def headline(self) -> str:
        """The measurement in a few words."""
        return f"{len(self.names)} of {len(self.compared)} copies {'still show their picture' if self.most else 'identified'}"

    @property
    def finding(self) -> str:
        """The measurement as text; "" where no copy was compared."""
        found, of = len(self.names), len(self.compared)
        if not of:
            return ""
        among = f"its own original among {of} pictures, also turned and mirrored" if of > 1 else "its upright original"
        among += f" (chance: 1 in {VIEWS * of})"
        reduced = f"downsampled to {GRID}x{GRID}"
        if self.most:
            each = "each is" if found > 1 else "it is"
            return f"{self.headline}: {reduced}, {each} closest to {among}"
        return f"{found} of {of} copies, {reduced}, are closest to {among.replace('its', 'their', 1)}"


def is_most(found: int, of: int) -> bool:
    """Whether ``found`` of so many copies are more than half, and at least one."""
    return 2 * found > of


def reduced(image: Tensor) -> Tensor:
    """(C, H, W) in [0, 1] -> (3, ``GRID``, ``GRID``), the mean of each cell; a grey picture has three equal channels."""
    return adaptive_avg_pool2d(image.unsqueeze(0), GRID)[0].expand(3, -1, -1)


def spaced(names: Sequence[str], most: int) -> list[str]:
    """At most so many of the names, evenly spaced."""
    return [names[at * len(names) // most] for at in range(most)] if len(names) > most else list(names)


def compare(order: Order, done: Sequence[Copy]) -> Identified:
    """Compare delivered copies, read from their files, with up to ``MOST_COMPARED`` originals."""
    copies = {one.source: one for one in done if not one.error}
    found = []
    for name in spaced(sorted(copies), MOST_COMPARED):
        try:
            original = reduced(read(order.root / name, order.size).image)
            made = reduced(read(order.out / copies[name].output).image)
        except DataError:  # a file has changed since its copy was made
            continue
        found.append(Compared(name, copies[name].shape, original, made))
    if not found:
        return Identified()
    hits = identified(torch.stack([one.copy for one in found]), torch.stack([one.original for one in found]))
    return Identified(tuple(found), frozenset(one.name for one, hit in zip(found, hits, strict=True) if hit))
