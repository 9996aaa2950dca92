"""Checkpoints of a run's pipelines, one file each; a second file, written once, holds what no later round changes."""

import json
from pathlib import Path

from safetensors import safe_open

from clients.wire.texts import regular
from defenses.tensors import Tensors, under
from simulations.settings.errors import undamaged
from strategies.audit.whole_files import load_tensors, save_tensors
from strategies.training.checkpoint import Checkpoint

SUMS = "sums/"
"""How the names of tensors that are no weights begin; no tensor of a model has a name with a slash."""


class Checkpoints:
    """The checkpoints of a run's pipelines, by their numbers, in a folder that must exist when one is saved."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._fixed: set[int] = set()
        """Pipelines whose second file is known to be of this run: another may have been killed before its first checkpoint."""

    def save(self, pipeline: int, checkpoint: Checkpoint, rows: int) -> None:
        """Replace the last checkpoint in one move; fixed content is written before the first one only.

        ``rows``: how many there are of the pipeline.
        """
        if checkpoint.fixed and pipeline not in self._fixed:
            save_tensors(self._fixed_path(pipeline), checkpoint.fixed, {})
            self._fixed.add(pipeline)
        about = {
            "round": checkpoint.round,
            "accuracy": checkpoint.accuracy,
            "ledgers": checkpoint.ledgers,
            "rows": rows,
        }
        whole = {"about": json.dumps(about | {"fixed": bool(checkpoint.fixed)})}
        save_tensors(self._path(pipeline), checkpoint.weights | under(SUMS, checkpoint.sums), whole)

    def load(self, pipeline: int) -> Checkpoint | None:
        """The pipeline's last complete round, or None; ``ConfigError`` where its file is damaged."""
        path = self._path(pipeline)
        if not path.exists():
            return None
        fixed: Tensors = {}
        with undamaged(path):
            weights, metadata = load_tensors(path)
            about = json.loads(metadata["about"])
            if about["fixed"]:
                fixed, _ = load_tensors(self._fixed_path(pipeline))
                self._fixed.add(pipeline)
            ledgers = {int(partition): text for partition, text in about["ledgers"].items()}
            sums = {name.removeprefix(SUMS): weights.pop(name) for name in list(weights) if name.startswith(SUMS)}
            return Checkpoint(about["round"], weights, ledgers, about["accuracy"], fixed, sums)

    def reached(self, pipeline: int) -> tuple[int, int]:
        """The last complete round and the rows until then; (-1, 0) where there is none. Reads no weights."""
        path = self._path(pipeline)
        if not path.exists():
            return -1, 0
        with undamaged(path), safe_open(regular(path), framework="pt") as file:
            about = json.loads(file.metadata()["about"])
            return int(about["round"]), int(about["rows"])

    def _path(self, pipeline: int) -> Path:
        return self.folder / f"p{pipeline:02d}.safetensors"

    def _fixed_path(self, pipeline: int) -> Path:
        return self.folder / f"p{pipeline:02d}-fixed.safetensors"
