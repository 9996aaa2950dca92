"""Canaries of an auditor among the examples of one client; see ``attacks.dp_audit.placed_canaries``. No Flower here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from attacks.dp_audit.canary_clients import NORM as CLIENT_NORM
from attacks.dp_audit.canary_clients import PlacedClient, client_defense
from attacks.dp_audit.placed_canaries import (
    BRIGHT,
    DARK,
    EMPTY,
    NO_CANARY,
    NORM,
    PlacedCanaries,
    audited_defense,
    set_gradients,
)
from attacks.local_model import shared_tensors
from clients.federated.plan import FederatedPlan
from clients.task.local_data import LocalData
from defenses.base import Batch
from defenses.neighbours import ADD_OR_REMOVE
from defenses.random_draws import generator_for
from defenses.tensors import Update

Labelled = tuple[Tensor, Tensor]
"""Image or images, and target or targets."""


@dataclass
class ClientCanaries:
    """The canaries of one client in one pipeline; their coins are the client's own, and the same in all rounds.

    Attributes:
        coins: (M,) bool.
        lone: Coin of the lone canary; None without one.
        hides_number: A coin decides whether an example exists, else what it is.
        size: Length of a canary's gradient.
        in_batch: (B,) of the current batch, as ``clients.federated.canaries.Example``.
    """

    placed: PlacedCanaries
    coins: Tensor
    lone: bool | None
    hides_number: bool
    size: float
    in_batch: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))

    @classmethod
    def of(cls, data: LocalData) -> ClientCanaries | None:
        """Those that the task requests; None without any, and under pipelines whose claim they cannot test."""
        plan, defense = data.task.plan, audited_defense(data.pipeline)
        count = plan.dp_canaries if isinstance(plan, FederatedPlan) else 0
        if not count or defense is None:
            return None
        sizes = trained_sizes(plan.build_model())
        placed = PlacedCanaries.of(sizes, count, defense.neighbours, plan.seed, data.partition)
        flips = torch.rand(len(placed) + 1, generator=generator_for(*data.key("canaries"))) < 0.5
        lone = bool(flips[-1]) if placed.lone else None
        return cls(placed, flips[:-1], lone, defense.neighbours == ADD_OR_REMOVE, NORM * defense.max_grad_norm)

    @property
    def examples(self) -> Tensor:
        """Numbers (n,) of the weights of all canaries that exist, and ``EMPTY`` for a lone one."""
        weights = self.placed.weights[self.coins] if self.hides_number else self.placed.weights
        lone = self.lone is not None and (self.lone or not self.hides_number)
        return torch.cat([weights, torch.full((int(lone),), EMPTY)])

    def of_batches(self, batches: Iterable[tuple[Tensor, ...]]) -> Iterator[Labelled]:
        """Images and targets of batches of ``WithCanaries``; meanwhile ``in_batch`` is of the batch at hand."""
        for images, targets, numbers in batches:
            self.in_batch = numbers
            yield images, targets

    def enter(self, batch: Batch, data: LocalData, key: Any) -> Batch:
        """The batch with its own examples as they enter the model; canaries enter as they are."""
        own = self.in_batch == NO_CANARY
        if not own.any():
            return batch
        entered = data.enter(batch.rows(own), key)
        images, targets = batch.images.clone(), batch.targets.to(entered.targets.dtype)
        images[own], targets[own] = entered.images, entered.targets
        return Batch(images, targets)

    def set_gradients(self, model: nn.Module, server_round: int) -> None:
        """Give the canaries of the current batch their gradients, after the backward pass."""
        signs = self.placed.signs(server_round)
        if not self.hides_number:
            signs = torch.where(self.coins, signs, -signs)
        values = torch.zeros(sum(self.placed.sizes.values()))
        values[self.placed.weights] = self.size * signs
        set_gradients(model, self.in_batch, values[self.in_batch.clamp(min=0)])


@dataclass(frozen=True)
class CanaryClient:
    """A client that is a canary: its update is the auditor's, in one of two directions by a coin of its own.

    ``coins`` are (1,) bool, the same in all rounds; ``length`` is that of its update before the defence.
    """

    placed: PlacedClient
    coins: Tensor
    length: float
    lone: ClassVar[None] = None

    @classmethod
    def of(cls, data: LocalData) -> CanaryClient | None:
        """That of a task whose first ``dp_canaries`` clients are canaries; None for others, and without a client-level claim."""
        plan, defense = data.task.plan, client_defense(data.pipeline)
        if defense is None or not isinstance(plan, FederatedPlan) or not 0 <= data.partition < plan.dp_canaries:
            return None
        placed = PlacedClient.of(shared_shapes(plan.build_model()), plan.seed, data.partition)
        coins = torch.rand(1, generator=generator_for(*data.key("canaries"))) < 0.5
        return cls(placed, coins, CLIENT_NORM * defense.max_norm)

    def update(self, like: Update, server_round: int) -> Update:
        """What takes the place of the client's own update, with the types of ``like``."""
        canary = self.placed.update(bool(self.coins), self.length, server_round)
        return {name: canary[name].to(tensor.dtype) if name in canary else tensor for name, tensor in like.items()}


def shared_shapes(model: nn.Module) -> dict[str, tuple[int, ...]]:
    """Name of each tensor that a client-level defence clips and noises -> its shape; of frozen parameters a client sends 0."""
    frozen = {name for name, weight in model.named_parameters() if not weight.requires_grad}
    return {name: tuple(tensor.shape) for name, tensor in shared_tensors(model).items() if name not in frozen}


def trained_sizes(model: nn.Module) -> dict[str, int]:
    """Name of each parameter that is trained -> its number of weights."""
    return {name: weight.numel() for name, weight in model.named_parameters() if weight.requires_grad}


Example = tuple[Tensor, Tensor, int]
"""Image, target, and number of the weight of a canary, or ``NO_CANARY`` or ``EMPTY``."""


class KeptExamples(Dataset[Labelled]):
    """A client's training examples for a loader, read on access."""

    def __init__(self, data: LocalData) -> None:
        self._data = data

    def __len__(self) -> int:
        return self._data.num_train

    def __getitem__(self, index: int) -> Labelled:
        return self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Labelled]:
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
