"""The live display of a run, read from what the run writes."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from rich.progress import TimeElapsedColumn

from simulations.console.progress import bar_on
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.runtime.launch import wait_for

WAITING = "its SuperLink, then Ray's workers, each of which imports torch"
"""What takes the time before the first round."""
ACCEPTED = b"Successfully started run"
"""In the log of Flower's command, once a SuperLink is there and has taken the run."""


def follow(console: Terminal, process: subprocess.Popen[bytes], experiment: Experiment, begin: int = 0) -> None:
    """Shows the rounds and open attacks of Flower's command until it ends; plain lines where the output is no terminal.

    The first ``begin`` bytes of its log are of an earlier start.
    """
    pipelines = [str(pipeline) or "no defence" for pipeline in experiment.pipelines]
    shown: tuple[Any, ...] = ()
    log = Path(experiment.output_dir) / "flower.log"
    with bar_on(console, TimeElapsedColumn()) as bar:
        total = len(pipelines) * experiment.rounds
        row = bar.add_task("starting Flower", total=total, note=WAITING)
        if not console.is_terminal:
            console.print(f"starting Flower: {WAITING}")
        waited = WAITING
        while not wait_for(process, 0.5):
            progress = read_progress(Path(experiment.output_dir))
            if "pipeline" not in progress:  # nothing has begun, or it failed before it did
                if (note := waits_for(log, begin)) != waited:
                    bar.update(row, note=(waited := note))
                    if not console.is_terminal:
                        console.print(f"starting Flower: {note}")
                continue
            at = min(int(progress["pipeline"]), len(pipelines)) - 1
            done = at * experiment.rounds + int(progress["round"])
            note = f"round {progress['round']} of {progress['rounds']}, {progress.get('open_jobs', 0)} attacks open"
            bar.update(row, completed=done, description=pipelines[at], note=note)
            if not console.is_terminal and (at, progress["round"]) != shown:
                shown = (at, progress["round"])
                accuracy = progress.get("accuracy")
                seen = "" if accuracy is None else f", test accuracy {accuracy:.3f}"
                console.say(f"[{at + 1}/{len(pipelines)}] {pipelines[at]}: {note}{seen}")


def waits_for(log: Path, begin: int) -> str:
    """What a run that has not begun waits for, as far as Flower's log says behind its first ``begin`` bytes."""
    try:
        accepted = ACCEPTED in log.read_bytes()[begin:]
    except OSError:
        accepted = False
    return "Ray, and its workers, each of which imports torch" if accepted else WAITING


def read_progress(directory: Path) -> dict[str, Any]:
    """The progress that a run last wrote; nothing where it wrote none, or where it cannot be read."""
    path = directory / "config.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError):
        return {}
    progress = kept.get("progress") if isinstance(kept, dict) else None
    return progress if isinstance(progress, dict) else {}
