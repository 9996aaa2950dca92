"""A client's training examples for torch's loaders."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from clients.task.local_data import LocalData


class KeptExamples(Dataset[tuple[Tensor, Tensor]]):
    """A client's training examples for a loader, read when they are asked for."""

    def __init__(self, data: LocalData) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data.num_train

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        batch = self._data.kept(torch.tensor(indices, dtype=torch.long))
        return list(zip(batch.images, batch.targets, strict=True))
