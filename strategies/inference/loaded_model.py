"""The whole model of edge-cloud inference from a file: in place of a training, or as what a training starts from."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from attacks.local_model import shared_tensors
from clients.models.library import ModelError
from clients.models.packaged_weights import PACKAGED
from clients.models.pretrained_classifier import load_classifier
from clients.task.task import WholeModelPlan
from strategies.training.central_training import MODEL

FINGERPRINT = "weights-sha256"
"""Name of what a checkpoint keeps of a file."""


@dataclass(frozen=True)
class FileWeights:
    """Weights of a whole model that were read from a file.

    Attributes:
        tensors: Name -> tensor, of the whole model.
        is_complete: Whether the last layer is the file's. Else the file's was for other classes, and the model is to be
            trained before it can answer.
    """

    tensors: dict[str, Tensor]
    is_complete: bool


def read_weights(plan: WholeModelPlan, source: str) -> FileWeights:
    """Weights for the model of a plan; nothing in the file is executed.

    A new last layer is zero, as in Dosovitskiy et al. 2021 (An Image is Worth 16x16 Words, section 3.2): the first loss is
    that of guessing, ln K, where timm's own draw for a few classes is so large that it throws the pretrained layers away.

    Args:
        plan: Says what the model is.
        source: A name in ``PACKAGED``, or the path of a file for ``load_classifier``, which may be a checkpoint that a run of
            edge-cloud inference has left.

    Raises:
        ModelError: When the package is not installed, or the file cannot be read or is of another model.
    """
    path = str(PACKAGED[source].path()) if source in PACKAGED else source
    model = plan.build_model()
    is_complete = load_classifier(model, path, prefix=MODEL)
    weights = shared_tensors(model)
    if not is_complete:
        weights |= {name: torch.zeros_like(weights[name]) for name in list(model.state_dict())[-2:]}
    return FileWeights(weights, is_complete)


def fingerprint(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What a checkpoint keeps of weights from a file: the 32 bytes of their SHA-256."""
    digest = hashlib.sha256()
    for name in sorted(weights):
        tensor = weights[name].detach().cpu().contiguous()
        digest.update(repr((name, tuple(tensor.shape), str(tensor.dtype))).encode())
        digest.update(tensor.flatten().view(torch.uint8).numpy().tobytes())
    return {FINGERPRINT: torch.tensor(list(digest.digest()), dtype=torch.uint8)}


def check_fingerprint(weights: Mapping[str, Tensor], kept: Mapping[str, Tensor]) -> None:
    """Refuse to go on with other weights than a run began with: its rows would be of two models.

    Raises:
        ModelError: When ``kept`` is of others.
    """
    if FINGERPRINT in kept and not torch.equal(kept[FINGERPRINT], fingerprint(weights)[FINGERPRINT]):
        raise ModelError(
            "weights: the file has changed since the run began, and rows of two models do not go together; put the file back, or "
            "start a new run"
        )
