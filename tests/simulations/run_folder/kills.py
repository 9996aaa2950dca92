"""Runs that end as if they were killed: at a reply, after a round, or when all training is done and no attack has been."""

from pathlib import Path

import pytest
import torch
from flwr.app import Message

from defenses.pipeline import Pipeline
from simulations.experiment.experiment import Experiment
from simulations.run_folder.run_directory import RunDirectory
from simulations.server_app import run_experiment
from strategies.audit.pool import AttackPool
from strategies.training.checkpoint import Checkpoint
from tests.local_grid import LocalGrid, Tamper


class Killed(BaseException):
    """Stands for SIGKILL: nothing in the run may catch it and tidy up."""


def killed_at(message_type: str, count: int) -> Tamper:
    """A tamper function that ends the run at the ``count``-th reply of a type."""
    seen = 0

    def tamper(partition: int, request: Message, reply: Message) -> Message:
        nonlocal seen
        seen += request.metadata.message_type == message_type
        if seen == count:
            raise Killed
        return reply

    return tamper


def begin(folder: Path, *, resume: bool = False) -> RunDirectory[Experiment]:
    """The folder of a run of two rounds."""
    settings = Experiment.of(
        dataset="mnist-5k", model="lenet", defenses="", rounds=2, attack_rounds="", output_dir=str(folder),
        resume=resume,
    )  # fmt: skip
    return RunDirectory.open(folder, settings)


def after_round_one(folder: Path, *messages: str) -> Path:
    """The folder of a run that was killed after its first round, whose rows and pictures hold these texts."""
    run = begin(folder)
    task = run.experiment.plan().at(1)
    for message in messages:
        run.row(task, metric="client", value=None, status="refused", client=0, message=message)
        about = {"client": 0, "target": 0, "attack": "", "kind": "original", "observation": message}
        if not any(half in message for half in ("\x00", "\ud800", "\udcff")):  # it becomes the name of a file
            run.picture(task, torch.zeros(1, 2, 2), image_number=0, **about)
    run.complete_round(Pipeline(), Checkpoint(1, {"weight": torch.ones(3)}, {0: "{}"}, 0.5))
    run.write_progress({"finished": False})
    run.close()
    return folder


def killed_with_open_attacks(settings: Experiment) -> None:
    """Runs until all training is done and no attack has been."""

    def finished(self: AttackPool, *, wait: bool = False) -> list[object]:
        if wait:
            raise Killed
        return []

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AttackPool, "finished", finished)
        patch.setattr(AttackPool, "submit", lambda self, job: None)
        patch.setattr(AttackPool, "__len__", lambda self: 1)
        with pytest.raises(Killed):
            run_experiment(LocalGrid(settings.num_clients), settings)
