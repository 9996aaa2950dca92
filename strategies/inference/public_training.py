"""The whole model of edge-cloud inference: trained on the server's own images before it is cut, or read from a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from clients.task.task import Task, WholeModelPlan, load_weights
from defenses.base import Batch
from strategies.inference.loaded_model import check_fingerprint, fingerprint
from strategies.inference.own_images import OwnImages
from strategies.training.central_training import CentralTraining

LOSSES, SECONDS = "losses", "seconds"
"""Names of what a checkpoint keeps beside the model: one number for each round that was trained."""


class PublicTraining:
    """The model of all pipelines of a run: no defence takes part in its training, and so it is the same for each of them.

    The first pipeline trains; the others get the losses and seconds of its rounds, and start with the last weights.

    Pretrained weights are fine-tuned all alike: every layer has the plan's learning rate, the new last one included, and BatchNorm
    is in train mode, so that its running statistics move from those of the weights to those of the server's images.

    Args:
        plan: What the run fixes, of any of its pipelines.
        start: Weights of the whole model from a file; None: the plan's initial ones.
        num_kept: See ``OwnImages``; whether a model from a file has seen them is unknown.
        trains: Whether ``start`` is trained further. Else it is the model, and a checkpoint keeps its fingerprint alone.
    """

    def __init__(
        self,
        plan: WholeModelPlan,
        start: Mapping[str, Tensor] | None = None,
        num_kept: int = 0,
        *,
        trains: bool = True,
    ) -> None:
        self.plan = replace(plan, pipeline="")
        self._start, self._trains = start or {}, trains
        self.own = OwnImages(self.plan, num_kept)
        """The server's images, of all pipelines."""
        self.losses: list[float] = []
        """Mean training loss of each round so far."""
        self.seconds: list[float] = []
        """What each of them took."""

    @cached_property
    def training(self) -> CentralTraining:
        """The training; the server's examples are read when they are first needed."""
        training = CentralTraining(self.plan, self.examples(), ("public", self.plan.seed))
        if self._start:
            load_weights(training.model, self._start)
        return training

    def examples(self) -> Batch:
        """The server's own, on which it trains and from which defences learn."""
        return self.own.learned.batch

    def sensitive(self) -> Tensor | None:
        """The sensitive attribute (N,) of these examples; None where the data have none."""
        return self.own.learned.sensitive

    def run_round(self, task: Task) -> tuple[float, float] | None:
        """Trains for one round, unless that was done; returns the mean loss per example and the seconds, None without training.

        Raises:
            DivergedError: When a weight is not finite.
        """
        if not self._trains:
            return None
        if task.round > len(self.losses):
            loss, seconds = self.training.run_round(self.plan.at(task.round))
            self.losses.append(loss)
            self.seconds.append(seconds)
        return self.losses[task.round - 1], self.seconds[task.round - 1]

    def weights(self) -> dict[str, Tensor]:
        """Those of the model, on the CPU."""
        return self.training.weights() if self._trains else dict(self._start)

    def tensors(self) -> dict[str, Tensor]:
        """All that a later round depends on, under flat names; some may be of later rounds, which are then not trained again."""
        file = fingerprint(self._start) if self._start else {}
        if not self._trains:
            return file
        kept = {LOSSES: self.losses, SECONDS: self.seconds}
        numbers = {name: torch.tensor(values, dtype=torch.float64) for name, values in kept.items()}
        return self.training.tensors() | numbers | file

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Goes on from what ``tensors`` gave, unless this training is further already; other names are left alone.

        Raises:
            ModelError: See ``check_fingerprint``.
        """
        check_fingerprint(self._start, tensors)
        if self._trains and len(losses := tensors[LOSSES].tolist()) > len(self.losses):
            self.training.restore(tensors)
            self.losses, self.seconds = losses, tensors[SECONDS].tolist()
