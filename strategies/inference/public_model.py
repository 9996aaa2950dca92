"""The server's own images, and the whole model of edge-cloud inference: trained on them before the cut, or read from a file."""

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from attacks.local_model import shared_tensors
from clients.models.library import ModelError
from clients.models.pretrained import PACKAGED, load_classifier
from clients.task.auxiliary import Auxiliary
from clients.task.task import Task, WholeModelPlan, load_weights
from defenses.base import Batch
from defenses.fitting import sha256_of
from defenses.tensors import Tensors
from strategies.training.central_training import MODEL, CentralTraining

LOSSES, SECONDS = "losses", "seconds"
"""Names of what a checkpoint keeps beside the model: one number for each round that was trained."""
FINGERPRINT = "weights-sha256"
"""Name of what a checkpoint keeps of a file."""


@dataclass(frozen=True)
class FileWeights:
    """Weights of a whole model from a file; without the file's last layer, for other classes, the model is to be trained first."""

    tensors: Tensors
    is_complete: bool


def read_weights(plan: WholeModelPlan, source: str) -> FileWeights:
    """Weights for the model of a plan; nothing in the file is executed.

    A new last layer is zero, as in Dosovitskiy et al. 2021 (An Image is Worth 16x16 Words, section 3.2): the first loss is
    that of guessing, ln K, where timm's own draw for a few classes is so large that it throws the pretrained layers away.

    ``source`` is a name in ``PACKAGED``, or the path of a file for ``load_classifier``, which may be a checkpoint that a run of
    edge-cloud inference has left. ``ModelError`` when the package is not installed, or the file cannot be read or is of another
    model.
    """
    path = str(PACKAGED[source].path()) if source in PACKAGED else source
    model = plan.build_model()
    is_complete = load_classifier(model, path, prefix=MODEL)
    weights = shared_tensors(model)
    if not is_complete:
        weights |= {name: torch.zeros_like(weights[name]) for name in list(model.state_dict())[-2:]}
    return FileWeights(weights, is_complete)


def fingerprint(weights: Tensors) -> Tensors:
    """The 32 bytes of SHA-256 that a checkpoint keeps of weights from a file."""
    return {FINGERPRINT: torch.tensor(list(sha256_of(weights)), dtype=torch.uint8)}


@dataclass(frozen=True)
class Examples:
    """The server's own images (N, C, H, W) in [0, 1] with one-hot classes, and their sensitive attribute (N,), if any."""

    batch: Batch
    sensitive: Tensor | None

    def __len__(self) -> int:
        return len(self.batch)


class PublicTraining:
    """Training of the one model that all pipelines of a run share: no defence takes part in it.

    The first pipeline trains; the others get the losses and seconds of its rounds, and start with the last weights.

    Pretrained weights are fine-tuned all alike: every layer has the plan's learning rate, the new last one included, and BatchNorm
    is in train mode, so that its running statistics move from those of the weights to those of the server's images.

    Args:
        plan: What the run fixes, of any of its pipelines.
        start: Weights of the whole model from a file; None: the plan's initial ones.
        trains: Whether ``start`` is trained further. Else it is the model, and a checkpoint keeps its fingerprint alone.
    """

    def __init__(self, plan: WholeModelPlan, start: Tensors | None = None, *, trains: bool = True) -> None:
        self.plan = replace(plan, pipeline="")
        self._start, self._trains = start or {}, trains
        self.losses: list[float] = []
        """Mean training loss of each round so far."""
        self.seconds: list[float] = []
        """What each of them took."""

    @cached_property
    def own(self) -> Examples:
        """The server's own images, which no client holds, for training, defences and attacks; read on first use."""
        own = Auxiliary(self.plan)
        return Examples(own.examples(), own.sensitive())

    @cached_property
    def training(self) -> CentralTraining:
        """The training; the server's examples are read when they are first needed."""
        training = CentralTraining(self.plan, self.own.batch, ("public", self.plan.seed))
        if self._start:
            load_weights(training.model, self._start)
        return training

    def run_round(self, task: Task) -> tuple[float, float] | None:
        """Train for one round, unless that was done; returns the mean loss per example and the seconds, None without training."""
        if not self._trains:
            return None
        if task.round > len(self.losses):
            loss, seconds = self.training.run_round(self.plan.at(task.round))
            self.losses.append(loss)
            self.seconds.append(seconds)
        return self.losses[task.round - 1], self.seconds[task.round - 1]

    def weights(self) -> Tensors:
        """Weights of the model, on the CPU."""
        return self.training.weights() if self._trains else dict(self._start)

    def tensors(self) -> Tensors:
        """State that later rounds depend on, under flat names; rounds that it already covers are not trained again."""
        file = fingerprint(self._start) if self._start else {}
        if not self._trains:
            return file
        kept = {LOSSES: self.losses, SECONDS: self.seconds}
        numbers = {name: torch.tensor(values, dtype=torch.float64) for name, values in kept.items()}
        return self.training.tensors() | numbers | file

    def restore(self, tensors: Tensors) -> None:
        """Resume from the output of ``tensors``, unless this training is further; ``ModelError`` where the file has changed."""
        if FINGERPRINT in tensors and not torch.equal(tensors[FINGERPRINT], fingerprint(self._start)[FINGERPRINT]):
            raise ModelError(
                "weights: the file has changed since the run began, and rows of two models do not go together; put the file back, "
                "or start a new run"
            )
        if self._trains and len(losses := tensors[LOSSES].tolist()) > len(self.losses):
            self.training.restore(tensors)
            self.losses, self.seconds = losses, tensors[SECONDS].tolist()
