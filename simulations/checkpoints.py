"""Where each pipeline of a run stands, in one file each."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor


@dataclass(frozen=True)
class Checkpoint:
    """Where a pipeline stands.

    Attributes:
        round: The last complete round; 0 is the evaluation of the initial model, one after the last round the attacks on the
            final one.
        weights: The global model after it.
        ledgers: Partition -> the training defences' state.
        accuracy: Of that model on clean test images.
    """

    round: int
    weights: dict[str, Tensor]
    ledgers: dict[int, str]
    accuracy: float | None


class Checkpoints:
    """The checkpoints of a run's pipelines, by their numbers.

    Args:
        folder: Where they are; it must exist when one is saved.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, pipeline: int, checkpoint: Checkpoint) -> None:
        """Puts a checkpoint in the place of the one before, in one move."""
        path = self._path(pipeline)
        about = {"round": checkpoint.round, "accuracy": checkpoint.accuracy, "ledgers": checkpoint.ledgers}
        partial = path.with_suffix(".tmp")
        save_file(dict(checkpoint.weights), partial, metadata={"about": json.dumps(about)})
        partial.replace(path)

    def load(self, pipeline: int) -> Checkpoint | None:
        """The pipeline's last complete round, or None."""
        path = self._path(pipeline)
        if not path.is_file():
            return None
        with safe_open(path, framework="pt") as file:
            about = json.loads(file.metadata()["about"])
            weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
        ledgers = {int(partition): text for partition, text in about["ledgers"].items()}
        return Checkpoint(about["round"], weights, ledgers, about["accuracy"])

    def round_of(self, pipeline: int) -> int:
        """The last complete round; -1 where there is none. Reads no weights."""
        path = self._path(pipeline)
        if not path.is_file():
            return -1
        with safe_open(path, framework="pt") as file:
            return int(json.loads(file.metadata()["about"])["round"])

    def _path(self, pipeline: int) -> Path:
        return self.folder / f"p{pipeline:02d}.safetensors"
