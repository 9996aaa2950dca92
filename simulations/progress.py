"""The live display of a run, read from what the run writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

from simulations.experiment import Experiment
from simulations.launch import wait_for

WAITING = "its SuperLink, then Ray's workers, each of which imports torch"
"""What takes the time before the first round."""


def follow(console: Console, process: subprocess.Popen[bytes], experiment: Experiment) -> None:
    """Shows rounds and open attacks until the process ends; plain lines where the output is no terminal."""
    pipelines = [str(pipeline) or "no defence" for pipeline in experiment.pipelines()]
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[note]}"), TimeElapsedColumn())
    shown: tuple[Any, ...] = ()
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        total = len(pipelines) * experiment.rounds
        row = bar.add_task("starting Flower", total=total, note=WAITING)
        if not console.is_terminal:
            console.print(f"starting Flower: {WAITING}")
        while not wait_for(process, 0.5):
            progress = read_progress(Path(experiment.output_dir))
            if "pipeline" not in progress:  # nothing has begun, or it failed before it did
                continue
            at = min(int(progress["pipeline"]), len(pipelines)) - 1
            done = at * experiment.rounds + int(progress["round"])
            note = f"round {progress['round']} of {progress['rounds']}, {progress.get('open_jobs', 0)} attacks open"
            bar.update(row, completed=done, description=pipelines[at], note=note)
            if not console.is_terminal and (at, progress["round"]) != shown:
                shown = (at, progress["round"])
                accuracy = progress.get("accuracy")
                seen = "" if accuracy is None else f", test accuracy {accuracy:.3f}"
                console.print(
                    f"[{at + 1}/{len(pipelines)}] {pipelines[at]}: {note}{seen}", markup=False, soft_wrap=True
                )


def read_progress(directory: Path) -> dict[str, Any]:
    """The progress that a run last wrote, or nothing."""
    path = directory / "config.json"
    if not path.is_file():
        return {}
    progress: dict[str, Any] = json.loads(path.read_text()).get("progress", {})
    return progress
