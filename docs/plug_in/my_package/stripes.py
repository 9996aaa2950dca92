"""Drawn stripes, lying or standing: a data set that needs no files."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.utils.data import Dataset

SIDE = 16


class Stripes(Dataset[tuple[Tensor, int]]):
    """Grey images (1, 16, 16) of stripes with noise, floats in [0, 1]; class 0 lies and class 1 stands.

    Args:
        size: Number of examples.
        seed: They depend on it alone.
    """

    classes = ("lying", "standing")

    def __init__(self, size: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.targets = torch.arange(size) % 2
        period = torch.randint(4, 9, (size, 1, 1, 1), generator=generator)
        waves = ((torch.arange(SIDE).view(1, 1, SIDE, 1) // (period // 2)) % 2).float().expand(-1, -1, -1, SIDE)
        images = torch.where(self.targets.view(-1, 1, 1, 1).bool(), waves.mT, waves)
        self.images = (0.1 + 0.7 * images + 0.2 * torch.rand(size, 1, SIDE, SIDE, generator=generator)).clamp(0, 1)

    def __len__(self) -> int:
        return len(self.targets)

    def __getitem__(self, at: int) -> tuple[Tensor, int]:
        return self.images[at], int(self.targets[at])


def stripes() -> tuple[Stripes, Stripes]:
    """Training and test images."""
    return Stripes(200, seed=0), Stripes(50, seed=1)
