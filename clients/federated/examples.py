"""The training examples of one client for a loader, with an auditor's canaries behind them where a task requests any."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.utils.data import Dataset

from attacks.dp_audit.example_gradients import EMPTY, NO_CANARY
from attacks.dp_audit.placed_canaries import BRIGHT, DARK
from clients.federated.canaries import ClientCanaries
from clients.task.local_data import LocalData

Example = tuple[Tensor, Tensor, int]
"""Image, target, and number of the weight of a canary, or ``NO_CANARY`` or ``EMPTY``."""


class KeptExamples(Dataset[tuple[Tensor, Tensor]]):
    """A client's training examples for a loader, read on access."""

    def __init__(self, data: LocalData) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data.num_train

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[tuple[Tensor, Tensor]]:
        batch = self._data.kept(torch.tensor(indices, dtype=torch.long))
        return list(zip(batch.images, batch.targets, strict=True))


class WithCanaries(Dataset[Example]):
    """A client's own examples, and behind them its canaries."""

    def __init__(self, own: KeptExamples, canaries: ClientCanaries, data: LocalData) -> None:
        self._own, self._numbers, self._lone = own, canaries.examples.tolist(), canaries.lone
        self._shape, self._of_own, self._classes = data.card.input_shape, data.num_train, data.card.num_classes

    def __len__(self) -> int:
        return self._of_own + len(self._numbers)

    def __getitem__(self, index: int) -> Example:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Example]:
        own = iter(self._own.__getitems__([at for at in indices if at < self._of_own]))
        return [
            (*next(own), NO_CANARY) if at < self._of_own else self._canary(self._numbers[at - self._of_own])
            for at in indices
        ]

    def _canary(self, number: int) -> Example:
        pixel = 0.0 if number != EMPTY else BRIGHT if self._lone else DARK
        target = torch.zeros(self._classes)
        target[0] = 1.0
        return torch.full(tuple(self._shape), pixel), target, number
