"""The server's own images in a run of edge-cloud inference: those that it learns from, and those that it keeps to measure on."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from clients.task.auxiliary import Auxiliary
from clients.task.task import WholeModelPlan
from defenses.base import Batch
from defenses.random_draws import generator_for


@dataclass(frozen=True)
class Examples:
    """The server's own images (N, C, H, W) in [0, 1] with one-hot classes, and their sensitive attribute (N,), if any."""

    batch: Batch
    sensitive: Tensor | None

    def __len__(self) -> int:
        return len(self.batch)

    def at(self, rows: Tensor) -> Examples:
        """Those in the given rows, in that order."""
        chosen = Batch(self.batch.images[rows], self.batch.targets[rows])
        return Examples(chosen, None if self.sensitive is None else self.sensitive[rows])


class OwnImages:
    """The server's own images; no client holds any of them.

    Neither the model nor a defence learns from ``num_kept`` of them, which are drawn by the seed.
    """

    def __init__(self, plan: WholeModelPlan, num_kept: int = 0) -> None:
        self.plan, self.num_kept = plan, num_kept

    @cached_property
    def _parts(self) -> tuple[Examples, Examples]:
        own = Auxiliary(self.plan)
        every = Examples(own.examples(), own.sensitive())
        if not self.num_kept:
            return every, every.at(torch.zeros(0, dtype=torch.int64))
        order = torch.randperm(len(every), generator=generator_for("kept to measure on", self.plan.seed))
        kept, learned = order[: self.num_kept].sort().values, order[self.num_kept :].sort().values
        return every.at(learned), every.at(kept)

    @property
    def learned(self) -> Examples:
        """What the model is trained on and defences learn from; read when it is first needed."""
        return self._parts[0]

    @property
    def kept(self) -> Examples:
        """What is measured on: neither the model nor a defence has seen it, unless the model is from a file and had."""
        return self._parts[1]
