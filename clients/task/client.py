"""What the clients of all scenarios have: examples, and what an audit compares guesses with."""

from __future__ import annotations

import torch
from torch import Tensor

from clients.task.local_data import LocalData
from clients.task.task import Task
from clients.task.truths import Truths
from defenses.pipeline import Pipeline


class Client:
    """What the clients of all scenarios have: examples (``data``), and what an audit compares guesses with."""

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
        """What the server observed of a kind, as "probe", as the client knows it; ``ValueError`` for one that it never sends."""
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
