"""Runs to TensorBoard: event files in the folder of the run, beside its report."""

from __future__ import annotations

import shutil

from torch.utils.tensorboard import SummaryWriter

from simulations.trackers.tracked import Tracked

FOLDER = "tensorboard"


def ready() -> None:
    """The import says all: its files lie where the run's do."""


def send(tracked: Tracked) -> str:
    """Writes the run's events anew; says where."""
    folder = tracked.directory / FOLDER
    shutil.rmtree(folder, ignore_errors=True)  # else numbers of an earlier time would stand beside those of today
    with SummaryWriter(str(folder)) as writer:
        settings = "\n".join(f"| {name} | {value.replace('|', '/')} |" for name, value in tracked.params.items())
        writer.add_text("settings", f"| setting | value |\n|---|---|\n{settings}")
        writer.add_text("conclusions", tracked.conclusions)
        for step, values in tracked.metrics.items():
            for name, value in values.items():
                writer.add_scalar(name, value, step)
    return f"{folder}; look with: tensorboard --logdir {tracked.directory.parent}"
