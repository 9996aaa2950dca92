"""The live display of a run, from the files that the run writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from simulations.console.progress import Display
from simulations.console.terminal import Terminal
from simulations.experiment.experiment import Experiment
from simulations.runtime.nodes import CLIENTS_READY

SECONDS_BETWEEN_LOOKS = 0.5
READY = f"fedveil: {CLIENTS_READY}".encode(), "measuring the untrained model"
STEPS = {
    b"": "starting Flower: SuperLink",
    b"Successfully started run": "starting Flower: Ray",
    b"fedveil: results go to": "starting Flower: client workers, each of which imports torch",
    READY[0]: READY[1],
}
"""Text in the log -> what a run does behind it until its first round is over, in order."""
STEPS_IN_PROCESS = {b"": "setting up the clients", READY[0]: READY[1]}
"""Likewise, without Flower's runtime."""


@dataclass(frozen=True)
class Now:
    """The present activity of a run.

    Attributes:
        pipeline: Number of the pipeline that is trained, from 1; 0 when training is over.
        doing: In words.
        rounds: Rounds that are done, and in all: of all pipelines, with what is measured before and behind training.
        attacks: Attacks that are done, that were begun, and that there are in all, as far as is known.
        accuracy: Of the pipeline's model on test images, in [0, 1]; None where it was not measured.
    """

    pipeline: int
    doing: str
    rounds: tuple[int, int]
    attacks: tuple[int, int, int]
    accuracy: float | None = None

    @property
    def counted(self) -> str:
        """How many attacks are done, unless ``doing`` says so."""
        done, begun, _ = self.attacks
        return f"attacks: {done} of {begun} done" if begun and self.pipeline else ""


def follow(
    console: Terminal,
    ended: Callable[[float], bool],
    experiment: Experiment,
    begin: int = 0,
    steps: Mapping[bytes, str] = MappingProxyType(STEPS),
) -> None:
    """Show a run's activity until it has ended; plain lines where the output is no terminal.

    Args:
        console: Where to show it.
        ended: Waits for so many seconds, or less; whether the run has ended.
        experiment: The run's.
        begin: The first bytes of its log that are of an earlier start.
        steps: Text in its log -> what it does behind it until its first round is over.
    """
    out, pipelines = Path(experiment.output_dir), [str(one) or "no defence" for one in experiment.pipelines]
    before, view = read_progress(out), _View(console, pipelines)
    with view.display:
        while True:
            progress = read_progress(out)
            if "pipeline" in progress and progress != before:
                view.show(now_of(progress))
            else:  # nothing has begun, or it failed before it did
                view.show_start(step_of(out / "flower.log", begin, steps))
            if ended(SECONDS_BETWEEN_LOOKS):
                return


class _View:
    """The display of one run."""

    def __init__(self, console: Terminal, pipelines: Sequence[str]) -> None:
        self.display, self._pipelines = Display(console), pipelines
        self._said, self._pipeline = "", -1

    def show_start(self, doing: str) -> None:
        """Show a step before the first round."""
        self.display.draw(doing, 0, 0, "")
        self._say(doing, due=True)

    def show(self, now: Now) -> None:
        """Show what is done."""
        done, _, attacks = now.attacks
        of = len(self._pipelines)
        where = f" of pipeline {now.pipeline} of {of}" if now.pipeline and of > 1 else ""
        note = now.counted if self.display.is_wide else ""
        self.display.draw(now.doing + where, now.rounds[0] + done, now.rounds[1] + attacks, note)
        parts = [now.doing, now.counted]
        if now.pipeline:
            parts[0] = f"[{now.pipeline}/{of}] {self._pipelines[now.pipeline - 1]}: {now.doing}"
            parts += [f"test accuracy {now.accuracy:.3f} so far"] if now.accuracy is not None else []
        self._say(", ".join(filter(None, parts)), due=now.pipeline != self._pipeline)
        self._pipeline = now.pipeline

    def _say(self, line: str, *, due: bool) -> None:
        """Prints a line where there is no terminal, unless nothing has changed since the last."""
        if line != self._said and self.display.say(line, due=due):
            self._said = line


def now_of(progress: Mapping[str, Any]) -> Now:
    """The activity of a run from its latest ``progress``, which it writes after each round and each attack."""
    pipeline, of, rounds, step, steps = (_count(progress, key) for key in ("pipeline", "of", "rounds", "step", "steps"))
    done, begun = _count(progress, "attacks_done"), _count(progress, "attacks")
    attacks = (done, begun, begun + _count(progress, "attacks_ahead"))
    passed = ((pipeline - 1) * steps + step, of * steps)
    accuracy = progress.get("accuracy")
    if step >= steps:
        pipeline, step, accuracy = pipeline + 1, 0, None
    if pipeline > of or progress.get("finished"):
        doing = f"attacks: {done} of {begun} done" if done < begun else "writing the report"
        return Now(0, doing, passed, attacks)
    if step == 0:
        doing = "measuring the untrained model"
    else:
        doing = f"training round {step} of {rounds}" if step <= rounds else "observing the trained model"
    return Now(pipeline, doing, passed, attacks, accuracy if isinstance(accuracy, float) else None)


def _count(progress: Mapping[str, Any], key: str) -> int:
    """A number of things; 0 where there is none."""
    found = progress.get(key)
    return found if isinstance(found, int) else 0


def step_of(log: Path, begin: int, steps: Mapping[bytes, str]) -> str:
    """The last of ``steps`` whose text a log holds after its first ``begin`` bytes; every log holds the empty one."""
    try:
        text = log.read_bytes()[begin:]
    except OSError:
        text = b""
    return [step for sign, step in steps.items() if sign in text][-1]


def read_progress(directory: Path) -> dict[str, Any]:
    """The latest progress of a run; empty where there is none, or where it cannot be read."""
    path = directory / "config.json"
    try:
        kept = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    except (ValueError, RecursionError):
        return {}
    progress = kept.get("progress") if isinstance(kept, dict) else None
    return progress if isinstance(progress, dict) else {}
