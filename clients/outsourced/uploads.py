"""A client's upload: all its training examples, protected by its input defences, in its own order."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch

from clients.outsourced.plan import OutsourcedPlan
from clients.task.batches import chunks
from clients.task.client import Client
from clients.task.local_data import LocalData
from clients.task.truths import Probed, Truths, rows
from defenses.random_draws import generator_for

KIND = "message:upload"
"""Of the draws that protect an upload."""

UPLOAD_ROUND = 1
"""Round in which clients upload; later requests are about the same upload."""


class Uploads:
    """One client's upload in batches, whose content and draws follow from the client's own streams.

    Every pass holds each example once. A batch matters to defences that mix examples. One example that is left over joins the
    last batch of its pass.
    """

    def __init__(self, data: LocalData) -> None:
        self.data = copy.copy(data)
        self.data.task = replace(data.task, round=UPLOAD_ROUND)
        self._batches = chunks(data.num_train, data.task.plan.batch_size)
        self._passes = OutsourcedPlan.narrow(data.task.plan).upload_passes

    def __len__(self) -> int:
        return self._passes * len(self._batches)

    def begin(self) -> None:
        """Draw the protection of the whole upload once; call it before the first batch is sent."""
        self.data.renew(KIND, 0, len(self))

    def batch(self, number: int) -> Probed:
        """Batch ``number``: the originals, and as uploaded."""
        turn, at = divmod(number, len(self._batches))
        stream = self.data.key("order", "upload", *([turn] if turn else []))
        order = torch.randperm(self.data.num_train, generator=generator_for(*stream))
        return self.data.view(order[self._batches[at]], self.data.key(KIND, number, number=number))


class OutsourcedClient(Client):
    """One client of outsourced training, with its ``uploads``."""

    def __init__(self, data: LocalData) -> None:
        super().__init__(data)
        self.uploads = Uploads(data)

    def truths(self, observation: str) -> Truths:
        """Attacked images of the first batches, row by row, for "upload"; all uploaded images for "collection" and "model"."""
        if observation == "upload":
            count = slice(self.task.plan.probe_images)
            return Truths(
                [rows(self.uploads.batch(at), count) for at in range(self.task.plan.probe_targets)], paired=True
            )
        if observation in ("collection", "model"):
            every = torch.arange(self.data.num_train)
            return Truths([self.data.view(every, self.data.key("mean-transformed", observation))], whole_round=True)
        return super().truths(observation)
