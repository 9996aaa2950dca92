"""A client's training examples in split learning: the examples of each batch, and the data sent of them.

A batch is named by its number in the round: its examples, its shuffles and its noise follow from that alone, so that the
forward pass can be computed again when the gradient arrives.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.sender import smash
from clients.models.split.halves import EdgeHalf
from clients.split.plan import SplitPasses
from clients.task.local_data import LocalData
from clients.training.evaluation import device
from defenses.base import Batch
from defenses.random_draws import Key, generator_for


@dataclass(frozen=True)
class SmashedBatch:
    """One batch on the wire.

    Attributes:
        features: (B, N, D), after all defences.
        examples: (B,) int64, positions among the client's training examples: where the server holds the labels, it needs these.
        targets: (B, K) class probabilities: where the labels travel, they travel with the tokens.
    """

    features: Tensor
    examples: Tensor
    targets: Tensor


class SplitBatches:
    """The batches of one round. Their number (``len``), content and draws follow from the task and the client's own streams."""

    def __init__(self, data: LocalData) -> None:
        self.data, self.task = data, data.task
        self._passes = SplitPasses(data.task, data.num_train)

    def __len__(self) -> int:
        return len(self._passes.batches())

    def smash(self, edge: EdgeHalf, number: int) -> SmashedBatch:
        """Smashed data of batch ``number`` of this round; autograd passes through where the weights require it."""
        examples = self._examples(number)
        batch = self.data.enter(self.data.kept(examples), self.key("images", number))
        features = smashed(self.data, edge, batch.images, self.key("batch", number))
        return SmashedBatch(features, examples, batch.targets)

    def send(self, edge: EdgeHalf, first: int, count: int) -> list[SmashedBatch]:
        """Batches ``first`` to ``first + count`` of this round (fewer at its end), with new draws."""
        self.data.renew("batches", first, count)
        return [self.smash(edge, number) for number in range(first, min(first + count, len(self)))]

    def _examples(self, number: int) -> Tensor:
        number, at = self._passes.place(number)
        return self._order(number)[at * self.task.plan.batch_size : (at + 1) * self.task.plan.batch_size]

    def _order(self, number: int) -> Tensor:
        """All training examples in the order of one pass of the run."""
        return torch.randperm(self.data.num_train, generator=generator_for(*self.data.key("order", number)))

    def transmissions(self, first_round: int, last_round: int) -> Tensor:
        """How often training sends each training example in these rounds, both included: (num_train,) int64.

        It follows from the client's own orders, so that nothing need be kept, and a message that got lost counts as sent.
        """
        counts, size = torch.zeros(self.data.num_train, dtype=torch.int64), self.task.plan.batch_size
        for number, first, end in self._passes.within(first_round, last_round):
            counts[self._order(number)[first * size : end * size]] += 1
        return counts

    def key(self, what: str, number: int) -> Key:
        """The random stream of a batch's "images" (input defences) or of the "batch" of their tokens."""
        return self.data.key("batches", self.task.round, what, number, number=number)

    def originals(self, number: int) -> Batch:
        """The images of a batch before all defences."""
        return self.data.augmented(self.data.plain(self._examples(number)), self.key("images", number))


def smashed(data: LocalData, edge: EdgeHalf, images: Tensor, key: Key) -> Tensor:
    """Smashed data (B, N, D) of images that entered the client half, after all defences."""
    return smash(edge, data.pipeline, images.to(device()), data.card, key)
