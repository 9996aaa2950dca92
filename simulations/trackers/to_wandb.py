"""Runs to Weights & Biases: online, or to files with ``WANDB_MODE=offline``, as its environment says."""

from __future__ import annotations

import os

import wandb

from simulations.trackers.tracked import Tracked


def ready() -> None:
    """Without a key nothing could be sent; where somebody can be asked, wandb asks for one."""
    if os.environ.get("WANDB_MODE", "online") in {"online", "run"} and not wandb.login():
        raise RuntimeError("no key: log in with `wandb login`, or set WANDB_MODE=offline")


def send(tracked: Tracked) -> str:
    """Logs the run to the project of its experiment, or of WANDB_PROJECT; says where."""
    run = wandb.init(
        project=os.environ.get("WANDB_PROJECT", tracked.experiment),
        name=tracked.name,
        notes=tracked.conclusions,
        config=dict(tracked.params),
        dir=tracked.directory,
        settings=wandb.Settings(silent=True, console="off", x_disable_stats=True),
    )
    with run:
        for step, values in tracked.metrics.items():
            run.log(dict(values), step=step)
        files = wandb.Artifact(f"report-{run.id}", type="report")
        for path in tracked.artifacts:
            files.add_file(str(path))
        run.log_artifact(files)
    where = f"offline in {run.dir}; send it with: wandb sync" if run.offline else f"at {run.url}"
    return f"run {run.id} of project {run.project!r}, {where}"
