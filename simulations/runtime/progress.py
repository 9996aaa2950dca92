"""The live display of a run, from the files that the run writes."""

from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from clients.wire.texts import read_object
from simulations.console.progress import Display
from simulations.console.terminal import Terminal
from simulations.runtime.nodes import CLIENTS_READY, PAGE_WRITTEN

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


def follow(
    console: Terminal,
    ended: Callable[[float], bool],
    out: Path,
    begin: int = 0,
    steps: Mapping[bytes, str] = MappingProxyType(STEPS),
) -> None:
    """Show the activity of the run in ``out`` until it has ended; plain lines where the output is no terminal.

    ``ended`` waits for so many seconds, or less, and says whether the run has ended. The first ``begin`` bytes of the log are of an
    earlier start.
    """
    before = read_progress(out)
    with Display(console) as display:
        while True:
            progress = read_progress(out)
            if has_worked(progress, before):
                display.show(*activity(progress))
            else:  # nothing has begun, or it failed before it did
                display.show(step_of(out / "flower.log", begin, steps))
            if ended(SECONDS_BETWEEN_LOOKS):
                return


def has_worked(progress: Mapping[str, Any], before: Mapping[str, Any]) -> bool:
    """Whether a round was completed since the progress was ``before``, which a resumed run has from its first part."""
    return "pipeline" in progress and progress != before


def activity(progress: Mapping[str, Any]) -> tuple[str, int, int, str]:
    """A run's activity by its latest progress: the part of the run, steps done, steps in all, and further words."""
    of, rounds, step, steps = (progress[key] for key in ("of", "rounds", "step", "steps"))
    done, begun = progress["attacks_done"], progress["attacks"]
    if step == steps:
        return ("attacks", done, begun, "") if done < begun else ("writing the report", 0, 0, "")
    at, trained = divmod(step, steps // of)
    doing = f"training round {trained} of {rounds}" if trained <= rounds else "observing the trained model"
    attacks = f"; {done} of {begun} attacks finished" if begun else ""
    return f"pipeline {at + 1} of {of}", step, steps, f"; {doing if trained else READY[1]}{attacks}"


def is_complete(out: Path, begin: int) -> bool:
    """Whether a run has written its page, by its log behind the first ``begin`` bytes: its runtime has nothing left to do."""
    log = out / "flower.log"
    if not read_progress(out).get("finished") or not log.is_file():
        return False
    return f"fedveil: {PAGE_WRITTEN}".encode() in log.read_bytes()[begin:]


def step_of(log: Path, begin: int, steps: Mapping[bytes, str]) -> str:
    """The last of ``steps`` whose text a log holds after its first ``begin`` bytes; every log holds the empty one."""
    text = log.read_bytes()[begin:] if log.is_file() else b""
    return [step for sign, step in steps.items() if sign in text][-1]


def read_progress(directory: Path) -> dict[str, Any]:
    """The latest progress of a run; empty where there is none, or where it cannot be read."""
    try:
        progress = read_object(directory / "config.json").get("progress")
    except (OSError, ValueError, RecursionError):
        return {}
    return progress if isinstance(progress, dict) else {}
