"""Base of the clients of all scenarios: their examples, and the truths that score guesses."""

from __future__ import annotations

import torch
from torch import Tensor

from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.task.truths import Truths
from defenses.pipeline import Pipeline


class Client:
    """Base of the clients of all scenarios: examples (``data``), and the truths that score guesses."""

    def __init__(self, data: LocalData) -> None:
        self.data = data

    @property
    def task(self) -> Task:
        """The server's orders."""
        return self.data.task

    @property
    def pipeline(self) -> Pipeline:
        """The defences."""
        return self.data.pipeline

    def truths(self, observation: str) -> Truths:
        """The client's truth behind the server's observations of a kind, as "probe"; ``ValueError`` for a kind never sent."""
        raise ValueError(f"clients of scenario {self.task.plan.scenario!r} know no observation {observation!r}")

    def sensitive(self, observation: str) -> list[Tensor]:
        """True values of the sensitive attribute of the images behind each observation of a kind, (B,) int64.

        Raises:
            ValueError: When clients of this scenario show nothing of that kind, or the data have no such attribute.
        """
        raise ValueError(f"clients of scenario {self.task.plan.scenario!r} know no attribute of {observation!r}")

    def trained_on(self) -> Tensor:
        """Positions (n,), int64 and ascending, of the training examples that this round's training depends on."""
        return torch.arange(self.data.num_train)
