"""Observations of the server of outsourced training: the uploads, and the model that it trained on them."""

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from attacks.observations import TrainingUpdate
from attacks.uploads.base import TrainedModel, UploadedCollection, UploadedImages
from clients.task.task import WholeModelPlan
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


def _trains(observed: Observed) -> dict[str, Any]:
    """Training as the server's, on its own examples, protected as if a client had uploaded them."""
    return {"train": functools.partial(train_alone, WholeModelPlan.narrow(observed.task.plan))}


def _read_images(observed: Observed) -> list[Any]:
    return [UploadedImages(seen.images, seen.labels) for seen in observed.seen if isinstance(seen, SeenUpload)]


def _read_uploads(observed: Observed) -> list[Any]:
    uploads = (seen for seen in observed.seen if isinstance(seen, SeenCollection))
    return [UploadedCollection(seen.images, seen.targets, seen.passes) for seen in uploads]


def _read_model(observed: Observed) -> list[Any]:
    """The model as an update of zero."""
    nothing = {name: torch.zeros_like(tensor) for name, tensor in observed.weights.items()}
    size, training = observed.task.plan.batch_size, observed.of_training()
    return [
        TrainedModel(update=nothing, num_examples=seen.num_examples, batch_size=size, local_steps=1, **training)
        for seen in observed.seen
    ]


_Kind = functools.partial(Kind, knows=_trains)
UPLOAD = _Kind(
    "upload",
    "uploaded images",
    UploadedImages,
    _read_images,
    seen=SeenUpload,
    start="AsUploaded()",
    paired=True,
    refined=True,
)
"""Uploaded images, which keep their rows."""
COLLECTION = _Kind(
    "collection", "all uploads of a client", UploadedCollection, _read_uploads, seen=SeenCollection, start="AsUploaded()",
    chosen=False, setting_of=UPLOAD.name,
)  # fmt: skip
"""All uploads of a client, as a set of images: rows of different passes cannot be matched."""
MODEL = _Kind(
    "model", "trained model", TrainedModel, _read_model, "trained models", start="LossThreshold()", chosen=False,
    accepts=TrainingUpdate, made_for=TrainingUpdate, refuses=lambda profile: profile.reads_steps,
)  # fmt: skip
"""The trained model, once for each client, whose examples it may reveal; steps are not sent."""
KINDS = (UPLOAD, COLLECTION, MODEL)
