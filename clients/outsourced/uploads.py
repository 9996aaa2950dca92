"""What a client uploads: all its training examples once, protected by its input defences, in an order of its own."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from clients.local_data import Client, LocalData, Probed, Truths, chunks, rows
from defenses.base import generator_for

KIND = "message:upload"
"""Of the draws that protect an upload."""

UPLOAD_ROUND = 1
"""In which clients upload; whatever is asked later is about the same upload."""


class Uploads:
    """One client's upload in batches, whose content and draws follow from the client's own streams.

    A batch matters to defences that mix examples. One example that is left over joins the last batch.

    Args:
        data: The client's examples.
    """

    def __init__(self, data: LocalData) -> None:
        self.data = copy.copy(data)
        self.data.task = replace(data.task, round=UPLOAD_ROUND)
        self._batches = chunks(data.num_train, data.task.plan.batch_size)

    def __len__(self) -> int:
        """Number of batches."""
        return len(self._batches)

    def begin(self) -> None:
        """To be called before the first batch is sent: the whole upload has one protection, drawn once."""
        self.data.renew(KIND, 0, len(self))

    def batch(self, number: int) -> Probed:
        """Batch ``number``, as the person holds it and as it is uploaded."""
        order = torch.randperm(self.data.num_train, generator=generator_for(*self.data.key("order", "upload")))
        return self.data.view(order[self._batches[number]], self.data.key(KIND, number, number=number))


class OutsourcedClient(Client):
    """One client of outsourced training.

    Attributes:
        uploads: What it uploads.
    """

    def __init__(self, data: LocalData) -> None:
        super().__init__(data)
        self.uploads = Uploads(data)

    def truths(self, observation: str) -> Truths:
        """Of "upload" the attacked images of the first batches, row by row; of "model" all that it was trained on."""
        if observation == "upload":
            count = slice(self.task.plan.probe_images)
            return Truths(
                [rows(self.uploads.batch(at), count) for at in range(self.task.plan.probe_targets)], paired=True
            )
        if observation == "model":
            everyone = torch.arange(self.data.num_train)
            return Truths([self.data.view(everyone, self.data.key("mean-transformed", "model"))], whole_round=True)
        return super().truths(observation)
