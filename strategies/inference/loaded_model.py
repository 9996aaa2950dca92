"""The whole model of edge-cloud inference from a file, in place of a training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from attacks.local_model import shared_tensors
from clients.models.library import ModelError
from clients.task import Task, WholeModelPlan
from defenses.base import Batch
from strategies.audit.kinds import part_of
from strategies.central_training import MODEL
from strategies.inference.own_images import OwnImages


class LoadedModel:
    """What ``PublicTraining`` is, of a model that was trained before: nothing is trained, and nothing need be kept.

    Args:
        plan: What the run fixes, of any of its pipelines.
        path: See ``read_weights``.
        num_kept: See ``OwnImages``; whether the model in the file has seen them, nobody here knows.

    Raises:
        ModelError: When the file cannot be read or is of another model.
    """

    def __init__(self, plan: WholeModelPlan, path: str, num_kept: int = 0) -> None:
        self.plan = replace(plan, pipeline="")
        self.own = OwnImages(self.plan, num_kept)
        self._weights = read_weights(path, shared_tensors(self.plan.build_model()))

    def examples(self) -> Batch:
        """The server's own, from which defences learn."""
        return self.own.learned.batch

    def sensitive(self) -> Tensor | None:
        """The sensitive attribute (N,) of these examples; None where the data have none."""
        return self.own.learned.sensitive

    def run_round(self, task: Task) -> None:
        """Does nothing."""
        return

    def weights(self) -> dict[str, Tensor]:
        """Those of the file."""
        return dict(self._weights)

    def tensors(self) -> dict[str, Tensor]:
        """Nothing: the file stays where it is."""
        return {}

    def restore(self, tensors: Mapping[str, Tensor]) -> None:
        """Does nothing."""
        return


def read_weights(path: str, expected: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A whole model's weights from a file, of which nothing is executed.

    Args:
        path: A state dict by ``torch.save``, a file of safetensors, or the checkpoint that a run of edge-cloud inference has left.
        expected: Name -> tensor of the shape that the model has.

    Raises:
        ModelError: When the file cannot be read, or lacks a weight of that name and shape, naming it.
    """
    file = Path(path)
    try:
        found = _read(file)
    except Exception as error:  # Damaged files make torch, pickle, zipfile and safetensors raise anything.
        reason = (str(error).splitlines() or [""])[0][:200]
        raise ModelError(
            f"weights: {file} cannot be read ({type(error).__name__}: {reason}); expected a state dict by torch.save, or "
            ".safetensors"
        ) from error
    found = part_of(found, MODEL) or found
    for name, tensor in expected.items():
        if name not in found:
            raise ModelError(f"weights: {file} is of another model: {name} is missing")
        if found[name].shape != tensor.shape:
            shapes = f"{tuple(found[name].shape)}, expected {tuple(tensor.shape)}"
            raise ModelError(f"weights: {file} is of another model: {name} has shape {shapes}")
        if not torch.isfinite(found[name]).all():
            raise ModelError(f"weights: {file} holds NaN or infinite values in {name}")
    return {name: found[name].to(tensor) for name, tensor in expected.items()}


def _read(file: Path) -> dict[str, Tensor]:
    if file.suffix == ".safetensors":
        from safetensors.torch import load_file

        return load_file(file)
    found = torch.load(file, map_location="cpu", weights_only=True)
    if not isinstance(found, Mapping) or not all(isinstance(tensor, Tensor) for tensor in found.values()):
        raise TypeError(f"it holds a {type(found).__name__}, not tensors by name")
    return dict(found)
