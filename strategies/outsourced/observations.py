"""Observations of the server of outsourced training: the uploads, and the model that it trained on them."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attacks.base import AnyAttack
from attacks.observations import TrainingUpdate
from attacks.refinement.base import Refinement
from attacks.spec import stages_of
from attacks.uploads.base import TrainedModel, UploadedCollection, UploadedImages
from clients.task.task import Plan, WholeModelPlan
from defenses.base import Batch
from strategies.audit.kinds import Kind, Observed, Seen
from strategies.training.central_training import train_alone


@dataclass(frozen=True)
class SeenUpload(Seen):
    """Attacked images of one batch of an upload, (B, C, H, W) as they came, with labels (B,) int64."""

    images: Tensor
    labels: Tensor


@dataclass(frozen=True)
class SeenCollection(Seen):
    """All uploads of a client, (M, C, H, W) with targets (M, K), pass after pass."""

    images: Tensor
    targets: Tensor
    passes: int


class OutsourcedKind(Kind):
    """Base of this scenario's kinds: the attacker trains its own models as the server does."""

    def train(self, plan: Plan) -> Callable[[Batch, int], nn.Module]:
        """Train on the server's own examples, protected as if a client had uploaded them."""
        return functools.partial(train_alone, WholeModelPlan.narrow(plan))


class Upload(OutsourcedKind):
    """Uploaded images, which keep their rows."""

    name = "upload"
    title = "uploaded images"
    plural = "uploaded images"
    observation = UploadedImages
    seen = SeenUpload
    start = "AsUploaded()"
    paired = True

    def meant(self, attack: AnyAttack) -> bool:
        """Also true for refinements: uploads need no inversion first."""
        return isinstance(attack, Refinement) or super().meant(attack)

    def observations(self, observed: Observed) -> list[Any]:
        """The attacked images."""
        return [UploadedImages(seen.images, seen.labels) for seen in observed.seen if isinstance(seen, SeenUpload)]


class Collection(OutsourcedKind):
    """All uploads of a client, as a set of images: rows of different passes cannot be matched."""

    name = "collection"
    title = "all uploads of a client"
    plural = "all uploads of a client"
    observation = UploadedCollection
    seen = SeenCollection
    start = "AsUploaded()"
    chosen = False

    @property
    def setting(self) -> str:
        """That of single uploads: an attack says itself which of the two it is on."""
        return Upload().setting

    def observations(self, observed: Observed) -> list[Any]:
        """The uploads."""
        found = (seen for seen in observed.seen if isinstance(seen, SeenCollection))
        return [UploadedCollection(seen.images, seen.targets, seen.passes) for seen in found]


class Model(OutsourcedKind):
    """The trained model, once for each client, whose examples it may reveal."""

    name = "model"
    title = "trained model"
    plural = "trained models"
    observation = TrainedModel
    seen = Seen
    start = "LossThreshold()"
    chosen = False

    def suits(self, attack: AnyAttack) -> bool:
        """Whether the attack targets the result of training and needs the model alone."""
        return self.meant(stages_of(attack)[0])

    def meant(self, attack: AnyAttack) -> bool:
        """Whether the attack infers from a trained model: from no steps, which are not sent, and without training at clients."""
        whole = not attack.reads_steps and attack.trains_shadows != "client"
        return issubclass(attack.observes, TrainingUpdate) and whole

    def observations(self, observed: Observed) -> list[Any]:
        """The model as an update of zero."""
        nothing = {name: torch.zeros_like(tensor) for name, tensor in observed.weights.items()}
        size, training = observed.task.plan.batch_size, observed.of_training()
        return [
            TrainedModel(update=nothing, num_examples=seen.num_examples, batch_size=size, local_steps=1, **training)
            for seen in observed.seen
        ]


UPLOAD, COLLECTION, MODEL = Upload(), Collection(), Model()
KINDS = (UPLOAD, COLLECTION, MODEL)
